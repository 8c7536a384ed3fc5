"""Folding of affine maps into weights: batch normalization and scales go into the product before, shifts into a bias.

Source: Jacob et al. 2018, section 3.2 (batch normalization folding).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from burnish import ops
from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.numeric import overflows, underflows


def fold_affine(graph: Graph) -> Graph:
    """``graph`` with scales and shifts by constants folded into the constants of what comes before.

    batch_norm(x)            →  x * scale + shift
    conv2d(x, W) * s         →  conv2d(x, W * s)          also matmul and conv2d_transpose; s one value a channel
    (y + b) * s              →  y * s + b * s             where y * s folds as above
    (y * a) * s              →  y * (a * s)
    (y + b) + c              →  y + (b + c)

    Where constants that are folded overflow, their node stays: what comes before it may have led back into range. So do
    two scales, or two shifts, of what is rounded later.
    """
    return rewrite(graph, _rule)


def _rule(new: Rewrite, node: Node) -> Sequence[str] | None:
    match node.op:
        case "batch_norm":
            return _batch_norm(new, node)
        case "mul":
            return _scale(new, node)
        case "add":
            return _shift(new, node)
    return None


def _batch_norm(new: Rewrite, node: Node) -> Sequence[str] | None:
    """A scale and a shift in float64 from the statistics, rounded once."""
    x, *parameters = node.inputs
    values = [new.value(p) for p in parameters]
    if any(v is None for v in values):
        return None
    gamma, beta, mean, variance = (v.astype(np.float64) for v in values if v is not None)
    epsilon = ops.OPERATORS[node.op].complete(node.attrs)["epsilon"]
    scale = gamma / np.sqrt(variance + epsilon)
    shift = beta - mean * scale
    dtype, rank = new.types[x].dtype, len(new.types[x].shape)
    broadcast = (-1,) + (1,) * (rank - 2)
    out = node.outputs[0]
    factor = new.constant(scale.reshape(broadcast).astype(dtype), new.fresh(f"{out}.scale"))
    offset = new.constant(shift.reshape(broadcast).astype(dtype), new.fresh(f"{out}.shift"))
    scaled = _scaled(new, x, factor, new.fresh(f"{out}.scaled"))
    if scaled is None:
        scaled = new.add("mul", x, factor, name=new.fresh(f"{out}.scaled"), node=node.name)
    return _shifted(new, scaled, offset, out, node.name)


def _scale(new: Rewrite, node: Node) -> Sequence[str] | None:
    operands = _data_and_constant(new, node)
    if operands is None or _rounds_twice(new, node, operands[0], "mul") or _scales_integers(new, node, operands[0]):
        return None
    scaled = _scaled(new, *operands, node.outputs[0])
    return None if scaled is None else [scaled]


def _shift(new: Rewrite, node: Node) -> Sequence[str] | None:
    operands = _data_and_constant(new, node)
    if operands is None or _rounds_twice(new, node, operands[0], "add"):
        return None
    return _shifted(new, *operands, node.outputs[0], node.name)


def _rounds_twice(new: Rewrite, node: Node, x: str, op: str) -> bool:
    """Whether a node and one like it before are to round one after the other: a quantum depends on both roundings."""
    before = new.producer(x)
    return before is not None and before.op == op and new.is_rounded(node)


def _scales_integers(new: Rewrite, node: Node, x: str) -> bool:
    """Whether a node scales sums of whole numbers, which are exact, and its result is rounded to a quantum."""
    before = new.producer(x)
    while before is not None and before.op == "add" and (operands := _data_and_constant(new, before)) is not None:
        before = new.producer(operands[0])
    weight = new.value(before.inputs[1]) if before is not None and len(before.inputs) == 2 else None
    if weight is None or weight.ndim < 2 or not new.is_rounded(node):
        return False
    return bool(np.array_equal(weight, np.rint(weight)))


def _data_and_constant(new: Rewrite, node: Node) -> tuple[str, str] | None:
    a, b = node.inputs
    if (a in new.constants) == (b in new.constants):
        return None
    return (b, a) if a in new.constants else (a, b)


def _scaled(new: Rewrite, x: str, factor: str, name: str) -> str | None:
    """``x * factor`` without a multiplication: the factor goes into the weight behind ``x``; None where it cannot."""
    before = new.producer(x)
    if before is None or not new.used_once(x):
        return None
    if before.op in ("add", "mul"):
        operands = _data_and_constant(new, before)
        if operands is None:
            return None
        y, bias = operands
        if before.op == "mul":
            return _merged_scale(new, y, bias, factor, name)
        shift = _folded(np.multiply, new.constants[bias], new.constants[factor])
        inner = None if shift is None else _scaled(new, y, factor, new.fresh(f"{name}.product"))
        if shift is None or inner is None:
            return None
        return new.add("add", inner, new.constant(shift, new.fresh(f"{name}.bias")), name=name, node=before.name)
    weight = _scaled_weight(new, before, new.constants[factor])
    if weight is None:
        return None
    changed = new.constant(weight, new.fresh(f"{before.inputs[1]}.scaled"))
    return new.add(before.op, before.inputs[0], changed, name=name, node=before.name, **before.attrs)


def _folded(apply: np.ufunc, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Two constants as one; None where that overflows."""
    with np.errstate(all="ignore"):
        value = np.asarray(apply(a, b))
    return None if overflows(value, a, b) else value


