"""Direct convolution: a register tile of output pixels times channel vectors, accumulated over the whole window.

The structure of ``parallel(oc group, oh) -> ow tile -> ic block -> kh -> kw -> ic`` with weights packed
``[ocg][icb][kh][kw][ic][oc]``; the padding stage is inlined, its conditions become masks of a tile's first and last
pixels, or vanish where lowering cuts the loop over tiles. Weights that are known at a call only are packed by the loop
over groups of output channels, where that reads each group once: ``parallel(oc group) -> pack, n -> oh -> ...``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import numpy as np

from burnish.graph.costs import copy_seconds
from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_blocks,
    channel_constants,
    inline_around,
    is_blocked,
    mark,
    narrowed,
    packed_weight,
    pad_channels,
    parallel_over,
    single_output,
    whole_groups,
)
from burnish.kernels.cpu.raw_weight import is_packed_within, transposed_copy
from burnish.kernels.match import Convolution, convolution
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.contraction import contraction
from burnish.loops.tensor import Tensor
from burnish.machines.register_tile import most_positions, register_tile, tile_step
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

STREAMS = 8  # runs of memory that a core fetches ahead at once
N, OC, OH, OW, IC, KH, KW = range(7)  # axes of a convolution


class DirectConv(NamedTuple):
    """A convolution, and the machine with the vectors that its channels are computed in."""

    convolution: Convolution
    machine: Target


def _direct(task: KernelTask, target: Target) -> DirectConv | None:
    """A dense convolution that is written row-major, or any in channel blocks."""
    found = convolution(task, packed_weight(task))
    if found is None or found.conv.shape != task.outputs[0].shape:
        return None
    own = DirectConv(found, narrowed(task, target, found.weight.shape[0]))
    if _is_plain(task):
        return own if all(t.shape[1] == found.weight.shape[1] for t in found.conv.inputs) else None
    return own if is_blocked(task.layout(single_output(task)), 1, target.lanes) else None


def _is_plain(task: KernelTask) -> bool:
    """Whether the output is row-major."""
    return task.layout(single_output(task)).plain


def _rows(task: KernelTask, target: Target) -> DirectConv | None:
    """Any whose output is row-major or in channel blocks, also one that is read at other indices, as phases are."""
    own, found = task.layout(task.outputs[0].name), convolution(task, packed_weight(task))
    return DirectConv(found, target) if found and (own.plain or is_blocked(own, 1, target.lanes)) else None


def _space(task: KernelTask, target: Target, found: DirectConv) -> ScheduleSpace:
    (conv, weight, _), target = found
    batch, channels, height, width = conv.shape
    blocks = -(-channels // target.lanes)

    def jobs(positions: int, vectors: int) -> int:
        pixels = height if height > 1 or width % positions else width // positions
        return batch * (blocks // vectors) * pixels

    shared = _shared(task, target, found.convolution)
    summed = contraction(conv)
    counted = summed is not None and summed.counted
    positions, vectors = register_tile(target, width, blocks, height == 1, shared=shared, jobs=jobs, counted=counted)
    if weight.name in task.packed and not counted:
        positions, vectors = _tile_packed_within(task, target, conv, weight, (positions, vectors))
    # A core that computes all channels of some rows reads all weights, but few rows that another core has written.
    few_weights = 4 * prod(weight.shape) <= target.l2_bytes // 2
    rows_first = few_weights and batch * height * width > channels * prod(weight.shape[2:])
    # Of a large image, all is read again for every channel group, or else all weights are for every row.
    if height > 1 and _is_scattered(conv, weight, target):
        groups = -(-blocks // vectors)
        rows_first = rows_first or batch * height * 4 * prod(weight.shape) < groups * _input_bytes(conv, weight)
    knobs = {
        "tile_ow": tuple(range(1, min(width, target.vector_registers - 2) + 1)),
        "vectors": whole_groups(blocks),
        "outer": ("oc", "oh"),
        "unroll_ic": (1, 2, 3, 4),  # a loop's own instructions take slots from multiply-adds
        "prefetch": (0, 1),  # of the next pass's weights
        "band": _all_bands(task, conv, target),
        "depth": (0, *_depths(weight, target)),  # input channels of a pass over a band; 0: all in one
    }
    default = {"tile_ow": positions, "vectors": vectors, "outer": "oh" if rows_first and not _is_plain(task) else "oc"}
    unroll = 4 if positions * vectors <= target.vector_registers // 2 or target.element_lanes else 2
    unroll = unroll if _depth_block(weight, target.lanes) % unroll == 0 else 1
    unroll = weight.shape[1] if weight.shape[1] <= 4 else unroll
    depth, band = _passes(task, target, found.convolution, vectors)
    prefetch = int(depth > 0 and weight.shape[2] > 1 and band > 1)
    return ScheduleSpace(knobs, {**default, "unroll_ic": unroll, "depth": depth, "band": band, "prefetch": prefetch})


def _tile_packed_within(
    task: KernelTask, target: Target, conv: Tensor, weight: Tensor, usual: tuple[int, int]
) -> tuple[int, int]:
    """(positions, vectors) of the register tile, or of one of fewer vectors, whose groups of channels can be packed
    within, where its cycles are fewer than those of the usual tile and of packing before.
    """
    batch, channels, height, width = conv.shape
    taps, blocks, nbytes = prod(weight.shape[1:]), -(-channels // target.lanes), 4.0 * prod(weight.shape)

    def cycles(positions: int, vectors: int) -> float:
        full, rest = divmod(width, positions)
        row = full * tile_step(positions, vectors, target) + (tile_step(rest, vectors, target) if rest else 0.0)
        own = batch * height * row * (blocks // vectors) * taps / target.cores
        group = vectors * target.lanes
        within = is_packed_within(task, target, weight, group, 4 * group * taps)
        before = 0.0 if within else copy_seconds(nbytes, nbytes, target)
        return own + before * target.core.clock

    fewer = [(min(width, most_positions(target, v)), v) for v in whole_groups(blocks) if v < usual[1]]
    return min([usual, *fewer], key=lambda tile: cycles(*tile))


def _shared(task: KernelTask, target: Target, found: Convolution) -> int:
    """Neighbouring pixels of a row whose inputs lie in one vector: of rows in channel blocks, one."""
    if any(is_blocked(task.layout(t.name), 1, target.lanes) for t in task.inputs):
        return 1
    stride = max(1, round(found.data.buffer.shape[3] / found.conv.shape[3]))
    return max(1, target.element_lanes // stride)


def _space_rows(task: KernelTask, target: Target, found: DirectConv) -> ScheduleSpace:
    """The knobs that single rows have: they are not cut into bands and passes."""
    own, bands = _space(task, target, found), ("prefetch", "band", "depth")
    knobs = {knob: choices for knob, choices in own.knobs.items() if knob not in bands}
    return ScheduleSpace(knobs, {knob: own.default[knob] for knob in knobs})


def _depths(weight: Tensor, target: Target) -> list[int]:
    """Whole blocks of input channels, fewer than all, into which they divide."""
    inputs = weight.shape[1]
    return [depth for depth in range(target.lanes, inputs, target.lanes) if inputs % depth == 0]


def _passes(task: KernelTask, target: Target, found: Convolution, vectors: int) -> tuple[int, int]:
    """(input channels of a pass, rows of a band) of :func:`_schedule_bands`; 0 channels: one pass over all of them.

    An image of one row is cut into bands of columns instead.

    Several passes pay where the weights of a channel group are twice the first cache or more: those of one fill half
    of it. They also do where an input is so many channel blocks, each a stream of its own, that they cannot be fetched
    ahead at once: even a small one comes out of another core's cache. The sums of a band take a quarter of the second
    cache, and there are bands enough to share out. A row-major output wants bands in any case: their sums are what is
    transposed.
    """
    conv, weight, _ = found
    batch, channels, height, width = conv.shape
    group, inputs = vectors * target.lanes, weight.shape[1]
    taps_bytes = 4 * group * weight.shape[2] * weight.shape[3]
    most = max(target.lanes, target.l1_bytes // 2 // taps_bytes)
    scattered = height == 1 and _has_many_streams(weight, target)
    if scattered:
        most = min(most, STREAMS * target.lanes)
    depth = max((d for d in _depths(weight, target) if d <= most), default=0)
    shares = batch * -(-channels // group)

    extent, across = _bands(conv), width if height > 1 else 1

    def fits(band: int) -> bool:
        sums_bytes = 4 * band * across * group
        parts = shares * (extent // band)
        enough = parts >= 4 * target.cores or parts % target.cores == 0
        return extent % band == 0 and sums_bytes <= target.l2_bytes // 4 and enough

    band = max((b for b in _all_bands(task, conv, target) if fits(b)), default=0)
    pays = (inputs * taps_bytes > 2 * target.l1_bytes or scattered) and band * across >= 32
    if _is_plain(task):
        return depth if pays else 0, band or (extent if height == 1 else min(extent, -(-32 // across)))
    return (depth, band) if pays and depth else (0, extent)


def _bands(conv: Tensor) -> int:
    """The extent that bands are cut from: rows, or the columns of an image of one row."""
    height, width = conv.shape[2:]
    return height if height > 1 else width


def _all_bands(task: KernelTask, conv: Tensor, target: Target) -> tuple[int, ...]:
    """The bands that an image can be cut into: columns of a row-major output are not, within a vector."""
    extent = _bands(conv)
    if conv.shape[2] > 1 or not _is_plain(task):
        return tuple(range(1, extent + 1))
    return tuple(dict.fromkeys([*range(target.lanes, extent + 1, target.lanes), extent]))


def _input_bytes(conv: Tensor, weight: Tensor) -> int:
    """Bytes of a convolution's inputs other than its weights."""
    return sum(4 * t.buffer.size for t in conv.inputs if t is not weight)


