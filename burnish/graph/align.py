"""Channel alignment: parts of a convolution's channels begin with channel blocks, so each is read where it lies.

    slice(relu(conv2d(x, w) + b), channels 44 to 88)  →  slice(relu(conv2d(x, w') + b'), channels 48 to 92)

where the channels between the parts, of zero weights, are nobody's. Target-dependent: a block is one vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Graph, Node
from burnish.ops import OPERATORS

MOST = 1.25  # times the channels there were: more would cost more arithmetic than copies of the parts


@dataclass(frozen=True)
class _Parts:
    """The slices of a convolution's channels: where each begins -> where it shall; values with all of the channels."""

    moved: Mapping[int, int]
    extents: Mapping[int, int]
    whole: frozenset[str]
    channels: int


def align_parts(graph: Graph, lanes: int) -> Graph:
    """``graph`` with the channels of convolutions by constant weights that only slices read aligned to ``lanes``."""
    types, constants = dict(graph.types), dict(graph.constants)
    changed: dict[str, Node] = {}  # by the first output
    consumers = graph.consumers()
    for node in graph.nodes:
        parts = _parts(graph, node, consumers, lanes)
        if parts is None:
            continue
        for name in parts.whole:
            types[name] = replace(types[name], shape=(1, parts.channels, *types[name].shape[2:]))
        weight = node.inputs[1]
        for user in dict.fromkeys((node, *(user for name in parts.whole for user in consumers[name]))):
            inputs = list(user.inputs)
            for i, name in enumerate(inputs):
                if name not in graph.constants or graph.types[name].size == 1:
                    continue
                dim = 0 if name == weight and user is node else len(graph.types[name].shape) - 3
                fresh = f"{name}.{node.outputs[0]}.aligned"
                constants[fresh] = _spread(graph.constants[name], dim, parts)
                types[fresh] = replace(types[name], shape=constants[fresh].shape)
                inputs[i] = fresh
            attrs = dict(user.attrs)
            if user.op == "slice":
                starts = list(attrs["starts"])  # type: ignore[arg-type]
                starts[1] = parts.moved[starts[1]]  # type: ignore[index]
                attrs["starts"] = tuple(starts)
            changed[user.outputs[0]] = replace(user, inputs=tuple(inputs), attrs=attrs)
    nodes = [changed.get(node.outputs[0], node) for node in graph.nodes]
    return graph.with_nodes(nodes, types=types, constants=constants) if changed else graph


def _parts(graph: Graph, node: Node, consumers: Mapping[str, list[Node]], lanes: int) -> _Parts | None:
    """The parts of a convolution's output if only they are read, and not all of them begin a block."""
    dense = node.op == "conv2d" and node.attrs.get("groups", 1) == 1 and len(node.inputs) == 2
    if not dense or node.inputs[1] not in graph.constants or graph.types[node.outputs[0]].shape[0] != 1:
        return None
    channels = graph.types[node.outputs[0]].shape[1]
    whole, waiting, extents = set[str](), [node.outputs[0]], dict[int, int]()
    while waiting:
        name = waiting.pop()
        whole.add(name)
        if name in graph.outputs:
            return None
        for user in consumers[name]:
            cut = _channels(graph, user)
            if cut is not None and extents.setdefault(cut[0], cut[1]) == cut[1]:
                continue
            if cut is not None or not _by_channel(graph, user, name, channels):
                return None
            waiting.append(user.outputs[0])
    moved, end, total = dict[int, int](), 0, 0
    for start, extent in sorted(extents.items()):
        if start < end:
            return None
        moved[start] = -(-total // lanes) * lanes
        end, total = start + extent, moved[start] + extent
    if total > MOST * channels or all(start % lanes == 0 for start in moved):
        return None
    return _Parts(moved, extents, frozenset(whole), total)


def _channels(graph: Graph, node: Node) -> tuple[int, int] | None:
    """(start, extent) of a slice of nothing but channels."""
    if node.op != "slice" or any(step != 1 for step in node.attrs.get("steps") or ()):  # type: ignore[union-attr]
        return None
    shape, own = graph.types[node.inputs[0]].shape, graph.types[node.outputs[0]].shape
    start = node.attrs["starts"][1]  # type: ignore[index]
    assert isinstance(start, int)
    return (start, own[1]) if (own[0], *own[2:]) == (shape[0], *shape[2:]) else None


def _by_channel(graph: Graph, node: Node, name: str, channels: int) -> bool:
    """Whether a node is element-wise in ``name`` and constants of one element, or of one a channel."""
    if not OPERATORS[node.op].traits.finite or not facts_of(graph, node).elementwise or node.inputs.count(name) != 1:
        return False
    others = [graph.types[other].shape for other in node.inputs if other != name and other in graph.constants]
    wide = [(channels, 1, 1), (1, channels, 1, 1)]
    same = graph.types[node.outputs[0]].shape == graph.types[name].shape
    return same and len(others) == len(node.inputs) - 1 and all(shape in wide or _single(shape) for shape in others)


def _single(shape: tuple[int, ...]) -> bool:
    return all(extent == 1 for extent in shape)


def _spread(array: np.ndarray, dim: int, parts: _Parts) -> np.ndarray:
    """A constant with one element, or row, a channel: those of the parts moved, zeros between."""
    source = np.moveaxis(array, dim, 0)
    result = np.zeros((parts.channels, *source.shape[1:]), array.dtype)
    for start, to in parts.moved.items():
        result[to : to + parts.extents[start]] = source[start : start + parts.extents[start]]
    return np.ascontiguousarray(np.moveaxis(result, 0, dim))
