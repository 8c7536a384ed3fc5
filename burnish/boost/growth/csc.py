"""CSC transpose of a sparse table: entries by column, by a counting sort that every thread does for its rows."""

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Sparse
from burnish.boost.kernels import kernel, lean
from burnish.runtime.threads import Workers


def column_offsets(
    table: Sparse, features: int, workers: Workers
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]], list[tuple[int, int]]]:
    """Where columns begin if entries are sorted by column, where each range of rows writes in them, and the ranges."""
    parts = workers.ranges(len(table.start) - 1, 1024)
    counts = workers.run(_count_columns, [(table.start, table.columns, *part, features) for part in parts])
    start = np.zeros(features + 1, np.int64)
    start[1:] = np.cumsum(np.sum(counts, axis=0))
    offsets = [start[:-1] + np.sum(counts[:i], axis=0, dtype=np.int64) for i in range(len(parts))]
    return start, [np.ascontiguousarray(offset, np.int64) for offset in offsets], parts


def column_values(
    table: Sparse, features: int, workers: Workers
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.uint32]]:
    """The entries by column: start (features + 1,), values and rows (entries,)."""
    start, offsets, parts = column_offsets(table, features, workers)
    values = np.empty(len(table.values), np.float32)
    rows = np.empty(len(table.values), np.uint32)
    workers.run(
        _scatter_values,
        [
            (table.start, table.columns, table.values, *part, offset, values, rows)
            for part, offset in zip(parts, offsets, strict=True)
        ],
    )
    return start, values, rows


@kernel
def _count_columns(
    start: NDArray[np.int64], columns: NDArray[np.int32], begin: int, end: int, features: int
) -> NDArray[np.int64]:
    counts = np.zeros(features, np.int64)
    for j in range(start[begin], start[end]):
        counts[columns[j]] += 1
    return counts


@lean
def _scatter_values(
    start: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
    begin: int,
    end: int,
    offset: NDArray[np.int64],
    out_values: NDArray[np.float32],
    out_rows: NDArray[np.uint32],
) -> None:
    for row in range(begin, end):
        for j in range(start[row], start[row + 1]):
            at = offset[columns[j]]
            out_values[at] = values[j]
            out_rows[at] = row
            offset[columns[j]] = at + 1
