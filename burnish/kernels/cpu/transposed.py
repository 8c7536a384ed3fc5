"""Transposed convolution: each phase of the output a register-tiled convolution; one input pixel a matrix product."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    inline_around,
    is_blocked,
    mark,
    packed_weight,
    pad_channels,
    parallel_over,
    register_tile_at,
    single_output,
    whole_groups,
)
from burnish.kernels.match import is_phased, is_pixel
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, Size, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.expr import Reduce
from burnish.loops.tensor import Tensor
from burnish.machines.register_tile import register_tile
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

WHOLE = 28  # positions of a phase up to which one register tile holds all of them


class Products(NamedTuple):
    """The stage that sums products, and its constant weight."""

    anchor: Tensor
    weight: Tensor


def _blocked_product(task: KernelTask, target: Target) -> Products | None:
    """A float32 product with a constant weight, the only reduction, of an image in channel blocks."""
    anchor, weight = task.anchor(), packed_weight(task)
    if anchor is None or weight is None or len(task.outputs) != 1 or len(task.outputs[0].shape) != 4:
        return None
    single = sum(isinstance(t.body, Reduce) for t in task.stages()) == 1
    blocked = is_blocked(task.layout(single_output(task)), 1, target.lanes)
    return Products(anchor, weight) if single and blocked and anchor.dtype == "float32" else None


# --- phases -----------------------------------------------------------------------------------------------------------


def _phases(task: KernelTask, target: Target) -> Products | None:
    found = _blocked_product(task, target)
    return found if found is not None and is_phased(*found) else None


def _space_phases(task: KernelTask, target: Target, found: Products) -> ScheduleSpace:
    _, channels, _, _, height, width = found.anchor.shape
    whole = height * width <= min(WHOLE, target.vector_registers)  # each weight is then read once: a few spills pay
    blocks = -(-channels // target.lanes)
    tile = (width, 1) if whole else register_tile(target, width, blocks)
    knobs = {
        "tile_h": (1, height),
        "tile_w": tuple(range(1, min(width, target.vector_registers - 2) + 1)),
        "vectors": whole_groups(blocks),
    }
    return ScheduleSpace(knobs, {"tile_h": height if whole else 1, "tile_w": tile[0], "vectors": tile[1]})


def _apply_phases(task: KernelTask, target: Target, found: Products, choice: Choice) -> Schedule:
    lanes, group = target.lanes, int(choice["vectors"]) * target.lanes
    anchor, weight = found
    depth = weight.shape[3]
    depth_block = lanes if depth % lanes == 0 else depth if depth < 2 * lanes else lanes
    s = Schedule(task.program())
    out = single_output(task)
    acc = inline_around(s, task, ())
    apply_layouts(s, task, {**channel_constants(task, group), weight.name: f"ABCDEF{depth_block}d{group}a"})

    n, oc, oh, ow = s.loops(out)
    pad_channels(s, (oc, s.loops(acc)[1], s.init_loops(acc)[1]), group, group // lanes)
    oc_group, oc = s.split(oc, group)
    block, lane = s.split(oc, lanes)
    qh, rh = s.split(oh, anchor.shape[2])
    qw, rw = s.split(ow, anchor.shape[3])
    over_h, qh = s.split(qh, int(choice["tile_h"]))
    over_w, qw = s.split(qw, int(choice["tile_w"]))
    s.reorder(n, oc_group, over_h, rh, rw, over_w, qh, qw, block, lane)
    register_tile_at(s, acc, over_w, lane, qh, qw, block)

    _, a_oc, _, _, a_qh, a_qw, ic, th, tw = s.loops(acc)
    a_block, a_lane = s.split(a_oc, lanes)
    ic_block, ic = s.split(ic, depth_block)
    s.reorder(ic_block, th, tw, ic, a_qh, a_qw, a_block, a_lane)
    mark(s, "unroll", a_qh, a_qw, a_block)
    s.vectorize(a_lane)
    _, i_oc, _, _, i_qh, i_qw = s.init_loops(acc)
    i_block, i_lane = s.split(i_oc, lanes)
    s.reorder(i_qh, i_qw, i_block, i_lane)
    mark(s, "unroll", i_qh, i_qw, i_block)
    s.vectorize(i_lane)
    if choice["tile_h"] != 1:  # every border of the map is inside the tile: which taps it has is known per phase
        mark(s, "unroll", th, tw)
        _copies(s, rh)
    else:
        _copies(s, rw)
    parallel_over(s, (n, oc_group, over_h))
    return s


def _copies(s: Schedule, loop: str) -> None:
    """A copy of the code for each iteration, in which the phase is a constant."""
    for _ in range(s.extent(loop) - 1):
        _, loop = s.partition(loop, 1)


def _phases_nests(task: KernelTask, target: Target, found: Products) -> Describe:
    """Phase after phase a tile of output pixels; the code has a copy for each phase, which runs its iteration."""
    (conv, weight), lanes = found, target.lanes
    domain = statement(task, conv)
    batch, outputs, stride_h, stride_w, height, width, inputs, taps_h, taps_w = domain.extents
    n, oc, rh, rw, qh, qw, ic, th, tw = range(9)
    block = lanes if inputs % lanes == 0 else inputs if inputs < 2 * lanes else lanes

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        tile_h, tile_w, vectors = knobs["tile_h"], knobs["tile_w"], knobs["vectors"]
        group, taps = vectors * lanes, np.where(tile_h != 1, LoopKind.UNROLL, LoopKind.SERIAL)
        levels = [
            NestLevel(n, batch, 1, LoopKind.PARALLEL),
            NestLevel(oc, -(-outputs // group), group, LoopKind.PARALLEL),
            NestLevel(qh, -(-height // tile_h), tile_h, LoopKind.PARALLEL),
            NestLevel(rh, stride_h),
            NestLevel(rw, stride_w),
            NestLevel(qw, -(-width // tile_w), tile_w),
            NestLevel(ic, -(-inputs // block), block),
            NestLevel(th, taps_h, 1, taps),
            NestLevel(tw, taps_w, 1, taps),
            NestLevel(ic, block),
            NestLevel(qh, tile_h, 1, LoopKind.UNROLL),
            NestLevel(qw, tile_w, 1, LoopKind.UNROLL),
            NestLevel(oc, vectors, lanes, LoopKind.UNROLL),
            NestLevel(oc, lanes, 1, LoopKind.VECTORIZE),
        ]
        parts: list[tuple[int, Size]] = [(d, 0) for d in range(6)]
        packed = Arrangement(weight.shape, (*parts, (3, block), (0, group)))
        return domain.nest(levels, count, {weight.name: packed})

    return describe


TRANSPOSED_PHASES = Template("conv2d_transpose_phases", _phases, _space_phases, _apply_phases, _phases_nests)


# --- one input pixel --------------------------------------------------------------------------------------------------


def _pixel(task: KernelTask, target: Target) -> Products | None:
    found = _blocked_product(task, target)
    return found if found is not None and is_pixel(*found) else None


def _space_pixel(task: KernelTask, target: Target, found: Products) -> ScheduleSpace:
    registers = target.vector_registers
    return ScheduleSpace({"positions": tuple(range(1, registers - 2))}, {"positions": registers // 2})


def _apply_pixel(task: KernelTask, target: Target, found: Products, choice: Choice) -> Schedule:
    """``parallel(channel block) -> output positions in registers -> ic``, weights streamed once in that order."""
    lanes, weight = target.lanes, found.weight
    _, _, height, width = task.outputs[0].shape
    whole = height * width <= int(choice["positions"])
    s = Schedule(task.program())
    out = single_output(task)
    acc = inline_around(s, task, ())
    order = "BACD" if whole else "BCAD"
    apply_layouts(s, task, {**channel_constants(task, lanes), weight.name: f"{order}{lanes}b"})
    n, oc, oh, ow = s.loops(out)
    pad_channels(s, (oc, s.loops(acc)[1], s.init_loops(acc)[1]), lanes)
    block, lane = s.split(oc, lanes)
    if whole:
        s.reorder(block, n, oh, ow, lane)
        s.compute_at(acc, n)
        s.unroll(oh)
        outer = [block, n]
    else:
        over, ow = s.split(ow, min(width, int(choice["positions"])))
        s.reorder(block, oh, n, over, ow, lane)
        s.compute_at(acc, over)
        outer = [block, oh, n]
    s.set_scope(acc, "register")
    s.unroll(ow)
    s.vectorize(lane)
    _, a_oc, a_oh, a_ow, ic = s.loops(acc)
    s.reorder(ic, a_oh, a_ow, a_oc)
    mark(s, "unroll", a_oh, a_ow)
    s.vectorize(a_oc)
    _, i_oc, i_oh, i_ow = s.init_loops(acc)
    s.reorder(i_oh, i_ow, i_oc)
    mark(s, "unroll", i_oh, i_ow)
    s.vectorize(i_oc)
    parallel_over(s, outer)
    return s


TRANSPOSED_1X1 = Template("conv2d_transpose_pixel", _pixel, _space_pixel, _apply_pixel)
