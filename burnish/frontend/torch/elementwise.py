"""Translators of element-wise ATen operators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from burnish.frontend.torch.context import Ref, TorchContext, Translator

UNARY = {  # one to one, of floats: integers become the result's dtype first
    "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "exp": "exp", "log": "log", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "neg": "neg", "abs": "abs", "sin": "sin", "cos": "cos", "sinh": "sinh", "cosh": "cosh",
    "erf": "erf", "erfc": "erfc", "silu": "silu", "hardswish": "hard_swish", "mish": "mish", "reciprocal": "reciprocal",
    "expm1": "expm1", "log1p": "log1p", "erfinv": "erfinv", "lgamma": "lgamma", "digamma": "digamma",
    **{name: name for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
}  # fmt: skip
ROUNDING = {"floor": "floor", "ceil": "ceil", "round": "round"}  # integers stay what they are
ARITHMETIC = {
    "add": "add", "sub": "sub", "mul": "mul", "maximum": "maximum", "minimum": "minimum",
}  # fmt: skip
COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
LOGIC = ("and", "or", "xor")
SHIFTS = {"left": "lshift", "right": "rshift"}


def _unary(op: str, c: TorchContext, x: Ref) -> Ref:
    return c.add(op, c.real(x))


def _rounding(op: str, c: TorchContext, x: Ref) -> Ref:
    return c.add(op, x) if c.is_real(x) else c.add("identity", x)


def _trunc(c: TorchContext, x: Ref) -> Ref:
    if not c.is_real(x):
        return c.add("identity", x)
    return c.add("mul", c.add("sign", x), c.add("floor", c.add("abs", x)))


def _sign(c: TorchContext, x: Ref) -> Ref:
    """1, 0 or -1; of NaN 0."""
    if not c.is_real(x):
        return c.add("identity", x) if c.dtype(x) == "bool" else c.add("sign", x)
    return c.add("where", c.add("isnan", x), c.scalar(0, x), c.add("sign", x))


def _frac(c: TorchContext, x: Ref) -> Ref:
    return c.add("mod", x, c.scalar(1, x), truncate=True)


def _scaled(op: str, factor: float, c: TorchContext, x: Ref) -> Ref:
    """``op(x) * factor``: logarithms to another base."""
    y = c.add(op, c.real(x))
    return c.add("mul", y, c.scalar(factor, y))


def _exp2(c: TorchContext, x: Ref) -> Ref:
    y = c.real(x)
    return c.add("pow", c.scalar(2, y), y)


def _tan(c: TorchContext, x: Ref) -> Ref:
    y = c.real(x)
    return c.add("div", c.add("sin", y), c.add("cos", y))


def _square(c: TorchContext, x: Ref) -> Ref:
    return c.add("mul", x, x)


def _isnan(c: TorchContext, x: Ref) -> Ref:
    return c.add("isnan", x) if c.is_real(x) else c.add("not_equal", x, x)


def _isinf(c: TorchContext, x: Ref) -> Ref:
    return c.add("isinf", x) if c.is_real(x) else c.add("not_equal", x, x)


def _isfinite(c: TorchContext, x: Ref) -> Ref:
    if not c.is_real(x):
        return c.add("equal", x, x)
    return c.add("less", c.add("abs", x), c.scalar(math.inf, x))


def _nan_to_num(c: TorchContext, x: Ref, nan: float | None, posinf: float | None, neginf: float | None) -> Ref:
    if not c.is_real(x):
        return c.add("identity", x)
    import torch

    limits = torch.finfo(c.out.dtype)
    low, high = (limits.min if neginf is None else neginf), (limits.max if posinf is None else posinf)
    y = c.add("where", c.add("isnan", x), c.scalar(nan or 0.0, x), x)
    y = c.add("where", c.add("equal", x, c.scalar(math.inf, x)), c.scalar(high, x), y)
    return c.add("where", c.add("equal", x, c.scalar(-math.inf, x)), c.scalar(low, x), y)


def _not(c: TorchContext, x: Ref) -> Ref:
    if c.dtype(x) == "bool":
        return c.add("logical_not", x)
    return c.add("equal", x, c.scalar(0, x))


def _bitwise_not(c: TorchContext, x: Ref) -> Ref:
    if c.dtype(x) == "bool":
        return c.add("logical_not", x)
    return c.add("sub", c.scalar(-1, x), x)


# --- activations with parameters --------------------------------------------------------------------------------------


def _gelu(c: TorchContext, x: Ref, approximate: str) -> Ref:
    return c.add("gelu", x, approximate=approximate)


def _leaky_relu(c: TorchContext, x: Ref, negative_slope: float) -> Ref:
    return c.add("leaky_relu", x, alpha=float(negative_slope))


def _elu(c: TorchContext, x: Ref, alpha: float, scale: float, input_scale: float) -> Ref:
    """``scale * (max(x, 0) + min(0, alpha * (exp(input_scale * x) - 1)))``."""
    if scale == 1 and input_scale == 1:
        return c.add("elu", x, alpha=float(alpha))
    scaled = c.add("mul", x, c.scalar(input_scale, x))
    negative = c.add("elu", scaled, alpha=float(alpha))
    y = c.add("where", c.add("greater", x, c.scalar(0, x)), x, negative)
    return c.add("mul", y, c.scalar(scale, y))


def _celu(c: TorchContext, x: Ref, alpha: float) -> Ref:
    return c.add("celu", x, alpha=float(alpha))


def _selu(c: TorchContext, x: Ref) -> Ref:
    return c.add("selu", x)


def _softplus(c: TorchContext, x: Ref, beta: float, threshold: float) -> Ref:
    scaled = x if beta == 1 else c.add("mul", x, c.scalar(beta, x))
    y = c.add("softplus", scaled)
    y = y if beta == 1 else c.add("div", y, c.scalar(beta, y))
    return c.add("where", c.add("greater", scaled, c.scalar(threshold, x)), x, y)


def _log_sigmoid(c: TorchContext, x: Ref) -> Ref:
    return c.add("neg", c.add("softplus", c.add("neg", x)))


def _log_sigmoid_forward(c: TorchContext, x: Ref) -> list[Ref | None]:
    return [_log_sigmoid(c, x), None]


def _hard_sigmoid(c: TorchContext, x: Ref) -> Ref:
    return c.add("hard_sigmoid", x, alpha=1 / 6, beta=0.5)


def _hard_tanh(c: TorchContext, x: Ref, min_val: float, max_val: float) -> Ref:
    if not c.is_real(x):
        return _clamp(c, x, min_val, max_val)
    return c.add("clip", x, min=float(min_val), max=float(max_val), strict=True)


def _relu6(c: TorchContext, x: Ref) -> Ref:
    return _hard_tanh(c, x, 0, 6)


def _clamp(c: TorchContext, x: Ref, min: Any = None, max: Any = None) -> Ref:
    """Bounds are numbers, or tensors; the upper one prevails."""
    y = c.real(x)
    numbers = all(b is None or not isinstance(b, Ref) for b in (min, max))
    if numbers and c.is_real(y):
        bounds = {k: float(b) for k, b in (("min", min), ("max", max)) if b is not None}
        return c.add("clip", y, **bounds)
    if c.training and c.is_real(y):
        return _clamped(c, y, min, max)
    for bound, op in ((min, "maximum"), (max, "minimum")):
        if bound is not None:
            y = c.add(op, y, c.operand(bound, c.out_dtype))
    return y


def _clamped(c: TorchContext, x: Ref, min: Any, max: Any) -> Ref:
    """Between tensors; where ``x`` equals a bound, all of the gradient is its own, and nobody's where one is NaN."""
    given = {k: c.operand(b, c.out_dtype) for k, b in (("min", min), ("max", max)) if b is not None}
    y = x
    for key, inside, outside in (("min", "greater_equal", "less"), ("max", "less_equal", "greater")):
        if key in given:
            bound = c.add("where", c.add(outside, y, given[key]), given[key], c.scalar(math.nan, y))
            y = c.add("where", c.add(inside, y, given[key]), y, bound)
    return y


