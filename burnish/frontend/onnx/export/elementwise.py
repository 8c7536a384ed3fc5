"""Exporters of element-wise operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import log

from burnish.frontend.onnx.dtypes import element_type
from burnish.frontend.onnx.elementwise import SAME_NAME
from burnish.frontend.onnx.export.writer import ExportedNode, Exporter, Writer
from burnish.loops.expr import FLOATS


def _plain(op_type: str, w: Writer, n: ExportedNode) -> str:
    """One to one: the attributes have the same names."""
    return w.emit(op_type, *n.inputs, **n.attrs)


def _stop_gradient(w: Writer, n: ExportedNode) -> str:
    return w.emit("Identity", *n.inputs)


def _rsqrt(w: Writer, n: ExportedNode) -> str:
    return w.emit("Reciprocal", w.emit("Sqrt", n.inputs[0]))


def _silu(w: Writer, n: ExportedNode) -> str:
    return w.emit("Mul", n.inputs[0], w.emit("Sigmoid", n.inputs[0]))


def _expm1(w: Writer, n: ExportedNode) -> str:
    """expm1 by Elu, which is e^x - 1 below 0; above it is -(e^-x - 1) e^x, from 1 on the difference itself."""
    (x,) = n.inputs
    power, one = w.emit("Exp", x), w.scalar(1, x)
    below = w.emit("Elu", w.emit("Neg", w.emit("Abs", x)), alpha=1.0)
    near = w.emit("Mul", w.emit("Neg", below), power)
    above = w.emit("Where", w.emit("Greater", x, one), w.emit("Sub", power, one), near)
    return w.emit("Where", w.emit("Greater", x, w.scalar(0, x)), above, below)


def _log1p(w: Writer, n: ExportedNode) -> str:
    """``log(w) x / (w - 1)`` with ``w = 1 + x``, and x where w is 1 (Kahan)."""
    (x,) = n.inputs
    one = w.scalar(1, x)
    whole = w.emit("Add", x, one)
    exact, log = w.emit("Equal", whole, one), w.emit("Log", whole)
    ratio = w.emit("Div", x, w.emit("Where", exact, one, w.emit("Sub", whole, one)))
    value = w.emit("Where", w.emit("IsInf", x), log, w.emit("Mul", log, ratio))
    return w.emit("Where", exact, x, value)


def _erfc(w: Writer, n: ExportedNode) -> str:
    return w.emit("Sub", w.scalar(1, n.inputs[0]), w.emit("Erf", n.inputs[0]))


def _logaddexp(w: Writer, n: ExportedNode) -> str:
    """The greater one, and ``log(1 + base^-d)`` of their distance d, by Softplus."""
    a, b = n.inputs
    unit, zero = log(float(n.attrs["base"])), w.scalar(0, a)
    apart = w.emit("Abs", w.emit("Where", w.emit("Equal", a, b), zero, w.emit("Sub", a, b)))
    more = w.emit("Softplus", w.emit("Mul", apart, w.scalar(-unit, a)))
    return w.emit("Add", w.emit("Max", a, b), w.emit("Mul", more, w.scalar(1 / unit, a)))


def _not_equal(w: Writer, n: ExportedNode) -> str:
    return w.emit("Not", w.emit("Equal", *n.inputs))


def _floor_div(w: Writer, n: ExportedNode) -> str:
    a, b = n.inputs
    if w.dtypes[a] in FLOATS:
        return w.emit("Floor", w.emit("Div", a, b))
    # ONNX's integer division truncates; what remains after the remainder with the sign of b divides exactly.
    return w.emit("Div", w.emit("Sub", a, w.emit("Mod", a, b)), b)


def _mod(w: Writer, n: ExportedNode) -> str:
    a, b = n.inputs
    if w.dtypes[a] not in FLOATS or n.attrs["truncate"]:
        return w.emit("Mod", a, b, fmod=int(n.attrs["truncate"]))
    rest, zero = w.emit("Mod", a, b, fmod=1), w.scalar(0, a)  # before opset 28 floats have the sign of a only
    differ = w.emit("Xor", w.emit("Less", rest, zero), w.emit("Less", b, zero))
    turned = w.emit("And", differ, w.emit("Not", w.emit("Equal", rest, zero)))
    return w.emit("Where", turned, w.emit("Add", rest, b), rest)


def _celu(w: Writer, n: ExportedNode) -> str:
    x = n.inputs[0]
    if w.dtypes[x] != "float64":
        return w.emit("Celu", x, **n.attrs)
    alpha, zero = w.scalar(n.attrs["alpha"], x), w.scalar(0, x)
    power = w.emit("Sub", w.emit("Exp", w.emit("Div", x, alpha)), w.scalar(1, x))  # ONNX's takes float32 only
    return w.emit("Add", w.emit("Max", x, zero), w.emit("Min", w.emit("Mul", alpha, power), zero))


def _prelu(w: Writer, n: ExportedNode) -> str:
    """ONNX broadcasts the slope only."""
    x, slope = n.inputs
    if w.shape(x) != w.result_shape:
        x = w.emit("Expand", x, w.ints(w.result_shape))
    return w.emit("PRelu", x, slope)


def _clip(w: Writer, n: ExportedNode) -> str:
    x = n.inputs[0]
    bounds = ["" if n.attrs[key] is None else w.scalar(n.attrs[key], x) for key in ("min", "max")]
    return w.emit("Clip", x, *bounds)


def _cast(w: Writer, n: ExportedNode) -> str:
    dtype = str(n.attrs["to"])
    return w.emit("Cast", n.inputs[0], dtype=dtype, to=element_type(dtype))


_PLAIN = {  # besides those that the importer translates one to one
    "minimum": "Min", "maximum": "Max", "pow": "Pow", "selu": "Selu", "isinf": "IsInf", "leaky_relu": "LeakyRelu",
    "elu": "Elu", "thresholded_relu": "ThresholdedRelu", "hard_sigmoid": "HardSigmoid", "gelu": "Gelu",
}  # fmt: skip
EXPORTERS: Mapping[str, Exporter] = {
    **{op: partial(_plain, op_type) for op_type, op in SAME_NAME.items()},
    **{op: partial(_plain, op_type) for op, op_type in _PLAIN.items()},
    "rsqrt": _rsqrt,
    "stop_gradient": _stop_gradient,
    "silu": _silu,
    "not_equal": _not_equal,
    "floor_div": _floor_div,
    "mod": _mod,
    "celu": _celu,
    "prelu": _prelu,
    "clip": _clip,
    "expm1": _expm1,
    "log1p": _log1p,
    "erfc": _erfc,
    "logaddexp": _logaddexp,
    "cast": _cast,
}
