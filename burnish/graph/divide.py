"""Concatenations: which need no copy, and those of many parts that do as concatenations of concatenations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from burnish.graph.fusion_properties import contiguous_when_joined, facts_of
from burnish.graph.graph import Graph, Node, TensorType
from burnish.loops.sizes import hinted

COPIED = 1 << 14  # bytes of a join that one kernel copies in less time than it takes to start one for every part
MOST_PARTS = 16  # of a join that one kernel copies: its code looks at every part for every vector


def joins_in_place(graph: Graph, lanes: int) -> set[int]:
    """The positions of concatenations of which each part is computed by a kernel, and for no other such one.

    Its parts lie one after the other in memory, where channels come in blocks of ``lanes``: kernels can write there.
    """
    computed = {
        name for node in graph.nodes if not facts_of(graph, node).alias for name in node.outputs
    } - set(graph.outputs)  # fmt: skip
    joins: set[int] = set()
    for p, node in enumerate(graph.nodes):
        if node.op != "concat" or hinted(graph.types[node.outputs[0]].nbytes) < COPIED:
            continue
        parts = [graph.types[name] for name in node.inputs]
        distinct = len(set(node.inputs)) == len(parts) and computed.issuperset(node.inputs)
        if distinct and contiguous_when_joined(parts, int(node.attrs["axis"]), lanes):  # type: ignore[arg-type]
            joins.add(p)
            computed.difference_update(node.inputs)
    return joins


def divide_joins(graph: Graph, lanes: int) -> Graph:
    """``graph`` with no concatenation of more than ``MOST_PARTS`` but those whose parts need no copy."""
    wide = [p for p, node in enumerate(graph.nodes) if node.op == "concat" and len(node.inputs) > MOST_PARTS]
    if not wide:
        return graph
    copied = set(wide) - joins_in_place(graph, lanes)
    types = dict(graph.types)
    nodes: list[Node] = []
    for p, node in enumerate(graph.nodes):
        nodes.extend(_divided(node, types) if p in copied else (node,))
    return replace(graph, nodes=tuple(nodes), types=types)


def _divided(node: Node, types: dict[str, TensorType]) -> Iterator[Node]:
    """Concatenations of few parts that together are ``node``; adds the types of their results."""
    parts: Sequence[str] = node.inputs
    level = 0
    while len(parts) > MOST_PARTS:
        joined = []
        for first in range(0, len(parts), MOST_PARTS):
            some = parts[first : first + MOST_PARTS]
            name = f"{node.outputs[0]}.part{level}.{first // MOST_PARTS}"
            types[name] = _joined([types[part] for part in some], int(node.attrs["axis"]))  # type: ignore[arg-type]
            joined.append(name)
            yield replace(node, inputs=tuple(some), outputs=(name,))
        parts, level = joined, level + 1
    yield replace(node, inputs=tuple(parts))


def _joined(parts: Sequence[TensorType], axis: int) -> TensorType:
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return TensorType(tuple(shape), parts[0].dtype)
