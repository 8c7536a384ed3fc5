"""Rows in front of a product, such as a normalization: what a kernel's blocks each compute for themselves.

Where rows are few and short, it takes less time to compute them once a block than a launch does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from burnish.kernels.gpu.forms import parts
from burnish.kernels.gpu.row_forms import RowForm, rows_of
from burnish.kernels.gpu.rows import RowBlock
from burnish.kernels.task import KernelTask
from burnish.loops.contraction import is_sum_of_products
from burnish.loops.expr import ITEM_BYTES, SHARED, Buffer, Reduce
from burnish.loops.program import BLOCKS, Alloc, For, Stmt, map_access, seq
from burnish.loops.tensor import Tensor, stages
from burnish.machines.machine import Warps
from burnish.machines.target import Target

MOST_ROWS = 4
MOST_BYTES = 32 << 10  # of all rows, in shared memory


@dataclass(frozen=True)
class RowFront:
    """Rows of a stage ``rows`` by a ``task`` of their own, as ``form``; ``warps``: the machine's."""

    rows: Tensor
    task: KernelTask
    form: RowForm
    warps: Warps

    def before(self, body: Stmt, warps: int) -> Stmt:
        """Nest ``body``, of blocks of ``warps`` warps, with the rows in the shared memory of each block."""
        held = self.rows.buffer.with_(scope=SHARED)
        own = RowBlock(self.task, self.form, self.warps, warps, 1).body("serial")
        return _in_blocks(body, lambda s: Alloc(held, seq(_held(own, held), _held(s, held))))


def row_front(task: KernelTask, target: Target) -> tuple[RowFront, KernelTask] | None:
    """The rows that a product's factor is, where they are computed by reductions, and the task that reads them."""
    anchor = task.anchor()
    if anchor is None or len(task.outputs) != 1 or task.dims or not target.machine.warps.reduce:
        return None
    reduced = [t for t in anchor.inputs if any(isinstance(i.body, Reduce) for i in stages([t]))]
    if len(reduced) != 1 or any(is_sum_of_products(t) for t in stages(reduced)):
        return None
    (rows,) = reduced
    if sum(rows in t.inputs for t in task.stages()) != 1:
        return None
    first, rest = parts(task, [rows, task.outputs[0]])
    form = rows_of(first, target)
    if form is None or form.count > MOST_ROWS or prod(rows.shape) * ITEM_BYTES[rows.dtype] > MOST_BYTES:
        return None
    known = target.machine.warps.reduce
    if any(s.kind is not None and (s.kind, s.buffer.dtype) not in known for s in form.stages):
        return None
    return RowFront(rows, first, form, target.machine.warps), rest


def _in_blocks(s: Stmt, make: Callable[[Stmt], Stmt]) -> Stmt:
    """A nest with another body of its loops over blocks."""
    if isinstance(s, For) and s.kind in BLOCKS:
        return For(s.var, s.extent, s.kind, _in_blocks(s.body, make))
    return make(s)


def _held(s: Stmt, held: Buffer) -> Stmt:
    return map_access(s, held.name, lambda _, indices: (held, indices))
