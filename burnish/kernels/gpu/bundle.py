"""Bundles: maps and short reductions that wait for each other in nothing, as one launch whose blocks they share."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.kernels.gpu.elements import ELEMENTS, schedule_elements
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Const, Reduce, Var
from burnish.loops.program import For, If, LoopProgram, Stmt, seq, substitute_stmt
from burnish.loops.tensor import Tensor, stages
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

THREADS = 256
BLOCK = "bundle.block"  # the variable of the block among all


def _form(task: KernelTask, target: Target) -> bool | None:
    """A task of several outputs, none of which needs another, each a map or a reduction that a thread computes."""
    outputs = {t.name for t in task.outputs}
    if len(outputs) < 2 or any(0 in t.shape for t in task.outputs):
        return None
    if any(len(outputs & {s.name for s in stages((t,))}) > 1 for t in task.outputs):
        return None
    reduces = (t for t in task.outputs if any(isinstance(s.body, Reduce) for s in stages((t,))))
    return None if any(ELEMENTS.form(_part(task, t), target) is None for t in reduces) else True


def _schedule(task: KernelTask, target: Target, form: bool, choice: Choice) -> Schedule:
    """``blocks -> [those of a map] -> its threads``."""
    del form, choice
    found: list[tuple[int, Stmt]] = []
    for t in task.outputs:
        part = _part(task, t)
        match = ELEMENTS.on(part, target)
        body = schedule_elements(part, target, True, {**match.space.default, "threads": THREADS}).program.body
        found.append(_divided(body))
    total = sum(blocks for blocks, _ in found)
    begins, at = list[int](), 0
    for blocks, _ in found:
        begins.append(at)
        at += blocks
    moved = [body if begin == 0 else _moved(body, begin) for begin, (_, body) in zip(begins, found, strict=True)]
    params = tuple(t.buffer for t in (*task.inputs, *task.outputs))
    body = For(BLOCK, total, "blockIdx.x", _chosen([*begins, total], moved))
    return Schedule(LoopProgram(task.name, params, body))


def _part(task: KernelTask, output: Tensor) -> KernelTask:
    """The task of one of the outputs."""
    read = {each.name for each in stages((output,)) if each.body is None}
    inputs = tuple(each for each in task.inputs if each.name in read)
    return KernelTask(f"{task.name}_{output.name}", inputs, (output,), "", {}, task.constants)


def _divided(body: Stmt) -> tuple[int, Stmt]:
    """The blocks of a map, and what one does, whose number is the variable ``BLOCK``."""
    if isinstance(body, For) and body.kind == "blockIdx.x":
        return body.extent, substitute_stmt(body.body, {body.var: Var(BLOCK)})
    return 1, substitute_stmt(body, {})


def _moved(body: Stmt, begin: int) -> Stmt:
    return substitute_stmt(body, {BLOCK: Var(BLOCK) - Const(begin)})


def _chosen(begins: Sequence[int], bodies: Sequence[Stmt]) -> Stmt:
    """The body whose blocks the block is among, by halves: the last of ``begins`` is the end of all."""
    if len(bodies) == 1:
        return bodies[0]
    half = len(bodies) // 2
    middle = begins[half]
    first, second = _chosen(begins[: half + 1], bodies[:half]), _chosen(begins[half:], bodies[half:])
    return seq(If(Var(BLOCK) < middle, first), If(Var(BLOCK) >= middle, second))


BUNDLE = Template("bundle", _form, lambda *_: ScheduleSpace({}, {}), _schedule)
