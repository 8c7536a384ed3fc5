"""Buffers laid out for vectors: lanes have their own, and in registers the vectorized dimension is the last."""

from __future__ import annotations

from typing import TypeVar

from burnish.loops.expr import Var
from burnish.loops.program import Alloc, For, If, LoopProgram, Seq, Stmt, Store, map_access, rebuild_stmt
from burnish.loops.traverse import free_vars, loads

T = TypeVar("T")


def lanes_apart(program: LoopProgram) -> LoopProgram:
    """Gives each buffer allocated in a vectorized loop a dimension for it: every iteration has a buffer of its own.

    ``for vectorize j in 8: {alloc t: float32[3]; t[k] = ..}`` becomes
    ``for vectorize j in 8: {alloc t: float32[3, 8]; t[k, j] = ..}``.
    """
    return LoopProgram(program.name, program.params, _apart(program.body, None))


def _apart(s: Stmt, vector: For | None) -> Stmt:
    if isinstance(s, For) and s.kind == "vectorize":
        vector = s
    s = rebuild_stmt(s, lambda x: _apart(x, vector))
    if vector is None or not isinstance(s, Alloc):
        return s
    lane = Var(vector.var)
    new = s.buffer.with_(shape=(*s.buffer.shape, vector.extent))
    return Alloc(new, map_access(s.body, new.name, lambda _, indices: (new, (*indices, lane))))


def vectors_innermost(program: LoopProgram) -> LoopProgram:
    """Permutes the dimensions of each register buffer whose accesses all vectorize over one dimension, to end with it.

    A register buffer has no memory layout to keep, and a vector needs its lanes side by side.
    """
    return LoopProgram(program.name, program.params, _permute(program.body))


def _permute(s: Stmt) -> Stmt:
    s = rebuild_stmt(s, _permute)
    if not (isinstance(s, Alloc) and s.buffer.scope == "register"):
        return s
    dims = _vector_dims(s.body, s.buffer.name, frozenset())
    if len(dims) != 1:
        return s
    d = dims.pop()
    new = s.buffer.with_(shape=_last(s.buffer.shape, d))
    return Alloc(new, map_access(s.body, new.name, lambda _, indices: (new, _last(indices, d))))


def _last(items: tuple[T, ...], d: int) -> tuple[T, ...]:
    return (*items[:d], *items[d + 1 :], items[d])


def _vector_dims(s: Stmt, name: str, lanes: frozenset[str]) -> set[int]:
    """The dimensions of buffer ``name`` indexed by a vectorized loop's variable."""
    if name not in s.reads and name not in s.writes:
        return set()
    match s:
        case Seq(stmts):
            return set().union(*(_vector_dims(x, name, lanes) for x in stmts))
        case For(var, _, kind, body):
            return _vector_dims(body, name, lanes | {var} if kind == "vectorize" else lanes)
        case If(_, body) | Alloc(_, body):
            return _vector_dims(body, name, lanes)
        case Store(buffer, indices, value, _):
            accesses = [x.indices for e in (*indices, value) for x in loads(e) if x.buffer.name == name]
            accesses += [indices] if buffer.name == name else []
            return {d for index in accesses for d, i in enumerate(index) if free_vars(i) & lanes}
    return set()
