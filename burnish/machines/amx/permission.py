"""Permission for AMX: ARCH_REQ_XCOMP_PERM, which a process must ask of Linux before it may use tile data."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


@cache
def allow_matrix_tiles() -> bool:
    """Asks Linux for the state of x86 matrix tiles (AMX), for this process and its threads; False if it is refused.

    Without this, the first tile instruction kills the process.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    request = (_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    return bool(libc.syscall(*(ctypes.c_long(word) for word in request)) == 0)
