"""Memory for kernels that are not trusted: between forbidden pages, with bytes around it that nobody may change."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from burnish.runtime.buffers import ALIGNMENT, HUGE_PAGE, anonymous_pages, round_up

UNWRITTEN = 0xFF  # NaN in every float type
_AROUND_OUTPUTS = 0xA5  # what a kernel that goes astray does not happen to write, as it might write NaN
_CANARY = 4096  # bytes watched in front of the memory
_FORBIDDEN = 0  # PROT_NONE
_libc = ctypes.CDLL(None, use_errno=True)


class Fenced:
    """``nbytes`` bytes at a multiple of 64, as close to a forbidden page behind them as that allows.

    From 2 MB on they lie in huge pages, as the memory of compiled models does, so that times can be compared.
    ``bytes`` is the memory, ``address`` its first byte's. Around the memory that a kernel shall only read
    (``writable`` false) there is NaN, so that a read outside shows in its results.
    """

    def __init__(self, nbytes: int, writable: bool = True) -> None:
        """Raises OSError if the system refuses."""
        unit = HUGE_PAGE if nbytes >= HUGE_PAGE else mmap.PAGESIZE
        size = round_up(nbytes + ALIGNMENT, unit)
        self._pages = anonymous_pages(size + unit + 2 * mmap.PAGESIZE)
        if unit == HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._start = round_up(base + mmap.PAGESIZE, unit)
        self._size = size
        room = np.frombuffer(self._pages, np.uint8, size, self._start - base)
        first = size - round_up(nbytes, ALIGNMENT)
        self._front = room[max(0, first - _CANARY) : first]
        self._back = room[first + nbytes :]
        self.bytes = room[first : first + nbytes]
        self.address = self._start + first
        self._canary = _AROUND_OUTPUTS if writable else UNWRITTEN
        self._front[:] = self._canary
        self._back[:] = self._canary
        _protect(self._start - mmap.PAGESIZE, mmap.PAGESIZE, _FORBIDDEN)
        _protect(self._start + size, mmap.PAGESIZE, _FORBIDDEN)

    def fill(self) -> None:
        """Makes every byte that of memory nobody has written."""
        self.bytes[:] = UNWRITTEN

    def lock(self) -> None:
        """From now on a write is an invalid access."""
        _protect(self._start, self._size, mmap.PROT_READ)

    def untouched_around(self) -> bool:
        """Whether the bytes directly in front and behind still are what they were."""
        return bool((self._front == self._canary).all() and (self._back == self._canary).all())


def _protect(address: int, nbytes: int, allowed: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), allowed):
        code = ctypes.get_errno()
        raise OSError(code, "mprotect: the system refuses to protect memory")
