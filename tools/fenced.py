"""Fenced memory: buffers directly beside forbidden pages, where an access outside of them kills the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

FILL = 0xFF  # of memory that nobody has written yet: NaN in every float type
_FORBIDDEN = 0  # PROT_NONE
_libc = ctypes.CDLL(None, use_errno=True)


class Fenced:
    """Bytes shared with child processes, directly after a forbidden page (``edge`` start) or before one (end)."""

    def __init__(self, nbytes: int, edge: str) -> None:
        page = mmap.PAGESIZE
        size = -(-max(nbytes, 1) // page) * page
        self._pages = mmap.mmap(-1, size + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._room = np.frombuffer(self._pages, np.uint8, size, page)
        self._room[:] = FILL
        first = size - nbytes if edge == "end" else 0
        self._inside = slice(first, first + nbytes)
        self.bytes = self._room[self._inside]
        self.address = base + page + first
        for fence in (base, base + page + size):
            assert _libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), _FORBIDDEN) == 0

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """All bytes as an array."""
        return self.bytes.view(dtype).reshape(shape)

    def untouched_around(self) -> bool:
        """Whether the rest of the pages still holds what it held."""
        around = np.ones(self._room.size, bool)
        around[self._inside] = False
        return bool((self._room[around] == FILL).all())
