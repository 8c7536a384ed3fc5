"""Joins of channel blocks whose parts begin inside of blocks: output vectors are shuffled from those they lie across.

The structure of ``parallel(oh) -> ow -> channel block``, the last unrolled: which parts an output vector takes its
lanes from is then known, and the others are not read.
"""

from __future__ import annotations

from contextlib import suppress

from burnish.errors import ScheduleError
from burnish.kernels.cpu.common import apply_layouts, is_blocked, parallel_over, single_output
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Reduce, Select
from burnish.loops.traverse import free_vars, walk
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

MOST_BLOCKS = 48  # of channels: each has code of its own


def _join(task: KernelTask, target: Target) -> bool | None:
    """Whether it is a map of images in channel blocks that selects by the channel; None if not."""
    if len(task.outputs) != 1 or len(task.outputs[0].shape) != 4:
        return None
    images = [t for t in (*task.inputs, *task.outputs) if len(t.shape) == 4 and t.name not in task.constants]
    if not all(is_blocked(task.layout(t.name), 1, target.lanes) for t in images):
        return None
    if task.outputs[0].shape[1] > MOST_BLOCKS * target.lanes or any(isinstance(t.body, Reduce) for t in task.stages()):
        return None
    selects = any(
        isinstance(e, Select) and t.axes[1].name in free_vars(e.cond)
        for t in task.stages() if t.body is not None and len(t.axes) == 4
        for e in walk(t.body)
    )  # fmt: skip
    return selects or None


def _space(task: KernelTask, target: Target, form: bool) -> ScheduleSpace:
    return ScheduleSpace({}, {})


def _apply(task: KernelTask, target: Target, form: bool, choice: Choice) -> Schedule:
    del choice
    s = Schedule(task.program())
    out = single_output(task)
    s.inline_all((out,))
    apply_layouts(s, task, {})
    n, c, oh, ow = s.loops(out)
    with suppress(ScheduleError):  # else the last block is masked
        s.pad(c, target.lanes)
    block, lane = s.split(c, target.lanes)
    s.reorder(n, oh, ow, block, lane)
    s.unroll(block)
    s.vectorize(lane)
    parallel_over(s, (n, oh))
    return s


JOIN = Template("join", _join, _space, _apply)
