"""Channels of images that are stored last, padded where they are too few for copies of several at once.

A product reads the channels of a pixel next to each other, in pieces of up to 16 bytes. Three channels of an image, or
one, become four, or two, whose weights are zeros::

    y = conv2d(x[n, 3, h, w], w[o, 3, kh, kw])   ->   y = conv2d(pad(x)[n, 4, h, w], pad(w)[o, 4, kh, kw])
"""

from __future__ import annotations

from collections.abc import Sequence

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

    def rule(new: Rewrite, node: Node) -> Sequence[str] | None:
        if not _wants(new, node, target):
            return None
        t = new.types[node.inputs[0]]
        more = padded_channels(t.shape[1], ITEM_BYTES[t.dtype]) - t.shape[1]
        pads = (0, 0, 0, 0, 0, more, 0, 0)
        image, weight = (new.add("pad", name, pads=pads, node=node.name) for name in node.inputs[:2])
        return [new.add("conv2d", image, weight, *node.inputs[2:], name=node.outputs[0], node=node.name, **node.attrs)]

    return fold(rewrite(graph, rule))


def _wants(graph: Graph | Rewrite, node: Node, target: Target) -> bool:
    """Whether a node convolves few or odd channels, all of them."""
    if node.op != "conv2d" or node.attrs.get("groups", 1) != 1:
        return False
    t, taps = graph.types[node.inputs[0]], graph.types[node.inputs[1]].shape[2:]
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
