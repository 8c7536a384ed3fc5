"""Convolution of row-major images of one row, with a 1×1 window: a register tile of channels times vectors of pixels.

Isolated groups of 1×1 convolutions have such images, whatever their shape was. Inputs and outputs are vectors as they
lie in memory, so that a layer between a model's row-major input and output moves nothing; weights are broadcast, packed
``[oc tile][ic][oc]``. The structure of ``parallel(pixel tile) -> oc tile -> ic``: the inputs of a tile of pixels stay
in the first cache while all channels use them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from burnish.kernels.cpu.common import (
    apply_layouts,
    inline_around,
    mark,
    packed_weight,
    parallel_over,
    register_tile_at,
    single_output,
)
from burnish.kernels.match import convolution
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.tensor import Tensor
from burnish.machines.register_tile import element_step
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

MOST_VECTORS = 8


class PointwiseConv(NamedTuple):
    """The stage that convolves, its constant weight, and the register tile: (output channels, pixel vectors)."""

    conv: Tensor
    weight: Tensor
    tile: tuple[int, int]


def _rows(task: KernelTask, target: Target) -> PointwiseConv | None:
    found, shape = convolution(task, packed_weight(task)), task.outputs[0].shape
    if (
        found is None
        or not found.in_rows
        or found.conv.shape != shape
        or any(not layout.plain for layout in task.layouts.values())
    ):
        return None
    data, weight = found.data.buffer, found.weight
    pointwise = shape[2] == 1 and weight.shape[1:] == (data.shape[1], 1, 1) and data.shape[2:] == shape[2:]
    tile = _tile(weight, shape[3], target) if pointwise else None
    return None if tile is None else PointwiseConv(found.conv, weight, tile)


def _space(task: KernelTask, target: Target, found: PointwiseConv) -> ScheduleSpace:
    weight, (rows, vectors) = found.weight, found.tile
    knobs = {
        "rows": tuple(range(1, min(weight.shape[0], target.vector_registers - 2) + 1)),
        "vectors": tuple(range(1, MOST_VECTORS + 1)),
        "unroll_ic": (1, 2, 4),
    }
    most = 4 if target.element_lanes else 2
    unroll = next(u for u in (4, 2, 1) if u <= most and weight.shape[1] % u == 0)
    return ScheduleSpace(knobs, {"rows": rows, "vectors": vectors, "unroll_ic": unroll})


def _tile(weight: Tensor, pixels: int, target: Target) -> tuple[int, int] | None:
    """(output channels, pixel vectors) of the register tile; None where no tile of several vectors suits.

    Tiles are whole: the code of one that may be partial tests each of its vectors. The inputs of a tile of pixels fill
    at most three quarters of the first cache. Minimises cycles: a step costs ``rows * vectors / 2`` (two multiply-adds
    a cycle), and no less than the multiply-add latency of 4; loads take slots in decoding. The tile, a step's pixels
    and one broadcast must fit the register file.
    """
    outputs, depth = weight.shape[:2]

    def suits(vectors: int) -> bool:
        whole = pixels % (vectors * target.lanes) == 0
        return whole and vectors * target.vector_bytes * depth <= target.l1_bytes * 3 // 4

    def cycles(tile: tuple[int, int]) -> float:
        rows, vectors = tile
        tiles, rest = divmod(outputs, rows)
        return (tiles * step(rows, vectors) + (step(rest, vectors) if rest else 0.0)) / vectors

    if target.element_lanes:
        step: Callable[[int, int], float] = partial(element_step, target, shared=target.element_lanes)
    else:
        step = _step
    room = target.vector_registers - 1
    pairs = [(r, v) for v in range(2, MOST_VECTORS + 1) if suits(v) for r in range(1, outputs + 1)]
    shared = max(1, target.element_lanes)
    fitting = [(r, v) for r, v in pairs if r * v + v + (-(-r // shared) if shared > 1 else 0) <= room]
    return min(fitting, key=cycles, default=None)


def _step(rows: int, vectors: int) -> float:
    return max(rows * vectors / 2, 4.0) + 0.1 * (rows + vectors)


def _apply(task: KernelTask, target: Target, found: PointwiseConv, choice: Choice) -> Schedule:
    weight, out, lanes = found.weight, single_output(task), target.lanes
    s = Schedule(task.program())
    acc = inline_around(s, task, ())
    rows = int(choice["rows"])
    apply_layouts(s, task, {weight.name: f"ABCD{rows}a"})
    n, oc, oh, ow = s.loops(out)
    channels, channel = s.split(oc, rows)
    pixels, pixel = s.split(ow, int(choice["vectors"]) * lanes)
    block, lane = s.split(pixel, lanes)
    s.reorder(n, oh, pixels, channels, channel, block, lane)
    register_tile_at(s, acc, channels, lane, channel, block)
    _, a_oc, a_oh, a_ow, ic, kh, kw = s.loops(acc)
    block, lane = s.split(a_ow, lanes)
    ic, step = s.split(ic, int(choice["unroll_ic"]))
    s.reorder(a_oh, kh, kw, ic, step, a_oc, block, lane)
    mark(s, "unroll", step, a_oc, block)
    s.vectorize(lane)
    _, i_oc, _, i_ow = s.init_loops(acc)
    block, lane = s.split(i_ow, lanes)
    mark(s, "unroll", i_oc, block)
    s.vectorize(lane)
    parallel_over(s, (n, oh, pixels))
    return s


def _nests(task: KernelTask, target: Target, found: PointwiseConv) -> Describe:
    """Tiles of pixels in parallel; in each, tiles of channels times vectors of pixels."""
    conv, weight, lanes = found.conv, found.weight, target.lanes
    domain = statement(task, conv)
    n, oc, oh, ow, ic = range(5)
    batch, outputs, height, width = conv.shape
    inputs = domain.extents[ic]

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        rows, vectors, step = knobs["rows"], knobs["vectors"], knobs["unroll_ic"]
        levels = [
            NestLevel(n, batch, 1, LoopKind.PARALLEL),
            NestLevel(oh, height, 1, LoopKind.PARALLEL),
            NestLevel(ow, -(-width // (vectors * lanes)), vectors * lanes, LoopKind.PARALLEL),
            NestLevel(oc, -(-outputs // rows), rows),
            NestLevel(ic, -(-inputs // step), step),
            NestLevel(ic, step, 1, LoopKind.UNROLL),
            NestLevel(oc, rows, 1, LoopKind.UNROLL),
            NestLevel(ow, vectors, lanes, LoopKind.UNROLL),
            NestLevel(ow, lanes, 1, LoopKind.VECTORIZE),
        ]
        packed = Arrangement(weight.shape, ((0, 0), (1, 0), (2, 0), (3, 0), (0, rows)))
        return domain.nest(levels, count, {weight.name: packed})

    return describe


POINTWISE_CONV = Template("pointwise_conv2d", _rows, _space, _apply, _nests)
