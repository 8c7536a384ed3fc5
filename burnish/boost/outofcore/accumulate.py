"""One pass over the blocks of a store: rows move to their nodes' children and are added to histograms (§2.3.3)."""

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost import fixed
from burnish.boost.outofcore import columnwise
from burnish.boost.outofcore.layout import QUAD
from burnish.boost.outofcore.prefetch import LoadedColumns, Prefetcher
from burnish.runtime.threads import GRAIN, Workers

LEAST_ROWS = 4096  # of a block for one thread: fewer are not worth the hand-over


@dataclass(frozen=True)
class Statistics:
    """Gradients and Hessians of all rows, and the units of which `fixed.Quantizer` makes them integer multiples.

    The integers themselves are made block by block, in every pass: they would take 8 or 16 bytes a row.
    """

    gradient: NDArray[np.float32]
    hessian: NDArray[np.float32]
    gradient_unit: float
    hessian_unit: float
    total: tuple[int, int]  # in units
    packed: bool

    def write(self, first: int, last: int, values: NDArray[np.int64]) -> tuple[int, ...]:
        """Writes the integers of the rows first … last - 1 to the front of `values`; returns sums over these rows."""
        gradient, hessian = self.gradient[first:last], self.hessian[first:last]
        if self.packed:
            scales = np.float32(1 / self.gradient_unit), np.float32(1 / self.hessian_unit)
            return tuple(fixed._pack_rows(gradient, hessian, *scales, 0, last - first, values))
        exact = 1 / self.gradient_unit, 1 / self.hessian_unit
        return tuple(fixed._pair_rows(gradient, hessian, *exact, 0, last - first, values))


class BlockQuantizer(fixed.Quantizer):
    """Chooses the same form and units as its base, but keeps no integers of the rows.

    (The base's buffer for them is never written, so that it takes addresses, but no memory.)
    """

    def statistics(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], pairs: bool = False
    ) -> Statistics:
        """The statistics of all rows, (rows,) each; DataError if one is not finite."""
        chosen: Any = self(gradient, hessian, pairs)  # `_pack` and `_pair` below make Statistics
        assert isinstance(chosen, Statistics)
        return chosen

    def _pack(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], unit: float, hessian_unit: float
    ) -> Any:
        return self._form(Statistics(gradient, hessian, unit, hessian_unit, (0, 0), True))

    def _pair(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], unit: float, hessian_unit: float
    ) -> Any:
        return self._form(Statistics(gradient, hessian, unit, hessian_unit, (0, 0), False))

    def _form(self, form: Statistics) -> Statistics:
        """The same with the sums over the rows of all workers."""

        def add(begin: int, end: int) -> list[int]:
            buffer = np.empty(LEAST_ROWS if form.packed else (LEAST_ROWS, 2), np.int64)
            parts = [form.write(first, min(first + LEAST_ROWS, end), buffer) for first in range(begin, end, LEAST_ROWS)]
            return [sum(int(value) for value in column) for column in zip(*parts, strict=True)]

        ranges = self._workers.ranges(len(form.gradient), GRAIN)
        total, hessian_total = fixed.reduced(self._workers.run(add, ranges), "sum", self._comm)
        return replace(form, total=(total, hessian_total))


@dataclass(frozen=True)
class Routing:
    """The splits that rows have yet to follow."""

    place: NDArray[np.int32]  # by node number: its place in the arrays below; -1: no split
    feature: NDArray[np.int32]  # (places,)
    right: NDArray[np.uint8]  # (places, bins + 1): whether a bin goes right
    missing_right: NDArray[np.uint8]  # (places,): whether missing values go right
    left_child: NDArray[np.int32]  # (places,); the right child's number is the next

    def sparse_features(self, sparse_row: NDArray[np.int32]) -> list[int]:
        """The features of splits that are sparse columns."""
        features = self.feature[sparse_row[self.feature] >= 0]
        return list(dict.fromkeys(features.tolist()))


