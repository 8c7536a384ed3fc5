"""Fills a store from a source that is read once: exact quantiles in bounded memory, then the bins of every block."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.binning import Cuts, category_cuts, column_cuts, integer_weights
from burnish.boost.data import Dataset, Sparse
from burnish.boost.outofcore import store as files
from burnish.boost.outofcore.codec import AUTO, SAMPLE, suited_codec
from burnish.boost.outofcore.layout import ColumnLayout, encode_dense, encode_sparse, plan_columns
from burnish.boost.outofcore.spool import RawBlock, Spool
from burnish.boost.outofcore.store import ColumnStore, Packed, StoreWriter
from burnish.boost.quantiles import shared_column_cuts
from burnish.comm.protocol import Comm
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers

LEAST_BLOCK_ROWS = 1 << 10
SPARSE_BELOW = 1 / 3  # a column of fewer entries takes less room as 3 bytes an entry than as a byte a row
# Memory that one value takes while the cuts of its column are found, without and with weights: what is read, and, of
# weights, the order and the weights in that order.
VALUE_BYTES, WEIGHTED_BYTES = 5, 40


def ingest(
    source: Iterable[Any],
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    max_bin: int | Callable[[Spool], int],
    workers: Workers,
    *,
    memory: int,
    block_rows: int | None = None,
    compression: str = AUTO,
    check: Callable[[Spool], None] | None = None,
    cuts_of: Callable[[Spool], Cuts] | None = None,
    see: Callable[[Dataset], None] | None = None,
) -> ColumnStore:
    """Writes the bins of a source's rows to the folders, and opens them as a store.

    source: chunks, each a Dataset, an array, or a tuple of what Dataset.of takes. The first folder needs room for the
    values as float32 while this runs. memory: bytes to take, beside the chunk that the source holds: a few blocks, or
    the columns whose cuts are found together, of which one is the least (5 bytes a row, or 40 with weights). Cuts are
    those of `Cuts.of` for the whole data, exactly, or what `cuts_of` makes of the spooled rows.
    compression: a codec's name, or "auto". block_rows: by default as many as 16 bits number, or as there is
    memory for. check: is called once the number of rows is known, before most of the work; see: with every chunk.
    Raises DataError or ParameterError, and then leaves nothing behind.
    """
    with spooled(source, folders, memory, block_rows, compression, check, see) as (writer, spool):
        max_bin = max_bin if isinstance(max_bin, int) else max_bin(spool)
        cuts = cuts_of(spool) if cuts_of is not None else find_cuts(spool, max_bin, workers, memory)
        dtype = np.dtype(np.uint8 if bins_and_missing(spool, cuts) <= 256 else np.uint16)
        sparse = spool.present < SPARSE_BELOW * spool.rows
        layout = plan_columns(sparse, spool.present, spool.rows, spool.block_rows, dtype)
        writer.shape(spool.blocks, layout.groups + len(spool.row_widths))
        if compression == AUTO:
            raw = spool.block(0)
            sample = [encoded(raw, group, cuts, layout)[:SAMPLE] for group in range(layout.groups)[: workers.threads]]
            writer.use(suited_codec(sample, spool.disk_rate()))
        for number in range(spool.blocks):
            write_block(writer, spool, number, cuts, layout, workers)
        header = {**spool.header, "max_bin": max_bin, "bin_dtype": layout.bin_dtype.name}
        writer.finish(header, arrays_of(spool, cuts, layout))
        paths = writer.folders
    return ColumnStore.open(paths)


@contextlib.contextmanager
def spooled(
    source: Iterable[Any],
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    memory: int,
    block_rows: int | None,
    compression: str,
    check: Callable[[Spool], None] | None,
    see: Callable[[Dataset], None] | None = None,
) -> Iterator[tuple[StoreWriter, Spool]]:
    """A writer of a store in the folders, and a spool with all rows of a source, until the context ends.

    Arguments as of `ingest`; see: is called with each chunk. Raises DataError or ParameterError.
    """
    chunks = datasets(source)
    first = next(chunks, None)
    if first is None:
        raise DataError("source has no chunks; training needs at least one row")
    block_rows = rows_of_blocks(first, memory) if block_rows is None else block_rows
    if not 1 <= block_rows <= files.BLOCK_ROWS:
        raise ParameterError(f"block_rows: found {block_rows}; allowed: 1 to {files.BLOCK_ROWS}, the range of 16 bits")
    paths = files.folder_paths(folders)
    # The folders are claimed before most of the source is read: what cannot be written is refused before work is lost.
    with StoreWriter(paths, compression) as writer, Spool(paths[0], block_rows) as spool:
        every = itertools.chain([first], chunks)
        del first
        spool.fill(every if see is None else _shown(every, see))
        if check is not None:
            check(spool)
        yield writer, spool


def _shown(chunks: Iterable[Dataset], see: Callable[[Dataset], None]) -> Iterator[Dataset]:
    """The chunks, each of which `see` is called with first."""
    for chunk in chunks:
        see(chunk)
        yield chunk


def rows_of_blocks(chunk: Dataset, memory: int) -> int:
    """Rows of a block: as many as 16 bits number, or fewer if their values would take over a quarter of the memory."""
    table = chunk.table
    size = 6 * len(table.values) / max(chunk.rows, 1) if isinstance(table, Sparse) else 4 * chunk.features
    fitting = max(LEAST_BLOCK_ROWS, int(memory / 4 / max(size, 1)))
    return min(files.BLOCK_ROWS, 1 << (fitting.bit_length() - 1))


def datasets(source: Iterable[Any]) -> Iterator[Dataset]:
    """The chunks of a source as Datasets."""
    for chunk in source:
        if isinstance(chunk, Dataset):
            yield chunk
        elif isinstance(chunk, tuple):
            yield Dataset.of(*chunk)
        else:
            yield Dataset.of(chunk)


def weigher(spool: Spool, comm: Comm | None = None) -> Callable[[NDArray[np.float32]], NDArray[np.int64]] | None:
    """Function from weights of rows to the integers that `Cuts.of` uses for all rows together; None without weights."""
    if "weight" not in spool.row_widths:
        return None
    largest = max(float(spool.row_array(number, "weight").max(initial=0)) for number in range(spool.blocks))
    rows = spool.rows
    if comm is not None:
        largest = float(comm.all_reduce(np.array([largest]), "max")[0])
        rows = int(comm.all_reduce(np.array([rows]))[0])
    return lambda weight: integer_weights(weight, largest, rows)


def find_cuts(spool: Spool, max_bin: int, workers: Workers, memory: int, comm: Comm | None = None) -> Cuts:
    """Cuts of all columns, as many columns at a time as fit into `memory` bytes; of the rows of all workers."""
    weigh, rows = weigher(spool, comm), spool.rows
    if comm is not None:
        rows = int(comm.all_reduce(np.array([rows]))[0])
    found: list[NDArray[np.float32]] = []
    value_bytes = VALUE_BYTES if weigh is None else WEIGHTED_BYTES
    least = value_bytes * (int(spool.present.max(initial=0)) if spool.sparse else spool.rows)
    if memory < least:
        raise ParameterError(
            f"memory_budget: found {memory} bytes; the least that is possible while the quantiles of one column of "
            f"{spool.rows} rows are found is {least}"
        )
    room = max(1, memory // value_bytes)

    def cuts(feature: int, values: NDArray[np.float32], weight: NDArray[np.int64] | None) -> NDArray[np.float32]:
        return column_cuts(values, weight, max_bin, spool.rows)

    while len(found) < spool.features:
        first = len(found)
        # A dense block's columns are read with their missing values.
        size = spool.present[first:] if spool.sparse else np.full(spool.features - first, spool.rows)
        fitting = int(np.searchsorted(np.cumsum(size), room, side="right"))
        last = first + max(1, fitting)
        if comm is not None:
            last = int(comm.all_reduce(np.array([last]), "min")[0])
            found += shared_column_cuts(spool.columns(first, last, weigh), max_bin, rows, comm)
            continue
        columns = spool.columns(first, last, weigh)
        for begin in range(0, last - first, workers.threads):
            lot = range(begin, min(begin + workers.threads, last - first))
            found += workers.run(cuts, [(first + k, *columns[k]) for k in lot])
    for feature, categories in enumerate(spool.categories):
        if categories is not None:
            found[feature] = category_cuts(len(categories))
    return Cuts.join(found)


def bins_and_missing(spool: Spool, cuts: Cuts) -> int:
    """The most bins of a column, with that of missing values where it has any."""
    return int((np.diff(cuts.start) + (spool.present < spool.rows)).max(initial=1))


def write_block(
    writer: StoreWriter, spool: Spool, number: int, cuts: Cuts, layout: ColumnLayout, workers: Workers
) -> None:
    """Bins a block's columns, and writes its pieces in the order of their numbers."""
    raw = spool.block(number)

    def encode(group: int) -> Packed:
        return writer.pack(encoded(raw, group, cuts, layout))

    for begin in range(0, layout.groups, workers.threads):
        lot = range(begin, min(begin + workers.threads, layout.groups))
        for group, packed in zip(lot, workers.run(encode, [(group,) for group in lot]), strict=True):
            writer.append(number, group, packed)
    for offset, name in enumerate(spool.row_widths):
        writer.write(number, layout.groups + offset, spool.row_array(number, name))


