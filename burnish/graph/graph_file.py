"""Graphs as a header that JSON can hold and named bytes: what a file keeps of a model that is compiled later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from burnish.graph.graph import Graph, Node, StateUpdate, TensorType
from burnish.graph.verify import verify
from burnish.loops.expr import DTYPES
from burnish.loops.numeric import numpy_dtype
from burnish.loops.size_text import extent_text, parse_extent
from burnish.loops.sizes import Dim, dims_of, is_size

SIZE = "size"  # the key of an attribute's value that is a size


def graph_parts(graph: Graph) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Header and sections of a graph; :func:`graph_from` puts it together again."""
    arrays = {f"graph constant {number}": value for number, value in enumerate(graph.constants.values())}
    arrays |= {f"graph initial {number}": state.initial for number, state in enumerate(graph.states.values())}
    sizes = [d for t in graph.types.values() for d in t.shape]
    dims = sorted(dims_of(sizes) | {*graph.dims}, key=lambda d: d.name)
    header = {
        "dims": [[d.name, d.low, d.high, d.hint] for d in dims],
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "types": {name: [list(map(extent_text, t.shape)), t.dtype] for name, t in graph.types.items()},
        "nodes": [
            [n.op, list(n.inputs), list(n.outputs), {key: _plain(value) for key, value in n.attrs.items()}, n.name]
            for n in graph.nodes
        ],
        "constants": list(graph.constants),
        "states": [[name, state.output] for name, state in graph.states.items()],
        "limits": {name: list(bounds) for name, bounds in graph.limits.items()},
        "trained": graph.trained,
    }
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return header, {name: array.reshape(-1).view(np.uint8).data for name, array in contiguous.items()}


def graph_from(header: Mapping[str, Any], sections: Mapping[str, memoryview]) -> Graph:
    """The graph that :func:`graph_parts` took apart.

    Raises LookupError, TypeError, ValueError and VerificationError for what is inconsistent.
    """
    dims = {name: Dim(name, int(low), int(high), int(hint)) for name, low, high, hint in header["dims"]}
    types = {name: TensorType(_extents(shape, dims), _dtype(dtype)) for name, (shape, dtype) in header["types"].items()}

    def array(section: str, name: str) -> np.ndarray:
        return np.frombuffer(sections[section], numpy_dtype(types[name].dtype)).reshape(types[name].shape)

    nodes = tuple(
        Node(op, tuple(inputs), tuple(outputs), {key: _value(v, dims) for key, v in attrs.items()}, name)
        for op, inputs, outputs, attrs, name in header["nodes"]
    )
    constants = {name: array(f"graph constant {number}", name) for number, name in enumerate(header["constants"])}
    states = {
        name: StateUpdate(int(output), array(f"graph initial {number}", name))
        for number, (name, output) in enumerate(header["states"])
    }
    limits = {name: (int(low), int(high)) for name, (low, high) in header["limits"].items()}
    trained = bool(header.get("trained", False))
    graph = Graph(tuple(header["inputs"]), tuple(header["outputs"]), nodes, types, constants, states, limits, trained)
    verify(graph)
    return graph


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r}")
    return name


def _extents(shape: Any, dims: Mapping[str, Dim]) -> tuple[int, ...]:
    return tuple(parse_extent(d, dims) if isinstance(d, str) else int(d) for d in shape)


def _plain(value: Any) -> Any:
    """An attribute as JSON has it: a list for a tuple, an object for a size."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return {SIZE: str(value)} if is_size(value) else value


def _value(found: Any, dims: Mapping[str, Dim]) -> Any:
    if isinstance(found, list):
        return tuple(_value(v, dims) for v in found)
    return parse_extent(found[SIZE], dims) if isinstance(found, dict) else found
