"""Special functions, element-wise: the inverse error function, the logarithm of gamma, and its derivative.

They are computed in float64, whatever the tensor's dtype is: differences of large terms would leave few digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burnish.loops.expr import FLOATS, Expr, all_of, cast, equal, math, select, wrap
from burnish.loops.tensor import Tensor, compute
from burnish.ops.elementwise import times
from burnish.ops.operator import Application, Gradient, Operator, differentiated, named_operator, require_input

PI = 3.141592653589793
INFINITY = float("inf")
SHIFT = 8  # steps of the recurrence until an asymptotic series holds for float64

# Wichura, Algorithm AS 241 (1988), PPND16: numerators and denominators of the normal quantile, highest power first.
_CENTRAL = (
    (2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
     1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0),
    (5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
     5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0),
)  # fmt: skip
_MIDDLE = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
     3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
     2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0),
    (2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
     1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0),
)  # fmt: skip
# Series in 1 / z² (Abramowitz and Stegun 1964, 6.1.41 and 6.3.18), from Bernoulli's numbers, highest power first.
_STIRLING = (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
_DIGAMMA = (1 / 12, -691 / 32760, 1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    value = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        value = value * x + c
    return value


def _quotient(x: Expr, parts: Sequence[Sequence[float]]) -> Expr:
    return _polynomial(x, parts[0]) / _polynomial(x, parts[1])


def _erfinv(x: Expr) -> Expr:
    """The normal quantile at (1 + x) / 2, over the root of 2."""
    half, size = 0.5 * x, math("abs", x)
    central = half * _quotient(0.180625 - half * half, _CENTRAL)
    far = math("sqrt", -math("log", 0.5 * (1.0 - size)))
    tail = select(far <= 5.0, _quotient(far - 1.6, _MIDDLE), _quotient(far - 5.0, _FAR))
    tail = select(equal(size, 1.0), INFINITY, tail)
    return select(size <= 0.85, central, select(x < 0.0, -tail, tail)) * 0.7071067811865476


def _raised(z: Expr) -> tuple[Expr, Expr, Expr]:
    """Whether ``z`` of 1/2 or more is below where the series hold, it or 1, and a number that they hold of."""
    small = z < float(SHIFT)
    return small, select(small, z, 1.0), select(small, z + float(SHIFT), z)


def _to_integer(x: Expr) -> Expr:
    """The distance to the nearest integer, for functions of period 1."""
    return x - math("round", x)


def _lgamma(x: Expr) -> Expr:
    """Stirling's series above 8, by the recurrence below that and by the reflection below 1/2."""
    reflected = x < 0.5
    z = select(reflected, 1.0 - x, x)
    small, low, high = _raised(z)
    product = low
    for k in range(1, SHIFT):
        product = product * (low + float(k))
    inverse = 1.0 / high
    series = (high - 0.5) * (math("log", high) - 1.0) + 0.41893853320467274178
    value = series + inverse * _polynomial(inverse * inverse, _STIRLING) - select(small, math("log", product), 0.0)
    turn = _to_integer(x)
    mirrored = math("log", PI / math("abs", math("sin", turn * PI))) - value
    mirrored = select(equal(turn, 0.0), INFINITY, mirrored)
    size = math("abs", x)
    return select(size < INFINITY, select(reflected, mirrored, value), size)


def _digamma(x: Expr) -> Expr:
    """The logarithm's series above 8, by the recurrence below that and by the reflection below 1/2."""
    reflected = x < 0.5
    z = select(reflected, 1.0 - x, x)
    small, low, high = _raised(z)
    below = 1.0 / low
    for k in range(1, SHIFT):
        below = below + 1.0 / (low + float(k))
    inverse = 1.0 / high
    square = inverse * inverse
    value = math("log", high) - 0.5 * inverse - square * _polynomial(square, _DIGAMMA) - select(small, below, 0.0)
    turn = select(equal(x, 0.0), x, _to_integer(x)) * PI  # of -0 as of 0, its sign
    mirrored = value - PI / (math("sin", turn) / math("cos", turn))
    pole = all_of(x < 0.0, equal(_to_integer(x), 0.0))
    return select(pole, x * float("nan"), select(reflected, mirrored, value))  # there NaN is the slope, too


def _erfinv_gradient(a: Application) -> list[str | None]:
    """``dy * sqrt(pi) / 2 * exp(y²)``."""
    assert a.seeds[0] is not None
    y = a.outputs[0]
    slope = a.add("mul", a.add("exp", a.add("mul", y, y)), a.emit.constant(PI**0.5 / 2, dtype=a.types[0][1]))
    return [a.add("mul", a.seeds[0], slope)]


def _operator(name: str, words: str, element: Callable[[Expr], Expr], gradient: Gradient) -> Operator:
    def define(stage: str, x: Tensor) -> Tensor:
        require_input(x, "x", dtype=FLOATS)
        return compute(x.shape, lambda *i: cast(x.dtype, element(cast("float64", wrap(x[i])))), stage)

    return differentiated(gradient)(named_operator(name, define, f"Element-wise {words}."))


OPERATORS = (
    _operator("erfinv", "inverse of the error function", _erfinv, _erfinv_gradient),
    _operator("lgamma", "logarithm of the absolute value of the gamma function", _lgamma, times("digamma")),
    _operator("digamma", "derivative of the logarithm of the gamma function", _digamma, "derived"),
)
