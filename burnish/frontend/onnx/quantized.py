"""Translators of ONNX's quantized operators: integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.frontend.onnx.dtypes import dtype_name
from burnish.frontend.onnx.integer_product import constant_weight, integer_matmul, is_zero, one, row_numbers
from burnish.frontend.onnx.window import as_image, convolution, restored, window_attributes
from burnish.graph.integer_products import Weight, byte_convolution
from burnish.loops.expr import NARROW, NARROW_FLOATS, NARROW_INTS

RANGES: Mapping[str, tuple[int, int]] = {
    "uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767),
    "uint4": (0, 15), "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1),
}  # fmt: skip

BYTEWISE = 4  # the level of accuracy of onnxruntime's products whose other factor is rounded to bytes
LEAST = -(2.0**31)  # what stands for all numbers below, and for NaN: with any zero point the least of a dtype


def _output_dtype(c: OnnxContext, n: OnnxNode, zero_point: str, default: str) -> str:
    """The dtype that ``output_dtype`` names, else that of the zero point, else ``default``."""
    given = n.attr("output_dtype", 0)
    if given:
        return dtype_name(given, str(n))
    return c.dtype(zero_point) if zero_point else default


def _spread(c: OnnxContext, n: OnnxNode, parameter: str, x: str) -> str:
    """A scale or zero point in a shape that broadcasts against ``x``: one number, one along an axis, or one a block."""
    shape = c.shape(parameter)
    if c.rank(parameter) == 0 or (c.rank(parameter) == 1 and shape[0] == 1 and not n.attr("block_size", 0)):
        return c.reshape(parameter, ())
    axis, rank, block = c.axis(x, n.attr("axis", 1)), c.rank(x), n.attr("block_size", 0)
    if block:
        return _blocks(c, parameter, x, axis, block)
    if len(shape) != 1 or shape[0] != c.shape(x)[axis]:
        allowed = f"one number, or {c.shape(x)[axis]} along axis {axis}"
        c.invalid("scale and zero point", f"shape {list(shape)}", allowed)
    return c.reshape(parameter, tuple(shape[0] if d == axis else 1 for d in range(rank)))


def _blocks(c: OnnxContext, parameter: str, x: str, axis: int, block: int) -> str:
    """One number for every ``block`` successive elements along ``axis``, repeated for each."""
    _require_blocks(c, parameter, x, axis, block)
    shape, whole = c.shape(parameter), c.shape(x)
    split = c.reshape(parameter, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    repeated = c.add("expand", split, shape=(*shape[: axis + 1], block, *shape[axis + 1 :]))
    joined = c.reshape(repeated, (*shape[:axis], shape[axis] * block, *shape[axis + 1 :]))
    return joined if shape[axis] * block == whole[axis] else c.slice(joined, axis, 0, whole[axis])


def _require_blocks(c: OnnxContext, parameter: str, x: str, axis: int, block: int) -> None:
    """Refuses scales and zero points that are not one for every ``block`` elements along ``axis``."""
    shape = c.shape(parameter)
    wanted = tuple(-(-e // max(block, 1)) if d == axis else e for d, e in enumerate(c.shape(x)))
    if block < 1 or shape != wanted:
        c.invalid("scale and zero point", f"shape {list(shape)}", f"{list(wanted)} for blocks of {block}")


def _blocked_matrix(c: OnnxContext, n: OnnxNode, to: str) -> str | None:
    """A constant matrix of bytes or of fewer bits that is dequantized in blocks; None of what is something else."""
    names = [name for name in (n.inputs[0], n.inputs[1], n.input(2)) if name]
    block, values = n.attr("block_size", 0), [c.builder.constants.get(name) for name in names]
    dtype = c.dtype(names[0])
    if not block or any(v is None for v in values) or c.rank(names[0]) != 2 or "float64" in (to, c.dtype(names[1])):
        return None
    if dtype not in ("uint8", "int8", *NARROW_INTS) or not c.weights.isdisjoint(names):
        return None
    axis = c.axis(names[0], n.attr("axis", 1))
    for name in names[1:]:
        _require_blocks(c, name, names[0], axis, block)
    integers, scale, *zero = (np.asarray(v) for v in values)
    matrix = BlockedMatrix(
        integers.astype("int8" if dtype.startswith("int") else "uint8"), scale.astype(np.float32),
        zero[0].astype(np.float32) if zero else np.zeros(scale.shape, np.float32),
        8 if dtype in ("uint8", "int8") else int(dtype[-1]), block, axis,
    )  # fmt: skip
    return c.cast(matrix.added(c), to)


@dataclass(frozen=True)
class BlockedMatrix:
    """A constant matrix of ``bits`` bits a number, as bytes, with a scale and zero point for every ``block`` along
    ``axis``.
    """

    integers: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    bits: int
    block: int
    axis: int

    def added(self, c: OnnxContext, bytewise: bool = False) -> str:
        """The node that dequantizes it, which no folding removes before products are found that read it."""
        arrays = [c.constant(np.ascontiguousarray(a)) for a in (self.integers, self.scale, self.zero)]
        attrs = {"bits": self.bits, "block": self.block, "axis": self.axis, "bytewise": bytewise}
        return c.emit("block_dequantize", *arrays, **attrs)[0]


def as_number(c: OnnxContext, x: str, dtype: str) -> str:
    """``x``, which may be narrow, as ``dtype``."""
    return c.add("convert", x, to=dtype) if c.dtype(x) in NARROW else c.cast(x, dtype)


def _quantize_linear(c: OnnxContext, n: OnnxNode) -> str:
    """``saturate(round(x / scale) + zero point)``."""
    x, scale, zero = n.inputs[0], n.inputs[1], n.input(2)
    to = _output_dtype(c, n, zero, "uint8")
    precision = n.attr("precision", 0)
    work = dtype_name(precision, str(n)) if precision else c.dtype(x) if c.dtype(x) != "int32" else "float32"
    quotient = c.add("div", c.cast(x, work), c.cast(_spread(c, n, scale, x), work))
    if to in NARROW_FLOATS:
        return c.add("convert", quotient, to=to, saturate=bool(n.attr("saturate", 1)))
    offset = as_number(c, _spread(c, n, zero, x), "int32") if zero else ""
    return saturated(c, quotient, offset, to)


def saturated(c: OnnxContext, x: str, zero_point: str, to: str) -> str:
    """Numbers rounded to nearest, ties to even, with an int32 zero point added, limited to what ``to`` holds.

    NaN becomes the least of these, as in onnxruntime and PyTorch.
    """
    if to not in RANGES:
        c.refuse("result", f"dtype {to}", ", ".join(RANGES))
    whole = c.cast(c.add("round", x), "float32")
    if RANGES[to][0]:  # a cast makes 0 of NaN
        least = c.constant(LEAST, "float32")
        whole = c.add("where", c.add("greater", whole, least), whole, least)
    whole = c.add("add", whole, c.cast(zero_point, "float32")) if zero_point else whole
    if to not in NARROW:
        return c.cast(whole, to)
    low, high = RANGES[to]
    return c.add("convert", c.cast(c.add("clip", whole, min=low, max=high), "int32"), to=to)


def _dequantize_linear(c: OnnxContext, n: OnnxNode) -> str:
    """``(x - zero point) * scale``, computed in float32. Of bytes the nodes stay, by which products and sums of
    integers are found (:mod:`burnish.graph.integer_products`).
    """
    x, scale, zero = n.inputs[0], n.inputs[1], n.input(2)
    to = dtype_name(n.attrs["output_dtype"], str(n)) if n.attr("output_dtype", 0) else c.dtype(scale)
    if (matrix := _blocked_matrix(c, n, to)) is not None:
        return matrix
    real = c.dtype(x) in NARROW_FLOATS
    work = "float64" if "float64" in (to, c.dtype(scale)) else "float32"
    offset = as_number(c, _spread(c, n, zero, x), "int32") if zero and not real else ""
    factor = c.cast(_spread(c, n, scale, x), work)
    if c.dtype(x) in ("int8", "uint8") and work == to:
        (value,) = c.emit("cast", x, to="int32")
        value = c.emit("sub", value, offset)[0] if offset else value
        return c.emit("mul", c.emit("cast", value, to=work)[0], factor)[0]
    value = as_number(c, x, "float32" if real else "int32")
    value = c.add("sub", value, offset) if offset else value
    return c.cast(c.add("mul", c.cast(value, work), factor), to)


# --- products ---------------------------------------------------------------------------------------------------------


def _matmul_integer(c: OnnxContext, n: OnnxNode) -> str:
    return integer_matmul(c, n.inputs[0], n.inputs[1], n.input(2), n.input(3))


def requantized(c: OnnxContext, total: str, factors: tuple[str, str, str], zero: str, to: str) -> str:
    """An int32 sum of products as numbers of the result's scale: factors are the operands' scales and the result's."""
    a, b, y = (c.cast(s, "float32") for s in factors)
    factor = c.add("div", c.add("mul", a, b), y)
    offset = c.cast(c.reshape(zero, ()) if one(c, zero) else zero, "int32") if zero else ""
    return saturated(c, c.add("mul", c.cast(total, "float32"), factor), offset, to)


