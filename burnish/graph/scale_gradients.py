"""Gradients of normalizations by their scale as sums of columns of what is scaled, on devices with many threads.

From the definition, sums and deviations of rows are launches of their own before columns can be summed. A
normalization without a scale is one launch, and sums of columns are another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.ops.operator import normal_axis

NORMALIZATIONS = ("layer_norm", "rms_norm")
SCALE = 1  # the number of the operand


def sum_columns(graph: Graph) -> Graph:
    """``graph`` with these gradients so where they are float32."""
    return rewrite(graph, _columns) if any(_rows(graph, node) for node in graph.nodes) else graph


def _columns(new: Rewrite, node: Node) -> Sequence[str] | None:
    count = _rows(new, node)
    if not count:
        return None
    x, seed = node.inputs
    attrs: Any = node.attrs
    scaled = new.add(attrs["operator"], x, **dict(attrs["attributes"]))
    product = new.add("mul", seed, scaled)
    return new.replace(node, "reduce_sum", product, axes=tuple(range(count)), keepdims=False)


def _rows(graph: Graph | Rewrite, node: Node) -> int:
    """The number of leading dimensions that are rows of a normalization whose scale's gradient a node is, else 0."""
    attrs: Any = node.attrs
    if node.op != "adjoint" or attrs["operator"] not in NORMALIZATIONS or attrs["wrt"] != SCALE:
        return 0
    types = [graph.types[name] for name in node.inputs]
    own = dict(attrs["attributes"])
    if len(types) != 2 or types[0] != types[1] or types[0].dtype != "float32" or own.get("trailing", 0):
        return 0
    return normal_axis(own.get("axis", -1), len(types[0].shape))
