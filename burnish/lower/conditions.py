"""Conditions on loops, as linear forms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from burnish.loops.expr import COMPARISONS, INDEX, Binary, Const, Expr, Select, wrap
from burnish.loops.linear import Linear, to_linear
from burnish.loops.traverse import walk

INNER = ("unroll", "vectorize")  # kinds of the loops within a tile


@lru_cache(maxsize=1 << 12)
def selects(e: Expr) -> tuple[Select, ...]:
    """Every ``Select`` in ``e``."""
    return tuple(x for x in walk(e) if isinstance(x, Select))


def nonnegative_forms(cond: Expr) -> list[Linear]:
    """An inequality as linear forms that are >= 0 when it holds; empty for other conditions, and for those that load.

    The differences of loaded numbers may wrap.
    """
    if not isinstance(cond, Binary) or cond.op not in COMPARISONS or cond.a.dtype != INDEX or cond.buffers:
        return []
    match cond.op:
        case "<=" | "<":
            terms, const = to_linear(wrap(cond.b - cond.a))
        case ">=" | ">":
            terms, const = to_linear(wrap(cond.a - cond.b))
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
