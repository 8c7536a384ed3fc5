"""Translators of element-wise ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import ml_dtypes
import numpy as np

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator, np_dtype
from burnish.frontend.onnx.dtypes import dtype_name, element_named
from burnish.loops.expr import FLOATS, ITEM_BYTES, NARROW

SAME_NAME = {  # one to one, no attributes
    "Relu": "relu", "Abs": "abs", "Neg": "neg", "Sign": "sign", "Exp": "exp", "Log": "log", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Tanh": "tanh", "Erf": "erf", "Sin": "sin", "Cos": "cos", "Floor": "floor",
    "Ceil": "ceil", "Round": "round", "IsNaN": "isnan", "Sigmoid": "sigmoid", "Softplus": "softplus",
    "Softsign": "softsign", "HardSwish": "hard_swish", "Mish": "mish", "Not": "logical_not", "Identity": "identity",
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "equal", "Less": "less",
    "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "And": "logical_and",
    "Or": "logical_or", "Xor": "logical_xor", "PRelu": "prelu", "Where": "where", "Sinh": "sinh", "Cosh": "cosh",
    "Asin": "asin", "Acos": "acos", "Atan": "atan", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip


def _plain(op: str, c: OnnxContext, n: OnnxNode) -> str:
    return c.add(op, *_broadcast(c, n))


def _broadcast(c: OnnxContext, n: OnnxNode) -> tuple[str, ...]:
    """The inputs; before opset 7 the second one's dimensions begin at ``axis`` of the first, if that is given."""
    if n.opset >= 7 or len(n.inputs) != 2:
        return n.inputs
    a, b = n.inputs
    axis = n.attr("axis")
    if n.op == "PRelu" and c.rank(b) == 1 and c.rank(a) > 1:
        axis = 1 if c.shape(b)[0] > 1 else None
    if axis is None:
        return n.inputs
    missing = c.rank(a) - c.axis(a, axis) - c.rank(b)
    if missing < 0:
        c.invalid("attribute 'axis'", axis, f"0 to {c.rank(a) - c.rank(b)}")
    return a, c.reshape(b, (*c.shape(b), *[1] * missing))


def _with_alpha(op: str, default: float, c: OnnxContext, n: OnnxNode) -> str:
    return c.add(op, n.inputs[0], alpha=n.attr("alpha", default))


def _variadic(op: str, c: OnnxContext, n: OnnxNode) -> str:
    """Variadic operator as a chain of binary ones; before opset 8 all inputs have one shape."""
    total = n.inputs[0]
    if n.opset < 8 and not all(c.may_be(c.shape(name), c.shape(total)) for name in n.inputs):
        c.invalid("inputs", f"shapes {[list(c.shape(name)) for name in n.inputs]}", "one shape before opset 8")
    for name in n.inputs[1:]:
        total = c.add(op, total, name)
    return total


def _mean(c: OnnxContext, n: OnnxNode) -> str:
    total = _variadic("add", c, n)
    return c.add("div", total, c.scalar(len(n.inputs), total))


def _clip(c: OnnxContext, n: OnnxNode) -> str:
    """Bounds are attributes before opset 11, then inputs; the lower one first, so that the upper one prevails.

    One that is left out is the least or greatest finite number, of float32 where it is an attribute: infinities become
    finite (ONNX, Clip-13: "They default to numeric_limits::lowest() and numeric_limits::max()").
    """
    x = n.inputs[0]
    real = c.dtype(x) in FLOATS
    limits = ml_dtypes.finfo(np_dtype("float32" if n.opset < 11 else c.dtype(x))) if real else None
    bounds: dict[str, int | float] = {}
    for position, key, op in ((1, "min", "maximum"), (2, "max", "minimum")):
        value = n.attrs.get(key)
        if n.input(position):
            c.require_one(n.input(position), key)
            array = c.builder.constants.get(n.input(position))
            if array is None or not real:  # computed at run time, or of integers
                x = c.add(op, c.add("clip", x, **bounds) if bounds else x, c.reshape(n.input(position), ()))
                bounds = {}
                continue
            value = array.reshape(-1)[0].item()
        elif value is None and limits is not None:
            value = float(getattr(limits, key))
        if value is not None:
            bounds[key] = value
    if bounds:
        return c.add("clip", x, **bounds)
    return c.add("identity", x) if x == n.inputs[0] else x


def _cast(c: OnnxContext, n: OnnxNode) -> str:
    to = n.attrs["to"]  # before opset 6 the type's name
    return _converted(c, n, dtype_name(element_named(to, str(n)) if isinstance(to, str) else to, str(n)))


def _cast_like(c: OnnxContext, n: OnnxNode) -> str:
    return _converted(c, n, c.dtype(n.inputs[1]))


def _converted(c: OnnxContext, n: OnnxNode, to: str) -> str:
    x = n.inputs[0]
    if to not in NARROW and c.dtype(x) not in NARROW:
        return c.add("cast", x, to=to)
    return c.add("convert", x, to=to, saturate=bool(n.attr("saturate", 1)), rounding=n.attr("round_mode", "up"))


