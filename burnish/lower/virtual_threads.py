"""Virtual threads as one instruction stream (thesis-chen section 4.3.4, Figure 4.8).

Three steps: each thread becomes a program of its own, with buffers of its own (:func:`thread_bodies`); what units need
to wait for is said by tokens, thread by thread (``tokens.py``); the statements of all threads are interleaved
(:func:`interleave`). Machines whose instructions are in order anyway leave the second step out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burnish.errors import ScheduleError
from burnish.loops.expr import INDEX, Const, Expr
from burnish.loops.program import (
    NOTHING,
    Alloc,
    For,
    If,
    LoopProgram,
    Seq,
    Stmt,
    allocations,
    map_access,
    rebuild_stmt,
    seq,
    substitute_stmt,
    walk_stmt,
)
from burnish.loops.simplify import simplify_stmt
from burnish.lower.tokens import insert_tokens, unit_within
from burnish.machines.decoupled import Decoupled

UnitOf = Callable[[Stmt], str]


def lower_virtual_threads(program: LoopProgram, machine: Decoupled) -> LoopProgram:
    """A program without virtual threads, whose units order their accesses by tokens.

    Statements of a program that has such threads are all in them. Raises ScheduleError for others, for threads in
    threads, and for what ``tokens.py`` refuses::

        for vthread tx in 2:                           alloc b.t0, b.t1
          alloc b                                      push_token(unit=ex, to=ld)
          for k in 128:                                push_token(unit=ex, to=ld)
            b[…] = a[k, tx, …]                         for k in 128:
            accumulate(c[tx], b)                         pop_token(unit=ld, from=ex)
                                                         b.t0[…] = a[k, 0, …]
                                                         push_token(unit=ld, to=ex)
                                                         …                                  (b.t1)
                                                         pop_token(unit=ex, from=ld)
                                                         accumulate(c[0], b.t0)
                                                         push_token(unit=ex, to=ld)
                                                         …                                  (b.t1)
                                                       pop_token(unit=ld, from=ex)
                                                       pop_token(unit=ld, from=ex)
    """
    if not any(isinstance(s, For) and s.kind == "vthread" for s in walk_stmt(program.body)):
        body = interleave([_synchronized(program.body, machine)], machine.unit_of)
        return LoopProgram(program.name, program.params, body)
    _refuse_outside(program.body)
    body = _lower(program.body, machine)
    return LoopProgram(program.name, program.params, body)


def _lower(s: Stmt, machine: Decoupled) -> Stmt:
    if isinstance(s, For) and s.kind == "vthread":
        bodies = [_synchronized(body, machine) for body in thread_bodies(s)]
        return interleave(bodies, machine.unit_of)
    return rebuild_stmt(s, lambda inner: _lower(inner, machine))


def _refuse_outside(s: Stmt) -> None:
    """Raises ScheduleError for a statement outside of the virtual threads."""
    if isinstance(s, For) and s.kind == "vthread":
        return
    if not s.parts and s != NOTHING:
        raise ScheduleError(f"virtual threads: the statement '{s}' is in none; allowed: all in threads, or no threads")
    for part in s.parts:
        _refuse_outside(part)


def thread_bodies(loop: For) -> list[Stmt]:
    """The body of a loop of virtual threads once for each thread, its buffers called ``name.t0``, ``name.t1``, …

    Raises ScheduleError for threads inside of threads.
    """
    inner = next((x for x in walk_stmt(loop.body) if isinstance(x, For) and x.kind == "vthread"), None)
    if inner is not None:
        raise ScheduleError(f"virtual threads: loop '{inner.var}' is inside of '{loop.var}'; allowed: one of them")
    own = [alloc.buffer for alloc in allocations(loop.body)]
    bodies = []
    for thread in range(loop.extent):
        body = substitute_stmt(loop.body, {loop.var: Const(thread, INDEX)})
        for buffer in own:
            body = _renamed(body, buffer.name, f"{buffer.name}.t{thread}")
        bodies.append(simplify_stmt(body))
    return bodies


def _renamed(s: Stmt, old: str, new: str) -> Stmt:
    s = map_access(s, old, lambda buffer, indices: (buffer.with_(name=new), indices))

    def allocated(inner: Stmt) -> Stmt:
        if isinstance(inner, Alloc) and inner.buffer.name == old:
            return Alloc(inner.buffer.with_(name=new), inner.body)
        return rebuild_stmt(inner, allocated)

    return allocated(s)


def _synchronized(body: Stmt, machine: Decoupled) -> Stmt:
    """A thread's body with its tokens, and its buffers allocated around all of it."""
    own = [alloc.buffer for alloc in allocations(body)]
    result = insert_tokens(without_allocations(body), machine)
    for buffer in reversed(own):
        result = Alloc(buffer, result)
    return result


def without_allocations(s: Stmt) -> Stmt:
    """``s`` with the bodies of its allocations in their place."""
    if isinstance(s, Alloc):
        return without_allocations(s.body)
    return rebuild_stmt(s, without_allocations)


def interleave(bodies: Sequence[Stmt], unit_of: UnitOf) -> Stmt:
    """One program of threads that differ in buffers and constants only: in each loop what one unit does for the first
    thread, then for the second, and so on; allocations are around all.

    Raises ScheduleError for threads of different form.
    """
    own = [alloc.buffer for body in bodies for alloc in allocations(body)]
    plain = [without_allocations(body) for body in bodies]
    result = _weave(plain, lambda s: unit_within(s, unit_of))
    for buffer in reversed(own):
        result = Alloc(buffer, result)
    return result


def _weave(trees: Sequence[Stmt], unit: Callable[[Stmt], str | None]) -> Stmt:
    first = trees[0]
    if any(unit(tree) is not None for tree in trees):
        return seq(*trees)
    if any(type(tree) is not type(first) for tree in trees):
        raise ScheduleError(f"virtual threads differ in their statements: {', '.join(type(t).__name__ for t in trees)}")
    if isinstance(first, For):
        loops = [tree for tree in trees if isinstance(tree, For)]
        if any((loop.var, loop.extent) != (first.var, first.extent) for loop in loops):
            raise ScheduleError(f"virtual threads differ in their loops: {', '.join(loop.var for loop in loops)}")
        return For(first.var, first.extent, first.kind, _weave([loop.body for loop in loops], unit))
    if isinstance(first, If):
        return _weave([_inwards(tree.cond, tree.body, unit) for tree in trees if isinstance(tree, If)], unit)
    assert isinstance(first, Seq)
    parts = [_runs(tree, unit) for tree in trees]
    if len({len(runs) for runs in parts}) != 1:
        raise ScheduleError(f"virtual threads differ in the number of their statements: {[len(r) for r in parts]}")
    return seq(*(_weave(same, unit) for same in zip(*parts, strict=True)))


def _inwards(cond: Expr, s: Stmt, unit: Callable[[Stmt], str | None]) -> Stmt:
    """A condition around all that single units do in ``s``."""
    if unit(s) is not None:
        return If(cond, s)
    return rebuild_stmt(s, lambda inner: _inwards(cond, inner, unit))


def _runs(s: Stmt, unit: Callable[[Stmt], str | None]) -> list[Stmt]:
    """The statements of a sequence, those of one unit that follow each other as one."""
    runs: list[list[Stmt]] = []
    before = None
    for part in s.parts:
        own = unit(part)
        if runs and own is not None and own == before:
            runs[-1].append(part)
        else:
            runs.append([part])
        before = own
    return [seq(*run) for run in runs]
