"""Calling convention between Python and native code: the structures that both lay out, and strides in memory."""

from __future__ import annotations

import ctypes

SCRATCH_STRIDE = 4096  # bytes: a multiple of it is each thread's scratch, so that no two threads touch one page


class Runtime(ctypes.Structure):
    """``struct Runtime``, the second argument of every kernel (``%Runtime`` of entry.py)."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_stride", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("profile", ctypes.c_void_p),
    )


class Plan(ctypes.Structure):
    """The calls of a segment, and the addresses that they need from a call of the model (``%Plan`` of entry.py)."""

    _fields_ = (
        ("calls", ctypes.c_void_p),
        ("call_count", ctypes.c_int64),
        ("patches", ctypes.c_void_p),
        ("patch_count", ctypes.c_int64),
        ("clock", ctypes.c_void_p),
    )
