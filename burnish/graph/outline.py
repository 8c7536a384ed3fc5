"""Outlining of a fused group: canonical tensor names, so that equal kernels of different layers are equal as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from burnish.errors import ModelError
from burnish.graph.fuse import Group
from burnish.graph.fusion_properties import facts_of
from burnish.graph.graph import Attribute, Graph, Node, TensorType, infer_types
from burnish.loops.layout import Layout
from burnish.ops import OPERATORS


def isolate(
    graph: Graph, group: Group, layouts: Mapping[str, Layout] | None = None
) -> tuple[Graph, Group, dict[str, str]]:
    """The group as a graph of its own, its inputs called ``p0, p1, ...`` and its results ``t0, t1, ...``.

    Also returns the original name of each. Of the constants only those of one element keep their values, because only
    they become part of the code. A pointwise convolution's pixels are collapsed into one dimension, and windows
    of images of one column are those of images of one row. ``layouts``: of values that are not row-major.
    """
    original: dict[str, str] = {}
    fresh: dict[str, str] = {}
    for i, name in enumerate(group.inputs):
        fresh[name] = f"p{i}"
    literals = dict.fromkeys(n for node in group.nodes for n in node.inputs if n not in fresh and n in graph.constants)
    fresh.update({name: f"c{i}" for i, name in enumerate(literals)})
    results = [name for node in group.nodes for name in node.outputs]
    fresh.update({name: f"t{i}" for i, name in enumerate(results)})
    original = {new: old for old, new in fresh.items()}
    renamed = {node: _rename(node, fresh) for node in group.nodes}
    types = {new: graph.types[old] for old, new in fresh.items()}
    nodes = tuple(renamed[node] for node in group.nodes)
    inputs, outputs = tuple(fresh[n] for n in group.inputs), tuple(fresh[n] for n in group.outputs)
    constants = {fresh[n]: graph.constants[n] for n in literals}
    anchor = next((renamed[node] for node in group.nodes if node is group.anchor), None)
    alone = Graph(inputs, outputs, nodes, types, constants)
    own = replace(group, nodes=nodes, inputs=inputs, outputs=outputs, anchor=anchor)
    arranged = {new: layouts[name] for name, new in fresh.items() if name in layouts} if layouts else {}
    alone, own = _turn(_collapse(alone, own, arranged), own, arranged)
    return alone, own, original


def _rename(node: Node, fresh: dict[str, str]) -> Node:
    return replace(
        node, inputs=tuple(fresh[n] for n in node.inputs), outputs=tuple(fresh[n] for n in node.outputs), name=""
    )


def _is_pointwise(graph: Graph, anchor: Node | None) -> bool:
    if anchor is None or OPERATORS[anchor.op].traits.weight_channel != 0:
        return False
    if graph.types[anchor.inputs[1]].shape[2:] != (1, 1):
        return False
    return all(anchor.attrs.get(key, value) == value for key, value in _POINTWISE.items())


_POINTWISE = {"strides": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}


def _keeps_rows(layout: Layout) -> bool:
    """Whether height and width are whole, one behind the other, so that a row follows the one before."""
    pixels = [i for i, part in enumerate(layout.parts) if part.dim in (2, 3)]
    return len(pixels) == 2 and pixels[1] == pixels[0] + 1 and [layout.parts[i].dim for i in pixels] == [2, 3]


def _collapse(graph: Graph, group: Group, layouts: Mapping[str, Layout]) -> Graph:
    """[N, C, H, W] as [N, C, 1, H * W] throughout, where every node but a 1x1 convolution is the same at each.

    The bytes are the same in any layout of N and C, and a row of all pixels cuts into better register tiles.
    """
    copied = all(node.op == "identity" for node in group.nodes)
    if not copied and not _is_pointwise(graph, group.anchor):
        return graph
    fixed = () if copied or group.anchor is None else group.anchor.inputs[1:]  # weight and bias
    shape = graph.types[group.nodes[0].outputs[0]].shape
    if len(shape) != 4:
        return graph
    height, width = shape[2:]
    types = dict(graph.types)
    for name, t in graph.types.items():
        if name in fixed or t.shape[-2:] == (1, 1) or t.size == 1:
            continue
        if len(t.shape) != 4 or t.shape[2:] != (height, width):
            return graph
        if name in layouts and not _keeps_rows(layouts[name]):
            return graph
        types[name] = TensorType((*t.shape[:2], 1, height * width), t.dtype)
    if not all(node is group.anchor or facts_of(graph, node).pixelwise for node in group.nodes):
        return graph
    return replace(graph, types=types) if all(_stays(node, types) for node in group.nodes) else graph


# Attributes of operators on windows of images, of which those in PAIRS are for the height and the width.
PAIRS = frozenset(("kernel", "strides", "dilations", "pads", "output_padding"))
OTHERS = frozenset(("groups", "ceil_mode", "count_include_pad"))


def _turn(graph: Graph, group: Group, layouts: Mapping[str, Layout]) -> tuple[Graph, Group]:
    """Images [N, C, H, 1] as [N, C, 1, H] throughout, and weights of windows [O, D, KH, 1], where every node but the
    anchor is the same at each pixel: the bytes are the same in any layout of N and C, and a row is cut into vectors.
    """
    anchor = group.anchor
    if anchor is None or not anchor.attrs.keys() <= PAIRS | OTHERS:
        return graph, group
    if OPERATORS[anchor.op].traits.weight_channel != 0 and "kernel" not in anchor.attrs:
        return graph, group
    types = dict(graph.types)
    for name, t in graph.types.items():
        if t.size == 1 or len(t.shape) < 2 or t.shape[-2:] == (1, 1):
            continue
        if len(t.shape) != 4 or t.shape[3] != 1 or (name in layouts and not _keeps_rows(layouts[name])):
            return graph, group
        types[name] = TensorType((*t.shape[:2], 1, t.shape[2]), t.dtype)
    turned = replace(anchor, attrs={key: _turned(key, value) for key, value in anchor.attrs.items()})
    nodes = tuple(turned if node is anchor else node for node in group.nodes)
    pixelwise = all(node is anchor or facts_of(graph, node).pixelwise for node in group.nodes)
    if types == graph.types or not pixelwise or not all(_stays(node, types) for node in nodes):
        return graph, group
    return replace(graph, types=types, nodes=nodes), replace(group, nodes=nodes, anchor=turned)


def _turned(key: str, value: Attribute) -> Attribute:
    """An attribute of a window whose height and width are exchanged; of pads: top, left, bottom, right."""
    if key not in PAIRS or not isinstance(value, tuple):
        return value
    return (*value[1::-1], *value[:1:-1]) if key == "pads" else value[::-1]


def _stays(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Whether a node is the same operator on tensors of these types; an adjoint's attributes know its shapes."""
    try:
        found = infer_types(node.op, [types[name] for name in node.inputs], node.attrs)
    except ModelError:
        return False
    return [*found] == [types[name] for name in node.outputs]
