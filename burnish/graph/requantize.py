"""Requantization: sums of integers, scaled, plus a bias, rounded to integers of another scale, in few operations.

Scales, biases and sums are rounded in the order in which onnxruntime rounds them, so that both choose the same quantum
where a value is near a tie.

Sources: Jacob et al. 2018, section 2.4 (fused bias and scale); onnxruntime, ``MlasRequantizeOutput``,
``MlasQLinearAddKernelAvx2Helper`` and ``MlasQLinearGlobalAveragePool`` (order of operations).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from burnish.graph.bit_products import PRODUCTS
from burnish.graph.dequantized import (
    INTEGERS,
    VIEWS,
    Quantized,
    attributes_of,
    behind_guard,
    computed_by,
    constant_operand,
    dequantized,
)
from burnish.graph.graph import Node
from burnish.graph.rewrite import Rewrite
from burnish.loops.sizes import dims_of

MOST_PRODUCT = 255 * 128  # magnitude of a product of bytes
MOST_ADDENDS = 1 << 22  # bytes whose sum int32 holds, less a zero point
GREATEST = float(np.finfo(np.float32).max)
RISING = ("max_pool2d", "relu", "clip")  # which are the same of numbers and of what stands for them, in their order


# --- biases -----------------------------------------------------------------------------------------------------------


def products_of(new: Rewrite, node: Node) -> int:
    """Number of products in a sum of a convolution or a product of matrices."""
    shape = new.types[node.inputs[1]].shape
    if "conv2d" in node.op:
        return math.prod(shape[1:])
    return int(shape[-1 if node.attrs.get("transpose_b") else -2])


def in_steps(bias: np.ndarray, scale: np.ndarray, terms: int) -> np.ndarray | None:
    """Integer bias in units of float32 scales, if int32 holds it and a sum of that many products; otherwise None."""
    whole = np.rint(bias.astype(np.float64) / scale)
    if (
        np.any(whole.astype(np.float32) * scale != bias)
        or np.abs(whole).max(initial=0) + terms * MOST_PRODUCT >= 1 << 31
    ):
        return None
    return whole.astype(np.int32)


def plus_integers(new: Rewrite, total: str, whole: np.ndarray, node: Node) -> str:
    """A total of integers, int32 or float32 without rounding, plus constants: one addition with those that it has."""
    before, dtype = new.producer(total), new.types[total].dtype
    if before is not None and before.op == "add" and dtype == "int32":
        known = new.value(before.inputs[1])
        if known is not None:
            total, whole = before.inputs[0], whole + known
    return new.add("add", total, new.constant(whole.astype(dtype), new.fresh(f"{total}.bias")), node=node.name)


def with_integer_bias(new: Rewrite, node: Node) -> Sequence[str] | None:
    """``sums * f + b`` where the bias is quantized like the sums: ``(sums + c) * f``."""
    operands = constant_operand(new, node)
    found = _scaled_sums(new, operands[0]) if operands is not None else None
    if operands is None or found is None or found[2] is not None or operands[1].dtype != np.float32:
        return None
    cast, scale = computed_by(new, found[0], "cast", "float32"), found[1].astype(np.float32)
    shape, small = new.types[operands[0]].shape, np.broadcast_shapes(scale.shape, operands[1].shape)
    product = new.producer(cast.inputs[0]) if cast is not None else None
    while product is not None and product.op == "add":
        product = new.producer(product.inputs[0])
    if cast is None or product is None or product.op not in ("conv2d", "matmul", *PRODUCTS):
        return None
    if math.prod(small) > sum(shape) or new.source.types[node.outputs[0]].shape != shape:
        return None
    whole = in_steps(np.broadcast_to(operands[1], small), scale, products_of(new, product))
    if whole is None:
        return None
    total = new.add("cast", plus_integers(new, cast.inputs[0], whole, node), to="float32", node=node.name)
    return new.replace(node, "mul", total, new.constant(scale, new.fresh(f"{node.outputs[0]}.scale")))


# --- scales and roundings ---------------------------------------------------------------------------------------------


def requantized_by(new: Rewrite, node: Node) -> Sequence[str] | None:
    """A division of scaled sums of integers, which only this reads, by the scale of what they are rounded to."""
    name, divisor = node.inputs[0], new.value(node.inputs[1])
    if divisor is None or divisor.size != 1 or divisor.dtype != np.float32 or not divisor.item() > 0:
        return None
    readers = new.readers.get(node.outputs[0], [])
    if [reader.op for reader in readers] != ["round"]:
        return None
    between: list[Node] = []
    scale = float(divisor.item())
    while (before := new.producer(name)) is not None and new.used_once(name):
        if before.op not in ("relu", "clip", "reshape"):
            break
        between.append(before)
        name = before.inputs[0]
    found = _scaled_sums(new, name)
    if found is None:
        value = _sum_of_two(new, node, name, scale) or _mean(new, node, name, scale)
        if value is None:
            return None
    else:
        sums, factor, shift = found
        value = new.add("mul", sums, new.constant((factor / scale).astype(np.float32)), node=node.name)
        if shift is not None:
            value = new.add("add", value, new.constant((shift / scale).astype(np.float32)), node=node.name)
    for step in reversed(between):
        attrs = attributes_of(step)
        bounds = {key: attrs[key] / scale for key in ("min", "max") if attrs.get(key) is not None}
        bounds = {key: max(-GREATEST, min(bound, GREATEST)) for key, bound in bounds.items()}
        value = new.add(step.op, value, *step.inputs[1:], node=step.name, **{**attrs, **bounds})
    return [value]


def _sum_of_two(new: Rewrite, node: Node, name: str, scale: float) -> str | None:
    """The sum of two dequantized tensors over a scale, as one of their bytes times factors, and a number."""
    total = computed_by(new, name, "add", "float32")
    parts = [dequantized(new, each) for each in total.inputs] if total is not None else []
    if len(parts) != 2 or not new.used_once(name):
        return None
    shape, quotient = new.types[name].shape, np.float32(scale)
    moved = alone = np.float32(0)
    terms: list[str] = []
    for part in parts:
        if part is None or not part.single:
            return None
        if new.types[part.integers].shape != shape and new.value(part.integers) is None:
            return None
        factor, known = np.float32(part.scale.item()) / quotient, new.value(part.integers)
        moved += factor * np.float32(part.zero.item())
        if known is not None and known.size == 1:
            alone += factor * np.float32(known.item())
            continue
        number = new.add("cast", part.integers, to="int32", node=node.name)
        number = new.add("cast", number, to="float32", node=node.name)
        terms.append(new.add("mul", number, new.constant(factor), node=node.name))
    return _added(new, node, terms, -moved, alone) if terms else None


def _added(new: Rewrite, node: Node, terms: Sequence[str], number: np.float32, alone: np.float32) -> str:
    """The sum of one or two terms and two numbers, to which the second term is added first."""
    value = new.constant(np.float32(number))
    if alone:
        value = new.add("add", value, new.constant(np.float32(alone)), node=node.name)
    for term in reversed(terms):
        value = new.add("add", term, value, node=node.name)
    return value


def rounded_sum(new: Rewrite, node: Node) -> Sequence[str] | None:
    """A sum of two, rounded, plus a zero point, as bytes: the zero point goes into the sum's number."""
    total = new.producer(node.inputs[0])
    operands = constant_operand(new, total) if total is not None and total.op == "add" else None
    whole = behind_guard(new, new.producer(operands[0])) if operands is not None else None
    if operands is None or whole is None or whole.op != "round" or operands[1].size != 1:
        return None
    name, terms = whole.inputs[0], list[str]()
    while (part := computed_by(new, name, "add", "float32")) is not None and _is_scaled_byte(new, part.inputs[0]):
        terms.append(part.inputs[0])
        name = part.inputs[1]
    numbers = [new.value(each) for each in (part.inputs if part is not None else (name,))]
    if not terms or any(number is None or number.size != 1 for number in numbers):
        return None
    first, alone = [*(np.float32(number.item()) for number in numbers if number is not None), np.float32(0)][:2]
    value = _added(new, node, terms, first + np.float32(operands[1].item()), alone)
    return new.replace(node, "cast", new.add("round", value, node=node.name), **node.attrs)


