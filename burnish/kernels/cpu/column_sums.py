"""Sums over rows, a vector of columns at once: gradients of biases, and of what scales or shifts every row alike.

The structure of ``parallel(chunk of rows) -> row -> columns``: memory is read once, front to back. What a row needs of
its own sums, its mean, comes about while the row is in the first cache. A chunk's sums are kept in that, too; those of
all chunks are added up at the end. How many chunks there are does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from burnish.kernels.cpu.common import apply_layouts, mark, parallel_over, single_output
from burnish.kernels.cpu.generic import inline_cheap, vectorize_stage
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Const, Expr, Load, Reduce, Var
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import free_vars, loads, substitute
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

FEW_ROWS = 32
MOST_CHUNKS = 16
GRAIN = 1 << 14  # elements of a chunk
MOST_COLUMN_BYTES = 1 << 14  # of a chunk's sums


class ColumnSums(NamedTuple):
    """The stage that sums over rows, and whether it needs other reductions of each row."""

    sums: Tensor
    by_row: bool


def _form(task: KernelTask, target: Target) -> ColumnSums | None:
    """One sum over all rows of numbers that lie in them; other reductions are of single rows."""
    out = task.outputs[0]
    reductions = [t for t in task.stages() if isinstance(t.body, Reduce)]
    if len(task.outputs) != 1 or not reductions or any(not layout.plain for layout in task.layouts.values()):
        return None
    sums = reductions[-1]
    body = sums.body
    assert isinstance(body, Reduce)
    columns = sums.shape[-1] if sums.shape else 1
    rows = prod(axis.extent for axis in body.axes)
    fits = (
        body.kind == "sum"
        and out.shape == sums.shape
        and prod(sums.shape) == columns >= target.lanes
        and rows >= FEW_ROWS
        and sums.buffer.nbytes <= MOST_COLUMN_BYTES
    )
    producers = {t.name: t for t in task.stages()}
    variables = {axis.var.name for axis in body.axes}
    found = fits and _is_of_rows(body.body, producers, variables, sums.axes[-1].name)
    return ColumnSums(sums, len(reductions) > 1) if found else None


def _is_of_rows(e: Expr, producers: Mapping[str, Tensor], rows: set[str], column: str) -> bool:
    """Whether all that ``e`` reads lies in rows, one element a column, or is a reduction of the row itself."""
    for load in loads(e):
        t = producers.get(load.buffer.name)
        if t is None or t.body is None:
            if not _is_in_row(load, column):
                return False
        elif isinstance(t.body, Reduce):
            own = [i.name for i in load.indices if isinstance(i, Var)]
            constant = all(isinstance(i, Var | Const) for i in load.indices)
            if not constant or set(own) != rows or len(own) != len(rows):
                return False
            values = {v.name: i for v, i in zip(t.axes, load.indices, strict=True)}
            reads = [x for x in loads(substitute(t.body.body, values)) if x.buffer.name in producers]
            if not all(_is_of_rows(x, producers, rows, column) for x in reads):
                return False
        else:
            values = {v.name: i for v, i in zip(t.axes, load.indices, strict=True)}
            if not _is_of_rows(substitute(t.body, values), producers, rows, column):
                return False
    return True


def _is_in_row(load: Load, column: str) -> bool:
    """Whether neighbours in memory are neighbouring columns, or the same for all of them."""
    if not load.indices or column not in set().union(*(free_vars(i) for i in load.indices)):
        return True
    return load.indices[-1] == Var(column) and all(column not in free_vars(i) for i in load.indices[:-1])


def _space(task: KernelTask, target: Target, found: ColumnSums) -> ScheduleSpace:
    body = found.sums.body
    assert isinstance(body, Reduce)
    first, rest = body.axes[0].extent, prod(axis.extent for axis in body.axes[1:])
    size = rest * found.sums.buffer.size
    chunks = [n for n in range(1, min(first, MOST_CHUNKS) + 1) if first % n == 0]
    default = max((n for n in chunks if first // n * size >= GRAIN), default=1)
    last = body.axes[-1].extent // (default if len(body.axes) == 1 else 1)
    together = 1 if found.by_row else next(n for n in (4, 2, 1) if last % n == 0)
    knobs = {"chunks": tuple(chunks), "rows": (1,) if found.by_row else (1, 2, 4), "vectors": (1, 2, 4)}
    vectors = next(n for n in (4, 2, 1) if n == 1 or found.sums.shape[-1] % (n * target.lanes) == 0)
    return ScheduleSpace(knobs, {"chunks": default, "rows": together, "vectors": vectors})


def _apply(task: KernelTask, target: Target, found: ColumnSums, choice: Choice) -> Schedule:
    lanes, out, rank = target.lanes, single_output(task), len(found.sums.shape)
    s = Schedule(task.program())
    kept = [t.name for t in inline_cheap(s, task, target) if t is not found.sums and t.name != out]
    total = s.cache_write(out, "local") if found.sums.name == out else found.sums.name
    apply_layouts(s, task, {})
    partial, outer = total, list[str]()
    if int(choice["chunks"]) > 1:
        chunk, _ = s.split(s.loops(total)[rank], parts=int(choice["chunks"]))
        partial = s.rfactor(total, chunk)
        outer = s.loops(partial)[rank : rank + 1]
    rows = s.loops(partial)[rank + len(outer) :]
    column = s.loops(partial)[rank - 1]
    wide = int(choice["vectors"]) * lanes
    block, lane = s.split(column, wide if s.extent(column) % wide == 0 else lanes)
    vector: list[str] = []
    if s.extent(lane) > lanes:
        over, lane = s.split(lane, lanes)
        vector = [over]
    together: list[str] = []
    if int(choice["rows"]) > 1:
        rows[-1], row = s.split(rows[-1], int(choice["rows"]))
        together = [row]
    s.reorder(*outer, *rows, block, *together, *vector, lane)
    for stage in reversed(kept):
        s.compute_at(stage, rows[-1])
    for stage in kept:
        vectorize_stage(s, stage, lanes)
    mark(s, "unroll", *together, *vector)
    s.vectorize(lane)
    if outer:
        parallel_over(s, outer)
    _vectorize_rest(s, out, total, partial, lanes)
    return s


def _vectorize_rest(s: Schedule, out: str, total: str, partial: str, lanes: int) -> None:
    """Vectors of columns in what begins the sums, adds up those of the chunks, and writes the result."""
    nests = [s.init_loops(partial), s.loops(out)]
    if partial != total:
        nests += [s.init_loops(total), s.loops(total)]
    for loops in nests:
        column = next(loop for loop in reversed(loops) if s.extent(loop) >= lanes)
        over, lane = s.split(column, lanes)
        s.reorder(*[loop for loop in loops if loop != column], over, lane)
        s.vectorize(lane)


COLUMN_SUMS = Template("column_sums", _form, _space, _apply, None)
