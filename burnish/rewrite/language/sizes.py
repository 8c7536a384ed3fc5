"""Sizes: polynomials with integer coefficients over named extents, the numbers that types and attributes are made of.

Grammar (``str`` prints it)::

    size ::= integer | name | size + size | size - size | size * size | floor(size, size)

``floor(a, b)`` is a quotient rounded down: how many windows fit. Within a polynomial it stands like a name.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from burnish.errors import RuleError

MOST_TERMS = 1 << 12  # of a product that is written in a rule
Monomial = tuple[str, ...]  # names in order, repeated for powers; () is the constant


@dataclass(frozen=True, slots=True)
class Size:
    """``terms``: (monomial, coefficient) pairs in order, no coefficient zero. Equal polynomials are equal objects."""

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))  # asked for far more often than a size is made

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def of(value: Size | int | str) -> Size:
        """A size from an integer, a name, or a text of the grammar."""
        if isinstance(value, Size):
            return value
        if isinstance(value, int):
            return _size({(): value})
        return parse_size(value)

    @property
    def names(self) -> frozenset[str]:
        """Names of the variables in it."""
        return _names_of(self.terms)

    @property
    def atoms(self) -> frozenset[str]:
        """Names, and quotients as a whole."""
        return frozenset(atom for monomial, _ in self.terms for atom in monomial)

    @property
    def constant(self) -> int | None:
        """The value of a size without names; None for any other."""
        if not self.terms:
            return 0
        (monomial, factor), *more = self.terms
        return None if more or monomial else factor

    def value(self, sizes: Mapping[str, int]) -> int:
        """The number it is when names have these values. Raises RuleError for one without, and a division by 0."""
        total = 0
        for monomial, factor in self.terms:
            for name in monomial:
                if name not in sizes:
                    if parts := quotient(name):
                        divisor = parts[1].value(sizes)
                        if divisor == 0:
                            raise RuleError(f"size '{self}': division by 0")
                        factor *= parts[0].value(sizes) // divisor
                        continue
                    known = ", ".join(sorted(sizes)) or "none"
                    raise RuleError(f"size '{self}': '{name}' has no value; known: {known}")
                factor *= sizes[name]
            total += factor
        return total

    def solve(self, value: int, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """Values of the names unbound in ``sizes`` that give the size this value.

        ``{}`` if none is unbound and it fits; None if it cannot be, or if it is not one unbound name times a number.
        """
        known, unknown, factor = 0, None, 0
        for monomial, coefficient in self.terms:
            free = [name for name in monomial if name not in sizes]
            for name in monomial:
                coefficient *= sizes.get(name, 1)
            if not free:
                known += coefficient
            elif len(free) == 1 and unknown in (None, free[0]):
                unknown, factor = free[0], factor + coefficient
            else:
                return None
        if unknown is None:
            return {} if known == value else None
        if factor == 0 or (value - known) % factor:
            return None
        return {unknown: (value - known) // factor}

    def substitute(self, sizes: Mapping[str, Size]) -> Size:
        """The size with names replaced."""
        if not self.names & sizes.keys():
            return self
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            alone = sizes.get(self.terms[0][0][0])
            if alone is not None:
                return alone
        total = Size(())
        for monomial, factor in self.terms:
            product = Size.of(factor)
            for atom in monomial:
                parts = quotient(atom)
                replaced = floor(*(q.substitute(sizes) for q in parts)) if parts else sizes.get(atom, name(atom))
                product = product * replaced
            total = total + product
        return total

    def divided(self, divisor: Size) -> Size | None:
        """The polynomial that times ``divisor`` is this one; None if there is none."""
        rest, result = self, Size(())
        if not divisor.terms:
            return None
        lead, factor = max(divisor.terms, key=_order)
        while rest.terms:
            monomial, value = max(rest.terms, key=_order)
            remaining = list(monomial)
            for atom in lead:
                if atom not in remaining:
                    return None
                remaining.remove(atom)
            if value % factor:
                return None
            step = Size(((tuple(remaining), value // factor),))
            result, rest = result + step, rest - step * divisor
        return result

    def __add__(self, other: Size | int) -> Size:
        sums = dict(self.terms)
        for monomial, factor in Size.of(other).terms:
            sums[monomial] = sums.get(monomial, 0) + factor
        return _size(sums)

    def __sub__(self, other: Size | int) -> Size:
        sums = dict(self.terms)
        for monomial, factor in Size.of(other).terms:
            sums[monomial] = sums.get(monomial, 0) - factor
        return _size(sums)

    def __mul__(self, other: Size | int) -> Size:
        products: dict[Monomial, int] = {}
        for a, x in self.terms:
            for b, y in Size.of(other).terms:
                monomial = tuple(sorted((*a, *b)))
                products[monomial] = products.get(monomial, 0) + x * y
        return _size(products)

    def __str__(self) -> str:
        text = ""
        for monomial, factor in sorted(self.terms, key=lambda t: (not t[0], t[0])):
            words = "*".join(monomial if abs(factor) == 1 and monomial else (str(abs(factor)), *monomial))
            text += (" - " if factor < 0 else " + ") + words
        return "0" if not text else text[3:] if text[1] == "+" else "-" + text[3:]


def name(atom: str) -> Size:
    """The size that is one name."""
    return Size((((atom,), 1),))


def floor(a: Size, b: Size) -> Size:
    """``a`` divided by ``b`` and rounded down. Raises RuleError for a division by the number 0."""
    if b.constant == 0:
        raise RuleError(f"size 'floor({a}, {b})': division by 0")
    if a.constant is not None and b.constant is not None:
        return Size.of(a.constant // b.constant)
    exact = a.divided(b)
    return name(f"floor({a}, {b})") if exact is None else exact


@lru_cache(maxsize=1 << 12)
def quotient(atom: str) -> tuple[Size, Size] | None:
    """Numerator and denominator of a quotient, None for a name."""
    if not atom.startswith("floor("):
        return None
    call = ast.parse(atom, mode="eval").body
    assert isinstance(call, ast.Call)
    return size_of(call.args[0]), size_of(call.args[1])


@lru_cache(maxsize=1 << 12)
def _names_in(atom: str) -> frozenset[str]:
    parts = quotient(atom)
    return frozenset({atom}) if parts is None else parts[0].names | parts[1].names


@lru_cache(maxsize=1 << 14)
def _names_of(terms: tuple[tuple[Monomial, int], ...]) -> frozenset[str]:
    return frozenset(n for monomial, _ in terms for atom in monomial for n in _names_in(atom))


def _order(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    """A monomial order: by degree, then by names."""
    return len(term[0]), term[0]


def _size(terms: Mapping[Monomial, int]) -> Size:
    return Size(tuple(sorted((m, f) for m, f in terms.items() if f)))


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


def parse_size(text: str) -> Size:
    """The size that a text of the grammar describes. Raises RuleError naming the text."""
    return size_of(parsed(text, "size "))


def size_of(tree: ast.expr) -> Size:
    """The size that a parsed expression denotes. Raises RuleError for any other expression."""
    match tree:
        case ast.Constant(int(value)) if not isinstance(value, bool):
            return _size({(): value})
        case ast.Name(name):
            return _size({(name,): 1})
        case ast.UnaryOp(ast.USub(), operand):
            return size_of(operand) * -1
        case ast.BinOp(a, ast.Add(), b):
            return size_of(a) + size_of(b)
        case ast.BinOp(a, ast.Sub(), b):
            return size_of(a) - size_of(b)
        case ast.BinOp(a, ast.Mult(), b):
            left, right = size_of(a), size_of(b)
            if len(left.terms) * len(right.terms) > MOST_TERMS:
                raise RuleError(f"a product of {len(left.terms)} by {len(right.terms)} terms, allowed: {MOST_TERMS}")
            return left * right
        case ast.Call(ast.Name("floor"), [a, b], []):
            return floor(size_of(a), size_of(b))
    raise RuleError(f"'{ast.unparse(tree)}' is no size; allowed: integers, names, and their sums and products")
