"""Stable partition of the rows of nodes by their splits: no branch for a row, the same order for any thread count."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.growth.bins import DenseBins, SparseBins
from burnish.boost.histogram import share_rows
from burnish.boost.intrinsics import prefetch
from burnish.boost.kernels import inlined, lean, region
from burnish.runtime.threads import Workers

_AHEAD = np.uint64(48)  # rows between a prefetch and its use
_ONE = np.uint64(1)
_SEARCH = np.uint64(16)  # a binary search in a column costs as much as so many of its entries
_SHARE = 20_000  # rows for which a further thread is worth its start


@inlined
def split_segment(
    source: NDArray[np.uint32],
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    columns: NDArray[np.uint8],
    column: np.uint64,
    right: NDArray[np.uint8],
    codes: np.uint64,
    begin: np.uint64,
    end: np.uint64,
    alone: bool,
) -> int:
    """Moves the rows source[begin:end] that go left to order[begin:], in order, and the others to spare[begin:].

    Returns how many go left. If `alone`, the others are put behind them. `column` and `codes`: where in `columns` and
    in `right` the feature's bins, and whether each goes right, begin.
    """
    left_at, right_at = begin, begin
    last = end - _ONE
    for i in range(begin, end):
        ahead = i + _AHEAD
        prefetch(columns, column + np.uint64(source[ahead if ahead < last else last]))
        row = source[i]
        goes = np.uint64(right[codes + columns[column + np.uint64(row)]])
        order[left_at] = row
        spare[right_at] = row
        left_at += _ONE - goes
        right_at += goes
    if alone:
        for i in range(right_at - begin):
            order[left_at + i] = spare[begin + i]
    return np.int64(left_at - begin)  # type: ignore[return-value]


@inlined
def send_range(bundle: Any, position: int, split: int, default_left: int, right: NDArray[np.uint8]) -> None:
    """Sets whether each code of a bundle goes right by a split of one of its features (`Layout.bundle`)."""
    begin, count = bundle[1][position], bundle[2][position]
    for code in range(np.uint64(len(right))):
        right[code] = default_left == 0
    for b in range(count):
        right[np.uint64(begin + b)] = b > split


@region
def _split_dense(
    source: NDArray[np.uint32],
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    kept: NDArray[np.uint32],
    columns: NDArray[np.uint8],
    pieces: NDArray[np.int64],
    start: NDArray[np.int64],
    position: NDArray[np.int64],
    right: NDArray[np.uint8],
    alone: NDArray[np.bool_],
    counts: NDArray[np.int64],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Moves the rows of pieces that go left to the front of each piece, in order; those that go right to `spare`.

    Where a piece is a part of a node, the former go to `kept`, for `_place`.
    ``right[node, code]`` says whether a bin goes right. Pieces that are their whole node get their right rows back.
    columns and right are flat. Share s of the pieces, of shares begin … end, is from start[s] on.
    """
    codes = len(right) // len(position)
    for p in range(start[begin], start[end]):
        node = pieces[p, 1]
        left = order if alone[p] else kept
        counts[p] = split_segment(
            source, left, spare, columns, np.uint64(position[node] * len(order)), right, np.uint64(node * codes),
            np.uint64(pieces[p, 2]), np.uint64(pieces[p, 3]), alone[p],
        )  # fmt: skip


@inlined
def split_routed(
    source: NDArray[np.uint32],
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    node_of: NDArray[np.int32],
    parent: np.int32,
    child: np.int32,
    missing_right: int,
    begin: np.uint64,
    end: np.uint64,
    alone: bool,
) -> int:
    """`split_segment` where `node_of` has the child of each row already, or its parent still if its value is missing.

    The latter rows' child is noted. `child` is the left one, the next the right one.
    """
    default = child + np.int32(missing_right)
    left_at, right_at, last = begin, begin, end - _ONE
    for i in range(begin, end):
        ahead = i + _AHEAD
        prefetch(node_of, np.uint64(source[ahead if ahead < last else last]))
        row = source[i]
        node = node_of[row]
        node = default if node == parent else node
        node_of[row] = node
        goes = np.uint64(np.uint32(node - child))
        order[left_at] = row
        spare[right_at] = row
        left_at += _ONE - goes
        right_at += goes
    if alone:
        for i in range(right_at - begin):
            order[left_at + i] = spare[begin + i]
    return np.int64(left_at - begin)  # type: ignore[return-value]


