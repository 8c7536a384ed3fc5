"""Regions: memory for the rows of one tensor, of which parts are given back to the system; and what is resident."""

from __future__ import annotations

import ctypes
import mmap
from math import prod
from pathlib import Path

import numpy as np

from burnish.loops.numeric import numpy_dtype

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None)


class RowMemory:
    """Rows [rows, ...] in anonymous memory: addresses are reserved, and only rows that were written take memory.

    ``array`` is all of it, so that a kernel can read every row. Blocks of rows must be multiples of ``alignment`` rows
    for all of their memory to be given back.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        """Raises OSError."""
        kind = numpy_dtype(dtype)
        self._row = prod(shape[1:]) * kind.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map = mmap.mmap(-1, max(prod(shape) * kind.itemsize, 1), flags=flags)
        self.array = np.frombuffer(self._map, kind, prod(shape)).reshape(shape)

    def release(self, begin: int, end: int) -> None:
        """Gives the memory of the rows begin … end - 1 back, whole pages of it; their values are lost."""
        first = -(-begin * self._row // _PAGE) * _PAGE
        last = end * self._row // _PAGE * _PAGE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def resident_bytes() -> int:
    """Bytes of this process that are in main memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def peak_bytes() -> int:
    """Peak resident bytes of this process, without those of the one that began it, which ``ru_maxrss`` counts, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def trim() -> None:
    """Gives memory that was freed back to the system, where the C library can."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
