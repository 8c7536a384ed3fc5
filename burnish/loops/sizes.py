"""Symbolic sizes: integer polynomials over named dimensions that are known when a kernel is called.

Grammar (interned like all expressions: equal sizes are one object; ``str`` prints it)::

    extent    ::= integer | Size
    size      ::= Size(terms, constant)            terms: (monomial, coefficient) pairs in order, no coefficient zero
    monomial  ::= (atom, ...)                      in order, repeated for powers
    atom      ::= Dim(name, low, high, hint)       an integer from low to high
                | Quotient(size, divisor)          size // divisor, rounded down; by a size only in floor

A size computes like an integer: ``+ - * // %`` with integers and sizes give an extent in this form, and a comparison is
decided where its truth is the same for all values of the dimensions. With any other expression it is an operand. The
rules of ``rewrite`` are written in the same sizes, over dimensions without bounds (``unbounded``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import product as pairs
from math import gcd, isqrt, prod
from typing import Any, TypeGuard

from burnish.errors import ScheduleError
from burnish.loops.expr import INDEX, Expr, Value, binary
from burnish.loops.hashcons import Interned, Rebuilt, immutable
from burnish.loops.loaded import LoadedExtent
from burnish.loops.polynomials import Polynomial, added, divided, multiplied

MOST = 1 << 20  # the default upper bound of a dimension
ANY = 1 << 62  # beyond what any extent is: the bounds of a dimension of which nothing is known
_DEPTH = 4  # quotients replaced one inside the other in the search for a bound


@immutable(eq=False, weakref_slot=True)
class Dim(Rebuilt, metaclass=Interned):
    """A named dimension. ``hint``: the value at which schedules are made and costs are asked for."""

    name: str
    low: int = 1
    high: int = MOST
    hint: int = 1

    def __str__(self) -> str:
        return self.name

    @property
    def dims(self) -> frozenset[Dim]:
        """Itself alone."""
        return frozenset((self,))

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest value."""
        return self.low, self.high

    def value(self, sizes: Mapping[str, int]) -> int:
        """The number for these values of dimensions."""
        return sizes[self.name]


