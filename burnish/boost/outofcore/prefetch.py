"""Reads the blocks of a store ahead of training: a thread for each folder fills a bounded ring of buffers (§2.3.3)."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.outofcore.layout import QUAD, ColumnLayout, decode_sparse, interleave, sparse_entries
from burnish.boost.outofcore.store import ColumnStore

ALIGNMENT = 64  # of columns in memory: a cache line


@dataclass(frozen=True)
class ColumnSelection:
    """Groups of columns that a pass reads, and where their columns lie in a block in memory."""

    groups: tuple[int, ...]
    quads: int  # quads of dense columns
    sparse: NDArray[np.int32]  # (sparse columns,)
    dense_row: NDArray[np.int32]  # (features,): row of Block.dense; -1 where the column is not there or sparse
    sparse_row: NDArray[np.int32]  # (features,): position in `sparse`; -1 where the column is not there or dense
    shift: NDArray[np.int32]  # (features,): where the bins of a dense column begin in the words of its quad

    @classmethod
    def of(cls, layout: ColumnLayout, wanted: NDArray[np.bool_] | None) -> "ColumnSelection":
        """The groups in which a wanted column lies; all groups if `wanted` is None."""
        chosen = [g for g in range(layout.groups) if wanted is None or wanted[layout.members(g)].any()]
        members = np.concatenate([layout.members(g) for g in chosen]) if chosen else np.zeros(0, np.int32)
        dense, sparse = (members[layout.sparse[members] == kind] for kind in (False, True))
        rows, shift = np.full((2, len(layout.sparse)), -1, np.int32), np.zeros(len(layout.sparse), np.int32)
        # All quads but the very last are full, so that they fill up one after the other.
        rows[0, dense] = np.arange(len(dense)) // QUAD
        shift[dense] = np.arange(len(dense)) % QUAD * 8 * layout.bin_dtype.itemsize
        rows[1, sparse] = np.arange(len(sparse))
        return cls(tuple(chosen), -(-len(dense) // QUAD), sparse, rows[0], rows[1], shift)


@dataclass(frozen=True)
class LoadedColumns:
    """Columns of a range of rows in memory. Entry j of sparse column k: start[k] <= j < start[k + 1]."""

    number: int
    first: int  # number of its first row
    rows: int
    selection: ColumnSelection
    dense: NDArray[Any]  # (quads, stride >= rows), words of the bins of four columns
    start: NDArray[np.int64]  # (sparse columns + 1,)
    offsets: NDArray[np.uint16]  # (entries,), row number less `first`, ascending within a column
    bins: NDArray[Any]  # (entries,)


class BlockReader:
    """Reads whole blocks of a store into buffers; one for each thread, as it has scratch space of its own."""

    def __init__(self, store: ColumnStore, layout: ColumnLayout) -> None:
        self.store = store
        self.layout = layout
        self.block_rows = int(store.header["block_rows"])
        self.rows = int(store.header["rows"])
        self._scratch = bytearray()
        self._piece = np.empty(0, np.uint8)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.store.pieces)

    def span(self, block: int) -> tuple[int, int]:
        """First row of a block, and number of its rows."""
        first = block * self.block_rows
        return first, min(self.block_rows, self.rows - first)

    def entries(self, block: int, selection: ColumnSelection) -> int:
        """Number of entries of the selected sparse columns in a block."""
        return sum(self._entries(block, group) for group in selection.groups)

    def _entries(self, block: int, group: int) -> int:
        members = self.layout.members(group)
        if not self.layout.sparse[members[0]]:
            return 0
        return sparse_entries(int(self.store.pieces["raw"][block, group]), len(members), self.layout.bin_dtype)

    def buffer_bytes(self, block: int, selection: ColumnSelection) -> int:
        """Bytes of a buffer for a block."""
        dense = selection.quads * column_stride(self.span(block)[1]) * self.layout.word.itemsize
        return dense + self.entries(block, selection) * (2 + self.layout.bin_dtype.itemsize) + 4 * ALIGNMENT

    def read(self, block: int, selection: ColumnSelection, buffer: NDArray[np.uint8]) -> LoadedColumns:
        """Reads, checks and decompresses the selected columns of a block into a buffer of `buffer_bytes`."""
        first, rows = self.span(block)
        dtype = self.layout.bin_dtype
        stride = column_stride(rows)
        take = _Cutter(buffer)
        dense = take(selection.quads * stride, self.layout.word).reshape(selection.quads, stride)
        entries = self.entries(block, selection)
        offsets, bins = take(entries, np.dtype(np.uint16)), take(entries, dtype)
        counts = np.zeros(len(selection.sparse) + 1, np.int64)
        quad = sparse_at = entry_at = 0
        for group in selection.groups:
            columns = len(self.layout.members(group))
            raw = int(self.store.pieces["raw"][block, group])
            if self.layout.sparse[self.layout.members(group)[0]]:
                count = self._entries(block, group)
                data = self._read_piece(block, group, raw)
                part = slice(entry_at, entry_at + count)
                decode_sparse(data, counts[1 + sparse_at : 1 + sparse_at + columns], offsets[part], bins[part])
                sparse_at, entry_at = sparse_at + columns, entry_at + count
            else:
                data = self._read_piece(block, group, raw).view(dtype).reshape(columns, rows)
                for column in range(0, columns, QUAD):
                    interleave(data[column : column + QUAD], dense[quad, :rows])
                    quad += 1
        return LoadedColumns(block, first, rows, selection, dense, np.cumsum(counts), offsets, bins)

    def read_rows(self, block: int, piece: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Reads a piece of values of rows (labels, weights), in an array of its own."""
        values = np.empty(int(self.store.pieces["raw"][block, piece]), np.uint8)
        self.store.read(block, piece, values, self._scratch)
        return values.view(dtype)

    def _read_piece(self, block: int, group: int, raw: int) -> NDArray[np.uint8]:
        """Reads a piece into scratch space, which is valid until the next one is read."""
        if len(self._piece) < raw:
            self._piece = np.empty(raw, np.uint8)
        self.store.read(block, group, self._piece[:raw], self._scratch)
        return self._piece[:raw]


