"""Windows over row-major images, channel by channel: depthwise convolution and pooling, in vectors of output columns.

For a layer between row-major neighbours, where blocks of channels would cost conversions that take longer than the
layer, and for images with too few channels for a block.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from burnish.kernels.cpu.common import (
    apply_layouts,
    mark,
    packed_weight,
    parallel_over,
    register_tile_at,
    single_output,
)
from burnish.kernels.cpu.pool import accumulator
from burnish.kernels.match import convolution, is_pooling, is_scattered_along, parameters_of
from burnish.kernels.nest import CandidateNests, Knobs, LoopKind, NestLevel, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.expr import ITEM_BYTES, Reduce
from burnish.loops.tensor import Tensor
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

LINE = 64  # bytes of a cache line
ROWS = 6  # in registers at once, of vectors that a row has a whole number of: the more, the fewer are read again
MOST_ELEMENTS = 256  # of a window: all of them are unrolled
SMALL = 25  # elements of a window; of a larger one the arithmetic takes longest, which half vectors have more of


class WindowReduction(NamedTuple):
    """The stage that reduces a window, and its reduction."""

    stage: Tensor
    body: Reduce


def _window(task: KernelTask, target: Target) -> WindowReduction | None:
    """The one reduction of a task that reads row-major images, which has the output's shape; None if there is none.

    What is written, and what an epilogue reads, may lie in channel blocks: each element is stored once, where a window
    in blocks would be gathered as often as it has elements.
    """
    found = [t for t in task.stages() if isinstance(t.body, Reduce)]
    if len(found) != 1 or len(task.outputs) != 1:
        return None
    (stage,) = found
    shape, body = stage.shape, stage.body
    if not isinstance(body, Reduce) or prod(axis.extent for axis in body.axes) > MOST_ELEMENTS:
        return None
    plain = all(task.layout(t.name).plain for t in parameters_of(stage))
    if not plain or len(shape) != 4 or shape != task.outputs[0].shape:
        return None
    along = _along(stage)
    in_rows = not any(len(t.shape) == 4 and is_scattered_along(t, along) for t in stage.inputs)
    return WindowReduction(stage, body) if in_rows and shape[along] >= target.lanes // 8 else None


def _along(window: Tensor) -> int:
    """The dimension that vectors run along: columns, or rows where there is one column of them."""
    return 2 if window.shape[3] == 1 else 3


def _depthwise(task: KernelTask, target: Target) -> WindowReduction | None:
    conv = convolution(task, packed_weight(task))
    if conv is None or conv.weight.shape[1] != 1 or conv.weight.shape[0] == 1 or not conv.even_groups:
        return None
    return _window(task, target)


def _pooled(task: KernelTask, target: Target) -> WindowReduction | None:
    found = _window(task, target)
    return found if found is not None and is_pooling(found.stage) else None


def _space(task: KernelTask, target: Target, found: WindowReduction) -> ScheduleSpace:
    window = found.stage
    along = _along(window)
    height, width, image = window.shape[5 - along], window.shape[along], prod(window.inputs[0].shape[along:])
    strided = image >= 2 * width  # its vectors are shuffled out of whole ones, which takes registers
    lanes = target.for_items(ITEM_BYTES[window.dtype]).lanes
    whole = 0 if strided else _whole(found.body, width, target, lanes)
    if whole:
        vector, rows = whole, min(ROWS, height)
    else:
        vector = _vector(width, lanes)
        registers = -(-vector // lanes)
        most = 8 // registers // (2 if strided and registers > 1 else 1)
        rows = next(n for n in (7, 4, 5, 3, 2, 1) if height % n == 0 and n <= most)
    knobs = {"vector": tuple(range(1, 2 * target.lanes + 1)), "rows": tuple(range(1, 9))}
    return ScheduleSpace(knobs, {"vector": vector, "rows": rows})


def _whole(window: Reduce, width: int, target: Target, lanes: int) -> int:
    """The length of a vector of ``lanes`` or half of them, of which a row has a whole number; 0 if there is none.

    Only where vectors are as long as a cache line: each one that is not aligned straddles two, so that few registers of
    many rows are faster than long vectors of few.
    """
    if target.vector_bytes < LINE:
        return 0
    if width % lanes == 0:
        return lanes
    half, elements = lanes // 2, prod(axis.extent for axis in window.axes)
    return half if width % half == 0 and elements <= SMALL else 0


def _vector(width: int, lanes: int) -> int:
    """Columns of a vector, of at most two registers: those of even parts, or full ones where they take fewer registers.

    A whole row in one vector needs no loads that straddle the ends of others.
    """
    parts, (full, rest) = -(-width // (2 * lanes)), divmod(width, 2 * lanes)
    even = -(-width // parts)
    return even if parts * -(-even // lanes) <= 2 * full - (-rest // lanes) else 2 * lanes


def _apply(task: KernelTask, target: Target, found: WindowReduction, choice: Choice) -> Schedule:
    """``parallel(channel) -> row tile -> column tile -> window``, with vectors of columns of some rows in registers.

    Of one column of windows, the rows are those columns.
    """
    s = Schedule(task.program())
    acc, out = accumulator(s, task, found.stage), single_output(task)
    apply_layouts(s, task, {})
    n, c, oh, ow = s.loops(out)
    turned = _along(found.stage) == 2
    oh, ow = (ow, oh) if turned else (oh, ow)
    oh, row = s.split(oh, int(choice["rows"]))
    over, lane = s.split(ow, int(choice["vector"]))
    s.reorder(oh, over, row, lane)
    register_tile_at(s, acc, over, lane, row)
    loops = s.loops(acc)
    (row, column), (kh, kw) = loops[: -len(found.body.axes)][-2:], loops[-2:]
    row, column = (column, row) if turned else (row, column)
    s.reorder(kh, kw, row, column)
    mark(s, "unroll", kh, kw, row)
    s.vectorize(column)
    *_, row, column = s.init_loops(acc)
    row, column = (column, row) if turned else (row, column)
    s.unroll(row)
    s.vectorize(column)
    parallel_over(s, (n, c))
    return s


def _nests(task: KernelTask, target: Target, found: WindowReduction) -> Describe:
    """Row-major images: vectors of columns, several rows of them in registers."""
    del target
    stage = found.stage
    domain = statement(task, stage)
    batch, channels, *_ = stage.shape
    along = _along(stage)
    width, height = stage.shape[along], stage.shape[5 - along]
    kh, kw = len(domain.extents) - 2, len(domain.extents) - 1

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        rows, vector = knobs["rows"], knobs["vector"]
        levels = [
            NestLevel(0, batch, 1, LoopKind.PARALLEL),
            NestLevel(1, channels, 1, LoopKind.PARALLEL),
            NestLevel(5 - along, -(-height // rows), rows),
            NestLevel(along, -(-width // vector), vector),
            NestLevel(kh, domain.extents[kh], 1, LoopKind.UNROLL),
            NestLevel(kw, domain.extents[kw], 1, LoopKind.UNROLL),
            NestLevel(5 - along, np.minimum(rows, height), 1, LoopKind.UNROLL),
            NestLevel(along, np.minimum(vector, width), 1, LoopKind.VECTORIZE),
        ]
        return domain.nest(levels, count)

    return describe


DEPTHWISE_ROWS = Template("depthwise_rows", _depthwise, _space, _apply, _nests)
POOL_ROWS = Template("pool_rows", _pooled, _space, _apply, _nests)
