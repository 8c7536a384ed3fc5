"""Kernels for a grid of threads: launches, what one thread executes, the scopes of buffers that have none.

A program's loops that are bound to blocks and threads say which iterations a thread runs; several loops may be bound to
the same index, one inside of another too (a copy that the threads of a block share). A :class:`Launch` is what is left
for one thread: its indices are free variables (``threadIdx.x``), and no loop is bound any more.

Source: thesis-chen section 4.3.2 (nested parallelism with cooperation: scopes, binding, cooperative fetching).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burnish.errors import ScheduleError
from burnish.loops.expr import BLOCK_SCOPES, SHARED, Buffer, Const, Var, all_of, equal
from burnish.loops.program import (
    ASYNCHRONY,
    BINDINGS,
    BLOCKS,
    MOST_BLOCKS,
    NOTHING,
    TENSOR_COPIES,
    THREADS,
    Alloc,
    For,
    If,
    Intrinsic,
    LoopProgram,
    Seq,
    Stmt,
    Store,
    map_access,
    rebuild_stmt,
    substitute_stmt,
    walk_stmt,
)
from burnish.lower.thread_scope import check_written, own_parts
from burnish.machines.machine import Machine

GLOBAL = "global"


@dataclass(frozen=True)
class Launch:
    """Kernel launch: each thread of a grid executes ``body``, in which its indices are variables named as the bindings.

    ``grid`` and ``block``: extents x, y, z.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    body: Stmt

    @property
    def extents(self) -> dict[str, int]:
        """The extent of every index, by binding."""
        return dict(zip(BINDINGS, (*self.grid, *self.block), strict=True))


@dataclass(frozen=True)
class Grids:
    """A kernel as launches, one after another; ``workspace``: buffers in global memory that hold what is between."""

    workspace: tuple[Buffer, ...]
    launches: tuple[Launch, ...]


def launches(program: LoopProgram, machine: Machine) -> Grids:
    """The launches of a program: one of each outermost nest.

    Raises ScheduleError, by names, for bindings that do not fit together, for a block of more threads than there are,
    and for buffers that threads would have to share and cannot.
    """
    buffers: list[Buffer] = []
    nests: list[Stmt] = []
    _outermost(program.body, buffers, nests)
    return Grids(tuple(buffers), tuple(_launch(program, nest, machine) for nest in nests))


def _outermost(s: Stmt, buffers: list[Buffer], nests: list[Stmt]) -> None:
    """Collects the allocations around all, and the nests in them."""
    if isinstance(s, Alloc) and s.buffer.scope == GLOBAL:
        buffers.append(s.buffer)
        _outermost(s.body, buffers, nests)
    elif isinstance(s, Seq):
        for inner in s.stmts:
            _outermost(inner, buffers, nests)
    elif s != NOTHING:
        nests.append(s)


def _launch(program: LoopProgram, nest: Stmt, machine: Machine) -> Launch:
    extents = _extents(program, nest)
    threads = extents["threadIdx.x"] * extents["threadIdx.y"] * extents["threadIdx.z"]
    assert machine.dialect.grid is not None
    most = machine.dialect.grid.threads
    if threads > most:
        raise ScheduleError(f"kernel '{program.name}': a block of {threads} threads; allowed: at most {most}")
    _check_blocks(program, nest, {b for b in BLOCKS if extents[b] > 1})
    lowered = _Threads(extents, machine).of(_infer_scopes(nest), (), ())
    parts = {name for name, scope in machine.named_scopes.items() if scope.parts}
    lowered = own_parts(lowered, extents, machine.named_intrinsics, parts)
    values = tuple(extents[b] for b in BINDINGS)
    return Launch(values[:3], values[3:], lowered)  # type: ignore[arg-type]


def _extents(program: LoopProgram, nest: Stmt) -> dict[str, int]:
    """The extent of each index: of threads the greatest of all loops bound to it, of blocks that of every one."""
    found = dict.fromkeys(BINDINGS, 1)
    for loop in walk_stmt(nest):
        if not isinstance(loop, For) or loop.kind not in BINDINGS:
            continue
        if loop.kind in BLOCKS and found[loop.kind] not in (1, loop.extent):
            raise ScheduleError(
                f"loop '{loop.var}' binds {loop.extent} iterations to {loop.kind}, another loop of the kernel "
                f"'{program.name}' {found[loop.kind]}"
            )
        if loop.extent > MOST_BLOCKS.get(loop.kind, loop.extent):
            raise ScheduleError(f"loop '{loop.var}': {loop.extent} blocks; allowed: {MOST_BLOCKS[loop.kind]}")
        found[loop.kind] = max(found[loop.kind], loop.extent)
    return found


def _check_blocks(program: LoopProgram, s: Stmt, missing: set[str]) -> None:
    """ScheduleError for a statement that is outside of a loop over blocks that others are in."""
    if isinstance(s, For) and s.kind in BLOCKS:
        missing = missing - {s.kind}
    if missing and not s.parts and s.writes:
        raise ScheduleError(
            f"kernel '{program.name}': '{s}' is outside of the loop that is bound to {min(missing)}: every block would "
            f"execute it"
        )
    for part in s.parts:
        _check_blocks(program, part, missing)


# --- scopes -----------------------------------------------------------------------------------------------------------


