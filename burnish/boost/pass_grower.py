"""Growth by passes over the data (thesis-chen §2.3.3, §2.5.5): one for each level, from wherever its bins come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from burnish.boost.binning import Cuts
from burnish.boost.grower import BinnedGrower
from burnish.boost.growth.bins import HistogramLayout, SparseBins
from burnish.boost.growth.counted import Counted
from burnish.boost.growth.row_partition import NodeSplits
from burnish.boost.outofcore.accumulate import BlockQuantizer, Routing, Statistics, Targets
from burnish.boost.params import Params
from burnish.boost.sampling import ColumnSampler
from burnish.boost.tree import Tree
from burnish.runtime.threads import Workers

_ROWS = 1 << 14  # of the state of rows that are looked at together


class Adds(Protocol):
    """One pass over the rows of a table, such as `outofcore.accumulate.Accumulator` makes."""

    def run(
        self, statistics: Statistics | None, node: NDArray[np.int32], routing: Routing | None,
        targets: Targets | None = None, wanted: NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        """Routes all rows, and adds their statistics to the histograms of their new nodes."""


class PassGrower(BinnedGrower):
    """Grows the trees that `HistGrower` grows on the same bins, bit for bit, with one pass over the data a level.

    A pass sends rows on by the splits of the level above, and adds them to the histograms of the smaller children (by
    Hessian: rows are not counted); those of their siblings are their parents' less these. Where the histograms of a
    level do not fit into ``slots``, each is built by itself, as many at a time as fit. ``comm``: workers that hold a
    part of the rows each.
    """

    def __init__(
        self, rows: int, cuts: Cuts, layout: HistogramLayout, categorical: NDArray[np.bool_], params: Params,
        workers: Workers, slots: int, comm: Any = None,
    ) -> None:  # fmt: skip
        uncounted = replace(params, min_data_in_leaf=0)  # rows are counted by passes, see `PassCounts`
        super().__init__(no_rows(layout), cuts, categorical, uncounted, workers, comm)
        self._comm: Any = comm or self  # not None: which child is smaller is told by the Hessian, not by rows
        self._slots = slots
        self._passes = Passes(rows, cuts, layout, slots, comm)
        both: Any = self._passes
        self._partition = self._histograms = both
        quantizer = BlockQuantizer(rows, workers, comm, params.min_child_weight)
        self._quantize: Any = quantizer.statistics
        self._total_rows = quantizer.total_rows
        self._counts: Any = None
        if params.min_data_in_leaf > 1:
            self._counts = PassCounts(self._passes, params.min_data_in_leaf, slots)

    def take(self, accumulator: Adds) -> None:
        """Takes what passes over the data, before the first tree."""
        self._passes.open(accumulator)

    def grow(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], columns: ColumnSampler
    ) -> tuple[Tree, NDArray[np.int32]]:
        """One tree on gradient statistics (rows,), and the leaf of every row, in an array that the next tree reuses."""
        self._columns = columns
        params = self._params
        by_tree = params.colsample_bylevel >= 1.0 and params.colsample_bynode >= 1.0
        self._passes.wanted = columns.allowed(0, 0) if by_tree else None
        return super().grow(gradient, hessian, columns)

    def _build(self, ids: NDArray[np.int64]) -> None:
        statistics: Any = self._statistics  # those of BlockQuantizer
        self._passes.add(statistics, ids, np.ascontiguousarray(self._nodes["slot"][ids]), self._size)

    def _count(self, nodes: NDArray[Any], ids: NDArray[np.int64]) -> Counted | None:
        return None if self._counts is None else self._counts.of(ids)

    def _histograms_of_children(
        self, chosen: NDArray[np.int64], left: NDArray[np.int64], middle: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """As in memory if there is room; else builds all children's, opens these, and forgets their histograms."""
        if (self._nodes["slot"][chosen] >= 0).all() and self._passes.free >= len(chosen):
            return super()._histograms_of_children(chosen, left, middle)
        self._drop(chosen)
        children = np.concatenate([left, left + 1])
        children = np.sort(children[self._splittable(children)])
        for begin in range(0, len(children), self._slots):
            batch = children[begin : begin + self._slots]
            self._nodes["slot"][batch] = self._passes.take(len(batch))
            self._build(batch)
            self._open(batch, np.full(len(batch), -1), self._columns)
            if 2 * len(children) > self._slots:  # too few are left for the next level
                self._drop(batch)
        none = np.zeros(0, np.int64)
        return none, none, none


