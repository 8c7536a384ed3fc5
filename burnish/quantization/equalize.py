"""Cross-layer equalization: channels between two layers scaled so that the weights before and behind reach as far.

``W2 f(W1 x + b)`` is ``(W2 s) f((W1 x + b) / s)`` for positive ``s`` and an ``f`` such as relu.
Source: Nagel et al. 2019, section 4.1.
"""

from __future__ import annotations

import numpy as np

from burnish.graph.graph import Graph, Node
from burnish.quantization.layers import LayeredGraph

MOST_ROUNDS = 20
SETTLED = 1e-3  # a round that scales no channel by more ends them


def equalized(graph: Graph) -> tuple[Graph, int]:
    """A prepared graph with equalized weights, and the number of pairs of layers that this is about."""
    network = LayeredGraph(graph)
    readers = [name for node in graph.nodes for name in node.inputs]
    pairs = [
        pair
        for layer in network.layers
        if layer.constant and (pair := _pair(network, layer.node)) is not None
        and all(readers.count(name) == 1 for name in (*pair[1], pair[0].inputs[1], pair[2].inputs[1]))
    ]  # fmt: skip
    constants = dict(graph.constants)
    for _ in range(MOST_ROUNDS if pairs else 0):
        moved = max(_equalize(constants, *pair) for pair in pairs)
        if moved < SETTLED:
            break
    same = {n: a if a is graph.constants[n] else a.astype(np.float32) for n, a in constants.items()}
    return graph.with_nodes(graph.nodes, constants=same), len(pairs)


def _pair(network: LayeredGraph, first: Node) -> tuple[Node, list[str], Node] | None:
    """A layer, the biases behind it, and the layer that alone reads its result; None where there is no such."""
    graph, biases = network.graph, [*first.inputs[2:]]
    if first.op == "conv2d" and not _is_plain(graph, first):
        return None
    reader = network.only_reader(first.outputs[0])
    while reader is not None:
        if reader.op == first.op and reader.inputs[1] in graph.constants and reader.inputs[0] not in graph.constants:
            fits = reader.op == "conv2d" or len(graph.constants[reader.inputs[1]].shape) == 2
            return (first, biases, reader) if fits and _is_plain(graph, reader) else None
        if reader.op == "add" and reader.inputs[1] in graph.constants and first.op == "matmul":
            if graph.constants[reader.inputs[1]].shape != graph.constants[first.inputs[1]].shape[1:]:
                return None
            biases.append(reader.inputs[1])
        elif reader.op != "relu" and not (reader.op == "clip" and reader.attrs.get("max") is None
                                          and reader.attrs.get("min") == 0):  # fmt: skip
            return None
        reader = network.only_reader(reader.outputs[0])
    return None


def _is_plain(graph: Graph, node: Node) -> bool:
    """Whether a layer has one weight for every pair of channels, or one channel a group; not transposed."""
    shape, groups = graph.constants[node.inputs[1]].shape, node.attrs.get("groups", 1)
    if node.op == "matmul":
        return len(shape) == 2 and not any(node.attrs.values())
    return groups == 1 or (shape[1] == 1 and groups == shape[0])


def _equalize(constants: dict[str, np.ndarray], first: Node, biases: list[str], second: Node) -> float:
    """Scales the channels between two layers; how far from 1 the factors were at most."""
    before, behind = (constants[node.inputs[1]].astype(np.float64) for node in (first, second))
    out_axis = 0 if first.op == "conv2d" else 1
    in_axis = (0 if second.attrs.get("groups", 1) != 1 else 1) if second.op == "conv2d" else 0
    reach = [_reach(before, out_axis), _reach(behind, in_axis)]
    usable = (reach[0] > 0) & (reach[1] > 0)
    factor = np.where(usable, np.sqrt(reach[0] / np.where(usable, reach[1], 1)), 1.0)
    constants[first.inputs[1]] = before / _spread(factor, out_axis, before.ndim)
    constants[second.inputs[1]] = behind * _spread(factor, in_axis, behind.ndim)
    for bias in biases:
        constants[bias] = constants[bias].astype(np.float64) / factor
    return float(np.abs(factor - 1).max(initial=0.0))


def _reach(weight: np.ndarray, axis: int) -> np.ndarray:
    return np.abs(weight).max(tuple(d for d in range(weight.ndim) if d != axis), initial=0.0)


def _spread(factor: np.ndarray, axis: int, rank: int) -> np.ndarray:
    return factor.reshape([-1 if d == axis else 1 for d in range(rank)])