def _as_row(c: OnnxContext, parameter: str, a: str) -> str:
    """A scale of the rows of ``a`` as a column; one number without dimensions."""
    return row_numbers(c, parameter, a)


def _qlinear_matmul(c: OnnxContext, n: OnnxNode) -> str:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = n.inputs
    total = integer_matmul(c, a, b, a_zero, b_zero)
    scales = (_as_row(c, a_scale, a), c.reshape(b_scale, ()) if one(c, b_scale) else b_scale, _as_row(c, y_scale, a))
    if not one(c, b_scale):
        c.require_onto(b_scale, "b_scale", (*c.shape(b)[:-2], 1, c.shape(b)[-1])[-c.rank(b) :])
    return requantized(c, total, scales, _as_row(c, y_zero, a), c.dtype(y_zero))


def _per_channel(c: OnnxContext, parameter: str, rank: int) -> str:
    """One number, or one an output channel, against [N, C, ...]."""
    return c.reshape(parameter, ()) if one(c, parameter) else c.reshape(parameter, (*c.shape(parameter), *[1] * rank))


def integer_convolution(c: OnnxContext, x: str, weight: str, x_zero: str, w_zero: str) -> str:
    """The convolution of ``x - x_zero`` with ``weight - w_zero`` in int32; the node's attributes say how.

    An image stays as it is, padded with its zero point, if the weight is a constant: of bytes without its zero point,
    or of such and a number for each output channel, which is multiplied by the sum of the window.
    """
    known = constant_weight(c, weight, w_zero, 0) if c.rank(x) in (3, 4) else None
    if known is not None:
        return _byte_convolution(c, x, known, x_zero)
    if not is_zero(c, x_zero):
        x = c.add("sub", c.cast(x, "int32"), c.cast(c.reshape(x_zero, ()), "int32"))
    if not is_zero(c, w_zero):
        zero = w_zero if one(c, w_zero) else c.reshape(w_zero, (*c.shape(w_zero), *[1] * (c.rank(weight) - 1)))
        zero = c.reshape(zero, ()) if one(c, zero) else zero
        weight = c.add("sub", c.cast(weight, "int16"), c.cast(zero, "int16"))
    if c.dtype(weight) == "int16" and c.dtype(x) == "uint8":
        x = c.cast(x, "int16")
    return convolution(c, x, weight, "")


