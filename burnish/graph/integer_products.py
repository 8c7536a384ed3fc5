"""Products and convolutions of dequantized numbers as products of their integers, whose sums are exact.

What quantizers write, in the standard's QuantizeLinear and DequantizeLinear (QDQ)::

    conv2d((x - z) * s, (w - v) * t)      →  conv2d(x, w) in int32, corrected by z and v, * (s * t)
    (sums * f + b) / q                    →  sums * (f / q) + b / q              in front of a rounding, also of clips
    (x * s + y * t) / q                   →  x * (s / q) + y * (t / q)           the same, of bytes x and y
    quantized(view((x - z) * s))          →  view(x)                             of the same z and s: exact; also of
                                                                                 maxima, and of limits

Only these change how something is rounded before a quantum is chosen: by less than the definition itself does, so that
results differ by a quantum where the definition's value is within its own error of a tie.

Source: Jacob et al. 2018, section 2.2 and 2.4 (integer-only products, fused bias and scale).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.sizes import dims_of
from burnish.machines.target import Target
from burnish.ops.byte_words import BYTES

INTEGERS = ("uint8", "int8")
EXACT = 1 << 24  # integers below are all float32 numbers
GREATEST = float(np.finfo(np.float32).max)
VIEWS = ("reshape", "transpose", "slice", "expand")
RISING = ("max_pool2d", "relu", "clip")  # which are the same of numbers and of what stands for them, in their order


def multiply_integers(graph: Graph, target: Target) -> Graph:
    """``graph`` with dequantized operands of products in bytes, where ``target`` multiplies bytes fast."""
    if not target.driver.multiplies_bytes:
        return graph
    return rewrite(graph, _rule)


def _rule(new: Rewrite, node: Node) -> Sequence[str] | None:
    match node.op:
        case "conv2d":
            return _convolution(new, node)
        case "matmul":
            return _product(new, node)
        case "div":
            return _requantized(new, node)
        case "cast" if node.attrs["to"] in INTEGERS:
            return _same_integers(new, node)
    return None


# --- constant weights -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weight:
    """``integers + moved``: signed bytes, and a number for each output channel, 0 where the bytes hold it alone."""

    integers: np.ndarray
    moved: np.ndarray

    @classmethod
    def of(cls, integers: np.ndarray, zero: np.ndarray | int, axis: int) -> Weight:
        """Weight of bytes less a zero point that broadcasts to them; ``axis``: that of the output channels."""
        whole = integers.astype(np.int64) - zero
        others = tuple(d for d in range(whole.ndim) if d != axis % whole.ndim)
        low, high = whole.min(others, initial=0), whole.max(others, initial=0)
        moved = np.where(
            (low >= -128) & (high <= 127), 0, low + 128
        )  # bytes reach from one end of 255 numbers to the other
        return cls((whole - np.expand_dims(moved, others)).astype(np.int8), moved)


def byte_convolution(
    add: Callable[..., str],
    constant: Callable[[np.ndarray], str],
    image: tuple[str, tuple[int, ...]],
    weight: Weight,
    zero: int | str,
    attrs: dict[str, Any],
) -> str:
    """The convolution of ``image - zero`` with a weight in int32: that of the bytes, less what the zero point adds: it
    times the sum of each channel's weights. ``moved`` times a channel is it times the sum of the window.

    ``add`` and ``constant`` make nodes and constants; ``image``: a tensor and its shape; ``zero``: a number, or a
    tensor of one; the image is padded with it.
    """
    x, shape = image
    pads = attrs.get("pads", (0, 0, 0, 0))
    if zero != 0 and any(pads):
        widths = (0, 0, *pads[:2], 0, 0, *pads[2:])
        attrs = {**attrs, "pads": (0, 0, 0, 0)}
        if isinstance(zero, int):
            x = add("pad", x, pads=widths, value=zero)
        else:
            inside = constant(np.pad(np.ones(shape[2:], bool), [pads[0::2], pads[1::2]])[None, None])
            x = add("where", inside, add("pad", x, pads=widths), zero)
    total = add("conv2d", x, constant(weight.integers), **attrs)
    sums = weight.integers.astype(np.int64).sum((1, 2, 3)) + weight.moved * weight.integers[0].size
    if weight.moved.any():
        outputs = 1 if attrs.get("groups", 1) == 1 else len(weight.integers)  # a group's window is its channels' own
        window = add("conv2d", x, constant(np.ones((outputs, *weight.integers.shape[1:]), np.int8)), **attrs)
        total = add("add", total, add("mul", window, constant(_channels(weight.moved))))
    if isinstance(zero, int):
        return add("add", total, constant(_channels(-zero * sums))) if zero else total
    return add("sub", total, add("mul", constant(_channels(sums)), add("cast", zero, to="int32")))


def _channels(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int32).reshape(1, -1, 1, 1)


# --- what is dequantized ----------------------------------------------------------------------------------------------


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


def _constant_operand(new: Rewrite, node: Node) -> tuple[str, np.ndarray] | None:
    """The operand that is computed, or the first, and the value of the other one."""
    a, b = node.inputs
    value = new.value(b)
    if value is not None:
        return a, value
    value = new.value(a)
    return None if value is None else (b, value)


def _before(new: Rewrite, name: str, op: str, dtype: str) -> Node | None:
    """The node that computes a tensor of ``dtype``, if it is ``op``."""
    node = new.producer(name)
    return node if node is not None and node.op == op and new.types[name].dtype == dtype else None


def _dequantized(new: Rewrite, name: str) -> Quantized | None:
    """A float32 tensor as the bytes that it is made of, through reshapes of those of one scale, or of constants."""
    if (view := _before(new, name, "reshape", "float32")) is not None:
        inner = _dequantized(new, view.inputs[0])
        return None if inner is None else _reshaped(new, inner, new.types[name].shape)
    scaled = _before(new, name, "mul", "float32")
    operands = _constant_operand(new, scaled) if scaled is not None else None
    number = _before(new, operands[0], "cast", "float32") if operands is not None else None
    if operands is None or number is None:
        return None
    whole, zero, scale = number.inputs[0], np.zeros((), np.int64), operands[1].astype(np.float64)
    if (moved := _before(new, whole, "sub", "int32")) is not None and (value := new.value(moved.inputs[1])) is not None:
        whole, zero = moved.inputs[0], value.astype(np.int64)
    widened = _before(new, whole, "cast", "int32")
    if widened is None or new.types[widened.inputs[0]].dtype not in INTEGERS:
        return None
    same = new.types[widened.inputs[0]].shape == new.types[name].shape
    return Quantized(widened.inputs[0], zero, scale) if same and np.all(np.isfinite(scale) & (scale > 0)) else None


def _reshaped(new: Rewrite, q: Quantized, shape: tuple[int, ...]) -> Quantized | None:
    known = new.value(q.integers)
    if known is None:
        return Quantized(new.add("reshape", q.integers, shape=shape), q.zero, q.scale) if q.single else None
    parameters = [p if p.size == 1 else _along(p, known.ndim, 0) for p in (q.zero, q.scale)]
    if any(p is None or p.size not in (1, shape[0]) for p in parameters):
        return None
    zero, scale = (p.reshape(-1, *[1] * (len(shape) - 1)) for p in parameters if p is not None)
    return Quantized(new.constant(known.reshape(shape), new.fresh(q.integers)), zero, scale)


def _along(parameter: np.ndarray, rank: int, axis: int) -> np.ndarray | None:
    """A number, or those along an axis of a tensor of ``rank`` dimensions; None where others differ."""
    shape = (1,) * (rank - parameter.ndim) + parameter.shape
    others = [extent for d, extent in enumerate(shape) if d != axis % rank]
    return parameter.reshape(-1) if all(extent == 1 for extent in others) else None


def _weight(new: Rewrite, q: Quantized, axis: int, swap: bool = False) -> tuple[Weight, np.ndarray] | None:
    """The bytes of a constant and its scales, one or those along the axis of output channels; ``swap``: of the last two
    dimensions exchanged.
    """
    known, rank = new.value(q.integers), len(new.types[q.integers].shape)
    if known is None or known.size == 0:
        return None
    zero, scale = (p.reshape((1,) * (rank - p.ndim) + p.shape) for p in (q.zero, q.scale))
    if swap:
        known, zero, scale = (p.swapaxes(-1, -2) for p in (known, zero, scale))
    if _along(zero, rank, axis) is None or (factor := _along(scale, rank, axis)) is None:
        return None
    return Weight.of(known, zero, axis), factor


# --- products ---------------------------------------------------------------------------------------------------------


def _scaled(new: Rewrite, node: Node, total: str, factor: np.ndarray, bias: str = "") -> list[str]:
    """A total of integers as float32 times a factor, plus a bias; it takes the name of the node's result."""
    out = node.outputs[0]
    scale = new.constant(factor.astype(np.float32), new.fresh(f"{out}.scale"))
    value = total if new.types[total].dtype == "float32" else new.add("cast", total, to="float32", node=node.name)
    if not bias:
        return [new.add("mul", value, scale, name=out, node=node.name)]
    value = new.add("mul", value, scale, node=node.name)
    (count,) = new.types[bias].shape
    known = new.value(bias)
    column = (count, 1, 1)
    if known is not None:
        shift = new.constant(known.reshape(column), new.fresh(f"{out}.bias"))
    else:
        shift = new.add("reshape", bias, shape=column)
    return [new.add("add", value, shift, name=out, node=node.name)]


