"""Products and convolutions of dequantized numbers as products of their integers, whose sums are exact.

What quantizers write, in the standard's QuantizeLinear and DequantizeLinear (QDQ)::

    conv2d((x - z) * s, (w - v) * t)      →  conv2d(x, w) in int32, corrected by z and v, * (s * t)
    sums * f + b                          →  (sums + c) * f                      where b is c * f with whole numbers c
    (sums * f + b) / q                    →  sums * (f / q) + b / q              in front of a rounding, also of clips
    (x * s + y * t) / q                   →  x * (s / q) + (y * (t / q) + r)     the same, of bytes x and y
    mean((x - z) * s) / q                 →  (sum(x) - n * z) * (s / (q * n))    the same
    quantized(view((x - z) * s))          →  view(x)                             of the same z and s: exact; also of
                                                                                 maxima, and of limits

Only these change how something is rounded before a quantum is chosen: by less than the definition itself does, so that
results differ by a quantum where the definition's value is within its own error of a tie
(:mod:`burnish.graph.requantize`).

Source: Jacob et al. 2018, section 2.2 and 2.4 (integer-only products, fused bias and scale).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from burnish.graph.bit_products import PRODUCTS, FewBits, counts_few_bits
from burnish.graph.dequantized import INTEGERS, Quantized, along_axis, attributes_of, dequantized, greatest_integer
from burnish.graph.graph import Graph, Node
from burnish.graph.requantize import (
    in_steps,
    plus_integers,
    products_of,
    requantized_by,
    rounded_sum,
    same_integers,
    with_integer_bias,
)
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.sizes import dims_of
from burnish.machines.target import Target
from burnish.ops.byte_words import BYTES

EXACT = 1 << 24  # integers below are all float32 numbers


@dataclass(frozen=True)
class _Ways:
    """Products that a target computes fast: of bytes, of few bits."""

    of_bytes: bool
    of_bits: bool


def multiply_integers(graph: Graph, target: Target) -> Graph:
    """``graph`` with dequantized operands of products in bytes, where ``target`` multiplies bytes fast; or of few bits,
    where it counts bits.
    """
    ways = _Ways(target.driver.multiplies_bytes, counts_few_bits(target))
    if not ways.of_bytes and not ways.of_bits:
        return graph
    made = rewrite(graph, partial(_rule, ways))
    return made if ways.of_bytes or any(node.op in PRODUCTS for node in made.nodes) else graph


def _rule(ways: _Ways, new: Rewrite, node: Node) -> Sequence[str] | None:
    match node.op:
        case "conv2d":
            return _convolution(ways, new, node)
        case "matmul":
            return _product(ways, new, node)
        case "add":
            return with_integer_bias(new, node)
        case "div":
            return requantized_by(new, node)
        case "cast" if node.attrs["to"] in INTEGERS:
            return same_integers(new, node) or rounded_sum(new, node)
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
    few: FewBits | None = None,
) -> str:
    """The convolution of ``image - zero`` with a weight in int32: that of the bytes, less what the zero point adds: it
    times the sum of each channel's weights. ``moved`` times a channel is it times the sum of the window.

    ``add`` and ``constant`` make nodes and constants; ``image``: a tensor and its shape; ``zero``: a number, or a
    tensor of one; the image is padded with it. ``few``: the product, if it is one of few bits.
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
    if few is not None:
        total = add("low_bit_conv2d", x, constant(few.codes), **few.attributes, **attrs)
    else:
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
    if along_axis(zero, rank, axis) is None or (factor := along_axis(scale, rank, axis)) is None:
        return None
    return Weight.of(known, zero, axis), factor


# --- products ---------------------------------------------------------------------------------------------------------


def _scaled(new: Rewrite, node: Node, total: str, factor: np.ndarray, bias: str = "") -> list[str]:
    """A total of integers as float32 times a factor, plus a bias; it takes the name of the node's result."""
    out, scale = node.outputs[0], factor.astype(np.float32)
    known = new.value(bias) if bias else None
    column = known.reshape(-1, 1, 1) if known is not None else None
    if column is not None and (whole := in_steps(column, scale, products_of(new, node))) is not None:
        total, bias = plus_integers(new, total, whole, node), ""
    factors = new.constant(scale, new.fresh(f"{out}.scale"))
    value = total if new.types[total].dtype == "float32" else new.add("cast", total, to="float32", node=node.name)
    if not bias:
        return [new.add("mul", value, factors, name=out, node=node.name)]
    value = new.add("mul", value, factors, node=node.name)
    if column is not None:
        shift = new.constant(column, new.fresh(f"{out}.bias"))
    else:
        shift = new.add("reshape", bias, shape=(*new.types[bias].shape, 1, 1))
    return [new.add("add", value, shift, name=out, node=node.name)]