@region
def _split_sparse(
    source: NDArray[np.uint32],
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    kept: NDArray[np.uint32],
    node_of: NDArray[np.int32],
    nodes: NDArray[np.int32],
    left_child: NDArray[np.int32],
    missing_right: NDArray[np.uint8],
    pieces: NDArray[np.int64],
    start: NDArray[np.int64],
    alone: NDArray[np.bool_],
    counts: NDArray[np.int64],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """As `_split_dense`, of rows that `_route_present` has seen."""
    for p in range(start[begin], start[end]):
        node = pieces[p, 1]
        left = order if alone[p] else kept
        counts[p] = split_routed(
            source, left, spare, node_of, nodes[node], left_child[node], missing_right[node],
            np.uint64(pieces[p, 2]), np.uint64(pieces[p, 3]), alone[p],
        )  # fmt: skip


@region
def _route_present(
    pieces: NDArray[np.int64],
    start: NDArray[np.int64],
    rows: NDArray[np.uint32],
    bins: NDArray[np.uint16],
    node_of: NDArray[np.int32],
    feature_of: NDArray[np.int32],
    place: NDArray[np.int32],
    left_child: NDArray[np.int32],
    right: NDArray[np.uint8],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Notes the child of rows that have a value of their node's feature; only the columns of such features are read.

    Pieces of columns are of features numbered from 0; node n is split on feature_of[n] (-1: it is not split), and its
    place among those split is place[n]. A row's node is read while another thread may write it: its feature is not
    one of this thread's then, nor is its child split yet.
    """
    for p in range(start[begin], start[end]):
        feature = pieces[p, 1]
        for j in range(np.uint64(pieces[p, 2]), np.uint64(pieces[p, 3])):
            node = np.uint32(node_of[rows[j]])
            if feature_of[node] == feature:
                at = place[node]
                node_of[rows[j]] = left_child[at] + np.int32(right[at, bins[j]])


@inlined
def split_entries(
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    entries: tuple[Any, ...],
    feature: int,
    right: NDArray[np.uint8],
    begin: np.uint64,
    end: np.uint64,
    parent: np.int32,
    child: np.int32,
    fresh: bool,
) -> int:
    """`split_segment`, alone, by a column of a sparse table, of whose `Partition.entries` it takes the last four.

    The rows of a node bear its number: these `parent`'s, unless `fresh` (they get it now), and then `child` or, to the
    right, the next. No row of another node may bear one of the three.
    """
    column_start, column_rows, column_bins, node_of = entries[2:]
    if fresh:
        for i in range(begin, end):
            node_of[order[i]] = parent
    low, last = np.uint64(column_start[feature]), np.uint64(column_start[feature + 1])
    if last - low <= (end - begin) * _SEARCH:
        for j in range(low, last):
            row = column_rows[j]
            if node_of[row] == parent:
                node_of[row] = child + np.int32(right[column_bins[j]])
    else:
        for i in range(begin, end):
            row, high = order[i], last
            while low < high:  # rows ascend, here and there
                middle = (low + high) >> _ONE
                if column_rows[middle] < row:
                    low = middle + _ONE
                else:
                    high = middle
            if low < last and column_rows[low] == row:
                node_of[row] = child + np.int32(right[column_bins[low]])
    missing_right = right[np.uint64(len(right) - 1)]
    return split_routed(order, order, spare, node_of, parent, child, missing_right, begin, end, np.bool_(True))


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
        self.order = self._identity
        self.entries: tuple[Any, ...] | None = None  # of a sparse table, and the node of each row
        if isinstance(bins, SparseBins):
            self._node_of = np.zeros(rows, np.int32)
            arrays = bins.row_start, bins.row_bins, bins.column_start, bins.column_rows, bins.column_bins
            self.entries = *arrays, self._node_of

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

    def split(
        self,
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
        position: NDArray[np.int64],
        right: NDArray[np.uint8],
        nodes: NDArray[np.int64],
        left_child: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """Splits the segments ``order[begin:end]`` of some nodes; returns where each one's right child begins.

        ``right[i, code]``: whether rows of that bin go right; the code after the last bin is a missing value.
        `left_child` and the next are the numbers of the children.
        """
        total = int((end - begin).sum())
        threads = max(1, min(self._workers.threads, total // _SHARE))
        pieces, start = share_rows(begin, end, 1, threads)
        alone, counts = np.empty(len(pieces), np.bool_), np.zeros(len(pieces), np.int64)
        _find_alone(pieces, alone)
        if isinstance(self._bins, DenseBins):
            common = self.order, self._order, self.spare, self._kept, self._bins.columns.reshape(-1)
            bundle = self._bins.layout.bundle
            position = position if bundle is None else bundle[0][position]
            self._workers.each(
                _split_dense, threads, *common, pieces, start, position, right.reshape(-1), alone, counts
            )  # fmt: skip
        else:
            self._route(self._bins, position, right, nodes, left_child)
            routed = (
                self.order, self._order, self.spare, self._kept, self._node_of, nodes.astype(np.int32), left_child,
                np.ascontiguousarray(right[:, -1]),
            )  # fmt: skip
            self._workers.each(_split_sparse, threads, *routed, pieces, start, alone, counts)
        if self.order is not self._order:
            self.order = self._order
        middle, moves = begin.copy(), np.empty((len(pieces), 5), np.int64)
        shared = _find_moves(pieces, counts, alone, begin, middle, moves)
        if shared:
            self._workers.each(_place, shared, self._order, self._kept, self.spare, moves)
        return middle

    def _route(
        self,
        bins: SparseBins,
        position: NDArray[np.int64],
        right: NDArray[np.uint8],
        nodes: NDArray[np.int64],
        left_child: NDArray[np.int32],
    ) -> None:
        """Notes the child of every row that has a value of its node's feature."""
        positions, inverse = np.unique(position, return_inverse=True)
        features = bins.layout.feature[positions]
        begin, end = bins.column_start[features], bins.column_start[features + 1]
        feature_of, place = np.full((2, int(left_child.max()) + 2), -1, np.int32)
        feature_of[nodes] = inverse
        place[nodes] = np.arange(len(nodes))
        threads = max(1, min(self._workers.threads, int((end - begin).sum()) // _SHARE))
        pieces, start = share_rows(begin, end, 1, threads)
        common = bins.column_rows, bins.column_bins, self._node_of, feature_of, place, left_child, right
        self._workers.each(_route_present, threads, pieces, start, *common)

    def leaves(self, begin: NDArray[np.int64], end: NDArray[np.int64], nodes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The leaf of every row, given the leaves' segments and numbers."""
        leaf = np.empty(len(self._identity), np.int32)
        threads = max(1, min(self._workers.threads, len(leaf) // _SHARE))
        pieces, start = share_rows(begin, end, 1, threads)
        self._workers.each(_assign, threads, self.order, pieces, start, nodes, leaf)
        return leaf


@lean
def _find_alone(pieces: NDArray[np.int64], alone: NDArray[np.bool_]) -> None:
    """Tells which pieces are their whole node."""
    for p in range(len(pieces)):
        alone[p] = pieces[p, 4] == 0 and not (p + 1 < len(pieces) and pieces[p + 1, 4] == 1)


@lean
def _find_moves(
    pieces: NDArray[np.int64],
    counts: NDArray[np.int64],
    alone: NDArray[np.bool_],
    begin: NDArray[np.int64],
    middle: NDArray[np.int64],
    moves: NDArray[np.int64],
) -> int:
    """Adds the left rows of pieces, `counts`, to where their nodes begin, `middle`; writes the moves of `_place`.

    Returns how many there are: one for each piece that is a part of its node.
    """
    for p in range(len(pieces)):
        middle[pieces[p, 1]] += counts[p]
    size, left, right = 0, np.int64(0), np.int64(0)
    for p in range(len(pieces)):
        if alone[p]:
            continue
        if pieces[p, 4] == 0:
            left, right = begin[pieces[p, 1]], middle[pieces[p, 1]]
        others = pieces[p, 3] - pieces[p, 2] - counts[p]
        moves[size, 0] = pieces[p, 2]
        moves[size, 1] = counts[p]
        moves[size, 2] = others
        moves[size, 3] = left
        moves[size, 4] = right
        size, left, right = size + 1, left + counts[p], right + others
    return size


@region
def _place(
    order: NDArray[np.uint32],
    kept: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    moves: NDArray[np.int64],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Moves the rows of parts (begin, left rows, right rows, their places in the node) to these places."""
    for p in range(begin, end):
        first, left, right = np.uint64(moves[p, 0]), np.uint64(moves[p, 3]), np.uint64(moves[p, 4])
        for i in range(np.uint64(moves[p, 1])):
            order[left + i] = kept[first + i]
        for i in range(np.uint64(moves[p, 2])):
            order[right + i] = spare[first + i]


@region
def _assign(
    order: NDArray[np.uint32],
    pieces: NDArray[np.int64],
    start: NDArray[np.int64],
    nodes: NDArray[np.int32],
    leaf: NDArray[np.int32],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Notes the leaf of the rows of some shares of pieces."""
    for p in range(start[begin], start[end]):
        node = nodes[pieces[p, 1]]
        last = np.uint64(pieces[p, 3] - 1)
        for i in range(np.uint64(pieces[p, 2]), np.uint64(pieces[p, 3])):
            ahead = i + _AHEAD
            prefetch(leaf, np.uint64(order[ahead if ahead < last else last]))
            leaf[order[i]] = node