def _is_scaled_byte(new: Rewrite, name: str) -> bool:
    """Whether a tensor is bytes times a number."""
    scaled = computed_by(new, name, "mul", "float32")
    number = computed_by(new, scaled.inputs[0], "cast", "float32") if scaled is not None else None
    whole = computed_by(new, number.inputs[0], "cast", "int32") if number is not None else None
    return whole is not None and new.types[whole.inputs[0]].dtype in INTEGERS


def _mean(new: Rewrite, node: Node, name: str, scale: float) -> str | None:
    """The mean of dequantized numbers over a scale, by the sum of their bytes."""
    mean = computed_by(new, name, "reduce_mean", "float32")
    x = dequantized(new, mean.inputs[0]) if mean is not None else None
    if mean is None or x is None or not x.single or not new.used_once(name):
        return None
    shape, axes = new.types[x.integers].shape, mean.attrs.get("axes")
    over = [shape[axis] for axis in axes if isinstance(axis, int)] if isinstance(axes, tuple) else []
    if not over or dims_of(tuple(over)) or math.prod(over) >= MOST_ADDENDS:
        return None
    count, zero = math.prod(over), int(x.zero.item())
    total = new.add(
        "reduce_sum", new.add("cast", x.integers, to="int32", node=node.name), node=node.name, **attributes_of(mean)
    )
    if zero:
        total = new.add("add", total, new.constant(np.int32(-zero * count)), node=node.name)
    factor = np.float32(x.scale.item()) / (np.float32(scale) * np.float32(count))
    total = new.add("cast", total, to="float32", node=node.name)
    return new.add("mul", total, new.constant(np.float32(factor)), node=node.name)


