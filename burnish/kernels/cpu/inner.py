"""Products with the rows of a matrix that is known at a call only, ``y[i, j] = sum over k of x[i, k] * w[j, k]``.

Vectors run along the depth, where both factors lie in memory, so that nothing is packed: a register tile of rows of the
one times rows of the other, each sum a vector that is added up at the end. That pays where the rows of ``x`` are few
beside the depth, and stay in the second cache; of more, the packing of ``w`` is soon paid for, as it is where several
kernels read it. Sums of a panel of columns are kept in scratch, from
which the output is written with its epilogue, in vectors.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from burnish.kernels.cpu.common import inline_around, mark, parallel_over, single_output
from burnish.kernels.cpu.product import MatrixProduct, product
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Reduce
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

FEW_PRODUCTS = 1 << 16  # multiply-adds below which waking the threads costs more than it saves
FEWER = 10  # times as many steps of the depth as rows: the least that pays
DEEP = 8  # vectors of the depth, or more
MOST_ROWS, MOST_COLUMNS = 8, 6  # of a register tile
PAGE, WAYS = 1 << 12, 8  # bytes between addresses in one set of the first cache, and the lines of a set
ADD_UP = 5.0  # cycles to add up the elements of a vector


class Inner(NamedTuple):
    """A product, and the rows of its left factor."""

    product: MatrixProduct
    rows: int


def _form(task: KernelTask, target: Target) -> Inner | None:
    """Factors of float32 whose last dimension is the depth, of which the right one is a variable matrix."""
    p = product(task)
    if (
        p is None
        or p.batch
        or len(task.outputs) != 1
        or len(p.columns) != 1
        or any(not layout.plain for layout in task.layouts.values())
    ):
        return None
    body, n = p.anchor.body, p.anchor.axes[-1]
    assert isinstance(body, Reduce)
    k = body.axes[0].var
    right = p.right.buffer
    deep = p.left.indices[-1] == k and p.right.indices == (n, k) and p.left.dtype == right.dtype == "float32"
    out, rows = task.outputs[0].shape, prod(p.anchor.shape[:-1])
    whole = out[p.columns[0]] == p.anchor.shape[-1] and len(out) == len(p.anchor.shape) and p.columns[0] == len(out) - 1
    few = p.depth >= max(FEWER * rows, DEEP * target.lanes) and 4 * rows * p.depth <= target.l2_bytes // 2
    if not (deep and whole and few) or right.name in task.constants or right.name not in task.packed - task.shared:
        return None
    return Inner(p, rows) if max(_columns(p.anchor.shape[-1])) > 2 else None


def _columns(count: int) -> tuple[int, ...]:
    """Numbers of columns that a register tile may take: those that divide those there are."""
    return tuple(n for n in range(1, MOST_COLUMNS + 1) if count % n == 0)


def _last(found: Inner) -> int:
    """The extent of the last of the axes that are rows."""
    shape = found.product.anchor.shape
    return shape[-2] if len(shape) > 1 else 1


def _space(task: KernelTask, target: Target, found: Inner) -> ScheduleSpace:
    columns, last = found.product.anchor.shape[-1], _last(found)
    rows = tuple(range(1, min(last, MOST_ROWS) + 1))

    def cycles(r: int, c: int) -> float:
        full, rest = divmod(last, r)
        depth = found.product.depth / target.lanes
        tiles = [r] * full + [rest] * (rest > 0)
        return sum(depth * (max(t * c / 2, (t + c) / 2, 4.0) + 0.5) + ADD_UP * t * c for t in tiles) * (columns // c)

    fitting = [(r, c) for r in rows for c in _columns(columns) if r * c + min(r, c) + 1 <= target.vector_registers]
    if 4 * found.product.depth % PAGE == 0:  # one step of all rows is in the same set
        fitting = [(r, c) for r, c in fitting if r + c < WAYS] or fitting
    r, c = min(fitting, key=lambda tile: (cycles(*tile), -tile[0]))
    return ScheduleSpace({"rows": rows, "columns": _columns(columns)}, {"rows": r, "columns": c})


def _panel(columns: int, tile: int, target: Target) -> int:
    """Panel width: columns whose sums are kept at once, whole tiles that divide all, few enough for all cores."""
    counts = [n for n in range(tile, columns + 1, tile) if columns % n == 0]
    shared = [n for n in counts if columns // n >= 4 * target.cores]
    return max((n for n in shared if n <= 8 * target.lanes), default=min(counts))


def _apply(task: KernelTask, target: Target, found: Inner, choice: Choice) -> Schedule:
    lanes, out = target.lanes, single_output(task)
    p, tile = found.product, int(choice["columns"])
    s = Schedule(task.program())
    acc = inline_around(s, task, ())
    s.set_scope(acc, "global")
    steps, lane = s.split(s.loops(acc)[-1], lanes)
    partial = s.rfactor(acc, lane, -1)
    *rows, column = s.loops(out)
    panel, column = s.split(column, _panel(p.anchor.shape[-1], tile, target))
    s.reorder(panel, *rows, column)
    if p.anchor.buffer.size * p.depth > FEW_PRODUCTS:
        panel = parallel_over(s, (panel,))
    s.vectorize(s.split(column, min(lanes, s.extent(column)))[1])
    s.compute_at(acc, panel)
    *outer, column, lane = s.loops(acc)
    tiles, column = s.split(column, tile)
    inner = [column]
    if outer:
        over, row = s.split(outer[-1], int(choice["rows"]))
        outer, inner = [*outer[:-1], over], [row, column]
    s.reorder(tiles, *outer, *inner, lane)
    mark(s, "unroll", *inner)
    s.vectorize(lane)
    *_, column = s.init_loops(acc)
    s.vectorize(s.split(column, min(lanes, s.extent(column)))[1])
    s.compute_at(partial, [tiles, *outer][-1])
    s.set_scope(partial, "register")
    own = s.loops(partial)
    lane = next(v for v in own if v.endswith(".i") and s.extent(v) == lanes and v not in own[: len(p.anchor.shape)])
    steps = next(v for v in own[len(p.anchor.shape) :] if v != lane)
    spatial = own[: len(p.anchor.shape)]
    s.reorder(steps, *spatial, lane)
    mark(s, "unroll", *spatial)
    s.vectorize(lane)
    *spatial, lane = s.init_loops(partial)
    mark(s, "unroll", *spatial)
    s.vectorize(lane)
    if p.right.buffer.nbytes > target.l2_bytes:  # of many short runs of memory no core fetches the next ahead
        s.prefetch(p.right.buffer.name, steps, [panel, tiles], 1)
    return s


INNER = Template("inner_products", _form, _space, _apply, None)
