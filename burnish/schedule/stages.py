"""Primitives on stages: where a stage is computed, and whether it is stored at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from burnish.errors import ScheduleError
from burnish.loops.expr import BLOCK_SCOPES, Buffer, Const, Expr, Load, Var, all_of
from burnish.loops.program import (
    NOTHING,
    THREADS,
    Alloc,
    For,
    If,
    LoopProgram,
    Seq,
    Stmt,
    Store,
    map_access,
    map_exprs,
    rebuild_stmt,
    seq,
    substitute_stmt,
    walk_stmt,
)
from burnish.loops.regions import Span, accesses, region
from burnish.loops.sizes import at_least, is_size
from burnish.loops.traverse import free_vars, substitute, transform
from burnish.schedule.dependence import undetermined
from burnish.schedule.nest import (
    LoopSite,
    Site,
    clean,
    find_alloc,
    find_loop,
    guard,
    replace_stmt,
    sites,
    stage_names,
    stage_nests,
)
from burnish.schedule.scopes import rescope


def compute_at(program: LoopProgram, stage: str, loop: str) -> LoopProgram:
    """Computes ``stage`` inside ``loop``, just before its first consumer there, and only the part that is read there.

    The stage's buffer shrinks to that part and is allocated directly inside ``loop``; a part that may reach over the
    stage's border is guarded. A buffer of the scope ``shared`` belongs to all threads of a block: its part is what is
    read over all iterations of the loops around that are bound to threads (cooperative fetching, thesis-chen section
    4.3.2)::

        alloc p: float32[10]
        for p.i in 10:
          p[p.i] = (x[p.i] * 2.0)
        for y.i in 8:
          for y.j in 3:
            y[y.i, y.j] = p[(y.i + y.j)]

        for y.i in 8:
          alloc p: float32[3]
          for p.i in 3:
            p[p.i] = (x[(y.i + p.i)] * 2.0)
          for y.j in 3:
            y[y.i, y.j] = p[y.j]
    """
    site = find_loop(program, loop, "compute_at")
    nests = stage_nests(program, stage, "compute_at")
    alloc = find_alloc(program, stage, "compute_at")
    _check_movable(program, stage, loop, site, nests)
    buffer: Buffer = alloc.stmt.buffer  # type: ignore[attr-defined]
    around = [s for s in (*site.path, site.stmt) if isinstance(s, For)]
    outer = [s.var for s in around if buffer.scope not in BLOCK_SCOPES or s.kind not in THREADS]
    ranges = {**site.ranges, loop: site.loop.extent}
    body: Stmt = site.loop.body
    for nest in nests:
        body = replace_stmt(body, nest.stmt, NOTHING)
    consumed = accesses(body, ranges, site.given, of=stage)
    offsets, shape, loops = _shrink(buffer, region(consumed, outer), nests)
    small = buffer.with_(shape=shape)
    if any(s is site.stmt for s in alloc.path):
        body = _drop_alloc(body, buffer)
    moved = [_rebase(_shrink_loops(n.stmt, loops), small, offsets) for n in nests]
    body = _insert(_rebase(body, small, offsets), stage, moved)
    new_loop = For(loop, site.loop.extent, site.loop.kind, clean(Alloc(small, body), ranges, site.given))
    result = program.body
    for nest in nests:  # before the loop is put in, where a nest that has not changed is the same object
        if all(s is not site.stmt for s in nest.path):
            result = replace_stmt(result, nest.stmt, NOTHING)
    result = replace_stmt(result, site.stmt, new_loop)
    if all(s is not site.stmt for s in alloc.path):
        result = _drop_alloc(result, buffer)
    return rescope(LoopProgram(program.name, program.params, result), "compute_at")


def _check_inside(primitive: str, stage: str, site: LoopSite, nests: Sequence[Site]) -> None:
    """ScheduleError unless ``site`` is inside every loop that the nests of ``stage`` are in."""
    around = {*site.ranges, site.loop.var}
    for nest in nests:
        outside = [name for name in nest.loops if name not in around]
        if outside:
            raise ScheduleError(
                f"{primitive}: stage '{stage}' is computed inside loop '{outside[0]}', which does not contain "
                f"loop '{site.loop.var}'"
            )


def _check_movable(program: LoopProgram, stage: str, loop: str, site: LoopSite, nests: list[Site]) -> None:
    """ScheduleError unless every reader of ``stage`` is inside ``loop``, and the loop not part of the stage itself."""
    _check_inside("compute_at", stage, site, nests)
    for nest in nests:
        if any(s is nest.stmt for s in (*site.path, site.stmt)):
            raise ScheduleError(
                f"compute_at: loop '{loop}' belongs to stage '{stage}' itself; name one of its consumer"
            )
        if stage in nest.stmt.reads:
            raise ScheduleError(f"compute_at: stage '{stage}' reads itself and cannot be recomputed inside '{loop}'")
    within = _count(site.loop.body, stage)
    if within == 0:
        raise ScheduleError(f"compute_at: loop '{loop}' contains no consumer of stage '{stage}'")
    if within != _count(program.body, stage):
        outside = sorted(
            {
                name
                for s in sites(program.body)
                if isinstance(s.stmt, Store) and stage in s.stmt.reads and loop not in s.loops
                for name in s.stmt.writes
            }
        )
        raise ScheduleError(
            f"compute_at: stage '{stage}' is also read outside of loop '{loop}': by {', '.join(outside)}"
        )
    inputs = {name for nest in nests for name in nest.stmt.reads} - {stage}
    late = sorted(inputs & (site.loop.body.writes - {stage} - site.loop.body.allocates))
    if late:
        raise ScheduleError(f"compute_at: stage '{stage}' reads '{late[0]}', which loop '{loop}' overwrites")


def _count(s: Stmt, buffer: str) -> int:
    """Number of reads of ``buffer`` in ``s``."""
    return sum(1 for a in accesses(s, {}, of=buffer) if not a.writes)


Shrunk = dict[str, tuple[int, Expr, int]]  # loop -> (new extent, offset, old extent)


def _shrink(
    buffer: Buffer, box: Sequence[Span | None], nests: Sequence[Site]
) -> tuple[dict[int, Expr], tuple[int, ...], Shrunk]:
    """For each dimension that the consumers read only in part: its offset, its new extent, the loops that shrink."""
    offsets: dict[int, Expr] = {}
    shape = list(buffer.shape)
    loops: Shrunk = {}
    for d, span in enumerate(box):
        if span is None or _covers(span.extent, buffer.shape[d]):
            continue
        owners = [_owner(n.stmt, buffer.name, d) for n in nests]
        if all(o is not None and _covers(span.extent, o.extent) for o in owners) or _stores_within(
            nests, buffer, d, span
        ):
            continue
        for nest, owner in zip(nests, owners, strict=True):
            if owner is None:
                store = _store_of(nest.stmt, buffer.name)
                raise ScheduleError(
                    f"compute_at: dimension {d} of stage '{buffer.name}' is stored at '{store.indices[d]}', which is "
                    f"not one loop, so it cannot shrink to the {span.extent} elements read; compute_at first"
                )
            loops[owner.var] = (span.extent, span.low, owner.extent)
        offsets[d] = span.low
        shape[d] = span.extent
    return offsets, tuple(shape), loops


def _covers(extent: int, whole: int) -> bool:
    """Whether a part is all there is; not a number for an open size, however small: over a number, loops unroll."""
    return at_least(extent, whole) and (is_size(extent) or not is_size(whole))


def _stores_within(nests: Sequence[Site], buffer: Buffer, d: int, span: Span) -> bool:
    """Whether the nests store no more of dimension ``d`` than ``span``: the rest of it is padding, which stays."""
    for nest in nests:
        writes = [a for a in accesses(nest.stmt, nest.ranges, nest.given, of=buffer.name) if a.writes]
        stored = region(writes, nest.loops)[d]
        if stored is None or stored.low != span.low or not at_least(span.extent, stored.extent):
            return False
    return True


def _store_of(s: Stmt, buffer: str) -> Store:
    return next(x for x in walk_stmt(s) if isinstance(x, Store) and x.buffer.name == buffer)


def _owner(nest: Stmt, buffer: str, d: int) -> For | None:
    """The loop of ``nest`` whose variable is the whole index ``d`` of every store to ``buffer``."""
    indices = {s.indices[d] for s in walk_stmt(nest) if isinstance(s, Store) and s.buffer.name == buffer}
    index = indices.pop() if len(indices) == 1 else None
    if not isinstance(index, Var):
        return None
    return next((s for s in walk_stmt(nest) if isinstance(s, For) and s.var == index.name), None)


def _shrink_loops(s: Stmt, loops: Shrunk) -> Stmt:
    """``s`` with loops running over a window of their old range; indices are still the old, absolute ones."""
    if not isinstance(s, For) or s.var not in loops:
        return rebuild_stmt(s, lambda inner: _shrink_loops(inner, loops))
    extent, offset, old = loops[s.var]
    whole = offset + Var(s.var)
    body = substitute_stmt(_shrink_loops(s.body, loops), {s.var: whole})
    return For(s.var, extent, s.kind, guard(body, all_of(whole >= 0, whole < old)))


def _rebase(s: Stmt, small: Buffer, offsets: dict[int, Expr]) -> Stmt:
    """``s`` with accesses of the buffer relative to ``offsets``."""

    def access(_: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        return small, tuple(i - offsets[d] if d in offsets else i for d, i in enumerate(indices))

    return map_access(s, small.name, access)


def _insert(body: Stmt, stage: str, moved: Sequence[Stmt]) -> Stmt:
    """``body`` with ``moved`` in front of its first statement that reads ``stage``."""
    if isinstance(body, Alloc):
        return Alloc(body.buffer, _insert(body.body, stage, moved))
    stmts = body.stmts if isinstance(body, Seq) else (body,)
    first = next(i for i, s in enumerate(stmts) if stage in s.reads)
    return seq(*stmts[:first], *moved, *stmts[first:])


def _drop_alloc(s: Stmt, buffer: Buffer) -> Stmt:
    """``s`` without the outermost allocation of ``buffer``."""
    if isinstance(s, Alloc) and s.buffer.name == buffer.name:
        return s.body
    return rebuild_stmt(s, lambda inner: _drop_alloc(inner, buffer))


# --- inlining ---------------------------------------------------------------------------------------------------------


def compute_inline(program: LoopProgram, *stages: str) -> LoopProgram:
    """Replaces every read of some stages, each of which must be one plain store, by the values stored there::

    alloc p: float32[10]
    for p.i in 10:
      p[p.i] = (x[p.i] * 2.0)
    for y.i in 8:
      for y.j in 3:
        y[y.i, y.j] = p[(y.i + y.j)]

    for y.i in 8:
      for y.j in 3:
        y[y.i, y.j] = (x[(y.i + y.j)] * 2.0)
    """
    found = {stage: _definition(program, stage) for stage in stages}
    known: dict[str, Expr] = {}  # values without reads of other stages that go

    def inlined(e: Expr) -> Expr:
        if not isinstance(e, Load) or e.buffer.name not in found:
            return e
        stage = e.buffer.name
        if stage not in known:
            known[stage] = value(found[stage].store.value)
        return substitute(known[stage], dict(zip(found[stage].names, e.indices, strict=True)))

    def value(e: Expr) -> Expr:
        return transform(e, inlined, lambda part: not found.keys().isdisjoint(part.buffers))

    body = program.body
    for each in found.values():
        body = _drop_alloc(replace_stmt(body, each.nest, NOTHING), each.store.buffer)
    return rescope(
        LoopProgram(program.name, program.params, _clean_readers(body, found.keys(), value)), "compute_inline"
    )


@dataclass(frozen=True)
class _Definition:
    """The nest of a stage that is one plain store, at the variables ``names`` of its loops."""

    nest: Stmt
    store: Store
    names: list[str]


def _definition(program: LoopProgram, stage: str) -> _Definition:
    """The definition of a stage that can be inlined. Raises ScheduleError for others."""
    nests = stage_nests(program, stage, "compute_inline")
    buffer: Buffer = find_alloc(program, stage, "compute_inline").stmt.buffer  # type: ignore[attr-defined]
    stores = [s for n in nests for s in walk_stmt(n.stmt) if isinstance(s, Store) and s.buffer.name == stage]
    if len(stores) != 1 or stores[0].reduce:
        raise ScheduleError(f"compute_inline: stage '{stage}' is not one plain store (a reduction cannot be inlined)")
    definition = stores[0]
    names = [i.name for i in definition.indices if isinstance(i, Var)]
    extents = {s.var: s.extent for s in walk_stmt(nests[0].stmt) if isinstance(s, For)}
    plain = len(set(names)) == len(definition.indices) and extents.keys() >= set(names)
    if not plain or not free_vars(definition.value) & extents.keys() <= set(names):
        raise ScheduleError(
            f"compute_inline: stage '{stage}' is stored at [{', '.join(map(str, definition.indices))}], not at plain "
            f"loop variables; inline before splitting, fusing or changing its layout"
        )
    if tuple(extents[name] for name in names) != buffer.shape:
        raise ScheduleError(f"compute_inline: stage '{stage}' was padded; inline it before padding what reads it")
    if any(isinstance(s, If) for s in walk_stmt(nests[0].stmt)) or nests[0].stmt.allocates:
        raise ScheduleError(f"compute_inline: stage '{stage}' is computed under conditions or from stages of its own")
    return _Definition(nests[0].stmt, definition, names)


def _clean_readers(s: Stmt, stages: Set[str], value: Callable[[Expr], Expr]) -> Stmt:
    """``s`` with reads of ``stages`` replaced, simplified only where something changed."""

    def visit(inner: Stmt, ranges: dict[str, int]) -> Stmt:
        if stages.isdisjoint(inner.reads):
            return inner
        if isinstance(inner, For):
            return For(inner.var, inner.extent, inner.kind, visit(inner.body, {**ranges, inner.var: inner.extent}))
        if isinstance(inner, Store):
            return clean(map_exprs(inner, value), ranges)
        if isinstance(inner, If):
            cond = value(inner.cond)
            return clean(If(cond, visit(inner.body, ranges)), ranges)
        return rebuild_stmt(inner, lambda child: visit(child, ranges))

    return visit(s, {})


def inline_all(program: LoopProgram, keep: Sequence[str] = ()) -> LoopProgram:
    """Inlines every intermediate stage that is one plain store, except those in ``keep``."""

    def goes(stage: str) -> bool:
        stores = [s for s in walk_stmt(program.body) if isinstance(s, Store) and s.buffer.name == stage]
        intermediate = stage in program.body.allocates
        return intermediate and stage not in keep and len(stores) == 1 and stores[0].reduce is None

    return compute_inline(program, *filter(goes, stage_names(program)))


# --- epilogues --------------------------------------------------------------------------------------------------------


def reverse_compute_at(program: LoopProgram, stage: str, loop: str) -> LoopProgram:
    """Computes ``stage``, a plain store, at the end of ``loop`` of its producer: the elements that loop just finished::

    alloc p: float32[8, 4]
    for p.i in 8:
      for p.j in 4:
        p[p.i, p.j] = (x[p.i, p.j] * 2.0)
    for y.i in 8:
      for y.j in 4:
        y[y.i, y.j] = (p[y.i, y.j] + 1.0)

    alloc p: float32[8, 4]
    for p.i in 8:
      for p.j in 4:
        p[p.i, p.j] = (x[p.i, p.j] * 2.0)
      for y.i in 1:
        for y.j in 4:
          y[(p.i + y.i), y.j] = (p[(p.i + y.i), y.j] + 1.0)
    """
    site = find_loop(program, loop, "reverse_compute_at")
    nests = stage_nests(program, stage, "reverse_compute_at")
    stores = [s for n in nests for s in walk_stmt(n.stmt) if isinstance(s, Store)]
    if len(nests) != 1 or len(stores) != 1 or stores[0].reduce:
        raise ScheduleError(f"reverse_compute_at: stage '{stage}' is not one plain store")
    nest = nests[0]
    _check_inside("reverse_compute_at", stage, site, nests)
    produced = sorted((site.loop.body.writes - site.loop.body.allocates) & nest.stmt.reads)
    if len(produced) != 1:
        raise ScheduleError(f"reverse_compute_at: loop '{loop}' must produce one input of '{stage}'; found {produced}")
    producer = produced[0]
    _check_epilogue(program, stage, producer, site, nest)
    ranges = {**site.ranges, loop: site.loop.extent}
    writes = [a for a in accesses(site.loop.body, ranges, of=producer) if a.writes]
    box = region(writes, list(ranges))
    loops = _windows(stage, producer, nest, box, writes[0].buffer.shape)
    epilogue = clean(_shrink_loops(nest.stmt, loops), ranges, site.given)
    body = replace_stmt(program.body, nest.stmt, NOTHING)
    new_loop = For(loop, site.loop.extent, site.loop.kind, seq(site.loop.body, epilogue))
    return rescope(
        LoopProgram(program.name, program.params, replace_stmt(body, site.stmt, new_loop)), "reverse_compute_at"
    )


def _check_epilogue(program: LoopProgram, stage: str, producer: str, site: LoopSite, nest: Site) -> None:
    """ScheduleError unless the elements that ``loop`` writes are final at its end and all other inputs are ready."""
    loop = site.loop.var
    shared = {s.var for s in nest.path if isinstance(s, For)}
    path = {name: extent for name, extent in {**site.ranges, loop: site.loop.extent}.items() if name not in shared}
    outer = {name: extent for name, extent in site.ranges.items() if name in shared}
    found = accesses(site.loop.body, {**outer, **path}, of=producer)
    writes = [a for a in found if a.writes]
    clashing = undetermined(writes, path)
    if clashing:
        raise ScheduleError(
            f"reverse_compute_at: '{producer}' is not final at the end of loop '{loop}': iterations of "
            f"{', '.join(repr(c) for c in clashing)} combine into the same elements"
        )
    order = list(walk_stmt(program.body))
    start = next(i for i, s in enumerate(order) if s is site.stmt)
    end = start + sum(1 for _ in walk_stmt(site.stmt))
    stores = [(i, s.buffer.name, s.reduce) for i, s in enumerate(order) if isinstance(s, Store)]
    combined = any(start <= i < end and name == producer and reduce for i, name, reduce in stores)
    if any(name == producer and (i >= end or (i < start and (reduce or not combined))) for i, name, reduce in stores):
        raise ScheduleError(f"reverse_compute_at: loop '{loop}' computes only a part of '{producer}'")
    for other in sorted(nest.stmt.reads - {producer}):
        if any(i >= start and name == other for i, name, _ in stores):
            raise ScheduleError(f"reverse_compute_at: '{stage}' also reads '{other}', which is not ready in '{loop}'")


def _windows(stage: str, producer: str, nest: Site, box: Sequence[Span | None], shape: tuple[int, ...]) -> Shrunk:
    """The window of each loop of the consumer in which it reads what one iteration produced."""
    loops: Shrunk = {}
    inner = {s.var: s.extent for s in walk_stmt(nest.stmt) if isinstance(s, For)}
    reads = {a.indices for a in accesses(nest.stmt, {}, of=producer)}
    for d, span in enumerate(box):
        if span is None or (at_least(span.extent, shape[d]) and span.low == Const(0)):
            continue
        at = {indices[d] for indices in reads}
        index = at.pop()
        if at or not isinstance(index, Var) or index.name not in inner or index.name in loops:
            raise ScheduleError(
                f"reverse_compute_at: stage '{stage}' reads dimension {d} of '{producer}' at "
                f"{', '.join(repr(str(i)) for i in sorted({index, *at}, key=str))}, not at one loop of its own"
            )
        loops[index.name] = (span.extent, span.low, inner[index.name])
    return loops
