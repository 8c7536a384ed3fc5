"""Loop partition: a tile loop is cut where its boundary conditions become true, so that the main part has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import count

from burnish.loops.bounds import Ranges, linear_bounds
from burnish.loops.expr import COMPARISONS, INDEX, Binary, Const, Expr, Select, Var, conjuncts, walk
from burnish.loops.linear import Linear, to_linear
from burnish.loops.program import For, If, Program, Stmt, Store, rebuild_stmt, seq, substitute_stmt, walk_stmt
from burnish.loops.simplify import simplify_stmt

_INNER = ("unroll", "vectorize")


def partition_loops(program: Program) -> Program:
    """Cuts serial loops over tiles into first, main and last parts where conditions inside a tile are not always true.

    Only conditions evaluated within unrolled or vectorized loops count: elsewhere a branch is cheaper than more code.
    Where a loop is cut, conditions of inner loops on it become conditions on those alone, by which they can be cut in
    turn. That is done in parts with more than a quarter of the iterations; in others less code is worth more.
    """
    return Program(program.name, program.params, _partition(program.body, {}, count(1)))


def _partition(s: Stmt, ranges: Ranges, numbers: Iterator[int]) -> Stmt:
    if not isinstance(s, For):
        return rebuild_stmt(s, lambda x: _partition(x, ranges, numbers))
    if s.kind == "serial" and s.extent >= 2:
        # Where both ends reach into each other, the middle part has the conditions of both, and the others those of one
        low, high = sorted(_main_range(s, {**ranges, s.var: s.extent}))
        if (low, high) != (0, s.extent):
            ends = ((0, low), (low, high), (high, s.extent))
            return seq(*(_piece(s, begin, end, ranges, numbers) for begin, end in ends if begin < end))
    return _inside(s, ranges, numbers)


def _inside(loop: For, ranges: Ranges, numbers: Iterator[int]) -> For:
    """The loop with those in it cut."""
    body = _partition(loop.body, {**ranges, loop.var: loop.extent}, numbers)
    return loop if body is loop.body else For(loop.var, loop.extent, loop.kind, body)


def _piece(loop: For, begin: int, end: int, ranges: Ranges, numbers: Iterator[int]) -> Stmt:
    """``for var in [begin, end)`` as a loop from zero, under a name of its own, its inner loops cut in their turn."""
    often = 4 * (end - begin) > loop.extent
    whole = loop if often else _inside(loop, ranges, numbers)
    name = f"{loop.var}~{next(numbers)}"
    body = substitute_stmt(whole.body, {loop.var: Var(name) + begin})
    piece = simplify_stmt(For(name, end - begin, loop.kind, body), ranges)
    if not often:
        return piece
    if isinstance(piece, For) and piece.var == name:
        return _inside(piece, ranges, numbers)
    return _partition(piece, ranges, numbers)


def _main_range(loop: For, ranges: Ranges) -> tuple[int, int]:
    """The iterations in which every affine condition on the loop variable holds whatever the inner variables are."""
    low, high = 0, loop.extent
    inner = {s.var: s.extent for s in walk_stmt(loop.body) if isinstance(s, For)}
    for cond in dict.fromkeys(_conditions(loop.body, False)):
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
            return list(_select_conditions(value)) if inner else []
    return [c for x in s.parts for c in _conditions(x, inner)]


@lru_cache(maxsize=1 << 12)
def _select_conditions(e: Expr) -> tuple[Expr, ...]:
    return tuple(c for x in walk(e) if isinstance(x, Select) for c in conjuncts(x.cond))


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
    return [_undivided(terms, const - (1 if cond.op in ("<", ">") else 0))]


def _undivided(terms: Mapping[Expr, int], const: int) -> Linear:
    """The same for ``±(x // c) + k >= 0`` as a form of ``x``: ``x // c <= k`` where ``x <= c * k + c - 1``."""
    if len(terms) == 1:
        ((atom, sign),) = terms.items()
        if abs(sign) == 1 and isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const):
            c = int(atom.b.value)
            inner, offset = to_linear(atom.a)
            scaled = {x: sign * k for x, k in inner.items()}
            return scaled, sign * offset + c * const + (c - 1 if sign < 0 else 0)
    return terms, const
