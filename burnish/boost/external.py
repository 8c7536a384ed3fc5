"""Out-of-core training (thesis-chen §2.3.3, §2.5.5): trees are grown from blocks on disk in a limited memory."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.sizes import parse_budget
from burnish.boost import booster, readers
from burnish.boost.binning import Cuts
from burnish.boost.data import Dataset, Sparse
from burnish.boost.grower import BinnedGrower
from burnish.boost.growth.bins import HistogramLayout, SparseBins
from burnish.boost.growth.counted import Counted
from burnish.boost.model import Model
from burnish.boost.outofcore.accumulate import Accumulator, BlockQuantizer, Routing, Statistics, Targets
from burnish.boost.outofcore.budget import DEPTH, OVERHEAD, BufferPlan, plan, state_of_row
from burnish.boost.outofcore.codec import AUTO
from burnish.boost.outofcore.ingest import ingest
from burnish.boost.outofcore.layout import ColumnLayout
from burnish.boost.outofcore.prefetch import BlockReader, Prefetcher
from burnish.boost.outofcore.spool import Spool
from burnish.boost.outofcore.store import ColumnStore, remove
from burnish.boost.params import Params
from burnish.boost.sampling import ColumnSampler
from burnish.boost.tree import Tree
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

READ_ROWS = 1 << 14  # rows of a chunk that is read from a file
DEFAULT_MEMORY = 1 << 30  # for an ingest without a budget
NAMING = ("monotone_constraints", "monotonic_cst")  # parameters that may speak of features by name


class ExternalGrower(BinnedGrower):
    """Grows the trees that `HistGrower` grows, bit for bit, with one pass over the blocks of a store for each level.

    A pass sends rows on by the splits of the level above, and adds them to the histograms of the smaller children (by
    Hessian: rows are not counted); those of their siblings are their parents' less these. Where the histograms of a
    level do not fit into the plan, each is built by itself, as many at a time as fit.
    """

    def __init__(
        self, store: ColumnStore, params: Params, workers: Workers, memory_budget: int | None = None, row_bytes: int = 4
    ) -> None:
        """memory_budget: bytes for this grower and the state of rows, of `row_bytes` each (4: their nodes alone).

        Raises ParameterError if the parameters ask for another kind of growth, or the budget is too small.
        """
        refuse(params)
        cuts = Cuts(store.arrays["cut_values"].copy(), store.arrays["cut_start"].copy())
        columns = ColumnLayout.from_arrays(store.arrays, store.header["bin_dtype"])
        categories = store.header["categories"]
        categorical = np.array([known is not None for known in categories] or [False] * cuts.features, np.bool_)
        layout = histogram_layout(store, cuts)
        self.store = store
        self.plan: BufferPlan = plan(store, columns, layout.size, params, row_bytes, memory_budget)
        uncounted = replace(params, min_data_in_leaf=0)  # rows are counted by passes, see `_PassCounts`
        super().__init__(no_rows(layout), cuts, categorical, uncounted, workers)
        self._comm: Any = self  # not None: which child is smaller is told by the Hessian, not by rows
        self._passes = _Passes(store, cuts, layout, self.plan, workers)
        both: Any = self._passes
        self._partition = self._histograms = both
        quantizer = BlockQuantizer(int(store.header["rows"]), workers, min_child_weight=params.min_child_weight)
        self._quantize: Any = quantizer.statistics
        self._total_rows = quantizer.total_rows
        self._counts: Any = None
        if params.min_data_in_leaf > 1:
            self._counts = _PassCounts(self._passes, params.min_data_in_leaf, self.plan.slots)
        self._passes.open(Prefetcher(store, columns, DEPTH, self.plan.resident))

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
        for begin in range(0, len(children), self.plan.slots):
            batch = children[begin : begin + self.plan.slots]
            self._nodes["slot"][batch] = self._passes.take(len(batch))
            self._build(batch)
            self._open(batch, np.full(len(batch), -1), self._columns)
            if 2 * len(children) > self.plan.slots:  # too few are left for the next level
                self._drop(batch)
        none = np.zeros(0, np.int64)
        return none, none, none


class _Passes:
    """Partition and histogram pool for tables in external memory; rows are routed when blocks are read next."""

    def __init__(
        self, store: ColumnStore, cuts: Cuts, layout: HistogramLayout, buffers: BufferPlan, workers: Workers
    ) -> None:
        self.rows = int(store.header["rows"])
        self.size = layout.size
        self.wanted: NDArray[np.bool_] | None = None
        self._workers = workers
        self._block_rows = min(int(store.header["block_rows"]), self.rows)
        self._layout = layout
        self._first = np.full(cuts.features, -1, np.int64)
        self._first[layout.feature] = layout.place
        self._count = np.diff(cuts.start).astype(np.int64)
        self.pool = np.zeros((buffers.slots, 2, self.size), np.int64)
        self._free = list(range(buffers.slots - 1, -1, -1))
        self._node = np.zeros(self.rows, np.int32)
        self._routing: Routing | None = None
        self._nodes = 1

    def open(self, prefetcher: Prefetcher) -> None:
        """Takes the blocks to pass over."""
        self._accumulator = Accumulator(prefetcher, self._first, self._count, self._block_rows, self._workers)

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
        for begin in range(0, self.rows, READ_ROWS):
            node, taken = self._node[begin : begin + READ_ROWS], statistics.hessian[begin : begin + READ_ROWS] > 0
            rows += np.bincount(node[taken & (node < nodes)], minlength=nodes)
        return rows[ids]

    def _add(
        self, statistics: Statistics, ids: NDArray[np.int64], slots: NDArray[np.int64], nodes: int,
        pool: NDArray[np.int64],
    ) -> None:  # fmt: skip
        nodes = max(nodes, self._nodes)  # as many as rows may be in
        slot_of = np.full(nodes, len(ids), np.int32)
        slot_of[ids] = np.arange(len(ids))
        routing, self._routing = self._routing, None
        self._accumulator.run(statistics, self._node, routing, Targets(slot_of, slots, pool), self.wanted)

    # As partition.Partition, without segments

    def reset(self) -> None:
        """All rows are in the root."""
        self._node[:] = 0
        self._nodes = 1
        self._routing = None

    def split(
        self,
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
        position: NDArray[np.int64],
        right: NDArray[np.uint8],
        nodes: NDArray[np.int64],
        left_child: NDArray[np.int32],
    ) -> NDArray[np.int64]:
        """Notes the splits of nodes for the next pass."""
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


class _PassCounts:
    """As counted.Counts: rows of nodes by bin, each level's in a further pass; keeps 4 bytes a row and a pool."""

    def __init__(self, passes: _Passes, least: int, slots: int) -> None:
        self._passes, self._least = passes, least
        self._pool = np.zeros((slots, 2, passes.size), np.int64)
        self._taken = np.zeros(passes.rows, np.float32)

    def start(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32]) -> None:
        """Takes the rows of a tree: those whose statistics are not zero."""
        for begin in range(0, len(gradient), READ_ROWS):
            rows = slice(begin, begin + READ_ROWS)
            self._taken[rows] = (gradient[rows] != 0.0) | (hessian[rows] != 0.0)

    def of(self, ids: NDArray[np.int64]) -> Counted:
        """The counts of nodes; no more than there are slots."""
        ones = Statistics(self._taken, self._taken, 1.0, 1.0, (0, 0), True)
        slots = np.arange(len(ids))
        rows = self._passes.count(ones, ids, slots, self._pool)
        return Counted(self._pool.reshape(-1), slots, rows, self._least)

    def give_back(self, counted: Counted) -> None:
        """Nothing: the next nodes' counts replace these."""