def _byte_convolution(c: OnnxContext, x: str, weight: Weight, x_zero: str) -> str:
    """Integer convolution of images; signals are images of one row."""
    attrs, shape = window_attributes(c, weight.integers.shape[2:]), weight.integers.shape
    weight = Weight(weight.integers.reshape(*shape[:2], -1, shape[-1]), weight.moved)
    known, image = c.builder.constants.get(x_zero), as_image(c, x)
    zero = 0 if is_zero(c, x_zero) else c.reshape(x_zero, ()) if known is None else int(known.reshape(()))
    return restored(c, byte_convolution(c.add, c.constant, (image, c.shape(image)), weight, zero, attrs), c.rank(x))


def _conv_integer(c: OnnxContext, n: OnnxNode) -> str:
    return integer_convolution(c, n.inputs[0], n.inputs[1], n.input(2), n.input(3))


def _qlinear_conv(c: OnnxContext, n: OnnxNode) -> str:
    x, x_scale, x_zero, weight, w_scale, w_zero, y_scale, y_zero = n.inputs[:8]
    total = integer_convolution(c, x, weight, x_zero, w_zero)
    rank = c.rank(x) - 2
    if n.input(8):
        total = c.add("add", total, c.reshape(n.input(8), (*c.shape(n.input(8)), *[1] * rank)))
    scales = c.reshape(x_scale, ()), _per_channel(c, w_scale, rank), c.reshape(y_scale, ())
    return requantized(c, total, scales, y_zero, c.dtype(y_zero))


