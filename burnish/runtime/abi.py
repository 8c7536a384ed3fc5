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
        ("entropy", ctypes.c_int64),
    )


class SegmentPlan(ctypes.Structure):
    """The calls of a segment, and the addresses that they need from a call of the model (``%Plan`` of entry.py)."""

    _fields_ = (
        ("calls", ctypes.c_void_p),
        ("call_count", ctypes.c_int64),
        ("patches", ctypes.c_void_p),
        ("patch_count", ctypes.c_int64),
        ("clock", ctypes.c_void_p),
    )


class PoolStruct(ctypes.Structure):
    """Shared state of a thread pool (``%Pool`` of pool_ir.py)."""

    _fields_ = (
        ("generation", ctypes.c_int32),
        ("_line1", ctypes.c_char * 124),
        ("sleepers", ctypes.c_int32),
        ("_line2", ctypes.c_char * 124),
        ("busy", ctypes.c_int32),
        ("_line3", ctypes.c_char * 124),
        ("done", ctypes.c_int32),
        ("waiting", ctypes.c_int32),
        ("_line4", ctypes.c_char * 120),
        ("threads", ctypes.c_int64),
        ("spin", ctypes.c_int64),
        ("syscall", ctypes.c_void_p),
        ("caller", ctypes.c_int32),
        ("_line5", ctypes.c_char * 100),
    )


class PartStruct(ctypes.Structure):
    """Per-thread state of a pool (``%Part`` of pool_ir.py)."""

    _fields_ = (
        ("chunks_left", ctypes.c_int64),
        ("body", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("quotient", ctypes.c_int64),
        ("remainder", ctypes.c_int32),
        ("chunks", ctypes.c_int32),
        ("thread", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
        ("_line", ctypes.c_char * 72),
    )
