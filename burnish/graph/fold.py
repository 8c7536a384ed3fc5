"""Constant folding: nodes whose inputs are all known are evaluated by their definitions, unless that would bloat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from burnish.graph.evaluate import evaluate_node
from burnish.graph.graph import Graph, Node, infer_types
from burnish.graph.rewrite import Rewrite, rewrite

SMALL_BYTES = 1 << 20  # results up to this size are folded whatever they are made from
GROWTH = 2  # larger ones only if they hold at most this many times the bytes of their inputs


def fold(graph: Graph) -> Graph:
    """``graph`` with constant subexpressions replaced by their values.

    Reshaping, transposing and broadcasting a constant gives a view of the same memory: constants may be strided.
    """
    return rewrite(graph, _fold_node)


def _fold_node(new: Rewrite, node: Node) -> Sequence[str] | None:
    values = [new.constants[name] for name in node.inputs if name in new.constants]
    if not values or len(values) != len(node.inputs):
        return None
    view = _view(node, values[0])
    if view is None:
        types = infer_types(node.op, [new.types[name] for name in node.inputs], node.attrs)
        result, source = sum(t.nbytes for t in types), sum(value.nbytes for value in values)
        if result > max(SMALL_BYTES, GROWTH * source):
            return None
        arrays = evaluate_node(node, values)
    else:
        arrays = [view]
    return [new.constant(array, name) for name, array in zip(node.outputs, arrays, strict=True)]


def _view(node: Node, value: np.ndarray) -> np.ndarray | None:
    """The result as a view of the operand, where NumPy has one: folding weights must not copy them."""
    match node.op:
        case "reshape":
            return value.reshape(node.attrs["shape"])  # type: ignore[arg-type]
        case "transpose" if "perm" in node.attrs:
            return value.transpose(node.attrs["perm"])  # type: ignore[arg-type]
        case "identity":
            return value
    return None
