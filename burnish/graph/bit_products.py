"""Products and convolutions of integers of few bits, bit by bit: words of the planes of both, counted, summed, scaled.

Planes of activations go two and two, those of weights one by one, each with a product of its own; a bipolar weight
``2 w - m`` adds ``-m`` times the sums of activations, which are counts by words of ones. What words do not fit (groups
of few channels), or where a machine multiplies bytes faster than it counts bits, is a product of bytes
(:mod:`burnish.graph.byte_products`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.sizes import dims_of
from burnish.machines.target import Target
from burnish.ops.bit_words import MOST_WORDS, elements, pack

MOST_PAYING = 2  # bits of either factor: more take as many counts as bytes take products
PRODUCTS = {"low_bit_conv2d": ("bit_conv2d", "conv2d", 1, 1), "low_bit_matmul": ("bit_matmul", "matmul", -1, 0)}
"""Operator -> that of words, that of bytes, and the axis of both operands along which elements are multiplied."""


def multiply_bits(graph: Graph, target: Target) -> Graph:
    """``graph`` with products of few bits as ``target`` computes them best."""
    if not any(node.op in PRODUCTS for node in graph.nodes):
        return graph
    by_words = counts_few_bits(target)

    def rule(new: Rewrite, node: Node) -> Sequence[str] | None:
        if node.op not in PRODUCTS:
            return None
        made = _by_words(new, node) if by_words else None
        return [made or _by_bytes(new, node)]

    return rewrite(graph, rule)


def counts_few_bits(target: Target) -> bool:
    """Whether products of few bits are counts of bits on a target: where these are faster than products of bytes."""
    dialect = target.machine.dialect
    return dialect.grid is None and (target.has(dialect.counts_bits) or not target.multiplies_bytes)


@dataclass(frozen=True)
class FewBits:
    """A product of few bits: those of the activations, and the codes of a weight that few bits hold."""

    bits: int
    codes: np.ndarray
    weight_bits: int
    bipolar: bool

    @classmethod
    def of(cls, greatest: int, weight: np.ndarray) -> FewBits | None:
        """The product of integers up to ``greatest`` by a weight; None where counting bits would not pay."""
        bits, low, high = greatest.bit_length(), int(weight.min(initial=0)), int(weight.max(initial=0))
        if bits > MOST_PAYING or not weight.size:
            return None
        if low >= 0:
            weight_bits = max(high.bit_length(), 1)
            codes = weight
        elif np.all(weight % 2):
            weight_bits = max(-low, high).bit_length()
            codes = (weight.astype(np.int64) + ((1 << weight_bits) - 1)) // 2
        else:
            return None
        if weight_bits > MOST_PAYING:
            return None
        return cls(max(bits, 1), codes.astype(np.uint8), weight_bits, low < 0)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the operator."""
        return {"bits": self.bits, "weight_bits": self.weight_bits, "bipolar": self.bipolar}


def _planes(bits: int) -> list[tuple[int, ...]]:
    """The planes of numbers, two and two."""
    return [(p, p + 1) if p + 1 < bits else (p,) for p in range(0, bits, 2)]


