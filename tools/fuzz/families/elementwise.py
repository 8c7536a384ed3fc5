"""Draws of element-wise operators: of floats, of integers, and of conditions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from onnx import helper

from burnish.runtime.buffers import numpy_dtype
from tools.fuzz.families.common import Draw, nonzero, partner, within
from tools.fuzz.sketch import DTYPES, FLOATS, INTS, SIGNED, Rejected, Sketch
from tools.fuzz.standard import is_float

# Operator -> the interval on which its values are tame.
UNARY = {
    "Abs": (-1e4, 1e4), "Ceil": (-1e4, 1e4), "Cos": (-100, 100), "Erf": (-1e4, 1e4), "Exp": (-20, 5),
    "Floor": (-1e4, 1e4), "HardSwish": (-1e4, 1e4), "Identity": (-1e4, 1e4), "Log": (1e-2, 1e4), "Mish": (-50, 50),
    "Neg": (-1e4, 1e4), "Reciprocal": (0.05, 1e4), "Relu": (-1e4, 1e4), "Round": (-1e4, 1e4), "Sigmoid": (-50, 50),
    "Sign": (-1e4, 1e4), "Sin": (-100, 100), "Softplus": (-50, 50), "Softsign": (-1e4, 1e4), "Sqrt": (0, 1e4),
    "Tan": (-1.3, 1.3), "Tanh": (-50, 50), "Sinh": (-6, 6), "Cosh": (-6, 6),
}  # fmt: skip
COMMON = ("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Abs", "Sqrt")
WITH_ALPHA = {"Elu": 1.0, "Celu": 1.0, "LeakyRelu": 0.01, "ThresholdedRelu": 1.0}


def unary(s: Sketch) -> None:
    op = s.choose(COMMON) if s.chance(0.4) else s.choose(tuple(UNARY))
    x = s.pick(s.types(op, 0, FLOATS))
    s.add(op, x if s.special else within(s, x, *UNARY[op]))


def parametric(s: Sketch) -> None:
    """Activations with attributes."""
    op = s.choose((*WITH_ALPHA, "Selu", "HardSigmoid", "Gelu", "Swish", "Clip"))
    x = within(s, s.pick(s.types(op, 0, FLOATS)), -20, 20)
    if op in WITH_ALPHA:
        s.add(op, x, alpha=s.choose((None, 0.2, 0.5, 2.0, 1.0)))
    elif op == "Selu":
        s.add(op, x, alpha=s.choose((None, 1.5)), gamma=s.choose((None, 0.7)))
    elif op == "HardSigmoid":
        s.add(op, x, alpha=s.choose((None, 0.3)), beta=s.choose((None, 0.4)))
    elif op == "Gelu":
        s.add(op, x, approximate=s.choose((None, "none", "tanh")))
    elif op == "Swish":
        s.add(op, x, alpha=s.choose((None, 1.7)))
    else:
        clip(s)


def clip(s: Sketch, dtypes: tuple[str, ...] = FLOATS) -> None:
    x = s.pick(s.types("Clip", 0, dtypes))
    low, high = sorted(s.array((2,), s.kind(x)).tolist())
    if s.opset < 11:
        s.add("Clip", x, min=s.choose((None, float(low))), max=s.choose((None, float(high))))
        return
    bounds = [s.new(np.asarray(v, s.value(x).dtype), s.chance(0.7)) if s.chance(0.8) else "" for v in (low, high)]
    s.add("Clip", x, *bounds)


def binary(s: Sketch, dtypes: tuple[str, ...] = FLOATS) -> None:
    op = s.choose(("Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min"))
    x = s.pick(s.types(op, 0, dtypes))
    y = nonzero(s, x) if op == "Div" else partner(s, x)
    s.add(op, *((x, y) if op == "Div" or s.chance(0.6) else (y, x)))


def residual(s: Sketch) -> None:
    """x and f(x) joined again."""
    x = s.pick(FLOATS)
    y = x
    for _ in range(s.between(1, 3)):
        op = s.choose(COMMON)
        y = s.add(op, y if s.special else within(s, y, *UNARY[op]))
    s.add(s.choose(("Add", "Mul", "Sub", "Max")), *((x, y) if s.chance(0.5) else (y, x)))


def variadic(s: Sketch, dtypes: tuple[str, ...] = FLOATS) -> None:
    op = s.choose(("Sum", "Mean", "Max", "Min"))
    x = s.pick(s.types(op, 0, dtypes))
    s.add(op, x, *(partner(s, x) for _ in range(s.between(0, 4))))


def power(s: Sketch) -> None:
    x = s.pick(s.types("Pow", 0, FLOATS))
    if s.chance(0.6):
        exponents = np.asarray(s.choose((2.0, 3.0, 1.0, 0.0, -1.0, 4.0)), s.value(x).dtype)
        x = within(s, x, 0.2, 4) if exponents < 0 else within(s, x, -5, 5)
        s.add("Pow", x, s.new(exponents))
    else:
        x = within(s, x, 0.2, 4)
        s.add("Pow", x, s.new(s.floats((), s.kind(x), -2, 2)) if s.chance(0.4) else within(s, partner(s, x), -2, 2))


def prelu(s: Sketch) -> None:
    x = s.pick(s.types("PRelu", 0, FLOATS), (1, 2, 3, 4, 5))
    shape = tuple(1 if s.chance(0.3) else e for e in s.value(x).shape[s.between(0, s.value(x).ndim - 1) :])
    s.add("PRelu", x, s.new(s.floats(shape, s.kind(x), 0, 0.5)))


def modulo(s: Sketch) -> None:
    x = s.pick(s.types("Mod", 0, FLOATS))
    s.add("Mod", x, nonzero(s, x), fmod=1)


def convert(s: Sketch) -> None:
    """A cast; floats become integers only where those can hold them."""
    x = s.pick(DTYPES)
    value = s.value(x)
    to = s.choose((*DTYPES, "float32", "float32"))
    if is_float(value) and to in INTS:
        if not np.isfinite(value).all():
            raise Rejected("NaN has no integer")
        info = np.iinfo(to)
        x = within(s, x, max(info.min, -1000), min(info.max, 1000))
    number = helper.np_dtype_to_tensor_dtype(numpy_dtype(to))
    if s.opset >= 15 and s.chance(0.2):
        s.add("CastLike", x, s.new(s.array((2,), to)))
    else:
        s.add("Cast", x, to=number)


def integer_unary(s: Sketch) -> None:
    op = s.choose(("Abs", "Neg", "Sign", "Relu", "Identity"))
    s.add(op, s.pick(s.types(op, 0, INTS)))


def divide(s: Sketch) -> None:
    """Quotients and remainders of integers, the dividends of either sign."""
    op = s.choose(("Div", "Mod", "Mod"))
    x = s.pick(s.types(op, 0, INTS), (1, 2, 3, 4) if s.chance(0.9) else (0,))
    y = nonzero(s, x)
    if s.kind(x) in SIGNED and bool((s.value(x) == np.iinfo(s.value(x).dtype).min).any()):
        raise Rejected("the smallest integer divided by -1 is not defined")
    s.add(op, x, y, fmod=s.choose((None, 1)) if op == "Mod" else None)


def integer_power(s: Sketch) -> None:
    x = within(s, s.pick(s.types("Pow", 0, ("int32", "int64"))), -4, 4)
    s.add("Pow", x, s.new(s.integers((), s.kind(x), 0, 3)))


def compare(s: Sketch) -> None:
    op = s.choose(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"))
    x = s.pick(s.types(op, 0, DTYPES))
    s.add(op, x, partner(s, x))


def logical(s: Sketch) -> None:
    op = s.choose(("And", "Or", "Xor", "Not"))
    x = s.pick(("bool",))
    s.add(op, x) if op == "Not" else s.add(op, x, partner(s, x))


def where(s: Sketch) -> None:
    x = s.pick(DTYPES)
    y = partner(s, x)
    shape = s.value(x).shape
    found = s.find(lambda v: v.dtype == bool and v.ndim <= len(shape) and v.shape == shape[len(shape) - v.ndim :])
    condition = s.new(s.array(shape, "bool")) if found is None else found
    s.add("Where", condition, *((x, y) if s.chance(0.5) else (y, x)))


def classify(s: Sketch) -> None:
    op = s.choose(("IsNaN", "IsInf"))
    x = s.pick(s.types(op, 0, FLOATS))
    if op == "IsInf":
        s.add(op, x, **s.choose(({}, {"detect_negative": 0}, {"detect_positive": 0})))
    else:
        s.add(op, x)


DRAWS: Mapping[str, Draw] = {
    "unary": unary, "unary2": unary, "parametric": parametric, "clip": clip, "binary": binary, "binary2": binary,
    "residual": residual, "variadic": variadic, "power": power, "prelu": prelu, "modulo": modulo, "convert": convert,
}  # fmt: skip
INTEGER_DRAWS: Mapping[str, Draw] = {
    "integer_unary": integer_unary, "divide": divide, "divide2": divide, "binary": partial(binary, dtypes=INTS),
    "variadic": partial(variadic, dtypes=INTS), "clip": partial(clip, dtypes=INTS), "integer_power": integer_power,
    "convert": convert,
}  # fmt: skip
LOGIC_DRAWS: Mapping[str, Draw] = {"compare": compare, "logical": logical, "where": where, "classify": classify}
