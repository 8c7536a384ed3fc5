"""Polyphase Winograd convolution: bands of rows, each transformed once, then a register tile for every point.

Lanes of the input transform are input channels where they come in blocks. Else they are the points of all phases, so
that it is a product of the window's columns with constant vectors. Its results are broadcast in the products, whose
lanes are output channels.
"""

from __future__ import annotations

from typing import NamedTuple

from burnish.graph.estimates import band_rows
from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    is_blocked,
    mark,
    narrowed,
    pad_channels,
    parallel_over,
    register_tile_at,
    single_output,
    whole_groups,
)
from burnish.kernels.match import mapped_from, mapped_to
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, Size, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.expr import Reduce
from burnish.loops.tensor import Tensor
from burnish.machines.register_tile import register_tile
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule


class PolyphaseStages(NamedTuple):
    """The algorithm: padded rows, transformed along the row, multiplied, and transformed back; and the machine with the
    vectors that its channels are computed in.
    """

    rows: Tensor
    data: Tensor
    weight: Tensor
    product: Tensor
    conv: Tensor
    machine: Target


def _chain(task: KernelTask, target: Target) -> PolyphaseStages | None:
    """The chain in a task of one output, with no view fused in front."""
    product, out = task.anchor(), task.outputs[0]
    if product is None or len(product.inputs) != 2 or len(product.shape) != 5 or len(task.outputs) != 1:
        return None
    data, weight = product.inputs
    rows, conv = mapped_from(data), mapped_to(task, product)
    if rows is None or conv is None or len(rows.inputs) != 1 or rows.inputs[0] not in task.inputs:
        return None
    layout = task.layout(out.name)
    fits = (
        out.shape == conv.shape
        and sum(isinstance(t.body, Reduce) for t in task.stages()) == 3
        and (layout.plain or is_blocked(layout, 1, target.lanes))
    )
    machine = narrowed(task, target, product.shape[2])
    return PolyphaseStages(rows, data, weight, product, conv, machine) if fits else None


