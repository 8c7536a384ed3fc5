"""DLPack import without copies, for any CPU tensor including the dtypes that numpy.from_dlpack refuses (bfloat16)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from burnish.errors import InputError
from burnish.runtime.buffers import numpy_dtype

_CPU_DEVICES = (1, 3)  # kDLCPU, and kDLCUDAHost: pinned memory, which the CPU reads like any other
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}  # DLDataTypeCode; 6 is bool
_NAME = b"dltensor"


class _DLTensor(ctypes.Structure):
    """``DLTensor`` of dlpack.h, with which a ``DLManagedTensor`` begins."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def from_dlpack(value: Any) -> np.ndarray:
    """A view of a tensor that has ``__dlpack__``; the tensor stays alive as long as the view.

    A view of PyTorch's that is negated only when it is read (``torch._neg_view``) is copied: the export would give the
    numbers as they lie in memory, with the wrong sign.
    Raises InputError if it is not in CPU memory, has a dtype that NumPy cannot hold, or refuses the export itself.
    """
    device = value.__dlpack_device__()
    if device[0] not in _CPU_DEVICES:
        raise InputError(f"tensor on DLPack device {tuple(map(int, device))}, allowed: CPU memory; move it there first")
    if getattr(value, "is_neg", bool)():
        value = value.resolve_neg()
    try:
        capsule = value.__dlpack__()
    except (RuntimeError, BufferError, TypeError, ValueError) as error:
        raise InputError(f"{type(value).__name__}.__dlpack__ failed: {error}") from error
    tensor = _DLTensor.from_address(_get_pointer(capsule, _NAME))
    dtype = _dtype(tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape:
        return np.empty(shape, dtype)
    if tensor.strides:
        strides = tuple(tensor.strides[: tensor.ndim])
    else:
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    reach = [(extent - 1) * stride * dtype.itemsize for extent, stride in zip(shape, strides, strict=True)]
    before = -sum(r for r in reach if r < 0)  # bytes in use below and
    after = sum(r for r in reach if r > 0) + dtype.itemsize  # from the address of element 0 on
    memory = (ctypes.c_char * (before + after)).from_address(tensor.data + tensor.byte_offset - before)
    # The capsule is never renamed to "used_dltensor", so its destructor releases the tensor when the last view dies.
    memory.capsule = capsule
    return np.ndarray(shape, dtype, memory, before, tuple(s * dtype.itemsize for s in strides))


def _dtype(tensor: _DLTensor) -> np.dtype:
    name = "bool" if tensor.code == 6 else f"{_KINDS.get(tensor.code, '?')}{tensor.bits}"
    try:
        if tensor.lanes == 1 and tensor.bits >= 8:
            return numpy_dtype(name)
    except TypeError:
        pass
    found = f"{tensor.code} with {tensor.bits} bits and {tensor.lanes} lanes"
    raise InputError(f"tensor of DLPack type {found}, allowed: bool, integers, floating point and complex numbers")