def _convolution(ways: _Ways, new: Rewrite, node: Node) -> Sequence[str] | None:
    """Dense ones, and those in groups of whole words; of one channel a group, whose numbers are then integers, too."""
    x, w = (dequantized(new, name) for name in node.inputs[:2])
    if x is None or w is None or not x.single or dims_of(new.types[x.integers].shape[1:]):
        return None
    groups, depth = node.attrs.get("groups", 1), new.types[w.integers].shape[1]
    found = _weight(new, w, 0)
    if found is None:
        return None
    weight, factor = found
    few = _few_bits(ways, new, x, weight)
    if not ways.of_bytes and few is None:
        return None
    if groups != 1 and depth % BYTES:
        return None if depth != 1 or weight.moved.any() else _by_channel(new, node, x, weight, factor)
    image = x.integers, new.types[x.integers].shape
    add, constant, zero = _adds(new, node), _constants(new, node), int(x.zero.item())
    total = byte_convolution(add, constant, image, weight, zero, {**node.attrs}, few)
    return _scaled(new, node, total, (factor * x.scale.item()).reshape(1, -1, 1, 1), *node.inputs[2:])


def _few_bits(ways: _Ways, new: Rewrite, x: Quantized, weight: Weight) -> FewBits | None:
    """The product as one of few bits, if it is and the target counts bits."""
    if not ways.of_bits or weight.moved.any():
        return None
    return FewBits.of(greatest_integer(new, x.integers), weight.integers)


def _by_channel(new: Rewrite, node: Node, x: Quantized, weight: Weight, factor: np.ndarray) -> Sequence[str] | None:
    """A convolution of one channel a group: of integers as float32, whose sums these hold without rounding."""
    if np.abs(weight.integers.astype(np.int64)).sum((1, 2, 3)).max() * 255 >= EXACT:
        return None
    image = new.add("cast", x.integers, to="float32", node=node.name)
    if x.zero.item():
        image = new.add("sub", image, new.constant(np.float32(x.zero.item())), node=node.name)
    taps = new.constant(weight.integers.astype(np.float32), new.fresh(f"{node.outputs[0]}.integers"))
    total = new.add("conv2d", image, taps, node=node.name, **attributes_of(node))
    return _scaled(new, node, total, (factor * x.scale.item()).reshape(1, -1, 1, 1), *node.inputs[2:])


def _adds(new: Rewrite, node: Node) -> Callable[..., str]:
    return lambda op, *inputs, **attrs: new.add(op, *inputs, node=node.name, **attrs)


def _constants(new: Rewrite, node: Node) -> Callable[[np.ndarray], str]:
    return lambda value: new.constant(value, new.fresh(f"{node.outputs[0]}.integers"))


def _product(ways: _Ways, new: Rewrite, node: Node) -> Sequence[str] | None:
    """Integer matrix product, by a constant matrix, or of two tensors of one scale each."""
    a, b = (dequantized(new, name) for name in node.inputs)
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
        few = _few_bits(ways, new, a, weight)
        if few is not None:
            total = add("low_bit_matmul", a.integers, constant(few.codes), **few.attributes)
        elif ways.of_bytes:
            total = add("matmul", a.integers, constant(weight.integers))
        else:
            return None
        if weight.moved.any():
            total = add("add", total, add("mul", _row_sums(new, a.integers), constant(weight.moved.astype(np.int32))))
        if zero:
            sums = weight.integers.astype(np.int64).sum(0) + weight.moved * depth
            total = add("add", total, constant((-zero * sums).astype(np.int32)))
        return _scaled(new, node, total, factor * a.scale.item())
    if not ways.of_bytes or swap or not b.single or len(left) != len(right) or left[:-2] != right[:-2]:
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