def _space(task: KernelTask, target: Target, found: PolyphaseStages) -> ScheduleSpace:
    target = found.machine
    _, batch, outputs, height, tiles = found.product.shape
    _, channels, _, _, lines = found.data.shape
    positions, vectors = register_tile(target, tiles, -(-outputs // target.lanes))
    window = found.weight.shape[1]
    stride = (found.data.shape[2] - window) // max(1, height - 1) or 1
    row_bytes = 4 * channels * tiles * -(-lines // target.lanes) * target.lanes * stride
    band = band_rows(batch, height, window, row_bytes, target)
    knobs = {
        "band": tuple(range(1, height + 1)),
        "positions": tuple(range(1, min(tiles, target.vector_registers - 2) + 1)),
        "vectors": whole_groups(-(-outputs // target.lanes)),
    }
    return ScheduleSpace(knobs, {"band": band, "positions": positions, "vectors": vectors})


def _apply(task: KernelTask, target: Target, found: PolyphaseStages, choice: Choice) -> Schedule:
    lanes, group = found.machine.lanes, int(choice["vectors"]) * found.machine.lanes
    rows, data, weight, product, conv = (t.name for t in found[:5])
    out = single_output(task)
    s = Schedule(task.program())
    s.compute_inline(*[t.name for t in task.stages() if not isinstance(t.body, Reduce) and t.name not in (out, rows)])
    plain = task.layout(out).plain
    result = s.cache_write(out, "global" if plain else "register") if conv == out else conv
    sums = s.cache_write(result, "register") if plain else result
    accumulator = s.cache_write(product, "register")
    apply_layouts(s, task, {**channel_constants(task, group), weight: f"EABCD{group}e"})

    batch, oc, oh, ow = s.loops(out)
    summed = [s.loops(sums)[1], s.init_loops(sums)[1]]
    products = [loops[2] for loops in (s.loops(product), s.loops(accumulator), s.init_loops(accumulator))]
    pad_channels(s, (s.loops(result)[1] if plain else oc, *products, *summed), group, group // lanes)
    oc_group, oc = s.split(oc, group)
    band, oh = s.split(oh, int(choice["band"]))
    outer: tuple[str, ...] = (batch, band, oc_group, oh)
    if plain:
        _transpose_out(s, (batch, band, oc_group), oc, oh, ow, lanes)
        s.set_scope(result, "global")
        s.compute_at(result, oc_group)
        s.transform_layout(result, f"ABCD{lanes}b")
        inner, oc, oh, ow = s.loops(result)
        outer = (inner, oh)
    over, block = _tile_nest(s, outer, oc, ow, _columns(found), lanes, choice)
    s.compute_at(sums, block)
    _private_vectors(s, sums, lanes)
    s.compute_at(product, over)
    blocked = _has_blocks(task, target, found)
    _schedule_product(s, product, accumulator, lanes, blocked)
    if blocked:
        _schedule_channels(s, data, rows, band, lanes)
    else:
        _schedule_points(s, data, rows, band, lanes)
    parallel_over(s, (batch, band))
    return s


def _has_blocks(task: KernelTask, target: Target, found: PolyphaseStages) -> bool:
    """Whether the input's channels come in whole blocks."""
    (source,) = found.rows.inputs
    return is_blocked(task.layout(source.name), 1, target.lanes) and source.shape[1] % target.lanes == 0


def _columns(found: PolyphaseStages) -> int:
    """The output columns m of a tile: the windows of two of them start ``m * stride`` input columns apart."""
    points, _, _, stride, _ = found.weight.shape
    tiles, width = found.product.shape[4], found.rows.shape[3]
    return (width // stride - points) // (tiles - 1) if tiles > 1 else found.conv.shape[3]


def _tile_nest(
    s: Schedule, outer: tuple[str, ...], oc: str, ow: str, m: int, lanes: int, choice: Choice
) -> tuple[str, str]:
    """Register tiles of the nest that stores the convolution; returns the loops over tile blocks and channel blocks."""
    block, lane = s.split(oc, lanes)
    tile, column = s.split(ow, m)
    over, tile = s.split(tile, int(choice["positions"]))
    s.reorder(*outer, over, tile, block, column, lane)
    s.unroll(column)
    s.vectorize(lane)
    return over, block


def _transpose_out(s: Schedule, outer: tuple[str, ...], oc: str, oh: str, ow: str, lanes: int) -> None:
    """A row-major output, lanes of its rows out of the channel vectors of the scratch."""
    block, channel = s.split(oc, lanes)
    ow, lane = s.split(ow, min(lanes, s.extent(ow)))
    s.reorder(*outer, block, oh, ow, channel, lane)
    s.unroll(channel)
    s.vectorize(lane)


def _private_vectors(s: Schedule, stage: str, lanes: int) -> None:
    """Unrolls a stage completely, channels in one vector, in registers."""
    s.set_scope(stage, "register")
    for loops in (s.loops(stage), s.init_loops(stage)):
        vector = next(v for v in loops if s.extent(v) == lanes and v.endswith(("oc", "i1")))
        rest = [v for v in loops if v != vector]
        s.reorder(*rest, vector)
        mark(s, "unroll", *rest)
        s.vectorize(vector)


def _schedule_product(s: Schedule, product: str, accumulator: str, lanes: int, blocked: bool) -> None:
    """For every point, one register tile of tiles times channel vectors over the whole window."""
    s.transform_layout(product, f"ABCDE{lanes}c")
    for stage in (product, accumulator):
        for i, b, oc, oh, t, *window in filter(None, (s.loops(stage), s.init_loops(stage))):
            block, lane = s.split(oc, lanes)
            if window:
                kh, ic, phase = window
                outer = []
                if blocked:
                    over, ic = s.split(ic, lanes)
                    outer = [over]
                s.reorder(i, b, oh, *outer, kh, ic, phase, t, block, lane)
                s.unroll(phase)
            else:
                s.reorder(i, b, oh, t, block, lane)
            mark(s, "unroll", t, block)
            s.vectorize(lane)
        if stage == product:
            s.compute_at(accumulator, oh)
            s.set_scope(accumulator, "register")


def _schedule_channels(s: Schedule, data: str, rows: str, band: str, lanes: int) -> None:
    """The transformed rows of a band, input channels in vectors; padding is read as selects."""
    s.compute_inline(rows)
    sums = s.cache_write(data, "register")
    s.compute_at(data, band)
    s.transform_layout(data, f"ABCDE{lanes}b")
    b, c, h, t, q = s.loops(data)
    block, lane = s.split(c, lanes)
    s.reorder(b, block, h, t, q, lane)
    register_tile_at(s, sums, t, lane, q)
    b, c, h, t, q, r = s.loops(sums)
    s.reorder(b, h, t, r, q, c)
    mark(s, "unroll", r, q)
    s.vectorize(c)
    b, c, h, t, q = s.init_loops(sums)
    s.reorder(b, h, t, q, c)
    s.unroll(q)
    s.vectorize(c)


def _schedule_points(s: Schedule, data: str, rows: str, band: str, lanes: int) -> None:
    """The transformed rows of a band, points in vectors, from a padded copy of the rows."""
    sums = s.cache_write(data, "register")
    s.compute_at(data, band)
    s.transform_layout(data, f"ABCDE{lanes}e")
    b, c, h, t, q = s.loops(data)
    for loop in (q, s.loops(sums)[4], s.init_loops(sums)[4]):
        s.pad(loop, lanes)
    block, lane = s.split(q, lanes)
    s.reorder(b, c, h, t, block, lane)
    register_tile_at(s, sums, t, lane, block)
    b, c, h, t, q, r = s.loops(sums)
    block, lane = s.split(q, lanes)
    s.reorder(b, c, h, t, r, block, lane)
    mark(s, "unroll", r, block)
    s.vectorize(lane)
    b, c, h, t, q = s.init_loops(sums)
    block, lane = s.split(q, lanes)
    mark(s, "unroll", block)
    s.vectorize(lane)
    s.compute_at(rows, band)
    _, _, _, w = s.loops(rows)
    s.vectorize(s.split(w, lanes)[1])


def _nests(task: KernelTask, target: Target, found: PolyphaseStages) -> Describe:
    """Bands of rows in parallel; for every channel group, row and block of tiles the products of all points."""
    stage, lanes = found.product, found.machine.lanes
    domain = statement(task, stage)
    points, batch, outputs, height, tiles, kernel, inputs, phases = domain.extents
    i, b, oc, oh, t, kh, ic, phase = range(8)
    data, weight = found.data, found.weight
    blocked = _has_blocks(task, target, found)
    inner = lanes if blocked else inputs
    stride = (data.shape[2] - kernel) // max(height - 1, 1)

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        band, positions, vectors = knobs["band"], knobs["positions"], knobs["vectors"]
        group = vectors * lanes
        levels = [
            NestLevel(b, batch, 1, LoopKind.PARALLEL),
            NestLevel(oh, -(-height // band), band, LoopKind.PARALLEL),
            NestLevel(oc, -(-outputs // group), group),
            NestLevel(oh, band),
            NestLevel(t, -(-tiles // positions), positions),
            NestLevel(i, points),
            NestLevel(ic, inputs // inner, inner),
            NestLevel(kh, kernel),
            NestLevel(ic, inner),
            NestLevel(phase, phases, 1, LoopKind.UNROLL),
            NestLevel(t, positions, 1, LoopKind.UNROLL),
            NestLevel(oc, vectors, lanes, LoopKind.UNROLL),
            NestLevel(oc, lanes, 1, LoopKind.VECTORIZE),
        ]
        held: tuple[Size, ...] = (*data.shape[:2], (band - 1) * stride + kernel, *data.shape[3:])
        lane = 1 if blocked else 4
        arrangements = {
            data.name: Arrangement(held, (*((d, 0) for d in range(5)), (lane, lanes))),
            weight.name: Arrangement(weight.shape, ((4, 0), (0, 0), (1, 0), (2, 0), (3, 0), (4, group))),
        }
        return domain.nest(levels, count, arrangements)

    return describe


POLYPHASE_CONV = Template("polyphase_conv2d", _chain, _space, _apply, _nests)
