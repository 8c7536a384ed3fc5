"""Linear forms of index expressions: sums of ``coefficient * atom`` plus a constant."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from burnish.loops.expr import INDEX, Binary, Const, Expr, wrap
from burnish.loops.sizes import SymbolicSize, exact_quotient, is_size

Linear = tuple[Mapping[Expr, int], int]


@lru_cache(maxsize=1 << 14)
def to_linear(e: Expr) -> Linear:
    """``e`` as (atom -> nonzero coefficient, constant); what is not +, - or * by a constant is an atom.

    Of a size every monomial is an atom, and of a product with sizes every product of atoms, in canonical form.
    """
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
        case SymbolicSize(monomials, constant):
            for monomial, c in monomials:
                one = SymbolicSize(((monomial, 1),))
                terms[one] = terms.get(one, 0) + factor * c
            return factor * constant
        case Binary("*", a, b) if e.symbolic and e.dtype == INDEX:
            product, const = multiply(to_linear(a), to_linear(b))
            for atom, c in product.items():
                terms[atom] = terms.get(atom, 0) + factor * c
            return factor * const
    terms[e] = terms.get(e, 0) + factor
    return 0


def from_linear(terms: Mapping[Expr, int], const: int) -> Expr:
    """The expression of a linear form: positive terms first, the constant last. Of sizes alone it is a size."""
    if terms and all(atom.__class__ is SymbolicSize for atom in terms):
        return wrap(size_part((terms, const)))  # type: ignore[arg-type]
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


def multiply(x: Linear, y: Linear) -> Linear:
    """The product of two linear forms: products of their atoms are atoms."""
    terms: dict[Expr, int] = {}
    for a, c in x[0].items():
        for b, d in y[0].items():
            both = monomial((*factors(a), *factors(b)))
            terms[both] = terms.get(both, 0) + c * d
        terms[a] = terms.get(a, 0) + c * y[1]
    for b, d in y[0].items():
        terms[b] = terms.get(b, 0) + d * x[1]
    return {atom: c for atom, c in terms.items() if c}, x[1] * y[1]


def factors(atom: Expr) -> tuple[Expr, ...]:
    """The factors of an atom that is a product; each atom of a size is one."""
    if isinstance(atom, Binary) and atom.op == "*" and atom.symbolic:
        return (*factors(atom.a), *factors(atom.b))
    if is_size(atom) and len(atom.terms) == 1 and len(atom.terms[0][0]) > 1:
        return tuple([SymbolicSize((((one,), 1),)) for one in atom.terms[0][0]])
    return (atom,)


def monomial(parts: tuple[Expr, ...]) -> Expr:
    """The atom that is the product of some: those of sizes joined in one, behind the others in order."""
    others = sorted((p for p in parts if not is_size(p)), key=str)
    sizes = 1
    for part in parts:
        if is_size(part):
            sizes = sizes * part
    product: list[Expr] = [*others, *([sizes] if is_size(sizes) else [])]
    result = product[0]
    for part in product[1:]:
        result = Binary("*", result, part)
    return result


def size_part(form: Linear) -> int | None:
    """The extent that a linear form of sizes alone is; None for any other."""
    terms, const = form
    return total_of(terms, const) if all(is_size(atom) for atom in terms) else None


def total_of(sizes: Mapping[Any, int], const: int) -> int:
    """The extent that is a sum of multiples of sizes and a constant."""
    total = const
    for atom, c in sizes.items():
        total = total + atom * c
    return total


def as_extent(e: Expr) -> int | None:
    """The extent that an index expression is: a number or a size; None if it has variables."""
    return size_part(to_linear(e))


def divided(form: Linear, by: SymbolicSize) -> Linear | None:
    """The form that times a size is this one; None if there is none, or ``by`` is a sum."""
    ((divisor, k), *more), extra = to_linear(by)[0].items(), by.constant
    if more or extra:
        whole = size_part(form)
        quotient = exact_quotient(whole, by) if whole is not None else None
        return None if quotient is None else to_linear(wrap(quotient))
    result: dict[Expr, int] = {}
    constant = 0
    for atom, c in (*form[0].items(), *([(None, form[1])] if form[1] else [])):
        rest = list(factors(atom)) if atom is not None else []
        for factor in factors(divisor):
            if factor not in rest:
                return None
            rest.remove(factor)
        if c % k:
            return None
        if rest:
            result[monomial(tuple(rest))] = c // k
        else:
            constant = c // k
    return result, constant
