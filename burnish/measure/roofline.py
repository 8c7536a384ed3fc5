"""Roofline of kernels: the least time that arithmetic, the caches and memory need for what a kernel does and moves.

Source: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52 (2009).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.graph.costs import arithmetic_seconds, cache_seconds, matrix_seconds, memory_seconds
from burnish.kernels.task import KernelTask
from burnish.machines.target import Target
from burnish.ops.classify import flops_and_traffic

MATRIX = "split_"  # how the names of templates begin that use a matrix unit


def work_of(task: KernelTask) -> dict[str, int]:
    """``flops``: operations of the algorithm that a kernel computes; ``moved``: the least bytes of its operands and
    results; ``weights``: those of constants, of a table the rows that are read. Open sizes have their hints.
    """
    own = task.hinted
    operations, moved = flops_and_traffic(own.outputs)
    held = sum(t.buffer.nbytes for t in own.inputs if t.name in own.constants)
    return {"flops": operations, "moved": moved, "weights": int(min(held, moved))}


@dataclass(frozen=True)
class Bound:
    """The resource that bounds a kernel, and the microseconds that it needs at least."""

    resource: str
    microseconds: float


def bound(work: Mapping[str, Any], template: str, target: Target, cold: bool) -> Bound:
    """The bound of a kernel whose work is that of :func:`work_of`, at the rates of ``target``. ``cold``: whether its
    weights come from memory, as all of a model's are more than the second cache holds.
    """
    unit = target.unit is not None and template.startswith(MATRIX)
    operations = float(work["flops"])
    needed = {
        "matrix tiles" if unit else "arithmetic": (
            matrix_seconds(operations, target, 1.0) if unit else arithmetic_seconds(operations, target)
        ),
        "caches": cache_seconds(work["moved"], target),
        "memory": memory_seconds(work["weights"] if cold else 0, target),
    }
    resource = max(needed, key=lambda name: needed[name])
    return Bound(resource, 1e6 * needed[resource])
