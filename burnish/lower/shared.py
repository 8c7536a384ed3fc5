"""Conditions that all statements of a loop have in common, asked once an iteration instead of once a statement."""

from __future__ import annotations

from collections.abc import Collection

from burnish.loops.expr import Expr, all_of
from burnish.loops.program import HINTS, Alloc, For, If, Intrinsic, LoopProgram, Seq, Stmt, rebuild_stmt
from burnish.loops.traverse import conjuncts

_INNER = ("unroll", "vectorize")


def share_guards(program: LoopProgram) -> LoopProgram:
    """Moves conditions that guard everything in the body of a loop in front of that body.

    ``for i: {for unroll j: if i < n and p(j): A; for unroll j: if i < n: B}`` becomes
    ``for i: if i < n: {for unroll j: if p(j): A; for unroll j: B}``. Each goes to the loop of its innermost variable,
    unless that is unrolled or vectorized. So a tile that overlaps the end of an axis costs one branch, not one for
    every copy of its statements. Hints have no say, and are skipped with what they are for.
    """
    return LoopProgram(program.name, program.params, _share(program.body))


def _share(s: Stmt) -> Stmt:
    if isinstance(s, For) and s.kind not in _INNER and not isinstance(s.body, If):
        shared = [c for c in _shared(s.body) or () if s.var in c.variables]
        if shared:
            return For(s.var, s.extent, s.kind, If(all_of(*shared), _share(_without(s.body, shared))))
    return rebuild_stmt(s, _share)


def _shared(s: Stmt) -> list[Expr] | None:
    """Conditions around every statement in ``s`` that mean the same in front of it; None if nothing there has a say."""
    match s:
        case If(cond, body):
            inner = _shared(body)
            own = [c for c in conjuncts(cond) if not c.buffers]
            return None if inner is None else list(dict.fromkeys([*own, *inner]))
        case For(var, _, _, body):
            inner = _shared(body)
            return inner and [c for c in inner if var not in c.variables]
        case Alloc(_, body):
            return _shared(body)
        case Seq(stmts):
            each = [found for found in map(_shared, stmts) if found is not None]
            return [c for c in each[0] if all(c in other for other in each[1:])] if each else None
        case Intrinsic(name) if name in HINTS:
            return None
    return []


def _without(s: Stmt, conditions: Collection[Expr]) -> Stmt:
    """``s`` without these conditions around its statements."""
    if isinstance(s, If):
        kept = [c for c in conjuncts(s.cond) if c not in conditions]
        body = _without(s.body, conditions)
        return If(all_of(*kept), body) if kept else body
    return rebuild_stmt(s, lambda x: _without(x, conditions))
