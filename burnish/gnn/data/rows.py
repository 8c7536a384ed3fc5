"""Feature rows: what a graph needs of its features, be they in memory, in a file, or made when they are read."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from burnish.base.files import open_regular
from burnish.errors import DataError, InputError, ParameterError

Matrix = NDArray[np.float32]
BLOCK_BYTES = 8 << 20  # of rows that are read or written at a time


class FeatureRows(Protocol):
    """A matrix of float32 features that is read a range of rows at a time."""

    @property
    def shape(self) -> tuple[int, int]:
        """(vertices, features)."""

    def read(self, begin: int, end: int, out: Matrix | None = None) -> Matrix:
        """Rows begin … end - 1, (end - begin, features): in ``out``, where given. Raises ParameterError, InputError."""


@dataclass(frozen=True, eq=False)
class FileRows:
    """Rows of a file, read by ``preadv`` into buffers: pages of a mapped file would count as resident memory.

    start: byte of the first row, which lie one after another, row-major. cached: whether the system may keep what was
    read; ``False`` gives it back at once. Raises OSError, and DataError for a file that ends before its last row.
    """

    path: Path
    start: int
    shape: tuple[int, int]
    cached: bool = True

    def __post_init__(self) -> None:
        """Opens the file, once for all threads; closed with the last reference."""
        file = open_regular(self.path)
        found, needed = os.fstat(file.fileno()).st_size, self.start + self.shape[0] * self._row
        if found < needed:
            file.close()
            raise DataError(f"'{self.path}' is truncated: found {found} bytes; allowed: {needed}")
        object.__setattr__(self, "_file", file)

    @property
    def _row(self) -> int:
        return 4 * self.shape[1]

    def read(self, begin: int, end: int, out: Matrix | None = None) -> Matrix:
        """As ``Rows.read``; a new buffer without ``out``. Raises DataError where the file has become shorter."""
        into = buffer(begin, end, self.shape, out)
        file: BinaryIO = self._file  # type: ignore[attr-defined]
        at = self.start + begin * self._row
        fill(file, at, into, self.path)
        if not self.cached and into.nbytes:
            os.posix_fadvise(file.fileno(), at, into.nbytes, os.POSIX_FADV_DONTNEED)
        return into


class MadeRows:
    """Rows that a function makes: ``make(begin, out)`` fills the rows from ``begin`` on, the same each time."""

    def __init__(self, shape: tuple[int, int], make: Any) -> None:
        self.shape = shape
        self._make = make
        self._lock = threading.Lock()

    def read(self, begin: int, end: int, out: Matrix | None = None) -> Matrix:
        """As ``Rows.read``."""
        into = buffer(begin, end, self.shape, out)
        with self._lock:
            self._make(begin, into)
        return into


def buffer(begin: int, end: int, shape: tuple[int, int], out: Matrix | None) -> Matrix:
    """The rows that a read fills. Raises ParameterError for rows that do not exist, InputError for a wrong ``out``."""
    check_range(begin, end, shape[0])
    wanted = (end - begin, shape[1])
    if out is None:
        return np.empty(wanted, np.float32)
    if out.shape != wanted or out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
        raise InputError(
            f"rows: out: found {out.dtype} {out.shape}; allowed: float32 {wanted}, row-major and not read-only"
        )
    return out


def fill(file: BinaryIO, at: int, into: NDArray[Any], path: Path) -> None:
    """Reads the bytes of a contiguous array from the byte ``at`` on. Raises OSError, DataError where the file ends."""
    if not into.nbytes:
        return
    view, done = into.data.cast("B"), 0
    while done < into.nbytes:
        got = os.preadv(file.fileno(), [view[done:]], at + done)
        if not got:
            raise DataError(f"'{path}' is truncated: found {at + done} bytes; allowed: {at + into.nbytes} or more")
        done += got


def check_range(begin: int, end: int, rows: int) -> None:
    """Raises ParameterError for a range of rows that do not exist."""
    if not 0 <= begin <= end <= rows:
        raise ParameterError(f"rows: found {begin} to {end}; allowed: ascending, 0 to {rows}")


def blocks(shape: tuple[int, int], block_bytes: int = BLOCK_BYTES) -> list[tuple[int, int]]:
    """Ranges of rows that cover all of them, each of at most ``block_bytes`` bytes of float32, or of one row."""
    step = max(1, block_bytes // max(1, 4 * shape[1]))
    return [(begin, min(begin + step, shape[0])) for begin in range(0, shape[0], step)]


def check_finite(found: Matrix, first: int = 0) -> None:
    """Raises DataError that names the first value of rows that is not finite; ``first``: the number of row 0."""
    for begin, end in blocks(found.shape):
        block = found[begin:end]
        if not np.isfinite(block.sum(dtype=np.float64)) and not np.isfinite(block).all():
            row, column = (int(i[0]) for i in np.nonzero(~np.isfinite(block)))
            value = block[row, column]
            raise DataError(
                f"graph: features: found {value} in row {first + begin + row}, column {column}; allowed: finite numbers"
            )
