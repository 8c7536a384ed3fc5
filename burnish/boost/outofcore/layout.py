"""Byte layout of a block's columns: bins of dense columns, 16-bit row offsets and bins of sparse ones."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit

PIECE_BYTES = 1 << 15  # columns are grouped until a piece of a full block has about this size
QUAD = 4  # dense columns whose bins lie together in memory, a row's in one word


@dataclass(frozen=True)
class ColumnLayout:
    """Which columns are stored together. Dense ones come first; a group is of one kind.

    Piece g of a block holds the columns ``order[start[g]:start[g + 1]]``. Dense: the bins, column after column; columns
    4q … 4q + 3 of the order are quad q, and are never parted.
    Sparse: counts (uint32, one a column), then for all entries, column after column: the low bytes of the differences
    of successive row offsets, the high bytes of these, the bins. (Differences are modulo 2^16 and run on from column
    to column; in planes, because the high bytes of most are zeros, which compress to nothing.)
    """

    sparse: NDArray[np.bool_]  # (features,)
    order: NDArray[np.int32]  # (features,)
    start: NDArray[np.int32]  # (groups + 1,)
    bin_dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.uint8))  # or uint16

    @property
    def dense(self) -> int:
        """Number of dense columns."""
        return len(self.sparse) - int(np.count_nonzero(self.sparse))

    @property
    def word(self) -> np.dtype[Any]:
        """Dtype of a word with the bins of a row in a quad, the first column's in the low bits."""
        return np.dtype(np.uint32 if self.bin_dtype.itemsize == 1 else np.uint64)

    @property
    def groups(self) -> int:
        """Number of pieces of columns of a block."""
        return len(self.start) - 1

    def members(self, group: int) -> NDArray[np.int32]:
        """The features of a group."""
        return self.order[self.start[group] : self.start[group + 1]]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of the layout, by the names that `from_arrays` takes."""
        return {"column_sparse": self.sparse.view(np.uint8), "column_order": self.order, "column_group": self.start}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], bin_dtype: np.dtype[Any]) -> "ColumnLayout":
        """The layout of a store."""
        return cls(
            arrays["column_sparse"].view(np.bool_), arrays["column_order"], arrays["column_group"], np.dtype(bin_dtype)
        )


def plan_columns(
    sparse: NDArray[np.bool_], present: NDArray[np.int64], rows: int, block_rows: int, bin_dtype: np.dtype[Any]
) -> ColumnLayout:
    """Groups columns to pieces of about PIECE_BYTES; `present` are the entries of each column, (features,)."""
    order = np.concatenate([np.flatnonzero(~sparse), np.flatnonzero(sparse)]).astype(np.int32)
    share = min(block_rows, rows) / max(rows, 1)
    size = np.where(sparse, present * share * (2 + bin_dtype.itemsize) + 4, min(block_rows, rows) * bin_dtype.itemsize)
    start, filled = [0], 0.0
    for position, feature in enumerate(order):
        other_kind = position > start[-1] and sparse[feature] != sparse[order[position - 1]]
        within = not sparse[feature] and position % QUAD > 0
        if position > start[-1] and not within and (other_kind or filled + size[feature] > PIECE_BYTES):
            start.append(position)
            filled = 0.0
        filled += float(size[feature])
    if len(order):
        start.append(len(order))
    return ColumnLayout(sparse, order, np.array(start, np.int32), np.dtype(bin_dtype))


def encode_dense(columns: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> bytes:
    """Bins of the dense columns of a group, (rows,) each, as a piece."""
    return b"".join(column.astype(dtype).tobytes() for column in columns)


def encode_sparse(columns: Sequence[tuple[NDArray[np.uint16], NDArray[Any]]], dtype: np.dtype[Any]) -> bytes:
    """Ascending row offsets and bins of the sparse columns of a group as a piece."""
    counts = np.array([len(offsets) for offsets, _ in columns], np.uint32)
    offsets = np.concatenate([offsets for offsets, _ in columns]).astype(np.uint16)
    bins = np.concatenate([bins for _, bins in columns]).astype(dtype)
    difference = np.diff(offsets, prepend=np.uint16(0))  # modulo 2^16
    planes = difference.view(np.uint8).reshape(-1, 2).T
    return counts.tobytes() + np.ascontiguousarray(planes).tobytes() + bins.tobytes()


def sparse_entries(raw: int, columns: int, dtype: np.dtype[Any]) -> int:
    """The number of entries of a piece of `raw` bytes."""
    return (raw - 4 * columns) // (2 + dtype.itemsize)


def decode_sparse(
    data: NDArray[np.uint8], counts: NDArray[np.int64], offsets: NDArray[np.uint16], bins: NDArray[Any]
) -> None:
    """The inverse of `encode_sparse`: fills entries of each column, and row offsets and bins, both (entries,)."""
    columns, entries = len(counts), len(offsets)
    counts[:] = data[: 4 * columns].view(np.uint32)
    planes = data[4 * columns : 4 * columns + 2 * entries].reshape(2, entries)
    halves = offsets.view(np.uint8).reshape(entries, 2)
    halves[:, 0] = planes[0]
    halves[:, 1] = planes[1]
    np.add.accumulate(offsets, dtype=np.uint16, out=offsets)
    # The bins may lie at an odd address: they are copied as bytes.
    bins.view(np.uint8)[:] = data[4 * columns + 2 * entries :]


@njit(cache=True, nogil=True)
def interleave(columns: NDArray[Any], words: NDArray[Any]) -> None:
    """Words (rows,) of the bins of up to four columns (columns, rows)."""
    bits = 8 * columns.itemsize
    for k in range(len(columns)):
        column = columns[k]
        shift = words.dtype.type(k * bits)
        if k == 0:
            for row in range(len(column)):
                words[row] = column[row]
        else:
            for row in range(len(column)):
                words[row] |= words.dtype.type(column[row]) << shift
