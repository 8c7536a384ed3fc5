"""Depthwise convolution of row-major images: vectors of output columns, one channel after the other.

For a layer that stands alone between a model's row-major input and output, where blocks of channels would cost two
conversions that take longer than the convolution.
"""

from __future__ import annotations

from burnish.kernels.cpu.common import apply_layouts, constant_weight, inline_around, mark, parallel_over, single_output
from burnish.kernels.task import Choice, Space, Task, Template
from burnish.loops.expr import Reduce
from burnish.schedule.schedule import Schedule
from burnish.target import Target


def _matches(task: Task, target: Target) -> bool:
    if task.op != "conv2d" or len(task.outputs) != 1 or any(not layout.plain for layout in task.layouts.values()):
        return False
    anchor, weight = task.anchor(), constant_weight(task)
    if anchor is None or weight is None or anchor.dtype != "float32" or len(anchor.shape) != 4:
        return False
    single = sum(isinstance(t.body, Reduce) for t in task.stages()) == 1
    depthwise = weight.shape[1] == 1 and weight.shape[0] == anchor.shape[1] and weight.shape[0] > 1
    return single and depthwise and anchor.shape == task.outputs[0].shape and anchor.shape[3] >= target.lanes // 4


def _space(task: Task, target: Target) -> Space:
    anchor = task.anchor()
    assert anchor is not None
    height, width, image = anchor.shape[2], anchor.shape[3], anchor.inputs[0].shape[3]
    vector = _vector(width, target.lanes)
    registers = -(-vector // target.lanes)
    strided = image >= 2 * width  # its vectors are shuffled out of whole ones, which takes registers
    most = 8 // registers // (2 if strided and registers > 1 else 1)
    rows = next(n for n in (7, 4, 5, 3, 2, 1) if height % n == 0 and n <= most)
    knobs = {"vector": tuple(range(1, 2 * target.lanes + 1)), "rows": tuple(range(1, 9))}
    return Space(knobs, {"vector": vector, "rows": rows})


def _vector(width: int, lanes: int) -> int:
    """Columns of a vector, of at most two registers: those of even parts, or full ones where they take fewer registers.

    A whole row in one vector needs no loads that straddle the ends of others.
    """
    parts, (full, rest) = -(-width // (2 * lanes)), divmod(width, 2 * lanes)
    even = -(-width // parts)
    return even if parts * -(-even // lanes) <= 2 * full - (-rest // lanes) else 2 * lanes


def _apply(task: Task, target: Target, choice: Choice) -> Schedule:
    s = Schedule(task.program())
    acc, out = inline_around(s, task, ()), single_output(task)
    apply_layouts(s, task, {})
    n, c, oh, ow = s.loops(out)
    oh, row = s.split(oh, int(choice["rows"]))
    over, lane = s.split(ow, int(choice["vector"]))
    s.reorder(oh, over, row, lane)
    s.compute_at(acc, over)
    s.set_scope(acc, "register")
    s.unroll(row)
    s.vectorize(lane)
    *_, row, column, _, kh, kw = s.loops(acc)
    s.reorder(kh, kw, row, column)
    mark(s, "unroll", kh, kw, row)
    s.vectorize(column)
    *_, row, column = s.init_loops(acc)
    s.unroll(row)
    s.vectorize(column)
    parallel_over(s, (n, c))
    return s


DEPTHWISE_ROWS = Template("depthwise_rows", _matches, _space, _apply)
