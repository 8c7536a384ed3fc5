"""Channels of images that are stored last, padded where they are too few for copies of several at once.

A product reads the channels of a pixel next to each other, in pieces of up to 16 bytes. Three channels of an image, or
one, become four, or two, whose weights are zeros::

    y = conv2d(x[n, 3, h, w], w[o, 3, kh, kw])   ->   y = conv2d(pad(x)[n, 4, h, w], pad(w)[o, 4, kh, kw])

The gradient of such a weight is made of the same padded image, and its last channels are cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.graph.fold import fold
from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.expr import ITEM_BYTES
from burnish.loops.sizes import is_size
from burnish.machines.target import Target

PIECES = (4, 8, 16)  # bytes of a copy
WELL = 8  # bytes from which on copies are large enough
FIXED = 16  # bytes of copies that cost as much as a copy does beside its bytes


def pad_channels(graph: Graph, target: Target) -> Graph:
    """``graph`` with channels padded in front of convolutions whose images the target's kernels want channels last."""
    if not any(_wants(graph, node, target) for node in graph.nodes):
        return graph

    images: dict[str, str] = {}  # which the gradient of a weight reads as well

    def rule(new: Rewrite, node: Node) -> Sequence[str] | None:
        if not _wants(new, node, target):
            return None
        t = new.types[node.inputs[0]]
        count = padded_channels(t.shape[1], ITEM_BYTES[t.dtype])
        pads = (0, 0, 0, 0, 0, count - t.shape[1], 0, 0)
        if node.inputs[0] not in images:
            images[node.inputs[0]] = new.add("pad", node.inputs[0], pads=pads, node=node.name)
        image = images[node.inputs[0]]
        if node.op != "conv2d":
            return [_weight_gradient(new, node, image, count)]
        weight = new.add("pad", node.inputs[1], pads=pads, node=node.name)
        return [new.add("conv2d", image, weight, *node.inputs[2:], name=node.outputs[0], node=node.name, **node.attrs)]

    return fold(rewrite(graph, rule))


def _weight_gradient(new: Rewrite, node: Node, image: str, count: int) -> str:
    """The gradient of the weight of a convolution of ``count`` channels, those that it has."""
    attrs: Any = node.attrs
    (shape, dtype), (weight, _) = attrs["types"]
    types = [((n, count, *rest), dtype) for n, _, *rest in (shape, weight)]
    found = new.add("adjoint", image, *node.inputs[1:], node=node.name, **{**attrs, "types": tuple(types)})
    return new.add("slice", found, name=node.outputs[0], node=node.name, starts=(0,) * len(weight), extents=weight)


def _convolution(graph: Graph | Rewrite, node: Node) -> tuple[tuple[int, ...], int] | None:
    """Taps and groups of a convolution, or of the gradient of a convolution's weight; None of others."""
    attrs: Any = node.attrs
    if node.op == "conv2d":
        return graph.types[node.inputs[1]].shape[2:], attrs.get("groups", 1)
    if node.op != "adjoint" or (attrs["operator"], attrs["wrt"]) != ("conv2d", 1) or attrs["reads"] != (0, 3):
        return None
    return tuple(attrs["types"][1][0][2:]), dict(attrs["attributes"]).get("groups", 1)


def _wants(graph: Graph | Rewrite, node: Node, target: Target) -> bool:
    """Whether a node convolves few or odd channels, all of them, or makes the gradient of the weight of such."""
    found = _convolution(graph, node)
    if found is None or found[1] != 1:
        return False
    t, (taps, _) = graph.types[node.inputs[0]], found
    if t.dtype not in target.channels_last or is_size(t.shape[1]) or t.shape[1] * ITEM_BYTES[t.dtype] % WELL == 0:
        return False
    if padded_channels(t.shape[1], ITEM_BYTES[t.dtype]) == t.shape[1]:
        return False
    return taps != (1, 1) or t.shape[1] * ITEM_BYTES[t.dtype] > WELL  # else a product of almost no depth


def padded_channels(channels: int, nbytes: int) -> int:
    """The number of channels, of ``nbytes`` each, for which bytes and copies cost least."""

    def cost(piece: int) -> float:
        count = -(-channels * nbytes // piece)
        return count * (piece + FIXED)

    piece = min(PIECES, key=cost)
    return -(-channels * nbytes // piece) * piece // nbytes
