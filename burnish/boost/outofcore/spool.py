"""Streamed data on its way to a store: a file of blocks of float32 columns, read by column or by block."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.data import Dataset, Sparse
from burnish.boost.outofcore.codec import disk_rate
from burnish.boost.outofcore.store import SPOOL
from burnish.errors import DataError

ROW_ARRAYS = ("label", "weight", "base_margin")


@dataclass(frozen=True)
class RawBlock:
    """Columns of a range of rows. Entries of sparse column f: start[f] <= j < start[f + 1]."""

    rows: int
    dense: NDArray[np.float32] | None  # (features, rows), NaN where missing; None if the data is sparse
    start: NDArray[np.int64]  # (features + 1,)
    offsets: NDArray[np.uint16]  # (entries,)
    values: NDArray[np.float32]  # (entries,)


class Spool:
    """Takes the chunks of a source, and keeps them in a file of a folder until it is closed.

    Memory: one block, beside the chunk itself. A Dataset says which form the data has; all chunks must agree.
    """

    def __init__(self, folder: Path, block_rows: int) -> None:
        self.block_rows = block_rows
        self.rows = self.features = 0
        self.sparse = False
        self.present = np.zeros(0, np.int64)  # (features,): entries of each column that are not missing
        self.names: tuple[str, ...] = ()
        self.categories: tuple[Any, ...] = ()
        self.policy = "error"
        self.row_widths: dict[str, int] = {}  # of the row arrays that are there: numbers for each row
        self.group_sizes: list[NDArray[np.int64]] = []
        self._pending: list[Dataset] = []
        self._pending_rows = 0
        self._blocks: list[tuple[int, int, NDArray[np.int64]]] = []  # file offset, rows, start of columns
        self._path = folder / SPOOL
        self._file = open(self._path, "w+b", buffering=1 << 20)  # noqa: SIM115 - closed by `close`

    @property
    def blocks(self) -> int:
        """Number of blocks that are complete."""
        return len(self._blocks)

    @property
    def header(self) -> dict[str, Any]:
        """Header of a store of these rows, as JSON values: sizes, names, categories."""
        entries = int(self.present.sum())
        return {
            "rows": self.rows,
            "features": self.features,
            "block_rows": self.block_rows,
            "sparse": self.sparse,
            "entries": entries,
            "source_bytes": entries * 8 + 8 * self.rows if self.sparse else 4 * self.rows * self.features,
            "row_arrays": {name: self.row_widths[name] for name in ROW_ARRAYS if name in self.row_widths},
            "feature_names": list(self.names),
            "categories": [None if known is None else list(known) for known in self.categories],
            "policy": self.policy,
        }

    @property
    def group_arrays(self) -> dict[str, NDArray[np.int64]]:
        """Where query groups begin, if there are any, as an array of a store's index."""
        if not self.group_sizes:
            return {}
        sizes = np.concatenate(self.group_sizes)
        return {"group_start": np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])}

    def disk_rate(self) -> float:
        """Bytes a second at which blocks of the store will be read, pass after pass: measured on this file."""
        self._file.flush()
        return disk_rate(self._file.fileno(), self._file.tell() // 4)  # a bin takes a byte where a value takes four

    def fill(self, chunks: Iterable[Dataset]) -> None:
        """Reads a source to its end; DataError if chunks do not fit together, or there is no row."""
        for chunk in chunks:
            chunk = chunk.arranged(self.names, "chunk of the source")
            self._check(chunk)
            if chunk.group_start is not None:
                self.group_sizes.append(np.diff(chunk.group_start))
            first = 0
            while first < chunk.rows:
                count = min(self.block_rows - self._pending_rows, chunk.rows - first)
                self._pending.append(rows_of(chunk, first, first + count))
                self._pending_rows += count
                first += count
                if self._pending_rows == self.block_rows:
                    self._flush()
            # What is pending are views, which would keep the whole chunk alive while the source makes the next.
            self._pending = [own(part) for part in self._pending]
        if self._pending_rows:
            self._flush()
        if not self.rows:
            raise DataError("source has no rows; training needs at least one")
        self._file.flush()

    def _check(self, chunk: Dataset) -> None:
        """Compares a chunk with the first."""
        arrays = {name: getattr(chunk, name) for name in ROW_ARRAYS}
        form = {name: 1 if array.ndim == 1 else array.shape[1] for name, array in arrays.items() if array is not None}
        found = (isinstance(chunk.table, Sparse), chunk.features, form, chunk.categories, chunk.group_start is None)
        if not self.features:
            self.features = chunk.features
            self.present = np.zeros(chunk.features, np.int64)
            self.names, self.policy = chunk.feature_names, chunk.policy
            self._first = found
            self.sparse, _, self.row_widths, self.categories, _ = found
        what = ("sparseness", "number of features", "row arrays", "categories", "query groups")
        for name, here, before in zip(what, found, self._first, strict=True):
            if here != before:
                raise DataError(f"chunk of the source: {name} differs from that of the first chunk")

    def _flush(self) -> None:
        """Writes the pending rows as a block."""
        rows = self._pending_rows
        if self.sparse:
            start, offsets, values = columns_of([part.table for part in self._pending], self.features)
            self.present += np.diff(start)
            body: list[NDArray[Any]] = [offsets, values]
        else:
            dense = np.empty((self.features, rows), np.float32)
            at = 0
            for part in self._pending:
                assert isinstance(part.table, np.ndarray)
                dense[:, at : at + part.rows] = part.table.T
                at += part.rows
            self.present += rows - np.count_nonzero(np.isnan(dense), axis=1)
            start, body = np.zeros(0, np.int64), [dense]
        for name in self.row_widths:
            body.append(np.concatenate([getattr(part, name) for part in self._pending]))
        self._blocks.append((self._file.tell(), rows, start))
        try:
            for array in body:
                self._file.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        except OSError as error:
            raise DataError(f"{self._path.parent} cannot be written: {error}") from error
        self.rows += rows
        self._pending, self._pending_rows = [], 0

    def columns(
        self, first: int, last: int, weigh: Callable[[NDArray[np.float32]], NDArray[np.int64]] | None = None
    ) -> list[tuple[NDArray[np.float32], NDArray[np.int64] | None]]:
        """Values of the columns first … last - 1 that are not missing, with weights made by `weigh` of the rows'."""
        sizes = self.present[first:last]
        values = [np.empty(size, np.float32) for size in sizes]
        weights = None if weigh is None else [np.empty(size, np.int64) for size in sizes]
        filled = np.zeros(last - first, np.int64)
        for block in range(self.blocks):
            weight = None if weigh is None else weigh(self.row_array(block, "weight"))
            for k, (x, rows_at) in enumerate(self._block_columns(block, first, last)):
                part = slice(filled[k], filled[k] + len(x))
                values[k][part] = x
                if weights is not None and weight is not None:
                    weights[k][part] = weight[rows_at]
                filled[k] += len(x)
        return [(x, None if weights is None else weights[k]) for k, x in enumerate(values)]

    def entries(self, first: int, last: int) -> list[tuple[NDArray[np.int32], NDArray[np.float32]]]:
        """Rows and values of the columns first … last - 1 that are not missing, by row; the negative zero is zero."""
        sizes = self.present[first:last]
        found = [(np.empty(size, np.int32), np.empty(size, np.float32)) for size in sizes]
        filled = np.zeros(last - first, np.int64)
        for block in range(self.blocks):
            for k, (x, rows_at) in enumerate(self._block_columns(block, first, last)):
                part = slice(filled[k], filled[k] + len(x))
                own = np.flatnonzero(rows_at) if rows_at.dtype == np.bool_ else rows_at
                found[k][0][part] = own.astype(np.int32) + block * self.block_rows
                found[k][1][part] = x + np.float32(0)
                filled[k] += len(x)
        return found

    def _block_columns(self, block: int, first: int, last: int) -> Iterator[tuple[NDArray[np.float32], NDArray[Any]]]:
        """Values that are not missing, and their rows, of some columns of a block."""
        offset, rows, start = self._blocks[block]
        if not self.sparse:
            x = self._read(offset + 4 * first * rows, (last - first) * rows, np.dtype(np.float32))
            for column in x.reshape(last - first, rows):
                there = ~np.isnan(column)
                yield column[there], there
            return
        lot = slice(int(start[first]), int(start[last]))
        rows_at = self._read(offset + 2 * lot.start, lot.stop - lot.start, np.dtype(np.uint16))
        x = self._read(offset + 2 * int(start[-1]) + 4 * lot.start, len(rows_at), np.dtype(np.float32))
        for feature in range(first, last):
            part = slice(int(start[feature]) - lot.start, int(start[feature + 1]) - lot.start)
            yield x[part], rows_at[part]

    def block(self, number: int) -> RawBlock:
        """A block's columns."""
        offset, rows, start = self._blocks[number]
        none = np.zeros(0, np.uint16), np.zeros(0, np.float32)
        if not self.sparse:
            dense = self._read(offset, self.features * rows, np.dtype(np.float32)).reshape(self.features, rows)
            return RawBlock(rows, dense, start, *none)
        entries = int(start[-1])
        offsets = self._read(offset, entries, np.dtype(np.uint16))
        return RawBlock(rows, None, start, offsets, self._read(offset + 2 * entries, entries, np.dtype(np.float32)))

    def row_array(self, number: int, name: str) -> NDArray[np.float32]:
        """A block's labels, weights or margins, as one run of float32."""
        offset, rows, start = self._blocks[number]
        offset += 6 * int(start[-1]) if self.sparse else 4 * self.features * rows
        for other, width in self.row_widths.items():
            if other == name:
                return self._read(offset, rows * width, np.dtype(np.float32))
            offset += 4 * rows * width
        raise KeyError(name)

    def _read(self, offset: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        array = np.empty(count, dtype)
        if count and os.preadv(self._file.fileno(), [array.data.cast("B")], offset) != array.nbytes:
            raise DataError(f"{self._path} is truncated: was it altered while it was read?")
        return array

    def close(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):  # a full disk fails again while it flushes
            self._file.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def rows_of(data: Dataset, first: int, last: int) -> Dataset:
    """Rows first … last - 1 as views, without query groups. Raises DataError for labels that are bounds."""
    if data.bounded:
        raise DataError("label: found lower and upper bounds; allowed with memory_budget: one label of each output")
    table: NDArray[np.float32] | Sparse
    if isinstance(data.table, Sparse):
        start = data.table.start[first : last + 1]
        lot = slice(int(start[0]), int(start[-1]))
        table = Sparse(start - start[0], data.table.columns[lot], data.table.values[lot])
    else:
        table = data.table[first:last]
    arrays = {name: getattr(data, name) for name in ROW_ARRAYS}
    parts: dict[str, Any] = {name: None if array is None else array[first:last] for name, array in arrays.items()}
    return Dataset(table, last - first, data.features, **parts)


def own(data: Dataset) -> Dataset:
    """The same rows in arrays of their own."""
    table = data.table
    copied: Any
    if isinstance(table, Sparse):
        copied = Sparse(table.start.copy(), table.columns.copy(), table.values.copy())
    else:
        copied = table.copy()
    arrays = {name: getattr(data, name) for name in ROW_ARRAYS}
    parts: dict[str, Any] = {name: None if array is None else array.copy() for name, array in arrays.items()}
    return Dataset(copied, data.rows, data.features, **parts)


def columns_of(tables: list[Any], features: int) -> tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.float32]]:
    """Sparse rows, of at most 2^16 rows in all, as columns: start (features + 1,), row offsets and values."""
    counts = np.zeros(features, np.int64)
    for table in tables:
        counts += np.bincount(table.columns, minlength=features)
    start = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    offsets, values = np.empty(start[-1], np.uint16), np.empty(start[-1], np.float32)
    at, first = start[:-1].copy(), 0
    for table in tables:
        scatter(table.start, table.columns, table.values, first, at, offsets, values)
        first += len(table.start) - 1
    return start, offsets, values


@njit(cache=True, nogil=True)
def scatter(
    start: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
    first: int,
    at: NDArray[np.int64],
    offsets: NDArray[np.uint16],
    column_values: NDArray[np.float32],
) -> None:
    """Appends rows, the first of them of offset `first`, to columns that are filled up to `at`."""
    for row in range(len(start) - 1):
        for entry in range(start[row], start[row + 1]):
            place = at[columns[entry]]
            offsets[place] = first + row
            column_values[place] = values[entry]
            at[columns[entry]] = place + 1
