"""Buffer scoping: keeps every allocation around all uses of its buffer when a primitive has moved code out of it."""

from __future__ import annotations

from collections.abc import Set

from burnish.errors import ScheduleError
from burnish.loops.loaded import is_loaded
from burnish.loops.program import NOTHING, Alloc, For, If, Intrinsic, LoopProgram, Stmt, allocations, rebuild_stmt
from burnish.schedule.nest import Site, alloc_sites, replace_at, replace_stmt, sites


def rescope(program: LoopProgram, primitive: str) -> LoopProgram:
    """Lifts each allocation to the innermost statement that holds all uses of its buffer, where it does not yet.

    Crossing a serial loop only shares the buffer between iterations; crossing a concurrent one is refused. Hints about
    a buffer do not hold it: those that are left outside of its allocation are dropped.
    """
    for alloc in allocations(program.body):
        name = alloc.buffer.name
        current = next(alloc_sites(program.body, name))
        if not _used_outside(program.body, current.stmt, name):
            continue
        paths = [(*s.path, s.stmt) for s in sites(program.body) if _uses(s.stmt, name)]
        program = _lift(program, current, [(*current.path, current.stmt), *paths], primitive)
    return LoopProgram(program.name, program.params, _hinted(program.body, {p.name for p in program.params}))


def _hinted(s: Stmt, known: Set[str]) -> Stmt:
    """``s`` without hints about buffers that do not exist there; those around it are ``known``."""
    if not s.hinted:
        return s
    if isinstance(s, Intrinsic):
        return s if all(operand.buffer.name in known for operand in s.operands) else NOTHING
    inside = known | {s.buffer.name} if isinstance(s, Alloc) else known
    return rebuild_stmt(s, lambda x: _hinted(x, inside))


def _used_outside(s: Stmt, alloc: Stmt, name: str) -> bool:
    """Whether ``s`` accesses the buffer ``name`` anywhere but inside of ``alloc``."""
    if s is alloc or (name not in s.reads and name not in s.writes):
        return False
    return _uses(s, name) or any(_used_outside(inner, alloc, name) for inner in s.parts)


def _uses(s: Stmt, name: str) -> bool:
    """Whether ``s`` itself, not a statement in it, accesses the buffer ``name``."""
    if isinstance(s, If):
        return name in s.cond.buffers
    if isinstance(s, For) and is_loaded(s.extent):
        return name in s.extent.buffers
    return not s.parts and (name in s.reads or name in s.writes)


def _lift(program: LoopProgram, alloc: Site, paths: list[tuple[Stmt, ...]], primitive: str) -> LoopProgram:
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
