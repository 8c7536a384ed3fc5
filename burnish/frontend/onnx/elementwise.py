"""Translators of element-wise ONNX operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from burnish.frontend.onnx.context import Context, OnnxNode, Translator
from burnish.frontend.onnx.dtypes import dtype_name
from burnish.loops.expr import FLOATS

SAME_NAME = {  # one to one, no attributes
    "Relu": "relu", "Abs": "abs", "Neg": "neg", "Sign": "sign", "Exp": "exp", "Log": "log", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Tanh": "tanh", "Erf": "erf", "Sin": "sin", "Cos": "cos", "Floor": "floor",
    "Ceil": "ceil", "Round": "round", "IsNaN": "isnan", "Sigmoid": "sigmoid", "Softplus": "softplus",
    "Softsign": "softsign", "HardSwish": "hard_swish", "Mish": "mish", "Not": "logical_not", "Identity": "identity",
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "equal", "Less": "less",
    "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal", "And": "logical_and",
    "Or": "logical_or", "Xor": "logical_xor", "PRelu": "prelu", "Where": "where",
}  # fmt: skip


def _plain(op: str, c: Context, n: OnnxNode) -> str:
    return c.add(op, *n.inputs)


def _with_alpha(op: str, default: float, c: Context, n: OnnxNode) -> str:
    return c.add(op, n.inputs[0], alpha=n.attr("alpha", default))


def _variadic(op: str, c: Context, n: OnnxNode) -> str:
    c.require_inputs(1)
    total = n.inputs[0]
    for name in n.inputs[1:]:
        total = c.add(op, total, name)
    return total


def _mean(c: Context, n: OnnxNode) -> str:
    total = _variadic("add", c, n)
    return c.add("div", total, c.scalar(len(n.inputs), total))


def _clip(c: Context, n: OnnxNode) -> str:
    x = n.inputs[0]
    bounds: dict[str, float] = {}
    for position, key in enumerate(("min", "max"), start=1):
        if key in n.attrs:
            bounds[key] = n.attrs[key]
        elif n.input(position):
            value = c.builder.constants.get(n.input(position))
            if value is None:  # a bound computed at run time
                x = c.add("maximum" if key == "min" else "minimum", x, n.input(position))
            else:
                bounds[key] = value.reshape(-1)[0].item()
    if c.dtype(x) in FLOATS:
        limit = float(np.finfo("float32").max)  # opset 6 writes "no bound" as the extreme float32
        bounds = {key: v for key, v in bounds.items() if abs(v) < limit}
        return c.add("clip", x, **bounds) if bounds else c.add("identity", x)
    for key, v in bounds.items():
        x = c.add("maximum" if key == "min" else "minimum", x, c.scalar(v, x))
    return x


def _cast(c: Context, n: OnnxNode) -> str:
    return c.add("cast", n.inputs[0], to=dtype_name(n.attrs["to"], str(n)))


def _cast_like(c: Context, n: OnnxNode) -> str:
    return c.add("cast", n.inputs[0], to=c.dtype(n.inputs[1]))


def _pow(c: Context, n: OnnxNode) -> str:
    x, exponent = n.inputs
    return c.add("pow", x, c.cast(exponent, c.dtype(x)))


def _mod(c: Context, n: OnnxNode) -> str:
    return c.add("mod", *n.inputs, truncate=bool(n.attr("fmod", 0)))


def _gelu(c: Context, n: OnnxNode) -> str:
    return c.add("gelu", n.inputs[0], approximate=n.attr("approximate", "none"))


def _swish(c: Context, n: OnnxNode) -> str:
    x, alpha = n.inputs[0], n.attr("alpha", 1.0)
    if alpha == 1.0:
        return c.add("silu", x)
    return c.add("mul", x, c.add("sigmoid", c.add("mul", x, c.scalar(alpha, x))))


def _selu(c: Context, n: OnnxNode) -> str:
    x = n.inputs[0]
    alpha, gamma = n.attr("alpha"), n.attr("gamma")
    if alpha is None and gamma is None:
        return c.add("selu", x)
    scaled = c.add("elu", x, alpha=1.67326319217681884765625 if alpha is None else alpha)
    return c.add("mul", scaled, c.scalar(1.05070102214813232421875 if gamma is None else gamma, x))


def _hard_sigmoid(c: Context, n: OnnxNode) -> str:
    return c.add("hard_sigmoid", n.inputs[0], alpha=n.attr("alpha", 0.2), beta=n.attr("beta", 0.5))


def _is_inf(c: Context, n: OnnxNode) -> str:
    x = n.inputs[0]
    negative, positive = n.attr("detect_negative", 1), n.attr("detect_positive", 1)
    if negative and positive:
        return c.add("isinf", x)
    if not negative and not positive:
        c.refuse("attributes 'detect_negative' and 'detect_positive'", "0 and 0", "at least one of them 1")
    return c.add("equal", x, c.scalar(np.inf if positive else -np.inf, x))


def _tan(c: Context, n: OnnxNode) -> str:
    x = n.inputs[0]
    return c.add("div", c.add("sin", x), c.add("cos", x))


def _hyperbolic(sign: float, c: Context, n: OnnxNode) -> str:
    """sinh or cosh: (e^x ± e^-x) / 2."""
    x = n.inputs[0]
    mirrored = c.add("mul", c.add("exp", c.add("neg", x)), c.scalar(sign, x))
    return c.add("mul", c.add("add", c.add("exp", x), mirrored), c.scalar(0.5, x))


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
    "Sinh": partial(_hyperbolic, -1.0),
    "Cosh": partial(_hyperbolic, 1.0),
}
