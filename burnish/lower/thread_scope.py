"""Buffers that threads hold parts of: what all threads of a block hold together becomes each thread's own part.

A dimension that every access indexes by a thread's index alone is dropped: element ``[threadIdx.x]`` is what the thread
itself holds. What other dimensions say is the same for all threads. No element is read by a thread that does not hold
it, so no memory is shared and no barrier is needed; only what a warp does together sees the parts of its 32 threads.

Source: thesis-chen section 4.3.2 (memory scopes).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from burnish.errors import ScheduleError
from burnish.loops.expr import Buffer, Const, Expr, Var
from burnish.loops.program import THREADS, Alloc, For, Intrinsic, Stmt, Store, map_access, rebuild_stmt, walk_stmt
from burnish.machines.intrinsics import TensorIntrinsic

Extents = Mapping[str, int]
ALONG = "threadIdx.x"  # the threads that a warp's work is done by


def own_parts(s: Stmt, extents: Extents, intrinsics: Mapping[str, TensorIntrinsic], scopes: Collection[str]) -> Stmt:
    """``s``, in which loops over threads have become indices, with each thread's parts of buffers of some scopes.

    Raises ScheduleError, by name, for an access of what another thread may hold.
    """
    s = rebuild_stmt(s, lambda inner: own_parts(inner, extents, intrinsics, scopes))
    if not isinstance(s, Alloc) or s.buffer.scope not in scopes:
        return s
    name, body = s.buffer.name, s.body
    dropped = _dropped(s.buffer, _accesses(body, name, intrinsics), extents)
    kept = [d for d in range(len(s.buffer.shape)) if d not in dropped]
    own = s.buffer.with_(shape=tuple(s.buffer.shape[d] for d in kept) or (1,))

    def moved(_: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        return own, tuple(indices[d] for d in kept) or (Const(0),)

    return Alloc(own, map_access(body, name, moved))


def check_written(alloc: Alloc, bound: tuple[For, ...] = ()) -> None:
    """Raises ScheduleError for a store in a loop over threads whose index is none of its own: they would differ in what
    is one element.
    """

    def visit(s: Stmt, around: tuple[For, ...]) -> None:
        if alloc.buffer.name not in s.writes:
            return
        if isinstance(s, For) and s.kind in THREADS and s.extent > 1:
            around = (*around, s)
        if isinstance(s, Store):
            missing = [loop.var for loop in around if Var(loop.var) not in s.indices]
            if missing:
                raise ScheduleError(
                    f"buffer '{alloc.buffer.name}' of scope '{alloc.buffer.scope}' is written in loop '{missing[0]}', "
                    f"which is bound to threads, at {', '.join(map(str, s.indices))}; allowed: that loop as an index"
                )
        for part in s.parts:
            visit(part, around)

    visit(alloc.body, bound)


_Accesses = list[tuple[tuple[Expr, ...], int | None]]


def _accesses(s: Stmt, name: str, intrinsics: Mapping[str, TensorIntrinsic]) -> _Accesses:
    """The indices of every access, and the dimension of which it touches what several threads hold, if there is one."""
    found: dict[tuple[tuple[Expr, ...], int | None], None] = {}

    def seen(buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        found[indices, None] = None
        return buffer, indices

    for inner in walk_stmt(s):
        known = intrinsics.get(inner.name) if isinstance(inner, Intrinsic) else None
        if isinstance(inner, Intrinsic) and known is not None:
            for operand, tile in zip(inner.operands, known.operands, strict=True):
                if operand.buffer.name == name:
                    spread = len(operand.indices) - len(tile.shape) if tile.name in known.spread else None
                    found[operand.indices, spread] = None
        elif not inner.parts:
            map_access(inner, name, seen)
        elif name in inner.reads and not isinstance(inner, For):
            map_access(_without_body(inner), name, seen)
    return list(found)


def _without_body(s: Stmt) -> Stmt:
    """A statement's own expressions, without the statements in it."""
    return rebuild_stmt(s, lambda inner: _EMPTY) if s.parts else s


_EMPTY = Store(Buffer("nothing", (1,)), (Const(0),), Const(0.0, "float32"))


def _dropped(buffer: Buffer, accesses: _Accesses, extents: Extents) -> set[int]:
    """The dimensions of which each thread has one element."""
    dropped = set()
    for d, extent in enumerate(buffer.shape):
        tiled = [indices[d] for indices, spread in accesses if spread == d]
        seen = {indices[d] for indices, spread in accesses if spread != d} | {e for e in tiled if e != Const(0)}
        threads = {t for e in seen for t in e.variables & {*THREADS}}
        if (not threads and not tiled) or (extent == 1 and not threads):
            continue
        (thread, *others) = sorted(threads) or [ALONG]
        if others or seen - {Var(thread)} or extents[thread] != extent or (tiled and thread != ALONG):
            odd = next((e for e in seen if e != Var(thread)), Var(thread))
            raise ScheduleError(
                f"buffer '{buffer}': each thread holds its own part, found index {odd} of dimension {d}; allowed: "
                f"the index of a thread alone, of which there are {extent}"
            )
        dropped.add(d)
    return dropped
