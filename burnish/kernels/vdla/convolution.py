"""Convolutions of int8 on a decoupled accelerator: tiles in accumulators, summed over blocks of channels."""

from __future__ import annotations

from burnish.kernels.cpu.common import is_blocked
from burnish.kernels.task import Choice, KernelTask
from burnish.kernels.template import Template
from burnish.kernels.vdla.form import VdlaSum, beside, int8_sum, operations, space
from burnish.kernels.vdla.schedule import schedule_sum
from burnish.kernels.vdla.tiling import BlockedConv
from burnish.loops.expr import Reduce
from burnish.loops.linear import to_linear
from burnish.machines.target import Target
from burnish.machines.vdla.config import Config
from burnish.schedule.schedule import Schedule


def form(task: KernelTask, target: Target) -> VdlaSum | None:
    """A dense convolution [N, O, OH, OW] of whole blocks of channels; None of other tasks."""
    config = target.machine.config
    found = int8_sum(task, config) if isinstance(config, Config) else None
    if found is None or len(found[0].shape) != 4:
        return None
    sums, data, weight = found
    if not isinstance(sums.body, Reduce) or len(sums.body.axes) != 3 or len(weight.buffer.shape) != 4:
        return None
    n, oc, oh, ow = sums.axes
    ic, kh, kw = (axis.var for axis in sums.body.axes)
    b, (outputs, depth, *kernel) = config.block, weight.buffer.shape
    moves = weight.indices == (oc, ic, kh, kw) and data.indices[:2] == (n, ic) and data.buffer.shape[1] == depth
    if not moves or outputs % b or depth % b:
        return None
    steps = [to_linear(index)[0] for index in data.indices[2:]]
    windows = [(step.get(o, 0), step.get(k, 0)) for step, o, k in zip(steps, (oh, ow), (kh, kw), strict=True)]
    if any(len(step) > 2 or (step and min(w) < 0) for step, w in zip(steps, windows, strict=True)):
        return None
    channels, images = beside(task, sums, data)
    (stride_y, dilation_y), (stride_x, dilation_x) = ((max(w[0], 1), max(w[1], 1)) for w in windows)
    work = BlockedConv(
        sums.shape[0], outputs // b, depth // b, sums.shape[2], sums.shape[3], (kernel[0], kernel[1]),
        (stride_y, stride_x), (dilation_y, dilation_x), operations(task, config), len(images),
    )  # fmt: skip
    moving = [t for t in (*task.inputs, *task.outputs) if len(t.shape) == 4 and t not in channels]
    blocked = all(is_blocked(task.layout(t.name), 1, b) for t in moving if t.name not in task.constants)
    return VdlaSum(sums, data, weight, tuple(channels), tuple(images), work) if blocked else None


def apply(task: KernelTask, target: Target, found: VdlaSum, choice: Choice) -> Schedule:
    """The schedule of a choice. Raises ScheduleError for tiles that do not fit."""
    b = target.machine.config.block
    narrow = {t.name: max(range(len(t.shape)), key=lambda d, t=t: t.shape[d]) for t in found.channels}  # type: ignore[misc]
    spatial = {2: "rows", 3: "columns"}
    return schedule_sum(task, target, found, choice, spatial, narrow, f"ABCD{b}a{b}b", f"ABCD{b}b")


CONVOLUTION: Template[VdlaSum] = Template("vdla_convolution", form, space, apply)