def _is_scattered(conv: Tensor, weight: Tensor, target: Target) -> bool:
    """Whether an input comes from behind the second cache, in more channel blocks than are fetched ahead at once."""
    return 3 * _input_bytes(conv, weight) > 2 * target.l2_bytes and _has_many_streams(weight, target)


def _has_many_streams(weight: Tensor, target: Target) -> bool:
    """Whether the input channels are more blocks than are fetched ahead at once."""
    return weight.shape[1] > 2 * STREAMS * target.lanes


def _apply(task: KernelTask, target: Target, found: DirectConv, choice: Choice) -> Schedule:
    weight, target = found.convolution.weight, found.machine
    s = Schedule(task.program())
    acc = inline_around(s, task, ())
    within = _packs_within(task, target, weight, choice)
    _lay_out(s, task, target, weight, choice, within)
    nest = _schedule_bands if choice["depth"] or _is_plain(task) else _schedule_nest
    outer = nest(s, task, target, weight, choice, acc)
    if within:
        batch, group, *_ = outer
        s.reorder(group, batch)
        at = s.loops(acc)[0] if _packs_passes(task, weight, choice) else group
        transposed_copy(s, f"{weight.name}.local", at, target.lanes, _tag(weight, target, choice))
        outer = (group,)
    parallel_over(s, outer)
    if choice["prefetch"] and choice["depth"] and not within:
        _prefetch_next_pass(s, weight, acc)
    return s


