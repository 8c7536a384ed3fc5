"""Dequantized tensors, ``(integers - zero) * scale``, found by the nodes that compute them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.graph.graph import Node
from burnish.graph.rewrite import Rewrite

INTEGERS = ("uint8", "int8")
VIEWS = ("reshape", "transpose", "slice", "expand")


@dataclass(frozen=True)
class Quantized:
    """Numbers ``(integers - zero) * scale``: a tensor of bytes, an int64 and a float64 array that broadcast to it."""

    integers: str
    zero: np.ndarray
    scale: np.ndarray

    @property
    def single(self) -> bool:
        """Whether there is one scale and zero point."""
        return self.zero.size == self.scale.size == 1

    def integer_of(self, number: Any, dtype: str) -> int:
        """Quantized integer of a number, for one scale."""
        limits, quotient = np.iinfo(dtype), np.float32(number) / np.float32(self.scale.item())
        return int(np.clip(np.rint(quotient) + self.zero.item(), limits.min, limits.max))

    def is_like(self, other: Quantized) -> bool:
        """Whether the same integers mean the same numbers, of one scale."""
        same = self.zero.item() == other.zero.item() and self.scale.item() == other.scale.item()
        return self.single and other.single and same


def constant_operand(new: Rewrite, node: Node) -> tuple[str, np.ndarray] | None:
    """The operand that is computed, or the first, and the value of the other one."""
    a, b = node.inputs
    value = new.value(b)
    if value is not None:
        return a, value
    value = new.value(a)
    return None if value is None else (b, value)


def computed_by(new: Rewrite, name: str, op: str, dtype: str) -> Node | None:
    """The node that computes a tensor of ``dtype``, if it is ``op``."""
    node = new.producer(name)
    return node if node is not None and node.op == op and new.types[name].dtype == dtype else None


def dequantized(new: Rewrite, name: str) -> Quantized | None:
    """A float32 tensor as the bytes that it is made of, through reshapes of those of one scale, or of constants."""
    if (view := computed_by(new, name, "reshape", "float32")) is not None:
        inner = dequantized(new, view.inputs[0])
        return None if inner is None else _reshaped(new, inner, new.types[name].shape)
    scaled = computed_by(new, name, "mul", "float32")
    operands = constant_operand(new, scaled) if scaled is not None else None
    number = computed_by(new, operands[0], "cast", "float32") if operands is not None else None
    if operands is None or number is None:
        return None
    whole, zero, scale = number.inputs[0], np.zeros((), np.int64), operands[1].astype(np.float64)
    if (moved := computed_by(new, whole, "sub", "int32")) is not None and (
        value := new.value(moved.inputs[1])
    ) is not None:
        whole, zero = moved.inputs[0], value.astype(np.int64)
    widened = computed_by(new, whole, "cast", "int32")
    if widened is None or new.types[widened.inputs[0]].dtype not in INTEGERS:
        return None
    same = new.types[widened.inputs[0]].shape == new.types[name].shape
    return Quantized(widened.inputs[0], zero, scale) if same and np.all(np.isfinite(scale) & (scale > 0)) else None


def _reshaped(new: Rewrite, q: Quantized, shape: tuple[int, ...]) -> Quantized | None:
    known = new.value(q.integers)
    if known is None:
        return Quantized(new.add("reshape", q.integers, shape=shape), q.zero, q.scale) if q.single else None
    parameters = [p if p.size == 1 else along_axis(p, known.ndim, 0) for p in (q.zero, q.scale)]
    if any(p is None or p.size not in (1, shape[0]) for p in parameters):
        return None
    zero, scale = (p.reshape(-1, *[1] * (len(shape) - 1)) for p in parameters if p is not None)
    return Quantized(new.constant(known.reshape(shape), new.fresh(q.integers)), zero, scale)


def along_axis(parameter: np.ndarray, rank: int, axis: int) -> np.ndarray | None:
    """A number, or those along an axis of a tensor of ``rank`` dimensions; None where others differ."""
    shape = (1,) * (rank - parameter.ndim) + parameter.shape
    others = [extent for d, extent in enumerate(shape) if d != axis % rank]
    return parameter.reshape(-1) if all(extent == 1 for extent in others) else None


def behind_guard(new: Rewrite, node: Node | None) -> Node | None:
    """Guarded operand: the node that makes ``x`` in ``x if x > least else least``, which is for NaN; another node
    itself.
    """
    test = new.producer(node.inputs[0]) if node is not None and node.op == "where" else None
    if node is None or test is None or test.op != "greater" or test.inputs != node.inputs[1:]:
        return node
    return new.producer(node.inputs[1])


def greatest_integer(new: Rewrite, name: str) -> int:
    """The greatest that a tensor of unsigned bytes is seen to hold: 255, or what numbers were limited to before they
    were rounded.
    """
    node, zero = new.producer(name), 0
    while node is not None and node.op in (*VIEWS, "max_pool2d", "pad") and node.attrs.get("value", 0) == 0:
        node = new.producer(node.inputs[0])
    if node is None or node.op != "cast" or new.types[name].dtype != "uint8":
        return 255
    node = new.producer(node.inputs[0])
    if node is not None and node.op == "add" and (operands := constant_operand(new, node)) is not None:
        if operands[1].size != 1:
            return 255
        node, zero = new.producer(operands[0]), int(operands[1].item())
    node = behind_guard(new, node)
    if node is None or node.op != "round":
        return 255
    bound = _bound(new, new.producer(node.inputs[0]))
    return min(255, zero + round(bound)) if bound < 255 else 255


def _bound(new: Rewrite, node: Node | None) -> float:
    """The least number that a value is limited to by clips and divisions in front of a rounding."""
    factor, bound = 1.0, np.inf
    while node is not None and node.op in ("relu", "clip", "reshape", "div"):
        most = node.attrs.get("max")
        if node.op == "clip" and isinstance(most, int | float):
            bound = min(bound, most * factor)
        if node.op == "div":
            divisor = new.value(node.inputs[1])
            if divisor is None or divisor.size != 1 or not divisor.item() > 0:
                break
            factor /= float(divisor.item())
        node = new.producer(node.inputs[0])
    return bound


def attributes_of(node: Node) -> dict[str, Any]:
    """A node's attributes, to change."""
    return dict(node.attrs)
