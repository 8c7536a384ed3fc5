"""Steps of recurrent layers: which part of the gates of all steps each step's kernel sees."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from burnish.graph.fusion_properties import contiguous_offset
from burnish.graph.graph import Graph, Node, TensorType
from burnish.ops import OPERATORS


def pair_steps(graph: Graph) -> Graph:
    """Slices that feed steps of recurrent layers, cut from a window of two steps each.

    Every other step runs backwards, to read first what the one before has left in the cache, and its kernel sees by
    the slice which one it is. By a slice of all steps it would see its number, too, and each step be another kernel. A
    window is read where it lies, so that steps that read the same row of theirs share one. The last of an odd number
    of steps has its window in common with the one before::

        a = slice(gates, starts=(4, 0), extents=(1, 2600))

        w = slice(gates, starts=(4, 0), extents=(2, 2600))
        a = slice(w, starts=(0, 0), extents=(1, 2600))
    """
    computed = graph.producers().keys()
    steps = {name for node in graph.nodes if OPERATORS[node.op].traits.recurrent for name in node.inputs}
    types, nodes = dict(graph.types), list[Node]()
    for node in graph.nodes:
        is_step = node.op == "slice" and node.inputs[0] in computed and node.outputs[0] in steps
        first = _window(graph, node) if is_step else None
        if first is not None:
            (source,), own = node.inputs, graph.types[node.outputs[0]].shape
            window = f"{source}.{first}:{first + 2 * own[0]}"
            if window not in types:
                types[window] = TensorType((2 * own[0], *own[1:]), graph.types[source].dtype)
                nodes.append(_slice(node, source, window, first, types[window].shape))
            node = _slice(node, window, node.outputs[0], _first_row(node) - first, own)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=types)


def _window(graph: Graph, node: Node) -> int | None:
    """The row of its operand at which a step's window begins; None where the slice is no step among several."""
    shape, own = graph.types[node.inputs[0]].shape, graph.types[node.outputs[0]].shape
    rows, row = own[0], _first_row(node)
    if not isinstance(contiguous_offset(graph, node, 1), int) or not isinstance(rows, int):
        return None
    if own[1:] != shape[1:] or shape[0] < 2 * rows or row % rows:
        return None
    return row if row // rows % 2 == 0 and row + 2 * rows <= shape[0] else row - rows


def _first_row(node: Node) -> int:
    return cast(tuple[int, ...], node.attrs["starts"])[0]


def _slice(like: Node, source: str, name: str, first: int, extents: tuple[int, ...]) -> Node:
    starts = (first, *(0 for _ in extents[1:]))
    return replace(like, inputs=(source,), outputs=(name,), attrs={"starts": starts, "extents": extents})
