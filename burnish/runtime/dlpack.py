"""DLPack without copies: import of any CPU tensor, also of the dtypes that numpy.from_dlpack refuses (bfloat16); what a
tensor of another device is, and export of one.

Source: dlpack.h and the Python specification of DLPack (names of capsules, who calls the deleter).
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from burnish.errors import InputError
from burnish.runtime.buffers import address_of, numpy_dtype

_CPU_DEVICES = (1, 3)  # kDLCPU, and kDLCUDAHost: pinned memory, which the CPU reads like any other
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}  # DLDataTypeCode; 6 is bool
_NAME = b"dltensor"
CUDA = 2  # kDLCUDA
CPU = (1, 0)  # kDLCPU and its number


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
    device = device_of(value)
    if device[0] not in _CPU_DEVICES:
        raise InputError(f"tensor on DLPack device {device}, allowed: CPU memory; move it there first")
    place, shape, strides, dtype, capsule = tensor_of(value)
    if 0 in shape:
        return np.empty(shape, dtype)
    reach = [(extent - 1) * stride * dtype.itemsize for extent, stride in zip(shape, strides, strict=True)]
    before = -sum(r for r in reach if r < 0)  # bytes in use below and
    after = sum(r for r in reach if r > 0) + dtype.itemsize  # from the address of element 0 on
    memory: Any = (ctypes.c_char * (before + after)).from_address(place - before)
    # The capsule is never renamed to "used_dltensor", so its destructor releases the tensor when the last view dies.
    memory.capsule = capsule
    return np.ndarray(shape, dtype, memory, before, tuple(s * dtype.itemsize for s in strides))


def device_of(value: Any) -> tuple[int, int]:
    """Kind and number of the device that a tensor is on. Raises InputError for what is on none, or no tensor."""
    try:
        kind, number = value.__dlpack_device__()
    except (AttributeError, RuntimeError, BufferError, TypeError, ValueError) as error:
        raise InputError(f"{type(value).__name__} is no tensor that DLPack can share: {error}") from error
    return int(kind), int(number)


def tensor_of(
    value: Any, stream: int | None = None
) -> tuple[int, tuple[int, ...], tuple[int, ...], np.dtype[Any], Any]:
    """DLPack view of a tensor on any device: address, shape, strides in elements, dtype, and the capsule that keeps it
    alive.

    ``stream``: of the device, which waits for what computes it. Raises InputError as :func:`from_dlpack`.
    """
    if getattr(value, "is_neg", bool)():
        value = value.resolve_neg()
    try:
        capsule = value.__dlpack__() if stream is None else value.__dlpack__(stream=stream)
    except (RuntimeError, BufferError, TypeError, ValueError) as error:
        raise InputError(f"{type(value).__name__}.__dlpack__ failed: {error}") from error
    tensor = _DLTensor.from_address(_get_pointer(capsule, _NAME))
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
    return (tensor.data or 0) + tensor.byte_offset, shape, strides, _dtype(tensor), capsule


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a row-major array, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _dtype(tensor: _DLTensor) -> np.dtype:
    name = "bool" if tensor.code == 6 else f"{_KINDS.get(tensor.code, '?')}{tensor.bits}"
    try:
        if tensor.lanes == 1 and tensor.bits >= 8:
            return numpy_dtype(name)
    except TypeError:
        pass
    found = f"{tensor.code} with {tensor.bits} bits and {tensor.lanes} lanes"
    raise InputError(f"tensor of DLPack type {found}, allowed: bool, integers, floating point and complex numbers")


# --- export -----------------------------------------------------------------------------------------------------------


class _DLManagedTensor(ctypes.Structure):
    """``DLManagedTensor`` of dlpack.h."""

    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
# Of a capsule that is being destroyed, to which no reference may be made any more.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_exported: dict[int, tuple[Any, ...]] = {}  # by the address of what others hold: all that it refers to


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(managed: int) -> None:
    """A consumer is done with a tensor."""
    _exported.pop(managed, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    """A capsule goes; nobody has taken its tensor if it has its first name still."""
    if _is_valid(capsule, _NAME):
        _exported.pop(_pointer_in(capsule, _NAME), None)


def exported_array(array: np.ndarray, **asked: Any) -> Any:
    """DLPack export, as ``array.__dlpack__(**asked)``, also of bfloat16, which NumPy does not export."""
    if array.dtype.kind != "V":
        return array.__dlpack__(**asked)
    if asked.get("dl_device") not in (None, CPU):
        raise BufferError(f"array in CPU memory, found device {asked['dl_device']}; allowed: {CPU}")
    if asked.get("copy"):
        array = array.copy()
    strides = tuple(step // array.itemsize for step in array.strides)
    return exported(address_of(array), array.shape, array.dtype, CPU, array, strides)


def exported(
    place: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: tuple[int, int],
    owner: Any,
    strides: tuple[int, ...] | None = None,
) -> Any:
    """A capsule of a tensor at an address of a device, which keeps ``owner`` as long as somebody has it; row-major, if
    ``strides`` (in elements) do not say otherwise.
    """
    codes = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
    code = codes.get(dtype.kind, 4 if dtype.name == "bfloat16" else None)
    if code is None:
        raise BufferError(f"array of {dtype}, which DLPack has not")
    extents, steps = (
        (ctypes.c_int64 * len(shape))(*values) for values in (shape, strides or contiguous_strides(shape))
    )
    tensor = _DLTensor(place, *device, len(shape), code, dtype.itemsize * 8, 1, extents, steps, 0)
    managed = _DLManagedTensor(tensor, None, ctypes.cast(_delete, ctypes.c_void_p))
    address = ctypes.addressof(managed)
    _exported[address] = (managed, extents, steps, owner)
    return _new_capsule(address, _NAME, ctypes.cast(_destroy, ctypes.c_void_p))
