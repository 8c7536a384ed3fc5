"""Rows of a tree's nodes: one array of row numbers, partitioned by regions of the native pool."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.base.regions import run_ranges
from burnish.boost.growth.bins import DenseBins, SparseBins
from burnish.boost.growth.partition import assign, place, route_present, split_pieces, split_routed_pieces
from burnish.boost.growth.shares import deal_rows
from burnish.boost.kernels import inlined, lean
from burnish.runtime.threads import Workers

_SHARE = 20_000  # rows for which a further thread is worth its start


class RowArrays(NamedTuple):
    """Row numbers, (rows,) each."""

    identity: NDArray[np.uint32]
    order: NDArray[np.uint32]
    spare: NDArray[np.uint32]
    kept: NDArray[np.uint32]  # empty for one thread


class NodeSplits(NamedTuple):
    """Splits of some nodes, whose rows are the segments ``order[begin:end]``.

    ``position``: the columns that they are split by. ``right[i, code]``: whether rows of that bin go right; the code
    after the last bin is a missing value. ``left_child`` and the next are the numbers of the children.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    position: NDArray[np.int64]
    right: NDArray[np.uint8]
    nodes: NDArray[np.int64]
    left_child: NDArray[np.int32]


class RowPartition:
    """The row numbers of all nodes, each node's in one segment, ascending."""

    def __init__(self, bins: DenseBins | SparseBins, workers: Workers) -> None:
        self._bins = bins
        self._workers = workers
        rows = bins.rows.shape[1] if isinstance(bins, DenseBins) else len(bins.row_start) - 1
        self.rows = rows
        self._identity = np.arange(rows, dtype=np.uint32)
        self._order = np.empty(rows, np.uint32)
        self.spare = np.empty(rows, np.uint32)
        self._kept = np.empty(rows if workers.threads > 1 else 0, np.uint32)  # left rows of nodes that threads share
        self._leaf = np.empty(rows, np.int32)
        self.order = self._identity
        self.arrays = RowArrays(self._identity, self._order, self.spare, self._kept)
        self.columns: NDArray[Any] | None = None  # of a dense table, flat
        self.entries: tuple[Any, ...] | None = None  # of a sparse table, and the node of each row
        self.routed: tuple[Any, ...] | None = None  # of a sparse table, what `split_sparse` takes
        if isinstance(bins, SparseBins):
            self._node_of = np.zeros(rows, np.int32)
            columns = bins.column_start, bins.column_rows, bins.column_bins
            self.entries = bins.row_start, bins.row_bins, *columns, self._node_of
            self.routed = *columns, bins.layout.feature, self._node_of
        else:
            self.columns = bins.columns.reshape(-1)

    def own(self) -> NDArray[np.uint32]:
        """The row numbers in an array that may be written."""
        if self.order is not self._order:
            self._order[:] = self.order
            self.order = self._order
        return self._order

    def reset(self) -> None:
        """All rows are in the root."""
        self.order = self._identity
        if isinstance(self._bins, SparseBins):
            self._node_of[:] = 0

    def split(self, splits: NodeSplits) -> NDArray[np.int64]:
        """Splits the segments of nodes; returns where each one's right child begins."""
        begin, end, position, right, nodes, left_child = splits
        count, threads = len(begin), self._workers.threads
        middle, given = np.empty(count, np.int64), RowPieces.of(count, threads)
        fresh = self.order is self._identity
        if self.columns is not None:
            self._workers.call(
                _enter_dense, threads, fresh, self.arrays, self.columns, begin, end, position, right, given, middle
            )  # fmt: skip
        else:
            routes = self.routes(int(left_child.max()) + 2, count)
            self._workers.call(
                _enter_sparse, threads, fresh, self.arrays, self.routed, routes, begin, end, position, right, nodes,
                left_child, given, middle,
            )  # fmt: skip
        self.order = self._order
        return middle

    def routes(self, nodes: int, level: int) -> Routes | None:
        """Routing scratch for a tree of `nodes` nodes and levels of `level`; None for a dense table."""
        if self.routed is None:
            return None
        number = np.empty(len(self.routed[0]) - 1, np.int32)
        return Routes(number, *np.empty((2, nodes), np.int32), *np.empty((2, level), np.int64))

    def leaves(self, begin: NDArray[np.int64], end: NDArray[np.int64], nodes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The leaf of every row, given the leaves' segments and numbers; in an array that the next call reuses."""
        threads = self._workers.threads
        given = RowPieces.of(len(begin), threads)
        self._workers.call(_find_leaves, threads, self.order, begin, end, nodes, given.pieces, given.start, self._leaf)
        return self._leaf


class RowPieces(NamedTuple):
    """Scratch of a partition: pieces of rows, dealt to threads."""

    pieces: NDArray[np.int64]  # (nodes + threads, 5)
    start: NDArray[np.int64]  # (threads + 1,)
    alone: NDArray[np.bool_]  # (pieces,): which are their whole node
    counts: NDArray[np.int64]  # (pieces,): rows that go left
    moves: NDArray[np.int64]  # (pieces, 5): see `place`

    @classmethod
    def of(cls, nodes: int, threads: int) -> RowPieces:
        """Uninitialised arrays."""
        most = nodes + threads
        (pieces, moves), start = np.empty((2, most, 5), np.int64), np.empty(threads + 1, np.int64)
        return cls(pieces, start, np.empty(most, np.bool_), np.empty(most, np.int64), moves)


class Routes(NamedTuple):
    """Scratch of the partition of a sparse table."""

    number: NDArray[np.int32]  # (features,): those that some node is split on are numbered from 0; -1: none is
    feature_of: NDArray[np.int32]  # (nodes of the tree,): the number of the node's feature
    place_of: NDArray[np.int32]  # (nodes of the tree,): of the node among those that are split
    begin: NDArray[np.int64]  # (nodes,): of numbered features: where their columns begin
    end: NDArray[np.int64]


def _split_dense(
    native: tuple[int, int],
    threads: int,
    fresh: bool,
    rows: Any,
    columns: NDArray[Any],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    position: NDArray[np.int64],
    right: NDArray[np.uint8],
    given: Any,
    middle: NDArray[np.int64],
) -> None:
    """`RowPartition.split` of a dense table, in two regions; middle: written.

    rows: `RowArrays`; fresh: the order is `identity` yet. right: (nodes or more, codes + 1).
    """
    identity, order, spare, kept = rows
    source = identity if fresh else order
    pieces, start, alone, _, moves = given
    shares = _shares(begin, end, threads)
    size = deal_rows(begin, end, 1, shares, pieces, start)
    _find_alone(pieces, size, alone)
    run_ranges(
        native, shares, 1, split_pieces,
        (source, order, spare, kept, columns, position, right, given),
    )  # fmt: skip
    shared = _find_moves(given, size, begin, middle)
    if shared:
        run_ranges(native, shared, 1, place, (order, kept, spare, moves))


def _split_sparse(
    native: tuple[int, int],
    threads: int,
    fresh: bool,
    rows: Any,
    columns: Any,
    routes: Any,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    position: NDArray[np.int64],
    right: NDArray[np.uint8],
    nodes: NDArray[np.int64],
    left_child: NDArray[np.int32],
    given: Any,
    middle: NDArray[np.int64],
) -> None:
    """The same of a sparse table, in three regions: rows that have a value of their node's feature are routed first."""
    identity, order, spare, kept = rows
    source = identity if fresh else order
    column_start, column_rows, column_bins, features, node_of = columns
    number, feature_of, place_of, column_begin, column_end = routes
    pieces, start, alone, _, moves = given
    for feature in range(len(number)):
        number[feature] = -1
    for node in range(left_child[len(left_child) - 1] + 2):
        feature_of[node] = place_of[node] = -1
    found = 0
    for k in range(len(nodes)):
        feature = features[position[k]]
        if number[feature] < 0:
            number[feature] = found
            column_begin[found], column_end[found] = column_start[feature], column_start[feature + 1]
            found += 1
        feature_of[nodes[k]] = number[feature]
        place_of[nodes[k]] = k
    shares = _shares(column_begin[:found], column_end[:found], threads)
    deal_rows(column_begin[:found], column_end[:found], 1, shares, pieces, start)
    run_ranges(
        native, shares, 1, route_present,
        (pieces, start, column_rows, column_bins, node_of, feature_of, place_of, left_child, right),
    )  # fmt: skip
    shares = _shares(begin, end, threads)
    size = deal_rows(begin, end, 1, shares, pieces, start)
    _find_alone(pieces, size, alone)
    run_ranges(
        native, shares, 1, split_routed_pieces,
        (source, order, spare, kept, node_of, nodes, left_child, right, given),
    )  # fmt: skip
    shared = _find_moves(given, size, begin, middle)
    if shared:
        run_ranges(native, shared, 1, place, (order, kept, spare, moves))


split_dense, _enter_dense = inlined(_split_dense), lean(_split_dense)
split_sparse, _enter_sparse = inlined(_split_sparse), lean(_split_sparse)


@lean
def _find_leaves(
    native: tuple[int, int],
    threads: int,
    order: NDArray[np.uint32],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    nodes: NDArray[np.int32],
    pieces: NDArray[np.int64],
    start: NDArray[np.int64],
    leaf: NDArray[np.int32],
) -> None:
    """`RowPartition.leaves`, in one region; leaf: written."""
    shares = _shares(begin, end, threads)
    deal_rows(begin, end, 1, shares, pieces, start)
    run_ranges(native, shares, 1, assign, (order, pieces, start, nodes, leaf))


@inlined
def _shares(begin: NDArray[np.int64], end: NDArray[np.int64], threads: int) -> int:
    """The number of threads that are worth their start for some segments."""
    total = np.int64(0)
    for k in range(len(begin)):
        total += end[k] - begin[k]
    return max(1, min(threads, total // _SHARE))  # type: ignore[return-value]


@inlined
def _find_alone(pieces: NDArray[np.int64], size: int, alone: NDArray[np.bool_]) -> None:
    """Marks pieces that cover all rows of their node."""
    for p in range(size):
        alone[p] = pieces[p, 4] == 0 and not (p + 1 < size and pieces[p + 1, 4] == 1)


@inlined
def _find_moves(given: Any, size: int, begin: NDArray[np.int64], middle: NDArray[np.int64]) -> int:
    """Writes where the right rows of nodes begin, and the moves of `place`, given the left rows of pieces.

    Returns how many moves there are: one for each piece that is a part of its node.
    """
    pieces, _, alone, counts, moves = given
    for node in range(len(middle)):
        middle[node] = begin[node]
    for p in range(size):
        middle[pieces[p, 1]] += counts[p]
    found, left, right = 0, np.int64(0), np.int64(0)
    for p in range(size):
        if alone[p]:
            continue
        if pieces[p, 4] == 0:
            left, right = begin[pieces[p, 1]], middle[pieces[p, 1]]
        others = pieces[p, 3] - pieces[p, 2] - counts[p]
        move = moves[found]
        move[0] = pieces[p, 2]
        move[1] = counts[p]
        move[2] = others
        move[3] = left
        move[4] = right
        found, left, right = found + 1, left + counts[p], right + others
    return found
