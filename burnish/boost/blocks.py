"""Column blocks (thesis-chen §2.3.1): the table as compressed columns, each sorted by value once before training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.data import Dataset, Sparse
from burnish.boost.kernels import region
from burnish.runtime.threads import GRAIN, Workers

# Readable entries beyond the end of a block, so that a scan may look this far ahead without asking where the end is.
PADDING = 64


@dataclass(frozen=True)
class ColumnBlock:
    """The entries of some rows that are not missing: entry j of column f, start[f] <= j < start[f + 1], by value.

    Rows ascend among equal values. The negative zero is stored as zero.
    """

    start: NDArray[np.int64]  # (features + 1,)
    rows: NDArray[np.int32]  # (entries + PADDING,); row numbers within the block
    values: NDArray[np.float32]  # (entries + PADDING,); ascending within a column
    count: int  # rows of the block

    @property
    def features(self) -> int:
        """Number of columns."""
        return len(self.start) - 1

    @property
    def dense(self) -> NDArray[np.bool_]:
        """Which columns miss no value, (features,)."""
        return np.diff(self.start) == self.count

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Mask of columns of one distinct value or none, missing ones aside, (features,): all of a one-hot table."""
        first, last = self.start[:-1], np.maximum(self.start[1:] - 1, self.start[:-1])
        return (np.diff(self.start) == 0) | (self.values[first] == self.values[last])


def column_block(dataset: Dataset, workers: Workers, first: int = 0, last: int | None = None) -> ColumnBlock:
    """The block of rows ``first … last`` (all rows unless given), sorted on all threads; missing values left out.

    Takes time proportional to n log n for n entries that are present; dense tables also that of reading them.
    """
    last = dataset.rows if last is None else last
    if isinstance(dataset.table, Sparse):
        return _from_rows(dataset.table, dataset.features, first, last, workers)
    return _from_dense(dataset.table[first:last], workers)


