"""Matrix products of int8 on a decoupled accelerator: rows are positions, columns are channels."""

from __future__ import annotations

from burnish.kernels.task import Choice, KernelTask
from burnish.kernels.template import Template
from burnish.kernels.vdla.form import VdlaSum, int8_sum, operations, space
from burnish.kernels.vdla.schedule import schedule_sum
from burnish.kernels.vdla.tiling import BlockedConv
from burnish.loops.expr import Reduce
from burnish.machines.target import Target
from burnish.machines.vdla.config import Config
from burnish.schedule.schedule import Schedule


def form(task: KernelTask, target: Target) -> VdlaSum | None:
    """A product [M, N] with a constant [K, N], N and K whole blocks, all row-major; None of other tasks."""
    config = target.machine.config
    found = int8_sum(task, config) if isinstance(config, Config) else None
    if found is None or len(found[0].shape) != 2 or task.layouts:
        return None
    sums, data, weight = found
    if not isinstance(sums.body, Reduce) or len(sums.body.axes) != 1:
        return None
    (m, n), k, b = sums.axes, sums.body.axes[0].var, config.block
    depth, outputs = weight.buffer.shape[0], sums.shape[1]
    if data.indices != (m, k) or weight.indices != (k, n) or depth % b or outputs % b:
        return None
    others = [t for t in task.inputs if t.name not in (data.buffer.name, weight.buffer.name)]
    columns = [t for t in others if t.shape in ((outputs,), (1, outputs)) and t.shape != sums.shape]
    images = [t for t in others if t.shape == sums.shape]
    work = BlockedConv(
        1, outputs // b, depth // b, sums.shape[0], 1, vectors=operations(task, config), beside=len(images)
    )  # fmt: skip
    return VdlaSum(sums, data, weight, tuple(columns), tuple(images), work)


def apply(task: KernelTask, target: Target, found: VdlaSum, choice: Choice) -> Schedule:
    """The schedule of a choice. Raises ScheduleError for tiles that do not fit."""
    b = target.machine.config.block
    narrow = {t.name: len(t.shape) - 1 for t in found.channels}
    return schedule_sum(task, target, found, choice, {0: "rows"}, narrow, f"BA{b}b{b}a")


PRODUCT: Template[VdlaSum] = Template("vdla_product", form, space, apply)