@immutable(eq=False, weakref_slot=True)
class Quotient(Rebuilt, metaclass=Interned):
    """``size // divisor``: of a size by a positive number, or of an extent by a size."""

    size: Any
    divisor: Any

    def __str__(self) -> str:
        return f"({self.size} // {self.divisor})"

    @property
    def dims(self) -> frozenset[Dim]:
        """The dimensions of what is divided, and of the divisor."""
        return dims_of((self.size, self.divisor))

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest value; for a divisor that may be 0 or less, the dividend's magnitude with either sign."""
        ends, by = (least(self.size), greatest(self.size)), (least(self.divisor), greatest(self.divisor))
        if by[0] < 1:
            most = max(map(abs, ends))
            return -most, most
        found = [end // d for end, d in pairs(ends, by)]
        return min(found), max(found)

    def value(self, sizes: Mapping[str, int]) -> int:
        """The number for these values of dimensions. Raises ZeroDivisionError."""
        return valued(self.size, sizes) // valued(self.divisor, sizes)


Atom = Dim | Quotient
Monomial = tuple[Atom, ...]
Terms = tuple[tuple[Monomial, int], ...]


@immutable(eq=False, repr=False)
class SymbolicSize(Expr):
    """A polynomial over dimensions; see the grammar above."""

    terms: Terms
    constant: int = 0

    def __post_init__(self) -> None:
        self._is(INDEX)
        self.symbolic = True

    def _format(self, *parts: str) -> str:
        text = ""
        for monomial, factor in (*self.terms, *([((), self.constant)] if self.constant else [])):
            number = [str(abs(factor))] if abs(factor) != 1 or not monomial else []
            text += (" - " if factor < 0 else " + ") + "*".join([*map(str, monomial), *number])
        text = text[3:] if text[1] == "+" else "-" + text[3:]
        return text if len(self.terms) == 1 and not self.constant else f"({text})"

    @property
    def dims(self) -> frozenset[Dim]:
        """The dimensions in it."""
        return frozenset(d for monomial, _ in self.terms for atom in monomial for d in atom.dims)

    @property
    def low(self) -> int:
        """A lower bound, most often the least value."""
        return -_most(-self, 0)

    @property
    def high(self) -> int:
        """An upper bound, most often the greatest value."""
        return _most(self, 0)

    @property
    def hint(self) -> int:
        """The value where every dimension has its hint."""
        return self.value({d.name: d.hint for d in self.dims})

    def value(self, sizes: Mapping[str, int]) -> int:
        """The number for these values of dimensions, by name."""
        return self.constant + sum(c * prod(a.value(sizes) for a in monomial) for monomial, c in self.terms)

    def __add__(self, other: Value) -> Any:
        return _sum(self, other, 1) if _is_extent(other) else binary("+", self, other)

    def __radd__(self, other: Value) -> Any:
        return _sum(self, other, 1) if _is_extent(other) else binary("+", other, self)

    def __sub__(self, other: Value) -> Any:
        return _sum(self, other, -1) if _is_extent(other) else binary("-", self, other)

    def __rsub__(self, other: Value) -> Any:
        return _sum(-self, other, 1) if _is_extent(other) else binary("-", other, self)

    def __neg__(self) -> Any:
        return _product(self, -1)

    def __mul__(self, other: Value) -> Any:
        return _product(self, other) if _is_extent(other) else binary("*", self, other)

    def __rmul__(self, other: Value) -> Any:
        return _product(self, other) if _is_extent(other) else binary("*", other, self)

    def __floordiv__(self, other: Value) -> Any:
        found = _quotient(self, other) if _is_extent(other) else None
        return binary("//", self, other) if found is None else found

    def __mod__(self, other: Value) -> Any:
        found = _quotient(self, other) if _is_extent(other) else None
        return binary("%", self, other) if found is None else self - found * other

    def __lt__(self, other: Value) -> Any:
        return _compared("<", self, other, lambda low, high: (high < 0, low >= 0))

    def __le__(self, other: Value) -> Any:
        return _compared("<=", self, other, lambda low, high: (high <= 0, low > 0))

    def __gt__(self, other: Value) -> Any:
        return _compared(">", self, other, lambda low, high: (low > 0, high <= 0))

    def __ge__(self, other: Value) -> Any:
        return _compared(">=", self, other, lambda low, high: (low >= 0, high < 0))

    def __bool__(self) -> bool:
        if self.low > 0 or self.high < 0:
            return True
        raise TypeError(f"whether {self} is zero depends on {', '.join(sorted(d.name for d in self.dims))}")


def dim(name: str, low: int = 1, high: int = MOST, multiple: int = 1, hint: int | None = None) -> int:
    """A size called ``name``: a multiple of ``multiple`` from ``low`` to ``high``; annotated as what it computes like.

    ``hint``: where schedules are made for it; by default the geometric mean of the bounds. A number if only one is
    possible. Raises ScheduleError for bounds that no such number, or a negative one, lies between.
    """
    first, last = -(-low // max(multiple, 1)), high // max(multiple, 1)
    if not (name.isidentifier() and multiple >= 1 and 0 <= first <= last):
        found = f"low {low}, high {high}, multiple {multiple}"
        raise ScheduleError(f"dimension '{name}': found {found}; allowed: a name, 0 <= low <= high, a multiple between")
    at = max(first, min(last, max(2, isqrt(max(first, 1) * last)))) if hint is None else hint // multiple
    if not first <= at <= last:
        raise ScheduleError(f"dimension '{name}': found hint {hint}; allowed: {first * multiple} to {last * multiple}")
    if first == last:
        return first * multiple
    return _product(SymbolicSize((((Dim(name, first, last, at),), 1),)), multiple)


# --- extents: integers or sizes ---------------------------------------------------------------------------------------


def is_size(extent: object) -> TypeGuard[SymbolicSize]:
    """Whether an extent is no number: extents are annotated as the numbers that they compute like."""
    return isinstance(extent, SymbolicSize)


def is_dim(extent: object) -> bool:
    """Whether an extent is a dimension by itself."""
    return is_size(extent) and not extent.constant and [*extent.terms] == [((atom,), 1) for atom in extent.dims]


def extent_of(given: Any) -> int:
    """An extent from what a caller gives: a size as it is, anything else as an integer."""
    found: Any = given if isinstance(given, SymbolicSize) else int(given)
    return found


def greatest(extent: int) -> int:
    """The most that an extent can be."""
    return extent.high if isinstance(extent, SymbolicSize | LoadedExtent) else extent


def least(extent: int) -> int:
    """The least that an extent can be."""
    return extent.low if isinstance(extent, SymbolicSize | LoadedExtent) else extent


def hinted(extent: int) -> int:
    """An extent where every dimension has its hint, and loops that memory bounds their mean length."""
    return extent.hint if isinstance(extent, SymbolicSize | LoadedExtent) else extent


def valued(extent: int, sizes: Mapping[str, int]) -> int:
    """An extent for these values of dimensions, by name."""
    return extent.value(sizes) if is_size(extent) else extent


def at_least(a: int, b: int) -> bool:
    """Whether certainly ``a >= b``."""
    return least(a - b) >= 0


def nondecreasing(extent: int | SymbolicSize) -> bool:
    """Whether an extent certainly does not fall where a dimension grows."""
    if not is_size(extent):
        return True
    quotients = [atom for monomial, _ in extent.terms for atom in monomial if isinstance(atom, Quotient)]
    grows = all(nondecreasing(q.size) and not is_size(q.divisor) for q in quotients)
    return grows and all(factor > 0 for _, factor in extent.terms)


def larger(a: int, b: int) -> int | None:
    """The larger of two extents; None if that depends on the dimensions."""
    return a if at_least(a, b) else b if at_least(b, a) else None


def smaller(a: int | None, b: int) -> int | None:
    """The smaller of two extents; None if that depends on the dimensions, or one is None."""
    return None if a is None else b if at_least(a, b) else a if at_least(b, a) else None


def dims_of(extents: Iterable[int]) -> frozenset[Dim]:
    """The dimensions in extents."""
    return frozenset(d for extent in extents if is_size(extent) for d in extent.dims)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _is_extent(value: Value) -> bool:
    return isinstance(value, (int, SymbolicSize)) and not isinstance(value, bool)


def polynomial(extent: Any) -> Polynomial:
    """An extent as a table of monomials, the constant (of the monomial ()) first."""
    constant = {(): number} if (number := extent.constant if isinstance(extent, SymbolicSize) else extent) else {}
    return {**constant, **dict(extent.terms)} if isinstance(extent, SymbolicSize) else constant


def _order(atom: Atom) -> tuple[bool, str]:
    """Dimensions come before quotients."""
    return isinstance(atom, Quotient), str(atom)


def size_of(terms: Mapping[Monomial, int]) -> Any:
    """The extent that a table of monomials says; their atoms are in order."""
    kept = [(m, c) for m, c in terms.items() if c and m]
    constant = terms.get((), 0)
    if not kept:
        return constant
    return SymbolicSize(tuple(sorted(kept, key=lambda term: tuple(map(_order, term[0])))), constant)


def _sum(a: SymbolicSize, b: Any, sign: int) -> Any:
    return size_of(added(polynomial(a), polynomial(b), sign))


def _product(a: SymbolicSize, b: Any) -> Any:
    return size_of(multiplied(polynomial(a), polynomial(b), _order))


def _quotient(a: SymbolicSize, b: Any) -> Any:
    """``a // b`` as an extent; None if it is none."""
    if isinstance(b, SymbolicSize):
        exact: Any = exact_quotient(a, b)
        return exact if exact is not None else 0 if a.low >= 0 and least(b - a) > 0 else None
    return _floor(a, b) if b > 0 else None


def _floor(a: SymbolicSize, divisor: int) -> Any:
    """``a // divisor``: multiples apart, common factors out, quotients of quotients joined."""
    whole = {m: c // divisor for m, c in a.terms if c % divisor == 0}
    rest = size_of({**{m: c for m, c in a.terms if c % divisor}, (): a.constant % divisor})
    outside = size_of({**whole, (): a.constant // divisor})
    if not isinstance(rest, SymbolicSize) or rest.low // divisor == rest.high // divisor:
        return outside + least(rest) // divisor
    common = gcd(divisor, *(c for _, c in rest.terms))
    if common > 1:
        reduced = size_of({**{m: c // common for m, c in rest.terms}, (): rest.constant // common})
        return outside + reduced // (divisor // common)
    (monomial, factor), *more = rest.terms
    if factor < 0:  # one form of what is rounded up
        return outside - (divisor - 1 - rest) // divisor
    if not more and factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Quotient):
        inner = monomial[0]
        if isinstance(inner.divisor, int):
            return outside + (inner.size + rest.constant * inner.divisor) // (inner.divisor * divisor)
    return outside + _alone(Quotient(rest, divisor))


def _alone(atom: Atom) -> Any:
    """The size that is one atom."""
    return SymbolicSize((((atom,), 1),))


def exact_quotient(a: Any, b: Any) -> int | None:
    """The extent that times ``b`` is ``a``; None if there is none."""
    if a == b:
        return 1
    found = divided(polynomial(a), polynomial(b), _order)
    return None if found is None else size_of(found)


def floor(a: int, b: int) -> int:
    """``a // b`` as an extent, also by a size of any sign. Raises ZeroDivisionError for the number 0."""
    if not is_size(a) and not is_size(b):
        return a // b
    if not is_size(b) and b < 0:
        return floor(-a, -b)
    if b == 0:
        raise ZeroDivisionError(f"({a}) // 0")
    exact = exact_quotient(a, b)
    if exact is not None:
        return exact
    found: Any = _alone(Quotient(a, b)) if is_size(b) else _floor(a, b)  # type: ignore[arg-type]
    return found


def unbounded(name: str) -> int:
    """A dimension that may be any integer, of which nothing is known but its name."""
    found: Any = _alone(Dim(name, -ANY, ANY))
    return found


def substituted(extent: int, sizes: Mapping[str, int]) -> int:
    """An extent with extents put in for dimensions, by name."""
    if not is_size(extent) or not any(d.name in sizes for d in extent.dims):
        return extent
    total: Any = extent.constant
    for monomial, c in extent.terms:
        product: Any = c
        for atom in monomial:
            if isinstance(atom, Dim):
                product = product * sizes.get(atom.name, _alone(atom))
            else:
                product = product * floor(substituted(atom.size, sizes), substituted(atom.divisor, sizes))
        total = total + product
    return extent_of(total)


def solve(extent: SymbolicSize, value: int) -> tuple[Dim, int] | None:
    """The dimension of an extent ``d * k + c``, and its value where the extent has this one; None for other extents.

    The value may lie outside of the dimension's bounds. Raises ValueError where it is no integer.
    """
    if len(extent.terms) != 1:
        return None
    ((monomial, factor),) = extent.terms
    if len(monomial) != 1 or not isinstance(monomial[0], Dim):
        return None
    found, rest = divmod(value - extent.constant, factor)
    if rest:
        raise ValueError(f"{value} is not {extent} for any {monomial[0]}")
    return monomial[0], found


# --- bounds -----------------------------------------------------------------------------------------------------------


def _compared(op: str, a: SymbolicSize, b: Value, decide: Callable[[int, int], tuple[bool, bool]]) -> Any:
    """``a op b``: a bool where it is the same for all values of the dimensions, else a condition."""
    if _is_extent(b):
        difference = a - b
        yes, no = decide(least(difference), greatest(difference))
        if yes or no:
            return yes
    return binary(op, a, b)


@lru_cache(maxsize=1 << 14)
def _most(a: Any, depth: int) -> int:
    """An upper bound: each dimension at the end that its slope says, each quotient at what it is at most.

    ``k (e // d) <= (k / d) e``, and ``-k (e // d) <= -(k / d) (e - d + 1)``; where d does not divide k, of d times the
    whole.
    """
    if not isinstance(a, SymbolicSize):
        return a
    best = _independent(a)
    if depth >= _DEPTH:
        return best
    for atom in dict.fromkeys(atom for monomial, _ in a.terms for atom in monomial):
        slope, rest = _apart(a, atom)
        if isinstance(atom, Dim):
            low, high = -_most(-slope, depth + 1), _most(slope, depth + 1)
            if (low >= 0 or high <= 0) and isinstance(slope, SymbolicSize):
                best = min(best, _most(rest + slope * (atom.high if low >= 0 else atom.low), depth + 1))
        elif not isinstance(slope, SymbolicSize) and isinstance(atom.divisor, int):
            d = atom.divisor
            scale = 1 if slope % d == 0 else d
            inner = atom.size if slope > 0 else atom.size - (d - 1)
            best = min(best, _most(rest * scale + inner * (slope * scale // d), depth + 1) // scale)
    return best


def _independent(a: SymbolicSize) -> int:
    """The upper bound where atoms are taken to be independent of each other; none is negative."""
    total = a.constant
    for monomial, c in a.terms:
        low, high = 1, 1
        for atom in monomial:
            least_, most = atom.bounds
            corners = (low * least_, low * most, high * least_, high * most)
            low, high = min(corners), max(corners)
        total += c * (high if c > 0 else low)
    return total


def _apart(a: SymbolicSize, atom: Atom) -> tuple[Any, Any]:
    """``a`` as ``slope * atom + rest``; powers of the atom stay in the slope."""
    slope: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, c in a.terms:
        if atom in monomial:
            place = monomial.index(atom)
            slope[(*monomial[:place], *monomial[place + 1 :])] = c
        else:
            rest[monomial] = c
    return size_of(slope), size_of({**rest, (): a.constant})
