"""The artifact's file layout: a JSON header and binary sections, every byte of which a checksum covers.

file     ::= prefix header section*     header and sections begin and end at multiples of 4096 bytes of the file
prefix   ::= magic:8 version:u32 signed:u32 header_bytes:u64 seal:32   the seal covers the other 24 bytes and the header
seal     ::= SHA-256 if signed is 0; HMAC-SHA-256 with the key of who saved it if signed is 1
header   ::= JSON {"sections": [{"name", "offset", "bytes", "checksum"}], "writer", ...}, padded with spaces
section  ::= bytes, padded with zeros
checksum ::= "sha256:" hex | "crc32:" 8 hex digits for each 4 MiB, of the section and its padding; no CRC if signed

Checksums without a key find damage, not intent: whoever can write the file can write its checksums.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import struct
import zlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import burnish
from burnish.base.files import open_regular, write_atomic
from burnish.errors import ArtifactError
from burnish.runtime.buffers import allocate, round_up

MAGIC = b"BURNISH\n"
VERSION, OLDEST = 5, 5  # what is written, and the oldest that is read
PAGE = 4096
CHUNK = 4 << 20  # bytes under one CRC-32, so that several threads can check a large section
MOST_HEADER_BYTES = 1 << 28
_PREFIX = struct.Struct("<8sIIQ")
_START = _PREFIX.size + 32  # bytes before the header


@dataclass(frozen=True)
class Container:
    """Verified container file: its header, and its sections, which are copies in memory that nobody else has."""

    header: Mapping[str, Any]
    sections: Mapping[str, memoryview]


def write_container(
    path: Path, header: Mapping[str, Any], sections: Mapping[str, memoryview], key: bytes | None = None
) -> None:
    """Writes header and sections to ``path``, atomically, signed with ``key`` if there is one.

    Raises OSError; TypeError if the header is no JSON.
    """
    table: list[dict[str, Any]] = []
    body: list[bytes | memoryview] = []
    for name, data in sections.items():
        padding = bytes(_padded(len(data)) - len(data))
        # A strong hash where damage would be executed; the fastest sufficient one for parameters, which may be large.
        kind = "sha256" if len(data) < CHUNK or key is not None else "crc32"
        table.append({"name": name, "offset": 0, "bytes": len(data), "checksum": _checksum(kind, data, padding)})
        body += [data, padding]
    # The header holds the offsets, which depend on its own length: leave room for 20 digits each.
    header = {**header, "writer": burnish.__version__}
    start = round_up(_START + len(json.dumps({**header, "sections": table})) + 20 * len(table), PAGE)
    end = start
    for entry, data in zip(table, sections.values(), strict=True):
        entry["offset"], end = end, end + _padded(len(data))
    text = json.dumps({**header, "sections": table}).encode().ljust(start - _START)
    prefix = _PREFIX.pack(MAGIC, VERSION, key is not None, len(text))
    write_atomic(path, [prefix, _seal(prefix, text, key), text, *body])


def read_container(
    path: Path,
    sha256: str | None = None,
    key: bytes | None = None,
    wanted: Callable[[Mapping[str, Any]], Collection[str] | None] = lambda header: None,
) -> Container:
    """Reads the file into memory and checks every byte of it there: what happens to the file later has no effect.

    ``sha256``: of the whole file, as hexadecimal digits. ``key``: what the file must be signed with. ``wanted``: of a
    header, the sections to take (None: all); others are read for the sake of ``sha256`` alone. Raises
    ArtifactError, naming the section, for a file that is no artifact, of another version, truncated, altered, or not
    the one that is asked for; OSError if it cannot be read, or is no regular file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        whole = hashlib.sha256() if sha256 is not None else None
        start, header = _read_header(path, file, size, key, whole)
        table = _table(path, header, start, size)
        sections: dict[str, memoryview] = {}
        asked = wanted(header)
        for entry in table:
            name, kind = entry["name"], entry["checksum"].partition(":")[0]
            if asked is not None and name not in asked and whole is None:
                continue
            if key is not None and kind != "sha256":
                raise ArtifactError(f"{path} is signed, but section '{name}' has only a {kind}")
            data, checksum = _read(path, file, entry["offset"], _padded(entry["bytes"]), name, kind)
            if whole is not None:
                whole.update(data)
            if checksum != entry["checksum"]:
                raise _damaged(path, name)
            if asked is None or name in asked:
                sections[name] = data[: entry["bytes"]].toreadonly()
    if whole is not None and whole.hexdigest() != str(sha256).lower():
        raise ArtifactError(f"{path} has SHA-256 {whole.hexdigest()}, allowed: {sha256}; it is another file")
    return Container(header, sections)


def _read(path: Path, file: BinaryIO, start: int, length: int, section: str, kind: str = "") -> tuple[memoryview, str]:
    """``length`` bytes of the file in memory of their own, and their checksum of this kind.

    Several threads read, and check what is in their caches.
    """
    try:
        data = allocate(length).data
    except (MemoryError, OSError, OverflowError, ValueError) as error:
        raise ArtifactError(f"{path}: section '{section}' needs {length} bytes of memory: {error}") from error

    def fill(begin: int) -> memoryview:
        chunk = data[begin : begin + CHUNK]
        done = 0
        while done < len(chunk):
            count = os.preadv(file.fileno(), [chunk[done:]], start + begin + done)
            if not count:
                raise ArtifactError(f"{path} is truncated in section '{section}', which has {length} bytes")
            done += count
        return chunk

    if kind == "crc32":
        return data, _crc32(lambda begin: zlib.crc32(fill(begin)), length)
    for begin in range(0, length, CHUNK):
        fill(begin)
    return data, _checksum(kind, data) if kind else ""