def _convolution(new: Rewrite, node: Node) -> Sequence[str] | None:
    """Dense ones, and those in groups of whole words; of one channel a group, whose numbers are then integers, too."""
    x, w = (_dequantized(new, name) for name in node.inputs[:2])
    if x is None or w is None or not x.single or dims_of(new.types[x.integers].shape[1:]):
        return None
    groups, depth = node.attrs.get("groups", 1), new.types[w.integers].shape[1]
    found = _weight(new, w, 0)
    if found is None:
        return None
    weight, factor = found
    if groups != 1 and depth % BYTES:
        return None if depth != 1 or x.zero.item() or weight.moved.any() else _by_channel(new, node, x, weight, factor)
    image = x.integers, new.types[x.integers].shape
    total = byte_convolution(_adds(new, node), _constants(new, node), image, weight, int(x.zero.item()), {**node.attrs})
    return _scaled(new, node, total, (factor * x.scale.item()).reshape(1, -1, 1, 1), *node.inputs[2:])


def _by_channel(new: Rewrite, node: Node, x: Quantized, weight: Weight, factor: np.ndarray) -> Sequence[str] | None:
    """A convolution of one channel a group: of integers as float32, whose sums these hold without rounding."""
    if np.abs(weight.integers.astype(np.int64)).sum((1, 2, 3)).max() * 255 >= EXACT:
        return None
    image = new.add("cast", x.integers, to="float32", node=node.name)
    taps = new.constant(weight.integers.astype(np.float32), new.fresh(f"{node.outputs[0]}.integers"))
    total = new.add("conv2d", image, taps, node=node.name, **_attributes(node))
    return _scaled(new, node, total, (factor * x.scale.item()).reshape(1, -1, 1, 1), *node.inputs[2:])