def _clamp_min(c: TorchContext, x: Ref, min: Any) -> Ref:
    return _clamp(c, x, min=min)


def _clamp_max(c: TorchContext, x: Ref, max: Any) -> Ref:
    return _clamp(c, x, max=max)


def _threshold(c: TorchContext, x: Ref, threshold: float, value: float) -> Ref:
    """``x`` where greater than the threshold (NaN stays), else the value."""
    return c.add("where", c.add("less_equal", x, c.scalar(threshold, x)), c.scalar(value, x), x)


def _prelu(c: TorchContext, x: Ref, weight: Ref) -> Ref:
    rank = c.rank(x)
    if c.rank(weight) == 1 and rank >= 2:  # one slope a channel
        weight = c.reshape(weight, (1, *c.shape(weight), *(1,) * (rank - 2)))
    return c.add("prelu", x, weight)


def _glu(c: TorchContext, x: Ref, dim: int) -> Ref:
    axis = c.axis(x, dim)
    half = c.shape(x)[axis] // 2
    gate = c.add("sigmoid", c.slice(x, axis, half, half))
    return c.add("mul", c.slice(x, axis, 0, half), gate)


def _soft_shrink(c: TorchContext, x: Ref, lambd: float) -> Ref:
    return c.add("sub", x, c.add("clip", x, min=-float(lambd), max=float(lambd)))


