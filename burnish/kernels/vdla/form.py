"""Form of a task for a decoupled accelerator: one sum of products of int8, and integers behind it."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.kernels.match import only_reduction
from burnish.kernels.task import KernelTask, ScheduleSpace
from burnish.kernels.vdla.tiling import BlockedConv, space_of
from burnish.loops.contraction import contraction
from burnish.loops.expr import Binary, Call, Cast, Const, Expr, Load, Reduce
from burnish.loops.tensor import Tensor
from burnish.machines.target import Target
from burnish.machines.vdla.config import Config


@dataclass(frozen=True)
class VdlaSum:
    """Int8 convolution or product: its sums, the loads that it multiplies, other operands, and its sizes.

    Other operands have one element a channel (``channels``) or one an output (``images``).
    """

    sums: Tensor
    data: Load
    weight: Load
    channels: tuple[Tensor, ...]
    images: tuple[Tensor, ...]
    work: BlockedConv


def space(task: KernelTask, target: Target, found: VdlaSum) -> ScheduleSpace:
    """Tiles and virtual threads."""
    return space_of(found.work, target.machine.config)


def int8_sum(task: KernelTask, config: Config) -> tuple[Tensor, Load, Load] | None:
    """The only reduction of a task, a sum in int32 of products of int8: the stage, and the loads of its data and of its
    constant weight. None where the task has another form, or computes more than the ALU of integers can.
    """
    sums = only_reduction(task)
    found = contraction(sums)
    if sums is None or found is None or sums.dtype != "int32" or sums is not task.anchor():
        return None
    factors = [f for f in found.operands if f is not None and f.dtype == "int8"]
    weights = [f for f in factors if f.buffer.name in task.constants]
    data = [f for f in factors if f.buffer.name not in task.constants]
    if len(weights) != 1 or len(data) != 1 or task.outputs[0].shape != sums.shape:
        return None
    behind = [t.body for t in task.stages() if t is not sums and t.name != data[0].buffer.name and t.body is not None]
    whole = all(t.dtype in ("int8", "int32") for t in (*task.inputs, *task.stages()))
    whole = whole and all(_computes(e, {op.op for op in config.alu}) for e in behind)
    return (sums, data[0], weights[0]) if whole else None


def _computes(e: Expr, known: set[str]) -> bool:
    """Whether an ALU of these operations computes an expression of integers."""
    match e:
        case Load() | Const():
            return True
        case Cast(_, value):
            return _computes(value, known)
        case Binary(op, _, b):
            found = op in known or (op == "-" and "+" in known and isinstance(b, Const))
        case Call(fn, args):
            found = fn in known and len(args) == 2
        case _:
            return False
    return found and all(_computes(child, known) for child in e.children)


def operations(task: KernelTask, config: Config) -> int:
    """Number of ALU operations that the element-wise stages behind the sum are, about."""
    known = {op.op for op in config.alu} | {"-"}
    count = 0
    for stage in task.stages():
        if stage.body is not None and not isinstance(stage.body, Reduce):
            count += _count(stage.body, known)
    return count


def _count(e: Expr, known: set[str]) -> int:
    own = (isinstance(e, Binary) and e.op in known) or (isinstance(e, Call) and e.fn in known)
    return int(own and e.dtype == "int32") + sum(_count(child, known) for child in e.children)


def beside(task: KernelTask, sums: Tensor, data: Load) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs that element-wise stages read: of one number a channel, and as many as the output has.

    The shape of a channel's operand is [C], [C, 1, 1], [1, C, 1, 1], …; one number is an operand of neither kind.
    """
    behind = [stage for stage in task.stages() if stage.name not in (sums.name, data.buffer.name)]
    read = {t.name for stage in behind for t in stage.inputs}
    others = [t for t in task.inputs if t.name in read]
    channels = [t for t in others if t.buffer.size == sums.shape[1] != sums.buffer.size]
    images = [t for t in others if t.shape == sums.shape and t not in channels]
    return channels, images