def _merged_scale(new: Rewrite, x: str, first: str, second: str, name: str) -> str | None:
    """``x * first * second`` as one multiplication, where the product of the factors is no larger than each."""
    a, b = new.constants[first], new.constants[second]
    product = _folded(np.multiply, a, b)
    if product is None or product.size > max(a.size, b.size) or underflows(product, a, b):
        return None
    return new.add("mul", x, new.constant(product, new.fresh(f"{name}.factor")), name=name)


def _scaled_weight(new: Rewrite, node: Node, factor: np.ndarray) -> np.ndarray | None:
    """The constant weight of ``node`` times a factor that has one value, or one for each output channel."""
    axis = ops.OPERATORS[node.op].traits.weight_channel
    if axis is None or len(node.inputs) != 2:
        return None
    weight, output = new.value(node.inputs[1]), new.types[node.outputs[0]].shape
    if weight is None or weight.dtype.kind != "f" or weight.ndim < 2 or len(output) < 2:
        return None
    position = len(output) - 1 if axis < 0 else 1  # of the channel in the output
    expected = tuple(d if i == position else 1 for i, d in enumerate(output))
    shape = (1,) * (len(output) - factor.ndim) + factor.shape
    if factor.ndim > len(output) or any(f not in (1, e) for f, e in zip(shape, expected, strict=True)):
        return None
    channels = np.broadcast_to(factor.reshape(-1), (output[position],))
    if axis == 1:
        return _scale_grouped(weight, channels, node)
    if axis < 0 and node.attrs.get("transpose_b", False):
        axis = -2
    broadcast = [1] * weight.ndim
    broadcast[axis] = -1
    return _folded(np.multiply, weight, channels.reshape(broadcast))


def _scale_grouped(weight: np.ndarray, channels: np.ndarray, node: Node) -> np.ndarray | None:
    """A transposed convolution's weight [C, O / groups, …]: the group of an output channel follows from its rows."""
    groups = node.attrs.get("groups", 1)
    assert isinstance(groups, int)
    split = weight.reshape(groups, -1, *weight.shape[1:])
    factor = channels.reshape(groups, 1, -1, *(1 for _ in weight.shape[2:]))
    scaled = _folded(np.multiply, split, factor)
    return None if scaled is None else scaled.reshape(weight.shape)


def _shifted(new: Rewrite, x: str, offset: str, name: str, node: str) -> Sequence[str]:
    """``x + offset``; an addition of another constant before it is merged where the sum is no larger than the two."""
    before = new.producer(x)
    operands = _data_and_constant(new, before) if before is not None and before.op == "add" else None
    if operands is not None and new.used_once(x):
        total = _folded(np.add, new.constants[operands[1]], new.constants[offset])
        if total is not None and total.size <= max(new.constants[operands[1]].size, new.constants[offset].size):
            merged = new.constant(total, new.fresh(f"{name}.shift"))
            return [new.add("add", operands[0], merged, name=name, node=node)]
    return [new.add("add", x, offset, name=name, node=node)]
