"""Interval bounds of index expressions, and proofs of conditions from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from burnish.loops.expr import INDEX, ITEM_BYTES, Binary, Cast, Const, Expr, Load, Not, Select, Var, wrap
from burnish.loops.linear import Linear, divided, factors, monomial, multiply, size_part, to_linear, total_of
from burnish.loops.loaded import is_loaded
from burnish.loops.sizes import SymbolicSize, greatest, is_size
from burnish.loops.traverse import conjuncts

Ranges = Mapping[str, int]  # variable -> extent: the variable is in range(extent)
Interval = tuple[float, float]  # inclusive; -inf / inf where unknown
UNKNOWN: Interval = (-math.inf, math.inf)
_TOP = 1 << 63
_COUNTERS = 12  # loops to a size that are put at their ends in the search for a bound


def bounds(e: Expr, ranges: Ranges) -> Interval:
    """Inclusive bounds of an index expression."""
    match e:
        case Const(value, _):
            return (int(value), int(value))
        case Var(name):
            return (0, greatest(ranges[name]) - 1) if name in ranges else UNKNOWN
        case SymbolicSize():
            return (e.low, e.high)
        case Binary("+" | "-", _, _):
            return linear_bounds(to_linear(e), ranges)
        case Binary("*", a, b):
            return _unless_wrapped(_product(bounds(a, ranges), bounds(b, ranges)), bool(e.buffers))
        case Binary("//", a, Const(c, _)) if c > 0:
            low, high = bounds(a, ranges)
            return (low // c if math.isfinite(low) else low, high // c if math.isfinite(high) else high)
        case Binary("%", a, Const(c, _)) if c > 0:
            low, high = bounds(a, ranges)
            return (low, high) if low >= 0 and high < c else (0, int(c) - 1)
        case Binary("//" | "%", a, b) if b.symbolic:
            return _divided_by_size(e, ranges)
        case Binary("min", a, b):
            (p, q), (r, s) = bounds(a, ranges), bounds(b, ranges)
            return (min(p, r), min(q, s))
        case Binary("max", a, b):
            (p, q), (r, s) = bounds(a, ranges), bounds(b, ranges)
            return (max(p, r), max(q, s))
        case Select(_, a, b):
            (p, q), (r, s) = bounds(a, ranges), bounds(b, ranges)
            return (min(p, r), max(q, s))
        case Cast(_, value) if value.dtype == "bool":
            return (0, 1)
        case Cast(_, Load() as load) if load.dtype.startswith("uint") and load.dtype != "uint64":
            return (0, (1 << 8 * ITEM_BYTES[load.dtype]) - 1)
        case Cast(_, Binary("min", Binary("max", value, Const(low, _)), Const(high, _))) if not value.buffers:
            return (min(int(low), int(high)), int(high))  # a coordinate that is limited, and truncated
    return UNKNOWN


def linear_bounds(form: Linear, ranges: Ranges) -> Interval:
    """Bounds of a linear form; atoms are independent of each other, but for what sizes say of them."""
    terms, const = form
    for atom in terms:
        if atom.symbolic or any(is_size(_end(name, ranges)) for name in atom.variables):
            return -_most(({a: -c for a, c in terms.items()}, -const), ranges), _most(form, ranges)
    return _independent(form, ranges)


def _independent(form: Linear, ranges: Ranges) -> Interval:
    """Bounds of a linear form whose atoms are independent of each other."""
    terms, const = form
    low: float = const
    high: float = const
    for atom, c in terms.items():
        p, q = bounds(atom, ranges)
        low += c * (p if c > 0 else q)
        high += c * (q if c > 0 else p)
    return _unless_wrapped((low, high), any(atom.buffers for atom in terms))


def _divided_by_size(e: Binary, ranges: Ranges) -> Interval:
    """Bounds of ``a // b`` and ``a % b`` for a symbolic ``b``."""
    extent = _counted(e, ranges)
    if extent is not None:
        return (0, greatest(extent) - 1)
    (low, high), (p, q) = bounds(e.a, ranges), bounds(e.b, ranges)
    if p <= 0:
        return UNKNOWN
    if e.op == "%":
        return (0, q - 1)
    return (low // q, high // p) if low >= 0 and math.isfinite(high) else UNKNOWN


def _end(name: str, ranges: Ranges) -> Any:
    """The extent that a variable stays below, also in a loop over loaded positions; None where it is unknown."""
    extent = ranges.get(name)
    return extent.most if is_loaded(extent) else extent


def symbolic_extent(e: Expr, ranges: Ranges) -> SymbolicSize | None:
    """The size to which an expression counts from zero: a loop's variable, or digits of one; None for any other."""
    extent = _counted(e, ranges)
    return extent if is_size(extent) else None


def _counted(e: Expr, ranges: Ranges) -> Any:
    """See :func:`symbolic_extent`; a number where a quotient counts to one."""
    match e:
        case Var(name):
            return _end(name, ranges)
        case Binary("//", Var(name), Const(c, _)) if c > 0 and is_size(end := _end(name, ranges)):
            return (end - 1) // int(c) + 1
        case Binary("%", _, SymbolicSize() as divisor) if divisor.low > 0:
            return divisor
        case Binary("//", Var(name), SymbolicSize() as divisor) if name in ranges:
            whole = divided(to_linear(wrap(_end(name, ranges))), divisor)
            return size_part(whole) if whole is not None else None
    return None


def _most(form: Linear, ranges: Ranges) -> float:
    """An upper bound of a form with sizes: what counts from zero is put at the end that its slope says.

    A minimum or maximum is either of its operands: that which bounds it better, or where it is subtracted, worse.
    """
    for atom, c in form[0].items():
        if isinstance(atom, Binary) and atom.op in ("min", "max"):
            rest: Linear = ({other: k for other, k in form[0].items() if other is not atom}, form[1])
            either = [_most(plus(rest, multiply(to_linear(x), ({}, c))), ranges) for x in (atom.a, atom.b)]
            return min(either) if (atom.op == "min") == (c > 0) else max(either)
    for _ in range(_COUNTERS):
        found = _counter(form, ranges)
        if found is None:
            break
        counter, last = found
        slope, rest = _apart(form, counter)
        low, high = linear_bounds(slope, ranges)
        if low >= 0:
            form = plus(rest, multiply(slope, to_linear(last)))
        elif high <= 0:
            form = rest
        else:
            return _independent(form, ranges)[1]
    terms, const = form
    sizes = {atom: c for atom, c in terms.items() if is_size(atom)}
    others = {atom: c for atom, c in terms.items() if atom not in sizes}
    return greatest(total_of(sizes, const)) + _independent((others, 0), ranges)[1]


def _counter(form: Linear, ranges: Ranges) -> tuple[Expr, Expr] | None:
    """Counter in a linear form: a factor that counts to a size or is multiplied by one, and its last value; or None."""
    for atom in form[0]:
        parts = factors(atom)
        for part in parts:
            extent = symbolic_extent(part, ranges)
            if extent is not None:
                return part, wrap(extent - 1)
            if len(parts) > 1 and isinstance(part, Var) and part.name in ranges:
                return part, wrap(_end(part.name, ranges) - 1)
    return None


def _apart(form: Linear, factor: Expr) -> tuple[Linear, Linear]:
    """A form as (slope, rest): ``slope * factor + rest``."""
    slope: Linear = ({}, 0)
    rest: dict[Expr, int] = {}
    for atom, c in form[0].items():
        parts = list(factors(atom))
        if factor in parts:
            parts.remove(factor)
            slope = plus(slope, ({monomial(tuple(parts)): c}, 0) if parts else ({}, c))
        else:
            rest[atom] = c
    return slope, (rest, form[1])


def plus(x: Linear, y: Linear) -> Linear:
    """Sum of two linear forms; atoms that cancel are left out."""
    terms = dict(x[0])
    for atom, c in y[0].items():
        terms[atom] = terms.get(atom, 0) + c
    return {atom: c for atom, c in terms.items() if c}, x[1] + y[1]


def counts(e: Expr, ranges: Ranges) -> bool:
    """Whether ``e`` certainly has the value of its linear form: a sum or product of loaded numbers may wrap instead.

    Sums that wrap are still equal where their forms are, but not in order: ``d[i] < d[i] + 1`` fails at the largest.
    """
    if not e.buffers or not (isinstance(e, Binary) and e.op in ("+", "-", "*")):
        return True
    return all(map(math.isfinite, bounds(e, ranges)))


def _unless_wrapped(interval: Interval, loaded: bool) -> Interval:
    """The interval, if it is not one of loaded numbers that may be too large: int64 wraps around then."""
    low, high = interval
    return UNKNOWN if loaded and not (low >= -_TOP and high < _TOP) else interval


def _product(x: Interval, y: Interval) -> Interval:
    if not all(map(math.isfinite, (*x, *y))):
        return (0, math.inf) if x[0] >= 0 and y[0] >= 0 else UNKNOWN
    corners = [p * q for p in x for q in y]
    return (min(corners), max(corners))


def prove(cond: Expr, ranges: Ranges, given: Sequence[Expr] = ()) -> bool:
    """Whether ``cond`` certainly holds for all values in ``ranges`` under which every condition of ``given`` holds."""
    return _prove(cond, ranges, facts_of(given, ranges))


def facts_of(given: Iterable[Expr], ranges: Ranges) -> list[Linear]:
    """The linear forms that are known to be >= 0 where every condition of ``given`` holds."""
    facts = [fact for g in given for c in conjuncts(g) for fact in _at_least_zero(c, ranges) or []]
    return facts + [wider for fact in facts for wider in _undivided(fact, ranges)]


def _undivided(fact: Linear, ranges: Ranges) -> list[Linear]:
    """``x // a <= k`` also says ``x <= a * k + a - 1``, and ``x // a % b <= k`` the same of ``x % (a * b)``."""
    if len(fact[0]) != 1:
        return []
    ((atom, c),) = fact[0].items()
    if c >= 0 or not isinstance(atom, Binary) or not isinstance(atom.b, Const):
        return []
    most = fact[1] // -c
    if atom.op == "//":
        a = int(atom.b.value)
        return [] if not counts(atom.a, ranges) else [_add_scaled(to_linear(atom.a), -1, a * most + a - 1)]
    inner = atom.a
    if atom.op == "%" and isinstance(inner, Binary) and inner.op == "//" and isinstance(inner.b, Const):
        a, b = int(inner.b.value), int(atom.b.value)
        return [({Binary("%", inner.a, Const(a * b, INDEX)): -1}, a * most + a - 1)]
    return []


def _add_scaled(form: Linear, factor: int, const: int) -> Linear:
    return {atom: factor * c for atom, c in form[0].items()}, factor * form[1] + const


def _prove(cond: Expr, ranges: Ranges, facts: list[Linear]) -> bool:
    match cond:
        case Const(value, "bool"):
            return bool(value)
        case Binary("and", a, b):
            return _prove(a, ranges, facts) and _prove(b, ranges, facts)
        case Binary("or", a, b):
            return _prove(a, ranges, facts) or _prove(b, ranges, facts)
        case Binary("!=", a, b) if a.dtype == INDEX:
            terms, const = to_linear(Binary("-", a, b))
            low, high = linear_bounds((terms, const), ranges)
            return low > 0 or high < 0
    goals = _at_least_zero(cond, ranges)
    return goals is not None and all(_holds(goal, ranges, facts) for goal in goals)


def _at_least_zero(cond: Expr, ranges: Ranges) -> list[Linear] | None:
    """A comparison of integers as linear forms that are all >= 0 exactly when it holds; None for other conditions."""
    if isinstance(cond, Not):
        opposite = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
        inner = cond.a
        if isinstance(inner, Binary) and inner.op in opposite:
            return _at_least_zero(Binary(opposite[inner.op], inner.a, inner.b), ranges)
        return None
    if not isinstance(cond, Binary) or cond.a.dtype != INDEX:
        return None
    if cond.buffers and not (counts(cond.a, ranges) and counts(cond.b, ranges)):
        return None
    match cond.op:
        case "<=":
            return [_difference(cond.b, cond.a, 0)]
        case "<":
            return [_difference(cond.b, cond.a, 1)]
        case ">=":
            return [_difference(cond.a, cond.b, 0)]
        case ">":
            return [_difference(cond.a, cond.b, 1)]
        case "==":
            return [_difference(cond.b, cond.a, 0), _difference(cond.a, cond.b, 0)]
    return None


def _difference(a: Expr, b: Expr, slack: int) -> Linear:
    """``a - b - slack``."""
    terms, const = to_linear(a)
    less, other = to_linear(b)
    if less:
        terms = dict(terms)
        for atom, c in less.items():
            terms[atom] = terms.get(atom, 0) - c
        terms = {atom: c for atom, c in terms.items() if c}
    return terms, const - other - slack


def _holds(goal: Linear, ranges: Ranges, facts: list[Linear]) -> bool:
    """goal >= 0, directly or by subtracting multiples of facts, chosen so that a term cancels (Farkas' lemma).

    Over the integers ``goal >= 0`` is ``k * goal + k - 1 >= 0``: so a coefficient of the goal can meet a larger one.
    """
    if linear_bounds(goal, ranges)[0] >= 0:
        return True
    for position, (terms, const) in enumerate(facts):
        for scale, multiple in sorted(_cancelling(goal[0], terms)):
            rest = {atom: scale * c for atom, c in goal[0].items()}
            for atom, c in terms.items():
                rest[atom] = rest.get(atom, 0) - multiple * c
            constant = scale * goal[1] + scale - 1 - multiple * const
            if _holds(({atom: c for atom, c in rest.items() if c}, constant), ranges, facts[position + 1 :]):
                return True
    return False


def _cancelling(goal: Mapping[Expr, int], fact: Mapping[Expr, int]) -> set[tuple[int, int]]:
    """(scale of the goal, multiple of the fact), both positive, for which some term of the two cancels."""
    pairs = set()
    for atom, c in fact.items():
        g = goal.get(atom, 0)
        if g * c > 0:
            common = math.gcd(g, c)
            pairs.add((abs(c) // common, abs(g) // common))
    return pairs
