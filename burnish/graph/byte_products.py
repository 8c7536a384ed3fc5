"""Products and convolutions of 8-bit integers by what a target multiplies fast, with exact sums.

Words of four bytes where the machine adds their dot products in one instruction (:mod:`burnish.ops.byte_words`); as
signed bytes where its products take those; else float32 products over parts of the depth, or single taps of a window,
whose sums float32 holds without rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.graph.eliminate import eliminate
from burnish.graph.graph import Graph, Node
from burnish.graph.integer_products import Weight, byte_convolution
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.sizes import dims_of
from burnish.machines.target import Target
from burnish.ops.byte_words import BYTES

EXACT = 1 << 24  # integers below are all float32 numbers
MOST = {"uint8": 255, "int8": 128}  # magnitudes
MIDDLE = 128  # by how much bytes of the other sign are moved
MOST_TAPS = 49  # elements of a window: of each becomes a convolution of its own, whose sums no transform rounds


def multiply_bytes(graph: Graph, target: Target, keep: Callable[[Node], bool] = lambda node: False) -> Graph:
    """``graph`` with products of 8-bit integers as ``target`` computes them best; others stay as they are, and those
    of ``graph`` that something else computes: ``keep``.
    """
    products = [node for node in graph.nodes if _is_byte_product(graph, node)]
    kept = {node.outputs for node in products if keep(node)}
    if len(kept) == len(products):
        return graph
    rule = _by_words if target.has(target.machine.dialect.dots_bytes) else _by_floats
    if "int8" in target.channels_last:
        rule = _signed
    made = rewrite(graph, lambda new, node: None if node.outputs in kept else rule(new, node))
    return eliminate(made)  # products of one operand read the same words of it


def _is_byte_product(graph: Graph | Rewrite, node: Node) -> bool:
    """Whether a node multiplies two tensors of bytes: matrices, or an image and a constant weight."""
    if node.op not in ("matmul", "conv2d") or len(node.inputs) != 2:
        return False
    types = [graph.types[name] for name in node.inputs]
    if any(t.dtype not in MOST or len(t.shape) < 2 for t in types):
        return False
    if node.op == "conv2d":
        return node.inputs[1] in graph.constants and not dims_of(types[0].shape[1:])
    depth, columns = types[1].shape[-2:]
    return not any(node.attrs.values()) and not dims_of((depth, columns)) and types[0].shape[-1] == depth


# --- signed bytes -----------------------------------------------------------------------------------------------------


def _signed(new: Rewrite, node: Node) -> Sequence[str] | None:
    """``sum((a' + p) (b' + q))`` with signed ``a' = a - p`` and ``b' = b - q``; a product of such stays as it is."""
    if not _is_byte_product(new, node):
        return None
    a, b = node.inputs
    left, right = new.types[a], new.types[b]
    if left.dtype == right.dtype == "int8":
        return None
    moved = [_less_middle(new, name) if new.types[name].dtype == "uint8" else name for name in (a, b)]
    if node.op == "conv2d":
        weight = Weight.of(new.constants[b].astype(np.int64), 0, 0)
        zero = -MIDDLE if left.dtype == "uint8" else 0
        image = (moved[0], tuple(left.shape))
        return [byte_convolution(new.add, new.constant, image, weight, zero, dict(node.attrs))]
    terms = [new.add("matmul", *moved)]
    depth = right.shape[-2]
    if left.dtype == "uint8":
        both = MIDDLE * MIDDLE * depth if right.dtype == "uint8" else 0
        terms.append(_sum(new, moved[1], len(right.shape) - 2, MIDDLE, both))
    if right.dtype == "uint8":
        terms.append(_sum(new, moved[0], -1, MIDDLE))
    return [_total(new, terms)]


def _less_middle(new: Rewrite, name: str) -> str:
    """Unsigned bytes as signed ones, each less by half of their range."""
    if new.value(name) is not None:
        return new.derived(name, "signed", lambda value: (value ^ np.uint8(MIDDLE)).view(np.int8))
    middle = new.constant(np.int32(MIDDLE), new.fresh("middle"))
    return new.add("cast", new.add("sub", new.add("cast", name, to="int32"), middle), to="int8")


# --- words of four bytes ----------------------------------------------------------------------------------------------


def _by_words(new: Rewrite, node: Node) -> Sequence[str] | None:
    if not _is_byte_product(new, node):
        return None
    if node.op == "matmul":
        return _word_matmul(new, node)
    weight = new.types[node.inputs[1]]
    grouped = node.attrs.get("groups", 1) != 1
    if weight.dtype != "int8" or (grouped and weight.shape[1] % BYTES):  # a word would hold channels of two groups
        return _by_floats(new, node)
    return _word_convolution(new, node)


def _words(new: Rewrite, x: str, axis: int, flip: bool) -> str:
    """The words of a tensor along an axis; those of a constant are a constant."""
    if new.value(x) is None:
        return new.add("byte_words", x, axis=axis, flip=flip)

    def words(value: np.ndarray) -> np.ndarray:
        bytes_ = np.moveaxis(value, axis, -1).view(np.uint8) ^ np.uint8(MIDDLE if flip else 0)
        padded = np.pad(bytes_, [(0, 0)] * (value.ndim - 1) + [(0, -value.shape[axis] % BYTES)])
        made = np.ascontiguousarray(padded).view("<i4").astype(np.int32)
        return np.ascontiguousarray(np.moveaxis(made, -1, axis))

    return new.derived(x, f"words{axis}{'.flipped' * flip}", words)


def _sum(new: Rewrite, x: str, axis: int, times: int, extra: int = 0) -> str:
    """``times`` the sums of an integer tensor along an axis, which stays, plus a number."""
    if new.value(x) is not None:

        def sums(value: np.ndarray) -> np.ndarray:
            return (value.astype(np.int64).sum(axis, keepdims=True) * times + extra).astype(np.int32)

        return new.derived(x, f"sums{axis}.{times}.{extra}", sums)
    total = new.add("reduce_sum", new.add("cast", x, to="int32"), axes=(axis,), keepdims=True)
    total = new.add("mul", total, new.constant(np.int32(times), new.fresh("times")))
    return new.add("add", total, new.constant(np.int32(extra), new.fresh("extra"))) if extra else total


def _word_matmul(new: Rewrite, node: Node) -> Sequence[str] | None:
    """``sum((a' - p) (b' + q))`` with unsigned ``a' = a + p`` and signed ``b' = b - q``."""
    a, b = node.inputs
    left, right = new.types[a], new.types[b]
    if len(right.shape) > 2 and right.shape[:-2] != left.shape[:-2]:
        return None
    signed, unsigned = left.dtype == "int8", right.dtype == "uint8"
    terms = [new.add("byte_matmul", _words(new, a, -1, signed), _words(new, b, len(right.shape) - 2, unsigned))]
    if unsigned:
        terms.append(_sum(new, a, -1, MIDDLE, MIDDLE * MIDDLE * right.shape[-2] if signed else 0))
    if signed:
        terms.append(_sum(new, b, len(right.shape) - 2, -MIDDLE))
    return [_total(new, terms)]


def _total(new: Rewrite, terms: Sequence[str]) -> str:
    total, *rest = terms
    for term in rest:
        total = new.add("add", total, term)
    return total


def _word_convolution(new: Rewrite, node: Node) -> Sequence[str]:
    """Integer convolution, as :func:`_word_matmul` of channels; a signed image is padded before its bytes are moved."""
    x, weight = node.inputs
    signed = new.types[x].dtype == "int8"
    attrs: dict[str, Any] = dict(node.attrs)
    terms = []
    if signed:
        x, attrs = _padded(new, x, node), {**attrs, "pads": (0, 0, 0, 0)}
    terms.append(new.add("byte_conv2d", _words(new, x, 1, signed), _words(new, weight, 1, False), **attrs))
    if signed:

        def sums(kernel: np.ndarray) -> np.ndarray:
            return (kernel.astype(np.int64).sum((1, 2, 3)) * -MIDDLE).astype(np.int32).reshape(1, -1, 1, 1)

        terms.append(new.derived(weight, "sums", sums))
    return [_total(new, terms)]


def _padded(new: Rewrite, x: str, node: Node) -> str:
    pads: tuple[int, ...] = node.attrs.get("pads", (0, 0, 0, 0))  # type: ignore[assignment]
    return new.add("pad", x, pads=(0, 0, *pads[:2], 0, 0, *pads[2:])) if any(pads) else x


# --- float32 ----------------------------------------------------------------------------------------------------------


def _by_floats(new: Rewrite, node: Node) -> Sequence[str] | None:
    if not _is_byte_product(new, node):
        return None
    total = _float_matmul(new, node) if node.op == "matmul" else _tapwise(new, node)
    return None if total is None else [total]


def _float(new: Rewrite, x: str) -> str:
    if new.value(x) is not None:
        return new.derived(x, "float32", lambda value: value.astype(np.float32))
    return new.add("cast", x, to="float32")


def _slice(new: Rewrite, x: str, axis: int, start: int, stop: int) -> str:
    shape = new.types[x].shape
    starts = tuple(start if d == axis else 0 for d in range(len(shape)))
    return new.add("slice", x, starts=starts, extents=(*shape[:axis], stop - start, *shape[axis + 1 :]))


def _float_matmul(new: Rewrite, node: Node) -> str:
    """A product in int32 as float32 products over parts of the depth that no sum outgrows."""
    (a, b), (left, right) = node.inputs, (new.types[name] for name in node.inputs)
    depth, known = right.shape[-2], new.value(b)
    part = (EXACT - 1) // (MOST[left.dtype] * MOST[right.dtype])
    if known is not None and known.size:
        greatest = np.abs(known.astype(np.int64)).sum(-2).max()
        part = depth if greatest * MOST[left.dtype] < EXACT else part
    first, second, terms = _float(new, a), _float(new, b), []
    for start in range(0, max(depth, 1), max(part, 1)):
        stop = min(start + part, depth)
        whole = stop - start == depth
        x = first if whole else _slice(new, first, len(left.shape) - 1, start, stop)
        y = second if whole else _slice(new, second, len(right.shape) - 2, start, stop)
        terms.append(new.add("cast", new.add("matmul", x, y), to="int32"))
    return _total(new, terms)


@dataclass(frozen=True)
class _Taps:
    """A convolution as one of single elements for each tap of its window: the image, padded, and where it is read."""

    image: str
    batch: int
    channels: int
    size: tuple[int, ...]
    steps: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    def product(self, new: Rewrite, weight: str, tap: tuple[int, ...]) -> str:
        """The products of one tap, float32."""
        down, across = tap
        starts = (0, 0, *(t * d for t, d in zip(tap, self.dilations, strict=True)))
        extents = (self.batch, self.channels, *self.size)
        seen = new.add("slice", self.image, starts=starts, extents=extents, steps=(1, 1, *self.steps))
        part = (slice(None), slice(None), slice(down, down + 1), slice(across, across + 1))
        own = new.derived(weight, f"tap{down}.{across}", lambda value: value[part].astype(np.float32))
        return new.add("conv2d", seen, own, groups=self.groups)


def _tapwise(new: Rewrite, node: Node) -> str | None:
    """The convolution in int32 of bytes as float32: sums of taps go to int32 before float32 rounds them.

    None where one tap's sum might be rounded, or the window has too many taps.
    """
    x, weight = node.inputs[0], new.constants[node.inputs[1]]
    reach = MOST[new.types[x].dtype] * np.abs(weight.astype(np.int64)).sum(1).max(0, initial=0)  # of each tap
    kernel = weight.shape[2:]
    if kernel[0] * kernel[1] > MOST_TAPS or reach.max(initial=0) >= EXACT:
        return None
    groups = node.attrs.get("groups", 1)
    assert isinstance(groups, int)
    if 1 < groups == weight.shape[0] and weight.shape[1] == 1 and reach.sum() < EXACT:  # no algorithm transforms these
        attrs: dict[str, Any] = dict(node.attrs)
        return new.add("cast", new.add("conv2d", _float(new, x), _float(new, node.inputs[1]), **attrs), to="int32")
    image = _float(new, _padded(new, x, node))
    batch, channels, *sizes = new.types[image].shape
    strides: tuple[int, ...] = node.attrs.get("strides", (1, 1))  # type: ignore[assignment]
    dilations: tuple[int, ...] = node.attrs.get("dilations", (1, 1))  # type: ignore[assignment]
    size = tuple((e - d * (k - 1) - 1) // s + 1 for e, k, s, d in zip(sizes, kernel, strides, dilations, strict=True))
    steps = tuple(s if n > 1 else 1 for s, n in zip(strides, size, strict=True))
    taps = _Taps(image, batch, channels, size, steps, dilations, groups)
    terms, part, held = [], "", 0.0
    for tap in np.ndindex(*kernel):
        product = taps.product(new, node.inputs[1], tap)
        if part and held + reach[tap] >= EXACT:
            terms.append(new.add("cast", part, to="int32"))
            part, held = "", 0.0
        part, held = (new.add("add", part, product) if part else product), held + float(reach[tap])
    return _total(new, [*terms, new.add("cast", part, to="int32")])
