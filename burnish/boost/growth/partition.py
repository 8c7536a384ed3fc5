"""Stable partition of the rows of nodes by their splits: no branch for a row, the same order for any thread count."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.intrinsics import prefetch
from burnish.boost.kernels import inlined, loop

_AHEAD = np.uint64(48)  # rows between a prefetch and its use
_ONE = np.uint64(1)
_SEARCH = np.uint64(16)  # a binary search in a column costs as much as so many of its entries


@inlined
def split_segment(
    source: NDArray[np.uint32],
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    columns: NDArray[np.uint8],
    column: np.uint64,
    right: NDArray[np.uint8],
    begin: np.uint64,
    end: np.uint64,
    alone: bool,
) -> int:
    """Moves the rows source[begin:end] that go left to order[begin:], in order, and the others to spare[begin:].

    Returns how many go left. If `alone`, the others are put behind them. column: where in `columns` the feature's bins
    begin. right: (codes,), whether each bin goes right.
    """
    left_at, right_at = begin, begin
    last = end - _ONE
    for i in range(begin, end):
        ahead = i + _AHEAD
        prefetch(columns, column + np.uint64(source[ahead if ahead < last else last]))
        row = source[i]
        goes = np.uint64(right[np.uint64(columns[column + np.uint64(row)])])
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


@loop
def split_pieces(
    source: NDArray[np.uint32],
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    kept: NDArray[np.uint32],
    columns: NDArray[np.uint8],
    position: NDArray[np.int64],
    right: NDArray[np.uint8],
    given: Any,
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Moves the rows of pieces that go left to the front of each piece, in order; those that go right to `spare`.

    Where a piece is a part of a node, the former go to `kept`, for `place`.
    ``right[node, code]`` says whether a bin goes right. Pieces that are their whole node get their right rows back.
    columns is flat; given: `RowPieces`. Share s of the pieces, of shares begin … end, is from start[s] on.
    """
    pieces, start, alone, counts, _ = given
    for p in range(start[begin], start[end]):
        node = pieces[p, 1]
        left = order if alone[p] else kept
        counts[p] = split_segment(
            source, left, spare, columns, np.uint64(position[node] * len(order)), right[node], np.uint64(pieces[p, 2]),
            np.uint64(pieces[p, 3]), alone[p],
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


@loop
def split_routed_pieces(
    source: NDArray[np.uint32],
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    kept: NDArray[np.uint32],
    node_of: NDArray[np.int32],
    nodes: NDArray[np.int64],
    left_child: NDArray[np.int32],
    right: NDArray[np.uint8],
    given: Any,
    begin: int,
    end: int,
    thread: int,
) -> None:
    """As `split_pieces`, of rows that `route_present` has seen."""
    pieces, start, alone, counts, _ = given
    for p in range(start[begin], start[end]):
        node = pieces[p, 1]
        left = order if alone[p] else kept
        counts[p] = split_routed(
            source, left, spare, node_of, np.int32(nodes[node]), left_child[node], right[node, -1],
            np.uint64(pieces[p, 2]), np.uint64(pieces[p, 3]), alone[p],
        )  # fmt: skip


@loop
def route_present(
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


@loop
def place(
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


@loop
def assign(
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
