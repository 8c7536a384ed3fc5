"""CSC transpose of a sparse table: entries by column, by a counting sort that every thread does for its rows."""

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Sparse
from burnish.boost.kernels import region
from burnish.runtime.threads import Workers


def column_offsets(
    table: Sparse, features: int, workers: Workers
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where columns begin if entries are sorted by column, where ranges of rows write in them, and the ranges' ends.

    (features + 1,), (ranges, features) and (ranges + 1,).
    """
    edges = np.array([0, *(end for _, end in workers.ranges(len(table.start) - 1, 1024))])
    counts = np.zeros((len(edges) - 1, features), np.int64)
    workers.each(_count_columns, len(counts), table.start, table.columns, edges, counts)
    start = np.zeros(features + 1, np.int64)
    start[1:] = np.cumsum(counts.sum(axis=0))
    return start, start[:-1] + np.cumsum(counts, axis=0) - counts, edges


def column_values(
    table: Sparse, features: int, workers: Workers
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.uint32]]:
    """The entries by column: start (features + 1,), values and rows (entries,)."""
    start, offsets, edges = column_offsets(table, features, workers)
    values = np.empty(len(table.values), np.float32)
    rows = np.empty(len(table.values), np.uint32)
    entries = table.start, table.columns, table.values
    workers.each(_scatter_values, len(offsets), *entries, edges, offsets, values, rows)
    return start, values, rows


@region
def _count_columns(
    start: NDArray[np.int64],
    columns: NDArray[np.int32],
    edges: NDArray[np.int64],
    counts: NDArray[np.int64],
    begin: int,
    end: int,
    thread: int,
) -> None:
    for part in range(begin, end):
        for j in range(start[edges[part]], start[edges[part + 1]]):
            counts[part, columns[j]] += 1


@region
def _scatter_values(
    start: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
    edges: NDArray[np.int64],
    offsets: NDArray[np.int64],
    out_values: NDArray[np.float32],
    out_rows: NDArray[np.uint32],
    begin: int,
    end: int,
    thread: int,
) -> None:
    for part in range(begin, end):
        offset = offsets[part]
        for row in range(edges[part], edges[part + 1]):
            for j in range(start[row], start[row + 1]):
                at = offset[columns[j]]
                out_values[at] = values[j]
                out_rows[at] = row
                offset[columns[j]] = at + 1
