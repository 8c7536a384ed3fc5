"""The algorithm of every convolution and product with weights, by default the one estimated to be fastest.

Constant weights are transformed here, at compile time; others at every call, by a node that is added, or within
Winograd's algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from burnish.graph.costs import product_in_parts
from burnish.graph.estimates import Estimate, estimates, packing_seconds, window_of
from burnish.graph.graph import Attribute, Graph, Node, TensorType
from burnish.graph.row_images import borders, conversion_seconds, suits_rows
from burnish.machines.target import Target
from burnish.ops import infer
from burnish.ops.bf16x3 import split_matrix, split_stem_weight, split_weight
from burnish.ops.convolution import band, band_depth
from burnish.ops.polyphase import transform_phases
from burnish.ops.transposed import is_single_pixel
from burnish.ops.winograd import transform_weight

# The operator that makes the weight of an algorithm at a call.
TRANSFORMS = {
    "winograd_conv2d": "winograd_weight",
    "polyphase_conv2d": "polyphase_weight",
    "split_conv2d": "split_weight_parts",
    "split_stem": "split_stem_parts",
    "split_matmul": "split_matrix_parts",
}

# What an algorithm must be predicted to take beside the direct one: estimates of both err by 0.15 together (Zen 4, 121
# layers on one thread), and by a parallel region more or less on several. The share of its time, and seconds less.
SURELY, LEAST_SAVED = 0.87, 2e-6

Decide = Callable[[Graph, Node, Sequence[Estimate]], Estimate]


def fastest(graph: Graph, node: Node, found: Sequence[Estimate]) -> Estimate:
    """The algorithm with the smallest estimate, if it surely takes less time than the node as it is."""
    first = min(found, key=lambda e: e.seconds)
    direct = next((e for e in found if e.op == node.op), first)
    return first if first.seconds < min(SURELY * direct.seconds, direct.seconds - LEAST_SAVED) else direct


def signature(graph: Graph, node: Node) -> str:
    """Signature of a node without its name and weights: the same for all nodes an algorithm suits equally well."""
    types = ", ".join(str(graph.types[name]) for name in (*node.inputs, *node.outputs))
    return f"{node.op}({types}) {sorted(node.attrs.items())}"


def choose_algorithms(graph: Graph, target: Target, exact: bool, decide: Decide = fastest) -> Graph:
    """Replaces convolutions and products by the algorithm that ``decide`` takes; ``exact`` keeps all as they are."""
    if exact and not any(_has_phases(graph, node) for node in graph.nodes):
        return graph
    types, constants = dict(graph.types), dict(graph.constants)
    nodes = []
    for node in graph.nodes:
        block = 0 if exact else _band_block(graph, node, target)
        if block:
            nodes += _banded(graph, node, block, types, constants)
            continue
        if _has_phases(graph, node):
            nodes += _in_phases(graph, node, types)
            continue
        found = [] if exact else alternatives(graph, node, target)
        best = decide(graph, node, found) if found else None
        if best is None or best.op == node.op:
            nodes.append(node)
            continue
        nodes += computed_by(best, graph, node, types, constants)
    return graph.with_nodes(nodes, types=types, constants=constants)


def computed_by(
    chosen: Estimate, graph: Graph, node: Node, types: dict[str, TensorType], constants: dict[str, np.ndarray]
) -> list[Node]:
    """``node`` by an algorithm; the weight as that reads it is added to ``types``.

    A constant one is added to ``constants``; for another, the node that computes it comes first, if it is not
    transformed within.
    """
    if chosen.op == node.op:
        return [node]
    if chosen.attrs.get("transforms_weight"):
        return [replace(node, op=chosen.op, attrs=chosen.attrs)]
    source = node.inputs[1]
    name = f"{source}.{chosen.op}{chosen.attrs.get('m', '')}"
    before: list[Node] = []
    if source not in graph.constants:
        before = _transforming(chosen, source, name, types)
    elif name not in constants:
        constants[name] = _transformed(graph.constants[source], chosen)
        types[name] = TensorType(constants[name].shape, str(constants[name].dtype))
    return [*before, replace(node, op=chosen.op, inputs=(node.inputs[0], name), attrs=chosen.attrs)]


def _transforming(chosen: Estimate, source: str, name: str, types: dict[str, TensorType]) -> list[Node]:
    """The node that transforms a weight at every call; none where another node's algorithm has it already."""
    attrs: dict[str, Attribute] = {}
    if chosen.op == "winograd_conv2d":
        attrs = {"m": chosen.attrs["m"], "strides": chosen.attrs["strides"]}
    elif chosen.op == "polyphase_conv2d":
        attrs = {"m": chosen.attrs["m"], "stride": _ints(chosen.attrs["strides"])[1]}
    return _weight_node(TRANSFORMS[chosen.op], source, name, attrs, types)


def _weight_node(
    op: str, source: str, name: str, attrs: dict[str, Attribute], types: dict[str, TensorType]
) -> list[Node]:
    if name in types:
        return []
    t = types[source]
    ((shape, dtype),) = infer(op, [(t.shape, t.dtype)], attrs)
    types[name] = TensorType(shape, dtype)
    return [Node(op, (source,), (name,), attrs)]


def _transformed(weight: np.ndarray, chosen: Estimate) -> np.ndarray:
    """The weight as the chosen algorithm reads it."""
    if chosen.op == "polyphase_conv2d":
        m, strides = chosen.attrs["m"], _ints(chosen.attrs["strides"])
        assert isinstance(m, int)
        return transform_phases(weight, m, strides[1])
    if chosen.op == "winograd_conv2d":
        m = chosen.attrs["m"]
        assert isinstance(m, int)
        return transform_weight(weight, m, _ints(chosen.attrs["strides"]))
    makers = {"split_conv2d": split_weight, "split_stem": split_stem_weight, "split_matmul": split_matrix}
    return makers[chosen.op](weight)


