"""Winograd convolution that transforms its weight within: a block of it in a cache, just before the products read it.

All tiles of the image are transformed first. Threads then own groups of output channels: in passes over blocks of input
channels, a block's weight is transposed and transformed into scratch, multiplied with all tiles of a block of them, and
added to sums in scratch. So a weight that is known at a call only is read once, and its transform, which has four times
the bytes in F(4x4, 3x3), is never in memory.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from burnish.graph.costs import cache_seconds
from burnish.graph.estimates import COPIED_WEIGHT, SUMS_PART, TRANSFORMED_WEIGHT
from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    mark,
    parallel_over,
    single_output,
    whole_groups,
)
from burnish.kernels.cpu.raw_weight import transposed_copy
from burnish.kernels.cpu.winograd import (
    FROM_SECOND,
    WinogradStages,
    chain,
    chain_sizes,
    even_blocks,
    schedule_data,
    schedule_output,
)
from burnish.kernels.match import mapped_from
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.expr import Reduce
from burnish.loops.tensor import Tensor
from burnish.machines.register_tile import fits_elements, most_positions, tile_step
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

ADDED = 3.0  # vector operations that a vector of sums takes to be added to


class RawWeight(NamedTuple):
    """Winograd's algorithm from a weight [O, D, KH, KW], which is transformed by columns to ``rows``, and by rows."""

    stages: WinogradStages
    raw: Tensor
    rows: Tensor


def _form(task: KernelTask, target: Target) -> RawWeight | None:
    """The chain from a row-major weight of whole vectors of output and of input channels."""
    found = chain(task, target, reducing=7)
    rows = mapped_from(found.weight) if found else None
    raw = mapped_from(rows)
    if found is None or rows is None or raw is None or raw not in task.inputs or task.layouts.get(raw.name):
        return None
    whole = raw.shape[0] % target.lanes == 0 and raw.shape[1] % target.lanes == 0
    return RawWeight(found, raw, rows) if whole else None


def _space(task: KernelTask, target: Target, found: RawWeight) -> ScheduleSpace:
    _, _, channels, outputs, groups, tiles = chain_sizes(task, found.stages)
    blocks, depth = outputs // groups // target.lanes, channels // groups
    block, positions, vectors = _least_cycles(task, target, found)
    knobs = {
        "block": even_blocks(tiles),
        "positions": tuple(range(1, most_positions(target, 1) + 1)),
        "vectors": whole_groups(blocks),
        "depth": _passes(target, depth),
    }
    passed = _depth(task, target, found)
    return ScheduleSpace(knobs, {"block": block, "positions": positions, "vectors": vectors, "depth": passed})


def _passes(target: Target, depth: int) -> tuple[int, ...]:
    """Input channels that a pass may take: whole vectors, as many in each pass."""
    return tuple(d for d in range(target.lanes, depth + 1, target.lanes) if depth % d == 0)


