"""Graphs with features, labels and splits: immutable, in rows of in-edges, checked once when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.arguments import typed
from burnish.errors import DataError, ParameterError
from burnish.gnn.data.csr import CSR, LARGEST, integers, inverse, permutation, readonly
from burnish.gnn.data.fields import MASKS, vertex_fields
from burnish.gnn.data.objects import edge_lists
from burnish.gnn.data.rows import FeatureRows, Matrix, check_finite, check_range

MOST_CLASSES = 1 << 16  # that labels tell by themselves, of graphs with fewer vertices

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph whose vertices have features and labels. V vertices, E edges, F features, C classes.

    csr: rows of in-edges. features: float32 (V, F), or ``FeatureRows`` that are read block by block, or None. labels:
    int32 (V,), where -1 is unknown and stands under no mask; uint8 (V, C) of 0 and 1 where a vertex may have several;
    or None. train, validation, test: bool (V,), or None. classes: C, by default the largest label plus one, of labels
    below V or ``MOST_CLASSES``, as a larger one is rather a fault. order: int64 (V,), the number that vertex v had
    before the graph was reordered, or None. Arrays become read-only views. Raises DataError for what does not fit.
    """

    csr: CSR
    features: Matrix | FeatureRows | None = None
    labels: NDArray[Any] | None = None
    train: Mask | None = None
    validation: Mask | None = None
    test: Mask | None = None
    classes: int = 0
    order: NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        known = ", ".join(name for name in ("features", "labels", *MASKS) if getattr(self, name) is not None)
        return f"Graph({self.vertices} vertices, {self.edges} edges; {known or 'no features'})"

    def __post_init__(self) -> None:
        """Checks all but values of features that are not in memory, which ``store.save`` checks as it reads them."""
        if self.csr.rows != self.csr.columns:
            raise DataError(
                f"graph: found {self.csr.rows} rows of {self.csr.columns} columns; allowed: as many of both"
            )
        if self.features is not None:
            self._set("features", _features(self.features, self.vertices))
        for name in MASKS:
            if getattr(self, name) is not None:
                self._set(name, _mask(name, getattr(self, name), self.vertices))
        if self.labels is not None:
            labels, classes = _labels(self.labels, self.vertices, self.classes)
            self._set("labels", labels)
            self._set("classes", classes)
            self._check_known()
        if self.order is not None:
            order = readonly(integers("order", self.order, np.int64))
            if order.shape != (self.vertices,):
                raise DataError(f"graph: order: found shape {order.shape}; allowed: ({self.vertices},)")
            self._set("order", order)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_known(self) -> None:
        if self.multilabel or self.labels is None:
            return
        for name in MASKS:
            mask = getattr(self, name)
            if mask is not None and (wrong := np.flatnonzero(mask & (self.labels < 0))).size:
                raise DataError(f"graph: {name}: vertex {wrong[0]} has no label; allowed: vertices with one")

    @property
    def vertices(self) -> int:
        """V."""
        return self.csr.rows

    @property
    def edges(self) -> int:
        """E, counting both directions of a symmetric graph."""
        return self.csr.edges

    @property
    def width(self) -> int:
        """F; 0 without features."""
        return 0 if self.features is None else int(self.features.shape[1])

    @property
    def multilabel(self) -> bool:
        """Whether a vertex may have several labels."""
        return self.labels is not None and self.labels.ndim == 2

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the in-edges of each vertex begin, (V + 1,)."""
        return self.csr.offsets

    @property
    def sources(self) -> NDArray[np.int32]:
        """In-neighbours by vertex, (E,), ascending for each."""
        return self.csr.sources

    @property
    def weights(self) -> NDArray[np.float32] | None:
        """Weights of the edges, (E,), or None."""
        return self.csr.weights

    @property
    def transpose(self) -> CSR:
        """Rows of out-edges, which gradients run over; made once, and ``csr`` itself where the graph is symmetric."""
        return self.csr.transpose

    @property
    def symmetric(self) -> bool:
        """Whether every edge has its reverse, of the same weight."""
        return self.csr.symmetric

    @property
    def in_degrees(self) -> NDArray[np.int64]:
        """In-edges of each vertex, (V,)."""
        return self.csr.degrees

    @property
    def out_degrees(self) -> NDArray[np.int64]:
        """Out-edges of each vertex, (V,)."""
        return np.bincount(self.csr.sources, minlength=self.vertices).astype(np.int64, copy=False)

    def rows(self, begin: int, end: int, out: Matrix | None = None) -> Matrix:
        """Features of the vertices begin … end - 1, (end - begin, F): in ``out``, or a view of those in memory.

        Raises ParameterError without features, or for vertices that do not exist.
        """
        if self.features is None:
            raise ParameterError("rows: the graph has no features")
        if not isinstance(self.features, np.ndarray):
            return self.features.read(begin, end, out)
        check_range(begin, end, self.vertices)
        if out is None:
            return self.features[begin:end]
        np.copyto(out, self.features[begin:end])
        return out

    def with_(self, **changes: Any) -> Graph:
        """The same graph with other fields, such as ``features``."""
        return replace(self, **changes)

    def with_self_loops(self) -> Graph:
        """Every vertex with an edge to itself: of weight 1 where it had none."""
        return replace(self, csr=self.csr.with_self_loops())

    def without_self_loops(self) -> Graph:
        """Without edges from a vertex to itself."""
        return replace(self, csr=self.csr.without_self_loops())

    def symmetrized(self) -> Graph:
        """With the reverse of every edge."""
        return replace(self, csr=self.csr.symmetrized())

    def reordered(self, new: Any) -> Graph:
        """The graph whose vertex ``new[v]`` is vertex v of this one; ``order`` keeps the first numbers.

        new: integers (V,), a permutation. Features in memory are copied; others are gathered row by row when read.
        """
        order = permutation(new, self.vertices)
        return self._taken(self.csr.permuted(order), inverse(order))

    def subgraph(self, vertices: Any) -> Graph:
        """The vertices given, in that order, and the edges between them; ``order`` keeps their first numbers.

        vertices: different integers (n,), or bool (V,). Raises DataError.
        """
        chosen = np.asarray(vertices)
        if chosen.dtype == np.bool_ and chosen.shape == (self.vertices,):
            chosen = np.flatnonzero(chosen)
        chosen = integers("vertices", chosen, np.int64)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= self.vertices):
            raise DataError(
                f"subgraph: found vertices {chosen.min()} to {chosen.max()}; allowed: below {self.vertices}"
            )
        place = np.full(self.vertices, -1, np.int32)
        place[chosen] = np.arange(len(chosen), dtype=np.int32)
        if (place[chosen] != np.arange(len(chosen))).any():
            raise DataError("subgraph: found a vertex twice; allowed: different ones")
        target = np.repeat(place, self.in_degrees)
        source = place[self.sources]
        kept = (target >= 0) & (source >= 0)
        weights = None if self.weights is None else self.weights[kept]
        csr = CSR.from_edges(source[kept], target[kept], len(chosen), weights, duplicates="keep")
        return self._taken(csr, chosen)

    def _taken(self, csr: CSR, old: NDArray[np.int64]) -> Graph:
        """The fields of the vertices ``old``, in that order."""
        features = self.features
        if isinstance(features, np.ndarray):
            features = features[old]
        elif features is not None:
            features = TakenRows(features, old)
        taken: dict[str, Any] = {name: _take(getattr(self, name), old) for name in ("labels", *MASKS)}
        order = old if self.order is None else self.order[old]
        return Graph(csr, features, classes=self.classes, order=order, **taken)

    @classmethod
    @typed
    def of(
        cls,
        edges: Any,
        features: Any = None,
        labels: Any = None,
        *,
        weights: Any = None,
        vertices: int | None = None,
        train: Any = None,
        validation: Any = None,
        test: Any = None,
        classes: int = 0,
        symmetrize: bool = False,
        self_loops: str = "keep",
        duplicates: str = "remove",
    ) -> Graph:
        """A graph from edges in any order, as arrays or as an object of another library, and what belongs to vertices.

        edges: integers (2, E), sources over targets, or (E, 2), a source and a target each, or a pair of arrays (E,);
        a square SciPy sparse matrix of any format, whose entry (i, j) is the edge i → j and its values the weights,
        none if all are one; a graph of NetworkX, directed or not, whose vertex i is the i-th of its nodes; ``Data`` of
        PyTorch Geometric; a graph of DGL. What such an object holds under a usual name (``x``, ``y``, ``train_mask``,
        ``edge_weight``, NetworkX's ``weight``, …) is taken where no argument says otherwise.

        features: numbers (V, F), finite, dense or sparse. labels: integers (V,), -1 or NaN if unknown, or 0 and 1
        (V, C) where a vertex may have several. weights: finite numbers (E,). train, validation, test: bool (V,), or
        numbers of vertices. Each may be the name of an attribute of such an object, features several. vertices: V, by
        default what the object, the features or the labels tell, else the largest number plus one. classes: as of
        ``Graph``; symmetrize, self_loops, duplicates: as of ``CSR.from_edges``.

        Raises DataError, which says what was found and where; ParameterError for options.

        >>> graph = bn.gnn.Graph.of([(0, 1), (1, 2), (2, 0)], np.eye(3), [0, 1, 1], symmetrize=True)
        >>> graph.vertices, graph.edges, graph.width, graph.classes
        (3, 6, 3, 2)
        """
        held = edge_lists(edges)
        given = {"features": features, "labels": labels, "train": train, "validation": validation, "test": test}
        fields = {name: held.given(name, found) for name, found in given.items()}
        count = held.count(fields) if vertices is None else vertices
        csr = CSR.from_edges(
            held.source, held.target, count, held.given("weights", weights), symmetrize=symmetrize,
            self_loops=self_loops, duplicates=duplicates,
        )  # fmt: skip
        return cls(csr, classes=classes, **vertex_fields(fields, count))

    def facts(self) -> Mapping[str, Any]:
        """Sizes and what is worth knowing before training; JSON."""
        degrees = self.in_degrees
        known = {name: int(np.count_nonzero(getattr(self, name))) for name in MASKS if getattr(self, name) is not None}
        return {
            "vertices": self.vertices, "edges": self.edges, "features": self.width, "classes": self.classes,
            "multilabel": self.multilabel, "symmetric": self.symmetric, "weights": self.weights is not None,
            "isolated": int(np.count_nonzero((degrees == 0) & (self.out_degrees == 0))),
            "degree": {
                "mean": float(degrees.mean()) if self.vertices else 0.0,
                "median": float(np.median(degrees)) if self.vertices else 0.0,
                "largest": int(degrees.max(initial=0)),
            },
            "masks": known,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class TakenRows:
    """Rows ``order`` of other rows, gathered when they are read."""

    rows: FeatureRows
    order: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, int]:
        """(rows taken, features)."""
        return len(self.order), self.rows.shape[1]

    def read(self, begin: int, end: int, out: Matrix | None = None) -> Matrix:
        """As ``Rows.read``, with one read for each run of consecutive rows."""
        check_range(begin, end, len(self.order))
        into = np.empty((end - begin, self.shape[1]), np.float32) if out is None else out
        order = self.order[begin:end]
        ends = [*(np.flatnonzero(np.diff(order) != 1) + 1), end - begin]
        first = 0
        for last in ends if end > begin else ():
            start = int(order[first])
            self.rows.read(start, start + int(last) - first, into[first:last])
            first = int(last)
        return into


def _take(array: NDArray[Any] | None, old: NDArray[np.int64]) -> NDArray[Any] | None:
    return None if array is None else array[old]


def _features(found: Any, vertices: int) -> Matrix | FeatureRows:
    """Features in memory as row-major float32 with finite values; others as they are. Raises DataError."""
    if not isinstance(found, np.ndarray) and hasattr(found, "read"):
        rows: FeatureRows = found
        if rows.shape[0] != vertices:
            raise DataError(f"graph: features: found {rows.shape[0]} rows; allowed: {vertices}, one for each vertex")
        return rows
    array = np.asarray(found)
    if array.ndim != 2 or array.shape[0] != vertices or array.dtype.kind not in "fiub":
        raise DataError(
            f"graph: features: found {array.dtype} of shape {array.shape}; allowed: numbers ({vertices}, features)"
        )
    with np.errstate(over="ignore"):  # of what float32 does not hold: infinite, and refused as that
        features = np.ascontiguousarray(array, np.float32)
    check_finite(features)
    return readonly(features)


def _mask(name: str, found: Any, vertices: int) -> Mask:
    """A mask as bool (V,). Raises DataError for another shape or dtype: numbers of vertices are no mask."""
    array = np.asarray(found)
    if array.shape != (vertices,) or array.dtype != np.bool_:
        raise DataError(f"graph: {name}: found {array.dtype} of shape {array.shape}; allowed: bool ({vertices},)")
    return readonly(np.ascontiguousarray(array))


def _labels(found: Any, vertices: int, classes: int) -> tuple[NDArray[Any], int]:
    """Labels as int32 (V,) or uint8 (V, C), and C. Raises DataError for values out of range."""
    array = np.asarray(found)
    if array.ndim not in (1, 2) or array.shape[0] != vertices or array.dtype.kind not in "iub":
        raise DataError(
            f"graph: labels: found {array.dtype} of shape {array.shape}; allowed: integers ({vertices},) or, of 0 and "
            f"1, ({vertices}, classes)"
        )
    if array.ndim == 2:
        if classes and array.shape[1] != classes:
            raise DataError(f"graph: labels: found {array.shape[1]} columns; allowed: {classes}, the classes")
        if array.size and not ((array == 0) | (array == 1)).all():
            raise DataError(f"graph: labels: found {array.min()} to {array.max()} in columns; allowed: 0 and 1")
        return readonly(np.ascontiguousarray(array, np.uint8)), array.shape[1]
    low, high = (int(array.min()), int(array.max())) if vertices else (0, -1)
    classes = classes or min(high + 1, max(vertices, MOST_CLASSES))
    if not 0 <= classes <= LARGEST:
        raise DataError(f"graph: classes: found {classes}; allowed: 0 to {LARGEST}")
    if low < -1 or high >= classes:
        wrong = int(np.flatnonzero((array < -1) | (array >= classes))[0])
        raise DataError(
            f"graph: labels: found {array[wrong]} of vertex {wrong}; allowed: 0 to {classes - 1}, or -1 if unknown"
        )
    return readonly(np.ascontiguousarray(array, np.int32)), classes
