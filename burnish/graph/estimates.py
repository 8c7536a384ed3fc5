"""Analytic cost estimates of convolution algorithms: direct, Winograd, polyphase, bfloat16 parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, prod

from burnish.graph.costs import (
    DIRECT_EFFICIENCY,
    TILE_EFFICIENCY,
    arithmetic_seconds,
    cache_seconds,
    copy_seconds,
    matrix_seconds,
    memory_seconds,
)
from burnish.graph.graph import Attribute, TensorType
from burnish.loops.sizes import hinted
from burnish.machines.register_tile import ROW_REGISTERS, Rows, direct_cycles, register_tile, row_tile, unevenness
from burnish.machines.target import Target
from burnish.ops.bf16x3 import DEPTH, ROWS, TERMS, multiplies_parts
from burnish.ops.interpolation import POINTS
from burnish.ops.polyphase import taps_of
from burnish.ops.winograd import TILES
from burnish.schedule.prefetch import LINE

# Share of the time to move activations through the outer caches that is not hidden behind arithmetic.
DIRECT_TRAFFIC, PHASED_TRAFFIC = 0.4, 1.0
TILES_TRAFFIC = 0.5  # the same of the output of a matrix unit's tiles
# Vector operations to move and add an element in Winograd's transforms, of tiles no larger than those of F(4x4, 3x3).
# The largest tile: transforms are unrolled, which makes long code.
TRANSFORM_WORK, FITTING_TILE, LARGEST_TILE = 1.1, 36, 81
# Flops reached by transforms of the polyphase algorithm, as a share of peak: of the input where lanes are channels, and
# where they are points; of the sums. Operations that a byte takes which comes from the second cache: of weights, which
# are streamed, and of a line of which one point is read.
DATA_EFFICIENCY, POINTS_EFFICIENCY, RESULT_EFFICIENCY = 0.8, 0.5, 1.0
WEIGHTS_WORK, LINES_WORK = 0.6, 0.25
HALO_WORK = 0.15  # what the transform of an input row takes, as a share of a row's products
PARTS_WORK = 24.0  # vector operations to make both parts of one input element
POLYPHASE_TILES = (2, 4)
STEADY_TILE = 2  # of Winograd's algorithm: errors 1.1 times those of direct convolutions, of 4 x 4 tiles 1.8
SINGLE_EFFICIENCY = 0.7  # of products of the polyphase algorithm in register tiles of one vector
FAR_POINTS = 4  # times the second cache: more points of strided windows, and beside raw weights, are far behind it
# Winograd's algorithm from raw weights: vector operations to transpose a vector of weights, and to transform one; the
# part of the L2 cache, 1 / SUMS_PART, that the weights of a pass may take, and as much its partial sums.
COPIED_WEIGHT, TRANSFORMED_WEIGHT, SUMS_PART = 9.0, 2.5, 4
# Share of the cycles of register tiles that a direct convolution reaches, in the rows of a window inside of the image;
# others are skipped.
ROWS_EFFICIENCY = 0.72
# On a grid of threads: another launch, in seconds, and the share of peak of a batch of products. Not measured.
LAUNCH_SECONDS, BATCHED_EFFICIENCY = 3e-6, 0.7
STEM_CHANNELS = 4
STEM_WORK = 160.0  # the same where channels have to be interleaved
MAX_BLOCK = 1024  # pixels of a block of tiles: its results should stay in the first-level caches


@dataclass(frozen=True)
class WinogradRates:
    """Winograd rates on machines of a kind.

    ``efficiency``: flops that its small products reach, as a share of peak, by the share of the second-level cache that
    the transformed weights take; ``strided``: how much longer those of a strided window take. ``large_tile``: as
    ``TRANSFORM_WORK``, of larger tiles. ``hidden``: of what the products and the streaming of their weights take, the
    share of the lesser that goes on behind the other.
    """

    efficiency: tuple[tuple[float, float], ...]
    strided: float
    large_tile: float
    hidden: float


# By how much is multiplied in a cycle, with which caches must keep up. Measured with vectors of 64 bytes and a second
# cache of 2 MB; and with 32 bytes, on a machine with 512 KB (AVX2) and on one with 1 MB (AVX-512).
WIDE = WinogradRates(((0.5, 0.85), (0.875, 0.75), (inf, 0.5)), 1.0, 4.4, 0.0)
NARROW = WinogradRates(((inf, 0.85),), 1.4, 1.6, 0.5)
HALVED = replace(NARROW, strided=1.1)  # vectors of 64 bytes of which half is multiplied at once


@dataclass(frozen=True)
class ConvSizes:
    """The sizes of a convolution: ``size`` and ``out`` are input and output heights and widths."""

    batch: int
    channels: int
    outputs: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    size: tuple[int, int]
    out: tuple[int, int]
    groups: int = 1

    @property
    def depth(self) -> int:
        """Input channels that an output channel sees."""
        return self.channels // self.groups

    @property
    def flops(self) -> float:
        """Operations of the direct algorithm."""
        taps = self.kernel[0] * self.kernel[1]
        return 2.0 * taps * self.depth * self.outputs * self.batch * self.out[0] * self.out[1]

    @property
    def input_bytes(self) -> float:
        """Bytes of the input, float32."""
        return 4.0 * self.batch * self.channels * self.size[0] * self.size[1]

    @property
    def share_read(self) -> float:
        """The share of the input that a strided window smaller than its stride reads."""
        return min(1.0, self.kernel[0] / self.strides[0]) * min(1.0, self.kernel[1] / self.strides[1])

    @property
    def output_bytes(self) -> float:
        """Bytes of the output, float32."""
        return 4.0 * self.batch * self.outputs * self.out[0] * self.out[1]


def window_of(x: TensorType, weight: TensorType, out: TensorType, attrs: Mapping[str, Attribute]) -> ConvSizes:
    """The sizes of a convolution with these types, at the hints of its dimensions."""
    batch, channels, height, width = map(hinted, x.shape)
    outputs, _, *kernel = weight.shape
    strides, groups = attrs.get("strides", (1, 1)), attrs.get("groups", 1)
    assert isinstance(strides, tuple) and isinstance(groups, int)
    steps, size = (int(strides[0]), int(strides[1])), (height, width)  # type: ignore[arg-type]
    ends = (hinted(out.shape[2]), hinted(out.shape[3]))
    return ConvSizes(batch, channels, outputs, (kernel[0], kernel[1]), steps, size, ends, groups)


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of one algorithm: its operator's name and attributes. ``steady``: it rounds about as the
    definition does; the larger tiles of Winograd's algorithm are two to three times further off.
    """

    op: str
    attrs: dict[str, Attribute]
    seconds: float
    steady: bool = True


