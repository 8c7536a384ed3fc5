"""Row splitting: divides long rows among parts of equal work; a row that a cut falls into is summed in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from burnish.errors import ScheduleError
from burnish.loops.expr import INDEX, Buffer, Cast, Const, Expr, Load, Select, Var, all_of, cast, equal, maximum, wrap
from burnish.loops.loaded import LoadedExtent, is_loaded
from burnish.loops.program import Alloc, For, LoopProgram, Seq, Stmt, Store, rebuild_stmt, seq, store, substitute_stmt
from burnish.loops.simplify import simplify
from burnish.loops.traverse import substitute
from burnish.schedule.memory import check_new_buffer
from burnish.schedule.nest import LoopSite, all_loops, check_fresh, find_loop, rename_loops, replace_at, replace_stmt
from burnish.schedule.partition import rename_buffer


def divide(program: LoopProgram, loop: str) -> LoopProgram:
    """Divides rows among the parts of a loop that was balanced: none reads more than its share of all elements, twice.

    ``loop`` runs over a row of the offsets by which the loop around it was balanced, and reduces into a buffer that is
    allocated in there. The row in which part p begins, ``cuts[p]``, is read by part p from that place on; what lies
    before it is summed ahead, in pieces that end at the cuts, one for each part::

        alloc y.v.cuts: int64[3]
        ... the bisection
        for parallel y.v.part in 2:
          for y.v in y.v.cuts[y.v.part]..y.v.cuts[(y.v.part + 1)] (of 100):
            alloc a: float32[]
            a[] = 0.0
            for y.e in o[y.v]..o[(y.v + 1)] (of 900):
              a[] += x[y.e]
            y[y.v] = a[]

        alloc y.v.cuts: int64[3]
        alloc y.v.first: int64[3]
        ... the bisection
        alloc a.pieces: float32[2]
        for parallel y.v.piece in 2:
          alloc a.piece: float32[]
          a.piece[] = 0.0
          for y.e.piece in max(o[y.v.cuts[y.v.piece]], begin of the part before)..begin of this one:
            a.piece[] += x[y.e.piece]
          a.pieces[y.v.piece] = a.piece[]
        for parallel y.v.part in 2:
          for y.v in y.v.cuts[y.v.part]..y.v.cuts[(y.v.part + 1)] (of 100):
            alloc a: float32[]
            a[] = 0.0
            for y.e in o[y.v], in the first row begin of this part..o[(y.v + 1)] (of 900):
              a[] += x[y.e]
            for y.v.before in y.v.first[y.v.part]..(y.v.part + 1), in the first row:
              a[] += a.pieces[y.v.before]
            y[y.v] = a[]
    """
    site = find_loop(program, loop, "divide")
    part, row, cuts = _balanced(site)
    alloc, nest = _accumulation(site, row)
    acc = alloc.buffer
    whole = _whole(site, row)
    parts = int(part.extent)
    first = Buffer(f"{row.var}.first", cuts.shape, INDEX, "local")
    pieces = Buffer(f"{acc.name}.pieces", (parts, *acc.shape), acc.dtype, "local")
    for name in (first.name, pieces.name, *(f"{name}.piece" for name in alloc.allocates)):
        check_new_buffer(program, "divide", name)
    inside = [f"{inner.var}.{end}" for inner in all_loops(nest.init) for end in ("before", "kept.piece")]
    inside += [f"{inner.var}.piece" for inner in (*all_loops(nest.init), *all_loops(nest.rows))]
    check_fresh(program, (f"{row.var}.piece", f"{row.var}.before", f"{row.var}.start", *inside), "divide")

    def begin(p: Expr) -> Expr:
        """The first element of a part."""
        return (whole * p) // parts

    ahead = _pieces(nest, row, cuts, pieces, begin)
    own, p = equal(Var(row.var), Load(cuts, (Var(part.var),))), Var(part.var)
    extent = nest.extent
    from_here = Select(own, maximum(extent.begin, begin(p)), extent.begin)
    rows = nest.over(LoadedExtent(from_here, extent.end, extent.most, extent.mean))
    q, none = Var(f"{row.var}.before"), Const(0, INDEX)
    before = LoadedExtent(Select(own, Load(first, (p,)), none), Select(own, p + 1, none), parts)
    added = nest.each("before", lambda s: Store(acc, s.indices, Load(pieces, (q, *s.indices)), nest.reduce))
    joined = seq(rows, For(q.name, before, "serial", added))  # type: ignore[arg-type]
    body = replace_stmt(part, alloc, Alloc(acc, replace_stmt(alloc.body, nest.rows, joined)))
    return replace_at(program, part, Alloc(first, Alloc(pieces, seq(_starts(row, cuts, first), ahead, body))))


class _Nest:
    """Row of a reduction: ``init`` sets the accumulator, ``rows`` holds the loop over elements that reduces."""

    def __init__(self, alloc: Alloc, loop: For) -> None:
        """Raises ScheduleError for a row that is more, or other, than that."""
        stmts = alloc.body.stmts if isinstance(alloc.body, Seq) else (alloc.body,)
        at = next(i for i, s in enumerate(stmts) if loop.var in s.loops)
        name = alloc.buffer.name
        inits = [s for s in stmts[:at] if name in s.writes]
        stores = [s for s in _stores(stmts[at]) if s.buffer.name not in stmts[at].allocates]
        kinds = {s.reduce for s in stores}
        if len(inits) != 1 or {s.buffer.name for s in stores} != {name} or len(kinds) != 1 or None in kinds:
            raise ScheduleError(f"divide: loop '{loop.var}' does more than to reduce into '{name}', set once before it")
        (self.reduce,) = kinds
        self.alloc, self.init, self.rows, self.loop = alloc, inits[0], stmts[at], loop

    @property
    def extent(self) -> LoadedExtent:
        """Extent of the loop over elements."""
        found: LoadedExtent = self.loop.extent  # type: ignore[assignment]
        return found

    def over(self, extent: LoadedExtent) -> Stmt:
        """The rows with other ends."""
        return replace_stmt(self.rows, self.loop, For(self.loop.var, extent, self.loop.kind, self.loop.body))  # type: ignore[arg-type]

    def each(self, suffix: str, change: Callable[[Store], Stmt]) -> Stmt:
        """Something for every element of the accumulator, in loops like those that set it."""

        def changed(s: Stmt) -> Stmt:
            return change(s) if isinstance(s, Store) else rebuild_stmt(s, changed)

        return rename_loops(changed(self.init), lambda name: f"{name}.{suffix}")


def _pieces(nest: _Nest, row: For, cuts: Buffer, pieces: Buffer, begin: Callable[[Expr], Expr]) -> Stmt:
    """Parallel loop of partial results: part q has what lies between part q - 1 and it, of the row where q begins."""
    q, acc, extent = Var(f"{row.var}.piece"), nest.alloc.buffer, nest.extent
    ends = LoadedExtent(maximum(extent.begin, begin(maximum(q - 1, 0))), begin(q), extent.most, extent.mean)
    kept = nest.each("kept", lambda s: Store(pieces, (q, *s.indices), Load(acc, s.indices)))
    body: Stmt = Alloc(acc, seq(nest.init, nest.over(ends), kept))
    body = rename_loops(body, lambda name: f"{name}.piece")
    for name in sorted(body.allocates):
        body = rename_buffer(body, name, f"{name}.piece")
    return For(q.name, int(pieces.shape[0]), "parallel", substitute_stmt(body, {row.var: Load(cuts, (q,))}))


def _starts(row: For, cuts: Buffer, first: Buffer) -> Stmt:
    """For each part the first one that begins in the same row."""
    p = Var(f"{row.var}.start")
    last = maximum(p - 1, 0)
    same = all_of(p > 0, equal(Load(cuts, (p,)), Load(cuts, (last,))))
    return For(p.name, int(first.shape[0]), "serial", store(first, (p,), Select(same, Load(first, (last,)), p)))


def _balanced(site: LoopSite) -> tuple[For, For, Buffer]:
    """The loops over parts and over their rows, and where these begin. Raises ScheduleError."""
    loops = [s for s in site.path if isinstance(s, For)]
    for part, row in itertools.pairwise(loops):
        extent = row.extent
        if part.kind == "parallel" and is_loaded(extent) and isinstance(extent.begin, Load):
            cuts = extent.begin
            if cuts.buffer.name == f"{row.var}.cuts" and cuts.indices == (Var(part.var),):
                return part, row, cuts.buffer
    raise ScheduleError(
        f"divide: loop '{site.loop.var}' is in no rows of a balanced loop; loops: {', '.join(site.loops)}"
    )


def _whole(site: LoopSite, row: For) -> Expr:
    """The number of elements of all rows. Raises ScheduleError unless the loop runs over one of them."""
    extent = site.loop.extent
    ones = {s.var: Const(0, INDEX) for s in site.path if isinstance(s, For) and s.extent == 1}
    if is_loaded(extent) and isinstance(row.extent, LoadedExtent):
        ends = [simplify(substitute(end, ones), site.ranges) for end in (extent.begin, extent.end)]
        plain = [e.value if isinstance(e, Cast) else e for e in ends]
        loads = [e for e in plain if isinstance(e, Load)]
        if [e.indices for e in loads] == [(Var(row.var),), (Var(row.var) + 1,)]:
            return cast(INDEX, Load(loads[0].buffer, (wrap(row.extent.most),)))
    raise ScheduleError(
        f"divide: loop '{site.loop.var}' runs over {extent}; allowed: a row of '{row.var}' in its offsets"
    )


def _accumulation(site: LoopSite, row: For) -> tuple[Alloc, _Nest]:
    """The accumulator's allocation in a row, and what happens there. Raises ScheduleError."""
    inside = site.path[site.path.index(row) + 1 :]
    found = next((s for s in inside if isinstance(s, Alloc) and s.buffer.name in site.loop.writes), None)
    if found is None:
        raise ScheduleError(f"divide: loop '{site.loop.var}' reduces into no buffer that is allocated in '{row.var}'")
    return found, _Nest(found, site.loop)


def _stores(s: Stmt) -> list[Store]:
    return [s] if isinstance(s, Store) else [found for inner in s.parts for found in _stores(inner)]