def encoded(raw: RawBlock, group: int, cuts: Cuts, layout: ColumnLayout) -> bytes:
    """The bins of a group of columns of a block as a piece holds them."""
    members, dtype = layout.members(group), layout.bin_dtype
    if layout.sparse[members[0]]:
        return encode_sparse([sparse_bins(raw, f, cuts, dtype) for f in members], dtype)
    return encode_dense([dense_bins(raw, f, cuts, dtype) for f in members], dtype)


def dense_bins(raw: RawBlock, feature: int, cuts: Cuts, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Bins of all rows of a block; missing values are in the bin after the last."""
    inner, missing = padded_cuts(feature, cuts)
    # A column of as many bins as the type has numbers misses no value: what its `missing` becomes is not used.
    bins = np.full(raw.rows, np.int64(missing).astype(dtype), dtype)
    if raw.dense is not None:
        search(raw.dense[feature], inner, missing, bins)
    else:
        offsets, found = sparse_bins(raw, feature, cuts, dtype)
        bins[offsets] = found
    return bins


def sparse_bins(
    raw: RawBlock, feature: int, cuts: Cuts, dtype: np.dtype[Any]
) -> tuple[NDArray[np.uint16], NDArray[Any]]:
    """Row offsets and bins of the values of a column that are not missing."""
    if raw.dense is not None:
        column = raw.dense[feature]
        there = np.flatnonzero(~np.isnan(column))
        offsets, values = there.astype(np.uint16), column[there]
    else:
        part = slice(int(raw.start[feature]), int(raw.start[feature + 1]))
        offsets, values = raw.offsets[part], raw.values[part]
    bins = np.empty(len(values), dtype)
    search(values, *padded_cuts(feature, cuts), bins)
    return offsets, bins


def padded_cuts(feature: int, cuts: Cuts) -> tuple[NDArray[np.float32], int]:
    """The inner cuts of a column, padded to one less than a power of two, and the bin of missing values."""
    own = cuts.values[cuts.start[feature] : cuts.start[feature + 1]]
    padded = np.full((1 << max(len(own) - 1, 0).bit_length()) - 1, np.nan, np.float32)  # below nothing
    padded[: max(len(own) - 1, 0)] = own[:-1]
    return padded, len(own)


@njit(cache=True, nogil=True)
def search(values: NDArray[np.float32], inner: NDArray[np.float32], missing: int, bins: NDArray[Any]) -> None:
    """Number of inner cuts that are not above each value, by binary searches in lockstep; NaN: `missing`."""
    found = np.empty(512, np.int32)
    for low in range(0, len(values), 512):
        part = values[low : low + 512]
        found[:] = 0
        half = np.int32((len(inner) + 1) // 2)
        while half > 0:
            for i in range(np.uint64(len(part))):
                at = found[i] + half
                found[i] = at if inner[np.uint64(np.uint32(at - np.int32(1)))] <= part[i] else found[i]
            half //= np.int32(2)
        for i in range(len(part)):
            bins[low + i] = missing if part[i] != part[i] else found[i]


def arrays_of(spool: Spool, cuts: Cuts, layout: ColumnLayout) -> dict[str, NDArray[Any]]:
    """The arrays of the index."""
    arrays: dict[str, NDArray[Any]] = {
        "cut_values": cuts.values,
        "cut_start": cuts.start,
        "present": spool.present,
        **layout.arrays(),
        **spool.group_arrays,
    }
    return arrays
