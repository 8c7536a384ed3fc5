"""Half-precision images in float32: convolutions of float16 and bfloat16 by constant weights, and what follows them.

A CPU multiplies float32 and only stores halves. So the weights are converted once, and images stay float32 from one
convolution to the next, through all that adds no product of its own: nothing is rounded to a half in between, which
``exact`` compilations do. Values that other operators read, and results, are halves as before::

    relu(conv2d(x, w))      →  half(relu(conv2d(float32(x), float32(w))))
    float32(half(y))        →  y
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from burnish.graph.fusion_properties import operator_facts
from burnish.graph.graph import Graph, Node, infer_types
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.machines.target import Target

HALVES = ("float16", "bfloat16")
CONVOLUTIONS = ("conv2d", "conv2d_transpose")


def widen_images(graph: Graph, target: Target) -> Graph:
    """``graph`` with images of halves in float32, where ``target`` is a CPU."""
    if target.machine.dialect.grid is not None or not any(_convolves(graph, node) for node in graph.nodes):
        return graph
    wide: dict[str, str] = {}  # a tensor of halves -> the same numbers in float32
    return rewrite(graph, lambda new, node: _rule(new, node, wide))


def _convolves(graph: Graph | Rewrite, node: Node) -> bool:
    """Whether a node convolves an image of halves with a constant weight."""
    if node.op not in CONVOLUTIONS or graph.types[node.inputs[0]].dtype not in HALVES:
        return False
    return node.inputs[1] in graph.constants


def _rule(new: Rewrite, node: Node, wide: dict[str, str]) -> Sequence[str] | None:
    if node.op == "cast" and node.attrs["to"] == "float32" and node.inputs[0] in wide:
        return [wide[node.inputs[0]]]
    if not (_convolves(new, node) or _follows(new, node, wide)):
        return None
    types = [new.types[name] for name in node.inputs]
    halves = [t.dtype in HALVES for t in types]
    given = infer_types(node.op, types, node.attrs)
    floats = [replace(t, dtype="float32") if half else t for t, half in zip(types, halves, strict=True)]
    found = infer_types(node.op, floats, node.attrs)
    if any(t.dtype not in HALVES for t in given) or any(t.dtype != "float32" for t in found):
        return None
    inputs = [_wide(new, name, wide) if half else name for name, half in zip(node.inputs, halves, strict=True)]
    attrs: dict[str, Any] = dict(node.attrs)
    results = new.add_many(node.op, *inputs, node=node.name, **attrs)
    for result, own, t in zip(results, node.outputs, given, strict=True):
        wide[new.add("cast", result, to=t.dtype, name=own, node=node.name)] = result
    return node.outputs


def _follows(new: Rewrite, node: Node, wide: dict[str, str]) -> bool:
    """Whether a node reads wide images and adds no product, and no step that a rounding could move."""
    if node.op == "cast" or wide.keys().isdisjoint(node.inputs):
        return False
    types = tuple(new.types[name] for name in node.inputs)
    facts = operator_facts(node.op, types, tuple(sorted(node.attrs.items())))
    return facts.kind not in ("extern", "complex") and not facts.steps


def _wide(new: Rewrite, name: str, wide: dict[str, str]) -> str:
    if name not in wide:
        wide[name] = new.add("cast", name, to="float32")
    return wide[name]
