"""Compression of blocks that are read from disk again and again: codecs, and the one that suits data and disk."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.base.optional import require
from burnish.errors import MissingDependencyError, ParameterError

AUTO, NONE = "auto", "none"
CODECS = ("lz4", "zstd", "zlib")  # the fastest first
# A piece that compresses worse is stored as it is: zlib decodes what is mostly Huffman codes at 140 MB/s (measured),
# slower than disks read today; what compresses to a third, at 600 MB/s.
KEEP_COMPRESSED = 0.5
GAIN = 0.9  # of the time of plain pieces: what predicts more is not worth a codec, by the error of the prediction
SAMPLE, PROBE = 4 << 20, 32 << 20  # bytes that are compressed to choose, and that are read from the disk at most
CACHED = 2  # of free memory over data: from there on they are read from the system's cache after their first pass


@dataclass(frozen=True)
class Codec:
    """A general-purpose compressor; both functions map bytes to bytes and release the interpreter's lock."""

    compress: Callable[[Any], bytes]
    decompress: Callable[[Any, int], bytes]  # (compressed, bytes of the answer)


def codec(name: str) -> Codec | None:
    """The compressor of a name: "none", "zlib" (always there), "zstd" or "lz4" (optional packages).

    Raises ParameterError for another name, MissingDependencyError if its package is not installed.
    """
    if name == NONE:
        return None
    if name == "zlib":
        return Codec(lambda data: zlib.compress(data, 1), lambda data, size: zlib.decompress(data, bufsize=size))
    if name == "zstd":
        zstandard = require("zstandard", "boost")
        # A context may serve one thread at a time: one for each call costs microseconds beside a piece's hundreds.
        return Codec(
            lambda data: zstandard.ZstdCompressor(level=1).compress(data),
            lambda data, size: zstandard.ZstdDecompressor().decompress(data, max_output_size=size),
        )
    if name == "lz4":
        block = require("lz4.block", "boost")
        return Codec(
            lambda data: block.compress(data, store_size=False),
            lambda data, size: block.decompress(data, uncompressed_size=size),
        )
    raise ParameterError(f'compression is {name!r}, must be one of "auto", "none", "zlib", "zstd", "lz4"')


def suited_codec(sample: Sequence[Any], disk: float, known: Mapping[str, Codec] | None = None) -> str:
    """The name of the codec by which pieces like those of ``sample`` (bytes-like) are read soonest from a disk of
    ``disk`` bytes a second: "none" unless reading fewer bytes gains more than unpacking them costs.

    ``known``: codecs by name (default: those that are installed).
    """
    size = sum(len(each) for each in sample)
    best, least = NONE, GAIN * size / disk
    for name, each in (_installed() if known is None else known).items():
        seconds = 0.0
        for data in sample:
            packed = each.compress(data)
            if len(packed) > KEEP_COMPRESSED * len(data):
                seconds += len(data) / disk
            else:
                seconds += len(packed) / disk + min(_timed(each, packed, len(data)) for _ in range(3))
        if seconds < least:
            best, least = name, seconds
    return best


def _installed() -> dict[str, Codec]:
    found = {}
    for name in CODECS:
        try:
            each = codec(name)
        except MissingDependencyError:
            continue
        if each is not None:
            found[name] = each
    return found


def _timed(each: Codec, packed: bytes, size: int) -> float:
    begin = time.thread_time()
    each.decompress(packed, size)
    return time.thread_time() - begin


def disk_rate(file: int, again: int) -> float:
    """Bytes a second at which an open file, which was just written, is read from its disk; without bound where data of
    ``again`` bytes fit into free memory, from which later passes read them.
    """
    if again * CACHED <= _free_memory():
        return float("inf")
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    size = min(os.fstat(file).st_size, PROBE)
    buffer, at, begin = bytearray(1 << 20), 0, time.perf_counter()
    while at < size:
        got = os.preadv(file, [buffer], at)
        if not got:
            break
        at += got
    return max(at, 1) / max(time.perf_counter() - begin, 1e-6)


def _free_memory() -> int:
    """Bytes that the system can give, or use to keep files in; 0 where it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