def _packs_within(task: KernelTask, target: Target, weight: Tensor, choice: Choice) -> bool:
    """Whether the loop over groups of output channels packs their weights, which cores then share by these groups."""
    if "depth" not in choice:  # single rows in a buffer of their own
        return False
    group, taps = int(choice["vectors"]) * target.lanes, prod(weight.shape[2:])
    depth = int(choice["depth"]) if _packs_passes(task, weight, choice) else weight.shape[1]
    return choice["outer"] == "oc" and is_packed_within(task, target, weight, group, 4 * group * depth * taps)


def _packs_passes(task: KernelTask, weight: Tensor, choice: Choice) -> bool:
    """Whether a pass over some input channels is the only one that reads their weights."""
    *_, height, width = task.outputs[0].shape
    whole = int(choice["band"]) >= (height if height > 1 else width)
    return bool(choice["depth"]) and whole and task.outputs[0].shape[0] == 1


def _prefetch_next_pass(s: Schedule, weight: Tensor, acc: str) -> None:
    """While a pass runs over the rows of a band, each row hints its share of the weights of the next.

    It does so a column of the window at a time: the few misses that a core can have open are soon used up, and the next
    hint then stops everything behind it.
    """
    part, row, *_ = (loop for loop in s.loops(acc) if s.extent(loop) > 1)
    kw = s.loops(f"{acc}.rf")[-6]
    s.prefetch(weight.name, kw, part, 1, row)