class Passes:
    """Partition and histogram pool for tables in external memory; rows are routed when blocks are read next."""

    def __init__(self, rows: int, cuts: Cuts, layout: HistogramLayout, slots: int, comm: Any = None) -> None:
        self.rows, self.size, self.comm = rows, layout.size, comm
        self.wanted: NDArray[np.bool_] | None = None
        self._layout = layout
        self._first = np.full(cuts.features, -1, np.int64)
        self._first[layout.feature] = layout.place
        self.pool = np.zeros((slots, 2, self.size), np.int64)
        self._free = list(range(slots - 1, -1, -1))
        self._node = np.zeros(self.rows, np.int32)
        self._routing: Routing | None = None
        self._nodes = 1

    @property
    def first(self) -> NDArray[np.int64]:
        """Where each feature's bins begin in a histogram, (features,); -1 if it has no place there."""
        return self._first

    def open(self, accumulator: Adds) -> None:
        """Takes what passes over the data."""
        self._accumulator = accumulator

    # As histogram.Histograms

    @property
    def free(self) -> int:
        """Slots that may be taken."""
        return len(self._free)

    def take(self, count: int) -> NDArray[np.int64]:
        """Slots for `count` histograms, (count,); their contents are undefined."""
        return np.array([self._free.pop() for _ in range(count)], np.int64)

    def give_back(self, slots: NDArray[np.int64]) -> None:
        """Frees slots."""
        self._free.extend(slots[slots >= 0].tolist())

    def add(self, statistics: Statistics, ids: NDArray[np.int64], slots: NDArray[np.int64], nodes: int) -> None:
        """Sets the slots of some nodes to their histograms, in one pass."""
        self._add(statistics, ids, slots, nodes, self.pool)

    def count(
        self, statistics: Statistics, ids: NDArray[np.int64], slots: NDArray[np.int64], pool: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """As `add`, for statistics of ones and zeros and a pool (slots, 2, size) of their own; returns the nodes' rows.

        Rows whose statistics are zero do not count.
        """
        nodes = int(ids.max()) + 1
        self._add(statistics, ids, slots, nodes, pool)
        rows = np.zeros(nodes, np.int64)
        for begin in range(0, self.rows, _ROWS):
            node, taken = self._node[begin : begin + _ROWS], statistics.hessian[begin : begin + _ROWS] > 0
            rows += np.bincount(node[taken & (node < nodes)], minlength=nodes)
        return (rows if self.comm is None else np.asarray(self.comm.all_reduce(rows)))[ids]

    def _add(
        self, statistics: Statistics, ids: NDArray[np.int64], slots: NDArray[np.int64], nodes: int,
        pool: NDArray[np.int64],
    ) -> None:  # fmt: skip
        nodes = max(nodes, self._nodes)  # as many as rows may be in
        slot_of = np.full(nodes, len(ids), np.int32)
        slot_of[ids] = np.arange(len(ids))
        routing, self._routing = self._routing, None
        self._accumulator.run(statistics, self._node, routing, Targets(slot_of, slots, pool), self.wanted)
        if self.comm is not None:
            pool[slots] = self.comm.all_reduce(pool[slots])

    # As partition.Partition, without segments

    def reset(self) -> None:
        """All rows are in the root."""
        self._node[:] = 0
        self._nodes = 1
        self._routing = None

    def split(self, splits: NodeSplits) -> NDArray[np.int64]:
        """Notes the splits of nodes for the next pass."""
        begin, _, position, right, nodes, left_child = splits
        self._follow()
        self._nodes = int(left_child.max()) + 2
        place = np.full(self._nodes, -1, np.int32)
        place[nodes] = np.arange(len(nodes))
        each, layout = np.arange(len(nodes)), self._layout
        missing, right = right[each, layout.missing_code[position]], right.copy()
        right[each, layout.count[position]] = missing  # here the missing bin is the next to the column's own last
        feature = layout.feature[position].astype(np.int32)
        self._routing = Routing(place, feature, right, missing, left_child.astype(np.int32))
        return begin

    def leaves(self, begin: NDArray[np.int64], end: NDArray[np.int64], nodes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The leaf of every row."""
        self._follow()
        return self._node

    def _follow(self) -> None:
        """Sends the rows on by the splits that no pass has followed yet."""
        if self._routing is not None:
            routing, self._routing = self._routing, None
            self._accumulator.run(None, self._node, routing)


class PassCounts:
    """As counted.Counts: rows of nodes by bin, each level's in a further pass; keeps 4 bytes a row and a pool."""

    def __init__(self, passes: Passes, least: int, slots: int) -> None:
        self._passes, self._least = passes, least
        self._pool = np.zeros((slots, 2, passes.size), np.int64)
        self._taken = np.zeros(passes.rows, np.float32)

    def start(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32]) -> None:
        """Takes the rows of a tree: those whose statistics are not zero."""
        for begin in range(0, len(gradient), _ROWS):
            rows = slice(begin, begin + _ROWS)
            self._taken[rows] = (gradient[rows] != 0.0) | (hessian[rows] != 0.0)

    def of(self, ids: NDArray[np.int64]) -> Counted:
        """The counts of nodes; no more than there are slots."""
        ones = Statistics(self._taken, self._taken, 1.0, 1.0, (0, 0), True)
        slots = np.arange(len(ids))
        rows = self._passes.count(ones, ids, slots, self._pool)
        return Counted(self._pool.reshape(-1), slots, rows, self._least)

    def give_back(self, counted: Counted) -> None:
        """Nothing: the next nodes' counts replace these."""


def no_rows(layout: HistogramLayout) -> SparseBins:
    """Bins of no rows in a given layout."""
    entries = np.zeros(0, np.uint16)
    starts = np.zeros(1, np.int64), np.zeros(len(layout.feature) + 1, np.int64)
    return SparseBins(layout, starts[0], entries, starts[1], np.zeros(0, np.uint32), entries)


def histogram_layout(cuts: Cuts, missing: NDArray[np.bool_], sparse: bool) -> HistogramLayout:
    """Features in the order of `DenseBins` or `SparseBins`, which decides between splits of equal gain.

    missing: which features miss values, (features,). sparse: whether the table is.
    """
    counts = np.diff(cuts.start).astype(np.int64)
    stored = not sparse
    codes = counts + missing if stored else counts
    order = np.argsort(-codes, kind="stable")
    order = order[codes[order] > int(stored)]
    return HistogramLayout.of(order, counts[order], missing[order] if stored else np.ones(len(order), np.bool_), stored)
