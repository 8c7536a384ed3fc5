"""Frames: how messages lie on a byte stream. A fixed header, words, shape, then the array's bytes; never pickle.

header   magic 4s | dtype u8 | dimensions u8 | length of the words u16 | channel i64 | tag i64 | bytes u64
words    what the message belongs to, UTF-8
shape    dimensions × i64
bytes    the array, C order, little endian; or, after another magic, where it lies in the sender's room, i64
"""

import struct

import numpy as np

from burnish.comm.messages import ArrayMessage
from burnish.comm.protocol import DTYPES, Array
from burnish.errors import WorkerError

HEADER = struct.Struct("<4sBBHqqQ")
_MAGIC, _PLACED = b"bnc1", b"bnp1"
_PLACE = struct.Struct("<q")
_LARGEST = 1 << 40  # bytes of one array
_WORDS = 4000  # bytes; longer words are cut


def head(message: ArrayMessage) -> bytes:
    """The frame up to the array's bytes."""
    array = message.array
    words = message.what.encode()[:_WORDS]
    magic = _MAGIC if message.place is None else _PLACED
    fixed = HEADER.pack(
        magic, DTYPES.index(array.dtype), array.ndim, len(words), message.channel, message.tag, array.nbytes
    )
    place = b"" if message.place is None else _PLACE.pack(message.place)
    return b"".join((fixed, words, struct.pack(f"<{array.ndim}q", *array.shape), place))


def payload(array: Array) -> memoryview:
    """The array's own bytes, not a copy."""
    return memoryview(array.reshape(-1).view(np.uint8).data)


def begin(buffer: memoryview, source: int) -> tuple[ArrayMessage, int] | None:
    """The message at the beginning of a buffer, its array not filled, and the length of its frame up to the array.

    None if not all of that is in the buffer. Raises WorkerError for bytes that are no frame.
    """
    if len(buffer) < HEADER.size:
        return None
    magic, dtype, dimensions, words, channel, tag, nbytes = HEADER.unpack_from(buffer)
    if magic not in (_MAGIC, _PLACED) or dtype >= len(DTYPES) or words > _WORDS or dimensions > 32 or nbytes > _LARGEST:
        raise WorkerError(source, f"worker {source} sent bytes that are no frame: {magic!r}…")
    shape_at = HEADER.size + words
    length = shape_at + 8 * dimensions + (_PLACE.size if magic == _PLACED else 0)
    if len(buffer) < length:
        return None
    what = bytes(buffer[HEADER.size : shape_at]).decode(errors="replace")
    shape = struct.unpack_from(f"<{dimensions}q", buffer, shape_at)
    place = _PLACE.unpack_from(buffer, length - _PLACE.size)[0] if magic == _PLACED else None
    expected = DTYPES[dtype].itemsize
    for extent in shape:
        expected *= extent
    if min(shape, default=0) < 0 or expected != nbytes:
        raise WorkerError(source, f"worker {source} sent {nbytes} bytes for {DTYPES[dtype]} {shape}")
    return ArrayMessage(channel, tag, what, np.empty(shape, DTYPES[dtype]), place), length


class FrameReader:
    """Turns bytes into messages as they arrive; the bytes of a large array are received where they will stay."""

    def __init__(self, source: int) -> None:
        self.source = source
        self._buffer = bytearray(1 << 16)
        self._used = 0
        self._message: ArrayMessage | None = None
        self._rest = memoryview(b"")  # of the message's array, still to come

    def room(self) -> memoryview:
        """Buffer for the next bytes."""
        return self._rest if self._message else memoryview(self._buffer)[self._used :]

    def take(self, count: int) -> list[ArrayMessage]:
        """The messages that `count` more bytes have completed. Raises WorkerError for bytes that are no frame."""
        if self._message is not None:
            self._rest = self._rest[count:]
            return [] if self._rest else [self._complete()]
        self._used += count
        done: list[ArrayMessage] = []
        at = 0
        while (length := self._begin(at)) is not None:
            at += length
            present = min(len(self._rest), self._used - at)
            self._rest[:present] = self._buffer[at : at + present]
            self._rest = self._rest[present:]
            at += present
            if self._rest:
                break
            done.append(self._complete())
        self._buffer[: self._used - at] = self._buffer[at : self._used]
        self._used -= at
        return done

    def _complete(self) -> ArrayMessage:
        message = self._message
        assert message is not None
        self._message = None
        return message

    def _begin(self, at: int) -> int | None:
        """Starts on the frame at a place of the buffer; its length up to the array, None if not all of that is here."""
        begun = begin(memoryview(self._buffer)[at : self._used], self.source)
        if begun is None:
            return None
        self._message, length = begun
        self._rest = payload(self._message.array) if self._message.place is None else memoryview(bytearray())
        return length
