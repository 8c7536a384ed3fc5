"""Inverse trigonometric and hyperbolic functions, element-wise, in float32 or wider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from burnish.loops.expr import FLOATS, Expr, cast, math, select, wrap
from burnish.loops.tensor import Tensor, compute
from burnish.ops.operator import Operator, named_operator, require_input, wide

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
    near = math("log1p", above + math("sqrt", above * (x + 1.0)))
    return select(x < 1e8, near, math("log", x) + 0.6931471805599453)


def _atanh(x: Expr) -> Expr:
    return 0.5 * (math("log1p", x) - math("log1p", -x))


_ELEMENTS: Mapping[str, Callable[[Expr], Expr]] = {
    "atan": _atan, "asin": _asin, "acos": _acos, "asinh": _asinh, "acosh": _acosh, "atanh": _atanh,
}  # fmt: skip


def _operator(name: str, element: Callable[[Expr], Expr]) -> Operator:
    def define(stage: str, x: Tensor) -> Tensor:
        require_input(x, "x", dtype=FLOATS)
        return compute(x.shape, lambda *i: cast(x.dtype, element(wide(x[i]))), stage)

    return named_operator(name, define, f"Element-wise {name}.")


OPERATORS = tuple(_operator(name, element) for name, element in _ELEMENTS.items())
