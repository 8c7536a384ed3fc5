"""Special functions, element-wise: the complementary and the inverse error function, the logarithm of gamma, and its
derivative.

They are computed in float64, whatever the tensor's dtype is: differences of large terms would leave few digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burnish.loops.expr import FLOATS, Expr, all_of, cast, equal, math, maximum, minimum, select, wrap
from burnish.loops.tensor import Tensor, compute
from burnish.ops.elementwise import times
from burnish.ops.operator import (
    Application,
    Gradient,
    Operator,
    differentiated,
    internal,
    named_operator,
    require_input,
)

PI = 3.141592653589793
INFINITY = float("inf")
SHIFT = 8  # steps of the recurrence until an asymptotic series holds for float64

# Error functions of FreeBSD's msun, s_erf.c (Sun Microsystems 1993): numerators and denominators, highest power first:
# of erf(x) / x - 1 in x² up to 0.84375, of erf(x) - ERF_ONE in x - 1 up to 1.25, and of log(x erfc(x)) + x² + 0.5625 in
# 1 / x² up to 1 / 0.35, and beyond.
_ERF_NEAR = (
    (-2.37630166566501626084e-05, -5.77027029648944159157e-03, -2.84817495755985104766e-02,
     -3.25042107247001499370e-01, 1.28379167095512558561e-01),
    (-3.96022827877536812320e-06, 1.32494738004321644526e-04, 5.08130628187576562776e-03,
     6.50222499887672944485e-02, 3.97917223959155352819e-01, 1.0),
)  # fmt: skip
ERF_ONE = 8.45062911510467529297e-01
_ERF_MIDDLE = (
    (-2.16637559486879084300e-03, 3.54783043256182359371e-02, -1.10894694282396677476e-01,
     3.18346619901161753674e-01, -3.72207876035701323847e-01, 4.14856118683748331666e-01,
     -2.36211856075265944077e-03),
    (1.19844998467991074170e-02, 1.36370839120290507362e-02, 1.26171219808761642112e-01,
     7.18286544141962662868e-02, 5.40397917702171048937e-01, 1.06420880400844228286e-01, 1.0),
)  # fmt: skip
_ERFC_FAR = (
    (-9.81432934416914548592e+00, -8.12874355063065934246e+01, -1.84605092906711035994e+02,
     -1.62396669462573470355e+02, -6.23753324503260060396e+01, -1.05586262253232909814e+01,
     -6.93858572707181764372e-01, -9.86494403484714822705e-03),
    (-6.04244152148580987438e-02, 6.57024977031928170135e+00, 1.08635005541779435134e+02,
     4.29008140027567833386e+02, 6.45387271733267880336e+02, 4.34565877475229228821e+02,
     1.37657754143519042600e+02, 1.96512716674392571292e+01, 1.0),
)  # fmt: skip
_ERFC_FARTHER = (
    (-4.83519191608651397019e+02, -1.02509513161107724954e+03, -6.37566443368389627722e+02,
     -1.60636384855821916062e+02, -1.77579549177547519889e+01, -7.99283237680523006574e-01,
     -9.86494292470009928597e-03),
    (-2.24409524465858183362e+01, 4.74528541206955367215e+02, 2.55305040643316442583e+03,
     3.19985821950859553908e+03, 1.53672958608443695994e+03, 3.25792512996573918826e+02,
     3.03380607434824582924e+01, 1.0),
)  # fmt: skip
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


# log Γ(2 + t) / t in t (Abramowitz and Stegun 1964, 6.1.33): (-1)^k (zeta(k) - 1) / k of k = 27 to 2, and 1 - gamma.
_BETWEEN = (
    -2.7595228851242334e-10, 5.731367241678862e-10, -1.1921401405860912e-09, 2.4836745438024785e-09,
    -5.183475041970047e-09, 1.0838659214896955e-08, -2.2711094608943164e-08, 4.7698101693639804e-08,
    -1.0043224823968099e-07, 2.1207184805554665e-07, -4.492469198764566e-07, 9.55141213040742e-07,
    -2.039215753801366e-06, 4.374866789907488e-06, -9.439488275268397e-06, 2.050721277567069e-05,
    -4.492623673813314e-05, 9.945751278180853e-05, -0.00022315475845357939, 0.0005096695247430425,
    -0.001192753911703261, 0.0028905103307415234, -0.007385551028673986, 0.020580808427784546, -0.0673523010531981,
    0.3224670334241132, 0.42278433509846713,
)  # fmt: skip


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    value = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        value = value * x + c
    return value


def _quotient(x: Expr, parts: Sequence[Sequence[float]]) -> Expr:
    return _polynomial(x, parts[0]) / _polynomial(x, parts[1])


def _bell(x: Expr, less: Expr | float = 0.0) -> Expr:
    """``exp(less - x²)``, by the leading 24 digits of x, whose square is exact: one of all is hundreds of ulps off."""
    high = cast("float64", cast("float32", x))
    return math("exp", -(high * high)) * math("exp", (high - x) * (high + x) + less)


def _erfc(x: Expr) -> Expr:
    """1 - erf(x), without the difference where it is small."""
    size = math("abs", x)
    near = select(size < 0.84375, x, 0.0)
    part = near * _quotient(near * near, _ERF_NEAR)
    value = select(x < 0.25, 1.0 - (near + part), 0.5 - (part + (near - 0.5)))
    middle = _quotient(select(size < 1.25, size, 1.0) - 1.0, _ERF_MIDDLE)
    middle = select(x > 0.0, (1.0 - ERF_ONE) - middle, 1.0 + (ERF_ONE + middle))
    far = minimum(maximum(size, 1.25), 28.0)
    square = 1.0 / (far * far)
    tail = select(far < 1.0 / 0.35, _quotient(square, _ERFC_FAR), _quotient(square, _ERFC_FARTHER))
    tail = _bell(far, tail - 0.5625) / far
    tail = select(x > 0.0, tail, 2.0 - tail)
    return select(size < 0.84375, value, select(size < 1.25, middle, select(size >= 1.25, tail, x)))  # NaN stays


def _erfc_slope(x: Expr) -> Expr:
    return _bell(minimum(math("abs", x), 28.0)) * (-2.0 / PI**0.5)


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


def _lgamma_low(z: Expr) -> Expr:
    """log Γ between 1/2 and ``SHIFT``: by the recurrence from 1.5 to 2.5, where a series has the zero at 2, below by
    the logarithm that has the zero at 1.
    """
    count = maximum(math("ceil", z - 2.5), 0.0)
    low = z - count
    product = select(count > 0.0, z - 1.0, 1.0)
    for k in range(2, SHIFT - 1):
        product = product * select(count >= float(k), z - float(k), 1.0)
    first = low < 1.5
    t = low - select(first, wrap(1.0, z.dtype), 2.0)
    return t * _polynomial(t, _BETWEEN) + select(first, -math("log1p", select(first, t, 0.0)), math("log", product))


def _lgamma(x: Expr) -> Expr:
    """Stirling's series above 8, by the recurrence below that and by the reflection below 1/2."""
    reflected = x < 0.5
    z = select(reflected, 1.0 - x, x)
    small = z < float(SHIFT)
    high = select(small, float(SHIFT), z)
    inverse = 1.0 / high
    series = (high - 0.5) * (math("log", high) - 1.0) + 0.41893853320467274178
    series = series + inverse * _polynomial(inverse * inverse, _STIRLING)
    value = select(small, _lgamma_low(select(small, z, 1.0)), series)
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
    _operator("erfc", "complement of the error function, ``1 - erf(x)``", _erfc, times("erfc_slope")),
    *internal(_operator("erfc_slope", "slope of erfc, ``-2 / sqrt(pi) exp(-x²)``", _erfc_slope, "derived")),
    _operator("erfinv", "inverse of the error function", _erfinv, _erfinv_gradient),
    _operator("lgamma", "logarithm of the absolute value of the gamma function", _lgamma, times("digamma")),
    _operator("digamma", "derivative of the logarithm of the gamma function", _digamma, "derived"),
)
