"""Reference evaluation of a graph, node by node, by the operators' definitions: the oracle of ``burnish check``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from burnish import ops
from burnish.errors import InputError
from burnish.graph.graph import Graph, Node, TensorType, type_of
from burnish.graph.specialize import attribute_at
from burnish.loops.evaluate import evaluate as evaluate_tensors
from burnish.loops.expr import FLOATS
from burnish.loops.numeric import numpy_dtype
from burnish.loops.tensor import placeholder
from burnish.ops.operator import Operator


def evaluate(
    graph: Graph, feeds: Mapping[str, np.ndarray], dtype_override: str | None = None, keep: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Values of the graph's outputs, and of the tensors in ``keep``, by name.

    ``dtype_override="float64"`` computes all floating-point values in float64. Raises InputError for a missing feed, or
    one of another shape or dtype.
    """
    values: dict[str, np.ndarray] = {name: _feed(graph, name, feeds) for name in graph.inputs}
    values.update(graph.constants)
    wanted = {*graph.outputs, *keep}
    holders, sizes = {name: d for d, name in graph.counts.items()}, dict[str, int]()
    last = {name: position for position, node in enumerate(graph.nodes) for name in node.inputs}
    for position, node in enumerate(graph.nodes):
        arrays = [values[name] for name in node.inputs]
        types = [graph.types[name] for name in node.inputs]
        if sizes:
            node = replace(node, attrs={key: attribute_at(value, sizes) for key, value in node.attrs.items()})
            types = [TensorType(tuple(attribute_at(d, sizes) for d in t.shape), t.dtype) for t in types]
        results = evaluate_node(node, arrays, types, dtype_override)
        values.update(zip(node.outputs, results, strict=True))
        sizes |= {holders[n].name: int(r) for n, r in zip(node.outputs, results, strict=True) if n in holders}
        for name in {*node.inputs, *node.outputs}:
            if last.get(name, -1) <= position and name not in wanted and name in values:
                del values[name]  # of large models, not all intermediate values fit at once
    return {name: values[name] for name in (*graph.outputs, *keep)}


def evaluate_node(
    node: Node,
    inputs: Sequence[np.ndarray],
    types: Sequence[TensorType] | None = None,
    dtype_override: str | None = None,
) -> list[np.ndarray]:
    """Values of a node's outputs. ``types`` are those of the inputs, where an override makes the arrays differ."""
    types = [type_of(array) for array in inputs] if types is None else types
    if ops.is_opaque(node.op):
        return _evaluate_extern(ops.OPERATORS[node.op], node, inputs, types, dtype_override)
    tensors = [placeholder(t.shape, t.dtype, f"x{i}") for i, t in enumerate(types)]
    outputs = ops.OPERATORS[node.op].define("y", tensors, node.attrs)
    return evaluate_tensors(outputs, {t.name: a for t, a in zip(tensors, inputs, strict=True)}, dtype_override)


def _evaluate_extern(
    operator: Operator,
    node: Node,
    inputs: Sequence[np.ndarray],
    types: Sequence[TensorType],
    dtype_override: str | None,
) -> list[np.ndarray]:
    """Values of an opaque node's outputs, by its own implementation, from inputs of just its types: a sort shall see as
    equal what the compiled model does.
    """
    assert operator.extern is not None
    given = [np.asarray(x).astype(numpy_dtype(t.dtype), copy=False) for x, t in zip(inputs, types, strict=True)]
    found = operator.extern(*given, **operator.complete(node.attrs))
    results = [np.asarray(value) for value in (found if isinstance(found, tuple) else (found,))]
    if dtype_override is None:
        return results
    return [r.astype(dtype_override) if str(r.dtype) in FLOATS else r for r in results]


def _feed(graph: Graph, name: str, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    if name not in feeds:
        raise InputError(f"evaluate: input '{name}' is missing; given: {', '.join(feeds) or 'none'}")
    array = np.asarray(feeds[name])
    if type_of(array) != graph.types[name]:
        raise InputError(f"evaluate: input '{name}': found {type_of(array)}; allowed: {graph.types[name]}")
    return array