def refuse(params: Params) -> None:
    """Raises ParameterError for growth that cannot be done level by level from bins."""
    if params.objective == "survival:aft":
        raise ParameterError(
            "objective: found 'survival:aft', whose labels are pairs of bounds; allowed with memory_budget: others, "
            "such as 'survival:cox'"
        )
    if params.num_parallel_tree > 1:
        raise ParameterError(f"num_parallel_tree: found {params.num_parallel_tree}; allowed with memory_budget: 1")
    if params.grow_policy != "depthwise":
        raise ParameterError(
            f"grow_policy: found {params.grow_policy!r}; allowed with memory_budget: 'depthwise', as every leaf of "
            "'lossguide' would take a pass over the disk"
        )
    if params.tree_method != "hist":
        raise ParameterError(f"tree_method: found {params.tree_method!r}; allowed with memory_budget: 'hist'")


def no_rows(layout: HistogramLayout) -> SparseBins:
    """Bins of no rows in a given layout."""
    entries = np.zeros(0, np.uint16)
    starts = np.zeros(1, np.int64), np.zeros(len(layout.feature) + 1, np.int64)
    return SparseBins(layout, starts[0], entries, starts[1], np.zeros(0, np.uint32), entries)


def histogram_layout(store: ColumnStore, cuts: Cuts) -> HistogramLayout:
    """Features in the order of `DenseBins` or `SparseBins`, which decides between splits of equal gain."""
    counts = np.diff(cuts.start).astype(np.int64)
    missing = store.arrays["present"] < store.header["rows"]
    stored = not store.header["sparse"]
    codes = counts + missing if stored else counts
    order = np.argsort(-codes, kind="stable")
    order = order[codes[order] > int(stored)]
    return HistogramLayout.of(order, counts[order], missing[order] if stored else np.ones(len(order), np.bool_), stored)