def _apply_rows(task: KernelTask, target: Target, found: DirectConv, choice: Choice) -> Schedule:
    """All rows of the convolution in channel blocks in a buffer of its own, then the output row by row."""
    s = Schedule(task.program())
    out, (conv, weight, _) = single_output(task), found.convolution
    s.compute_inline(*[t.name for t in task.stages() if t.name not in (out, conv.name)])
    result = s.cache_write(out, "global") if conv.name == out else conv.name
    acc = s.cache_write(result, "register")
    _lay_out(s, task, target, weight, choice)
    s.transform_layout(result, f"ABCD{target.lanes}b")
    parallel_over(s, _schedule_nest(s, task, target, weight, choice, acc, result))
    n, oc, oh, ow = s.loops(out)
    if not _is_plain(task):
        pad_channels(s, (oc,), target.lanes)
        channels, lane = s.split(oc, target.lanes)
        s.reorder(n, channels, oh, ow, lane)
        s.vectorize(lane)
        parallel_over(s, (n, channels, oh))
        return s
    # The channels of a block and the phases of a row side by side: their vectors come out of the same vectors.
    channels, c = s.split(oc, min(target.lanes, s.extent(oc)))
    oh, phase = s.split(oh, -(-task.outputs[0].shape[2] // conv.shape[2]))
    ow, lane = s.split(ow, min(target.lanes, s.extent(ow)))
    s.reorder(n, channels, oh, ow, phase, c, lane)
    mark(s, "unroll", phase, c)
    s.vectorize(lane)
    parallel_over(s, (n, channels, oh))
    return s


def _depth_block(weight: Tensor, lanes: int) -> int:
    """Input channels that are consecutive in the packed weight."""
    depth = weight.shape[1]
    return lanes if depth % lanes == 0 or depth >= 2 * lanes else depth


def _tag(weight: Tensor, target: Target, choice: Choice) -> str:
    """The layout of the packed weight."""
    return f"ABCD{_depth_block(weight, target.lanes)}b{int(choice['vectors']) * target.lanes}a"


def _lay_out(
    s: Schedule, task: KernelTask, target: Target, weight: Tensor, choice: Choice, within: bool = False
) -> None:
    """Lays out what is packed before: all but a weight that is packed ``within``."""
    constants = channel_constants(task, int(choice["vectors"]) * target.lanes)
    apply_layouts(s, task, constants if within else {**constants, weight.name: _tag(weight, target, choice)})


def _schedule_nest(
    s: Schedule, task: KernelTask, target: Target, weight: Tensor, choice: Choice, acc: str, result: str = ""
) -> tuple[str, ...]:
    """The nest that stores ``result`` (the output by default), in it the sums ``acc``; returns the parallel loops."""
    out = result or single_output(task)
    group = int(choice["vectors"]) * target.lanes
    if _packs_within(task, target, weight, choice):
        s.cache_read(weight.name, "local", acc)
    n, oc, oh, ow = s.loops(out)
    pad_channels(s, (oc, s.loops(acc)[1], s.init_loops(acc)[1]), group, group // target.lanes)
    oc_group, oc = s.split(oc, group)
    whole = s.extent(ow) % int(choice["tile_ow"]) == 0
    ow_tile = _tile_stores(s, target, choice, (n, oc_group, oh), oc, ow)
    s.compute_at(acc, ow_tile)
    _tile_sums(s, target, weight, choice, acc)
    pixels = (oh, ow_tile) if s.extent(oh) == 1 and whole else (oh,)
    outer = (n, oc_group, *pixels) if choice["outer"] == "oc" else (n, *pixels, oc_group)
    s.reorder(*outer)
    return outer


def _schedule_bands(
    s: Schedule, task: KernelTask, target: Target, weight: Tensor, choice: Choice, acc: str
) -> tuple[str, ...]:
    """As :func:`_schedule_nest`, but the sums of a band of rows are kept in scratch, from which the output is written.

    They come about in passes of ``depth`` input channels over the band: a pass reads so few weights that they stay in
    the first cache from row to row. A row-major output is transposed out of the scratch.
    """
    lanes, group, out = target.lanes, int(choice["vectors"]) * target.lanes, single_output(task)
    n, oc, oh, ow = s.loops(out)
    s.set_scope(acc, "global")
    if choice["depth"]:
        partial = s.rfactor(acc, s.split(s.loops(acc)[4], int(choice["depth"]))[0])
        channels = [s.loops(acc)[1], s.init_loops(acc)[1], s.loops(partial)[1], s.init_loops(partial)[2]]
    else:
        partial = s.cache_write(acc, "register")
        channels = [s.loops(acc)[1], s.loops(partial)[1], s.init_loops(partial)[1]]
    if _packs_within(task, target, weight, choice):
        s.cache_read(weight.name, "local", partial)
    pad_channels(s, channels if _is_plain(task) else [oc, *channels], group, group // target.lanes)
    oc_group, oc = s.split(oc, group)
    if s.extent(oh) > 1:
        band, oh = s.split(oh, int(choice["band"]))
    else:
        band, ow = s.split(ow, int(choice["band"]))
    oc_block, channel = s.split(oc, lanes)
    if _is_plain(task):
        ow, lane = s.split(ow, min(lanes, s.extent(ow)))
        s.reorder(n, oc_group, band, oc_block, oh, ow, channel, lane)
        s.unroll(channel)
    else:
        lane = channel
        s.reorder(n, oc_group, band, oc_block, oh, ow, lane)
    s.vectorize(lane)
    s.compute_at(acc, band)
    s.transform_layout(acc, f"ABCD{lanes}b")
    a_n, a_oc, a_oh, a_ow, *a_part = s.loops(acc)
    ow_tile = _tile_stores(s, target, choice, (*a_part, a_n, a_oh), a_oc, a_ow)
    s.compute_at(partial, ow_tile)
    _tile_sums(s, target, weight, choice, partial)
    if s.init_loops(acc):
        i_n, i_oc, i_oh, i_ow = s.init_loops(acc)
        i_block, i_lane = s.split(i_oc, lanes)
        s.reorder(i_n, i_block, i_oh, i_ow, i_lane)
        s.vectorize(i_lane)
    outer = (n, oc_group, band) if choice["outer"] == "oc" else (n, band, oc_group)
    s.reorder(*outer)
    return outer


def _tile_stores(s: Schedule, target: Target, choice: Choice, outer: tuple[str, ...], oc: str, ow: str) -> str:
    """Makes the inner part of a storing nest one register tile; returns the loop over the tiles of a row."""
    oc_block, lane = s.split(oc, target.lanes)
    ow_tile, ow = s.split(ow, int(choice["tile_ow"]))
    s.reorder(*outer, ow_tile, ow, oc_block, lane)
    mark(s, "unroll", ow, oc_block)
    s.vectorize(lane)
    return ow_tile


def _tile_sums(s: Schedule, target: Target, weight: Tensor, choice: Choice, acc: str) -> None:
    """Accumulates a register tile: blocks of input channels, the window, the channels of a block."""
    lanes = target.lanes
    s.set_scope(acc, "register")
    oc, oh, ow = s.loops(acc)[1:4]
    ic, kh, kw = s.loops(acc)[-3:]
    block, lane = s.split(oc, lanes)
    ic_block, ic = s.split(ic, _depth_block(weight, lanes))
    ic, step = s.split(ic, int(choice["unroll_ic"]))
    s.reorder(oh, ic_block, kh, kw, ic, step, ow, block, lane)
    s.unroll(step)
    mark(s, "unroll", ow, block)
    s.vectorize(lane)
    i_oc, i_oh, i_ow = s.init_loops(acc)[-3:]
    i_block, i_lane = s.split(i_oc, lanes)
    s.reorder(i_oh, i_ow, i_block, i_lane)
    mark(s, "unroll", i_ow, i_block)
    s.vectorize(i_lane)


# --- what cost models see ---------------------------------------------------------------------------------------------


def _direct_nests(task: KernelTask, target: Target, found: DirectConv) -> Describe:
    """Bands of passes where ``depth`` is not 0 or the output is row-major; else single rows, in either order."""
    rows = task.layout(single_output(task)).plain
    return _register_tiles(task, found, lambda knobs: np.asarray(rows) | (knobs["depth"] > 0))


def _rows_nests(task: KernelTask, target: Target, found: DirectConv) -> Describe:
    """As the direct convolution without bands, in a buffer of its own."""
    describe, none = _register_tiles(task, found, lambda knobs: np.asarray(False)), np.asarray(0)
    return lambda knobs, count: describe({**knobs, "band": none, "depth": none}, count)


def _register_tiles(task: KernelTask, found: DirectConv, bands: Callable[[Knobs], np.ndarray]) -> Describe:
    (conv, weight, _), target = found
    domain, lanes = statement(task, conv), target.lanes
    batch, outputs, height, width = conv.shape
    inputs, kernel_h, kernel_w = domain.extents[IC], domain.extents[KH], domain.extents[KW]
    block = _depth_block(weight, lanes)

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        tile, vectors, step = knobs["tile_ow"], knobs["vectors"], knobs["unroll_ic"]
        group, in_bands = vectors * lanes, bands(knobs)
        depth = np.where(in_bands & (knobs["depth"] > 0), knobs["depth"], inputs)
        band = np.where(in_bands, knobs["band"], 1 if height > 1 else width)
        high, wide = (band, width) if height > 1 else (np.asarray(1), band)
        by_columns = ~in_bands & (knobs["outer"] == "oh")
        alone = ~in_bands & (height == 1) & (width % tile == 0)  # tiles of a single row run in parallel
        groups, tiles = -(-outputs // group), -(-wide // tile)
        levels = [
            NestLevel(N, batch, 1, LoopKind.PARALLEL),
            NestLevel(OC, np.where(by_columns, 1, groups), group, LoopKind.PARALLEL),
            NestLevel(OH, -(-height // high), high, LoopKind.PARALLEL),
            NestLevel(OW, -(-width // wide), wide, LoopKind.PARALLEL),
            NestLevel(OW, np.where(alone, tiles, 1), tile, LoopKind.PARALLEL),
            NestLevel(OC, np.where(by_columns, groups, 1), group, LoopKind.PARALLEL),
            NestLevel(IC, -(-inputs // depth), depth),
            NestLevel(OH, high),
            NestLevel(OW, np.where(alone, 1, tiles), tile),
            NestLevel(IC, -(-depth // block), block),
            NestLevel(KH, kernel_h),
            NestLevel(KW, kernel_w),
            NestLevel(IC, -(-block // step), step),
            NestLevel(IC, step, 1, LoopKind.UNROLL),
            NestLevel(OW, tile, 1, LoopKind.UNROLL),
            NestLevel(OC, vectors, lanes, LoopKind.UNROLL),
            NestLevel(OC, lanes, 1, LoopKind.VECTORIZE),
        ]
        packed = Arrangement(weight.shape, ((0, 0), (1, 0), (2, 0), (3, 0), (1, block), (0, group)))
        return domain.nest(levels, count, {weight.name: packed, conv.name: channel_blocks(conv.shape, lanes)})

    return describe


DIRECT_CONV = Template("direct_conv2d", _direct, _space, _apply, _direct_nests)
PLAIN_CONV = Template("plain_conv2d", _rows, _space_rows, _apply_rows, _rows_nests)
