"""Column sources: where sorted columns come from as a scan needs them, from memory, from disk, or a worker's share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from burnish.boost.blocks import PADDING, ColumnBlock
from burnish.boost.outofcore.store import ColumnStore

Entries = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]  # start, rows, values: see ColumnBlock
ENTRY_BYTES = 8
BUFFERS = 2  # of spans of columns: one is scanned while the next is read
CONSTANT = 2  # added to the kind of a column of one value


class ColumnSource(Protocol):
    """Sorted columns of a table (thesis-chen §2.3.1), a part of them at a time."""

    start: NDArray[np.int64]  # (features + 1,), as if all were in one block
    kinds: NDArray[np.int64]  # (features,): 1 misses no value, plus `CONSTANT` of one value or none

    def parts(self, columns: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Entries]]:
        """Some of the columns at a time, with their entries; these may be used until the next are asked for."""


class MemoryColumns:
    """Columns of a block in memory."""

    def __init__(self, block: ColumnBlock) -> None:
        self.start, self._entries = block.start, (block.start, block.rows, block.values)
        self.kinds = block.dense + CONSTANT * block.constant.astype(np.int64)

    def parts(self, columns: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Entries]]:
        """See ColumnSource: all at once."""
        if len(columns):
            yield columns, self._entries


class DiskColumns:
    """Columns of a store of sorted columns (`outofcore.sorted_columns`); the next are read while some are scanned.

    ``room``: entries of a span of columns, of which there are `BUFFERS` in memory; one column at least.
    """

    def __init__(self, store: ColumnStore, room: int) -> None:
        self.store = store
        self.start = np.asarray(store.arrays["start"], np.int64)
        counts = np.diff(self.start)
        self.kinds = (counts == int(store.header["rows"])) + CONSTANT * store.arrays["constant"].astype(np.int64)
        self._room = max(room, int(counts.max(initial=0)))
        self._buffers: list[tuple[NDArray[np.int32], NDArray[np.float32]]] = []
        self._scratch = [bytearray() for _ in store.folders]

    def parts(self, columns: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Entries]]:
        """See ColumnSource."""
        spans = self._spans(columns)
        with ThreadPoolExecutor(1, "burnish-columns") as reader:
            coming = [reader.submit(self._read, span, 0) for span in spans[:1]]
            for number, span in enumerate(spans):
                entries = coming.pop().result()
                if number + 1 < len(spans):
                    coming.append(reader.submit(self._read, spans[number + 1], (number + 1) % BUFFERS))
                yield span, entries

    def _spans(self, columns: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The columns, as many at a time as there is room for."""
        counts, spans, first = np.diff(self.start)[columns], [], 0
        while first < len(columns):
            last = first + max(1, int(np.searchsorted(np.cumsum(counts[first:]), self._room, side="right")))
            spans.append(columns[first:last])
            first = last
        return spans

    def _read(self, columns: NDArray[np.int64], number: int) -> Entries:
        """Entries of some columns in one of the buffers, a thread for each folder; others have none there."""
        while len(self._buffers) < BUFFERS:
            size = min(self._room, int(self.start[-1])) + PADDING
            self._buffers.append((np.zeros(size, np.int32), np.zeros(size, np.float32)))
        own = np.zeros(len(self.start) - 1, np.int64)
        own[columns] = np.diff(self.start)[columns]
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(own)])
        rows, values = self._buffers[number]

        def read(folder: int) -> None:
            for column in columns[columns % len(self._scratch) == folder].tolist():
                here = slice(int(start[column]), int(start[column + 1]))
                for piece, array in enumerate((rows, values)):
                    self.store.read(column, piece, array[here].view(np.uint8), self._scratch[folder])

        if len(self._scratch) == 1:
            read(0)
        else:
            with ThreadPoolExecutor(len(self._scratch)) as pool:
                list(pool.map(read, range(len(self._scratch))))
        rows[start[-1] : start[-1] + PADDING] = 0
        return start, rows, values


class OwnedColumns:
    """One worker's share of the columns of a table whose others lie on other workers (§2.4: parallel by columns).

    ``comm``: all workers, whose blocks have the same features and rows, and of each feature one has the entries.
    """

    def __init__(self, source: ColumnSource, owned: NDArray[np.bool_], comm: Any) -> None:
        self.start, self.kinds, self.owned, self.comm = source.start, source.kinds, owned, comm
        self._source = source

    def parts(self, columns: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Entries]]:
        """See ColumnSource: of the columns that are this worker's."""
        return self._source.parts(columns[self.owned[columns]])