def _from_dense(table: NDArray[np.float32], workers: Workers) -> ColumnBlock:
    count, features = table.shape
    bits = np.ascontiguousarray(table).view(np.uint32)
    present = np.zeros((workers.threads, features), np.int64)
    workers.each(_count_present, count, bits, present, grain=GRAIN)
    start, rows, values = _allocate(present.sum(axis=0))

    # A row's neighbouring columns share cache lines, so several columns are copied out at once.
    width = max(1, min(8, features // workers.threads, (1 << 23) // max(1, count)))

    def sort(groups: list[int]) -> None:
        keys = np.empty((width, count), np.uint64)
        for column in groups:
            these = range(column, min(column + width, features))
            _keys_of_columns(bits, column, len(these), keys)
            for feature in these:
                entries = slice(start[feature], start[feature + 1])
                _sort(keys[feature - column, : entries.stop - entries.start], rows[entries], values[entries])

    workers.run(sort, [(groups,) for groups in workers.over(range(0, features, width))])
    return ColumnBlock(start, rows, values, count)


def _from_rows(table: Sparse, features: int, first: int, last: int, workers: Workers) -> ColumnBlock:
    """Counts the entries of each column, scatters the rows' entries to their columns, then sorts these."""
    edges = np.array([first, *(first + end for _, end in workers.ranges(last - first))])
    place = np.zeros((len(edges) - 1, features), np.int64)
    workers.each(_count_sparse, len(place), table.start, table.columns, edges, place)
    start, rows, values = _allocate(place.sum(axis=0))
    place = start[:-1] + np.cumsum(place, axis=0) - place  # where each piece writes the first of its entries
    workers.each(_scatter, len(place), table.start, table.columns, table.values, edges, place, rows, values)

    def sort(columns: list[int]) -> None:
        for feature in columns:
            entries = slice(start[feature], start[feature + 1])
            sort_entries(rows[entries], values[entries])

    workers.run(sort, [(columns,) for columns in workers.over(range(features))])
    return ColumnBlock(start, rows, values, last - first)


def _allocate(entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    start = np.zeros(len(entries) + 1, np.int64)
    np.cumsum(entries, out=start[1:])
    rows, values = np.empty(start[-1] + PADDING, np.int32), np.empty(start[-1] + PADDING, np.float32)
    rows[start[-1] :] = 0
    values[start[-1] :] = 0
    return start, rows, values


def _sort(keys: NDArray[np.uint64], rows: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    """Sorts keys in place (by NumPy: several times faster than an argsort), then writes what they hold."""
    keys.sort()
    _open(keys, rows, values.view(np.uint32))


def sort_entries(rows: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    """Sorts the entries of a column in place by value; rows, which ascend, keep their order among equal values."""
    bits = values.view(np.uint32)
    if not _ascends(values):
        keys = np.empty(len(rows), np.uint64)
        _keys_of_entries(rows, bits, keys)
        _sort(keys, rows, values)


def sort_values(values: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The places of the values that are not NaN, by value, and these values in order; contiguous (count,) in."""
    keys = np.empty((1, len(values)), np.uint64)
    bits = values.view(np.uint32).reshape(-1, 1)
    present = np.array([np.count_nonzero(values == values)])
    _keys_of_columns(bits, 0, 1, keys)
    order, ascending = np.empty(present[0], np.int32), np.empty(present[0], np.float32)
    _sort(keys[0, : present[0]], order, ascending)
    return order, ascending


@njit(cache=True, nogil=True)
def _missing(bits):  # type: ignore[no-untyped-def]
    return (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)


@njit(cache=True, nogil=True)
def _key(bits, row):  # type: ignore[no-untyped-def]
    """A key that sorts as the float32 of these bits does, and then as the row: 32 bits of each."""
    if bits == np.uint32(0x80000000):  # the negative zero
        bits = np.uint32(0)
    ordered = ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)
    return np.uint64(ordered) << np.uint64(32) | np.uint64(row)


@region
def _count_present(bits, present, begin, end, thread):  # type: ignore[no-untyped-def]
    own = present[thread]
    for row in range(np.uint64(begin), np.uint64(end)):
        for feature in range(np.uint64(bits.shape[1])):
            own[feature] += not _missing(bits[row, feature])


@njit(cache=True, nogil=True)
def _keys_of_columns(bits, column, width, keys):  # type: ignore[no-untyped-def]
    """Keys of the present values of `width` columns: keys[c] starts with those of column + c."""
    filled = np.zeros(width, np.int64)
    for row in range(bits.shape[0]):
        for c in range(width):
            here = bits[row, column + c]
            keys[c, filled[c]] = _key(here, row)
            filled[c] += not _missing(here)


@njit(cache=True, nogil=True)
def _keys_of_entries(rows, bits, keys):  # type: ignore[no-untyped-def]
    for j in range(len(rows)):
        keys[j] = _key(bits[j], rows[j])


@njit(cache=True, nogil=True)
def _open(keys, rows, bits):  # type: ignore[no-untyped-def]
    for j in range(len(keys)):
        ordered = np.uint32(keys[j] >> np.uint64(32))
        bits[j] = ordered & np.uint32(0x7FFFFFFF) if ordered >> np.uint32(31) else ~ordered
        rows[j] = np.int32(keys[j] & np.uint64(0xFFFFFFFF))


@njit(cache=True, nogil=True)
def _ascends(values):  # type: ignore[no-untyped-def]
    ascending = True
    for j in range(1, len(values)):
        ascending &= values[j] >= values[j - 1]
    return ascending


@region
def _count_sparse(start, columns, edges, present, begin, end, thread):  # type: ignore[no-untyped-def]
    """Counts in present[part] the entries of each column in the rows edges[part] … edges[part + 1]."""
    for part in range(begin, end):
        for j in range(start[edges[part]], start[edges[part + 1]]):
            present[part, columns[j]] += 1


@region
def _scatter(  # type: ignore[no-untyped-def]
    start, columns, values, edges, places, rows_out, values_out, begin, end, thread
):
    """Writes the entries of these rows to their columns, from places[part] on."""
    for part in range(begin, end):
        place = places[part]
        for row in range(edges[part], edges[part + 1]):
            for j in range(start[row], start[row + 1]):
                to = place[columns[j]]
                rows_out[to] = row - edges[0]
                values_out[to] = values[j] + np.float32(0)  # -0 becomes 0
                place[columns[j]] = to + 1
