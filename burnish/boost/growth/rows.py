"""What kernels that grow subtrees do with rows, in both forms of a table: they split them, and they add them up."""

from typing import Any

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from burnish.boost.growth.bins import GROUP, DenseBins, SparseBins
from burnish.boost.growth.partition import Partition, split_routed, split_segment
from burnish.boost.histogram import add_group, add_sparse

_OPTIONS = {
    "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "no_cpython_wrapper": True, "_nrt": False,
}  # fmt: skip
_DENSE = 3  # arrays of a dense table
_SEARCH = np.uint64(16)  # a binary search in a column costs as much as so many of its entries
_NOTHING, _ONE = np.uint64(0), np.uint64(1)


def rows_of(bins: DenseBins | SparseBins, partition: Partition) -> tuple[NDArray[Any], ...]:
    """The arrays of a table that `split_rows` and `add_rows` take, and know its form by."""
    if isinstance(bins, DenseBins):
        return bins.rows.reshape(-1), bins.columns.reshape(-1), bins.width
    return (
        bins.row_start, bins.row_bins, bins.column_start, bins.column_rows, bins.column_bins, partition.node_of,
    )  # fmt: skip


def split_rows(
    table: Any,
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    right: NDArray[np.uint8],
    position: int,
    feature: int,
    begin: np.uint64,
    end: np.uint64,
    parent: np.int32,
    child: np.int32,
    fresh: bool,
) -> int:
    """Puts the rows order[begin:end] of a node that go right behind the others; returns how many those are.

    ``right[code]`` says whether a bin of the feature goes right, the last one whether missing values do. In a sparse
    table the rows of all nodes have the number of their node: these `parent`'s, unless `fresh` (they get it now), and
    then `child` or, to the right, the next.
    """
    raise NotImplementedError


@overload(split_rows, jit_options=_OPTIONS)
def _split_rows(  # type: ignore[no-untyped-def]
    table, order, spare, right, position, feature, begin, end, parent, child, fresh
):  # fmt: skip
    def dense(table, order, spare, right, position, feature, begin, end, parent, child, fresh):  # type: ignore[no-untyped-def]
        columns = table[1]
        whole = np.bool_(True)  # a literal would compile `split_segment` once more
        column = np.uint64(position * len(order))
        return split_segment(order, order, spare, columns, column, right, _NOTHING, begin, end, whole)

    def sparse(table, order, spare, right, position, feature, begin, end, parent, child, fresh):  # type: ignore[no-untyped-def]
        _, _, column_start, column_rows, column_bins, node_of = table
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
        whole = np.bool_(True)
        missing_right = right[np.uint64(len(right) - 1)]
        return split_routed(order, order, spare, node_of, parent, child, missing_right, begin, end, whole)

    return dense if len(table) == _DENSE else sparse


def add_rows(
    table: Any,
    order: NDArray[np.uint32],
    begin: np.uint64,
    end: np.uint64,
    statistics: NDArray[np.int64],
    first: NDArray[np.int64],
    pool: NDArray[np.int64],
    at: np.uint64,
    packed: NDArray[np.int64],
) -> None:
    """Sets the histogram that begins at ``pool[at]`` to that of the rows order[begin:end], which are some."""
    raise NotImplementedError


@overload(add_rows, jit_options=_OPTIONS)
def _add_rows(table, order, begin, end, statistics, first, pool, at, packed):  # type: ignore[no-untyped-def]
    def dense(table, order, begin, end, statistics, first, pool, at, packed):  # type: ignore[no-untyped-def]
        bins, _, width = table
        plane = np.uint64(first[len(width)])
        for g in range(len(width)):
            add_group(
                order, begin, end, statistics, bins, np.uint64(g * len(order) * GROUP), width[g],
                np.uint64(first[g + 1] - first[g]), pool, at + np.uint64(first[g]), plane, packed,
            )  # fmt: skip

    def sparse(table, order, begin, end, statistics, first, pool, at, packed):  # type: ignore[no-untyped-def]
        add_sparse(order, begin, end, statistics, table[0], table[1], pool, at, packed)

    return dense if len(table) == _DENSE else sparse
