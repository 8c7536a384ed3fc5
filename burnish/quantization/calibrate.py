"""Calibration: the ranges of a model's tensors on data, by which integers stand for their numbers.

Sources: Jacob et al. 2018, section 2.1 (affine quantization); Migacz, 8-bit Inference with TensorRT, 2017 (the range
whose quantized distribution has the least relative entropy).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.errors import DataError
from burnish.frontend.onnx.export.quantized import AffineQuantizer, QuantizedWeight

BINS = 2048
LEVELS = 128  # of magnitudes in the distribution that entropy compares with
CANDIDATES = 120  # ranges that it compares
LEAST_SCALE = 1e-12
BYTES = {"uint8": (0, 255), "int8": (-127, 127)}  # what a quantizer uses of a dtype; signed ones are symmetric


@dataclass
class Observed:
    """Statistics of a tensor: least and largest value, mean square, and counts of values in bins of that range."""

    low: float = np.inf
    high: float = -np.inf
    squares: float = 0.0
    count: int = 0
    bins: np.ndarray | None = None

    def widen(self, value: np.ndarray) -> None:
        """Adds the range of an array. Raises DataError for NaN and infinity."""
        low, high = float(value.min(initial=np.inf)), float(value.max(initial=-np.inf))
        if value.size and not np.isfinite(low + high):
            raise DataError(f"calibration: found values from {low} to {high} in the model; allowed: finite numbers")
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.squares += float(np.vdot(value, value))
        self.count += value.size

    def fill(self, value: np.ndarray) -> None:
        """Adds the counts of an array, after all ranges are known."""
        counts = np.histogram(value, BINS, self.range)[0]
        self.bins = counts if self.bins is None else self.bins + counts

    @property
    def mean_square(self) -> float:
        """Mean of the squares of all values."""
        return self.squares / max(self.count, 1)

    @property
    def range(self) -> tuple[float, float]:
        """Range of the bins, low and high."""
        return (self.low, self.high) if self.low < self.high else (self.low - 0.5, self.high + 0.5)

    def limits(self, method: str, percentile: float) -> tuple[float, float]:
        """The range that integers shall cover, 0 among it."""
        low, high = self.low, self.high
        if not np.isfinite(low + high):
            return 0.0, 0.0
        if self.bins is not None and low < high:
            edges = np.linspace(*self.range, BINS + 1)
            if method == "percentile":
                low, high = _percentile(self.bins, edges, percentile)
            elif method == "entropy":
                reach = _entropy_reach(self.bins, edges)
                low, high = max(low, -reach), min(high, reach)
        return min(low, 0.0), max(high, 0.0)


def _percentile(bins: np.ndarray, edges: np.ndarray, percentile: float) -> tuple[float, float]:
    """Range that leaves out a percentage of the values, half of them at either end."""
    share = np.cumsum(bins) / bins.sum()
    outside = (100.0 - percentile) / 200.0
    first = int(np.searchsorted(share, outside, "right"))
    last = int(np.searchsorted(share, 1.0 - outside, "left"))
    return float(edges[min(first, BINS - 1)]), float(edges[min(last, BINS - 1) + 1])


def _entropy_reach(bins: np.ndarray, edges: np.ndarray) -> float:
    """The magnitude beyond which values are clipped, so that the relative entropy of the quantized is least."""
    reach = float(np.abs(edges[[0, -1]]).max())
    centres = np.abs(edges[:-1] + edges[1:]) / 2
    counts = np.bincount(np.minimum((centres / reach * BINS).astype(int), BINS - 1), bins, BINS).astype(np.float64)
    best, least = BINS, np.inf
    for stop in np.unique(np.linspace(LEVELS, BINS, CANDIDATES).astype(int)):
        kept = counts[:stop].copy()
        own = counts[:stop]
        kept[-1] += counts[stop:].sum()
        level = np.arange(stop) * LEVELS // stop
        used = own > 0
        sums, numbers = np.bincount(level, own, LEVELS), np.bincount(level, used, LEVELS)
        spread = np.where(used, (sums / np.maximum(numbers, 1))[level], 0.0)
        p, q = kept / max(kept.sum(), 1), spread / max(spread.sum(), 1)
        both = (p > 0) & (q > 0)
        lost = p[(p > 0) & (q <= 0)].sum()
        entropy = float((p[both] * np.log(p[both] / q[both])).sum()) + lost * 10.0
        if entropy < least:
            best, least = stop, entropy
    return reach * best / BINS


def observe(
    run: Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]],
    names: Sequence[str],
    batches: Iterable[Mapping[str, np.ndarray]],
    counts: bool,
) -> dict[str, Observed]:
    """The named tensors, which ``run`` computes from a batch, over all batches; ``counts``: with their distributions,
    for which the batches are run again.
    """
    found = {name: Observed() for name in names}
    for batch in batches:
        for name, value in zip(names, run(batch), strict=True):
            found[name].widen(np.asarray(value, np.float32))
    for batch in batches if counts else ():
        for name, value in zip(names, run(batch), strict=True):
            found[name].fill(np.asarray(value, np.float32))
    return found


def quantizer_of(low: float, high: float, dtype: str) -> AffineQuantizer:
    """The quantizer whose integers reach from ``low`` to ``high``, with 0 as one of them."""
    least, most = BYTES[dtype]
    if dtype == "int8":
        return AffineQuantizer(np.float32(max(max(-low, high) / most, LEAST_SCALE)), np.array(0, np.int8))
    scale = np.float32(max((high - low) / (most - least), LEAST_SCALE))
    return AffineQuantizer(scale, np.array(np.clip(np.rint(-low / scale), least, most), np.uint8))


def few_bit_quantizer(observed: Observed, bits: int) -> AffineQuantizer:
    """The quantizer to ``bits`` bits whose squared error over the counted values is least."""
    low, high = observed.limits("minmax", 100.0)
    if observed.bins is None or not low < high:
        return AffineQuantizer(np.float32(max(high - low, LEAST_SCALE)), np.array(0, np.uint8), bits)
    edges = np.linspace(*observed.range, BINS + 1)
    centres, most = (edges[:-1] + edges[1:]) / 2, (1 << bits) - 1
    found = []
    for zero in range(most + 1 if low < 0 else 1):
        for reach in np.geomspace(1e-3, 1.0, CANDIDATES):
            scale = reach * max(high / (most - zero) if most > zero else 0.0, -low / zero if zero else 0.0)
            if scale > LEAST_SCALE:
                near = (np.clip(np.rint(centres / scale) + zero, 0, most) - zero) * scale
                found.append((float((observed.bins * (near - centres) ** 2).sum()), float(scale), zero))
    _, scale, zero = min(found)
    return AffineQuantizer(np.float32(scale), np.array(zero, np.uint8), bits)


def few_bit_weight(weight: np.ndarray, axis: int, bits: int) -> QuantizedWeight:
    """A weight in odd numbers of ``bits`` bits, of one -1 and 1, with a scale for each output channel, which is
    ``axis``: that of the least squared error of some.

    Source: Rastegari et al. 2016 (XNOR-Net), section 3.1: of one bit the signs, by the mean magnitude.
    """
    rows = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1).astype(np.float64)
    most, best = (1 << bits) - 1, np.full(len(rows), np.inf)
    whole, scale = np.ones_like(rows), np.full(len(rows), LEAST_SCALE)
    reach = np.abs(rows).max(1, initial=0.0)
    for share in np.linspace(0.1, 1.0, 19):
        step = np.maximum(share * reach / most, LEAST_SCALE)
        odd = np.clip(2 * np.floor(rows / (2 * step[:, None])) + 1, -most, most)
        own = np.maximum((odd * rows).sum(1) / (odd * odd).sum(1), LEAST_SCALE)  # by least squares
        error = np.square(rows - odd * own[:, None]).sum(1)
        better = error < best
        best, scale = np.where(better, error, best), np.where(better, own, scale)
        whole[better] = odd[better]
    moved = np.moveaxis(weight, axis, 0).shape
    integers = np.ascontiguousarray(np.moveaxis(whole.reshape(moved), 0, axis).astype(np.int8))
    return QuantizedWeight(integers, scale.astype(np.float32), axis, bits)


def quantized_weight(weight: np.ndarray, axis: int) -> QuantizedWeight:
    """A weight in int8 with a scale for each output channel, which is ``axis``."""
    others = tuple(d for d in range(weight.ndim) if d != axis)
    scale = np.maximum(np.abs(weight).max(others, initial=0.0) / 127.0, LEAST_SCALE).astype(np.float32)
    whole = np.clip(np.rint(weight / np.expand_dims(scale, others)), -127, 127).astype(np.int8)
    return QuantizedWeight(whole, scale, axis)


def blocked_weight(weight: np.ndarray, bits: int, block: int) -> QuantizedWeight:
    """A matrix in integers of ``bits`` bits with a scale for each ``block`` elements of a column.

    The scale's sign is such that the element of the largest magnitude is the least integer, which reaches one further
    than the largest one.
    """
    depth, columns = weight.shape
    blocks = -(-depth // block)
    padded = np.pad(weight.astype(np.float32), [(0, blocks * block - depth), (0, 0)]).reshape(blocks, block, columns)
    far = np.take_along_axis(padded, np.abs(padded).argmax(1)[:, None], 1)
    reach = -(1 << (bits - 1))
    scale = np.where(far == 0, np.float32(1), far / np.float32(reach)).astype(np.float32)
    whole = np.clip(np.rint(padded / scale), reach, -reach - 1).astype(np.int8)
    return QuantizedWeight(whole.reshape(-1, columns)[:depth], scale[:, 0], 0, bits, block)


def noise_of(value: np.ndarray, weight: QuantizedWeight) -> float:
    """Noise of a quantized weight: the mean square of its error over that of the weight."""
    power = float(np.vdot(value, value))
    error = weight.value - value
    return float(np.vdot(error, error)) / power if power else 0.0


def activation_noise(observed: Observed, quantizer: AffineQuantizer) -> float:
    """Noise of a quantized activation: the mean square of rounding over that of the values."""
    power = observed.mean_square
    if quantizer.bits < 8 and observed.bins is not None and power:
        edges = np.linspace(*observed.range, BINS + 1)
        centres, zero = (edges[:-1] + edges[1:]) / 2, int(quantizer.zero)
        whole = np.clip(np.rint(centres / quantizer.scale) + zero, 0, (1 << quantizer.bits) - 1) - zero
        return float((observed.bins * np.square(whole * quantizer.scale - centres)).sum()) / observed.count / power
    return float(quantizer.scale) ** 2 / 12 / power if power else 0.0