def _adds(new: Rewrite, node: Node) -> Callable[..., str]:
    return lambda op, *inputs, **attrs: new.add(op, *inputs, node=node.name, **attrs)


def _constants(new: Rewrite, node: Node) -> Callable[[np.ndarray], str]:
    return lambda value: new.constant(value, new.fresh(f"{node.outputs[0]}.integers"))


def _product(new: Rewrite, node: Node) -> Sequence[str] | None:
    """Integer matrix product, by a constant matrix, or of two tensors of one scale each."""
    a, b = (_dequantized(new, name) for name in node.inputs)
    if a is None or b is None or not a.single or node.attrs.get("transpose_a", False):
        return None
    left, right = new.types[a.integers].shape, new.types[b.integers].shape
    swap = bool(node.attrs.get("transpose_b", False))
    if len(left) < 2 or len(right) < 2 or dims_of((left[-1], *right[-2:])):
        return None
    zero, depth = int(a.zero.item()), left[-1]
    add, constant = _adds(new, node), _constants(new, node)
    if len(right) == 2 and (found := _weight(new, b, 1, swap)) is not None:
        weight, factor = found
        total = add("matmul", a.integers, constant(weight.integers))
        if weight.moved.any():
            total = add("add", total, add("mul", _row_sums(new, a.integers), constant(weight.moved.astype(np.int32))))
        if zero:
            sums = weight.integers.astype(np.int64).sum(0) + weight.moved * depth
            total = add("add", total, constant((-zero * sums).astype(np.int32)))
        return _scaled(new, node, total, factor * a.scale.item())
    if swap or not b.single or len(left) != len(right) or left[:-2] != right[:-2]:
        return None
    other = int(b.zero.item())
    total = add("matmul", a.integers, b.integers)
    if other:
        moved = add("mul", _row_sums(new, a.integers), constant(np.array(-other, np.int32)))
        total = add("add", total, moved)
    if zero:
        columns = add("reduce_sum", add("cast", b.integers, to="int32"), axes=(-2,), keepdims=True)
        moved = add("mul", columns, constant(np.array(-zero, np.int32)))
        total = add("add", total, moved)
    if zero and other:
        total = add("add", total, constant(np.array(zero * other * depth, np.int32)))
    return _scaled(new, node, total, np.asarray(a.scale.item() * b.scale.item()))


def _row_sums(new: Rewrite, x: str) -> str:
    return new.add("reduce_sum", new.add("cast", x, to="int32"), axes=(-1,), keepdims=True)


# --- scales and roundings ---------------------------------------------------------------------------------------------


