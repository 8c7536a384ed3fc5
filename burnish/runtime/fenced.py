"""Guard-page memory: buffers between forbidden pages, with bytes around them that nobody may change."""

from __future__ import annotations

import ctypes
import mmap
from typing import Self

import numpy as np

from burnish.runtime.buffers import round_up
from burnish.runtime.pages import FORBIDDEN, HUGE_PAGE, anonymous_pages, protect

UNWRITTEN = 0xFF  # NaN in every float type
WATCHED = 4096  # bytes, at most, in front of a buffer and behind it


class Fenced:
    """``nbytes`` bytes directly before a forbidden page (``edge`` end) or after one (start).

    An access beyond that page kills the process. At the end they begin at a multiple of ``alignment``, hence up to as
    many bytes before the page. The bytes around them are ``around``: by default NaN, so that a read outside shows in
    results. ``shared``: with child processes, which otherwise have copies. From 2 MB on they lie in huge pages, as the
    memory of compiled models does, so that times can be compared. ``bytes`` is the memory (uint8), its contents
    undefined, ``address`` its first byte's.
    """

    def __init__(
        self, nbytes: int, edge: str = "end", *, alignment: int = 1, around: int = UNWRITTEN, shared: bool = False
    ) -> None:
        """Raises OSError if the system refuses."""
        unit = HUGE_PAGE if nbytes >= HUGE_PAGE else mmap.PAGESIZE
        size = round_up(nbytes + alignment, unit)
        self._pages = anonymous_pages(size + unit + 2 * mmap.PAGESIZE, shared)
        if unit == HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._start = round_up(base + mmap.PAGESIZE, unit)
        self._size = size
        room = np.frombuffer(self._pages, np.uint8, size, self._start - base)
        first = size - round_up(nbytes, alignment) if edge == "end" else 0
        self._watched = room[max(0, first - WATCHED) : first], room[first + nbytes : first + nbytes + WATCHED]
        self.bytes = room[first : first + nbytes]
        self.address = self._start + first
        self._around = around
        for part in self._watched:
            part[:] = around
        protect(self._start - mmap.PAGESIZE, mmap.PAGESIZE, FORBIDDEN)
        protect(self._start + size, mmap.PAGESIZE, FORBIDDEN)

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """All bytes as an array."""
        return self.bytes.view(dtype).reshape(shape)

    def fill(self) -> Self:
        """Makes every byte that of memory nobody has written: NaN in every float type."""
        self.bytes[:] = UNWRITTEN
        return self

    def lock(self) -> None:
        """Write protection: from now on a write is an invalid access."""
        protect(self._start, self._size, mmap.PROT_READ)

    def untouched_around(self) -> bool:
        """Whether the bytes directly in front and behind still are what they were."""
        return all(bool((part == self._around).all()) for part in self._watched)
