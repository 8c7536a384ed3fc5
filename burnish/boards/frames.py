"""Frames between a host and a board's worker: a JSON header and raw bytes on a byte stream, never pickle.

frame    magic 4s | bytes of the header u32 | bytes of the payload u64 | header | payload | tag 32s, where authenticated
header   a JSON object
tag      HMAC-SHA256 over the direction, the number of the frame and its bytes

The standard library alone: boards have no NumPy, without which the line of :mod:`burnish.workers` cannot be.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import struct
import time

HEAD = struct.Struct("<4sIQ")
MAGIC = b"bnd1"
MOST_HEADER = 1 << 20  # bytes
_PIECE = 1 << 20  # bytes of one read or write
_TAG = hashlib.sha256().digest_size


class FrameError(Exception):
    """Bytes that are no frame, a frame larger than allowed, or one whose tag is wrong."""


class TagError(FrameError):
    """A frame that was not made with the same key."""


class Silence(Exception):  # noqa: N818 - an event
    """Nothing has come, or nothing could be sent, for as long as that was waited for."""


class Frames:
    """Both directions of one stream of frames. Every call raises EOFError where the other end has gone."""

    def __init__(self, reader: int, writer: int) -> None:
        """``reader``, ``writer``: file descriptors, which may be the same; they are made non-blocking."""
        self.reader, self.writer = reader, writer
        for number in {reader, writer}:
            os.set_blocking(number, False)
        self._come = bytearray()
        self._keys: tuple[bytes, bytes] | None = None
        self._counts = [0, 0]  # frames sent and received with tags

    def authenticate(self, key: bytes, sending: bytes, receiving: bytes) -> None:
        """Authentication of frames: from now on each carries a tag. ``sending``, ``receiving``: names of the
        directions, which differ, so that no frame can be sent back as an answer.
        """
        self._keys = hmac.digest(key, sending, "sha256"), hmac.digest(key, receiving, "sha256")

    def send(self, header: dict, payload: bytes | bytearray | memoryview = b"", seconds: float | None = None) -> None:
        """Sends a frame. Raises Silence where no byte goes out for ``seconds``."""
        text = json.dumps(header).encode()
        payload = memoryview(payload).cast("B")
        parts: list[bytes | memoryview] = [HEAD.pack(MAGIC, len(text), len(payload)) + text, payload]
        if self._keys is not None:
            parts.append(self._tag(0, parts))
        for part in parts:
            self.write(memoryview(part), seconds)

    def receive(self, seconds: float | None = None, most: int = 0, whole: float | None = None) -> tuple[dict, bytes]:
        """The next frame: header and payload. What has come of it stays for the next call where this one fails.

        Raises Silence where no byte comes for so many ``seconds``, or not all of it within ``whole``; FrameError
        for what is no frame or has a payload of more than ``most`` bytes: then the stream is of no more use.
        """
        end = None if whole is None else time.monotonic() + whole
        head = self._need(HEAD.size, seconds, end)
        magic, text, payload = HEAD.unpack(head[: HEAD.size])
        if magic != MAGIC or text > MOST_HEADER:
            raise FrameError(f"bytes that are no frame: {bytes(head[:16])!r}")
        if payload > most:
            raise FrameError(f"a frame of {payload} bytes; allowed: {most}")
        data = HEAD.size + text
        body = data + payload
        total = body + (_TAG if self._keys is not None else 0)
        frame = self._need(total, seconds, end)
        if self._keys is not None and not hmac.compare_digest(
            self._tag(1, [memoryview(frame)[:body]]), bytes(frame[body:total])
        ):
            raise TagError("a frame whose tag is wrong: another key, or altered on its way")
        try:
            header = json.loads(bytes(frame[HEAD.size : data]))
        except ValueError as error:
            raise FrameError(f"a frame whose header is no JSON: {error}") from None
        if not isinstance(header, dict):
            raise FrameError("a frame whose header is no JSON object")
        found = bytes(frame[data:body])
        del self._come[:total]
        return header, found

    def forget(self) -> None:
        """Forgets the descriptors, which are somebody else's from now on."""
        self.reader = self.writer = -1

    def close(self) -> None:
        """Closes the descriptors."""
        numbers = {self.reader, self.writer} - {-1}
        self.forget()
        for number in numbers:
            os.close(number)

    def _tag(self, way: int, parts: list) -> bytes:
        assert self._keys is not None
        made = hmac.new(self._keys[way], struct.pack("<Q", self._counts[way]), "sha256")
        self._counts[way] += 1
        for part in parts:
            made.update(part)
        return made.digest()

    def _need(self, count: int, seconds: float | None, end: float | None = None) -> bytearray:
        """Receive buffer of at least ``count`` bytes, before the time ``end``."""
        while len(self._come) < count:
            left = None if end is None else max(0.0, end - time.monotonic())
            _wait(self.reader, select.POLLIN, min((s for s in (seconds, left) if s is not None), default=None))
            try:
                piece = os.read(self.reader, max(1 << 16, min(_PIECE, count - len(self._come))))
            except BlockingIOError:
                continue
            except OSError as error:
                raise EOFError(f"the other end of the line has gone ({error})") from None
            if not piece:
                inside = f", {len(self._come)} bytes into a frame" if self._come else ""
                raise EOFError(f"the other end of the line has gone{inside}")
            self._come += piece
        return self._come

    def write(self, data: bytes | memoryview, seconds: float | None = None) -> None:
        """Sends bytes as they are. Raises as :meth:`send`."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.writer, rest[:_PIECE]) :]
            except BlockingIOError:
                _wait(self.writer, select.POLLOUT, seconds)
            except OSError as error:
                raise EOFError(f"the other end of the line has gone ({error})") from None


def gone(reader: int) -> bool:
    """Whether the other end of a descriptor has gone."""
    poll = select.poll()
    poll.register(reader, getattr(select, "POLLRDHUP", 0))
    return any(event & (select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)) for _, event in poll.poll(0))


def _wait(number: int, event: int, seconds: float | None) -> None:
    """Until a descriptor can be read or written, or its other end has gone. Raises Silence."""
    if number < 0:
        raise EOFError("the line is closed")
    poll = select.poll()
    poll.register(number, event)
    if not poll.poll(None if seconds is None else max(0.0, seconds) * 1000):
        raise Silence(f"nothing for {seconds:g} s")