def _requantized(new: Rewrite, node: Node) -> Sequence[str] | None:
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
        value = _sum_of_two(new, node, name, scale)
        if value is None:
            return None
    else:
        sums, factor, shift = found
        value = new.add("mul", sums, new.constant((factor / scale).astype(np.float32)), node=node.name)
        if shift is not None:
            value = new.add("add", value, new.constant((shift / scale).astype(np.float32)), node=node.name)
    for step in reversed(between):
        attrs = _attributes(step)
        bounds = {key: attrs[key] / scale for key in ("min", "max") if attrs.get(key) is not None}
        bounds = {key: max(-GREATEST, min(bound, GREATEST)) for key, bound in bounds.items()}
        value = new.add(step.op, value, *step.inputs[1:], node=step.name, **{**attrs, **bounds})
    return [value]


def _sum_of_two(new: Rewrite, node: Node, name: str, scale: float) -> str | None:
    """The sum of two dequantized tensors over a scale, as one of their bytes times factors, and a number."""
    total = _before(new, name, "add", "float32")
    parts = [_dequantized(new, each) for each in total.inputs] if total is not None else []
    if len(parts) != 2 or not new.used_once(name):
        return None
    terms, shift = [], 0.0
    for part in parts:
        if part is None or not part.single or new.types[part.integers].shape != new.types[name].shape:
            return None
        factor = part.scale.item() / scale
        number = new.add(
            "cast", new.add("cast", part.integers, to="int32", node=node.name), to="float32", node=node.name
        )
        terms.append(new.add("mul", number, new.constant(np.float32(factor)), node=node.name))
        shift -= part.zero.item() * factor
    value = new.add("add", *terms, node=node.name)
    return new.add("add", value, new.constant(np.float32(shift)), node=node.name)


def _scaled_sums(new: Rewrite, name: str) -> tuple[str, np.ndarray, np.ndarray | None] | None:
    """``float32(sums) * factor + shift``: the first as float32, the others in float64; each is used only there."""
    shift, node = None, new.producer(name)
    if node is not None and node.op == "add" and new.used_once(name):
        operands = _constant_operand(new, node)
        if operands is None:
            return None
        name, shift = operands[0], operands[1].astype(np.float64)
        node = new.producer(name)
    operands = _constant_operand(new, node) if node is not None and node.op == "mul" and new.used_once(name) else None
    if operands is None or new.types[operands[0]].shape != new.types[name].shape:
        return None
    cast = _before(new, operands[0], "cast", "float32")
    whole = cast is not None and new.types[cast.inputs[0]].dtype == "int32"
    whole = whole or _before(new, operands[0], "conv2d", "float32") is not None
    return (operands[0], operands[1].astype(np.float64), shift) if whole else None


def _same_integers(new: Rewrite, node: Node) -> Sequence[str] | None:
    """Numbers that were dequantized, moved, and are quantized by the same scale and zero point: the bytes, moved."""
    to = node.attrs["to"]
    before, zero = new.producer(node.inputs[0]), 0
    if before is not None and before.op == "add" and (operands := _constant_operand(new, before)) is not None:
        if operands[1].size != 1:
            return None
        before, zero = new.producer(operands[0]), int(operands[1].item())
    before = _behind_guard(new, before)
    if before is None or before.op != "round" or (quotient := _before(new, before.inputs[0], "div", "float32")) is None:
        return None
    scale = new.value(quotient.inputs[1])
    if scale is None or scale.size != 1:
        return None
    own = Quantized("", np.array(zero), scale.astype(np.float64))
    moved = _moved(new, quotient.inputs[0], own, str(to))
    return None if moved is None else [moved]


def _behind_guard(new: Rewrite, node: Node | None) -> Node | None:
    """Guarded operand: the node that makes ``x`` in ``x if x > least else least``, which is for NaN; another node
    itself.
    """
    test = new.producer(node.inputs[0]) if node is not None and node.op == "where" else None
    if node is None or test is None or test.op != "greater" or test.inputs != node.inputs[1:]:
        return node
    return new.producer(node.inputs[1])


def _attributes(node: Node) -> dict[str, Any]:
    return dict(node.attrs)


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
        op, attrs = node.op, _attributes(node)
        if op in ("relu", "clip"):
            bounds = {"min": 0.0} if op == "relu" else {k: v for k, v in attrs.items() if v is not None}
            op, attrs = "clip", {key: own.integer_of(bound, dtype) for key, bound in bounds.items()}
        return new.add(op, *known, node=node.name, **attrs)
    found = _dequantized(new, name)
    alike = found is not None and new.types[found.integers].dtype == dtype and found.is_like(own)
    return found.integers if found is not None and alike else None