def _infer_scopes(s: Stmt) -> Stmt:
    """Gives buffers inside a launch that have no scope of their own one: ``shared`` if threads write parts of them,
    else ``local``: every thread computes all of it for itself.
    """
    s = rebuild_stmt(s, _infer_scopes)
    if not isinstance(s, Alloc) or s.buffer.scope != GLOBAL:
        return s
    scope = SHARED if _written_by_threads(s.body, s.buffer.name, False) else "local"
    return Alloc(s.buffer.with_(scope=scope), _rescoped(s.body, s.buffer, scope))


def _written_by_threads(s: Stmt, name: str, inside: bool) -> bool:
    """Whether a statement writes a buffer in a loop that is bound to threads."""
    if name not in s.writes:
        return False
    inside = inside or (isinstance(s, For) and s.kind in THREADS)
    return inside if not s.parts else any(_written_by_threads(part, name, inside) for part in s.parts)


def _rescoped(s: Stmt, buffer: Buffer, scope: str) -> Stmt:
    from_, to = buffer.name, buffer.with_(scope=scope)
    return map_access(s, from_, lambda _, indices: (to, indices))


# --- one thread -------------------------------------------------------------------------------------------------------


class _Threads:
    """One launch: bound loops become indices, and what only some threads may do conditions on these."""

    def __init__(self, extents: Mapping[str, int], machine: Machine) -> None:
        self.extents, self.machine = extents, machine

    def of(self, s: Stmt, bound: tuple[For, ...], private: tuple[str, ...]) -> Stmt:
        """``bound``: the loops over threads around ``s``; ``private``: buffers of a thread's own that exist there."""
        if _is_of_boxes(s):
            return self._once(s, (), ())
        match s:
            case For(var, extent, kind, body) if kind in BINDINGS:
                whole = self.extents[kind]
                inner = self.of(body, (*bound, s) if kind in THREADS else bound, private)
                inner = substitute_stmt(inner, {var: Var(kind) if whole > 1 else Const(0)})
                return inner if extent == whole else If(Var(kind) < extent, inner)
            case Alloc(buffer, body):
                self._check_alloc(s, bound, private)
                own = private if buffer.scope in (*BLOCK_SCOPES, GLOBAL) else (*private, buffer.name)
                return Alloc(buffer, self.of(body, bound, own))
            case Store(buffer) if buffer.scope in (*BLOCK_SCOPES, GLOBAL):
                return self._once(s, bound, ())
            case Intrinsic(name) if name in ASYNCHRONY:  # every thread for its own
                return s
            case Intrinsic(name, operands) if operands and operands[0].buffer.scope in (*BLOCK_SCOPES, GLOBAL):
                known = self.machine.named_intrinsics.get(name)
                together = ("threadIdx.x",) if known is not None and known.collective > 1 else ()
                return self._once(s, bound, together)
        return rebuild_stmt(s, lambda inner: self.of(inner, bound, private))

    def _once(self, s: Stmt, bound: tuple[For, ...], together: tuple[str, ...]) -> Stmt:
        """Guards a write to shared or global memory: of threads that run one iteration only the first executes it."""
        kinds = {loop.kind for loop in bound} | {*together}
        alone = [equal(Var(t), 0) for t in THREADS if self.extents[t] > 1 and t not in kinds]
        return If(all_of(*alone), s) if alone else s

    def _check_alloc(self, alloc: Alloc, bound: tuple[For, ...], private: tuple[str, ...]) -> None:
        """ScheduleError where threads share a buffer that would differ between them, or do not, and write parts."""
        buffer = alloc.buffer
        known = self.machine.named_scopes.get(buffer.scope)
        if known is not None and known.parts:
            check_written(alloc)
            return
        if buffer.scope not in BLOCK_SCOPES:
            if _written_by_threads(alloc.body, buffer.name, False):
                raise ScheduleError(
                    f"buffer '{buffer.name}' of scope '{buffer.scope}' is each thread's own, but is written in a "
                    f"loop over "
                    f"threads that it is outside of; allowed: scope 'shared'"
                )
            return
        outer = {loop.var for loop in bound}
        for s in _writers(alloc.body, buffer.name):
            used = sorted(outer & s.variables)
            if used:
                raise ScheduleError(
                    f"buffer '{buffer.name}' is shared by the block, but what it holds depends on loop '{used[0]}', "
                    f"which "
                    f"is bound to threads"
                )
            own = sorted({*private} & s.reads) if bound else []
            if own:
                raise ScheduleError(
                    f"buffer '{buffer.name}' is shared by the block, but is computed from '{own[0]}', which is each "
                    f"thread's own"
                )


def _is_of_boxes(s: Stmt) -> bool:
    """Whether a statement is of nothing but copies of boxes of tensors, which one thread of a block begins."""
    if isinstance(s, Alloc) or (isinstance(s, For) and s.kind in BINDINGS):
        return False
    return all(map(_is_of_boxes, s.parts)) if s.parts else isinstance(s, Intrinsic) and s.name in TENSOR_COPIES


def _writers(s: Stmt, name: str) -> list[Stmt]:
    """The statements that write a buffer, and the conditions around them."""
    if name not in s.writes:
        return []
    found = [w for part in s.parts for w in _writers(part, name)]
    if isinstance(s, If):
        found.append(If(s.cond, NOTHING))
    elif not s.parts:
        found.append(s)
    return found
