"""Out-of-core training (thesis-chen §2.3.3, §2.5.5): trees are grown from blocks on disk in a limited memory."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.sizes import parse_budget
from burnish.boost import booster, readers
from burnish.boost.approx import grid_bins
from burnish.boost.binning import Cuts
from burnish.boost.data import Dataset, Sparse
from burnish.boost.external_sorted import GlobalExternalGrower, exact_grower
from burnish.boost.growth.evaluate import Candidates
from burnish.boost.model import Model
from burnish.boost.outofcore.accumulate import Accumulator
from burnish.boost.outofcore.budget import DEPTH, OVERHEAD, BufferPlan, plan, state_of_row
from burnish.boost.outofcore.codec import AUTO
from burnish.boost.outofcore.ingest import find_cuts, ingest
from burnish.boost.outofcore.layout import ColumnLayout
from burnish.boost.outofcore.prefetch import BlockReader, Prefetcher
from burnish.boost.outofcore.sorted_columns import SORTED, ingest_sorted, row_arrays
from burnish.boost.outofcore.spool import Spool
from burnish.boost.outofcore.store import ColumnStore, remove
from burnish.boost.params import Params
from burnish.boost.pass_grower import PassGrower, histogram_layout
from burnish.boost.sampling import ColumnSampler
from burnish.boost.sketched import StreamSketch
from burnish.comm.protocol import Comm
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

BINS = "bins"  # the form of a store that says none
READ_ROWS = 1 << 14  # rows of a chunk that is read from a file
DEFAULT_MEMORY = 1 << 30  # for an ingest without a budget
NAMING = ("monotone_constraints", "monotonic_cst")  # parameters that may speak of features by name


class ExternalGrower(PassGrower):
    """Grows the trees that `HistGrower` grows, bit for bit, from the blocks of a store."""

    def __init__(
        self, store: ColumnStore, params: Params, workers: Workers, memory_budget: int | None = None,
        row_bytes: int = 4, comm: Any = None,
    ) -> None:  # fmt: skip
        """memory_budget: bytes for this grower and the state of rows, of `row_bytes` each (4: their nodes alone).

        Raises ParameterError if the parameters ask for another kind of growth, or the budget is too small.
        """
        refuse(params, comm)
        cuts = Cuts(store.arrays["cut_values"].copy(), store.arrays["cut_start"].copy())
        columns = ColumnLayout.from_arrays(store.arrays, store.header["bin_dtype"])
        missing = store.arrays["present"] < store.header["rows"]
        missing = missing if comm is None else np.asarray(comm.all_reduce(missing, "max"))
        layout = histogram_layout(cuts, missing, bool(store.header["sparse"]))
        self.store = store
        self.plan: BufferPlan = plan(store, columns, layout.size, params, row_bytes, memory_budget)
        slots = self.plan.slots if comm is None else int(comm.all_reduce(np.array([self.plan.slots]), "min")[0])
        rows = int(store.header["rows"])
        super().__init__(rows, cuts, layout, categorical_of(store), params, workers, slots, comm)
        blocks, counts = Prefetcher(store, columns, DEPTH, self.plan.resident), np.diff(cuts.start).astype(np.int64)
        block_rows = min(int(store.header["block_rows"]), rows)
        self.take(Accumulator(blocks, self._passes.first, counts, block_rows, workers))


class LocalExternalGrower(ExternalGrower):
    """Grows the trees that `LocalGrower` grows, from a store whose bins are its finer grid."""

    _wide = True

    def __init__(self, store: ColumnStore, params: Params, *more: Any) -> None:
        super().__init__(store, params, *more)
        self._most = params.max_bin

    def _masks(self, columns: ColumnSampler) -> None:
        """None, as of `LocalGrower`."""

    def _candidates(self) -> Candidates:
        """As of `LocalGrower`."""
        return Candidates.of(self._most, len(self._layout.feature), self._workers.threads)


def refuse(params: Params, comm: Comm | None = None) -> None:
    """Raises ParameterError for growth that cannot be done level by level out of core, by several workers or one."""
    if params.booster == "dart":
        raise ParameterError(
            "booster: found 'dart', whose margins are computed anew from the rows' values; allowed with memory_budget: "
            "'gbtree'"
        )
    if comm is not None and by_values(params):
        raise ParameterError(
            f"tree_method: found {params.tree_method!r}, proposal {params.proposal!r}; allowed with memory_budget and "
            "several workers: 'hist', or 'approx' with local proposals"
        )
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
    comm: Comm | None = None,
    **training: Any,
) -> Model:
    """Trains on data that need not fit into memory; the model is the one that `booster.train` makes of it in memory.

    source: a finished store, a file or folder that `readers` read (with the options `read`), or chunks, which are taken
    once: Datasets, arrays, or tuples of what Dataset.of takes. folders: where the store is written, on as many disks;
    it is removed after training unless `keep`. compression: "none", "lz4", "zstd" or "zlib"; "auto" takes what
    blocks are read soonest by, as the disk and the codecs are measured. training: what else `booster.train` takes
    (validation_data, callbacks, …).

    Of "hist", and "approx" with local proposals, the store has bins; of "exact", and "approx" with global ones, the
    values by columns, sorted. With `sketch_eps`, bins are cut by a sketch of the chunks as they arrive.

    comm: workers that hold a part of the rows each (of "hist", "approx" with local proposals): the source is this
    worker's, and folders are its own; the model is that of the rows of worker 0, 1, … in this order.

    memory_budget: bytes, or as in "2GB", for all buffers, beside what the interpreter with its libraries takes, one
    chunk of the source, and the sets of `validation_data`. The state of the rows (`budget.state_of_row`: 20 bytes of a
    row with one output and without weights; with sorted columns 36 more) is always in memory. Raises ParameterError,
    which states the smallest budget that is possible, if the given one is smaller; ParameterError and DataError as
    `booster.train` does.
    """
    budget = None if memory_budget is None else parse_budget("memory_budget", memory_budget)
    comm = comm if comm is not None and comm.size > 1 else None
    if training.get("continue_from") is not None:
        raise ParameterError(
            "continue_from: found a model; allowed with a store: None, as its trees would need the rows' values again"
        )
    if isinstance(source, ColumnStore):
        return _train(params, source, rounds, budget, threads, comm, training)
    if folders is None:
        raise ParameterError("folders: found None; allowed: one or more folders to write the store to")
    if isinstance(source, str | os.PathLike):
        source = readers.chunks(source, READ_ROWS, **(read or {}))
    # Names, which only constraints need, are not known yet.
    early = Params.of(
        {k: v for k, v in (params or {}).items() if k not in NAMING} if isinstance(params, Mapping) else params
    )
    refuse(early, comm)
    workers = Workers(threads or early.threads or None)
    store = _ingest(early, source, folders, budget, compression, block_rows, workers, comm)
    try:
        with store:
            return _train(params, store, rounds, budget, threads, comm, training)
    finally:
        if not keep:
            remove(store.folders)


def _ingest(
    params: Params, source: Iterable[Any], folders: Any, budget: int | None, compression: str, block_rows: int | None,
    workers: Workers, comm: Comm | None,
) -> ColumnStore:  # fmt: skip
    """The store that training by these parameters reads."""

    def check(spool: Spool) -> None:
        rows = spool.rows * state_of_row(params, spool.row_widths)
        if budget is not None and budget < rows + OVERHEAD:
            raise ParameterError(
                f"memory_budget: found {budget} bytes; {spool.rows} rows need more than {rows + OVERHEAD}"
            )

    memory = DEFAULT_MEMORY if budget is None else budget
    if by_values(params):
        return ingest_sorted(source, folders, workers, memory=memory, compression=compression, check=check)
    sketch = StreamSketch(params.sketch_eps, workers) if params.sketch_eps else None

    def cuts_of(spool: Spool) -> Cuts:
        bins = bins_of(params, spool.features)
        if sketch is not None:
            return sketch.cuts(bins, spool.categories, comm)
        return find_cuts(spool, bins, workers, memory, comm)

    return ingest(
        source,
        folders,
        lambda spool: bins_of(params, spool.features),
        workers,
        memory=memory,
        block_rows=block_rows,
        compression=compression,
        check=check,
        cuts_of=cuts_of,
        see=None if sketch is None else sketch.push,
    )


def by_values(params: Params) -> bool:
    """Whether out-of-core training reads values, sorted by columns, and not bins."""
    return params.tree_method == "exact" or (params.tree_method == "approx" and params.proposal == "global")


def bins_of(params: Params, features: int) -> int:
    """Bins of a column in a store: those of the parameters, or of the grid of local proposals."""
    return grid_bins(params, features) if params.tree_method == "approx" else params.max_bin


def _train(
    params: Mapping[str, Any] | Params | None,
    store: ColumnStore,
    rounds: int | None,
    memory_budget: int | None,
    threads: int | None,
    comm: Comm | None,
    training: Mapping[str, Any],
) -> Model:
    """Trains on a finished store."""
    settled = Params.of(params, tuple(store.header["feature_names"]))
    refuse(settled, comm)
    first, size = settled.of_round(0), state_of_row(settled, store.header["row_arrays"])
    workers, data = Workers(threads or settled.threads or None), rows_of_store(store)
    form, wanted = store.header.get("form", BINS), SORTED if by_values(settled) else BINS
    if form != wanted:
        raise ParameterError(f"tree_method: found {settled.tree_method!r} with a store of {form}; allowed: of {wanted}")
    grower: Any
    if settled.tree_method == "exact":
        grower = exact_grower(store, data, first, workers, memory_budget, size)
    elif form == SORTED:
        grower = GlobalExternalGrower(store, data, first, workers, memory_budget, size)
    else:
        bins = bins_of(settled, int(store.header["features"]))
        if bins != store.header["max_bin"]:
            raise ParameterError(f"max_bin: found {bins}; allowed with this store: {store.header['max_bin']}")
        kind = LocalExternalGrower if settled.tree_method == "approx" else ExternalGrower
        grower = kind(store, first, workers, memory_budget, size, comm)
    return booster.train(settled, data, rounds, workers=workers, grower=grower, comm=comm, **training)


def rows_of_store(store: ColumnStore) -> Dataset:
    """Labels, weights, margins and query groups of a store's rows, in a Dataset whose table has no values."""
    header = store.header
    rows = int(header["rows"])
    arrays = row_arrays(store) if header.get("form") == SORTED else _arrays_of_blocks(store)
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


def _arrays_of_blocks(store: ColumnStore) -> dict[str, Any]:
    """Row arrays of a store of bins by name: (rows,), or (rows, width)."""
    reader = BlockReader(store, ColumnLayout.from_arrays(store.arrays, store.header["bin_dtype"]))
    arrays: dict[str, Any] = {}
    for offset, (name, width) in enumerate(store.header["row_arrays"].items()):
        array = np.empty((reader.rows, width), np.float32)
        for number in range(reader.blocks):
            first, count = reader.span(number)
            values = reader.read_rows(number, reader.layout.groups + offset, np.dtype(np.float32))
            array[first : first + count] = values.reshape(count, width)
        arrays[name] = array if name == "base_margin" or width > 1 else array[:, 0]
    return arrays


def categorical_of(store: ColumnStore) -> NDArray[np.bool_]:
    """Which features of a store are categorical, (features,)."""
    known = store.header["categories"] or [None] * int(store.header["features"])
    return np.array([each is not None for each in known], np.bool_)
