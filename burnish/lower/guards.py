"""Guards out of inner loops: a padded product is skipped whole where its padding condition fails."""

from __future__ import annotations

from collections.abc import Callable

from burnish.loops.expr import WORD_PRODUCTS, Binary, Call, Const, Expr, Select, all_of
from burnish.loops.program import HINTS, For, If, Intrinsic, LoopProgram, Seq, Stmt, Store, rebuild_stmt, seq
from burnish.loops.reduction import is_neutral
from burnish.loops.traverse import conjuncts, free_vars

_INNER = ("unroll", "vectorize")


def hoist_guards(program: LoopProgram) -> LoopProgram:
    """Moves a condition on outer loops out of the loops it does not depend on.

    ``for kh: for kw: y += (x[..] if h >= 1 and w >= 1 else 0) * k`` becomes
    ``for kh: if h >= 1: for kw: y += (x[..] if w >= 1 else 0) * k`` when ``h`` depends on ``kh`` but not on ``kw``:
    adding zero times a weight changes nothing. The same holds for other reductions of a value padded with their neutral
    element, and for ``If`` around one store nest. Conditions that load stay where they are: the loads may rely on
    others, and where data chooses a zero, that times infinity is no zero. Hints in front of it stay outside of a
    condition on their own loop.
    """
    return LoopProgram(program.name, program.params, _hoist(program.body, True))


def _hoist(s: Stmt, top: bool) -> Stmt:
    """``top``: whether ``s`` is not the only statement of a loop, which would take what depends on no loop in ``s``."""
    if isinstance(s, For):
        if top:
            nest, lifted = _take(s, None)
            if lifted:
                return If(all_of(*lifted), _hoist(nest, False))
        hints, nest = _hints(s.body)
        nest, lifted = _take(nest, s)
        if lifted:
            return For(s.var, s.extent, s.kind, seq(*hints, If(all_of(*lifted), _hoist(nest, False))))
        return For(s.var, s.extent, s.kind, _hoist(s.body, False))
    return rebuild_stmt(s, lambda x: _hoist(x, top if isinstance(s, If) else True))


def _hints(body: Stmt) -> tuple[tuple[Stmt, ...], Stmt]:
    """The hints that ``body`` begins with, and the one statement behind them; none where there are several."""
    if isinstance(body, Seq) and all(isinstance(x, Intrinsic) and x.name in HINTS for x in body.stmts[:-1]):
        return body.stmts[:-1], body.stmts[-1]
    return (), body


def _take(body: Stmt, here: For | None) -> tuple[Stmt, list[Expr]]:
    """Removes from the single update nest ``body`` the conditions whose innermost variable is that of ``here``.

    ``here`` is the loop around ``body``. None: those on no variable of the nest.
    """
    if here is not None and here.kind in _INNER:
        return body, []
    inner_vars: set[str] = set()
    inner: list[tuple[For | If, tuple[Stmt, ...]]] = []
    s = body
    while isinstance(s, (For, If)):
        if isinstance(s, For):
            inner_vars.add(s.var)
        hints, nest = _hints(s.body)
        inner.append((s, hints))
        s = nest
    if not inner or not isinstance(s, Store):
        return body, []

    def liftable(cond: Expr) -> bool:
        names = free_vars(cond)
        if cond.buffers:
            return False
        return (here is None or here.var in names) and not names & inner_vars and not isinstance(cond, Const)

    lifted: list[Expr] = []
    if s.reduce is not None:
        s = Store(s.buffer, s.indices, _strip(s.value, s.reduce, liftable, lifted), s.reduce)
    for outer, hints in reversed(inner):
        s = seq(*hints, s)
        if isinstance(outer, For):
            s = For(outer.var, outer.extent, outer.kind, s)
            continue
        keep = [c for c in conjuncts(outer.cond) if not liftable(c)]
        lifted += [c for c in conjuncts(outer.cond) if liftable(c) and c not in lifted]
        s = If(all_of(*keep), s) if keep else s
    return s, lifted


def _strip(value: Expr, reduce: str, liftable: Callable[[Expr], bool], lifted: list[Expr]) -> Expr:
    """A value that is the reduction's identity where a liftable condition fails, without it; conditions are collected.

    That is a value padded with the identity, and for sums a product with a factor padded with zeros.
    """
    if reduce == "sum" and isinstance(value, Binary) and value.op == "*":
        return Binary("*", _strip(value.a, reduce, liftable, lifted), _strip(value.b, reduce, liftable, lifted))
    if reduce == "sum" and isinstance(value, Call) and value.fn in WORD_PRODUCTS:
        return Call(value.fn, tuple(_strip(factor, reduce, liftable, lifted) for factor in value.args))
    if isinstance(value, Select) and is_neutral(value.b, reduce):
        conds = conjuncts(value.cond)
        lifted += [c for c in conds if liftable(c) and c not in lifted]
        keep = [c for c in conds if not liftable(c)]
        return Select(all_of(*keep), value.a, value.b) if keep else value.a
    return value