def _hard_shrink(c: TorchContext, x: Ref, lambd: float) -> Ref:
    inside = c.add("less_equal", c.add("abs", x), c.scalar(lambd, x))
    return c.add("where", inside, c.scalar(0, x), x)


# --- two operands -----------------------------------------------------------------------------------------------------


def _arithmetic(op: str, c: TorchContext, x: Any, other: Any, alpha: float = 1) -> Ref:
    dtype = c.out_dtype
    a, b = c.operand(x, dtype), c.operand(other, dtype)
    if alpha != 1:
        b = c.add("mul", b, c.constant(alpha, dtype))
    if dtype == "bool":  # torch adds and multiplies truth values
        return c.add({"add": "logical_or", "mul": "logical_and"}.get(op, op), a, b)
    return c.add(op, a, b)


def _reverse_sub(c: TorchContext, x: Ref, other: Any, alpha: float = 1) -> Ref:
    a = c.operand(x, c.out_dtype)
    if alpha != 1:
        a = c.add("mul", a, c.constant(alpha, c.out_dtype))
    return c.add("sub", c.operand(other, c.out_dtype), a)


def _div(c: TorchContext, x: Any, other: Any, rounding_mode: str | None = None) -> Ref:
    dtype = c.out_dtype
    a, b = c.operand(x, dtype), c.operand(other, dtype)
    if rounding_mode == "floor":
        return _floored(c, a, b)
    y = c.add("div", a, b)
    return _trunc(c, y) if rounding_mode == "trunc" else y


def _floor_divide(c: TorchContext, x: Any, other: Any) -> Ref:
    return _div(c, x, other, "floor")


def _floored(c: TorchContext, a: Ref, b: Ref) -> Ref:
    """The quotient rounded down; of floats that of ``a`` less the remainder, as torch has it, so that it is exact."""
    if not c.is_real(a):
        return c.add("floor_div", a, b)
    exact = c.add("div", c.add("sub", a, c.add("mod", a, b)), b)
    whole = c.add("round", exact)
    zero = c.add("equal", b, c.scalar(0, b))
    return c.add("where", zero, c.add("div", a, b), whole)


def _fmod(c: TorchContext, x: Any, other: Any) -> Ref:
    dtype = c.out_dtype
    return c.add("mod", c.operand(x, dtype), c.operand(other, dtype), truncate=True)


def _remainder(c: TorchContext, x: Any, other: Any) -> Ref:
    """The remainder with the sign of ``other``; one that is 0 has that of ``x``, unlike Python's."""
    a, b = c.operand(x, c.out_dtype), c.operand(other, c.out_dtype)
    if not c.is_real(a):
        return c.add("mod", a, b)
    rest, zero = c.add("mod", a, b, truncate=True), c.scalar(0, a)
    apart = c.add("logical_xor", c.add("less", rest, zero), c.add("less", b, zero))
    moved = c.add("logical_and", apart, c.add("not_equal", rest, zero))
    return c.add("where", moved, c.add("add", rest, b), rest)


def _compare(op: str, c: TorchContext, x: Any, other: Any) -> Ref:
    dtype = c.common_dtype("x", "other")
    if dtype == "bool" and op not in ("equal", "not_equal"):
        dtype = "int8"
    return c.add(op, c.operand(x, dtype), c.operand(other, dtype))


def _logical(op: str, c: TorchContext, x: Any, other: Any) -> Ref:
    return c.add(op, _truth(c, x), _truth(c, other))


def _truth(c: TorchContext, x: Any) -> Ref:
    return c.operand(x, "bool")


