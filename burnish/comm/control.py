"""The line between a supervisor and its worker process: plain values, framed as all messages are."""

import contextlib
import socket
from typing import Any

import numpy as np

from burnish.comm.frames import FrameReader, head, payload
from burnish.comm.messages import Message
from burnish.comm.plain import decode, encode
from burnish.comm.protocol import Array


def send_value(connection: socket.socket, value: Any, where: str) -> None:
    """Sends a plain value; the socket blocks, within its own time limit."""
    text, arrays = encode(value, where)
    first = np.frombuffer(text.encode(), np.uint8)
    for message in [Message(0, len(arrays), "value", first), *(Message(0, 0, "array", array) for array in arrays)]:
        connection.sendall(head(message))
        connection.sendall(payload(message.array))


class ValueReader:
    """Puts together the plain values that arrive on a socket."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.connection = connection
        self._reader = FrameReader(rank)
        self._text: str | None = None
        self._missing = 0
        self._arrays: list[Array] = []

    def read(self) -> list[Any] | None:
        """The values completed by what can be read now; None at the end of the stream."""
        values: list[Any] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    count = self.connection.recv_into(self._reader.room())
                except ConnectionError:
                    count = 0
                if count == 0:
                    return values or None
                for message in self._reader.take(count):
                    self._collect(message, values)
                if values:
                    return values
        return values

    def _collect(self, message: Message, values: list[Any]) -> None:
        if self._text is None:
            self._text, self._missing, self._arrays = message.array.tobytes().decode(), message.tag, []
        else:
            self._arrays.append(message.array)
        if len(self._arrays) == self._missing:
            values.append(decode(self._text, self._arrays))
            self._text = None
