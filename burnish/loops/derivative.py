"""Partial derivatives of scalar expressions: of a definition's body by each element that it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from burnish.errors import UnsupportedOperator
from burnish.loops.expr import FLOATS, Binary, Call, Cast, Const, Expr, Load, Select, cast, equal, math, select, wrap

TWO_BY_SQRT_PI = 1.1283791670955126
Partials = Mapping[Load, Expr]
_NONE: Partials = {}


def partials(body: Expr, wanted: AbstractSet[str]) -> Partials:
    """The derivative of ``body`` by each floating-point element that it loads from the buffers named ``wanted``.

    Conditions count as constant, so do functions that round. A branch that is not taken adds nothing, whatever its
    slope is there. Conventions at ties are PyTorch's: ``max`` and ``min`` of two elements give each a half; beside a
    number, the second operand gets all (so ``max(x, 0)``, a relu, has no slope at 0, and ``max(0, x)``, a clip, has 1);
    NaN is no reason to stop. Raises UnsupportedOperator for a function without a derivative.
    """
    found: dict[Expr, Partials] = {}

    def of(e: Expr) -> Partials:
        if e.dtype not in FLOATS or not e.buffers & wanted:
            return _NONE
        if e not in found:
            found[e] = _partials(e, of, wanted)
        return found[e]

    return of(body)


def times(slope: Expr, factor: Expr) -> Expr:
    """``slope * factor``, moved into the branches of a slope, of which those that are 0 stay so: 0 times NaN too."""
    match slope:
        case Const(0.0, _):
            return slope
        case Const(1.0, dtype) if factor.dtype == dtype:
            return factor
        case Select(cond, a, b):
            return _choice(cond, times(a, factor), times(b, factor))
    return factor * slope


def _partials(e: Expr, of: Callable[[Expr], Partials], wanted: AbstractSet[str]) -> Partials:
    match e:
        case Load(buffer, _):
            return {e: wrap(1.0, e.dtype)} if buffer.name in wanted else _NONE
        case Binary("+" | "-" as op, a, b):
            return _sum(of(a), of(b) if op == "+" else _scaled(of(b), wrap(-1.0, e.dtype)))
        case Binary("*", a, b):
            return _sum(_scaled(of(a), b), _scaled(of(b), a))
        case Binary("/", a, b):
            return _sum(_scaled(of(a), 1.0 / b), _scaled(of(b), -(e / b)))
        case Binary("max" | "min" as op, a, b) if a.buffers and b.buffers:
            less, more = (a < b, b < a) if op == "max" else (b < a, a < b)
            return _sum(_shared(less, equal(a, b), of(a)), _shared(more, equal(a, b), of(b)))
        case Binary("max", a, b):
            return _either(e <= b, of(b), of(a), e.dtype)
        case Binary("min", a, b):
            return _either(e >= b, of(b), of(a), e.dtype)
        case Select(cond, a, b):
            return _either(cond, of(a), of(b), e.dtype)
        case Cast(dtype, value):
            return {load: _cast(dtype, slope) for load, slope in of(value).items()}
        case Call(fn, (x,)) if fn in _SLOPES:
            return _scaled(of(x), _SLOPES[fn](x, e))
        case Call("floor" | "ceil" | "round" | "trunc", _):
            return _NONE
        case Call("pow", (x, y)):
            one = select(equal(y, 0.0), 0.0, y * math("pow", x, y - 1.0))
            return _sum(_scaled(of(x), one), _scaled(of(y), select(equal(e, 0.0), 0.0, e * math("log", x))))
        case Call("fmod", (x, y)):
            return _sum(of(x), _scaled(of(y), -math("trunc", x / y)))
    raise UnsupportedOperator(f"gradient: found {e}; allowed: sums, products, quotients, extremes, and known functions")


# Function -> its slope, from the argument and the value; where it can, from the value alone.
_SLOPES: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "exp": lambda x, y: y,
    "expm1": lambda x, y: y + 1.0,
    "log": lambda x, y: 1.0 / x,
    "log1p": lambda x, y: 1.0 / (x + 1.0),
    "sqrt": lambda x, y: 0.5 / y,
    "rsqrt": lambda x, y: -0.5 * (y * y * y),
    "tanh": lambda x, y: 1.0 - y * y,
    "sigmoid": lambda x, y: y * (1.0 - y),
    "erf": lambda x, y: TWO_BY_SQRT_PI * math("exp", -(x * x)),
    "sin": lambda x, y: math("cos", x),
    "cos": lambda x, y: -math("sin", x),
    "abs": lambda x, y: select(x > 0, 1.0, select(x < 0, wrap(-1.0, x.dtype), 0.0)),
}


def _scaled(slopes: Partials, factor: Expr) -> Partials:
    return {load: times(slope, factor) for load, slope in slopes.items()}


def _sum(a: Partials, b: Partials) -> Partials:
    return {load: _plus(a.get(load), b.get(load)) for load in dict.fromkeys((*a, *b))}


def _plus(a: Expr | None, b: Expr | None) -> Expr:
    if a is None or b is None:
        one = b if a is None else a
        assert one is not None
        return one
    return a + b


def _shared(loses: Expr, ties: Expr, slopes: Partials) -> Partials:
    """The slopes of an operand of an extreme: none where it loses, half of them where both are equal."""
    return {
        load: select(loses, 0.0, select(ties, times(slope, wrap(0.5, slope.dtype)), slope))
        for load, slope in slopes.items()
    }


def _either(cond: Expr, a: Partials, b: Partials, dtype: str) -> Partials:
    zero = wrap(0.0, dtype)
    return {load: _choice(cond, a.get(load, zero), b.get(load, zero)) for load in dict.fromkeys((*a, *b))}


def _choice(cond: Expr, a: Expr, b: Expr) -> Expr:
    return a if a == b else select(cond, a, b)


def _cast(dtype: str, slope: Expr) -> Expr:
    match slope:
        case Const(value, _):
            return wrap(value, dtype)
        case Select(cond, a, b):
            return _choice(cond, _cast(dtype, a), _cast(dtype, b))
    return cast(dtype, slope)
