"""Keeps every allocation around all uses of its buffer when a primitive has moved code out of it."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import loads
from burnish.loops.program import Alloc, For, If, Intrinsic, Program, Stmt, Store, read, written
from burnish.schedule.nest import Site, replace_at, replace_stmt, sites


def rescope(program: Program, primitive: str) -> Program:
    """Lifts each allocation to the innermost statement that holds all uses of its buffer, where it does not yet.

    Crossing a serial loop only shares the buffer between iterations; crossing a concurrent one is refused.
    """
    for alloc in [s for s in sites(program.body) if isinstance(s.stmt, Alloc)]:
        assert isinstance(alloc.stmt, Alloc)
        name = alloc.stmt.buffer.name
        current = next(s for s in sites(program.body) if isinstance(s.stmt, Alloc) and s.stmt.buffer.name == name)
        paths = [(*s.path, s.stmt) for s in sites(program.body) if _uses(s.stmt, name)]
        if all(any(p is current.stmt for p in path) for path in paths):
            continue
        program = _lift(program, current, [(*current.path, current.stmt), *paths], primitive)
    return program


def _uses(s: Stmt, name: str) -> bool:
    match s:
        case If(cond, _):
            return any(load.buffer.name == name for load in loads(cond))
        case Store() | Intrinsic():
            return name in read(s) | written(s)
    return False


def _lift(program: Program, alloc: Site, paths: list[tuple[Stmt, ...]], primitive: str) -> Program:
    """Moves ``alloc`` to the innermost statement on all ``paths``."""
    old = alloc.stmt
    assert isinstance(old, Alloc)
    depth = 0
    while all(depth < len(path) and path[depth] is paths[0][depth] for path in paths):
        depth += 1
    crossed = [s for s in alloc.path[depth:] if isinstance(s, For)]
    concurrent = [s.var for s in crossed if s.kind not in ("serial", "unroll")]
    if concurrent:
        raise ScheduleError(
            f"{primitive}: buffer '{old.buffer.name}' exists only inside loop '{concurrent[0]}', whose iterations run "
            f"concurrently, but would be used outside of it"
        )
    common = paths[0][depth - 1]  # a sequence: the alloc is on one of its branches
    return replace_at(program, common, Alloc(old.buffer, replace_stmt(common, old, old.body)))
