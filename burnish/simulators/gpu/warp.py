"""Warp-collective instructions of 32 threads, on a CPU: matrices from shared memory, products, shuffles.

Source: PTX ISA, "ldmatrix" and "Matrix Fragments for mma.m16n8k16 / k8 / k32": thread 4 g + t holds of the left operand
words t and t + 4 of the 32 bytes of rows g and g + 8, of the right one those of row g, of the sums elements 2 t and
2 t + 1 of rows g and g + 8.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from burnish.simulators.gpu.instrument import MATRICES, SHUFFLE

WARP = 32
_LANES = np.arange(WARP)
_G, _T = _LANES >> 2, _LANES & 3
_MULTIPLY_BYTES = 40  # of each thread: six words of operands and four elements of sums


def input_bytes(name: str) -> int:
    """Size of a thread's input, in bytes."""
    return 8 if name in (*MATRICES, SHUFFLE) else _MULTIPLY_BYTES


def together(name: str, inputs: Sequence[bytes]) -> list[bytes]:
    """Warp-collective instruction: the bytes returned to every thread, from those passed, by thread number."""
    if name in MATRICES:
        return _matrices(inputs, name.endswith("trans"))
    if name == SHUFFLE:
        value, step = np.frombuffer(b"".join(inputs), np.uint32).reshape(WARP, 2).T
        return [word.tobytes() for word in value[_LANES ^ step]]
    words = np.frombuffer(b"".join(inputs), np.uint32).reshape(WARP, 10)
    integers = name.endswith("s8")
    sums = words[:, 6:].view(np.int32 if integers else np.float32)
    left, right = np.empty((16, 8), np.uint32), np.empty((8, 8), np.uint32)
    for register in range(4):
        left[_G + 8 * (register & 1), _T + 4 * (register >> 1)] = words[:, register]
    for register in range(2):
        right[_G, _T + 4 * register] = words[:, 4 + register]
    a, b = numbers(name, left), numbers(name, right)
    product = a @ b.T
    tile = np.empty((16, 8), sums.dtype)
    places = [(_G + 8 * (i >> 1), 2 * _T + (i & 1)) for i in range(4)]
    for i, place in enumerate(places):
        tile[place] = sums[:, i]
    new = (tile + product).astype(sums.dtype)
    own = np.stack([new[place] for place in places], axis=1)
    return [row.tobytes() for row in own]


def numbers(name: str, words: np.ndarray) -> np.ndarray:
    """The elements of an operand in words of four bytes, as numbers that multiply exactly."""
    if name.endswith(".f16"):
        return words.view(np.float16).astype(np.float32)
    if name.endswith(".bf16"):
        return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if name.endswith(".tf32"):
        return (words & np.uint32(0xFFFFE000)).view(np.float32)
    return words.view(np.int8).astype(np.int32)


def _matrices(inputs: Sequence[bytes], trans: bool) -> list[bytes]:
    """``ldmatrix``: threads 8 m to 8 m + 7 say where the rows of matrix m begin, each of 16 bytes.

    Thread 4 g + t gets word t of row g; transposed, halves 2 t and 2 t + 1 of column g.
    """
    places = np.frombuffer(b"".join(inputs), np.int64)
    rows = np.stack([np.frombuffer(ctypes.string_at(int(at), 16), np.uint16) for at in places]).reshape(4, 8, 8)
    if trans:
        rows = rows.transpose(0, 2, 1)
    words = np.ascontiguousarray(rows).view(np.uint32)
    own = np.stack([words[m, _G, _T] for m in range(4)], axis=1)
    return [np.ascontiguousarray(row).tobytes() for row in own]
