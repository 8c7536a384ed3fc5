"""Compressed sparse rows (CSR) of a graph by in-edges: offsets into one array of sources, ascending in every row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError, ParameterError
from burnish.gnn.data import edges as loops

LARGEST = 2**31 - 1  # vertices, whose numbers are int32
SELF_LOOPS = ("keep", "add", "remove")
DUPLICATES = ("remove", "count", "keep", "refuse")
NO_WEIGHTS = np.empty(0, np.float32)

Offsets = NDArray[np.int64]
Sources = NDArray[np.int32]
Weights = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class CSR:
    """Rows of in-neighbours, immutable: row v holds ``sources[offsets[v]:offsets[v + 1]]``, ascending.

    offsets: int64 (rows + 1,), from 0 on; sources: int32 (edges,), each below ``columns``; weights: float32 (edges,),
    or None where every edge counts once. Equal neighbours may stand side by side. The arrays become read-only views.
    Raises DataError.
    """

    offsets: Offsets
    sources: Sources
    columns: int
    weights: Weights | None = None

    def __post_init__(self) -> None:
        """Checks every row: O(edges), some 0.1 s for a hundred million."""
        offsets = integers("offsets", self.offsets, np.int64)
        sources = integers("sources", self.sources, np.int32)
        if not 0 <= self.columns <= LARGEST:
            raise DataError(f"graph: found {self.columns} vertices; allowed: 0 to {LARGEST}")
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(sources):
            ends = f"{offsets[0]} to {offsets[-1]}" if len(offsets) else "nothing"
            raise DataError(f"graph: offsets: found {ends}; allowed: 0 to {len(sources)}, the number of edges")
        _set(self, "offsets", readonly(offsets))
        _set(self, "sources", readonly(sources))
        _set(self, "columns", int(self.columns))
        if self.weights is not None:
            _set(self, "weights", readonly(edge_weights(self.weights, len(sources))))
        self._check_rows()

    def _check_rows(self) -> None:
        kind, v = loops.first_fault(self.offsets, self.sources, self.columns)
        if kind == 1:
            raise DataError(f"graph: offsets: found {self.offsets[v]} before {self.offsets[v + 1]}; allowed: ascending")
        row = self.sources[self.offsets[v] : self.offsets[v + 1]] if kind else self.sources[:0]
        if kind == 2:
            wrong = row[(row < 0) | (row >= self.columns)][0]
            raise DataError(f"graph: vertex {v} has an edge from {wrong}; allowed: 0 to {self.columns - 1}")
        if kind == 3:
            e = int(np.flatnonzero(np.diff(row) < 0)[0])
            raise DataError(
                f"graph: vertex {v}: found source {row[e + 1]} after {row[e]}; allowed: ascending in every row; "
                "CSR.from_edges takes edges in any order"
            )

    @property
    def rows(self) -> int:
        """Targets, that is vertices whose in-edges are here."""
        return len(self.offsets) - 1

    @property
    def edges(self) -> int:
        """Edges, each as often as it stands here."""
        return len(self.sources)

    @property
    def degrees(self) -> NDArray[np.int64]:
        """In-edges of every row, (rows,)."""
        return np.diff(self.offsets)

    @cached_property
    def symmetric(self) -> bool:
        """Whether every edge has its reverse, with the same weight."""
        return self.rows == self.columns and bool(loops.is_symmetric(self.offsets, self.sources, self._weights))

    @cached_property
    def transpose(self) -> CSR:
        """Rows by source, which gradients run over; this very object where the graph is symmetric."""
        return self if self.symmetric else self._transposed()

    @property
    def _weights(self) -> Weights:
        return _EMPTY if self.weights is None else self.weights

    def _transposed(self) -> CSR:
        offsets = np.zeros(self.columns + 1, np.int64)
        sources, weights = np.empty(self.edges, np.int32), np.empty_like(self._weights)
        loops.transpose(self.offsets, self.sources, self._weights, offsets, sources, weights)
        return CSR(offsets, sources, self.rows, None if self.weights is None else weights)

    @classmethod
    def from_edges(
        cls,
        source: Any,
        target: Any,
        vertices: int,
        weights: Any = None,
        *,
        symmetrize: bool = False,
        self_loops: str = "keep",
        duplicates: str = "remove",
    ) -> CSR:
        """The graph of edges ``source[e] → target[e]`` in any order; integer arrays (edges,), below ``vertices``.

        symmetrize: every edge in both directions. self_loops: "keep" those there are, "add" one to every vertex that
        has none, or "remove" all. duplicates: "remove" all but the first of equal edges, "count" them (weights become
        their number, or the sum of theirs), "keep" or "refuse" them. Raises DataError and ParameterError.
        """
        _check_option("self_loops", self_loops, SELF_LOOPS)
        _check_option("duplicates", duplicates, DUPLICATES)
        source, target = _checked_edges(source, target, vertices)
        given = NO_WEIGHTS if weights is None else edge_weights(weights, len(source))
        if duplicates == "count" and weights is None:
            given = np.ones(len(source), np.float32)
        rows = _grouped([(source, target)], vertices, given, symmetrize, self_loops != "remove")
        del source, target
        rows = _by_target(*rows)
        weighted = weights is not None or duplicates == "count"
        csr = cls._merged(*rows, duplicates, weighted)
        if symmetrize and not weighted:
            csr.__dict__["symmetric"] = True
        return csr.with_self_loops() if self_loops == "add" else csr

    @classmethod
    def from_pairs(cls, pairs: list[tuple[Sources, Sources]], vertices: int) -> CSR:
        """The undirected graph of the edges in a list of (ends, other ends), int32, without loops and duplicates.

        The list is emptied as its edges are placed: it and the graph take their memory one after the other.
        """
        csr = cls._merged(*_by_target(*_grouped(pairs, vertices, NO_WEIGHTS, True, False)), "remove", False)
        csr.__dict__["symmetric"] = True
        return csr

    @classmethod
    def _merged(cls, offsets: Offsets, sources: Sources, weights: Weights, duplicates: str, weighted: bool) -> CSR:
        """The rows with their duplicates as ``duplicates`` says; the arrays are used up."""
        if duplicates != "keep":
            first = np.zeros(2, np.int64)
            left = int(loops.merge_duplicates(offsets, sources, weights, duplicates == "count", first))
            if first[0] >= 0 and duplicates == "refuse":
                raise DataError(f"graph: found the edge {first[1]} → {first[0]} twice; allowed: once")
            sources = _shrunk(sources, left)
            weights = _shrunk(weights, left if weighted else 0)
        return cls(offsets, sources, len(offsets) - 1, weights if weighted else None)

    def with_self_loops(self) -> CSR:
        """The graph in which every vertex has an edge to itself: of weight 1 where it had none."""
        self._check_square("with_self_loops")
        has = np.zeros(self.rows, np.bool_)
        loops.count_self_loops(self.offsets, self.sources, has)
        if has.all():
            return self
        return self._like(self.add_loops(has, 0, np.ones(self.rows, np.float32)))

    def add_loops(self, has: NDArray[np.bool_], begin: int, means: Weights) -> CSR:
        """Adds self loops to the vertices from ``begin`` on but those in ``has``; ``means``: their weights, if any."""
        offsets, sources, weights = self._room(self.edges + self.rows - int(np.count_nonzero(has)))
        own = _EMPTY if self.weights is None else means
        loops.insert_self_loops(self.offsets, self.sources, self._weights, has, begin, own, offsets, sources, weights)
        return CSR(offsets, sources, self.columns, None if self.weights is None else weights)

    def without_self_loops(self) -> CSR:
        """The graph without edges from a vertex to itself."""
        self._check_square("without_self_loops")
        found = int(loops.count_self_loops(self.offsets, self.sources, np.zeros(self.rows, np.bool_)))
        if not found:
            return self
        offsets, sources, weights = self._room(self.edges - found)
        loops.drop_self_loops(self.offsets, self.sources, self._weights, offsets, sources, weights)
        return self._like(CSR(offsets, sources, self.columns, None if self.weights is None else weights))

    def symmetrized(self) -> CSR:
        """The graph with the reverse of every edge; of edges that have theirs already, one stays in each direction."""
        self._check_square("symmetrized")
        if self.symmetric:
            return self
        target = np.repeat(np.arange(self.rows, dtype=np.int32), self.degrees)
        return CSR.from_edges(self.sources, target, self.rows, self.weights, symmetrize=True)

    def permuted(self, new: Any) -> CSR:
        """The graph whose vertex ``new[v]`` is vertex v of this one; new: integers (vertices,), a permutation."""
        self._check_square("permuted")
        order = permutation(new, self.rows)
        old = inverse(order)
        offsets, sources, weights = self._room(self.edges)
        loops.transpose_permuted(self.offsets, self.sources, self._weights, order, old, offsets, sources, weights)
        swapped = CSR(offsets, sources, self.columns, None if self.weights is None else weights)
        if self.symmetric:
            swapped.__dict__["symmetric"] = True
            return swapped
        return swapped._transposed()

    def slice(self, begin: int, end: int) -> CSR:
        """The rows begin … end - 1, of as many columns; sources and weights are views."""
        if not 0 <= begin <= end <= self.rows:
            raise ParameterError(f"rows: found {begin} to {end}; allowed: ascending, 0 to {self.rows}")
        first, last = int(self.offsets[begin]), int(self.offsets[end])
        weights = None if self.weights is None else self.weights[first:last]
        return CSR(self.offsets[begin : end + 1] - first, self.sources[first:last], self.columns, weights)

    def _room(self, edges: int) -> tuple[Offsets, Sources, Weights]:
        sources = np.empty(edges, np.int32)
        return np.zeros(self.rows + 1, np.int64), sources, np.empty(0 if self.weights is None else edges, np.float32)

    def _like(self, csr: CSR) -> CSR:
        """Copies what is known of this graph to ``csr``, which differs in its self loops: whether it is symmetric."""
        if "symmetric" in self.__dict__:
            csr.__dict__["symmetric"] = self.symmetric
        return csr

    def _check_square(self, call: str) -> None:
        if self.rows != self.columns:
            raise ParameterError(f"{call}: found {self.rows} rows of {self.columns} columns; allowed: a whole graph")


def integers(name: str, found: Any, dtype: type[np.integer]) -> NDArray[Any]:
    """An array (n,) of integers as contiguous ``dtype``. Raises DataError for other forms, and values out of range."""
    array = np.asarray(found)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataError(f"graph: {name}: found {array.dtype} of shape {array.shape}; allowed: integers (n,)")
    if array.dtype != dtype and array.size:
        allowed = np.iinfo(dtype)
        low, high = int(array.min()), int(array.max())
        if low < allowed.min or high > allowed.max:
            raise DataError(f"graph: {name}: found {low} to {high}; allowed: {allowed.min} to {allowed.max}")
    return np.ascontiguousarray(array, dtype=dtype)


def edge_weights(found: Any, edges: int) -> Weights:
    """Weights of edges as float32 (edges,). Raises DataError for other shapes and for values that are not finite."""
    array = np.asarray(found)
    if array.shape != (edges,) or array.dtype.kind not in "fiu":
        raise DataError(f"graph: weights: found {array.dtype} of shape {array.shape}; allowed: numbers ({edges},)")
    weights = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(weights).all():
        e = int(np.flatnonzero(~np.isfinite(weights))[0])
        raise DataError(f"graph: weights: found {array[e]} of edge {e}; allowed: finite numbers")
    return weights


def permutation(found: Any, size: int) -> NDArray[np.int64]:
    """A permutation of 0 … size - 1. Raises DataError."""
    order = integers("permutation", found, np.int64)
    seen = np.zeros(size, np.bool_)
    if len(order) == size and (not size or (order.min() >= 0 and order.max() < size)):
        seen[order] = True
    if len(order) != size or not seen.all():
        raise DataError(f"graph: permutation: found {len(order)} numbers; allowed: each of 0 to {size - 1}, once")
    return order


def inverse(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The permutation that undoes another one."""
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return back


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def _checked_edges(source: Any, target: Any, vertices: int) -> tuple[Sources, Sources]:
    if isinstance(vertices, bool) or not isinstance(vertices, int | np.integer) or not 0 <= vertices <= LARGEST:
        raise ParameterError(f"vertices: found {vertices!r}; allowed: an integer from 0 to {LARGEST}")
    source, target = np.asarray(source), np.asarray(target)
    if source.shape != target.shape:
        raise DataError(f"graph: edges: found {source.shape} sources, {target.shape} targets; allowed: as many of both")
    for name, ends in (("sources", source), ("targets", target)):
        if ends.ndim != 1 or (ends.dtype.kind not in "iu" and ends.size):
            raise DataError(f"graph: {name}: found {ends.dtype} of shape {ends.shape}; allowed: integers (edges,)")
    wide = np.int32 if source.dtype == target.dtype == np.int32 else np.int64
    source = readonly(integers("sources", source, wide))
    target = readonly(integers("targets", target, wide))
    e = int(loops.first_outside(source, target, vertices))
    if e >= 0:
        raise DataError(f"graph: edge {e}: found {source[e]} → {target[e]}; allowed: vertices 0 to {vertices - 1}")
    return source, target