def _depth(task: KernelTask, target: Target, found: RawWeight) -> int:
    """Input channels of a pass: the most whose transformed weight, for a vector of outputs, takes a part of the second
    cache. How sums are cut, and so their rounding, does not depend on the number of threads.
    """
    _, products, channels, _, groups, _ = chain_sizes(task, found.stages)
    least, *others = _passes(target, channels // groups)
    most = target.l2_bytes // SUMS_PART // (4 * products * target.lanes)
    return max((d for d in others if d <= most), default=least)


def _least_cycles(task: KernelTask, target: Target, found: RawWeight) -> tuple[int, int, int]:
    """(tiles of a block, positions, vectors) of the least time of the busiest core.

    Cycles of register tiles, behind which tiles are read, of the transform of weights, which every block of tiles
    repeats, of adding up the passes; and of the bytes of weights.
    """
    _, products, channels, outputs, groups, tiles = chain_sizes(task, found.stages)
    passed = _depth(task, target, found)
    blocks, depth, taps = outputs // groups // target.lanes, channels // groups, prod(found.raw.shape[2:])
    slower = max(1.0, target.vector_bytes / target.multiply_bytes)
    cycles_a_byte = target.core.clock * target.cores * cache_seconds(1.0, target)
    transform = (COPIED_WEIGHT * taps + TRANSFORMED_WEIGHT * products) / 2 * slower

    def cost(size: int, positions: int, vectors: int) -> float:
        rounds = -(-(blocks * groups // vectors) * -(-tiles // size) // target.cores)
        step = max(tile_step(positions, vectors, target), positions * vectors * slower / 2) + FROM_SECOND * vectors
        registers = -(-size // positions)
        multiplied = depth * products * registers * step
        added = depth // passed * products * registers * positions * vectors * ADDED / 2 * slower
        read = 4 * products * size * depth * cycles_a_byte
        weights = vectors * depth * (transform + 4 * taps * target.lanes * cycles_a_byte)
        return rounds * (max(multiplied, read) + added + weights)

    choices = [
        (size, positions, vectors)
        for vectors in whole_groups(blocks)
        if vectors == 1 or 4 * products * passed * vectors * target.lanes <= target.l2_bytes // 2
        for size in even_blocks(tiles)
        for positions in range(1, min(size, most_positions(target, vectors)) + 1)
        if 4 * products * size * vectors * target.lanes <= target.l2_bytes // SUMS_PART or size == 1
        if not target.element_lanes or fits_elements(target, positions, vectors)
    ]
    return min(choices, key=lambda choice: cost(*choice))


def _apply(task: KernelTask, target: Target, found: RawWeight, choice: Choice) -> Schedule:
    m, products, *_ = chain_sizes(task, found.stages)
    lanes, vectors, out = target.lanes, int(choice["vectors"]), single_output(task)
    pixels, rows, data, weight, product, columns, conv = (t.name for t in found.stages)
    s = Schedule(task.program())
    s.compute_inline(*[t.name for t in task.stages() if not isinstance(t.body, Reduce) and t.name not in (out, pixels)])
    for transform in (rows, data, columns, conv, found.rows.name, weight):
        s.expand(transform)
    apply_layouts(s, task, channel_constants(task, lanes))
    in_registers = products <= target.vector_registers
    schedule_data(s, pixels, rows, data, lanes, in_registers)
    tiles, oc_block = schedule_output(s, out, conv, columns, m, lanes, in_registers)
    depth, _ = s.split(s.loops(product)[-1], int(choice["depth"]))
    partial = s.rfactor(product, depth)
    tile_loop = _schedule_sums(s, product, lanes)
    block, tile = s.split(tiles, int(choice["block"]))
    over, oc_block = s.split(oc_block, vectors)
    s.reorder(over, block, tile, oc_block)
    s.compute_at(product, block)
    depth = s.loops(product)[0]
    _schedule_tiles(s, product, partial, tile_loop, int(choice["positions"]), lanes)
    _schedule_weight(s, found, depth, vectors, lanes)
    parallel_over(s, s.loops(data)[:2])
    s.parallel(over)
    s.parallel(block)
    s.fuse(over, block)
    return s


def _schedule_sums(s: Schedule, product: str, lanes: int) -> str:
    """Sums of all products in scratch, zeroed, then added to in each pass; returns the loop over tiles."""
    s.transform_layout(product, f"ABDC{lanes}c")
    i, j, oc, tile, depth = s.loops(product)
    block, lane = s.split(oc, lanes)
    s.reorder(depth, i, j, tile, block, lane)
    s.unroll(block)
    s.vectorize(lane)
    i, j, oc, init_tile = s.init_loops(product)
    block, lane = s.split(oc, lanes)
    s.reorder(i, j, init_tile, block, lane)
    s.vectorize(lane)
    return tile


def _schedule_tiles(s: Schedule, product: str, partial: str, tile: str, positions: int, lanes: int) -> None:
    """Register tiles of a pass, padded to whole ones."""
    s.set_scope(partial, "register")
    s.pad(tile, positions)
    over, tile = s.split(tile, positions)
    s.unroll(tile)
    s.compute_at(partial, over)
    for padded in (s.loops(partial)[3], s.init_loops(partial)[-1]):
        s.pad(padded, positions)
    i, j, oc, p, phase_h, phase_w, one, ic = s.loops(partial)
    block, lane = s.split(oc, lanes)
    s.reorder(i, j, phase_h, phase_w, one, ic, p, block, lane)
    mark(s, "unroll", p, block)
    s.vectorize(lane)
    one, i, j, oc, p = s.init_loops(partial)
    block, lane = s.split(oc, lanes)
    s.reorder(one, i, j, p, block, lane)
    mark(s, "unroll", p, block)
    s.vectorize(lane)


def _schedule_weight(s: Schedule, found: RawWeight, depth: str, vectors: int, lanes: int) -> None:
    """A pass's weight for a group of channels: squares of both channels, transposed, then transformed in registers."""
    weight, rows = found.stages.weight.name, found.rows.name
    s.transform_layout(weight, f"CDAB{vectors * lanes}c")
    i, j, oc, ic = s.loops(weight)
    group, oc = s.split(oc, vectors * lanes)
    s.reorder(group, i, j, ic, oc)
    s.compute_at(weight, depth)
    group, i, j, ic, oc = s.loops(weight)
    block, lane = s.split(oc, lanes)
    square, ic = s.split(ic, lanes)
    s.reorder(group, block, square, ic, i, j, lane)
    mark(s, "unroll", i, j)
    s.vectorize(lane)
    copy = s.cache_read(found.raw.name, "local", rows)
    s.compute_at(rows, ic)
    s.set_scope(rows, "register")
    i, column, lane, ic = s.loops(rows)
    s.reorder(ic, i, column, lane)
    mark(s, "unroll", i, column)
    s.vectorize(lane)
    transposed_copy(s, copy, square, lanes)


def _nests(task: KernelTask, target: Target, found: RawWeight) -> Describe:
    """Channel groups around tile blocks around passes over input channels, each of n x n products in register tiles."""
    stage, lanes = found.stages.product, target.lanes
    domain = statement(task, stage)
    points_h, points_w, outputs, tiles, phases_h, phases_w, inputs = domain.extents
    i, j, oc, p, phase_h, phase_w, ic = range(7)
    data, weight = found.stages.data, found.stages.weight

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        block, positions, depth = knobs["block"], knobs["positions"], knobs["depth"]
        group = knobs["vectors"] * lanes
        levels = [
            NestLevel(oc, -(-outputs // group), group, LoopKind.PARALLEL),
            NestLevel(p, -(-tiles // block), block, LoopKind.PARALLEL),
            NestLevel(ic, inputs // depth, depth),
            NestLevel(i, points_h),
            NestLevel(j, points_w),
            NestLevel(p, -(-block // positions), positions),
            NestLevel(phase_h, phases_h),
            NestLevel(phase_w, phases_w),
            NestLevel(ic, depth),
            NestLevel(p, positions, 1, LoopKind.UNROLL),
            NestLevel(oc, knobs["vectors"], lanes, LoopKind.UNROLL),
            NestLevel(oc, lanes, 1, LoopKind.VECTORIZE),
        ]
        held = np.maximum((-(-tiles // block) - 1) * block + -(-block // positions) * positions, tiles)
        arrangements = {
            data.name: Arrangement((*data.shape[:3], held), ((0, 0), (1, 0), (2, 0), (3, 0), (2, lanes))),
            weight.name: Arrangement(weight.shape, ((2, 0), (3, 0), (0, 0), (1, 0), (2, group)), ((3, depth),)),
        }
        return domain.nest(levels, count, arrangements)

    return describe


WINOGRAD_RAW_WEIGHT = Template("winograd_raw_weight", _form, _space, _apply, _nests)
