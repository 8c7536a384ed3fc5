"""Out-of-core growth from sorted columns on disk (thesis-chen §2.3): exact trees, and candidates for every tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from burnish.boost.approx import GlobalProposals
from burnish.boost.binning import Cuts
from burnish.boost.data import Dataset
from burnish.boost.exact import ExactGrower
from burnish.boost.fixed import sums_of
from burnish.boost.growth.bins import GROUP, HistogramLayout
from burnish.boost.growth.column_source import BUFFERS, ENTRY_BYTES, DiskColumns
from burnish.boost.kernels import inlined, region
from burnish.boost.outofcore.accumulate import Routing, Statistics, Targets
from burnish.boost.outofcore.budget import MOST_SLOTS, OVERHEAD, whole_level
from burnish.boost.outofcore.store import ColumnStore
from burnish.boost.params import Params
from burnish.boost.pass_grower import PassGrower, histogram_layout
from burnish.boost.sampling import ColumnSampler
from burnish.boost.tree import Tree
from burnish.errors import ParameterError
from burnish.runtime.threads import GRAIN, Workers

ROW_BYTES = 36  # of a row while a tree grows: statistics as integers, weights, nodes before and after a level
SPAN = 1 << 27  # bytes of a span of columns where there is no budget
_KEPT_BINS = 16  # bytes of a bin of a histogram


def exact_grower(
    store: ColumnStore, rows: Dataset, params: Params, workers: Workers, budget: int | None, row_bytes: int
) -> ExactGrower:
    """Grower of the trees that `ExactGrower` grows in memory, from a store of sorted columns.

    rows: what `external.rows_of_store` gives. budget: bytes of all buffers and the state of rows, of `row_bytes` each
    beside what growth takes. Raises ParameterError, which states the smallest budget that is possible.
    """
    room, _ = _shared_out(store, budget, row_bytes, 0)
    return ExactGrower(rows, params, workers, DiskColumns(store, room))


class GlobalExternalGrower:
    """Grows the trees that `approx.GlobalGrower` grows, from a store of sorted columns: proposals are a pass over them.

    Arguments as of `exact_grower`.
    """

    def __init__(
        self, store: ColumnStore, rows: Dataset, params: Params, workers: Workers, budget: int | None, row_bytes: int,
    ) -> None:  # fmt: skip
        missing = np.diff(store.arrays["start"]) < rows.rows
        # Bytes of one slot: the largest histogram of a node.
        slot = _KEPT_BINS * (params.max_bin + 1) * (-(-rows.features // GROUP) * GROUP)
        room, slots = _shared_out(store, budget, row_bytes + 2 * workers.threads, slot)
        columns, slots = DiskColumns(store, room), min(slots, whole_level(params, rows.rows))
        self._proposals = GlobalProposals(rows, columns, params.max_bin, workers)
        cuts = self._proposals.cuts
        layout = histogram_layout(cuts, missing, bool(store.header["sparse"]))
        self._grower = PassGrower(rows.rows, cuts, layout, rows.categorical, params, workers, slots)
        self._grower.take(SortedAccumulator(columns, cuts, layout, workers))

    def grow(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], columns: ColumnSampler
    ) -> tuple[Tree, NDArray[np.int32]]:
        """One tree on gradient statistics (rows,), and the leaf of every row, in an array that the next tree reuses."""
        if len(self._proposals.varying):
            self._proposals.propose(hessian)
        return self._grower.grow(gradient, hessian, columns)


def _shared_out(store: ColumnStore, budget: int | None, row_bytes: int, slot: int) -> tuple[int, int]:
    """Entries of a span of columns, and histograms of `slot` bytes (0: none is kept), that a budget has room for.

    Raises ParameterError, which states the smallest budget that is possible.
    """
    if budget is None:
        return SPAN // ENTRY_BYTES, MOST_SLOTS
    rows = (row_bytes + ROW_BYTES) * int(store.header["rows"])
    column = int(np.diff(store.arrays["start"]).max(initial=0))
    packed = 4 * column * len(store.folders)  # a compressed piece for each thread that reads
    least = rows + OVERHEAD + packed + slot + BUFFERS * ENTRY_BYTES * column
    if budget < least:
        raise ParameterError(
            f"memory_budget: found {budget} bytes; the least that is possible with these {store.header['rows']} rows "
            f"is {least} ({rows} for the rows, {least - rows} for columns, histograms and buffers)"
        )
    more = (budget - least) // 2 // slot if slot else 0
    left = budget - least - more * slot
    return column + left // (BUFFERS * ENTRY_BYTES), 1 + more


class SortedAccumulator:
    """Passes over sorted columns: each thread routes rows by, or adds up, some of the columns (`pass_grower.Adds`).

    The bin of an entry follows from a scan of a column beside its cuts, which may change from tree to tree.
    """

    def __init__(self, columns: DiskColumns, cuts: Cuts, layout: HistogramLayout, workers: Workers) -> None:
        self._columns, self._cuts, self._workers = columns, cuts, workers
        self._first = np.full(cuts.features, -1, np.int64)
        self._first[layout.feature] = layout.place
        self._values = np.zeros(0, np.int64)

    def run(
        self, statistics: Statistics | None, node: NDArray[np.int32], routing: Routing | None,
        targets: Targets | None = None, wanted: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        """See `pass_grower.Adds`."""
        if routing is not None:
            self._route(routing, node)
        if targets is None or statistics is None:
            return
        targets.pool[targets.slot] = 0
        shape = (len(node),) if statistics.packed else (len(node), 2)
        if self._values.shape != shape:
            self._values = np.empty(shape, np.int64)
        values = self._values
        self._workers.run(
            lambda begin, end: statistics.write(begin, end, values[begin:end]), self._workers.ranges(len(node), GRAIN)
        )
        read = self._first >= 0 if wanted is None else wanted & (self._first >= 0)
        slot_of = np.append(targets.slot, -1)[np.minimum(targets.slot_of, len(targets.slot))]
        of = self._cuts.values, self._cuts.start, self._first, node, slot_of, values
        for some, block in self._columns.parts(np.flatnonzero(read)):
            self._workers.each(_add, len(some), some, *block, *of, targets.pool, grain=1)

    def _route(self, routing: Routing, node: NDArray[np.int32]) -> None:
        """Sends all rows on: those without a value in the column of their split by default."""
        after = np.empty_like(node)
        of = routing.place, routing.feature, routing.right, routing.missing_right, routing.left_child
        self._workers.each(_by_default, len(node), node, after, *of, grain=GRAIN)
        cuts, children = (self._cuts.values, self._cuts.start), routing.left_child[:, None] + routing.right
        to = node, after, routing.place, routing.feature, children
        for some, block in self._columns.parts(np.unique(routing.feature).astype(np.int64)):
            self._workers.each(_by_column, len(some), some, *block, *cuts, *to, grain=1)
        node[:] = after


@region
def _by_default(node, after, place, feature, right, missing_right, left_child, begin, end, thread):  # type: ignore[no-untyped-def]
    for row in range(np.uint64(begin), np.uint64(end)):
        k = place[node[row]]
        after[row] = left_child[k] + missing_right[k] if k >= 0 else node[row]


@inlined
def _bin_from(code, last, cut, value):  # type: ignore[no-untyped-def]
    """The bin of a value, at ``code`` or behind it: values of a column ascend."""
    while code < last and cut[code] <= value:
        code += 1
    return code


@region
def _by_column(  # type: ignore[no-untyped-def]
    columns, start, rows, values, cut, cut_start, node, after, place, feature, children, begin, end, thread
):
    """Each row is written for the one column on which its node splits, so threads may share out the columns."""
    for c in range(begin, end):
        column = columns[c]
        code, last = cut_start[column], cut_start[column + 1] - 1
        for j in range(start[column], start[column + 1]):
            code = _bin_from(code, last, cut, values[j])
            k = place[node[rows[j]]]
            if k >= 0 and feature[k] == column:
                after[rows[j]] = children[k, code - cut_start[column]]


@region
def _add(  # type: ignore[no-untyped-def]
    columns, start, rows, values, cut, cut_start, first, node, slot_of, statistics, pool, begin, end, thread
):
    """Adds the entries of some columns to the histograms of their rows' slots, pool[slot] (2, size); -1: of none."""
    for c in range(begin, end):
        column = columns[c]
        code, last = cut_start[column], cut_start[column + 1] - 1
        for j in range(start[column], start[column + 1]):
            code = _bin_from(code, last, cut, values[j])
            row = rows[j]
            slot = slot_of[node[row]]
            if slot >= 0:
                at = first[column] + (code - cut_start[column]) * GROUP
                gradient, hessian = sums_of(statistics, row)
                pool[slot, 0, at] += gradient
                pool[slot, 1, at] += hessian