def _scaled_sums(new: Rewrite, name: str) -> tuple[str, np.ndarray, np.ndarray | None] | None:
    """``float32(sums) * factor + shift``: the first as float32, the others in float64; each is used only there."""
    shift, node = None, new.producer(name)
    if node is not None and node.op == "add" and new.used_once(name):
        operands = constant_operand(new, node)
        if operands is None:
            return None
        name, shift = operands[0], operands[1].astype(np.float64)
        node = new.producer(name)
    operands = constant_operand(new, node) if node is not None and node.op == "mul" and new.used_once(name) else None
    if operands is None or new.types[operands[0]].shape != new.types[name].shape:
        return None
    if not _are_sums(new, operands[0]):
        return None
    return operands[0], operands[1].astype(np.float64), shift


def _are_sums(new: Rewrite, name: str) -> bool:
    """Whether a float32 tensor is sums of integers: cast, or of a convolution of one channel a group, plus integers."""
    total = computed_by(new, name, "add", "float32")
    if total is not None and (operands := constant_operand(new, total)) is not None:
        name = operands[0]
    cast = computed_by(new, name, "cast", "float32")
    if cast is not None:
        return new.types[cast.inputs[0]].dtype == "int32"
    product = computed_by(new, name, "conv2d", "float32")
    weight = new.value(product.inputs[1]) if product is not None else None
    return weight is not None and bool(np.array_equal(weight, np.rint(weight)))


def same_integers(new: Rewrite, node: Node) -> Sequence[str] | None:
    """Numbers that were dequantized, moved, and are quantized by the same scale and zero point: the bytes, moved."""
    to = node.attrs["to"]
    before, zero = new.producer(node.inputs[0]), 0
    if before is not None and before.op == "add" and (operands := constant_operand(new, before)) is not None:
        if operands[1].size != 1:
            return None
        before, zero = new.producer(operands[0]), int(operands[1].item())
    before = behind_guard(new, before)
    if (
        before is None
        or before.op != "round"
        or (quotient := computed_by(new, before.inputs[0], "div", "float32")) is None
    ):
        return None
    scale = new.value(quotient.inputs[1])
    if scale is None or scale.size != 1:
        return None
    own = Quantized("", np.array(zero), scale.astype(np.float64))
    moved = _moved(new, quotient.inputs[0], own, str(to))
    return None if moved is None else [moved]


def _moved(new: Rewrite, name: str, own: Quantized, dtype: str) -> str | None:
    """The bytes that a tensor would be quantized to, without doing so."""
    node = new.producer(name)
    if node is None:
        return None
    if node.op in (*VIEWS, *RISING, "concat"):
        parts = [_moved(new, part, own, dtype) for part in node.inputs]
        known = [part for part in parts if part is not None]
        if len(known) != len(parts):
            return None
        op, attrs = node.op, attributes_of(node)
        if op in ("relu", "clip"):
            bounds = {"min": 0.0} if op == "relu" else {k: v for k, v in attrs.items() if v is not None}
            op, attrs = "clip", {key: own.integer_of(bound, dtype) for key, bound in bounds.items()}
        return new.add(op, *known, node=node.name, **attrs)
    found = dequantized(new, name)
    alike = found is not None and new.types[found.integers].dtype == dtype and found.is_like(own)
    return found.integers if found is not None and alike else None
