"""Reductions of slices in the place of slices of reductions, on devices where every launch has a price.

What reads a slice of a reduction waits for a launch of its own; a reduction of a slice may be part of what reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite

REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")


def reduce_slices(graph: Graph) -> Graph:
    """``graph`` with slices, of which each element is in one at most, in front of the reductions that they are of."""
    return rewrite(graph, _moved) if any(node.op == "slice" for node in graph.nodes) else graph


def _moved(new: Rewrite, node: Node) -> Sequence[str] | None:
    source = new.producer(node.inputs[0]) if node.op == "slice" else None
    if source is None or source.op not in REDUCTIONS or source.outputs[0] in new.source.outputs:
        return None
    readers = new.readers.get(source.outputs[0], [])
    attrs: Any = source.attrs
    x, axes = source.inputs[0], attrs.get("axes")
    shape = new.types[x].shape
    if axes is None or not _are_disjoint(readers, new.types[source.outputs[0]].size):
        return None
    own: Any = node.attrs
    reduced, kept = {axis % len(shape) for axis in axes}, attrs.get("keepdims", True)
    starts, extents, of = list[int](), list[int](), 0
    for d, extent in enumerate(shape):
        if d in reduced:
            starts.append(0)
            extents.append(extent)
            of += kept
        else:
            starts.append(own["starts"][of])
            extents.append(own["extents"][of])
            of += 1
    part = new.add("slice", x, starts=tuple(starts), extents=tuple(extents))
    return new.replace(node, source.op, part, **attrs)


def _are_disjoint(readers: Sequence[Node], size: int) -> bool:
    """Whether all readers are slices, of steps of one, of which no two share an element."""
    attrs: list[Any] = [reader.attrs for reader in readers]
    if any(
        reader.op != "slice" or {*own.get("steps", (1,))} != {1} for reader, own in zip(readers, attrs, strict=True)
    ):
        return False
    places = [(own["starts"], own["extents"]) for own in attrs]
    return size > 0 and not any(
        all(a < b + m and b < a + n for a, n, b, m in zip(*one, *other, strict=True))
        for number, one in enumerate(places)
        for other in places[:number]
    )
