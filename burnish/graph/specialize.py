"""Specialization of a graph: the static graph for given values of its open dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.errors import ModelError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import is_size


def graph_at(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """``graph`` with numbers for the dimensions that ``sizes`` name; tensors, nodes and states keep their names.

    Raises ModelError for a number outside of a dimension's bounds.
    """
    for d in graph.dims:
        if not d.low <= sizes.get(d.name, d.low) <= d.high:
            raise ModelError(f"dimension '{d}': found {sizes[d.name]}; allowed: {d.low} to {d.high}")
    b = GraphBuilder()
    for name in graph.inputs:
        if name in graph.states:
            b.state(name, graph.states[name].initial)
        else:
            b.input(name, attribute_at(graph.types[name].shape, sizes), graph.types[name].dtype)
    for name, value in graph.constants.items():
        b.constant(value, name)
    for node in graph.nodes:
        attrs = {key: attribute_at(value, sizes) for key, value in node.attrs.items()}
        b.add_many(node.op, *node.inputs, names=node.outputs, node=node.name, **attrs)
    for name, (low, high) in graph.limits.items():
        b.limit(name, low, high)
    after = {state.output: name for name, state in graph.states.items()}
    for position, name in enumerate(graph.outputs):
        if position in after:
            b.update(after[position], name)
    return b.build(*(name for position, name in enumerate(graph.outputs) if position not in after))


def attribute_at(value: Any, sizes: Mapping[str, int]) -> Any:
    """An attribute, or a shape, with numbers for the extents whose dimensions ``sizes`` name all."""
    if isinstance(value, tuple):
        return tuple(attribute_at(v, sizes) for v in value)
    if not is_size(value) or not {d.name for d in value.dims} <= sizes.keys():
        return value
    return value.value(sizes)
