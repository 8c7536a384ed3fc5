"""Domains of definition: the values that a definition's inputs may take so that what is computed from them has a value.

They follow from where an input is used. A position lies within the extent that it selects in or is compared with; the
divisor of integers is at least 1; the argument of a logarithm, a root or a power is positive. What only a reduction of
floating-point numbers, or more than arithmetic, makes of an input says nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from burnish.loops.bounds import UNKNOWN, Interval, bounds
from burnish.loops.expr import (
    COMPARISONS,
    FLOATS,
    INTS,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Reduce,
    Select,
)
from burnish.loops.sizes import greatest, hinted
from burnish.loops.tensor import Tensor, stages
from burnish.loops.traverse import loads

Domains = dict[str, Interval]  # buffer -> inclusive bounds; of other buffers any value will do
ROUNDED = ("floor", "ceil", "round", "trunc", "abs")  # functions that leave a value about where it is
POSITIVE: Mapping[str, Interval] = dict.fromkeys(("log", "sqrt", "rsqrt", "pow"), (0.5, math.inf))  # first arguments
DEEPEST = 200  # expressions in one another that are looked into: deeper ones choose between many tensors
DIVISOR: Interval = (1, math.inf)


def domains(
    outputs: Sequence[Tensor], wanted: Mapping[str, Interval] | None = None, known: Mapping[str, Interval] | None = None
) -> Domains:
    """The domains of the placeholders below ``outputs``, of which those in ``wanted`` shall be within these bounds.

    ``known``: bounds of placeholders that are constant.
    """
    found: Domains = dict(wanted or {})
    for t in reversed(stages(outputs)):
        if t.body is None:
            continue
        extents = {v.name: n for v, n in zip(t.axes, t.shape, strict=True)}
        body, want = t.body, found.pop(t.name, UNKNOWN)
        if isinstance(body, Reduce):
            extents.update((a.var.name, a.extent) for a in body.axes)
            want = _of_terms(body, want)
            body = body.body
        if not _deeper(body, DEEPEST):
            found = _together([found, _Walk(extents, known or {}).domains(body, want)])
    return found


def row_offsets(outputs: Sequence[Tensor]) -> dict[str, int]:
    """The placeholders below ``outputs`` that bound rows of reductions, and the most that their numbers may be."""
    found: dict[str, int] = {}
    for t in stages(outputs):
        axes = t.body.axes if isinstance(t.body, Reduce) else ()
        for axis in axes:
            found.update({x.buffer.name: greatest(axis.extent) for end in axis.ends for x in loads(end)})
    return {t.name: found[t.name] for t in stages(outputs) if t.body is None and t.name in found}


def meet(a: Interval, b: Interval) -> Interval:
    """Intersection of two intervals; where it is empty, the smaller of the two."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else min(a, b, key=lambda each: each[1] - each[0])


def _deeper(e: Expr, most: int) -> bool:
    """Whether an expression nests more than ``most`` deep."""
    level = {e}
    for _ in range(most):
        level = {child for each in level for child in each.children}
        if not level:
            return False
    return True


def _of_terms(reduction: Reduce, want: Interval) -> Interval:
    """Interval of a reduction's terms: of sums of integers their share, of floating-point sums anything."""
    if reduction.kind in ("max", "min"):
        return want
    if reduction.kind == "prod" or reduction.dtype in FLOATS:
        return UNKNOWN
    count = math.prod(greatest(axis.extent) for axis in reduction.axes) or 1
    return _divided(want, count, reduction.dtype)