def _by_words(new: Rewrite, node: Node) -> str | None:
    """Sums of the products of pairs of planes; None where words do not fit."""
    x, weight = node.inputs
    attrs: dict[str, Any] = dict(node.attrs)
    op, _, axis, weight_axis = PRODUCTS[node.op]
    bits, weight_bits, bipolar = (attrs.pop(key, default) for key, default in _DEFAULTS.items())
    axis %= len(new.types[x].shape)
    groups, shape = int(attrs.get("groups", 1)), new.types[weight].shape
    depth, taps = shape[weight_axis], int(np.prod(shape[2:]))
    if dims_of((depth, *shape)) or 0 in shape or 0 in new.types[x].shape:
        return None
    most = MOST_WORDS // taps
    x, attrs = _seen(new, x, weight, attrs)
    terms = []
    for planes in _planes(int(bits)):
        length = elements(planes)
        words = -(-depth // length)
        if (groups > 1 and depth % length) or most < (words if groups > 1 else 1):
            return None
        image = new.add("bit_words", x, axis=axis, planes=planes)
        scales = tuple(1 << p for p in planes) * (3 - len(planes))
        for q in range(int(weight_bits)):
            own = tuple(s << (q + bool(bipolar)) for s in scales)
            words_of = _packed(new, weight, weight_axis, (q,) * len(planes))
            terms += _products(new, op, (image, axis), (words_of, weight_axis), most, {**attrs, "scales": own})
        if bipolar:
            highest = (1 << int(weight_bits)) - 1
            taken = {**attrs, "scales": tuple(-s * highest for s in scales)}
            if groups == 1:
                terms.append(_sums(new, op, (image, axis), (shape, weight_axis), taken))
            else:
                ones = new.constant(np.full((shape[0], words, *shape[2:]), -1, np.int32), new.fresh("ones"))
                terms += _products(new, op, (image, axis), (ones, weight_axis), most, taken)
    total, *rest = terms
    for term in rest:
        total = new.add("add", total, term)
    return total


def _seen(new: Rewrite, x: str, weight: str, attrs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """An image without the pixels that a window of one element steps over: their bits are not packed."""
    strides = attrs.get("strides", (1, 1))
    shape, kernel = new.types[x].shape, new.types[weight].shape[2:]
    if kernel != (1, 1) or strides == (1, 1) or any(attrs.get("pads", ())) or dims_of(shape):
        return x, attrs
    extents = (*shape[:2], *(-(-n // s) for n, s in zip(shape[2:], strides, strict=True)))
    steps = (1, 1, *(s if n > 1 else 1 for s, n in zip(strides, extents[2:], strict=True)))
    part = new.add("slice", x, starts=(0, 0, 0, 0), extents=extents, steps=steps)
    return part, {**attrs, "strides": (1, 1)}


_DEFAULTS: dict[str, Any] = {"bits": 2, "weight_bits": 1, "bipolar": False}


def _packed(new: Rewrite, weight: str, axis: int, planes: tuple[int, ...]) -> str:
    """The words of a weight; those of a constant are a constant."""
    if new.value(weight) is None:
        return new.add("bit_words", weight, axis=axis, planes=planes)
    return new.derived(weight, f"bits{planes}{axis}", lambda value: pack(value, axis, planes))


def _sums(new: Rewrite, op: str, x: tuple[str, int], weight: tuple[Sequence[int], int], attrs: dict[str, Any]) -> str:
    """Sums of the activations that an output sees, by words of ones: of pixels first, then of these over the window.

    In bits of words that stand for no element activations have zeros.
    """
    shape, axis = weight
    taps, words = tuple(shape[2:]), new.types[x[0]].shape[x[1]]
    sizes = [words if d == axis else 1 for d in range(len(shape))]
    ones = new.constant(np.full(sizes, -1, np.int32), new.fresh("ones"))
    whole = attrs if set(taps) <= {1} else {"scales": attrs["scales"]}
    total, *rest = _products(new, op, x, (ones, axis), MOST_WORDS, whole)
    for term in rest:
        total = new.add("add", total, term)
    if whole is attrs:
        return total
    window = {key: value for key, value in attrs.items() if key != "scales"}
    return new.add("conv2d", total, new.constant(np.ones((1, 1, *taps), np.int32), new.fresh("ones")), **window)


def _products(
    new: Rewrite, op: str, x: tuple[str, int], weight: tuple[str, int], most: int, attrs: dict[str, Any]
) -> list[str]:
    """Products over parts of the words, whose counts do not outgrow half a word."""
    words = new.types[weight[0]].shape[weight[1]]
    if words <= most:
        return [new.add(op, x[0], weight[0], **attrs)]
    terms = []
    for start in range(0, words, most):
        stop = min(start + most, words)
        parts = [_slice(new, name, axis, start, stop) for name, axis in (x, weight)]
        terms.append(new.add(op, *parts, **attrs))
    return terms


def _slice(new: Rewrite, x: str, axis: int, start: int, stop: int) -> str:
    if new.value(x) is not None:
        part = (slice(None),) * axis + (slice(start, stop),)
        return new.derived(x, f"words{start}", lambda value: np.ascontiguousarray(value[part]))
    shape = new.types[x].shape
    starts = tuple(start if d == axis else 0 for d in range(len(shape)))
    return new.add("slice", x, starts=starts, extents=(*shape[:axis], stop - start, *shape[axis + 1 :]))


# --- bytes ------------------------------------------------------------------------------------------------------------


def _by_bytes(new: Rewrite, node: Node) -> str:
    """The product of the codes of activations and of the numbers that weights' codes mean, as bytes."""
    x, weight = node.inputs
    attrs: dict[str, Any] = dict(node.attrs)
    bits, weight_bits, bipolar = (attrs.pop(key, default) for key, default in _DEFAULTS.items())
    highest = (1 << int(weight_bits)) - 1
    left = new.add("bitwise_and", x, new.constant(np.uint8((1 << int(bits)) - 1), new.fresh("bits")))

    def meaning(value: np.ndarray) -> np.ndarray:
        codes = (value & highest).astype(np.int8)
        return codes * np.int8(2) - np.int8(highest) if bipolar else codes

    if new.value(weight) is not None:
        right = new.derived(weight, f"meaning{weight_bits}{bipolar}", meaning)
    else:
        codes = new.add("bitwise_and", weight, new.constant(np.uint8(highest), new.fresh("bits")))
        right = new.add("cast", codes, to="int8")
        if bipolar:
            right = new.add("mul", right, new.constant(np.int8(2), new.fresh("two")))
            right = new.add("sub", right, new.constant(np.int8(highest), new.fresh("highest")))
    return new.add(PRODUCTS[node.op][1], left, right, **attrs)