class Accumulator:
    """Passes over the blocks with all threads at each block: first by ranges of its rows, then by ranges of columns.

    A row goes to one sum of each column, and a column belongs to one thread, so that nothing is added twice or merged.
    """

    def __init__(
        self,
        prefetcher: Prefetcher,
        first: NDArray[np.int64],
        count: NDArray[np.int64],
        block_rows: int,
        workers: Workers,
    ) -> None:
        """first: (features,), where a column's bins begin in a histogram, -1 if it has no place; count: its bins."""
        self._prefetcher = prefetcher
        self._workers = workers
        self._first = first
        self._count = count
        self._sparse = prefetcher.layout.sparse
        self.width = int((count + 1).max(initial=1))
        self._values = np.empty((block_rows, 2), np.int64)
        self._ordered = np.empty((block_rows, 2), np.int64)
        self._order = np.empty(block_rows, np.uint16)
        self._slot = np.empty(block_rows, np.uint16)
        self._packed = np.empty(0, np.int64)
        layout = prefetcher.layout
        self._quads = np.full((-(-layout.dense // QUAD), QUAD), -1, np.int32)  # their columns; -1: none
        self._quads.reshape(-1)[: layout.dense] = layout.order[: layout.dense]

    @staticmethod
    def row_bytes() -> int:
        """Bytes of buffers for each row of a block."""
        return 16 + 16 + 2 + 2

    def run(
        self,
        statistics: Statistics | None,
        node: NDArray[np.int32],
        routing: Routing | None,
        targets: "Targets | None" = None,
        wanted: NDArray[np.bool_] | None = None,
    ) -> None:
        """Routes all rows, and adds their statistics to the histograms of their new nodes.

        node: (rows,), in and out. wanted: (features,), the columns that are added; None: all.
        """
        task = None
        read = np.zeros(len(self._sparse), np.bool_)
        if targets is not None and statistics is not None:
            targets.pool[targets.slot] = 0
            read = self._first >= 0 if wanted is None else wanted & (self._first >= 0)
            task = self._task(statistics, targets, np.flatnonzero(read))
        if routing is not None:
            read[routing.feature] = True
        for block in self._prefetcher.scan(None if read.all() else read):
            here = node[block.first : block.first + block.rows]
            parts = self._workers.ranges(block.rows, LEAST_ROWS)
            runs = [np.zeros(1 if task is None else len(task.targets.slot) + 2, np.int64) for _ in parts]
            work = [(block, *part, here, routing, task, run) for part, run in zip(parts, runs, strict=True)]
            self._workers.run(self._prepare, work)
            if task is not None:
                self._workers.run(self._add, [(block, parts, runs, share, task) for share in task.shares])
        if task is not None and task.packed is not None:
            self._workers.run(columnwise.flush_all, [share.flushing(task) for share in task.shares])

    def _task(self, statistics: Statistics, targets: "Targets", features: NDArray[np.intp]) -> "_Task":
        """Shares the columns out to the threads: as many quads, and as many sparse columns each."""
        added = np.zeros(len(self._sparse) + 1, np.bool_)  # and one for the lanes of no column
        added[features] = True
        quads = self._quads[added[self._quads].any(axis=1)]
        sparse = features[self._sparse[features]]
        ranges = self._workers.ranges(len(quads)), self._workers.ranges(len(sparse))
        slots = len(targets.slot)
        shares = [
            _Share(quad_range, sparse_range, np.zeros(slots, np.int64))
            for quad_range, sparse_range in zip_longest(*ranges, fillvalue=(0, 0))
        ]
        packed = self._packed_sums(slots, len(quads)) if statistics.packed else None
        count = np.where(added[quads], self._count[quads], 0)
        return _Task(statistics, targets, packed, quads, sparse, self._first[quads], count, self._first[sparse], shares)

    def _packed_sums(self, slots: int, quads: int) -> NDArray[np.int64]:
        """Zeros, (slots, quads, 4, width), in a buffer that is kept."""
        size = slots * quads * QUAD * self.width
        if len(self._packed) < size:
            self._packed = np.empty(0, np.int64)  # before the new one is made
            self._packed = np.empty(size, np.int64)
        packed = self._packed[:size]
        packed[:] = 0
        return packed.reshape(slots, quads, QUAD, self.width)

    @staticmethod
    def _route(block: LoadedColumns, first: int, last: int, node: NDArray[np.int32], routing: Routing | None) -> None:
        """Sends some rows of a block to the children of their nodes."""
        if routing is None:
            return
        selection = block.selection
        for feature in routing.sparse_features(selection.sparse_row):
            column = int(selection.sparse_row[feature])
            entries = slice(int(block.start[column]), int(block.start[column + 1]))
            values = block.offsets[entries], block.bins[entries], feature, routing.place, routing.feature
            columnwise.route_sparse(first, last, *values, routing.right, routing.left_child, node)
        where = routing.place, selection.dense_row[routing.feature], selection.shift[routing.feature]
        tables = routing.right, routing.missing_right, routing.left_child
        columnwise.route(first, last, block.dense, *where, *tables, node)

    def _prepare(
        self,
        block: LoadedColumns,
        first: int,
        last: int,
        node: NDArray[np.int32],
        routing: Routing | None,
        task: "_Task | None",
        run: NDArray[np.int64],
    ) -> None:
        """Routes some rows of a block, makes integers of their statistics, and sorts these by slot."""
        self._route(block, first, last, node, routing)
        if task is None:
            return
        statistics, slot_of = task.statistics, task.targets.slot_of
        values = self._form(statistics, self._values)
        statistics.write(block.first + first, block.first + last, values[first:])
        order, ordered = self._order[first:], self._form(statistics, self._ordered)[first:]
        columnwise.sort_rows(first, last, node, slot_of, self._slot, order, run)
        if len(task.quads):
            columnwise.gather(order, int(run[-2]), values, ordered)

    @staticmethod
    def _form(statistics: Statistics, buffer: NDArray[np.int64]) -> NDArray[np.int64]:
        """A buffer of pairs as the statistics need it."""
        return buffer.reshape(-1)[: len(buffer)] if statistics.packed else buffer

    def _add(
        self,
        block: LoadedColumns,
        parts: list[tuple[int, int]],
        runs: list[NDArray[np.int64]],
        share: "_Share",
        task: "_Task",
    ) -> None:
        """Adds all rows of a block to the histograms of a share of the columns."""
        selection = block.selection
        if share.quads[0] < share.quads[1]:
            quad = selection.dense_row[task.quads[:, 0]]
            ordered = self._form(task.statistics, self._ordered)
            sums = task.targets.slot, task.targets.pool, task.dense_start, task.dense_count
            for (first, _), run in zip(parts, runs, strict=True):
                rows = block.dense, quad, self._order[first:], ordered[first:], run
                if task.packed is not None:
                    columnwise.add_packed(*share.quads, *rows, task.packed, share.pending, *sums)
                else:
                    columnwise.add_pairs(*share.quads, *rows, *sums)
        if share.sparse[0] < share.sparse[1]:
            place = selection.sparse_row[task.sparse].astype(np.int64)
            entries = place, block.start, block.offsets, block.bins, self._slot
            values = self._form(task.statistics, self._values)
            columnwise.add_sparse(
                *share.sparse, *entries, values, task.targets.slot, task.targets.pool, task.sparse_start
            )


@dataclass(frozen=True)
class Targets:
    """The nodes whose histograms are built."""

    slot_of: NDArray[np.int32]  # by node number: its place in `slot`; the next after the last: not built
    slot: NDArray[np.int64]  # (nodes,), of their histograms in the pool
    pool: NDArray[np.int64]  # (slots, 2, size): see `bins.Layout`


@dataclass(frozen=True)
class _Share:
    """Columns that one thread adds up, as ranges of those of a task."""

    quads: tuple[int, int]
    sparse: tuple[int, int]
    pending: NDArray[np.int64]  # (nodes,): rows in the packed sums of its quads

    def flushing(self, task: "_Task") -> tuple[Any, ...]:
        """Arguments of `columnwise.flush_all`."""
        sums = task.targets.slot, task.targets.pool
        return (*self.quads, task.packed, self.pending, *sums, task.dense_start, task.dense_count)


@dataclass(frozen=True)
class _Task:
    """Histograms to accumulate in one pass: nodes and statistics, dense and sparse columns, shares of threads."""

    statistics: Statistics
    targets: "Targets"
    packed: NDArray[np.int64] | None  # (nodes, quads, 4, width)
    quads: NDArray[np.int32]  # (quads, 4): features; -1: none
    sparse: NDArray[np.intp]  # features
    dense_start: NDArray[np.int64]  # (quads, 4): first bins
    dense_count: NDArray[np.int64]  # (quads, 4): numbers of bins; 0 of what is not wanted
    sparse_start: NDArray[np.int64]
    shares: list[_Share]
