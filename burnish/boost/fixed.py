"""Gradient statistics as fixed-point integers: sums that are exact, and so the same in any order of addition."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.kernels import lean
from burnish.boost.threads import Workers
from burnish.errors import DataError

PACKED_BITS = 18  # magnitude of one packed gradient or Hessian
PACKED_ROWS = (1 << (31 - PACKED_BITS)) - 1  # so many rows' packed sums fit into 32 bits each
_COARSE = 128  # a mean |gradient| of fewer units than this needs the pairs form
_FEW_ROWS = 1024  # where precision costs nothing
_HALF = np.float32(0.5)
_INFINITY = 0x7F800000  # bits of float32's infinity


@dataclass(frozen=True)
class FixedPoint:
    """Gradients and Hessians of all rows as integer multiples of two units, which are powers of two.

    Packed, a row is one int64, ``(gradient << 32) + hessian``, and one addition adds both; sums of up to `PACKED_ROWS`
    rows unpack. Where 18 bits are too coarse (outliers) or a Hessian is negative, a row is a pair of int64 instead.
    """

    values: NDArray[np.int64]  # (rows,) packed or (rows, 2) pairs; rows of this worker
    gradient_unit: float
    hessian_unit: float
    total: tuple[int, int]  # sums over the rows of all workers, in units

    @property
    def packed(self) -> bool:
        """Whether a row is one integer."""
        return self.values.ndim == 1


class Quantizer:
    """Makes `FixedPoint` of float32 statistics; keeps its buffers from tree to tree."""

    def __init__(self, rows: int, workers: Workers, comm: Any = None) -> None:
        self._workers = workers
        self._comm = comm
        self._ranges = workers.ranges(rows, 16384)
        self._total_rows = self._reduce([(rows,)], "sum")[0]
        self._packed = np.empty(rows, np.int64)
        self._pairs: NDArray[np.int64] | None = None

    def __call__(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32]) -> FixedPoint:
        """The statistics of all rows, (rows,) each, in units fitted to the largest; DataError if one is not finite."""
        bits = gradient.view(np.int32), hessian.view(np.int32)
        extremes = self._workers.run(_extremes, [(*bits, *part) for part in self._ranges])
        largest = self._reduce(extremes, "max")
        if max(largest[:2]) >= _INFINITY:
            raise DataError("gradient, hessian: found NaN or infinite values; allowed: finite numbers")
        limits = np.array(largest[:2], np.int32).view(np.float32).tolist()
        if largest[2] <= 0 and self._total_rows > _FEW_ROWS:
            fixed = self._pack(gradient, hessian, *limits)
            if fixed is not None:
                return fixed
        return self._pair(gradient, hessian, *limits)

    def _pack(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], largest: float, largest_hessian: float
    ) -> FixedPoint | None:
        units = _unit(largest, PACKED_BITS), _unit(largest_hessian, PACKED_BITS)
        scales = np.float32(1 / units[0]), np.float32(1 / units[1])
        parts = self._workers.run(
            _pack_rows, [(gradient, hessian, *scales, *part, self._packed) for part in self._ranges]
        )
        sums = self._reduce(parts, "sum")
        if sums[2] < _COARSE * sums[3]:
            return None
        return FixedPoint(self._packed, *units, (sums[0], sums[1]))

    def _pair(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], largest: float, largest_hessian: float
    ) -> FixedPoint:
        bits = min(44, 61 - self._total_rows.bit_length())
        units = _unit(largest, bits), _unit(largest_hessian, bits)
        if self._pairs is None:
            self._pairs = np.empty((len(gradient), 2), np.int64)
        parts = self._workers.run(
            _pair_rows, [(gradient, hessian, 1 / units[0], 1 / units[1], *part, self._pairs) for part in self._ranges]
        )
        sums = self._reduce(parts, "sum")
        return FixedPoint(self._pairs, *units, (sums[0], sums[1]))

    def _reduce(self, parts: Sequence[tuple[int, ...]], op: str) -> list[int]:
        """Sums or maxima over threads and workers."""
        values = [int(sum(column) if op == "sum" else max(column)) for column in zip(*parts, strict=True)]
        if self._comm is None:
            return values
        return np.asarray(self._comm.all_reduce(np.array(values, np.int64), op=op)).tolist()


def _unit(largest: float, bits: int) -> float:
    """The power of two of which `largest` is fewer than 2^bits multiples (or as many, after rounding)."""
    if largest == 0:
        return 1.0
    # A scale beyond float32's range would overflow; so small a gradient is as good as zero.
    return math.ldexp(1.0, max(math.frexp(largest)[1] - bits, -120))


@lean
def _extremes(gradient: NDArray[np.int32], hessian: NDArray[np.int32], begin: int, end: int) -> tuple[int, int, int]:
    """Largest |gradient| and |Hessian| of some rows, as bits, which order as the numbers do; how many Hessians are < 0.

    NaN and infinity have the largest bits of all.
    """
    magnitude = np.int32(0x7FFFFFFF)
    largest, largest_hessian, negative = np.int32(0), np.int32(0), 0
    for i in range(np.uint64(begin), np.uint64(end)):
        size, hessian_size = gradient[i] & magnitude, hessian[i] & magnitude
        largest = size if size > largest else largest
        largest_hessian = hessian_size if hessian_size > largest_hessian else largest_hessian
        negative += (hessian[i] < 0) & (hessian_size != 0)
    return np.int64(largest), np.int64(largest_hessian), np.int64(negative)  # type: ignore[return-value]


@lean
def _pack_rows(
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
    scale: float,
    hessian_scale: float,
    begin: int,
    end: int,
    packed: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Packs rows; returns their sums of gradients, Hessians and |gradients|, and how many are not zero."""
    total, hessian_total, magnitude, count = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for i in range(np.uint64(begin), np.uint64(end)):
        g = np.int64(np.int32(math.floor(gradient[i] * scale + _HALF)))
        h = np.int64(np.int32(math.floor(hessian[i] * hessian_scale + _HALF)))
        packed[i] = (g << 32) + h
        total += g
        hessian_total += h
        magnitude += abs(g)
        count += gradient[i] != 0
    return total, hessian_total, magnitude, count  # type: ignore[return-value]


@lean
def _pair_rows(
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
    scale: float,
    hessian_scale: float,
    begin: int,
    end: int,
    pairs: NDArray[np.int64],
) -> tuple[int, int]:
    total, hessian_total = np.int64(0), np.int64(0)
    for i in range(np.uint64(begin), np.uint64(end)):
        g = np.int64(math.floor(float(gradient[i]) * scale + 0.5))
        h = np.int64(math.floor(float(hessian[i]) * hessian_scale + 0.5))
        pairs[i, 0] = g
        pairs[i, 1] = h
        total += g
        hessian_total += h
    return total, hessian_total  # type: ignore[return-value]
