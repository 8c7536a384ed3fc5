"""Sizes of rules, as text and at numbers: those of ``loops.sizes``, over dimensions known by name alone.

Grammar (:func:`size_text` writes it, :func:`parse_size` reads it)::

    size ::= integer | name | size + size | size - size | size * size | floor(size, size)

``floor(a, b)`` is a quotient rounded down: how many windows fit. Sizes are annotated as the integers that they compute
like.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TypeGuard

from burnish.errors import RuleError
from burnish.loops.sizes import Dim, Monomial, Quotient, floor, is_size, polynomial, substituted, unbounded, valued
from burnish.loops.sizes import solve as solve_linear

MOST_TERMS = 1 << 12  # of a product that is written in a rule

# --- what a size is made of -------------------------------------------------------------------------------------------


def is_extent(value: object) -> TypeGuard[int]:
    """Whether an attribute's value is a size."""
    return (isinstance(value, int) and not isinstance(value, bool)) or is_size(value)


def number_of(size: int) -> int | None:
    """The value of a size without names; None for any other."""
    return None if is_size(size) else size


def names_of(*sizes: int) -> frozenset[str]:
    """The names in sizes."""
    return frozenset(d.name for size in sizes if is_size(size) for d in size.dims)


def name_of(size: int) -> str | None:
    """The name that a size is; None for any other."""
    if not is_size(size) or size.constant or len(size.terms) != 1:
        return None
    ((monomial, factor),) = size.terms
    return monomial[0].name if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Dim) else None


def terms_of(size: int) -> list[tuple[Monomial, int]]:
    """(monomial, coefficient) pairs in order, the constant's monomial empty and first."""
    return [*polynomial(size).items()]


# --- at numbers -------------------------------------------------------------------------------------------------------


def value_of(size: int, sizes: Mapping[str, int]) -> int:
    """The number that a size is when names have these values. Raises RuleError for one without, and a division by 0."""
    try:
        return valued(size, sizes)
    except KeyError as error:
        known = ", ".join(sorted(sizes)) or "none"
        raise RuleError(f"size '{size_text(size)}': '{error.args[0]}' has no value; known: {known}") from None
    except ZeroDivisionError:
        raise RuleError(f"size '{size_text(size)}': division by 0") from None


def solve(size: int, value: int, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Values of the names unbound in ``sizes`` that give a size this value.

    ``{}`` if none is unbound and it fits; None if it cannot be, or if it is not one unbound name times a number.
    """
    name = name_of(size)
    if name is not None:
        return {name: value} if name not in sizes else {} if sizes[name] == value else None
    try:
        rest = substituted(size, sizes)
        found = solve_linear(rest, value) if is_size(rest) else None
    except (ValueError, ZeroDivisionError):
        return None
    if found is not None:
        return {found[0].name: found[1]}
    return {} if rest == value else None


def put_in(size: int, sizes: Mapping[str, int]) -> int:
    """A size with sizes put in for names. Raises RuleError for a division by the number 0."""
    try:
        return substituted(size, sizes)
    except ZeroDivisionError as error:
        raise RuleError(f"size '{size_text(size)}': division by 0: {error}") from None


def quotient(a: int, b: int) -> int:
    """``a`` divided by ``b`` and rounded down. Raises RuleError for a division by the number 0."""
    try:
        return floor(a, b)
    except ZeroDivisionError:
        raise RuleError(f"size 'floor({size_text(a)}, {size_text(b)})': division by 0") from None


# --- text -------------------------------------------------------------------------------------------------------------


def size_text(size: int) -> str:
    """The text of a size in the grammar: monomials in order of their names, the constant last."""
    found = [(sorted(map(_atom_text, monomial)), factor) for monomial, factor in terms_of(size)]
    text = ""
    for monomial, factor in sorted(found, key=lambda t: (not t[0], t[0])):
        words = "*".join(monomial if abs(factor) == 1 and monomial else (str(abs(factor)), *monomial))
        text += (" - " if factor < 0 else " + ") + words
    return "0" if not text else text[3:] if text[1] == "+" else "-" + text[3:]


def _atom_text(atom: Dim | Quotient) -> str:
    return atom.name if isinstance(atom, Dim) else f"floor({size_text(atom.size)}, {size_text(atom.divisor)})"


def parsed(text: str, what: str = "") -> ast.expr:
    """The expression of a text. Raises RuleError naming the text, also if it is nested too deep."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise RuleError(f"{what}'{_short(text)}': {error.msg}") from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise RuleError(f"{what}'{_short(text)}': nested too deep, or no text: {type(error).__name__}") from None


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 200 else f"{text[:200]} …"


def parse_size(text: str) -> int:
    """The size that a text of the grammar describes. Raises RuleError naming the text."""
    return size_of(parsed(text, "size "))


def size_of(tree: ast.expr) -> int:
    """The size that a parsed expression denotes. Raises RuleError for any other expression."""
    match tree:
        case ast.Constant(int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(name):
            return unbounded(name)
        case ast.UnaryOp(ast.USub(), operand):
            return -size_of(operand)
        case ast.BinOp(a, ast.Add(), b):
            return size_of(a) + size_of(b)
        case ast.BinOp(a, ast.Sub(), b):
            return size_of(a) - size_of(b)
        case ast.BinOp(a, ast.Mult(), b):
            left, right = size_of(a), size_of(b)
            one, other = len(terms_of(left)), len(terms_of(right))
            if one * other > MOST_TERMS:
                raise RuleError(f"a product of {one} by {other} terms, allowed: {MOST_TERMS}")
            return left * right
        case ast.Call(ast.Name("floor"), [a, b], []):
            return quotient(size_of(a), size_of(b))
    raise RuleError(f"'{ast.unparse(tree)}' is no size; allowed: integers, names, and their sums and products")