class _Cutter:
    """Cuts arrays from a buffer, each at a multiple of ALIGNMENT."""

    def __init__(self, buffer: NDArray[np.uint8]) -> None:
        self._buffer = buffer
        self._at = -buffer.ctypes.data % ALIGNMENT

    def __call__(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        size = count * dtype.itemsize
        array = self._buffer[self._at : self._at + size].view(dtype)
        self._at += -(-size // ALIGNMENT) * ALIGNMENT
        return array


def column_stride(rows: int) -> int:
    """Words from a quad to the next: not a power of two, lest the same row of all quads fall in one cache set."""
    return -(-rows // ALIGNMENT) * ALIGNMENT + ALIGNMENT


class Prefetcher:
    """Passes over the blocks of a store, in which a thread for each folder reads ahead by `depth` blocks.

    The first `resident` blocks stay in memory once they were read, with all their columns. A pass yields these first,
    while the threads read the others.
    """

    def __init__(self, store: ColumnStore, layout: ColumnLayout, depth: int = 2, resident: int = 0) -> None:
        self.layout = layout
        self._readers = [BlockReader(store, layout) for _ in store.folders]
        self._everything = ColumnSelection.of(layout, None)
        self._resident: list[LoadedColumns] = []
        reader = self._resident_reader = BlockReader(store, layout)
        self.blocks = reader.blocks
        self.resident = min(resident, self.blocks)
        rest = range(self.resident, self.blocks)
        largest = max((reader.buffer_bytes(block, self._everything) for block in rest), default=0)
        # Buffers live as long as the prefetcher: fresh ones would be faulted in page by page at every pass.
        self._buffers = [[np.empty(largest, np.uint8) for _ in range(depth if rest else 0)] for _ in store.folders]

    def scan(self, wanted: NDArray[np.bool_] | None = None) -> Iterator[LoadedColumns]:
        """One pass over all blocks with the wanted columns, (features,), all of them if None.

        A block may be used until the next is asked for. An error of a reading thread is raised here.
        """
        selection = self._everything if wanted is None else ColumnSelection.of(self.layout, wanted)
        lanes = [
            _Lane(reader, selection, list(buffers), range(self.resident, self.blocks)[offset :: len(self._readers)])
            for offset, (reader, buffers) in enumerate(self._by_turn())
        ]
        try:
            for lane in lanes:
                lane.start()
            reader = self._resident_reader
            while len(self._resident) < self.resident:
                number = len(self._resident)
                buffer = np.empty(reader.buffer_bytes(number, self._everything), np.uint8)
                self._resident.append(reader.read(number, self._everything, buffer))
            yield from self._resident
            for number in range(self.resident, self.blocks):
                lane = lanes[(number - self.resident) % len(lanes)]
                block, buffer = lane.take()
                yield block
                lane.free.put(buffer)
        finally:
            for lane in lanes:
                lane.stop()

    def _by_turn(self) -> list[tuple[BlockReader, list[NDArray[np.uint8]]]]:
        """Readers and buffers of the folders, that of the first block that is not resident first."""
        both = list(zip(self._readers, self._buffers, strict=True))
        turn = self.resident % len(both)
        return both[turn:] + both[:turn]


class _Lane:
    """The thread of one folder during one pass."""

    def __init__(
        self, reader: BlockReader, selection: ColumnSelection, buffers: list[NDArray[np.uint8]], blocks: range
    ) -> None:
        self._reader = reader
        self._selection = selection
        self._blocks = blocks
        self._ready: queue.SimpleQueue[tuple[LoadedColumns, NDArray[np.uint8]] | BaseException] = queue.SimpleQueue()
        self.free: queue.SimpleQueue[NDArray[np.uint8] | None] = queue.SimpleQueue()
        for buffer in buffers:
            self.free.put(buffer)
        self._thread = threading.Thread(target=self._work, name="burnish-prefetch", daemon=True)

    def start(self) -> None:
        """Starts reading."""
        if self._blocks:
            self._thread.start()

    def _work(self) -> None:
        try:
            for number in self._blocks:
                buffer = self.free.get()
                if buffer is None:
                    return
                self._ready.put((self._reader.read(number, self._selection, buffer), buffer))
        except BaseException as error:
            self._ready.put(error)

    def take(self) -> tuple[LoadedColumns, NDArray[np.uint8]]:
        """The next block, once it has been read."""
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def stop(self) -> None:
        """Ends the thread, wherever it stands."""
        if not self._thread.is_alive():
            return
        while not self.free.empty():  # so that it reads no further block
            try:
                self.free.get_nowait()
            except queue.Empty:
                break
        self.free.put(None)
        self._thread.join()
