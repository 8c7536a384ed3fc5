"""Half-precision weight storage: constant right factors that a product converts back as it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from burnish import ops
from burnish.errors import ModelError
from burnish.graph.graph import Graph, Node, infer_types
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.numeric import numpy_dtype

HALVES = ("bfloat16", "float16")
LEAST_ELEMENTS = 1 << 12  # of a weight: a smaller one saves nothing


@dataclass
class Stored:
    """Half-precision storage of a model: weights, their elements, and the largest error of one, relative to it."""

    dtype: str
    weights: int = 0
    elements: int = 0
    error: float = 0.0
    names: dict[str, str] = field(default_factory=dict)


def store_weights(graph: Graph, dtype: str) -> tuple[Graph, Stored]:
    """The graph with weights in ``dtype`` wherever the operator that reads them takes that, and what that did.

    A weight is a constant float32 second operand in which an operator is linear (``Traits.weight_channel``). A float16
    cannot hold all values: a weight that would overflow stays. Sums are still float32.
    """
    stored = Stored(dtype)
    result = rewrite(graph, lambda new, node: _half(new, node, stored))
    return result, stored


def _half(new: Rewrite, node: Node, stored: Stored) -> Sequence[str] | None:
    if ops.is_opaque(node.op) or ops.OPERATORS[node.op].traits.weight_channel is None or len(node.inputs) < 2:
        return None
    weight = node.inputs[1]
    value = new.value(weight)
    if value is None or value.dtype != np.float32 or value.size < LEAST_ELEMENTS or node.inputs.count(weight) > 1:
        return None
    half = stored.names.get(weight)
    if half is None:
        rounded = value.astype(numpy_dtype(stored.dtype))
        back = rounded.astype(np.float32)
        if not np.array_equal(np.isfinite(back), np.isfinite(value)):
            return None
        types = [new.types[name] for name in node.inputs]
        now = infer_types(node.op, types, node.attrs)
        types[1] = replace(types[1], dtype=stored.dtype)
        try:
            if infer_types(node.op, types, node.attrs) != now:
                return None
        except ModelError:
            return None
        half = stored.names[weight] = new.constant(rounded, new.fresh(f"{weight}.{stored.dtype}"))
        stored.weights, stored.elements = stored.weights + 1, stored.elements + value.size
        size = np.abs(value)
        normal = size > np.finfo(np.float32).tiny
        stored.error = max(stored.error, float(np.max(np.abs(back - value)[normal] / size[normal], initial=0.0)))
    return new.replace(node, node.op, node.inputs[0], half, *node.inputs[2:], **node.attrs)
