"""Dead stores: what is written to a buffer of the kernel's own that nothing reads is not computed."""

from __future__ import annotations

from burnish.loops.program import NOTHING, Alloc, LoopProgram, Stmt, rebuild_stmt


def drop_dead_stores(program: LoopProgram) -> LoopProgram:
    """Drops allocated buffers that are never read, with the statements that write them, until there are none.

    ``alloc t: for i: t[i] = x[i]; for j: y[j] = 0.0`` becomes ``for j: y[j] = 0.0``.
    """
    body = program.body
    while dead := body.allocates - body.reads:
        body = _without(body, dead)
    return LoopProgram(program.name, program.params, body)


def _without(s: Stmt, dead: frozenset[str]) -> Stmt:
    """``s`` without allocations of the buffers, and without what writes nothing else."""
    if isinstance(s, Alloc) and s.buffer.name in dead:
        return _without(s.body, dead)
    if s.writes and s.writes <= dead:
        return NOTHING
    return rebuild_stmt(s, lambda inner: _without(inner, dead))
