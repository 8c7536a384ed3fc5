"""Kernel permission for CPU state: asked for before a process may use matrix tiles."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

_ARCH_PRCTL, _REQUEST_FEATURE, _TILE_DATA = 158, 0x1023, 18


@cache
def allow_matrix_tiles() -> bool:
    """Asks Linux for the state of x86 matrix tiles (AMX), for this process and its threads; False if it is refused.

    Without this, the first tile instruction kills the process.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(
        libc.syscall(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_REQUEST_FEATURE), ctypes.c_long(_TILE_DATA)) == 0
    )
