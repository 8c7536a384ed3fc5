"""Stores of sorted columns (thesis-chen §2.3.1, §2.3.3): the values themselves, for exact and approximate trees.

Piece 0 of block f are the rows (int32) of column f's entries by value, piece 1 their values (float32), as a
`blocks.ColumnBlock` has them; columns are dealt out to the folders. The pieces after these, of block 0, are what rows
have besides: labels, weights, margins.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.blocks import sort_entries
from burnish.boost.outofcore.codec import AUTO, SAMPLE, suited_codec
from burnish.boost.outofcore.ingest import spooled
from burnish.boost.outofcore.spool import Spool
from burnish.boost.outofcore.store import ColumnStore
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

SORTED = "sorted columns"  # the `form` in a store's header
SORT_BYTES = 24  # of memory that an entry takes while its column is sorted: rows, values, keys, what is packed


def ingest_sorted(
    source: Iterable[Any],
    folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    workers: Workers,
    *,
    memory: int,
    compression: str = AUTO,
    check: Callable[[Spool], None] | None = None,
) -> ColumnStore:
    """Writes a source's columns, sorted by value, to the folders, and opens them as a store.

    source, folders, memory, compression, check: as of `ingest.ingest`; of memory, one column with its keys is the
    least (24 bytes a row). Raises DataError or ParameterError, and then leaves nothing behind.
    """
    with spooled(source, folders, memory, None, compression, check) as (writer, spool):
        room = max(1, memory // SORT_BYTES)
        if int(spool.present.max(initial=0)) > room:
            raise ParameterError(
                f"memory_budget: found {memory} bytes; the least that is possible while one column of {spool.rows} "
                f"rows is sorted is {SORT_BYTES * int(spool.present.max())}"
            )
        writer.shape(max(1, spool.features), 2 + len(spool.row_widths))
        constant, first = np.ones(spool.features, np.bool_), 0
        while first < spool.features:
            cumulative = np.cumsum(spool.present[first:])
            last = first + max(1, int(np.searchsorted(cumulative, room, side="right")))
            columns = list(enumerate(spool.entries(first, last), first))
            workers.run(_sort, [(own,) for own in workers.over(columns)])
            if not first and compression == AUTO:
                sample = [values.tobytes()[:SAMPLE] for _, (_, values) in columns[: workers.threads]]
                writer.use(suited_codec(sample, spool.disk_rate()))
            for feature, (rows, values) in columns:
                constant[feature] = not len(values) or values[0] == values[-1]
                for piece, array in enumerate((rows, values)):
                    writer.write(feature, piece, array)
            first = last
        for piece, name in enumerate(spool.row_widths, 2):
            parts = [spool.row_array(number, name) for number in range(spool.blocks)]
            writer.write(0, piece, np.concatenate(parts))
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(spool.present)])
        writer.finish({**spool.header, "form": SORTED}, {"start": start, "constant": constant, **spool.group_arrays})
        paths = writer.folders
    return ColumnStore.open(paths)


def _sort(columns: Iterable[tuple[int, tuple[NDArray[np.int32], NDArray[np.float32]]]]) -> None:
    for _, entries in columns:
        sort_entries(*entries)


def row_arrays(store: ColumnStore) -> dict[str, NDArray[np.float32]]:
    """Row arrays of a store of sorted columns by name: (rows,), or (rows, width)."""
    found, rows = {}, int(store.header["rows"])
    for piece, (name, width) in enumerate(store.header["row_arrays"].items(), 2):
        array = np.empty(rows * width, np.float32)
        store.read(0, piece, array.view(np.uint8), bytearray())
        flat = width == 1 and name != "base_margin"
        found[name] = array if flat else array.reshape(rows, width)
    return found
