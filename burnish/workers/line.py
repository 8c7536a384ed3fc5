"""Line between an owner and its worker: plain values as messages on a pair of sockets that has no address.

message  magic 4s | bytes of the array table u32 | bytes of the text u64 | table | text | arrays
table    JSON: [dtype, shape] of every array
text     the value (:mod:`burnish.workers.plain`)
arrays   C order, one after the other
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from burnish.workers.plain import Array, decode, dtype_called, encode

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"bnw1"
_LARGEST = 1 << 32  # bytes of a text
Allocate = Callable[[int], Array]  # uint8 memory of so many bytes


def ordinary(nbytes: int) -> Array:
    """NumPy's own memory."""
    return np.empty(nbytes, np.uint8)


class MessageLine:
    """One end of a line. Every call raises OSError if the other end has gone or stands still, EOFError at the end."""

    def __init__(self, end: socket.socket, stall: float | None, allocate: Allocate = ordinary) -> None:
        """``stall``: seconds that a message may stand still (None: for ever). ``allocate``: memory for arrays that
        arrive.
        """
        end.settimeout(stall)
        self._end = end
        self._allocate = allocate

    def fileno(self) -> int:
        """The number by which the operating system waits for it."""
        return self._end.fileno()

    def close(self) -> None:
        """Closes this end: the other is at its end then."""
        self._end.close()

    def send(self, value: Any, where: str) -> None:
        """Sends a value. Raises ParameterError, naming `where`, for one that is not plain; then nothing is sent."""
        text, arrays = encode(value, where)
        table = json.dumps([[array.dtype.name, array.shape] for array in arrays]).encode()
        words = text.encode()
        self._end.sendall(_HEAD.pack(_MAGIC, len(table), len(words)) + table + words)
        for array in arrays:
            if array.nbytes:
                self._end.sendall(memoryview(array.reshape(-1).view(np.uint8).data))

    def receive(self) -> Any:
        """The next value. Raises ValueError, LookupError, TypeError or AttributeError for bytes that are no message."""
        return decode(*self.receive_encoded())

    def receive_encoded(self) -> tuple[str, list[Array]]:
        """The next value, not yet decoded."""
        head = self._read(np.empty(_HEAD.size, np.uint8))
        magic, table_bytes, text_bytes = _HEAD.unpack(head.tobytes())
        if magic != _MAGIC or text_bytes > _LARGEST:
            raise ValueError(f"bytes that are no message: {magic!r}")
        table = json.loads(self._read(np.empty(table_bytes, np.uint8)).tobytes())
        text = self._read(np.empty(text_bytes, np.uint8)).tobytes().decode()
        arrays = []
        for name, shape in table:
            dtype = dtype_called(name)
            memory = self._read(self._allocate(dtype.itemsize * math.prod(shape)))
            arrays.append(memory.view(dtype).reshape(shape))
        return text, arrays

    def _read(self, memory: Array) -> Array:
        """The memory, filled."""
        rest = memory.data
        while rest:
            count = self._end.recv_into(rest)
            if count == 0:
                raise EOFError("the other end of the line has gone")
            rest = rest[count:]
        return memory