def train_external(
    params: Mapping[str, Any] | Params | None,
    source: ColumnStore | str | os.PathLike[str] | Iterable[Any],
    rounds: int | None = None,
    *,
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    memory_budget: str | int | None = None,
    compression: str = AUTO,
    block_rows: int | None = None,
    keep: bool = False,
    threads: int | None = None,
    read: Mapping[str, Any] | None = None,
    **training: Any,
) -> Model:
    """Trains on data that need not fit into memory; the model is the one that `booster.train` makes of it in memory.

    source: a finished store, a file or folder that `readers` read (with the options `read`), or chunks, which are taken
    once: Datasets, arrays, or tuples of what Dataset.of takes. folders: where the store is written, on as many disks;
    it is removed after training unless `keep`. compression: "none", "lz4", "zstd" or "zlib"; "auto" takes what
    blocks are read soonest by, as the disk and the codecs are measured. training: what else `booster.train` takes
    (validation_data, callbacks, …).

    memory_budget: bytes, or as in "2GB", for all buffers, beside what the interpreter with its libraries takes, one
    chunk of the source, and the sets of `validation_data`. The state of the rows (`budget.state_of_row`: 20 bytes of a
    row with one output and without weights) is always in memory. Raises ParameterError, which states the smallest
    budget that is possible, if the given one is smaller; ParameterError and DataError as `booster.train` does.
    """
    budget = None if memory_budget is None else parse_budget("memory_budget", memory_budget)
    if training.get("continue_from") is not None:
        raise ParameterError(
            "continue_from: found a model; allowed with a store: None, as values are kept as bins alone"
        )
    if isinstance(source, ColumnStore):
        return _train(params, source, rounds, budget, threads, training)
    if folders is None:
        raise ParameterError("folders: found None; allowed: one or more folders to write the store to")
    if isinstance(source, str | os.PathLike):
        source = readers.chunks(source, READ_ROWS, **(read or {}))
    # Names, which only constraints need, are not known yet.
    early = Params.of(
        {k: v for k, v in (params or {}).items() if k not in NAMING} if isinstance(params, Mapping) else params
    )
    refuse(early)

    def check(spool: Spool) -> None:
        rows = spool.rows * state_of_row(early, spool.row_widths)
        if budget is not None and budget < rows + OVERHEAD:
            raise ParameterError(
                f"memory_budget: found {budget} bytes; {spool.rows} rows need more than {rows + OVERHEAD}"
            )

    workers = Workers(threads or early.threads or None)
    memory = DEFAULT_MEMORY if budget is None else budget
    store = ingest(
        source,
        folders,
        early.max_bin,
        workers,
        memory=memory,
        block_rows=block_rows,
        compression=compression,
        check=check,
    )
    try:
        with store:
            return _train(params, store, rounds, budget, threads, training)
    finally:
        if not keep:
            remove(store.folders)


def _train(
    params: Mapping[str, Any] | Params | None,
    store: ColumnStore,
    rounds: int | None,
    memory_budget: int | None,
    threads: int | None,
    training: Mapping[str, Any],
) -> Model:
    """Trains on a finished store."""
    settled = Params.of(params, tuple(store.header["feature_names"]))
    if settled.max_bin != store.header["max_bin"]:
        raise ParameterError(f"max_bin: found {settled.max_bin}; allowed with this store: {store.header['max_bin']}")
    size, workers = state_of_row(settled, store.header["row_arrays"]), Workers(threads or settled.threads or None)
    grower = ExternalGrower(store, settled.of_round(0), workers, memory_budget, size)
    return booster.train(settled, rows_of_store(store), rounds, workers=workers, grower=grower, **training)


def rows_of_store(store: ColumnStore) -> Dataset:
    """Labels, weights, margins and query groups of a store's rows, in a Dataset whose table has no values."""
    header, reader = store.header, BlockReader(store, ColumnLayout.from_arrays(store.arrays, store.header["bin_dtype"]))
    rows, groups = reader.rows, reader.layout.groups
    arrays: dict[str, Any] = {}
    for offset, (name, width) in enumerate(header["row_arrays"].items()):
        array = np.empty((rows, width), np.float32)
        for number in range(reader.blocks):
            first, count = reader.span(number)
            values = reader.read_rows(number, groups + offset, np.dtype(np.float32))
            array[first : first + count] = values.reshape(count, width)
        arrays[name] = array if name == "base_margin" or width > 1 else array[:, 0]
    start = np.broadcast_to(np.int64(0), (rows + 1,))  # takes no memory
    categories = tuple(None if known is None else tuple(known) for known in header["categories"])
    return Dataset(
        Sparse(start, np.zeros(0, np.int32), np.zeros(0, np.float32)),
        rows,
        header["features"],
        group_start=store.arrays.get("group_start"),
        feature_names=tuple(header["feature_names"]),
        categories=categories,
        policy=header["policy"],
        **arrays,
    )