def alternatives(graph: Graph, node: Node, target: Target) -> list[Estimate]:
    """The algorithms of a node with weights, the one it has among them; none for other nodes.

    Where the weights are no constant, an estimate includes the time to transform and pack them at every call, of which
    several nodes with the same weight have a share each. Of those that are trained, by gradients that thousands of
    steps add up, only algorithms that round about as the definition does are considered.
    """
    if len(node.inputs) != 2 or graph.types[node.inputs[0]].dtype != "float32" or "float32" in target.rounded:
        return []
    constant = node.inputs[1] in graph.constants
    if node.op == "matmul":
        columns = graph.types[node.inputs[1]].shape[-1]
        splits = constant and _splits_matmul(graph, node, target)
        return [Estimate("split_matmul", {"columns": columns}, 0.0)] if splits else []
    if node.op != "conv2d" or node.attrs.get("dilations", (1, 1)) != (1, 1):
        return []
    pads = _ints(node.attrs.get("pads", (0, 0, 0, 0)))
    x, weight, out = (graph.types[name] for name in (*node.inputs, *node.outputs))
    window = window_of(x, weight, out, node.attrs)
    images = borders(graph, node)
    found = [
        replace(e, seconds=e.seconds + conversion_seconds(graph, node, e.op, images, target))
        for e in estimates(window, pads, target, len(images) == 2, constant)
    ]
    if constant:
        return found
    trained = graph.trained or bool(graph.states)
    kept = [e for e in found if e.steady or not trained]
    readers = sum(other.op == node.op and other.inputs[1:2] == node.inputs[1:] for other in graph.nodes)
    return [replace(e, seconds=e.seconds + packing_seconds(e, window, target) / readers) for e in kept]


def _band_block(graph: Graph, node: Node, target: Target) -> int:
    """Output channels of a block of a banded convolution, where groups do not fit vectors; 0 for other nodes.

    Groups of whole vectors need no bands, and where several groups fit a vector, shuffles are cheaper than zeros.
    """
    groups = node.attrs.get("groups", 1)
    if node.op != "conv2d" or groups == 1 or len(node.inputs) != 2:
        return 0
    assert isinstance(groups, int)
    outputs, depth = graph.types[node.inputs[1]].shape[:2]
    per_group = outputs // groups
    if graph.types[node.inputs[0]].dtype != "float32" or per_group % target.lanes == 0 or outputs < target.lanes:
        return 0
    if target.lanes % (4 * per_group) == 0 or suits_rows(graph, node, target.lanes):
        return 0

    def work(block: int) -> tuple[int, int]:
        return -(-outputs // block) * block * band_depth(outputs, depth, groups, block), -block

    return min((target.lanes, 2 * target.lanes, 4 * target.lanes), key=work)


def _banded(
    graph: Graph, node: Node, block: int, types: dict[str, TensorType], constants: dict[str, np.ndarray]
) -> list[Node]:
    """``node`` as a banded convolution; its weight is added as by :func:`computed_by`."""
    weight, groups = node.inputs[1], node.attrs["groups"]
    assert isinstance(groups, int)
    name = f"{weight}.band{groups}.{block}"
    before: list[Node] = []
    if weight not in graph.constants:
        before = _weight_node("banded_weight", weight, name, {"groups": groups, "block": block}, types)
    elif name not in constants:
        constants[name] = band(graph.constants[weight], groups, block)
        types[name] = TensorType(constants[name].shape, str(constants[name].dtype))
    outputs, depth = graph.types[weight].shape[:2]
    attrs = {key: value for key, value in node.attrs.items() if key != "groups"}
    attrs.update(outputs=outputs // groups, depth=depth, block=block)
    return [*before, replace(node, op="banded_conv2d", inputs=(node.inputs[0], name), attrs=attrs)]


def _has_phases(graph: Graph, node: Node) -> bool:
    """Whether a node is a transposed convolution whose weight, no constant, is arranged by phases at every call."""
    if node.op != "conv2d_transpose" or len(node.inputs) != 2 or node.inputs[1] in graph.constants:
        return False
    dilations, padding = (
        _ints(node.attrs.get(key, other)) for key, other in (("dilations", (1, 1)), ("output_padding", (0, 0)))
    )
    return not node.attrs.get("kernel") and not is_single_pixel(graph.types[node.inputs[0]].shape, dilations, padding)


def _in_phases(graph: Graph, node: Node, types: dict[str, TensorType]) -> list[Node]:
    """The node that arranges the weight of a transposed convolution, and the convolution that reads it."""
    weight = node.inputs[1]
    attrs = {key: node.attrs[key] for key in ("strides", "pads", "dilations", "groups") if key in node.attrs}
    name = f"{weight}.phases{'.'.join(str(v) for v in attrs.values())}"
    before = _weight_node("transposed_weight", weight, name, attrs, types)
    kernel = graph.types[weight].shape[2:]
    return [*before, replace(node, inputs=(node.inputs[0], name), attrs={**node.attrs, "kernel": kernel})]


def _splits_matmul(graph: Graph, node: Node, target: Target) -> bool:
    """Whether a product with a constant matrix, of what is no constant, is computed in bfloat16 parts."""
    if node.inputs[0] in graph.constants or any(node.attrs.values()):
        return False
    if graph.types[node.inputs[1]].dtype != "float32":  # its parts would take the memory of two halves
        return False
    left, right = (graph.types[name].shape for name in node.inputs)
    return product_in_parts(left, right, target)


def _ints(value: Attribute) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)  # type: ignore[arg-type]
