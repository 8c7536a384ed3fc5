"""Simplification of index expressions over known ranges: linear forms, floor division and remainder, dead branches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import add, mul, sub

from burnish.loops.bounds import Ranges, bounds, linear_bounds, prove
from burnish.loops.expr import (
    COMPARISONS,
    FLOATS,
    INDEX,
    LOGICAL,
    Binary,
    Cast,
    Const,
    Expr,
    Literal,
    Not,
    Select,
    Var,
    wrap,
)
from burnish.loops.linear import Linear, divided, from_linear, multiply, to_linear
from burnish.loops.program import NOTHING, For, If, Stmt, Store, map_exprs, rebuild_stmt, substitute_stmt
from burnish.loops.sizes import SymbolicSize, is_size
from burnish.loops.traverse import rebuild

__all__ = ["Ranges", "bounds", "from_linear", "linear", "prove", "simplify", "simplify_stmt"]

_NO_RANGES: Ranges = {}
_FOLDED: Mapping[str, Callable[[float, float], float]] = {"+": add, "-": sub, "*": mul}


def linear(e: Expr, ranges: Ranges = _NO_RANGES) -> Linear:
    """``e`` as (atom -> coefficient, constant), simplified first."""
    return to_linear(simplify(e, ranges))


def simplify(e: Expr, ranges: Ranges = _NO_RANGES) -> Expr:
    """An equal expression in canonical form: sums of ``coefficient * atom``, divisions resolved where ranges allow."""
    if isinstance(e, Var):
        return Const(0, INDEX) if ranges.get(e.name) == 1 else e
    if not e.children:
        return e
    return _simplified(e, tuple([ranges.get(name) for name in e.variables]))


@lru_cache(maxsize=1 << 15)
def _simplified(e: Expr, extents: tuple[int | None, ...]) -> Expr:
    """``e`` simplified where its variables, in the order of ``e.variables``, have these extents, if known."""
    ranges = {name: n for name, n in zip(e.variables, extents, strict=True) if n is not None}
    match e:
        case Binary(op, a, b) if op in ("and", "or"):
            return _logical(op, simplify(a, ranges), simplify(b, ranges), ranges)
        case Binary(op, a, b) if op in COMPARISONS and a.dtype == INDEX and not e.buffers:
            return _compare(op, simplify(a, ranges), simplify(b, ranges), ranges)
        case Binary(op, _, _) if e.dtype == INDEX and op not in LOGICAL and not e.buffers:
            return _index(e, ranges)
        case Not(a):
            inner = simplify(a, ranges)
            return Const(not inner.value, "bool") if isinstance(inner, Const) else Not(inner)
        case Select(cond, a, b):
            return _select(simplify(cond, ranges), a, b, ranges)
    e = rebuild(e, lambda child: simplify(child, ranges))
    if isinstance(e, Binary) and e.op not in COMPARISONS:
        return _float_identities(e) if e.dtype in FLOATS else _integer_identities(e)
    if isinstance(e, Cast) and isinstance(e.value, Const) and e.type in FLOATS and e.value.type != "bool":
        return Const(float(e.value.value), e.type)
    return e


def _float_identities(e: Binary) -> Expr:
    """``x * 1``, ``x / 1``, ``x - 0``, which are exact in floating point, and products with the zero of a matrix.

    ``0 * x`` is NaN where ``x`` is infinite, and ``-0 + 0`` is ``0``: only a :class:`Literal` is no term.
    """
    a, b = e.a, e.b
    if isinstance(a, Const) and isinstance(b, Const) and e.op in ("+", "-", "*"):
        x, y = float(a.value), float(b.value)
        kind = Literal if isinstance(a, Literal) and isinstance(b, Literal) else Const
        return kind(_FOLDED[e.op](x, y), e.dtype) if math.isfinite(x) and math.isfinite(y) else e
    if isinstance(b, Const) and not isinstance(a, Const) and e.op in ("*", "+"):
        a, b = b, a
    if isinstance(a, Const) and e.op == "*" and a.value == 1:
        return b
    if isinstance(a, Literal) and a.value == 0 and e.op in ("*", "+"):
        return a if e.op == "*" else b
    if isinstance(b, Const) and b.value == (0 if e.op == "-" else 1 if e.op == "/" else None):
        return a if e.op == "/" or math.copysign(1.0, b.value) > 0 else e
    return e


def _integer_identities(e: Binary) -> Expr:
    """Identities of integers of any width, which wrap: sums with 0, products with 0 and 1."""
    a, b = (e.b, e.a) if isinstance(e.a, Const) and e.op in ("+", "*") else (e.a, e.b)
    if isinstance(b, Const) and e.dtype != "bool":
        if (e.op in ("+", "-") and b.value == 0) or (e.op in ("*", "//") and b.value == 1):
            return a
        if e.op == "*" and b.value == 0:
            return b
    return e


def _index(e: Binary, ranges: Ranges) -> Expr:
    if e.op in ("+", "-", "*"):
        terms: dict[Expr, int] = {}
        const = _gather(e, 1, terms, ranges)
        return _from(({atom: c for atom, c in terms.items() if c}, const), ranges)
    a, b = simplify(e.a, ranges), simplify(e.b, ranges)
    match e.op:
        case "//" | "%":
            if isinstance(b, Const) and b.value > 0:
                return _divide(e.op, a, int(b.value), ranges)
            if is_size(b):
                return _divide_by_size(e.op, a, b, ranges)
        case "min" | "max":
            low, high = linear_bounds(_add(to_linear(a), to_linear(b), -1), ranges)
            if high <= 0 or low >= 0:
                return a if (high <= 0) == (e.op == "min") else b
    return Binary(e.op, a, b)


def _gather(e: Expr, factor: int, terms: dict[Expr, int], ranges: Ranges) -> int:
    """Adds the terms of ``factor * e``, simplified, to ``terms``; returns its constant."""
    match e:
        case Binary("+" | "-" as op, a, b) if e.dtype == INDEX:
            const = _gather(a, factor, terms, ranges)
            return const + _gather(b, factor if op == "+" else -factor, terms, ranges)
        case Binary("*", a, b) if e.dtype == INDEX:
            if not isinstance(a, Const):
                a, b = b, a
            if isinstance(a, Const):
                return _gather(b, factor * int(a.value), terms, ranges)
            a, b = simplify(a, ranges), simplify(b, ranges)
            if isinstance(a, Const) or isinstance(b, Const):
                return _gather(Binary("*", a, b), factor, terms, ranges)
            symbolic = a.symbolic or b.symbolic
            own: Linear = multiply(to_linear(a), to_linear(b)) if symbolic else ({Binary("*", b, a): 1}, 0)
        case _:
            own = to_linear(simplify(e, ranges))
    for atom, c in own[0].items():
        terms[atom] = terms.get(atom, 0) + factor * c
    return factor * own[1]


def _add(x: Linear, y: Linear, sign: int) -> Linear:
    terms = dict(x[0])
    for atom, c in y[0].items():
        total = terms.get(atom, 0) + sign * c
        if total:
            terms[atom] = total
        else:
            terms.pop(atom, None)
    return terms, x[1] + sign * y[1]


def _scale(x: Linear, factor: int) -> Linear:
    return ({atom: c * factor for atom, c in x[0].items()}, x[1] * factor) if factor else ({}, 0)


def _from(form: Linear, ranges: Ranges) -> Expr:
    """Rejoins digits of a mixed radix, ``(x // c) * c + x % c`` and its kin, then builds the expression."""
    terms, const = form
    for atom, c in terms.items():
        if isinstance(atom, Binary) and atom.op == "%" and isinstance(atom.b, (Const, SymbolicSize)):
            join = _join if isinstance(atom.b, Const) else _join_by_size
            joined = join(atom, c, terms, ranges)
            if joined is not None:
                higher, whole = joined
                rest = {k: v for k, v in terms.items() if k not in (atom, higher)}
                return _from(_add((rest, const), _scale(to_linear(whole), c), 1), ranges)
    return from_linear(terms, const)


def _join(low: Binary, c: int, terms: Mapping[Expr, int], ranges: Ranges) -> tuple[Expr, Expr] | None:
    """For ``c * (x % a)`` a partner term: ``c * a * (x // a)``, giving ``x``, or ``c * a * (x // a % b)``."""
    assert isinstance(low.b, Const)
    a = int(low.b.value)
    quotient = _divide("//", low.a, a, ranges)
    if terms.get(quotient) == c * a:
        return quotient, low.a
    for atom, k in terms.items():
        if k == c * a and isinstance(atom, Binary) and atom.op == "%" and atom.a == quotient:
            modulus = Const(a * int(atom.b.value)) if isinstance(atom.b, Const) else a * atom.b
            return atom, Binary("%", low.a, modulus)
    return None


def _join_by_size(low: Binary, c: int, terms: Mapping[Expr, int], ranges: Ranges) -> tuple[Expr, Expr] | None:
    """For ``c * (x % n)`` the partner ``c * (n * (x // n))``, giving ``x``."""
    higher = multiply(({Binary("//", low.a, low.b): 1}, 0), to_linear(low.b))[0]
    if len(higher) != 1:
        return None
    ((atom, k),) = higher.items()
    return (atom, low.a) if terms.get(atom) == c * k else None


def _divide(op: str, a: Expr, c: int, ranges: Ranges) -> Expr:
    """``a // c`` or ``a % c`` for constant ``c`` > 0: splits off the part divisible by ``c``."""
    if c == 1:
        return a if op == "//" else Const(0, INDEX)
    if is_size(a):
        return wrap(a // c if op == "//" else a % c)
    terms, const = to_linear(a)
    whole = {atom: k // c for atom, k in terms.items() if k % c == 0}
    rest = {atom: k for atom, k in terms.items() if k % c}
    low, high = linear_bounds((rest, const), ranges)
    if math.isfinite(low) and low // c == high // c:
        quotient = int(low // c)
        if op == "//":
            return from_linear(whole, quotient)
        return _from((rest, const - quotient * c), ranges)
    shift, const = (const // c, const % c)
    g = math.gcd(c, const, *rest.values())
    if g > 1:  # (g x) // (g d) = x // d;  (g x) % (g d) = g (x % d)
        inner = from_linear({atom: k // g for atom, k in rest.items()}, const // g)
        reduced = _divide(op, inner, c // g, ranges)
        if op == "%":
            return _from(_scale(to_linear(reduced), g), ranges)
        return _from(_add((whole, shift), to_linear(reduced), 1), ranges)
    common = _common_block(op, rest, const, c, ranges)
    if common is not None:
        return _from(_add((whole, shift), to_linear(common), 1), ranges) if op == "//" else common
    body = from_linear(rest, const)
    if op == "//":
        if isinstance(body, Binary) and body.op == "//" and isinstance(body.b, Const):
            return _from(
                _add((whole, shift), to_linear(_divide("//", body.a, int(body.b.value) * c, ranges)), 1), ranges
            )
        last: Linear = to_linear(wrap(body // c)) if is_size(body) else ({Binary("//", body, Const(c, INDEX)): 1}, 0)
        return _from(_add((whole, shift), last, 1), ranges)
    if is_size(body):
        return wrap(body % c)
    if isinstance(body, Binary) and body.op == "%" and isinstance(body.b, Const) and int(body.b.value) % c == 0:
        return _divide("%", body.a, c, ranges)
    return Binary("%", body, Const(c, INDEX))


def _divide_by_size(op: str, a: Expr, n: SymbolicSize, ranges: Ranges) -> Expr:
    """``a // n`` or ``a % n`` for a size ``n`` > 0: splits off the part divisible by it."""
    if n.low <= 0:
        return Binary(op, a, n)
    terms, const = to_linear(a)
    whole: Linear = ({}, 0)
    rest: dict[Expr, int] = {}
    for atom, c in terms.items():
        part = divided(({atom: c}, 0), n)
        if part is None:
            rest[atom] = c
        else:
            whole = _add(whole, part, 1)
    low, _ = linear_bounds((rest, const), ranges)
    _, high = linear_bounds(_add((rest, const), to_linear(n), -1), ranges)
    body = from_linear(rest, const)
    if low >= 0 and high < 0:
        return from_linear(*whole) if op == "//" else body
    return Binary("%", body, n) if op == "%" else _from(_add(whole, ({Binary("//", body, n): 1}, 0), 1), ranges)


def _common_block(op: str, rest: Mapping[Expr, int], const: int, c: int, ranges: Ranges) -> Expr | None:
    """Where ``0 <= r < g``: ``(g x + r) // (g d)`` is ``x // d``, and ``(g x + r) % (g d)`` is ``g (x % d) + r``."""
    for g in sorted({math.gcd(k, c) for k in rest.values()}, reverse=True):
        if g <= 1:
            return None
        small = {atom: k for atom, k in rest.items() if k % g}
        low, high = linear_bounds((small, const % g), ranges)
        if low >= 0 and high < g:
            big = from_linear({atom: k // g for atom, k in rest.items() if k % g == 0}, const // g)
            inner = _divide(op, big, c // g, ranges)
            return inner if op == "//" else _from(_add((small, const % g), _scale(to_linear(inner), g), 1), ranges)
    return None


def _compare(op: str, a: Expr, b: Expr, ranges: Ranges) -> Expr:
    low, high = linear_bounds(_add(to_linear(a), to_linear(b), -1), ranges)
    decided = {
        "<": (high < 0, low >= 0), "<=": (high <= 0, low > 0), ">": (low > 0, high <= 0), ">=": (low >= 0, high < 0),
        "==": (low == high == 0, low > 0 or high < 0), "!=": (low > 0 or high < 0, low == high == 0),
    }[op]  # fmt: skip
    if decided[0] or decided[1]:
        return Const(decided[0], "bool")
    terms, const = _add(to_linear(a), to_linear(b), -1)
    if op in ("<", ">="):
        terms, const = _whole_blocks(*_multiplied(terms, const), ranges)
    return Binary(op, from_linear(terms, 0), Const(-const, INDEX))


def _multiplied(terms: Mapping[Expr, int], const: int) -> Linear:
    """``x // c < k`` is ``x < c k``, likewise for ``>=``."""
    if len(terms) == 1:
        ((atom, sign),) = terms.items()
        if sign == 1 and isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const):
            inner, shift = to_linear(atom.a)
            return _multiplied(inner, shift + const * int(atom.b.value))
    return terms, const


def _whole_blocks(terms: Mapping[Expr, int], const: int, ranges: Ranges) -> Linear:
    """``g x + r < g k`` is ``x < k`` when ``0 <= r < g``, likewise for ``>=``: the position in a block drops out."""
    for g in sorted({abs(c) for c in terms.values()}, reverse=True):
        if g > 1 and const % g == 0:
            small = {atom: c for atom, c in terms.items() if c % g}
            low, high = linear_bounds((small, 0), ranges)
            if low >= 0 and high < g:
                return {atom: c // g for atom, c in terms.items() if c % g == 0}, const // g
    return terms, const


def _logical(op: str, a: Expr, b: Expr, ranges: Ranges) -> Expr:
    neutral = op == "and"
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const):
            return y if bool(x.value) == neutral else x
    if a == b:
        return a
    if op == "and" and prove(b, ranges, (a,)):
        return a
    if op == "and" and prove(a, ranges, (b,)):
        return b
    return Binary(op, a, b)


def _select(cond: Expr, a: Expr, b: Expr, ranges: Ranges) -> Expr:
    if isinstance(cond, Const):
        return simplify(a if cond.value else b, ranges)
    a, b = simplify(a, ranges), simplify(b, ranges)
    return a if a == b else Select(cond, a, b)


def simplify_stmt(s: Stmt, ranges: Ranges = _NO_RANGES) -> Stmt:
    """Simplifies every expression, drops dead conditions, empty loops and sums of no terms, and unwraps serial loops of
    one iteration.
    """
    match s:
        case For(var, extent, kind, body):
            if extent == 0:
                return NOTHING
            if extent == 1 and kind in ("serial", "unroll", "parallel"):
                return simplify_stmt(substitute_stmt(body, {var: Const(0, INDEX)}), ranges)
            inside = {**ranges, var: extent}
            loop = rebuild_stmt(s, lambda x: simplify_stmt(x, inside))
            return NOTHING if isinstance(loop, For) and loop.body == NOTHING else loop
        case If(cond, body):
            cond = simplify(cond, ranges)
            if isinstance(cond, Const):
                return simplify_stmt(body, ranges) if cond.value else NOTHING
            inner = simplify_stmt(body, ranges)
            return NOTHING if inner == NOTHING else If(cond, inner)
    if s.parts:
        return rebuild_stmt(s, lambda x: simplify_stmt(x, ranges))
    simple = map_exprs(s, lambda e: simplify(e, ranges))
    nothing = isinstance(simple, Store) and simple.reduce == "sum" and isinstance(simple.value, Literal)
    return NOTHING if nothing and not simple.value.value else simple  # type: ignore[attr-defined]
