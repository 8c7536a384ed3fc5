"""Constant folding: nodes whose inputs are all known are evaluated by their definitions, unless that would bloat.

A tensor without elements is known, whoever computes it, so that no kernel has to compute one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from burnish.graph.evaluate import evaluate_node
from burnish.graph.graph import Graph, Node, TensorType, infer_types
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.numeric import numpy_dtype
from burnish.loops.sizes import dims_of

SMALL_BYTES = 1 << 20  # results up to this size are folded whatever they are made from
GROWTH = 4  # larger ones only if they hold at most this many times the bytes of their inputs: bytes as floats


def fold(graph: Graph) -> Graph:
    """``graph`` with constant subexpressions replaced by their values.

    Reshaping, transposing and broadcasting a constant gives a view of the same memory: constants may be strided.
    """
    return rewrite(graph, _fold_node)


def _fold_node(new: Rewrite, node: Node) -> Sequence[str] | None:
    types = infer_types(node.op, [new.types[name] for name in node.inputs], node.attrs)
    if all(t.size == 0 for t in types):
        return [new.constant(_empty(t), name) for name, t in zip(node.outputs, types, strict=True)]
    values = [value for name in node.inputs if (value := _known(new, name)) is not None]
    if not values or len(values) != len(node.inputs) or any(dims_of(t.shape) for t in types):
        return None
    view = _view(node, values[0])
    if view is None:
        result, source = sum(t.nbytes for t in types), sum(value.nbytes for value in values)
        if result > max(SMALL_BYTES, GROWTH * source):
            return None
        arrays = evaluate_node(node, values)
    else:
        arrays = [view]
    return [new.constant(array, name) for name, array in zip(node.outputs, arrays, strict=True)]


def _known(new: Rewrite, name: str) -> np.ndarray | None:
    """The value of a constant or of a tensor without elements."""
    return _empty(new.types[name]) if new.types[name].size == 0 else new.constants.get(name)


def _empty(t: TensorType) -> np.ndarray:
    return np.empty(t.shape, numpy_dtype(t.dtype))


def _view(node: Node, value: np.ndarray) -> np.ndarray | None:
    """The result as a view of the operand, where NumPy has one: folding weights must not copy them."""
    match node.op:
        case "reshape":
            return value.reshape(node.attrs["shape"])  # type: ignore[arg-type]
        case "transpose" if "perm" in node.attrs:
            return value.transpose(node.attrs["perm"])  # type: ignore[arg-type]
        case "identity" | "stop_gradient":
            return value
    return None
