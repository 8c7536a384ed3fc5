"""Exclusive feature bundling: sparse columns of which no row has two entries share one dense column of bins.

Ke et al., LightGBM, NeurIPS 2017, algorithms 3 and 4, with no conflict allowed: trees are those of the columns apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.binning import MOST_BINS
from burnish.boost.growth import requantize as rebin
from burnish.boost.growth.bins import FEW, DenseBins, HistogramLayout, SparseBins
from burnish.boost.intrinsics import aligned
from burnish.boost.kernels import lean, region
from burnish.runtime.threads import GRAIN, Workers

_MOST = 2 * FEW  # bundles: more are not laid out narrowly, and rows of entries serve as well
_PER_ENTRY = 2  # bundles for each entry of a row; more would be emptier than the rows of entries
_QUAD = 4


def bundled(bins: SparseBins, workers: Workers) -> DenseBins | None:
    """The bins of a sparse table in a few dense columns, code 0 where a row has none; None if many would be needed."""
    layout, rows = bins.layout, len(bins.row_start) - 1
    most = min(_MOST, int(_PER_ENTRY * len(bins.row_bins) / max(1, rows)))
    if not most or not rows:
        return None
    ascending = np.argsort(layout.feature)  # neighbours are exclusive more often than others
    column = np.full(len(layout.feature), -1, np.int64)
    features = layout.feature[ascending]
    taken = np.zeros((most, rows), np.uint8)
    found = _bundle(
        bins.column_start[features], bins.column_start[features + 1], bins.column_rows, taken, layout.count[ascending],
        MOST_BINS, np.ones(most, np.int64), column,
    )  # fmt: skip
    if found < 0:
        return None
    base = np.zeros(len(column), np.int64)
    sizes = np.ones(found, np.int64)  # code 0: no entry
    for place, number in enumerate(column.tolist()):
        base[place] = sizes[number]
        sizes[number] += layout.count[ascending[place]]
    order = np.argsort(-sizes, kind="stable")  # columns of many bins share a group
    rank = np.empty(found, np.int64)
    rank[order] = np.arange(found)
    columns, first = np.empty((2, len(column)), np.int64)
    columns[ascending], first[ascending] = rank[column], base
    physical = HistogramLayout.of(order, sizes[order], np.zeros(found, np.bool_), stored=True, narrow=True)
    own = HistogramLayout(
        layout.feature, layout.count, physical.first, physical.scan, physical.missing,
        np.full(len(column), physical.codes), physical.codes, True, (columns, first, layout.count),
    )  # fmt: skip
    return _filled(bins, own, sizes[order], workers)


def _filled(bins: SparseBins, layout: HistogramLayout, sizes: NDArray[np.int64], workers: Workers) -> DenseBins:
    assert layout.bundle is not None
    rows, lanes = len(bins.row_start) - 1, layout.lanes
    dtype = np.uint8 if layout.codes <= 256 else np.uint16
    column_bins = np.zeros((len(sizes), rows), dtype)
    columns, base, _ = layout.bundle
    by_column = np.argsort(columns, kind="stable")  # no two threads write into a column
    edges = np.searchsorted(columns[by_column], np.arange(len(sizes) + 1))
    arrays = bins.column_start, bins.column_rows, bins.column_bins, layout.feature, columns, base
    workers.each(_fill_columns, len(sizes), *arrays, by_column, edges, column_bins)
    row_bins = aligned((layout.groups, rows, lanes), dtype)
    row_bins[:] = 0
    workers.each(rebin.turn, rows, column_bins, row_bins, grain=GRAIN)
    width = np.full(layout.groups, lanes, np.uint64)
    if len(sizes) % lanes:
        width[-1] = -(-(len(sizes) % lanes) // _QUAD) * _QUAD
    return DenseBins(layout, row_bins, column_bins, width)


@lean
def _bundle(
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    rows: NDArray[np.uint32],
    taken: NDArray[np.uint8],
    counts: NDArray[np.int64],
    most_bins: int,
    sizes: NDArray[np.int64],
    column: NDArray[np.int64],
) -> int:
    """Sets each feature's bundle, the latest of those of which no row has an entry; returns how many there are.

    taken: (most bundles, rows), zeros. sizes: (most bundles,), ones. Returns -1 if they do not suffice.
    """
    count = 0
    for f in range(len(first)):
        chosen = -1
        for back in range(count):
            b = count - 1 - back
            if sizes[b] + counts[f] > most_bins:
                continue
            free = True
            for j in range(first[f], last[f]):
                if taken[b, rows[j]]:
                    free = False
                    break
            if free:
                chosen = b
                break
        if chosen < 0:
            if count == len(taken):
                return -1
            chosen = count
            count += 1
        for j in range(first[f], last[f]):
            taken[chosen, rows[j]] = 1
        sizes[chosen] += counts[f]
        column[f] = chosen
    return count


@region
def _fill_columns(
    start: NDArray[np.int64],
    rows: NDArray[np.uint32],
    bins: NDArray[np.uint16],
    feature: NDArray[np.int64],
    columns: NDArray[np.int64],
    base: NDArray[np.int64],
    positions: NDArray[np.int64],
    edges: NDArray[np.int64],
    out: NDArray[Any],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Writes the codes of features into columns begin … end; column c has positions[edges[c] : edges[c + 1]]."""
    for k in range(edges[begin], edges[end]):
        position = positions[k]
        f = feature[position]
        for j in range(start[f], start[f + 1]):
            out[columns[position], rows[j]] = base[position] + bins[j]
