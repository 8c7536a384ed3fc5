"""Tensor maps: what the driver makes of a tensor's address and shape for copies of boxes of it (TMA).

The driver's function is called by its address: bindings give it memory for a map that is at no multiple of 64 bytes.

Source: CUDA driver API, "Tensor Map Object Management" (cuTensorMapEncodeTiled).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from burnish.errors import TargetError
from burnish.loops.expr import ITEM_BYTES
from burnish.machines.nvptx.tensor_copies import MAP_ALIGNMENT, MAP_BYTES, TensorMap
from burnish.runtime.buffers import address_of

KEPT = 4096  # maps, by what they say and where the tensor is
SINCE = 12000  # the version of CUDA that knows them
TYPES = {"uint8": 0, "int8": 0, "float16": 6, "float32": 7, "bfloat16": 9}  # CU_TENSOR_MAP_DATA_TYPE_…
NO_INTERLEAVE, SWIZZLE_128B, PROMOTION_256B, ZEROS = 0, 3, 3, 0

Encode = Callable[..., int]
_WORD, _LONG = ctypes.c_uint32, ctypes.c_uint64
_LONGS, _WORDS = ctypes.POINTER(_LONG), ctypes.POINTER(_WORD)
ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    _WORD,
    ctypes.c_void_p,
    _LONGS,
    _LONGS,
    _WORDS,
    _WORDS,
    *[ctypes.c_int] * 4,
)


class TensorMaps:
    """The tensor maps of a GPU, each encoded once, for several threads. ``ask`` calls the driver's functions."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._encode: Encode | None = None
        self._lock, self._known = threading.Lock(), dict[tuple[TensorMap, int], np.ndarray]()

    def __call__(self, known: TensorMap, place: int) -> np.ndarray:
        """The map of a tensor at ``place``: uint8[128], which a launch copies; whoever launches keeps it until then.

        Raises TargetError for a driver that does not know tensor maps, and what it refuses.
        """
        key = known, place
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._encoded(known, place)
                while len(self._known) >= KEPT:
                    del self._known[next(iter(self._known))]
                self._known[key] = found
            return found

    def _encoded(self, known: TensorMap, place: int) -> np.ndarray:
        if self._encode is None:
            address, *_ = self._ask("cuGetProcAddress", b"cuTensorMapEncodeTiled", SINCE, 0)
            if not address:
                raise TargetError("this driver has no cuTensorMapEncodeTiled; allowed: drivers of CUDA 12 or later")
            self._encode = ENCODE(int(address))
        room = np.zeros(MAP_BYTES + MAP_ALIGNMENT, np.uint8)
        begin = -address_of(room) % MAP_ALIGNMENT
        made = room[begin : begin + MAP_BYTES]
        rank, size = len(known.shape), ITEM_BYTES[known.dtype]
        shape, box = known.shape[::-1], known.box[::-1]
        strides = [size * int(np.prod(shape[: d + 1])) for d in range(rank - 1)]
        code = self._encode(
            address_of(made), TYPES[known.dtype], rank, place + known.offset, (_LONG * rank)(*shape),
            (_LONG * max(rank - 1, 1))(*strides), (_WORD * rank)(*box), (_WORD * rank)(*[1] * rank),
            NO_INTERLEAVE, SWIZZLE_128B, PROMOTION_256B, ZEROS,
        )  # fmt: skip
        if code:
            raise TargetError(f"cuTensorMapEncodeTiled: error {code} for {known} at {place:#x}")
        return made
