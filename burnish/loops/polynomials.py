"""Integer polynomials as tables of monomials: the arithmetic of symbolic sizes.

A polynomial is ``monomial -> coefficient``, a monomial a tuple of atoms in order, repeated for powers; () is the
constant. What an atom is does not matter here: ``order`` says only which of two comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Monomial = tuple[Any, ...]
Polynomial = dict[Monomial, int]
Order = Callable[[Any], Any]


def added(a: Mapping[Monomial, int], b: Mapping[Monomial, int], factor: int = 1) -> Polynomial:
    """``a + factor * b``."""
    sums = dict(a)
    for monomial, c in b.items():
        sums[monomial] = sums.get(monomial, 0) + factor * c
    return {m: c for m, c in sums.items() if c}


def multiplied(a: Mapping[Monomial, int], b: Mapping[Monomial, int], order: Order) -> Polynomial:
    """``a * b``."""
    products: Polynomial = {}
    for m, c in a.items():
        for n, d in b.items():
            monomial = tuple(sorted((*m, *n), key=order)) if m and n else m or n
            products[monomial] = products.get(monomial, 0) + c * d
    return {m: c for m, c in products.items() if c}


def divided(a: Mapping[Monomial, int], b: Mapping[Monomial, int], order: Order) -> Polynomial | None:
    """The polynomial that times ``b`` is ``a``; None if there is none, or ``b`` is 0."""
    if not b:
        return None

    def degree(monomial: Monomial) -> tuple[int, list[Any]]:
        return len(monomial), [order(atom) for atom in monomial]

    rest, result = dict(a), Polynomial()
    lead = max(b, key=degree)
    while rest:
        monomial = max(rest, key=degree)
        remaining = list(monomial)
        for atom in lead:
            if atom not in remaining:
                return None
            remaining.remove(atom)
        if rest[monomial] % b[lead]:
            return None
        step = {tuple(remaining): rest[monomial] // b[lead]}
        result, rest = added(result, step), added(rest, multiplied(step, b, order), -1)
    return result
