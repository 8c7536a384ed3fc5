"""A block for a row whose stages are in shared memory: long reductions that are not one number each.

What `rows` schedules is not for this template.

Rows are the axes at which every reducing (or dear) stage is read at the output's own index, as on CPUs. A reduction to
one number of a row is summed by all threads, each its own part, and these sums are combined in two steps.
"""

from __future__ import annotations

from math import prod

from burnish.kernels.cpu.generic import inline_cheap, row_axes
from burnish.kernels.gpu.nests import fuse_all
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.contraction import is_sum_of_products
from burnish.loops.expr import ITEM_BYTES, Reduce
from burnish.loops.tensor import Tensor
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

THREADS = (32, 64, 128, 256)
FEW = 32  # partial sums that every thread adds up for itself
MOST_SHARED = 24 << 10  # bytes of a row's stages that threads share


def _form(task: KernelTask, target: Target) -> tuple[int, ...] | None:
    """The row axes of a task of one output with a long reduction in each row; None of others."""
    stages = [t for t in task.stages() if isinstance(t.body, Reduce)]
    if len(task.outputs) != 1 or not stages or 0 in task.outputs[0].shape:
        return None
    (output,) = task.outputs
    kept = [t for t in inline_cheap(Schedule(task.program()), task, target) if t is not output]
    rows = tuple(row_axes(task, output, kept)) if kept else tuple(range(len(output.shape)))
    count = prod(output.shape[d] for d in rows)
    inside = sum(prod(t.shape) // max(count, 1) * ITEM_BYTES[t.dtype] for t in kept)
    if not rows or inside > MOST_SHARED or any(_is_heavy(t, count) for t in stages):
        return None
    return rows if max(_summed(t) for t in stages) >= FEW else None


def _is_heavy(stage: Tensor, rows: int) -> bool:
    """Whether a stage is a product of matrices within each row."""
    return is_sum_of_products(stage) and prod(stage.shape) // max(rows, 1) > FEW


def _summed(stage: Tensor) -> int:
    assert isinstance(stage.body, Reduce)
    return prod(a.extent for a in stage.body.axes)


def _space(task: KernelTask, target: Target, form: tuple[int, ...]) -> ScheduleSpace:
    del target
    (output,) = task.outputs
    stages = [t for t in task.stages() if isinstance(t.body, Reduce)]
    own = prod(n for d, n in enumerate(output.shape) if d not in form)
    longest = max(own, *(_summed(t) for t in stages))
    best = next((t for t in THREADS if t * 4 >= longest), THREADS[-1])
    return ScheduleSpace({"threads": THREADS}, {"threads": best})


def _schedule(task: KernelTask, target: Target, form: tuple[int, ...], choice: Choice) -> Schedule:
    """``blocks(rows) -> each stage by all threads``."""
    s = Schedule(task.program())
    threads = int(choice["threads"])
    (output,) = task.outputs
    kept = [t.name for t in inline_cheap(s, task, target) if t is not output]
    if isinstance(output.body, Reduce):
        kept.append(s.cache_write(output.name, "local"))
    own = s.loops(output.name)
    outer, inner = [own[d] for d in form], [v for d, v in enumerate(own) if d not in form]
    s.reorder(*outer, *inner)
    row = fuse_all(s, outer)
    s.bind(row, "blockIdx.x")
    if inner:
        _spread(s, fuse_all(s, inner), threads)
    for stage in reversed(kept):
        s.compute_at(stage, row)
    for stage in kept:
        _by_threads(s, stage, threads)
    return s


def _spread(s: Schedule, loop: str, threads: int) -> str:
    """A loop over all threads; the loop that they are."""
    if s.extent(loop) > threads:
        loop = s.split(loop, threads)[1]
    if s.extent(loop) > 1:
        s.bind(loop, "threadIdx.x")
    return loop


def _by_threads(s: Schedule, stage: str, threads: int) -> None:
    """One stage of a row: its elements by threads, or the only one by all of them together."""
    own, inits = s.loops(stage), s.init_loops(stage)
    if not inits:
        s.set_scope(stage, "shared")
        _spread(s, fuse_all(s, own), threads)
        return
    spatial = own[: len(inits)]
    if prod(s.extent(v) for v in spatial) == 1:
        s.set_scope(stage, "local")
        _together(s, stage, own[len(inits) :], threads)
        return
    s.set_scope(stage, "shared")
    sums = s.cache_write(stage, "register")
    thread = _spread(s, fuse_all(s, s.loops(stage)), threads)
    s.compute_at(sums, thread)


def _together(s: Schedule, stage: str, reduced: list[str], threads: int) -> None:
    """A reduction to one number by all threads."""
    loop = fuse_all(s, reduced)
    while s.extent(loop) > FEW:
        parts = min(threads, 1 << (s.extent(loop) - 1).bit_length() - 2)
        part = s.split(loop, parts)[1]
        partial = s.rfactor(stage, part, name=f"{stage}.of{parts}")
        sums = s.cache_write(partial, "register")
        thread = fuse_all(s, s.loops(partial))
        s.set_scope(partial, "shared")
        s.bind(thread, "threadIdx.x")
        s.compute_at(sums, thread)
        loop = s.loops(stage)[-1]
        threads = max(parts // 16, 1)


SHARED_ROWS = Template("shared_rows", _form, _space, _schedule)