def _pow(c: OnnxContext, n: OnnxNode) -> str:
    """The result has the base's dtype; powers are taken in a dtype that holds base and exponent."""
    x, exponent = _broadcast(c, n)
    dtype = c.dtype(x)
    value = c.builder.constants.get(exponent)
    if value is not None and np.array_equal(value.astype(np_dtype(dtype)).astype(value.dtype), value):
        return c.add("pow", x, c.cast(exponent, dtype))
    wide = _power_dtype(dtype, c.dtype(exponent))
    return c.cast(c.add("pow", c.cast(x, wide), c.cast(exponent, wide)), dtype)


def _power_dtype(base: str, exponent: str) -> str:
    """Computation dtype of Pow: of two integers the wider; with a float, one whose digits hold all values of both, or
    float64.
    """
    if base == exponent:
        return base
    digits = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
    if base not in FLOATS and exponent not in FLOATS:
        return "uint64" if exponent == "uint64" and base.startswith("u") else "int64"
    enough = max(digits.get(d, 8 * ITEM_BYTES[d]) for d in (base, exponent))
    floats = [d for d in (base, exponent) if d in FLOATS]
    return next((d for d in (*floats, "float32") if digits[d] >= enough), "float64")


def _mod(c: OnnxContext, n: OnnxNode) -> str:
    fmod = n.attr("fmod", 0)
    if fmod not in (0, 1):
        c.invalid("attribute 'fmod'", fmod, "0, 1")
    if not fmod and c.dtype(n.inputs[0]) in FLOATS and n.opset < 28:
        c.invalid("attribute 'fmod'", f"0 for dtype {c.dtype(n.inputs[0])}", "1 for floating-point numbers")
    return c.add("mod", *n.inputs, truncate=bool(fmod))


def _gelu(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("gelu", n.inputs[0], approximate=n.attr("approximate", "none"))


def _swish(c: OnnxContext, n: OnnxNode) -> str:
    x, alpha = n.inputs[0], n.attr("alpha", 1.0)
    if alpha == 1.0:
        return c.add("silu", x)
    return c.add("mul", x, c.add("sigmoid", c.add("mul", x, c.scalar(alpha, x))))


def _selu(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    alpha, gamma = n.attr("alpha"), n.attr("gamma")
    if alpha is None and gamma is None:
        return c.add("selu", x)
    scaled = c.add("elu", x, alpha=1.67326319217681884765625 if alpha is None else alpha)
    return c.add("mul", scaled, c.scalar(1.05070102214813232421875 if gamma is None else gamma, x))


def _hard_sigmoid(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("hard_sigmoid", n.inputs[0], alpha=n.attr("alpha", 0.2), beta=n.attr("beta", 0.5))


def _is_inf(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    negative, positive = n.attr("detect_negative", 1), n.attr("detect_positive", 1)
    if negative and positive:
        return c.add("isinf", x)
    if not negative and not positive:
        c.refuse("attributes 'detect_negative' and 'detect_positive'", "0 and 0", "at least one of them 1")
    return c.add("equal", x, c.scalar(np.inf if positive else -np.inf, x))


def _bit_shift(c: OnnxContext, n: OnnxNode) -> str:
    direction = n.attrs["direction"]
    if direction not in ("LEFT", "RIGHT"):
        c.invalid("attribute 'direction'", direction, "LEFT, RIGHT")
    return c.add(f"shift_{direction.lower()}", *n.inputs)


def _bitwise_not(c: OnnxContext, n: OnnxNode) -> str:
    dtype = c.dtype(n.inputs[0])
    ones = (1 << 8 * ITEM_BYTES[dtype]) - 1 if dtype.startswith("u") else -1
    return c.add("bitwise_xor", n.inputs[0], c.constant(ones, dtype))


def _tan(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    return c.add("div", c.add("sin", x), c.add("cos", x))


TRANSLATORS: Mapping[str, Translator] = {
    **{name: partial(_plain, op) for name, op in SAME_NAME.items()},
    "LeakyRelu": partial(_with_alpha, "leaky_relu", 0.01),
    "Elu": partial(_with_alpha, "elu", 1.0),
    "Celu": partial(_with_alpha, "celu", 1.0),
    "ThresholdedRelu": partial(_with_alpha, "thresholded_relu", 1.0),
    "Sum": partial(_variadic, "add"),
    "Max": partial(_variadic, "maximum"),
    "Min": partial(_variadic, "minimum"),
    "Mean": _mean,
    "Clip": _clip,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Pow": _pow,
    "Mod": _mod,
    "Gelu": _gelu,
    "Swish": _swish,
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "IsInf": _is_inf,
    "Tan": _tan,
    "BitShift": _bit_shift,
    "BitwiseNot": _bitwise_not,
}
