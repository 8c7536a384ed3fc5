"""Conversions to wider numbers where they are read: what lies in memory between kernels stays narrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from burnish.graph.graph import Graph, Node
from burnish.loops.expr import FLOATS, ITEM_BYTES

IMAGE = 4  # dimensions


def widen_readers(graph: Graph) -> Graph:
    """``graph`` in which every reader of a tensor that several read, and that is one of halves made wider, has a
    conversion of its own, which becomes part of its kernel.
    """
    readers = graph.consumers()
    spread = {node.outputs[0]: node for node in graph.nodes if _widens(graph, node, readers[node.outputs[0]])}
    if not spread:
        return graph
    nodes: list[Node] = []
    types, taken = dict(graph.types), {*graph.types}
    for node in graph.nodes:
        if node.outputs[0] in spread:
            continue
        own: dict[str, str] = {}
        for name in dict.fromkeys(node.inputs):
            if name in spread:
                fresh = _fresh(name, taken)
                nodes.append(replace(spread[name], outputs=(fresh,)))
                types[fresh], own[name] = graph.types[name], fresh
        nodes.append(replace(node, inputs=tuple(own.get(n, n) for n in node.inputs)) if own else node)
    return graph.with_nodes(nodes, types=types)


def _widens(graph: Graph, node: Node, readers: Sequence[Node]) -> bool:
    """Whether a node is such a conversion of what a kernel computes: of images, or of matrices of several heads."""
    if node.op != "cast" or len(readers) < 2 or node.outputs[0] in graph.outputs or node.inputs[0] in graph.constants:
        return False
    before, after = graph.types[node.inputs[0]].dtype, graph.types[node.outputs[0]].dtype
    if len(graph.types[node.outputs[0]].shape) < IMAGE:
        return False
    return before in FLOATS and after in FLOATS and ITEM_BYTES[before] < ITEM_BYTES[after]


def _fresh(name: str, taken: set[str]) -> str:
    number = 1
    while (fresh := f"{name}/wide{number}") in taken:
        number += 1
    taken.add(fresh)
    return fresh
