"""Memory pages from the system, and what may be done with them; standard library alone, for boards load this, too."""

from __future__ import annotations

import ctypes
import mmap

HUGE_PAGE = 2 << 20  # bytes: from this size on, memory is aligned for and advised to use huge pages
FORBIDDEN = 0  # PROT_NONE
_libc = ctypes.CDLL(None, use_errno=True)


def anonymous_pages(nbytes: int, shared: bool = False) -> mmap.mmap:
    """Zeroed pages of this process alone, of which a forked child gets its own copy; or ``shared`` with it."""
    kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    return mmap.mmap(-1, nbytes, flags=kind | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def protect(address: int, nbytes: int, allowed: int) -> None:
    """Memory protection (mprotect): from now on only what ``allowed`` says may be done with whole pages. Raises OSError
    if the system refuses.
    """
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), allowed):
        code = ctypes.get_errno()
        raise OSError(code, "mprotect: the system refuses to protect memory")
