"""UBJSON, draft 12, as XGBoost writes it: reading within bounds, and writing. Numbers are big-endian."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from burnish.errors import DataError

DEEPEST = 32  # levels of arrays and objects; a model of XGBoost has nine
_NUMBERS = {b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8"}
_MARKERS = {np.dtype(kind): marker for marker, kind in _NUMBERS.items()}
_CONSTANTS = {b"T": True, b"F": False, b"Z": None}


def loads_ubjson(data: bytes, source: str = "model") -> dict[str, Any]:
    """The object that the bytes hold; arrays of one kind of number become NumPy arrays.

    Raises DataError, naming `source` and the byte, for what is truncated, no UBJSON, or nested too deeply; a claim of
    more elements than there are bytes is refused before memory is taken for it.
    """
    reader = _Reader(data, source)
    document = reader.value(reader.take(1), 0)
    if not isinstance(document, dict):
        raise DataError(f"{source} holds a UBJSON {type(document).__name__}, allowed: an object")
    if reader.place != len(data):
        raise DataError(f"{source}: byte {reader.place}: {len(data) - reader.place} bytes after the end, allowed: none")
    return document


class _Reader:
    """A place in the bytes, and what begins there."""

    def __init__(self, data: bytes, source: str) -> None:
        self._data, self._source, self.place = data, source, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= len(self._data) - self.place:
            left = len(self._data) - self.place
            raise self.wrong(f"{count} bytes are to follow, {left} do: the file is truncated or damaged")
        self.place += count
        return self._data[self.place - count : self.place]

    def wrong(self, what: str) -> DataError:
        """The error for the present place."""
        return DataError(f"{self._source}: byte {self.place}: {what}")

    def number(self, marker: bytes) -> int | float:
        kind = _NUMBERS.get(marker)
        if kind is None:
            raise self.wrong(f"marker {marker!r} is none of a number")
        found: int | float = np.frombuffer(self.take(np.dtype(kind).itemsize), kind)[0].item()
        return found

    def length(self) -> int:
        found = self.number(self.take(1))
        if not isinstance(found, int) or found < 0:
            raise self.wrong(f"a length is {found}")
        return found

    def text(self) -> str:
        try:
            return self.take(self.length()).decode()
        except UnicodeDecodeError:
            raise self.wrong("text is not UTF-8") from None

    def value(self, marker: bytes, depth: int) -> Any:
        """Value of any UBJSON type, from behind its marker. Raises DataError, also for more than DEEPEST levels."""
        if depth > DEEPEST:
            raise self.wrong(f"more than {DEEPEST} levels of arrays and objects")
        if marker == b"{":
            return self.mapping(depth)
        if marker == b"[":
            return self.array(depth)
        if marker == b"S":
            return self.text()
        if marker == b"C":
            return self.take(1).decode("latin-1")
        return _CONSTANTS[marker] if marker in _CONSTANTS else self.number(marker)

    def mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._data[self.place : self.place + 1] != b"}":
            key = self.text()
            if key in found:
                raise self.wrong(f"the name {key!r} is there twice")
            found[key] = self.value(self.take(1), depth + 1)
        self.place += 1
        return found

    def array(self, depth: int) -> Any:
        kind = None
        if self._data[self.place : self.place + 1] == b"$":
            kind = self.take(2)[1:]
            if kind not in _NUMBERS:
                raise self.wrong(f"an array of {kind!r}, allowed: of numbers")
        if self._data[self.place : self.place + 1] != b"#":
            if kind is not None:
                raise self.wrong("an array of one kind has no length")
            found = []
            while self._data[self.place : self.place + 1] != b"]":
                found.append(self.value(self.take(1), depth + 1))
            self.place += 1
            return found
        self.place += 1
        count = self.length()
        if kind is None:
            if count > len(self._data) - self.place:
                raise self.wrong(f"an array of {count} values, {len(self._data) - self.place} bytes are left")
            return [self.value(self.take(1), depth + 1) for _ in range(count)]
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))


def dumps_ubjson(document: Mapping[str, Any]) -> bytes:
    """The object as UBJSON. NumPy arrays become arrays of one kind of number, ints 64 bits and floats doubles."""
    parts: list[bytes] = []
    _write(document, parts)
    return b"".join(parts)


def _write(value: Any, parts: list[bytes]) -> None:
    if isinstance(value, Mapping):
        parts.append(b"{")
        for key, entry in value.items():
            parts.append(_sized(key.encode()))
            _write(entry, parts)
        parts.append(b"}")
    elif isinstance(value, np.ndarray):
        array = value.astype(value.dtype.newbyteorder(">"))
        parts.append(b"[$" + _MARKERS[array.dtype] + b"#" + _length(len(array)) + array.tobytes())
    elif isinstance(value, (list, tuple)):
        parts.append(b"[#" + _length(len(value)))
        for entry in value:
            _write(entry, parts)
    elif isinstance(value, str):
        parts.append(b"S" + _sized(value.encode()))
    elif isinstance(value, bool) or value is None:
        parts.append(b"Z" if value is None else b"T" if value else b"F")
    else:
        parts.append(_length(value) if isinstance(value, int) else b"D" + struct.pack(">d", value))


def _length(count: int) -> bytes:
    return b"L" + struct.pack(">q", count)


def _sized(text: bytes) -> bytes:
    return _length(len(text)) + text