class _Walk:
    """Down the expressions of one stage; ``extents`` are those of its variables, ``fixed`` bounds of constants."""

    def __init__(self, extents: Mapping[str, int], fixed: Mapping[str, Interval]) -> None:
        self._extents = extents
        self._constants = fixed
        self._known: dict[tuple[Expr, Interval, bool], Domains] = {}

    def domains(self, e: Expr, want: Interval, position: bool = False) -> Domains:
        """The domains of what ``e`` loads so that it lies within ``want``; ``position``: it is an index."""
        if not self._varies(e):
            return {}
        key = (e, want, position)
        if key not in self._known:
            self._known[key] = self._domains(e, want, position)
        return self._known[key]

    def _varies(self, e: Expr) -> bool:
        """Whether an expression loads anything but constants."""
        return not e.buffers <= self._constants.keys()

    def _domains(self, e: Expr, want: Interval, position: bool) -> Domains:
        match e:
            case Load(buffer, indices):
                own = UNKNOWN if buffer.name in self._constants else want
                places = [(i, n) for i, n in zip(indices, buffer.shape, strict=True) if greatest(n)]
                inner = [self.domains(i, (0, hinted(n) - 1), position=True) for i, n in places]
                return _together([{buffer.name: own} if own != UNKNOWN else {}, *inner])
            case Cast(_, value):
                return self.domains(value, want, position)
            case Select(cond, a, b):
                one, other = self.domains(a, want, position), self.domains(b, want, position)
                return _together([self.domains(cond, UNKNOWN), _either(one, other, position)])
            case Call(fn, (first, *rest)):
                own = POSITIVE[fn] if fn in POSITIVE and not _whole(rest) else want if fn in ROUNDED else UNKNOWN
                return _together([self.domains(first, own, position), *(self.domains(a, UNKNOWN) for a in rest)])
            case Not(a):
                return self.domains(a, UNKNOWN)
            case Binary():
                return self._binary(e, want, position)
        return {}

    def _binary(self, e: Binary, want: Interval, position: bool) -> Domains:
        a, b = e.a, e.b
        if e.op in COMPARISONS:
            wants = self._beside(b), self._beside(a)
            position = True
        elif e.op in ("+", "-"):
            wants = self._sum(e, want)
        elif e.op == "*":
            wants = self._product(a, b, want)
        elif e.op in ("min", "max"):
            rest = (want[0], math.inf) if e.op == "min" else (-math.inf, want[1])
            wants = (want, rest) if self._varies(a) else (UNKNOWN, want)
        elif e.op in ("/", "//", "%") and e.dtype in INTS:
            wants = self._division(e, want)
        elif e.op == "/" and want[0] > 0:
            wants = want, (want[0], math.inf)
        else:
            wants = UNKNOWN, UNKNOWN
        return _together([self.domains(a, wants[0], position), self.domains(b, wants[1], position)])

    def _beside(self, other: Expr) -> Interval:
        """Interval of an operand compared with ``other``: about the position of a loop there; anything otherwise."""
        return self._fixed(other) if other.variables and not self._varies(other) else UNKNOWN

    def _sum(self, e: Binary, want: Interval) -> tuple[Interval, Interval]:
        """Intervals of the terms of a sum or difference: the rest that one without loads leaves, or a half each."""
        plus = e.op == "+"
        if want == UNKNOWN:
            return UNKNOWN, UNKNOWN
        if self._varies(e.a) and self._varies(e.b):
            half = _divided(want, 2, e.dtype)
            return half, half if plus else _negated(half)
        if self._varies(e.a):
            return _without(want, self._fixed(e.b) if plus else _negated(self._fixed(e.b))), UNKNOWN
        rest = _without(want, self._fixed(e.a))
        return UNKNOWN, rest if plus else _negated(rest)

    def _product(self, a: Expr, b: Expr, want: Interval) -> tuple[Interval, Interval]:
        if want == UNKNOWN:
            return UNKNOWN, UNKNOWN
        if self._varies(a) and self._varies(b):
            root = _root(want, a.dtype)
            return root, root
        low, high = self._fixed(b if self._varies(a) else a)
        if low == high != 0:
            rest = _divided(want, low, a.dtype)
        elif high > 0 and want[0] <= 0 <= want[1]:
            rest = _divided(want, high, a.dtype)
        else:
            rest = UNKNOWN
        return (rest, UNKNOWN) if self._varies(a) else (UNKNOWN, rest)

    def _division(self, e: Binary, want: Interval) -> tuple[Interval, Interval]:
        """Intervals of dividend and divisor, integers: the divisor is positive, the result within ``want``."""
        low, high = self._fixed(e.b) if not self._varies(e.b) else (1, math.inf)
        if e.op == "%":
            rests = (0, low - 1)
            divisor = (max(1, want[0] + 1), want[1] + 1) if want[1] >= 0 else DIVISOR
            return (UNKNOWN if rests[1] < 0 or meet(want, rests) == rests else meet(want, rests)), divisor
        if want == UNKNOWN or low <= 0:
            return UNKNOWN, DIVISOR
        if low == high:
            return (want[0] * low, want[1] * low + low - 1), DIVISOR
        if want[0] <= 0 <= want[1]:
            return (0, want[1]), DIVISOR
        return UNKNOWN, DIVISOR

    def _fixed(self, e: Expr) -> Interval:
        """Bounds of what loads nothing but constants."""
        match e:
            case Const(value, _):
                return (float(value), float(value))
            case Load(buffer, _):
                return self._constants[buffer.name]
            case Cast(_, value):
                return self._fixed(value)
        return UNKNOWN if e.buffers else bounds(e, self._extents)


def _together(parts: Iterable[Domains]) -> Domains:
    """Intersection of the domains that all parts ask for."""
    found: Domains = {}
    for part in parts:
        for name, interval in part.items():
            found[name] = meet(found.get(name, UNKNOWN), interval)
    return found


def _either(one: Domains, other: Domains, position: bool) -> Domains:
    """Union of the domains of two branches, of which one counts: the greater of the two where values between are in
    neither, and of positions, which other libraries may not count from the end.
    """
    found = {**one, **other}
    for name in one.keys() & other.keys():
        lower, upper = sorted((one[name], other[name]))
        joined = upper[0] <= lower[1] + 1 and not position
        found[name] = (lower[0], max(lower[1], upper[1])) if joined else upper
    return found


def _whole(exponents: Sequence[Expr]) -> bool:
    """Whether these are constant whole exponents, which a power takes of any number."""
    return bool(exponents) and all(isinstance(e, Const) and float(e.value).is_integer() for e in exponents)


def _negated(interval: Interval) -> Interval:
    return 0 - interval[1], 0 - interval[0]  # which is never -0.0


def _without(want: Interval, other: Interval) -> Interval:
    """Difference of intervals: values whose sum with any of ``other`` is within ``want``; ``want`` where none is."""
    low, high = want[0] - other[0], want[1] - other[1]
    return (low, high) if low <= high else want  # false for NaN, too: infinities of one sign


def _divided(want: Interval, count: float, dtype: str) -> Interval:
    """Quotient of an interval: values that times ``count`` are within ``want``; 0 if that holds for no whole number."""
    low, high = sorted((want[0] / count, want[1] / count))
    return (low, high) if dtype in FLOATS else _whole_numbers(low, high)


def _root(want: Interval, dtype: str) -> Interval:
    """Two numbers of what bounds have a product within ``want``."""
    if want[0] >= 0:
        low, high = (math.sqrt(each) for each in want)
    else:
        high = math.sqrt(max(0.0, min(-want[0], want[1])))
        low = -high
    return (low, high) if dtype in FLOATS else _whole_numbers(low, high)


def _whole_numbers(low: float, high: float) -> Interval:
    low, high = (each if math.isinf(each) else round_(each) for each, round_ in ((low, math.ceil), (high, math.floor)))
    return (low, high) if low <= high else (0, 0)