def _bitwise(op: str, c: TorchContext, x: Any, other: Any) -> Ref:
    dtype = c.out_dtype
    if dtype == "bool":
        return _logical(f"logical_{op}", c, x, other)
    return c.add(f"bitwise_{op}", c.operand(x, dtype), c.operand(other, dtype))


def _shift(op: str, c: TorchContext, x: Any, other: Any) -> Ref:
    """Integers by places, of which their width or more, or fewer than none, leave no bit but that of the sign."""
    return c.add(op, c.operand(x, c.out_dtype), c.operand(other, c.out_dtype))


def _pow(c: TorchContext, x: Any, exponent: Any) -> Ref:
    dtype = c.out_dtype
    if not isinstance(exponent, Ref) and not isinstance(x, Ref):
        c.refuse("arguments", "two numbers", "a tensor at least")
    if not isinstance(exponent, Ref) and isinstance(x, Ref):
        a = c.cast(x, dtype)
        simple = _simple_power(c, a, exponent)
        if simple is not None:
            return simple
    return c.add("pow", c.operand(x, dtype), c.operand(exponent, dtype))


def _xlogy(op: str, pole: float, c: TorchContext, x: Any, other: Any) -> Ref:
    """``x log(other)``, 0 where x is 0; there its slope by x is 0, too, unless ``other`` is beyond the pole."""
    a, b = (c.operand(v, c.out_dtype) for v in (x, other))
    zero = c.scalar(0, a)
    nothing = c.add("equal", a, zero)
    logs = c.add("where", c.add("logical_and", nothing, c.add("less_equal", b, c.scalar(pole, b))), zero, c.add(op, b))
    infinite, one = c.add("logical_and", nothing, c.add("equal", b, c.scalar(math.inf, b))), c.scalar(1, a)
    steep = c.add("sqrt", c.add("where", infinite, a, one))  # 0 of infinite slope
    return c.add("where", infinite, steep, c.add("mul", a, c.add("where", infinite, one, logs)))


def _sinc(c: TorchContext, x: Ref) -> Ref:
    """``sin(pi x) / (pi x)``, of slope 0 at 0."""
    x = c.real(x)
    origin, one = c.add("equal", x, c.scalar(0, x)), c.scalar(1, x)
    scaled = c.add("where", origin, one, c.add("mul", x, c.scalar(math.pi, x)))
    return c.add("where", origin, one, c.add("div", c.add("sin", scaled), scaled))


def _entr(c: TorchContext, x: Ref) -> Ref:
    """``-x log(x)``, of infinite slope at 0, where it is 0 (as the root is); minus infinity of what is negative."""
    x = c.real(x)
    zero = c.scalar(0, x)
    origin, below = c.add("equal", x, zero), c.add("less", x, zero)
    inside = c.add("where", origin, c.scalar(1, x), x)
    y = c.add("where", origin, c.add("sqrt", x), c.add("neg", c.add("mul", inside, c.add("log", inside))))
    return c.add("where", below, c.scalar(-math.inf, x), y)


def _logit(c: TorchContext, x: Ref, eps: float | None = None) -> Ref:
    """``log(x / (1 - x))``, of ``x`` between ``eps`` and ``1 - eps``, of infinite slope at 0 and 1."""
    x = c.real(x)
    x = x if eps is None else c.add("clip", x, min=float(eps), max=1 - float(eps))
    return c.add("sub", c.add("log", x), c.add("log1p", c.add("neg", x)))


def _simple_power(c: TorchContext, a: Ref, exponent: float) -> Ref | None:
    """Powers that a product or a root gives; None for others."""
    if exponent == 1:
        return c.add("identity", a)
    if exponent in (2, 3):
        square = c.add("mul", a, a)
        return square if exponent == 2 else c.add("mul", square, a)
    if c.is_real(a) and exponent in (0.5, -0.5, -1):
        return c.add({0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}[exponent], a)
    return None


def _where(c: TorchContext, condition: Ref, x: Any, other: Any) -> Ref:
    dtype = c.out_dtype
    return c.add("where", c.cast(condition, "bool"), c.operand(x, dtype), c.operand(other, dtype))


def _masked_fill(c: TorchContext, x: Ref, mask: Ref, value: Any) -> Ref:
    return c.expand(c.add("where", c.cast(mask, "bool"), c.operand(value, c.dtype(x)), x), c.out_shape)


