"""Which elements of a buffer a statement touches, as intervals that depend on the loops around the statement."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

from burnish.loops.bounds import Ranges, bounds, facts_of, linear_bounds, prove, symbolic_extent
from burnish.loops.expr import INDEX, Binary, Buffer, Const, Expr, Load, Not, Select, all_of, wrap
from burnish.loops.hashcons import immutable, union
from burnish.loops.linear import Linear, from_linear, to_linear
from burnish.loops.loaded import is_loaded
from burnish.loops.program import HINTS, For, If, Intrinsic, Stmt, Store
from burnish.loops.simplify import simplify
from burnish.loops.sizes import at_least, is_size
from burnish.loops.traverse import free_vars, walk


@immutable()
class BufferAccess:
    """One load, store, reduce, output or operand of ``buffer``, with the loops around it and the conditions there."""

    kind: str
    buffer: Buffer
    indices: tuple[Expr, ...]
    ranges: Ranges
    given: tuple[Expr, ...]
    reduce: str | None = None

    @property
    def writes(self) -> bool:
        """Whether the buffer is changed."""
        return self.kind in ("store", "reduce", "output")


def accesses(s: Stmt, ranges: Ranges, given: tuple[Expr, ...] = (), of: str = "") -> list[BufferAccess]:
    """Every access in ``s``, in program order, index loads included; ``ranges`` and ``given`` hold around ``s``.

    ``of``: the name of the only buffer of interest.
    """
    found: list[BufferAccess] = []
    _find(s, ranges, given, of, found)
    return found


def _find(s: Stmt, ranges: Ranges, given: tuple[Expr, ...], of: str, found: list[BufferAccess]) -> None:
    if of and of not in s.reads and of not in s.writes:
        return
    match s:
        case For(var, extent, _, body):
            if is_loaded(extent):
                for end in (extent.begin, extent.end):
                    _find_loads(end, ranges, given, of, found, {})
            _find(body, {**ranges, var: extent}, given, of, found)
        case Store(buffer, indices, value, reduce):
            met: Met = {}
            for e in (*indices, value):
                _find_loads(e, ranges, given, of, found, met)
            if not of or of == buffer.name:
                found.append(BufferAccess("reduce" if reduce else "store", buffer, indices, ranges, given, reduce))
        case If(cond, body):
            _find_loads(cond, ranges, given, of, found, {})
            _find(body, ranges, (*given, cond), of, found)
        case Intrinsic(name, operands, _):
            for position, operand in enumerate(operands if name not in HINTS else ()):
                for index in operand.indices:
                    _find_loads(index, ranges, given, of, found, {})
                if not of or of == operand.buffer.name:
                    kind = "operand" if position else "output"
                    found.append(BufferAccess(kind, operand.buffer, operand.indices, ranges, given))
        case _:
            for inner in s.parts:
                _find(inner, ranges, given, of, found)


Met = dict[Expr, list[tuple[Expr, ...]]]
"""The conditions under which expressions were searched for loads."""


def _find_loads(e: Expr, ranges: Ranges, given: tuple[Expr, ...], of: str, found: list[BufferAccess], met: Met) -> None:
    """Adds the loads in ``e``; an expression that was met under a part of the conditions reads nothing more now."""
    if not e.buffers or (of and of not in e.buffers):
        return
    earlier = met.setdefault(e, [])
    if any(given[: len(other)] == other or set(other) <= set(given) for other in earlier):
        return
    earlier.append(given)
    parts = [(child, given) for child in e.children]
    match e:
        case Select(cond, a, b):
            parts = [(cond, given), (a, (*given, cond)), (b, (*given, Not(cond)))]
        case Binary("and", a, b):
            parts = [(a, given), (b, (*given, a))]
        case Binary("or", a, b):
            parts = [(a, given), (b, (*given, Not(a)))]
        case Load(buffer, indices) if not of or of == buffer.name:
            found.append(BufferAccess("load", buffer, indices, ranges, given))
    for part, conditions in parts:
        _find_loads(part, ranges, conditions, of, found, met)


def within(index: Expr, size: int, ranges: Ranges, given: tuple[Expr, ...]) -> bool:
    """Whether ``0 <= index < size`` certainly holds where the conditions ``given`` do."""
    return _within(index, size, ranges_of((index, *given), ranges), given)


@lru_cache(maxsize=1 << 12)
def _within(index: Expr, size: int, known: tuple[tuple[str, int], ...], given: tuple[Expr, ...]) -> bool:
    """See :func:`within`; ``known``: the extents of variables in the index and the conditions."""
    ranges = dict(known)
    if prove(all_of(index >= 0, index < size), ranges, given):
        return True
    index, given = simplify(index, ranges), tuple(simplify(g, ranges) for g in given)
    given = (*given, *_multiplied_out(given, ranges))
    given = (*given, *_digits_of_remainders(index, ranges, given))
    if prove(all_of(index >= 0, index < size), ranges, (*given, *_quotient_bounds(index, ranges, given))):
        return True
    terms, const = to_linear(index)
    for atom, k in terms.items():
        if k == 1 and isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const):
            # e // c + rest = (e + c * rest) // c, about which the conditions may say more
            c = int(atom.b.value)
            rest = from_linear({other: n * c for other, n in terms.items() if other != atom}, const * c)
            if within(simplify(atom.a + rest, ranges), size * c, ranges, given):
                return True
    return False


def _digits_of_remainders(index: Expr, ranges: Ranges, given: tuple[Expr, ...]) -> list[Expr]:
    """Bounds of digits in ``index`` from those of a remainder: of ``x % (a * b) <= k``, ``x // a % b <= k // a``."""
    derived: list[Expr] = []
    for e in walk(index):
        match e:
            case Binary("%", Binary("//", x, Const(a, _)), Const(b, _)) if a > 0 and b > 0:
                whole = Binary("%", x, Const(int(a) * int(b), INDEX))
                low, high = _bounds_given(({whole: 1}, 0), ranges, given)
                derived += [e >= int(low) // int(a), e <= int(high) // int(a)]
    return derived


def _quotient_bounds(index: Expr, ranges: Ranges, given: tuple[Expr, ...]) -> list[Expr]:
    """Bounds of each ``e // c`` in ``index``, and of each difference of two of them, from the conditions."""
    quotients = [e for e in to_linear(index)[0] if isinstance(e, Binary) and e.op == "//" and isinstance(e.b, Const)]
    derived: list[Expr] = []
    for q in quotients:
        low, high = _bounds_given(to_linear(q.a), ranges, given)
        derived += [q >= low // int(q.b.value)] if math.isfinite(low) else []  # type: ignore[attr-defined]
        derived += [q <= high // int(q.b.value)] if math.isfinite(high) else []  # type: ignore[attr-defined]
    for p in quotients:
        for q in quotients:
            if p is not q:
                c, d = int(p.b.value), int(q.b.value)  # type: ignore[attr-defined]
                both = math.lcm(c, d)
                _, high = bounds(simplify(p.a * (both // c) - q.a * (both // d), ranges), ranges)
                derived += [p - q <= (int(high) + both - 1) // both] if math.isfinite(high) else []
    return derived


def _bounds_given(form: Linear, ranges: Ranges, given: Iterable[Expr]) -> tuple[float, float]:
    """Bounds of a linear form, narrowed by each condition that involves its terms."""
    low, high = linear_bounds(form, ranges)
    for fact in facts_of(given, ranges):
        low = max(low, linear_bounds(_sum(form, fact, -1), ranges)[0])
        high = min(high, linear_bounds(_sum(form, fact, 1), ranges)[1])
    return low, high


def _multiplied_out(given: tuple[Expr, ...], ranges: Ranges) -> list[Expr]:
    """Conditions multiplied out, without quotients: ``rest >= e // c`` is ``c * rest + c - 1 >= e``.

    Of ``rest >= k * (e // c)`` only what the greatest value of ``rest`` allows.
    """
    derived: list[Expr] = []
    for terms, const in facts_of(given, ranges):
        for atom, k in terms.items():
            if not (isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const)):
                continue
            c = int(atom.b.value)
            others = {other: n for other, n in terms.items() if other != atom}
            if abs(k) == 1:
                rest = from_linear({other: n * c for other, n in others.items()}, const * c)
                whole = rest + atom.a if k == 1 else rest - atom.a + (c - 1)
                derived.append(simplify(whole, ranges) >= 0)
            elif k < 0:
                _, high = linear_bounds((others, const), ranges)
                derived += [atom.a <= c * (int(high) // -k) + c - 1] if math.isfinite(high) else []
    return derived


@dataclass(frozen=True, slots=True)
class Span:
    """The integers from ``low`` to ``low + extent - 1``; ``low`` is an expression of outer variables."""

    low: Expr
    extent: int


def region(accessed: Iterable[BufferAccess], outer: Collection[str]) -> list[Span | None]:
    """The smallest known box that covers all ``accessed`` elements of one buffer for fixed ``outer`` variables.

    One span a dimension; None where it cannot be bounded by a constant extent.
    """
    box: list[Span | None] | None = None
    for access in accessed:
        spans = [span(index, outer, access.ranges, access.given) for index in access.indices]
        box = spans if box is None else [_hull(p, q, access.ranges) for p, q in zip(box, spans, strict=True)]
    return box if box is not None else []


def span(e: Expr, outer: Collection[str], ranges: Ranges, given: Iterable[Expr] = ()) -> Span | None:
    """The values of ``e`` for fixed ``outer`` variables, while those of its other variables run over ``ranges``."""
    inner = tuple([g for g in given if g.variables.isdisjoint(outer)])
    return _span(e, tuple([name for name in e.variables if name in outer]), ranges_of((e, *inner), ranges), inner)


@lru_cache(maxsize=1 << 12)
def _span(e: Expr, outer: tuple[str, ...], known: tuple[tuple[str, int], ...], inner: tuple[Expr, ...]) -> Span | None:
    """See :func:`span`; ``inner``: the guards of inner loops, ``known``: the extents of variables in all these."""
    ranges = dict(known)
    wide = keep_single(ranges)
    form = to_linear(simplify(e, wide))
    interval = _interval(form, outer, ranges)
    if interval is None:
        return None
    low, width = interval
    if is_size(width):
        return Span(low, width + 1)
    fixed = {atom: c for atom, c in form[0].items() if _is_fixed(atom, outer)}
    moving: Linear = ({atom: c for atom, c in form[0].items() if atom not in fixed}, form[1])
    at = _constant(low, from_linear(fixed, 0), ranges)
    if at is not None:  # the guards of inner loops narrow what moves
        first, last = _bounds_given(moving, ranges, inner)
        first, last = max(first, at), min(last, at + width)
        low, width = simplify(from_linear(fixed, int(first)), wide), int(max(last - first, 0))
    return Span(low, width + 1)


def ranges_of(expressions: Iterable[Expr], ranges: Ranges) -> tuple[tuple[str, int], ...]:
    """The extents of the variables in expressions, by name: all that what is known of these can depend on."""
    return tuple([(name, ranges[name]) for name in union([e.variables for e in expressions]) if name in ranges])


def keep_single(ranges: Ranges) -> dict[str, int]:
    """Ranges with which :func:`simplify` does not replace the variable of a loop of one iteration by 0."""
    return {name: 2 if extent == 1 else extent for name, extent in ranges.items()}


def _interval(form: Linear, outer: Collection[str], ranges: Ranges) -> tuple[Expr, int] | None:
    """(lowest value, width) of a linear form; the lowest value uses ``outer`` variables only."""
    low: Expr = Const(form[1], INDEX)
    width = 0
    for atom, c in form[0].items():
        part = _atom_interval(atom, outer, ranges)
        if part is None:
            return None
        start, spread = part
        low = low + (start if c > 0 else start + spread) * c
        width += abs(c) * spread
    return simplify(low, keep_single(ranges)), width


def _atom_interval(atom: Expr, outer: Collection[str], ranges: Ranges) -> tuple[Expr, int] | None:
    if _is_fixed(atom, outer):
        return atom, 0
    extent = symbolic_extent(atom, ranges)
    if extent is not None:
        return Const(0, INDEX), extent - 1
    match atom:
        case Binary("//", a, Const(c, _)) if c > 0 and free_vars(a) & set(outer):
            inner = _interval(to_linear(a), outer, ranges)
            return None if inner is None else (inner[0] // int(c), -(-inner[1] // int(c)))
    low, high = bounds(atom, ranges)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    return Const(int(low), INDEX), int(high - low)


def _is_fixed(atom: Expr, outer: Collection[str]) -> bool:
    """Whether an atom can be computed from ``outer`` alone: what is loaded may change, or need conditions."""
    return not atom.buffers and free_vars(atom) <= set(outer)


def _hull(p: Span | None, q: Span | None, ranges: Ranges) -> Span | None:
    if p is None or q is None:
        return None
    if p.low is q.low:
        return p if at_least(p.extent, q.extent) else q if at_least(q.extent, p.extent) else None
    step = _constant(q.low, p.low, ranges)
    if step is None or is_size(p.extent) or is_size(q.extent):
        return None
    first = p if step >= 0 else q
    return Span(first.low, max(p.extent, step + q.extent) - min(0, step))


def _constant(a: Expr, b: Expr, ranges: Ranges) -> int | None:
    """``a - b`` when it is a constant."""
    terms, const = to_linear(simplify(wrap(a - b), ranges))
    return None if terms else const


def _sum(x: Linear, y: Linear, sign: int) -> Linear:
    terms = dict(x[0])
    for atom, c in y[0].items():
        terms[atom] = terms.get(atom, 0) + sign * c
    return {atom: c for atom, c in terms.items() if c}, x[1] + sign * y[1]
