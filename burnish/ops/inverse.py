"""Inverse trigonometric and hyperbolic functions, element-wise, in float32 or wider.

Gradients are the closed forms (Abramowitz and Stegun 1964, 4.4.52 and 4.6.37), which are infinite at the ends of a
domain, where the derivative of a definition would be 0 times infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from burnish.loops.expr import FLOATS, Expr, cast, math, select, wrap
from burnish.loops.tensor import Tensor, compute
from burnish.ops.operator import (
    Application,
    Operator,
    Rule,
    accumulator_dtype,
    differentiated,
    named_operator,
    require_input,
    wide,
)

HALF_PI = 1.5707963267948966
# Moshier's Cephes library, atan.c: x + x z P(z) / Q(z) with z = x², for |x| up to 0.66.
_P = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
      -1.228866684490136173410e2, -6.485021904942025371773e1)  # fmt: skip
_Q = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
      4.853903996359136964868e2, 1.945506571482613964425e2)  # fmt: skip


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    value = x * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        value = value * x + c
    return value


def _atan(x: Expr) -> Expr:
    """Arctangent, reduced by the reciprocal above tan(3 pi / 8), by the quotient (x - 1) / (x + 1) above 0.66."""
    size = math("abs", x)
    far, middle = size > 2.414213562373095, size > 0.66
    reduced = select(far, -1.0 / size, select(middle, (size - 1.0) / (size + 1.0), size))
    z = reduced * reduced
    near = reduced + reduced * (z * _polynomial(z, _P) / _polynomial(z, _Q))
    offset = select(middle, wrap(HALF_PI / 2, x.dtype), 0.0)
    value = near + select(far, HALF_PI, offset)
    return select(x < 0, -value, select(x > 0, value, x))  # 0 and NaN stay what they are


def _asin(x: Expr) -> Expr:
    return 2.0 * _atan(x / (1.0 + math("sqrt", (1.0 - x) * (1.0 + x))))


def _acos(x: Expr) -> Expr:
    return 2.0 * _atan(math("sqrt", (1.0 - x) / (1.0 + x)))


def _asinh(x: Expr) -> Expr:
    """log(|x| + sqrt(x² + 1)) without loss of digits near 0, nor overflow of the square."""
    size = math("abs", x)
    square = size * size
    near = math("log1p", size + square / (1.0 + math("sqrt", square + 1.0)))
    value = select(size < 1e8, near, math("log", size) + 0.6931471805599453)
    return select(x < 0, -value, select(x > 0, value, x))


def _acosh(x: Expr) -> Expr:
    above = x - 1.0
    near = math("log1p", above + math("sqrt", above) * math("sqrt", x + 1.0))  # a product of both may overflow
    return select(x < 1e8, near, math("log", x) + 0.6931471805599453)


def _atanh(x: Expr) -> Expr:
    return 0.5 * (math("log1p", x) - math("log1p", -x))


Divisor = Callable[[Application, str, str], str]  # of a gradient, from the argument and one


def _square_and_one(a: Application, x: str, one: str) -> str:
    return a.add("add", a.add("mul", x, x), one)


def _one_less_square(a: Application, x: str, one: str) -> str:
    """``1 - x²`` in factors, which lose no digits near 1."""
    return a.add("mul", a.add("sub", one, x), a.add("add", one, x))


def _square_less_one(a: Application, x: str, one: str) -> str:
    return a.add("mul", a.add("sub", x, one), a.add("add", x, one))


def _rule(divisor: Divisor, root: bool, negative: bool = False) -> Rule:
    """``dy / d``, or ``dy / sqrt(d)``, perhaps negative."""

    def gradient(a: Application) -> list[str | None]:
        dtype, seed = a.types[0][1], str(a.seeds[0])
        inner = accumulator_dtype(dtype)
        x, seed = (t if inner == dtype else a.add("cast", t, to=inner) for t in (a.inputs[0], seed))
        d = divisor(a, x, a.emit.constant(1.0, dtype=inner))
        slope = a.add("div", seed, a.add("sqrt", d) if root else d)
        slope = a.add("neg", slope) if negative else slope
        return [slope if inner == dtype else a.add("cast", slope, to=dtype)]

    return gradient


_ELEMENTS: Mapping[str, tuple[Callable[[Expr], Expr], Rule]] = {  # name -> element, gradient
    "atan": (_atan, _rule(_square_and_one, root=False)),
    "asin": (_asin, _rule(_one_less_square, root=True)),
    "acos": (_acos, _rule(_one_less_square, root=True, negative=True)),
    "asinh": (_asinh, _rule(_square_and_one, root=True)),
    "acosh": (_acosh, _rule(_square_less_one, root=True)),
    "atanh": (_atanh, _rule(_one_less_square, root=False)),
}


def _operator(name: str, element: Callable[[Expr], Expr], gradient: Rule) -> Operator:
    def define(stage: str, x: Tensor) -> Tensor:
        require_input(x, "x", dtype=FLOATS)
        return compute(x.shape, lambda *i: cast(x.dtype, element(wide(x[i]))), stage)

    return differentiated(gradient)(named_operator(name, define, f"Element-wise {name}."))


OPERATORS = tuple(_operator(name, *parts) for name, parts in _ELEMENTS.items())
