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


class QuickStruct(ctypes.Structure):
    """A quick call: what it checks, enters and runs (``%Quick`` of entry.py)."""

    _fields_ = (
        ("plan", ctypes.c_void_p),
        ("io", ctypes.c_void_p),
        ("runtime", ctypes.c_void_p),
        ("array_type", ctypes.c_void_p),
        ("reads", ctypes.c_int64),
        ("writes", ctypes.c_int64),
        ("arguments", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("value_count", ctypes.c_int64),
        ("apart", ctypes.c_int64),
    )


class ArgumentStruct(ctypes.Structure):
    """Type that an array of a quick call must have (``%Argument`` of entry.py)."""

    _fields_ = (
        ("dtype", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("nbytes", ctypes.c_int64),
        ("flags", ctypes.c_int64),
    )


class ArrayStruct(ctypes.Structure):
    """Array object of NumPy, up to its flags, in CPython with a lock (``%Array`` of entry.py)."""

    _fields_ = (
        ("_references", ctypes.c_int64),
        ("type", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("_strides", ctypes.c_void_p),
        ("_base", ctypes.c_void_p),
        ("dtype", ctypes.c_void_p),
        ("flags", ctypes.c_int32),
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
        ("pinned", ctypes.c_void_p),
        ("_line5", ctypes.c_char * 88),
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