def label_of(estimate: Estimate) -> str:
    """The algorithm in a word: its operator, the size m of its tiles, and whether it transforms the weight within."""
    size = f" m={estimate.attrs['m']}" if "m" in estimate.attrs else ""
    return estimate.op + size + (" raw weight" if estimate.attrs.get("transforms_weight") else "")


def _direct(w: ConvSizes, target: Target, pads: tuple[int, ...], plain: bool) -> Estimate:
    """Cycles of register tiles, the last ones of rows and of channels included; ``plain``: images stay row-major."""
    traffic = cache_seconds(DIRECT_TRAFFIC * (w.input_bytes + w.output_bytes), target)
    own = target.filled(w.outputs)
    if target.machine.dialect.grid is not None:
        flops = w.flops / w.outputs * _whole_vectors(w, own)
        return Estimate("conv2d", {}, arithmetic_seconds(flops, target, DIRECT_EFFICIENCY) + traffic)
    own = own if plain else target
    (height, width), blocks = w.out, -(-w.outputs // own.lanes)
    cycles = direct_cycles(own, width, height, blocks)
    if plain and w.groups == 1 and target.vector_registers >= ROW_REGISTERS:
        cycles = min(cycles, row_tile(target, Rows(w.outputs, height, width, w.strides[1]))[1])
    positions, vectors = register_tile(own, width, blocks)
    rows = height if height > 1 else -(-width // positions)
    cycles *= unevenness(w.batch * (blocks // vectors) * rows, target.cores)
    steps = w.batch * w.depth * prod(w.kernel) * _rows_inside(w, pads[0])
    operations = steps * cycles * target.multiply_bytes  # of a core in a cycle
    return Estimate("conv2d", {}, arithmetic_seconds(operations, target, ROWS_EFFICIENCY) + traffic)


def _rows_inside(w: ConvSizes, pad: int) -> float:
    """The share of the window's rows that lie in the image, with ``pad`` rows above it; the others are skipped."""
    inside = [0 <= i * w.strides[0] + row - pad < w.size[0] for i in range(w.out[0]) for row in range(w.kernel[0])]
    return sum(inside) / max(len(inside), 1)


def _whole_vectors(w: ConvSizes, target: Target) -> int:
    """Output channels that vectors compute: those of the last one as well that are not there."""
    return -(-w.outputs // target.lanes) * target.lanes if w.outputs >= target.lanes else w.outputs


def _winograd(w: ConvSizes, m: int, target: Target, raw: bool = False) -> Estimate | None:
    """Multiply-adds, the streaming of the transformed weights, which they do not hide, and the transforms.

    ``raw``: weights are transformed within, for every block of tiles whose sums fit a part of the second cache, and
    every vector of outputs reads all tiles, which may not stay in it.
    """
    axes = list(zip(w.kernel, w.strides, strict=True))
    products = prod((m - 1) * stride + taps for taps, stride in axes)
    points = [m + taps_of(taps, stride) - 1 for taps, stride in axes]
    known = POINTS.keys() >= {*points} and products <= LARGEST_TILE
    if not known or min(w.kernel) == 1 or any(taps < stride for taps, stride in axes):
        return None
    tiles = w.batch * -(-w.out[0] // m) * -(-w.out[1] // m)
    outputs = _whole_vectors(w, target)
    weight_bytes = 4 * products * w.depth * outputs
    costs = _rates(target)
    held = 0 if raw else weight_bytes
    efficiency = next(rate for share, rate in costs.efficiency if held <= share * target.l2_bytes)
    multiplying = arithmetic_seconds(2 * products * w.depth * outputs * tiles, target, efficiency)
    if prod(w.strides) > 1 and not raw:
        multiplying *= costs.strided
    points_bytes = 4 * products * tiles * w.channels
    if raw and points_bytes > FAR_POINTS * target.l2_bytes:
        multiplying += memory_seconds(points_bytes * outputs // target.lanes, target)
    elif raw and points_bytes > target.l2_bytes // 2:
        multiplying = max(multiplying, cache_seconds(points_bytes * outputs // target.lanes, target))
    streaming = memory_seconds(4 * prod(w.kernel) * w.depth * w.outputs if raw else weight_bytes, target)
    seconds = multiplying + streaming - costs.hidden * min(multiplying, streaming)
    if raw:
        blocks = -(-tiles // max(1, target.l2_bytes // SUMS_PART // (4 * products * target.lanes)))
        each = COPIED_WEIGHT * prod(w.kernel) + TRANSFORMED_WEIGHT * products
        seconds += arithmetic_seconds(2 * each * w.depth * w.outputs * blocks, target)
    data = products * w.channels * sum(points)
    results = prod(points) * outputs * (m + m * m / points[1])
    work = TRANSFORM_WORK if products <= FITTING_TILE else costs.large_tile
    transforms = arithmetic_seconds(work * tiles * (data + results) * 2, target)
    traffic = cache_seconds(PHASED_TRAFFIC * (w.input_bytes + w.output_bytes), target)
    if prod(w.strides) > 1 and points_bytes > FAR_POINTS * target.l2_bytes:
        traffic += cache_seconds(2 * points_bytes, target)
    elif raw and points_bytes > target.l2_bytes // 2:
        traffic += cache_seconds(points_bytes, target)
    attrs: dict[str, Attribute] = {"m": m, "transforms_weight": True} if raw else {"m": m}
    return Estimate("winograd_conv2d", attrs, seconds + transforms + traffic, m <= STEADY_TILE)


def _rates(target: Target) -> WinogradRates:
    """The rates of a machine's kind."""
    if target.multiply_bytes >= 64:
        return WIDE
    return HALVED if target.vector_bytes > target.multiply_bytes else NARROW


def _in_launches(w: ConvSizes, m: int, target: Target) -> Estimate | None:
    """Winograd where transforms and products are launches of their own, between which all points are in memory."""
    alone = _winograd(w, m, target)
    if alone is None:
        return None
    points = prod((m - 1) * stride + taps for taps, stride in zip(w.kernel, w.strides, strict=True))
    tiles = w.batch * -(-w.out[0] // m) * -(-w.out[1] // m)
    between = 4.0 * points * tiles * (w.channels + w.outputs)
    rate = cache_seconds if between <= target.l2_bytes / 2 else memory_seconds
    moved = rate(2 * between, target) + memory_seconds(w.input_bytes + w.output_bytes, target)
    weights = memory_seconds(4.0 * points * w.channels * w.outputs, target)
    products = arithmetic_seconds(2.0 * points * w.depth * w.outputs * tiles, target, BATCHED_EFFICIENCY)
    return replace(alone, seconds=max(products, weights) + moved + 2 * LAUNCH_SECONDS)


def _polyphase(w: ConvSizes, m: int, target: Target) -> Estimate | None:
    """Multiply-adds and both transforms. None where weights would miss the second cache, or points the first.

    Every band of rows reads all weights; every multiply-add reads a point, and those of one place share a cache line
    unless input channels do.
    """
    stride, taps = w.strides[1], taps_of(w.kernel[1], w.strides[1])
    points = m + taps - 1
    columns, in_blocks = points * stride, w.channels % target.lanes == 0
    own = target if in_blocks else target.filled(w.outputs)  # whose images are row-major
    outputs, along = _whole_vectors(w, own), -(-w.out[1] // m)
    weight_bytes = 4 * columns * w.kernel[0] * w.channels * outputs
    if points not in POINTS or taps == 1 or weight_bytes > target.l2_bytes * 3 // 4:
        return None
    if not in_blocks and 4 * columns > LINE:
        return None
    tiles = w.batch * w.out[0] * along
    products = 2 * columns * w.kernel[0] * w.channels * outputs * tiles
    lanes = columns if in_blocks else -(-columns // own.lanes) * own.lanes
    row_bytes = 4 * w.channels * along * -(-columns // own.lanes) * own.lanes * w.strides[0]
    band = band_rows(w.batch, w.out[0], w.kernel[0], row_bytes, target)
    rows = (band - 1) * w.strides[0] + w.kernel[0]  # transformed for each band of output rows
    data = 2 * w.channels * rows / band * tiles * columns * lanes
    results = 2 * points * (m + 4) * outputs * tiles  # the sums of every point are stored and read again
    traffic = cache_seconds(DIRECT_TRAFFIC * (w.input_bytes + w.output_bytes), target)
    transforms = arithmetic_seconds(data, target, DATA_EFFICIENCY if in_blocks else POINTS_EFFICIENCY)
    transforms += arithmetic_seconds(results, target, RESULT_EFFICIENCY)
    positions, vectors = register_tile(own, along, outputs // own.lanes if outputs >= own.lanes else 1)
    reads = 0.0
    if weight_bytes > target.l1_bytes // 2:
        reads = WEIGHTS_WORK * weight_bytes * w.batch * w.out[0] * -(-along // positions)
    if not in_blocks and LINE * w.channels * w.strides[0] * w.kernel[0] * along > target.l1_bytes // 2:
        reads += LINES_WORK * LINE * products / (2 * own.lanes * vectors)
    efficiency = DIRECT_EFFICIENCY if vectors > 1 else SINGLE_EFFICIENCY
    seconds = arithmetic_seconds(products, target, efficiency) + arithmetic_seconds(reads, target) + transforms
    seconds *= unevenness(w.batch * -(-w.out[0] // band), target.cores)  # a band is computed by one core
    return Estimate("polyphase_conv2d", {"m": m, "kernel_w": w.kernel[1]}, seconds + traffic)


def band_rows(batch: int, height: int, kernel: int, row_bytes: int, target: Target) -> int:
    """Output rows of a band of the polyphase algorithm, for which the input rows that they read are transformed once.

    The least work of the busiest core, among bands whose points, ``row_bytes`` for an output row, fit the second cache.
    ``kernel``: rows of the window.
    """

    def work(band: int) -> float:
        return -(-batch * -(-height // band) // target.cores) * (band + HALO_WORK * (band + kernel - 1))

    most = max(1, target.l2_bytes // 4 // row_bytes)
    return min(range(1, min(height, most) + 1), key=work)


def _split(w: ConvSizes, target: Target) -> Estimate:
    """Whole tiles of channels and pixels, plus the making of parts, against the streaming of weights."""
    pitch = w.out[1] + (w.kernel[1] - 1) // w.strides[1]
    rows, pixels = split_rows(w.out[0], pitch, -(-w.outputs // (2 * ROWS)), target)
    depth = -(-w.channels // DEPTH) * DEPTH
    outputs = -(-w.outputs // ROWS) * ROWS
    products = 2 * TERMS * w.kernel[0] * w.kernel[1] * depth * outputs * w.batch * pixels
    streaming = memory_seconds(4 * w.kernel[0] * w.kernel[1] * depth * outputs, target)
    parts = arithmetic_seconds(PARTS_WORK * 2 * depth * w.batch * w.size[0] * w.size[1] * w.share_read, target)
    moved = PHASED_TRAFFIC * 2 * w.share_read * w.input_bytes + TILES_TRAFFIC * w.output_bytes
    multiplying = matrix_seconds(products, target, TILE_EFFICIENCY)
    seconds = max(multiplying, streaming) + parts + cache_seconds(moved, target)
    return Estimate("split_conv2d", {"rows": rows, "outputs": w.outputs}, seconds)


def _stem(w: ConvSizes, target: Target) -> Estimate:
    """As :func:`_split`, with a row of the window in place of the channels."""
    depth = -(-w.kernel[1] * w.channels // DEPTH) * DEPTH
    pixels = w.out[0] * -(-w.out[1] // ROWS) * ROWS
    products = 2 * TERMS * w.kernel[0] * depth * -(-w.outputs // ROWS) * ROWS * w.batch * pixels
    parts = arithmetic_seconds(STEM_WORK * 2 * w.channels * w.batch * w.size[0] * w.size[1], target)
    seconds = matrix_seconds(products, target, TILE_EFFICIENCY) + parts
    return Estimate("split_stem", {"outputs": w.outputs, "kernel_w": w.kernel[1]}, seconds)


def packing_seconds(chosen: Estimate, w: ConvSizes, target: Target) -> float:
    """Predicted seconds to transform and pack a weight for an algorithm: it is read once, the result written once.

    None for one that transforms the weight within.
    """
    if chosen.attrs.get("transforms_weight"):
        return 0.0
    taps = w.kernel[0] * w.kernel[1]
    plain = 4.0 * taps * w.depth * w.outputs
    m = chosen.attrs.get("m", 1)
    assert isinstance(m, int)
    growth = 1.0
    if chosen.op == "winograd_conv2d":
        growth = prod((m - 1) * stride + k for k, stride in zip(w.kernel, w.strides, strict=True)) / taps
    elif chosen.op == "polyphase_conv2d":
        growth = (m + taps_of(w.kernel[1], w.strides[1]) - 1) * w.strides[1] / w.kernel[1]
    return copy_seconds(plain, growth * plain, target)


def split_rows(out_h: int, pitch: int, groups: int, target: Target) -> tuple[int, int]:
    """(output rows of a block, pixels computed in all): least waste among blocks that keep every core busy."""
    best: tuple[float, int, int] | None = None
    for rows in range(1, out_h + 1):
        if rows > 1 and rows * pitch > MAX_BLOCK:
            break
        blocks = -(-out_h // rows)
        pixels = blocks * -(-rows * pitch // (2 * ROWS)) * 2 * ROWS
        work = blocks * groups
        imbalance = -(-work // target.cores) * target.cores / work
        key = (pixels * imbalance, -rows, pixels)
        if best is None or key < best:
            best = key
    assert best is not None
    return -best[1], best[2]


def estimates(
    w: ConvSizes, pads: tuple[int, ...], target: Target, plain: bool = False, constant: bool = True
) -> list[Estimate]:
    """The algorithms that can compute a convolution on ``target``, and what they should take.

    Of one in groups, a block of channels that fills a vector must belong to one group. ``plain``: whether both its
    images are row-major unless its algorithm wants blocks. ``constant``: whether its weights are; the time to pack
    others is not in it.
    """
    grouped, found = w.groups > 1, [_direct(w, target, pads, plain)]
    if target.machine.dialect.grid is not None:
        tiles = [] if grouped else [_in_launches(w, m, target) for m in TILES]
        return found + [replace(e, attrs={**e.attrs, "pads": pads, "strides": w.strides}) for e in tiles if e]
    if w.outputs < target.lanes or (grouped and w.outputs // w.groups % target.lanes):
        return found
    place: dict[str, Attribute] = {"pads": pads, "strides": w.strides}
    if grouped:
        place["groups"] = w.groups
    windows = [_winograd(w, m, target) for m in TILES] if w.depth % target.lanes == 0 else []
    if not constant and w.depth % target.lanes == w.outputs % target.lanes == 0:
        windows += [_winograd(w, m, target, raw=True) for m in TILES]
    rows = [] if grouped else [_polyphase(w, m, target) for m in POLYPHASE_TILES]
    found += [replace(e, attrs={**e.attrs, **place}) for e in (*windows, *rows) if e is not None]
    if grouped:
        return found
    if multiplies_parts(target.unit) and w.channels >= target.lanes // 2:
        split = _split(w, target)
        found.append(replace(split, attrs={**split.attrs, **place}))
    if multiplies_parts(target.unit) and w.channels <= STEM_CHANNELS:
        stem = _stem(w, target)
        found.append(replace(stem, attrs={**stem.attrs, **place}))
    return found
