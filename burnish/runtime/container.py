"""The artifact's file layout: a JSON header and binary sections, every byte of which a checksum covers.

file     ::= prefix header section*     header and sections begin and end at multiples of 4096 bytes of the file
prefix   ::= magic:8 version:u32 0:u32 header_bytes:u64 sha256:32   the hash covers the other 24 bytes and the header
header   ::= JSON {"sections": [{"name", "offset", "bytes", "checksum"}], ...}, padded with spaces
section  ::= bytes, padded with zeros
checksum ::= "sha256:" hex | "crc32:" 8 hex digits for each 4 MiB, of the section and its padding
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import ArtifactError
from burnish.files import write_atomic
from burnish.runtime.buffers import round_up

MAGIC = b"BURNISH\n"
VERSION = 2
PAGE = 4096
CHUNK = 4 << 20  # bytes under one CRC-32, so that several threads can check a large section
_PREFIX = struct.Struct("<8sIIQ")
_START = _PREFIX.size + 32  # bytes before the header


@dataclass(frozen=True)
class Container:
    """A verified file: its header, and its sections as views of the mapped file."""

    header: Mapping[str, Any]
    sections: Mapping[str, memoryview]


def write_container(path: Path, header: Mapping[str, Any], sections: Mapping[str, memoryview]) -> None:
    """Writes header and sections to ``path``, atomically. Raises OSError; TypeError if the header is no JSON."""
    table: list[dict[str, Any]] = []
    body: list[bytes | memoryview] = []
    for name, data in sections.items():
        padding = bytes(_padded(data) - len(data))
        # A strong hash where damage would be executed; the fastest sufficient one for parameters, which may be large.
        kind = "sha256" if len(data) < CHUNK else "crc32"
        table.append({"name": name, "offset": 0, "bytes": len(data), "checksum": _checksum(kind, data, padding)})
        body += [data, padding]
    # The header holds the offsets, which depend on its own length: leave room for 20 digits each.
    start = round_up(_START + len(json.dumps({**header, "sections": table})) + 20 * len(table), PAGE)
    end = start
    for entry, data in zip(table, sections.values(), strict=True):
        entry["offset"], end = end, end + _padded(data)
    text = json.dumps({**header, "sections": table}).encode().ljust(start - _START)
    prefix = _PREFIX.pack(MAGIC, VERSION, 0, len(text))
    write_atomic(path, [prefix, hashlib.sha256(prefix + text).digest(), text, *body])


def read_container(path: Path) -> Container:
    """Maps the file and checks every byte of it.

    Raises ArtifactError, naming the section, for a file that is no artifact, of another version, truncated or altered;
    OSError if it cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _START:
            raise ArtifactError(f"{path} is no Burnish artifact, or truncated: {size} bytes")
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    header = _read_header(path, data)
    sections: dict[str, memoryview] = {}
    end = 0
    for entry in header["sections"]:
        name, start, length = entry["name"], entry["offset"], entry["bytes"]
        end = start + round_up(length, PAGE)
        if end > size:
            raise ArtifactError(f"{path} is truncated in section '{name}': {size} bytes, expected at least {end}")
        if _checksum(entry["checksum"].partition(":")[0], data[start:end]) != entry["checksum"]:
            raise _damaged(path, name)
        sections[name] = data[start : start + length]
    if end != size:
        raise ArtifactError(f"{path} has {size - end} bytes after its last section, allowed: none")
    return Container(header, sections)


def _read_header(path: Path, data: memoryview) -> dict[str, Any]:
    magic, version, _, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ArtifactError(f"{path} is no Burnish artifact: it starts with {magic!r}, allowed: {MAGIC!r}")
    if version != VERSION:
        advice = "update Burnish" if version > VERSION else "compile the model again"
        raise ArtifactError(f"{path} has format version {version}, allowed: {VERSION}; {advice}")
    if _START + length > len(data):
        raise ArtifactError(f"{path} is truncated or damaged in section 'header', which has {length} bytes")
    text = bytes(data[_START : _START + length])
    if hashlib.sha256(bytes(data[: _PREFIX.size]) + text).digest() != data[_PREFIX.size : _START]:
        raise _damaged(path, "header")
    return json.loads(text)


def _damaged(path: Path, section: str) -> ArtifactError:
    return ArtifactError(f"{path} is damaged: section '{section}' does not match its checksum; copy or save it again")


def _padded(data: memoryview) -> int:
    return round_up(len(data), PAGE)


def _checksum(kind: str, data: memoryview, padding: bytes = b"") -> str:
    """The checksum of ``data`` followed by ``padding``, which completes its last page."""
    if kind == "sha256":
        digest = hashlib.sha256(data)
        digest.update(padding)
        return f"sha256:{digest.hexdigest()}"
    chunks = [data[i : i + CHUNK] for i in range(0, len(data), CHUNK)]
    with ThreadPoolExecutor() as threads:  # zlib releases the interpreter lock
        sums = list(threads.map(zlib.crc32, chunks))
    sums[-1] = zlib.crc32(padding, sums[-1])
    return "crc32:" + "".join(f"{value:08x}" for value in sums)
