"""Selections of elements before conversions to wider numbers, in the place of after them: what lies in memory between
kernels stays narrow.

The greatest of some halves made wider is the greatest of the halves, made wider; its gradient by each is the sum of the
same adjoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.graph.graph import Graph, Node
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.expr import FLOATS, ITEM_BYTES

SELECTIONS = ("max_pool2d", "reduce_max", "reduce_min")


def narrow_selections(graph: Graph) -> Graph:
    """``graph`` with such selections and their gradients of narrow numbers, without conversions there and back."""
    return rewrite(graph, _narrowed) if any(_selects(node) for node in graph.nodes) else graph


def _selects(node: Node) -> bool:
    attrs: Any = node.attrs
    return node.op in SELECTIONS or (node.op == "adjoint" and attrs["operator"] in SELECTIONS)


def _narrowed(new: Rewrite, node: Node) -> Sequence[str] | None:
    if node.op == "cast":
        before = _narrow(new, node.inputs[0])
        return (before,) if before is not None and new.types[before].dtype == node.attrs["to"] else None
    found = [_narrow(new, name) for name in node.inputs] if _selects(node) else [None]
    narrow = [name for name in found if name is not None]
    if len(narrow) < len(found) or len({new.types[name].dtype for name in narrow}) > 1:
        return None
    attrs: dict[str, Any] = dict(node.attrs)
    if node.op == "adjoint":
        attrs["types"] = tuple((shape, new.types[narrow[0]].dtype) for shape, _ in attrs["types"])
    wide = new.types[node.inputs[0]].dtype
    return new.replace(node, "cast", new.add(node.op, *narrow, **attrs), to=wide)


def _narrow(new: Rewrite, name: str) -> str | None:
    """The tensor of narrower numbers that one is a conversion of; None of others."""
    made = new.producer(name)
    if made is None or made.op != "cast":
        return None
    before, after = new.types[made.inputs[0]].dtype, new.types[name].dtype
    widens = before in FLOATS and after in FLOATS and ITEM_BYTES[before] < ITEM_BYTES[after]
    return made.inputs[0] if widens else None