def _bitcast(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("bitcast", n.inputs[0], to=dtype_name(n.attrs["to"], str(n)))


# --- of onnxruntime ---------------------------------------------------------------------------------------------------


def real(c: OnnxContext, x: str, scale: str, zero: str) -> str:
    """``(x - zero) * scale`` in float32, of one scale; the nodes stay, of constants, too, as of DequantizeLinear."""
    (value,) = c.emit("cast", x, to="int32")
    if not is_zero(c, zero):
        (value,) = c.emit("sub", value, c.cast(c.reshape(zero, ()), "int32"))
    return c.emit("mul", c.emit("cast", value, to="float32")[0], c.reshape(scale, ()))[0]


def narrowed(c: OnnxContext, x: str, scale: str, zero: str, like: str) -> str:
    """Floats as integers of one scale, of the dtype of ``like``."""
    offset = c.cast(c.reshape(zero, ()), "int32") if zero else ""
    return saturated(c, c.add("div", x, c.reshape(scale, ())), offset, c.dtype(like))


def _qlinear_binary(op: str, c: OnnxContext, n: OnnxNode) -> str:
    a, a_scale, a_zero, b, b_scale, b_zero, scale = n.inputs[:7]
    value = c.add(op, real(c, a, a_scale, a_zero), real(c, b, b_scale, b_zero))
    return narrowed(c, value, scale, n.input(7), a)


def _qlinear_unary(op: str, c: OnnxContext, n: OnnxNode) -> str:
    x, x_scale, x_zero, scale = n.inputs[:4]
    attrs = {"alpha": n.attr("alpha", 0.01)} if op == "leaky_relu" else {}
    return narrowed(c, c.add(op, real(c, x, x_scale, x_zero), **attrs), scale, n.input(4), x)


def _qlinear_softmax(c: OnnxContext, n: OnnxNode) -> str:
    """Before opset 13 all axes from ``axis`` on are one."""
    x, x_scale, x_zero, scale = n.inputs[:4]
    value, axis = real(c, x, x_scale, x_zero), c.axis(x, n.attr("axis", -1))
    if n.attr("opset", 13) >= 13:
        return narrowed(c, c.add("softmax", value, axis=axis), scale, n.input(4), x)
    flat = c.add("softmax", c.flatten(value, axis), axis=1)
    return narrowed(c, c.reshape(flat, c.shape(x)), scale, n.input(4), x)


def _qlinear_global_pool(c: OnnxContext, n: OnnxNode) -> str:
    x, x_scale, x_zero, scale = n.inputs[:4]
    last = bool(n.attr("channels_last", 0))
    axes = tuple(range(1, c.rank(x) - 1)) if last else tuple(range(2, c.rank(x)))
    return narrowed(c, c.add("reduce_mean", real(c, x, x_scale, x_zero), axes=axes), scale, n.input(4), x)


def _qlinear_average_pool(c: OnnxContext, n: OnnxNode) -> str:
    x, x_scale, x_zero, scale = n.inputs[:4]
    if n.attr("channels_last", 0):
        c.refuse("attribute 'channels_last'", 1, "0")
    attrs = {key: value for key, value in n.attrs.items() if key != "channels_last"}
    c.node = replace(n, op="AveragePool", inputs=(real(c, x, x_scale, x_zero),), attrs=attrs, opset=19)
    mean = c.translators["AveragePool"](c, c.node)
    c.node = n
    assert isinstance(mean, str)
    return narrowed(c, mean, scale, n.input(4), x)


def _qlinear_concat(c: OnnxContext, n: OnnxNode) -> str:
    scale, zero, parts = n.inputs[0], n.inputs[1], n.inputs[2:]
    groups = [parts[i : i + 3] for i in range(0, len(parts), 3)]
    joined = c.add("concat", *(real(c, *group) for group in groups), axis=n.attrs["axis"])
    return narrowed(c, joined, scale, zero, parts[0])


def _qgemm(c: OnnxContext, n: OnnxNode) -> str:
    """``alpha * A' B' + C``, requantized if the result has a scale, else float32."""
    a, a_scale, a_zero, b, b_scale, b_zero = n.inputs[:6]
    a = c.transpose(a, (1, 0)) if n.attr("transA", 0) else a
    b = c.transpose(b, (1, 0)) if n.attr("transB", 0) else b
    total = integer_matmul(c, a, b, a_zero, b_zero)
    if n.input(6):
        total = c.add("add", total, n.input(6))
    b_factor = c.reshape(b_scale, ()) if one(c, b_scale) else b_scale
    factor = c.add("mul", c.add("mul", c.reshape(a_scale, ()), b_factor), c.constant(n.attr("alpha", 1.0), "float32"))
    if n.input(7):
        unit = c.constant(1.0, "float32")
        return requantized(c, total, (factor, unit, c.reshape(n.input(7), ())), n.input(8), c.dtype(a))
    return c.add("mul", c.cast(total, "float32"), factor)


def _matmul_integer_to_float(c: OnnxContext, n: OnnxNode) -> str:
    a, b, a_scale, b_scale = n.inputs[:4]
    return scaled_product(c, a, b, (_as_row(c, a_scale, a), b_scale), (n.input(4), n.input(5)), n.input(6))


def scaled_product(c: OnnxContext, a: str, b: str, scales: tuple[str, str], zeros: tuple[str, str], bias: str) -> str:
    """The product of quantized matrices as float32, plus a bias if there is one."""
    total = c.cast(integer_matmul(c, a, b, *zeros), "float32")
    second = c.reshape(scales[1], ()) if one(c, scales[1]) else scales[1]
    value = c.add("mul", total, c.add("mul", scales[0], second))
    return c.add("add", value, bias) if bias else value


def _dynamic_quantize_matmul(c: OnnxContext, n: OnnxNode) -> str:
    """A float matrix quantized by its own range, times a quantized one."""
    return dynamic_product(c, n.inputs[0], n.inputs[1], (n.inputs[2], n.input(3)), n.input(4))


def dynamic_product(
    c: OnnxContext, x: str, weight: str, parameters: tuple[str, str], bias: str = "", by_row: bool = False
) -> str:
    """A float matrix quantized by its own range, or each of its rows by its, times one of this scale and zero point."""
    a, scale, zero = dynamically_quantized(c, x, by_row)
    return scaled_product(c, a, weight, (scale, parameters[0]), (zero, parameters[1]), bias)


def dynamically_quantized(c: OnnxContext, x: str, by_row: bool = False) -> tuple[str, str, str]:
    """uint8 numbers, scale and zero point of floats by their range, to which 0 belongs (DynamicQuantizeLinear).

    ``by_row``: the range of each row, of a matrix; scale and zero point are columns.
    """
    zero = c.scalar(0.0, x)
    axes = {"axes": (1,), "keepdims": True} if by_row else {"keepdims": False}
    high = c.add("maximum", c.add("reduce_max", x, **axes), zero)
    low = c.add("minimum", c.add("reduce_min", x, **axes), zero)
    width = c.add("sub", high, low)
    span = c.add("where", c.add("equal", width, zero), c.scalar(1.0, x), width)
    scale = c.add("div", span, c.scalar(255.0, x))
    point = c.add("clip", c.add("round", c.add("div", c.add("sub", zero, low), scale)), min=0.0, max=255.0)
    whole = c.cast(point, "int32")
    return saturated(c, c.add("div", x, scale), whole, "uint8"), scale, c.cast(whole, "uint8")


def _dynamic_quantize_linear(c: OnnxContext, n: OnnxNode) -> tuple[str, str, str]:
    return dynamically_quantized(c, n.inputs[0])


def _matmul_n_bits(c: OnnxContext, n: OnnxNode) -> str:
    """A matrix times one of 2, 4 or 8 bits a number with a scale a block [N, blocks, bytes of a block], transposed."""
    a, packed, scales = n.inputs[:3]
    depth, columns, bits, block = n.attrs["K"], n.attrs["N"], n.attr("bits", 4), n.attrs["block_size"]
    if bits not in (2, 4, 8):
        c.refuse("attribute 'bits'", bits, "2, 4, 8")
    blocks, per_byte = -(-depth // block), 8 // bits
    integers = _unpacked(c.static(packed, "B"), bits).reshape(columns, blocks * block)[:, :depth]
    zero = np.full((columns, blocks), 1 << (bits - 1), np.float32)
    if n.input(3):
        zeros = c.static(n.input(3), "zero_points")
        if zeros.dtype == np.uint8:
            zeros = _unpacked(zeros.reshape(columns, -(-blocks // per_byte)), bits)[:, :blocks]
        zero = zeros.reshape(columns, blocks).astype(np.float32)
    if n.input(4):
        group = c.static(n.input(4), "g_idx")
        if not np.array_equal(group, np.arange(depth) // block):
            c.refuse("input 'g_idx'", "a permutation", "blocks of successive rows")
    scale = c.static(scales, "scales").reshape(columns, blocks).astype(np.float32)
    matrix = BlockedMatrix(np.ascontiguousarray(integers.T), scale.T, zero.T, bits, block, 0)
    bytewise = n.attr("accuracy_level", 0) == BYTEWISE
    y = c.add("matmul", a, c.cast(matrix.added(c, bytewise), c.dtype(a)))
    return c.add("add", y, n.input(5)) if n.input(5) else y


def _unpacked(data: np.ndarray, bits: int) -> np.ndarray:
    """The numbers of ``bits`` bits in bytes, the lowest first, along the last axis."""
    parts = [(data >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*data.shape[:-1], -1)


_RUNTIME: Mapping[str, Translator] = {
    "QLinearAdd": partial(_qlinear_binary, "add"),
    "QLinearMul": partial(_qlinear_binary, "mul"),
    "QLinearLeakyRelu": partial(_qlinear_unary, "leaky_relu"),
    "QLinearSigmoid": partial(_qlinear_unary, "sigmoid"),
    "QLinearSoftmax": _qlinear_softmax,
    "QLinearAveragePool": _qlinear_average_pool,
    "QLinearGlobalAveragePool": _qlinear_global_pool,
    "QLinearConcat": _qlinear_concat,
    "QGemm": _qgemm,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulNBits": _matmul_n_bits,
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
}
TRANSLATORS: Mapping[str, Translator] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "ConvInteger": _conv_integer,
    "QLinearConv": _qlinear_conv,
    "BitCast": _bitcast,
    **{f"com.microsoft.{name}": translator for name, translator in _RUNTIME.items()},
}
