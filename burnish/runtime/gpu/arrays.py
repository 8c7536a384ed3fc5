"""Arrays in the memory of a GPU: what a call takes from and gives to others without copies (DLPack, CUDA arrays)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from burnish.errors import InputError
from burnish.runtime.buffers import address_of
from burnish.runtime.dlpack import CUDA, contiguous_strides, device_of, exported, tensor_of
from burnish.runtime.executable import Executable, TensorSpec
from burnish.runtime.gpu.driver import Gpu
from burnish.runtime.gpu.memory import DEFAULT_STREAM, UNORDERED, MemoryUse
from burnish.runtime.gpu.streams import named

DEVICE = 0  # the first GPU, which all of a process share


def is_on_gpu(value: Any) -> bool:
    """Whether a value is an array in the memory of a GPU, by what it says of itself. Raises InputError as device_of."""
    if type(value) in (np.ndarray, GpuArray):
        return type(value) is GpuArray
    if hasattr(value, "__dlpack_device__"):
        return device_of(value)[0] == CUDA
    return hasattr(value, "__cuda_array_interface__")


def holds_gpu_array(value: Any) -> bool:
    """Whether a value is an array in the memory of a GPU, or holds one: a tuple, list or dict."""
    if isinstance(value, Mapping):
        return any(map(holds_gpu_array, value.values()))
    if isinstance(value, (tuple, list)):
        return any(map(holds_gpu_array, value))
    return is_on_gpu(value)


class GpuArray:
    """An array in the memory of the first GPU, row-major; ``torch.from_dlpack`` and others view it without a copy.

    ``owner``: what keeps the memory, if it is not this array's own. What computes it may not have ended when a call
    returns it: who takes it over waits for that on the GPU (``__dlpack__``), :meth:`numpy` waits here.
    """

    def __init__(
        self, gpu: Gpu, shape: tuple[int, ...], dtype: np.dtype[Any], place: int | None = None, owner: Any = None
    ) -> None:
        self.gpu, self.shape, self.dtype, self._owner = gpu.home, shape, dtype, owner
        self.nbytes = prod(shape) * dtype.itemsize
        self.use = MemoryUse(captured=gpu.capturing)
        if place is None:
            place, size = gpu.pool.take(gpu, self.nbytes)
            weakref.finalize(self, gpu.pool.give, place, size, self.use)
        self.place = place

    def __repr__(self) -> str:
        return f"GpuArray({self.dtype}{list(self.shape)})"

    def numpy(self) -> np.ndarray:
        """A copy in this machine's memory."""
        gpu, found = self.gpu, np.empty(self.shape, self.dtype)
        with gpu.lock:
            gpu.enter()
            gpu.after(self.use.orders)
            gpu.download(address_of(found), self.place, self.nbytes)
            gpu.wait()
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array on a GPU cannot be viewed in this machine's memory; allowed: a copy")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """CUDA Array Interface (Numba's), version 3; waits for what computes the array. AttributeError for bfloat16,
        which it has not.
        """
        if self.dtype.kind not in "biufc":
            raise AttributeError(f"no CUDA array interface of {self.dtype}; allowed: __dlpack__")
        self.use.by_others(UNORDERED)
        self.gpu.enter()
        for order in self.use.orders:
            self.gpu.ask("cuEventSynchronize", order.event)
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.place, False), "strides": None, "version": 3,
            "stream": None,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, DEVICE

    def __dlpack__(self, *, stream: Any = None, **others: Any) -> Any:
        """DLPack capsule, for a stream that waits for what computes the array: None is the default one, -1 none."""
        del others
        handle = DEFAULT_STREAM if stream is None else named(int(stream))
        self.use.by_others(handle)
        if handle != UNORDERED:
            self.gpu.enter()
            for order in self.use.orders:
                if order.handle != handle:
                    self.gpu.ask("cuStreamWaitEvent", handle, order.event, 0)
        return exported(self.place, self.shape, self.dtype, (CUDA, DEVICE), self)


def viewed(gpu: Gpu, value: Any, followed: set[type]) -> GpuArray:
    """An array of somebody else; the GPU's stream waits for what computes it. Raises InputError for memory of another
    GPU, and for what is not contiguous.

    ``followed``: kinds of arrays whose library's stream of now is waited for, to which this one's is added: all that a
    library exports at a time is computed by what its current stream has been asked for.
    """
    if isinstance(value, GpuArray):
        gpu.after(value.use.orders)
        return value
    if not hasattr(value, "__dlpack_device__"):
        return _from_interface(gpu, value)
    number = device_of(value)[1]
    if number != DEVICE:
        raise InputError(f"array of GPU {number}, allowed: of the first one")
    stream = UNORDERED if type(value) in followed else gpu.stream or 1  # by which DLPack calls the default one
    place, shape, strides, dtype, capsule = tensor_of(value, stream)
    followed.add(type(value))
    return _whole(GpuArray(gpu, shape, dtype, place, capsule), strides)


def _from_interface(gpu: Gpu, value: Any) -> GpuArray:
    found = value.__cuda_array_interface__
    stream = found.get("stream")
    if stream is not None:
        gpu.follow(named(int(stream)))
    shape, dtype = tuple(found["shape"]), np.dtype(found["typestr"])
    strides = found.get("strides")
    elements = None if strides is None else tuple(s // dtype.itemsize for s in strides)
    return _whole(GpuArray(gpu, shape, dtype, int(found["data"][0]), value), elements)


def _whole(array: GpuArray, strides: tuple[int, ...] | None) -> GpuArray:
    usual = contiguous_strides(array.shape)
    if strides is not None and any(s != u for s, u, n in zip(strides, usual, array.shape, strict=True) if n > 1):
        raise InputError(f"array of a GPU with strides {list(strides)}, allowed: {list(usual)}; make it contiguous")
    return array


def checked(gpu: Gpu, what: str, spec: TensorSpec, dtype: np.dtype[Any], value: Any, followed: set[type]) -> GpuArray:
    """Array of exactly the ``dtype`` and shape of ``spec``. Raises InputError, naming ``what`` the value is."""
    try:
        array = viewed(gpu, value, followed)
    except InputError as error:
        raise InputError(f"{what} '{spec.name}': {error}") from error.__cause__
    if array.dtype != dtype or array.shape != spec.shape:
        found = f"{array.dtype}{list(array.shape)}"
        raise InputError(f"{what} '{spec.name}' is {found} on a GPU, allowed: {spec.dtype}{list(spec.shape)}")
    return array


def check_apart(known: Executable, inputs: Sequence[tuple[int, int]], outputs: Sequence[GpuArray]) -> None:
    """Raises InputError for an output that shares memory with an input or another output."""
    taken = [*inputs]
    for spec, array in zip(known.outputs, outputs, strict=True):
        if any(array.place < end + nbytes and end < array.place + array.nbytes for end, nbytes in taken):
            raise InputError(f"output '{spec.name}' shares memory with another array, allowed: its own memory")
        taken.append((array.place, array.nbytes))