def _read_header(path: Path, file: BinaryIO, size: int, key: bytes | None, whole: Any) -> tuple[int, dict[str, Any]]:
    """Header of an artifact, and the offset at which its sections begin."""
    if size < _START:
        raise ArtifactError(f"{path} is no Burnish artifact, or truncated: {size} bytes")
    prefix = bytes(_read(path, file, 0, _START, "prefix")[0])
    magic, version, signed, length = _PREFIX.unpack_from(prefix)
    if magic != MAGIC:
        remedy = "; compile it first, by burnish.compile" if path.suffix == ".onnx" else ""
        raise ArtifactError(f"{path} is no Burnish artifact: it starts with {magic!r}, allowed: {MAGIC!r}{remedy}")
    if not OLDEST <= version <= VERSION:
        raise _of_other_version(path, file, version, length)
    if _START + length > size or length > MOST_HEADER_BYTES:
        raise ArtifactError(f"{path} is truncated or damaged in section 'header', which has {length} bytes")
    text = bytes(_read(path, file, _START, length, "header")[0])
    if signed != (key is not None):
        advice = "pass the key" if signed else "a key was given"
        raise ArtifactError(f"{path} is {'signed' if signed else 'not signed'}; {advice}")
    if not hmac.compare_digest(_seal(prefix[: _PREFIX.size], text, key), prefix[_PREFIX.size :]):
        if key is not None:
            raise ArtifactError(f"{path} is damaged, or was signed with another key")
        raise _damaged(path, "header")
    if whole is not None:
        whole.update(prefix + text)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{path} is inconsistent: its header is no JSON: {type(error).__name__}") from error
    if not isinstance(header, dict):
        raise ArtifactError(f"{path} is inconsistent: its header is a {type(header).__name__}, allowed: an object")
    return _START + length, header


def _of_other_version(path: Path, file: BinaryIO, version: int, length: int) -> ArtifactError:
    """Error for a file of a version that is not read, with the release that wrote it where its header tells."""
    try:
        writer = json.loads(os.pread(file.fileno(), min(length, MOST_HEADER_BYTES), _START))["writer"]
    except (ValueError, LookupError, TypeError, OSError, RecursionError):
        writer = None
    by = f", written by Burnish {writer:.40}" if isinstance(writer, str) else ""
    allowed = f"{OLDEST} to {VERSION}" if OLDEST < VERSION else f"{VERSION}"
    advice = "update Burnish" if version > VERSION else "compile the model again"
    return ArtifactError(
        f"{path} has format version {version}{by}; allowed by Burnish {burnish.__version__}: {allowed}; {advice}"
    )


def _table(path: Path, header: Mapping[str, Any], start: int, size: int) -> list[dict[str, Any]]:
    """The header's table of sections, which lie one after another to the end of the file."""
    table = header.get("sections")
    if not isinstance(table, list) or not all(isinstance(entry, dict) for entry in table):
        raise ArtifactError(f"{path} is inconsistent: 'sections' is no list of objects")
    end = start
    for entry in table:
        name, offset, length, checksum = (entry.get(key) for key in ("name", "offset", "bytes", "checksum"))
        if not isinstance(name, str) or type(offset) is not int or type(length) is not int or length < 0:
            raise ArtifactError(f"{path} is inconsistent: section {str(entry)[:100]}")
        if not isinstance(checksum, str) or checksum.partition(":")[0] not in ("sha256", "crc32"):
            raise ArtifactError(f"{path} is inconsistent: section '{name}' has checksum {str(checksum)[:20]!r}")
        if offset != end:
            raise ArtifactError(f"{path} is inconsistent: section '{name}' begins at {offset}, allowed: {end}")
        end += _padded(length)
        if end > size:
            raise ArtifactError(f"{path} is truncated in section '{name}': {size} bytes, expected at least {end}")
    if end != size:
        raise ArtifactError(f"{path} has {size - end} bytes after its last section, allowed: none")
    if len({entry["name"] for entry in table}) < len(table):
        raise ArtifactError(f"{path} is inconsistent: two sections have the same name")
    return table


def _seal(prefix: bytes, text: bytes, key: bytes | None) -> bytes:
    return hmac.digest(key, prefix + text, "sha256") if key is not None else hashlib.sha256(prefix + text).digest()


def _damaged(path: Path, section: str) -> ArtifactError:
    return ArtifactError(f"{path} is damaged: section '{section}' does not match its checksum; copy or save it again")


def _padded(length: int) -> int:
    return round_up(length, PAGE)


def _checksum(kind: str, data: memoryview, padding: bytes = b"") -> str:
    """The checksum of ``data`` followed by ``padding``, which completes its last page."""
    if kind == "sha256":
        digest = hashlib.sha256(data)
        digest.update(padding)
        return f"sha256:{digest.hexdigest()}"
    return _crc32(lambda begin: zlib.crc32(data[begin : begin + CHUNK]), len(data), padding)


def _crc32(of: Callable[[int], int], length: int, padding: bytes = b"") -> str:
    """The checksum of chunks, given by ``of`` from where each begins; ``padding`` completes the last one."""
    with ThreadPoolExecutor() as threads:  # zlib and the system release the interpreter lock
        sums = list(threads.map(of, range(0, length, CHUNK)))
    if sums:
        sums[-1] = zlib.crc32(padding, sums[-1])
    return "crc32:" + "".join(f"{value:08x}" for value in sums)
