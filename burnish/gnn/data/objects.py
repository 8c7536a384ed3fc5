"""Edges in memory: arrays, sparse matrices of SciPy, graphs of NetworkX, PyTorch Geometric and DGL, as lists of ends.

None of these libraries is imported here: an object that is theirs has brought its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError
from burnish.gnn.data.fields import FIELDS, array_of, fields_of, pair_of, weights_of

KINDS = "arrays, a sparse matrix of SciPy, a graph of NetworkX or DGL, Data of PyTorch Geometric; bn.gnn.read has files"
WEIGHT = "weight"  # the attribute of NetworkX's edges that its own algorithms read as weights


@dataclass(frozen=True)
class EdgeLists:
    """Edges ``source[e] → target[e]`` of an object, its attributes of vertices and edges, and fields under usual names.

    ``vertices``: their number, None where edges alone do not tell it. ``of_vertices`` and ``of_edges``: attributes of
    all vertices and edges by name, which raise DataError for one that is not there. ``fields``: those of
    ``fields.FIELDS`` that the object has under a usual name.
    """

    source: Any
    target: Any
    vertices: int | None
    fields: dict[str, Any]
    of_vertices: Callable[[str], Any]
    of_edges: Callable[[str], Any]

    def given(self, name: str, found: Any) -> Any:
        """A field that a caller gives, as an array or by the name of an attribute; by default that of the object."""
        if found is None:
            return self.fields.get(name)
        names = (found,) if isinstance(found, str) else found
        if name == "features" and isinstance(names, list | tuple) and names and isinstance(names[0], str):
            columns = [np.asarray(self.of_vertices(each)) for each in names]
            return np.hstack([c[:, None] if c.ndim == 1 else c for c in columns])
        if name == "weights" and isinstance(found, str):
            array = np.asarray(self.of_edges(found))
            return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        if isinstance(found, str):
            return self.of_vertices(found)
        if hasattr(found, "toarray"):
            return found.toarray()  # features as a sparse matrix: rows of words, as those of Cora
        return array_of(found)

    def count(self, fields: Mapping[str, Any]) -> int:
        """V: as the object says, else rows of the first field of vertices, else the largest number plus one."""
        if self.vertices is not None:
            return self.vertices
        for name in ("features", "labels"):
            found: Any = fields.get(name)
            shape = found.shape if hasattr(found, "shape") else np.shape(found)
            if shape:
                return int(shape[0])
        ends = [np.asarray(ends) for ends in (self.source, self.target)]
        return max(int(e.max(initial=-1)) if e.dtype.kind in "iu" else -1 for e in ends) + 1


def edge_lists(edges: Any) -> EdgeLists:
    """The edges of an object of any accepted kind. Raises DataError for other objects and shapes."""
    networkx = sys.modules.get("networkx")
    if networkx is not None and isinstance(edges, networkx.Graph):
        return _from_networkx(edges)
    if hasattr(edges, "tocoo"):
        return _from_sparse(edges)
    if hasattr(edges, "ndata") and callable(getattr(edges, "edges", None)):
        return _from_dgl(edges)
    if hasattr(edges, "edge_index"):
        return _from_pyg(edges)
    return EdgeLists(*_ends(edges), None, {}, _none_named, _none_named)


def _ends(edges: Any) -> tuple[Any, Any]:
    """Sources and targets of a pair of arrays (E,), or of one array, (2, E) or (E, 2)."""
    edges = array_of(edges)
    if not isinstance(edges, list | tuple) and not hasattr(edges, "__array__"):
        kind = f"{type(edges).__module__}.{type(edges).__qualname__}".removeprefix("builtins.")
        raise DataError(f"graph: edges: found {kind}; allowed: {KINDS}")
    try:
        if isinstance(edges, tuple) and len(edges) == 2:
            source, target = (np.asarray(array_of(part)) for part in edges)
            if source.ndim == target.ndim == 1:
                return source, target
        array = np.asarray(edges)
    except ValueError as error:
        raise DataError(f"graph: edges: found rows of different lengths; {error}") from None
    if array.shape == (2, 2):
        raise DataError(
            "graph: edges: found shape (2, 2), which may be (2, edges) or (edges, 2); allowed: for two edges a pair, "
            "(sources, targets)"
        )
    array = array.reshape(2, 0) if array.shape in ((0,), (0, 2)) else array
    if array.dtype.kind not in "iuf" or array.ndim != 2 or 2 not in array.shape:
        raise DataError(
            f"graph: edges: found {array.dtype} of shape {array.shape}; allowed: integers (2, edges), (edges, 2), or a "
            "pair of arrays (edges,)"
        )
    source, target = array if len(array) == 2 else array.T
    return source, target


def _none_named(name: str) -> Any:
    raise DataError(f"graph: found the name {name!r}; allowed: an array, as these edges have no named attributes")


def _from_sparse(matrix: Any) -> EdgeLists:
    """Entry (i, j) of a square matrix is the edge i → j; entries that stand twice add up, all ones are no weights."""
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"graph: found a matrix of shape {tuple(matrix.shape)}; allowed: a square one")
    entries, rows = matrix.tocoo(), matrix.tocsr()
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    if rows.nnz < entries.nnz:
        entries = rows.tocoo()
    fields = {"weights": weights_of(entries.data)}
    return EdgeLists(entries.row, entries.col, matrix.shape[0], fields, _none_named, _none_named)


def _from_networkx(graph: Any) -> EdgeLists:
    """Vertex i is the i-th of ``graph.nodes``; an edge of an undirected graph goes both ways."""
    numbers = {node: i for i, node in enumerate(graph.nodes)}
    held = [*graph.edges(data=True)]
    ends = np.array([(numbers[u], numbers[v]) for u, v, _ in held], np.int64).reshape(-1, 2)
    back = np.flatnonzero(ends[:, 0] != ends[:, 1]) if not graph.is_directed() else np.zeros(0, np.int64)

    def both(values: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([values, values[back]])

    def of_vertices(name: str) -> NDArray[Any]:
        return _column("node", name, [(node, own) for node, own in graph.nodes(data=True)])

    def of_edges(name: str) -> NDArray[Any]:
        return both(_column("edge", name, [((u, v), own) for u, v, own in held]))

    weights = None
    if any(WEIGHT in own for _, _, own in held):  # of an edge without: 1, as NetworkX says
        weights = weights_of(both(_column("edge", WEIGHT, [((u, v), {WEIGHT: 1, **own}) for u, v, own in held])))
    fields = {} if weights is None else {"weights": weights}
    ends = np.concatenate([ends, ends[back, ::-1]])
    return EdgeLists(ends[:, 0], ends[:, 1], len(numbers), fields, of_vertices, of_edges)


def _column(what: str, name: str, held: list[tuple[Any, dict[str, Any]]]) -> NDArray[Any]:
    """An attribute of all nodes or edges, (n,) or (n, width). Raises DataError where one has none, or another form."""
    values = []
    for key, own in held:
        if name not in own:
            raise DataError(f"graph: found {what} {key!r} without {name!r}; allowed: the attribute at every {what}")
        values.append(np.asarray(array_of(own[name])))
        if values[-1].shape != values[0].shape:
            raise DataError(
                f"graph: {name!r} of {what} {key!r}: found shape {values[-1].shape}; allowed: {values[0].shape}, as of "
                f"the first {what}"
            )
    return np.stack(values) if values else np.zeros(0)


def _from_pyg(data: Any) -> EdgeLists:
    if array_of(data.edge_index) is None:
        raise DataError("graph: found Data without edge_index; allowed: one with it, (2, edges)")
    source, target = pair_of(array_of(data.edge_index), "edge_index")
    fields = fields_of(lambda name: array_of(getattr(data, name, None)))
    counted = getattr(data, "num_nodes", None)

    def named(name: str) -> Any:
        if getattr(data, name, None) is None:
            raise DataError(f"graph: found no {name!r} in {type(data).__name__}; allowed: a name of what it holds")
        return array_of(getattr(data, name))

    return EdgeLists(source, target, None if counted is None else int(counted), fields, named, named)


def _from_dgl(graph: Any) -> EdgeLists:
    source, target = (array_of(ends) for ends in graph.edges())
    fields = fields_of(lambda name: array_of(graph.ndata[name]) if name in graph.ndata else None) | {
        "weights": next((array_of(graph.edata[name]) for name in FIELDS["weights"] if name in graph.edata), None)
    }

    def named(frame: Any) -> Callable[[str], Any]:
        def of(name: str) -> Any:
            if name not in frame:
                raise DataError(f"graph: found no {name!r}; allowed: {', '.join(frame) or 'none, as there are none'}")
            return array_of(frame[name])

        return of

    return EdgeLists(source, target, int(graph.num_nodes()), fields, named(graph.ndata), named(graph.edata))
