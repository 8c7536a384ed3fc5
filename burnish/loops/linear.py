"""Linear forms of index expressions: sums of ``coefficient * atom`` plus a constant."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from burnish.loops.expr import INDEX, Binary, Const, Expr

Linear = tuple[Mapping[Expr, int], int]


@lru_cache(maxsize=1 << 14)
def to_linear(e: Expr) -> Linear:
    """``e`` as (atom -> nonzero coefficient, constant); what is not +, - or * by a constant is an atom."""
    terms: dict[Expr, int] = {}
    const = _collect(e, 1, terms)
    return {atom: c for atom, c in terms.items() if c}, const


def _collect(e: Expr, factor: int, terms: dict[Expr, int]) -> int:
    match e:
        case Const(value, _):
            return int(value) * factor
        case Binary("+", a, b):
            return _collect(a, factor, terms) + _collect(b, factor, terms)
        case Binary("-", a, b):
            return _collect(a, factor, terms) + _collect(b, -factor, terms)
        case Binary("*", a, Const(value, _)):
            return _collect(a, factor * int(value), terms)
        case Binary("*", Const(value, _), b):
            return _collect(b, factor * int(value), terms)
    terms[e] = terms.get(e, 0) + factor
    return 0


def from_linear(terms: Mapping[Expr, int], const: int) -> Expr:
    """The expression of a linear form: positive terms first, the constant last."""
    result: Expr | None = None
    for atom, c in sorted(terms.items(), key=lambda item: item[1] < 0):
        if c == 0:
            continue
        size = abs(c)
        term = atom if size == 1 else Binary("*", atom, Const(size, INDEX))
        if result is None:
            result = term if c > 0 else Binary("*", atom, Const(c, INDEX))
        else:
            result = Binary("+" if c > 0 else "-", result, term)
    if result is None:
        return Const(const, INDEX)
    if const:
        result = Binary("+" if const > 0 else "-", result, Const(abs(const), INDEX))
    return result
