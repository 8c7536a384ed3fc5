"""Loop padding: whole blocks instead of guarded ones, where the extra work is harmless."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import Expr, Var, all_of, select, wrap
from burnish.loops.linear import as_extent
from burnish.loops.program import Alloc, For, If, LoopProgram, Seq, Stmt, Store, rebuild_stmt, walk_stmt
from burnish.loops.regions import BufferAccess, accesses, span, within
from burnish.loops.sizes import larger
from burnish.loops.traverse import conjuncts, free_vars, loads, substitute
from burnish.schedule.dependence import undetermined
from burnish.schedule.memory import buffers, replace_buffer
from burnish.schedule.nest import LoopSite, clean, find_loop, replace_site, replace_stmt


def pad(program: LoopProgram, loop: str, multiple: int) -> LoopProgram:
    """Extends a spatial ``loop`` up to a multiple and drops the guards on it where that is harmless.

    The extra iterations write elements that hold no data: the padding of a blocked layout, or of an intermediate, which
    is enlarged for them. Refused where an access could leave its buffer or hit an element that does hold data::

        for c.i in 4:
          for c.j in 24:
            c[c.i, (c.j // 16), (c.j % 16)] = (a[c.i, (c.j // 16), (c.j % 16)] * 2.0)

        for c.i in 4:
          for c.j in 32:
            c[c.i, (c.j // 16), (c.j % 16)] = (a[c.i, (c.j // 16), (c.j % 16)] * 2.0)
    """
    site = find_loop(program, loop, "pad")
    if multiple < 1:
        raise ScheduleError(f"pad: loop '{loop}': multiple {multiple} must be at least 1")
    extent = -(-site.loop.extent // multiple) * multiple
    before = site.loop.extent
    other = _written_elsewhere(program, site)
    if other:
        raise ScheduleError(f"pad: loop '{loop}' computes only a part of stage '{other}'; pad before partitioning it")
    if extent == before and not _guards(site.loop.body, loop):
        return replace_site(program, site, clean(site.loop, site.ranges, site.given))
    program = _enlarge(replace_site(program, site, For(loop, extent, site.loop.kind, site.loop.body)), loop)
    site = find_loop(program, loop, "pad")
    problem = _overreach(site, site.loop.body)
    if problem:
        raise ScheduleError(f"pad: loop '{loop}' cannot grow from {before} to {extent}: {problem}")
    body = site.loop.body
    for cond in _guards(body, loop):
        without = _drop(body, cond, _of_block(cond, loop, multiple))
        enlarged = _enlarge(replace_site(program, site, For(loop, extent, site.loop.kind, without)), loop)
        candidate = find_loop(enlarged, loop, "pad")
        if _overreach(candidate, candidate.loop.body) is None:
            program, site, body = enlarged, candidate, candidate.loop.body
    return replace_site(program, site, clean(site.loop, site.ranges, site.given))


def fill(program: LoopProgram, loop: str, multiple: int) -> LoopProgram:
    """Extends a spatial ``loop`` of an intermediate that is one plain store; the elements added are zero::

    alloc p: float32[10]
    for p.i in 10:
      p[p.i] = (x[p.i] * 2.0)
    for y.i in 8:
      for y.j in 3:
        y[y.i, y.j] = p[(y.i + y.j)]

    alloc p: float32[12]
    for p.i in 12:
      p[p.i] = ((x[p.i] * 2.0) if (p.i < 10) else 0.0)
    for y.i in 8:
      for y.j in 3:
        y[y.i, y.j] = p[(y.i + y.j)]
    """
    site = find_loop(program, loop, "fill")
    before = site.loop.extent
    extent = -(-before // multiple) * multiple
    stores = [s for s in walk_stmt(site.loop.body) if isinstance(s, Store)]
    if multiple < 1 or len(stores) != 1 or stores[0].reduce or not any(loop in free_vars(i) for i in stores[0].indices):
        raise ScheduleError(f"fill: loop '{loop}' is not a spatial loop of one plain store, or multiple {multiple} < 1")
    target = stores[0].buffer
    value = select(Var(loop) < before, stores[0].value, wrap(0, target.dtype))
    body = replace_stmt(site.loop.body, stores[0], Store(target, stores[0].indices, value))
    program = _enlarge(replace_site(program, site, For(loop, extent, site.loop.kind, body)), loop)
    site = find_loop(program, loop, "fill")
    problem = _overreach(site, site.loop.body)
    if problem:
        raise ScheduleError(f"fill: loop '{loop}' cannot grow from {before} to {extent}: {problem}")
    return replace_site(program, site, clean(site.loop, site.ranges, site.given))


def _overreach(site: LoopSite, body: Stmt) -> str | None:
    """Reason why the iterations of the loop may not all run: an access out of bounds, or an element written twice."""
    loop = site.loop.var
    ranges = {**site.ranges, loop: site.loop.extent}
    inside = body.allocates
    for access in accesses(body, ranges, site.given):
        if not any(loop in free_vars(i) for i in access.indices):
            if access.writes and access.buffer.name not in inside:
                return f"it is a reduction or repetition for stage '{access.buffer.name}'"
            continue
        for d, index in enumerate(access.indices):
            if loads(index):
                return f"buffer '{access.buffer.name}' is accessed at '{index}', whose value would be unknown"
            size = access.buffer.shape[d]
            if not within(index, size, access.ranges, access.given):
                return f"index {d} of buffer '{access.buffer.name}', '{index}', would leave its {size} elements"
        if access.writes and access.buffer.name not in inside and undetermined([access], _indexing(access)):
            return f"padding would overwrite elements of '{access.buffer.name}' that hold data"
    return None


def _indexing(access: BufferAccess) -> dict[str, int]:
    """The loops that appear in the indices of an access."""
    used = {name for index in access.indices for name in free_vars(index)}
    return {name: extent for name, extent in access.ranges.items() if name in used}


def _written_elsewhere(program: LoopProgram, site: LoopSite) -> str | None:
    """A stage that ``site`` stores to and that a store of the same kind outside of it computes another part of."""
    inside = [s for s in walk_stmt(site.stmt) if isinstance(s, Store)]
    kinds = {(s.buffer.name, s.reduce) for s in inside}
    for s in walk_stmt(program.body):
        if isinstance(s, Store) and (s.buffer.name, s.reduce) in kinds and all(s is not own for own in inside):
            return s.buffer.name
    return None


def _enlarge(program: LoopProgram, loop: str) -> LoopProgram:
    """``program`` with intermediates made large enough for every access that depends on ``loop``."""
    site = find_loop(program, loop, "pad")
    known = buffers(program)
    params = {p.name for p in program.params}
    for access in accesses(site.loop.body, {**site.ranges, loop: site.loop.extent}, site.given):
        name = access.buffer.name
        if name in params or not any(loop in free_vars(i) for i in access.indices):
            continue
        shape = list(known[name].shape)
        for d, index in enumerate(access.indices):
            reached = span(index, (), access.ranges, access.given)
            end = None if reached is None else as_extent(reached.low + reached.extent)
            if end is not None:
                shape[d] = _larger(name, shape[d], end)
        if tuple(shape) != known[name].shape:
            larger = known[name].with_(shape=tuple(shape))
            program = replace_buffer(program, known[name], larger)
            known[name] = larger
    return program


def _larger(buffer: str, a: int, b: int) -> int:
    """The larger of two extents of a buffer. Raises ScheduleError where that depends on dimensions."""
    found = larger(a, b)
    if found is None:
        raise ScheduleError(f"pad: buffer '{buffer}' needs {a} or {b} elements; which are more is not known")
    return found


def _guards(s: Stmt, loop: str) -> list[Expr]:
    """Parts of the conditions in ``s`` that mention ``loop``."""
    match s:
        case If(cond, body):
            return [c for c in conjuncts(cond) if loop in free_vars(c)] + _guards(body, loop)
        case Seq(stmts):
            return [c for inner in stmts for c in _guards(inner, loop)]
        case For(body=body) | Alloc(body=body):
            return _guards(body, loop)
    return []


def _of_block(cond: Expr, loop: str, multiple: int) -> Expr | None:
    """A condition that depends on a size, at the first of ``multiple`` iterations: how many blocks are left is not
    known, and of few most may be empty. None for other conditions.
    """
    if not cond.symbolic:
        return None
    return substitute(cond, {loop: Var(loop) // multiple * multiple})


def _drop(s: Stmt, cond: Expr, instead: Expr | None) -> Stmt:
    """``s`` with ``instead``, if anything, for ``cond`` in its conditions."""
    if isinstance(s, If):
        changed = [c if c != cond else instead for c in conjuncts(s.cond)]
        kept = [c for c in changed if c is not None]
        body = _drop(s.body, cond, instead)
        return If(all_of(*kept), body) if kept else body
    return rebuild_stmt(s, lambda inner: _drop(inner, cond, instead))
