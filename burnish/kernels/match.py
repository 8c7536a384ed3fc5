"""Forms that templates match: what a task computes, by its index expressions and not by the names of operators."""

from __future__ import annotations

from burnish.kernels.task import Task
from burnish.loops.expr import Reduce
from burnish.loops.tensor import Tensor
from burnish.ops.classify import is_literal_map


def mapped_from(t: Tensor | None) -> Tensor | None:
    """The tensor that ``t`` multiplies by a matrix of literals; None where it does something else."""
    if t is None or not isinstance(t.body, Reduce) or not is_literal_map(t) or len(t.inputs) != 1:
        return None
    return t.inputs[0]


def mapped_to(task: Task, t: Tensor | None) -> Tensor | None:
    """The only stage that reads ``t``, if it multiplies it by a matrix of literals."""
    readers = [u for u in task.stages() if t is not None and t in u.inputs]
    return readers[0] if len(readers) == 1 and mapped_from(readers[0]) is t else None