def _lerp(c: TorchContext, x: Ref, end: Ref, weight: Any) -> Ref:
    """Linear interpolation from the nearer end, so that weights of 0 and of 1 give the ends themselves."""
    w, apart = c.operand(weight, c.dtype(x)), c.add("sub", end, x)
    first = c.add("add", x, c.add("mul", w, apart))
    last = c.add("sub", end, c.add("mul", apart, c.add("sub", c.scalar(1, w), w)))
    if not isinstance(weight, Ref):
        return first if abs(weight) < 0.5 else last
    return c.add("where", c.add("less", c.add("abs", w), c.scalar(0.5, w)), first, last)


def _addc(op: str, c: TorchContext, x: Ref, tensor1: Ref, tensor2: Ref, value: float) -> Ref:
    dtype = c.out_dtype
    part = c.add(op, c.cast(tensor1, dtype), c.cast(tensor2, dtype))
    part = part if value == 1 else c.add("mul", part, c.constant(value, dtype))
    return c.add("add", c.cast(x, dtype), part)


def _fill(c: TorchContext, x: Ref, value: Any) -> Ref:
    return c.expand(c.operand(value, c.dtype(x)), c.shape(x))


def _copy(c: TorchContext, x: Ref, src: Ref) -> Ref:
    return c.expand(c.add("identity", c.cast(src, c.dtype(x))), c.shape(x))


TRANSLATORS: Mapping[str, Translator] = {
    **{f"aten.{name}": partial(_unary, op) for name, op in UNARY.items()},
    **{f"aten.{name}": partial(_rounding, op) for name, op in ROUNDING.items()},
    **{f"aten.{name}": partial(_arithmetic, op) for name, op in ARITHMETIC.items()},
    **{f"aten.{name}": partial(_compare, op) for name, op in COMPARISONS.items()},
    **{f"aten.logical_{name}": partial(_logical, f"logical_{name}") for name in LOGIC},
    **{f"aten.bitwise_{name}": partial(_bitwise, name) for name in LOGIC},
    **{f"aten.__{name}__": partial(_bitwise, name) for name in LOGIC},
    **{f"aten.bitwise_{side}_shift": partial(_shift, f"shift_{side}") for side in SHIFTS},
    **{f"aten.__{name}__": partial(_shift, f"shift_{side}") for side, name in SHIFTS.items()},
    "aten.trunc": _trunc, "aten.sign": _sign, "aten.sgn": _sign, "aten.frac": _frac,
    "aten.exp2": _exp2,
    "aten.log2": partial(_scaled, "log", 1 / math.log(2)), "aten.log10": partial(_scaled, "log", 1 / math.log(10)),
    "aten.tan": _tan, "aten.square": _square, "aten.isnan": _isnan, "aten.isinf": _isinf,
    "aten.isfinite": _isfinite, "aten.nan_to_num": _nan_to_num, "aten.logical_not": _not,
    "aten.bitwise_not": _bitwise_not, "aten.gelu": _gelu, "aten.leaky_relu": _leaky_relu, "aten.elu": _elu,
    "aten.celu": _celu, "aten.selu": _selu, "aten.softplus": _softplus, "aten.log_sigmoid": _log_sigmoid,
    "aten.log_sigmoid_forward": _log_sigmoid_forward, "aten.hardsigmoid": _hard_sigmoid, "aten.hardtanh": _hard_tanh,
    "aten.relu6": _relu6, "aten.clamp": _clamp, "aten.clamp_min": _clamp_min, "aten.clamp_max": _clamp_max,
    "aten.threshold": _threshold, "aten.prelu": _prelu, "aten._prelu_kernel": _prelu, "aten.glu": _glu,
    "aten.softshrink": _soft_shrink, "aten.hardshrink": _hard_shrink, "aten.rsub": _reverse_sub, "aten.div": _div,
    "aten.true_divide": _div, "aten.floor_divide": _floor_divide, "aten.remainder": _remainder,
    "aten.fmod": _fmod, "aten.pow": _pow, "aten.xlogy": partial(_xlogy, "log", 0.0), "aten.sinc": _sinc,
    "aten.special_entr": _entr, "aten.logit": _logit,
    "aten.special_xlog1py": partial(_xlogy, "log1p", -1.0),
    "aten.where": _where, "aten.masked_fill": _masked_fill,
    "aten.lerp": _lerp, "aten.addcmul": partial(_addc, "mul"), "aten.addcdiv": partial(_addc, "div"),
    "aten.fill": _fill, "aten.copy": _copy,
}  # fmt: skip
