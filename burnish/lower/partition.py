"""Loop partition: a tile loop is cut where its boundary conditions become true, so that the main part has none."""

from __future__ import annotations

from burnish.loops.bounds import Ranges, linear_bounds
from burnish.loops.expr import COMPARISONS, INDEX, Binary, Expr, Select, Var, conjuncts, walk
from burnish.loops.linear import Linear, to_linear
from burnish.loops.program import For, If, Program, Seq, Stmt, Store, rebuild_stmt, seq, substitute_stmt, walk_stmt
from burnish.loops.simplify import simplify_stmt

_INNER = ("unroll", "vectorize")


def partition_loops(program: Program) -> Program:
    """Cuts serial loops over tiles into first, main and last parts where conditions inside a tile are not always true.

    Only conditions evaluated within unrolled or vectorized loops count: elsewhere a branch is cheaper than more code.
    """
    counter = [0]
    return Program(program.name, program.params, _partition(program.body, {}, counter))


def _partition(s: Stmt, ranges: dict[str, int], counter: list[int]) -> Stmt:
    if not isinstance(s, For):
        return rebuild_stmt(s, lambda x: _partition(x, ranges, counter))
    inside = {**ranges, s.var: s.extent}
    body = _partition(s.body, inside, counter)
    if s.kind != "serial" or s.extent < 2:
        return For(s.var, s.extent, s.kind, body)
    # Where both ends reach into each other, the middle part has the conditions of both, and the others those of one.
    low, high = sorted(_main_range(s, body, inside))
    if (low, high) == (0, s.extent):
        return For(s.var, s.extent, s.kind, body)
    parts = [_piece(s, body, begin, end, ranges, counter) for begin, end in ((0, low), (low, high), (high, s.extent))]
    return seq(*parts)


def _piece(s: For, body: Stmt, begin: int, end: int, ranges: Ranges, counter: list[int]) -> Stmt:
    """``for var in [begin, end)`` as a loop from zero, all its inner loops renamed apart."""
    if begin >= end:
        return Seq(())
    counter[0] += 1
    body = _rename_loops(body, f"~{counter[0]}")
    name = f"{s.var}~{counter[0]}"
    shifted = substitute_stmt(body, {s.var: Var(name) + begin})
    return simplify_stmt(For(name, end - begin, s.kind, shifted), ranges)


def _rename_loops(s: Stmt, suffix: str) -> Stmt:
    if isinstance(s, For):
        body = substitute_stmt(_rename_loops(s.body, suffix), {s.var: Var(s.var + suffix)})
        return For(s.var + suffix, s.extent, s.kind, body)
    return rebuild_stmt(s, lambda x: _rename_loops(x, suffix))


def _main_range(loop: For, body: Stmt, ranges: Ranges) -> tuple[int, int]:
    """The iterations in which every affine condition on the loop variable holds whatever the inner variables are."""
    low, high = 0, loop.extent
    inner = {s.var: s.extent for s in walk_stmt(body) if isinstance(s, For)}
    for cond in dict.fromkeys(_conditions(body, False)):
        for terms, const in _nonnegative_forms(cond):
            c = terms.get(Var(loop.var), 0)
            rest = {atom: k for atom, k in terms.items() if atom != Var(loop.var)}
            if c == 0 or any(not (isinstance(a, Var) and a.name in inner) for a in rest):
                continue
            worst, _ = linear_bounds((rest, const), {**ranges, **inner})
            if c > 0:
                low = max(low, int(-(worst // c)) if worst < 0 else 0)
            else:
                high = min(high, int(worst // -c) + 1 if worst >= 0 else 0)
    return min(low, loop.extent), max(high, 0)


def _conditions(s: Stmt, inner: bool) -> list[Expr]:
    """Conjuncts of the conditions of ``If`` and ``Select`` below an unrolled or vectorized loop."""
    match s:
        case For(_, _, kind, body):
            return _conditions(body, inner or kind in _INNER)
        case If(cond, body):
            return [*(conjuncts(cond) if inner else []), *_conditions(body, inner)]
        case Store(_, _, value, _):
            return _select_conditions(value) if inner else []
    return [c for x in s.parts for c in _conditions(x, inner)]


def _select_conditions(e: Expr) -> list[Expr]:
    return [c for x in walk(e) if isinstance(x, Select) for c in conjuncts(x.cond)]


def _nonnegative_forms(cond: Expr) -> list[Linear]:
    """An inequality as linear forms that are >= 0 when it holds; empty for other conditions."""
    if not isinstance(cond, Binary) or cond.op not in COMPARISONS or cond.a.dtype != INDEX:
        return []
    match cond.op:
        case "<=" | "<":
            terms, const = to_linear(cond.b - cond.a)
        case ">=" | ">":
            terms, const = to_linear(cond.a - cond.b)
        case _:
            return []
    return [(terms, const - (1 if cond.op in ("<", ">") else 0))]
