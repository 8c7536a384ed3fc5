"""Attention in a graph as one node: what a step of training then computes again instead of keeping it.

``softmax(f(Q K')) V``, ``f`` being scales and a causal mask, in any of the forms that operators write it in. Used
where a target's templates keep scores and shares in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from burnish.graph.eliminate import eliminate
from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.expr import FLOATS
from burnish.loops.sizes import is_size


def gather_attention(graph: Graph) -> Graph:
    """``graph`` with such nodes; what they replace is gone where nothing else reads it."""
    if not any(node.op == "softmax" for node in graph.nodes):
        return graph
    return eliminate(rewrite(graph, _attention))


def _attention(new: Rewrite, node: Node) -> Sequence[str] | None:
    """Attention that ends in a product."""
    attrs: Any = node.attrs
    if node.op != "matmul" or attrs.get("transpose_a") or attrs.get("transpose_b"):
        return None
    softmax = _only(new, node.inputs[0], "softmax")
    if softmax is None:
        return None
    shape = new.types[softmax.outputs[0]].shape
    if len(shape) < 3 or any(map(is_size, shape)) or softmax.attrs.get("axis", -1) not in (-1, len(shape) - 1):
        return None
    name, scale, causal = softmax.inputs[0], 1.0, False
    while (step := _step(new, name)) is not None:
        name, factor, masked = step
        if masked and (causal or scale != 1.0):
            return None
        scale, causal = scale * factor, causal or masked
    first = _only(new, name, "matmul")
    if first is None or first.attrs.get("transpose_a"):
        return None
    query, key, value = (*first.inputs, node.inputs[1])
    types = [new.types[n] for n in (query, key, value)]
    if len({t.dtype for t in types}) != 1 or types[0].dtype not in FLOATS or (causal and shape[-1] < shape[-2]):
        return None
    lead = shape[:-2]
    if any(t.shape[:-2] != lead for t in types):
        return None
    if not first.attrs.get("transpose_b"):
        rank = len(shape)
        key = new.add("transpose", key, perm=(*range(rank - 2), rank - 1, rank - 2))
    return new.replace(node, "row_attention", query, key, value, scale=scale, causal=causal)


def _only(new: Rewrite, name: str, op: str) -> Node | None:
    """The node that computes a tensor which one other reads, if it is of an operator."""
    found = new.producer(name)
    return found if found is not None and found.op == op and new.used_once(name) else None


def _step(new: Rewrite, name: str) -> tuple[str, float, bool] | None:
    """A scale or causal mask whose result a tensor is: of which one, the factor, and whether there is the mask."""
    node = new.producer(name)
    if node is None or not new.used_once(name):
        return None
    if node.op in ("mul", "div"):
        number = new.value(node.inputs[1])
        if number is None or number.size != 1 or new.types[node.inputs[0]] != new.types[name]:
            return None
        factor = float(number.reshape(-1)[0])
        return (node.inputs[0], factor if node.op == "mul" else 1 / factor, False) if factor > 0 else None
    if node.op == "where":
        mask, low = new.value(node.inputs[0]), new.value(node.inputs[2])
        shape = new.types[name].shape
        if mask is None or low is None or low.size != 1 or new.types[node.inputs[1]] != new.types[name]:
            return None
        wanted = np.tri(shape[-2], shape[-1], dtype=np.bool_)
        if low.reshape(-1)[0] == -np.inf and mask.size == wanted.size and (mask.reshape(wanted.shape) == wanted).all():
            return node.inputs[1], 1.0, True
    return None
