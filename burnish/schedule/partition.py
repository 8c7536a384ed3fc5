"""Primitives that cut a loop: into parts of its range, or into one loop for each of its statements."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import Var
from burnish.loops.program import (
    Alloc,
    For,
    LoopProgram,
    Seq,
    Stmt,
    map_access,
    rebuild_stmt,
    seq,
    substitute_stmt,
)
from burnish.loops.regions import accesses
from burnish.schedule.dependence import undetermined
from burnish.schedule.nest import LoopSite, all_loops, check_fresh, clean, find_loop, rename_loops, replace_site


def partition(program: LoopProgram, loop: str, at: int) -> LoopProgram:
    """Runs ``loop`` as two loops, before and from iteration ``at``; names in the second one end in ``.tail``.

    Conditions that hold in the whole of a part disappear from it::

        for y.i in 10:
          y[y.i] = (x[(y.i - 1)] if (y.i >= 1) else 0.0)

        for y.i in 1:
          y[y.i] = 0.0
        for y.i.tail in 9:
          y[(y.i.tail + 1)] = x[y.i.tail]
    """
    return peel(program, loop, tail=_checked_extent(program, loop, at) - at)


def _checked_extent(program: LoopProgram, loop: str, at: int) -> int:
    extent = find_loop(program, loop, "partition").loop.extent
    if not 0 < at < extent:
        raise ScheduleError(f"partition: loop '{loop}' has {extent} iterations; cannot cut it at {at}")
    return extent


def peel(program: LoopProgram, loop: str, head: int = 0, tail: int = 0) -> LoopProgram:
    """Runs the first ``head`` and the last ``tail`` iterations as loops of their own, named ``.head`` and ``.tail``::

    for y.i in 10:
      y[y.i] = (x[(y.i - 1)] if (y.i >= 1) else 0.0)

    for y.i.head in 1:
      y[y.i.head] = 0.0
    for y.i in 9:
      y[(y.i + 1)] = x[y.i]
    """
    site = find_loop(program, loop, "peel")
    extent = site.loop.extent
    if head < 0 or tail < 0 or head + tail >= extent or head + tail == 0:
        raise ScheduleError(f"peel: loop '{loop}' has {extent} iterations; cannot peel {head} in front, {tail} behind")
    cuts = [("head", 0, head), ("", head, extent - head - tail), ("tail", extent - tail, tail)]
    parts = [_part(program, site, suffix, start, count) for suffix, start, count in cuts if count]
    return replace_site(program, site, seq(*parts))


def _part(program: LoopProgram, site: LoopSite, suffix: str, start: int, count: int) -> Stmt:
    """Iterations ``start`` to ``start + count`` of the loop; with a suffix, loops and private buffers are renamed."""
    loop = site.loop
    whole: Stmt = For(loop.var, count, loop.kind, substitute_stmt(loop.body, {loop.var: Var(loop.var) + start}))
    if suffix:
        check_fresh(program, tuple(f"{inner.var}.{suffix}" for inner in all_loops(loop)), "peel")
        whole = rename_loops(whole, lambda name: f"{name}.{suffix}")
        for name in sorted(loop.allocates):
            whole = rename_buffer(whole, name, f"{name}.{suffix}")
    return clean(whole, site.ranges, site.given)


def rename_buffer(s: Stmt, old: str, new: str) -> Stmt:
    """``s`` with a buffer that it allocates called otherwise."""

    def allocation(inner: Stmt) -> Stmt:
        inner = rebuild_stmt(inner, allocation)
        if isinstance(inner, Alloc) and inner.buffer.name == old:
            return Alloc(inner.buffer.with_(name=new), inner.body)
        return inner

    return map_access(allocation(s), old, lambda buffer, indices: (buffer.with_(name=new), indices))


def distribute(program: LoopProgram, loop: str) -> LoopProgram:
    """Gives each statement in the body of ``loop`` a loop of its own, named ``loop``, ``loop.1``, ``loop.2``, ...

    Refused where a later statement of one iteration and an earlier one of another touch the same element, or where a
    buffer is allocated inside the loop (hoist it first)::

        alloc p: float32[8, 4]
        for p.i in 8:
          for p.j in 4:
            p[p.i, p.j] = (x[p.i, p.j] * 2.0)
          for y.i in 1:
            for y.j in 4:
              y[(p.i + y.i), y.j] = (p[(p.i + y.i), y.j] + 1.0)

        alloc p: float32[8, 4]
        for p.i in 8:
          for p.j in 4:
            p[p.i, p.j] = (x[p.i, p.j] * 2.0)
        for p.i.1 in 8:
          for y.i in 1:
            for y.j in 4:
              y[(p.i.1 + y.i), y.j] = (p[(p.i.1 + y.i), y.j] + 1.0)
    """
    site = find_loop(program, loop, "distribute")
    body = site.loop.body
    if isinstance(body, Alloc):
        raise ScheduleError(f"distribute: '{body.buffer.name}' is allocated inside loop '{loop}'; hoist_alloc it first")
    if not isinstance(body, Seq):
        return program
    _check_distribution(site, body)
    names = [loop, *(f"{loop}.{i}" for i in range(1, len(body.stmts)))]
    check_fresh(program, tuple(names[1:]), "distribute")
    parts = [
        For(name, site.loop.extent, site.loop.kind, substitute_stmt(s, {loop: Var(name)}))
        for name, s in zip(names, body.stmts, strict=True)
    ]
    return replace_site(program, site, seq(*parts))


def _check_distribution(site: LoopSite, body: Seq) -> None:
    """ScheduleError when different iterations of different statements touch an element that one of them writes."""
    loop, extent = site.loop.var, site.loop.extent
    ranges = {**site.ranges, loop: extent}
    touched = [accesses(s, ranges, site.given) for s in body.stmts]
    private = [s.allocates for s in body.stmts]
    for name in sorted(body.writes):
        users = [
            [a for a in t if a.buffer.name == name] for t, p in zip(touched, private, strict=True) if name not in p
        ]
        users = [u for u in users if u]
        if len(users) > 1 and undetermined([a for u in users for a in u], {loop: extent}):
            raise ScheduleError(
                f"distribute: loop '{loop}': its statements exchange elements of buffer '{name}' between iterations"
            )