def _grouped(
    pairs: list[tuple[Sources, Sources]], vertices: int, weights: Weights, both: bool, with_loops: bool
) -> tuple[Offsets, Sources, Weights]:
    """Edges by their first ends, in any order for each; the list is used up."""
    offsets = np.zeros(vertices + 1, np.int64)
    for ends, others in pairs:
        loops.count_edges(readonly(ends), readonly(others), both, with_loops, offsets)
    np.cumsum(offsets, out=offsets)
    found = int(offsets[-1])
    targets, kept = np.empty(found, np.int32), np.empty(found if weights.size else 0, np.float32)
    place = offsets[:-1].copy()
    while pairs:
        ends, others = pairs.pop()
        loops.place_edges(
            readonly(ends), readonly(others), readonly(weights), both, with_loops, place, targets, kept
        )  # weights stand beside the one pair of lists that there is
    return offsets, targets, kept


def _by_target(offsets: Offsets, targets: Sources, weights: Weights) -> tuple[Offsets, Sources, Weights]:
    """Rows by source, in any order within one, as rows by target, ascending."""
    out = np.zeros_like(offsets), np.empty(len(targets), np.int32), np.empty_like(weights)
    loops.transpose(readonly(offsets), readonly(targets), readonly(weights), *out)
    return out


def _shrunk(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The first elements; the memory of the rest is given back where the array owns it."""
    if size < len(array):
        array.resize(size, refcheck=False)
    return array


def _check_option(name: str, found: Any, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise ParameterError(f"{name}: found {found!r}; allowed: {', '.join(allowed)}")


def _set(frozen: Any, name: str, value: Any) -> None:
    object.__setattr__(frozen, name, value)


_EMPTY = readonly(NO_WEIGHTS)
