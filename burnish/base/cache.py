"""A content-addressed cache of machine code on disk, shared by processes, and archives of such code in one file.

What cannot be read is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from burnish.base.files import PRIVATE_FILE, cache_folder, is_trusted, open_regular, private_folder, write_atomic

MAX_BYTES = 1 << 30
_SUFFIX = ".bnobj"  # no other program's: pruning removes files
_DIGEST = hashlib.sha256().digest_size
_PRUNE_EVERY = 256  # entries that a process writes between two looks at the size of a directory
_written = Counter[Path]()  # by directory: every compilation has an ObjectCache of its own
_READABLE = 0o644  # permissions of an archive, under any umask: what all may write is not taken
_MAGIC = b"bnlib 1\n"
_COUNT, _ROW = struct.Struct("<Q"), struct.Struct("<32sQQ")  # entries; of each its key, where it begins, its bytes


def cache_key(*parts: str | bytes) -> str:
    """Cache key of a result computed from exactly these parts; list the compiler's version among them."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class ObjectCache:
    """Bytes by key, at most about ``max_bytes``: the least recently used go first.

    An entry is the SHA-256 of its key and bytes, followed by the bytes. What is damaged, was stored under another key,
    is no regular file, or may have been written by somebody else counts as absent. Folder and entries are the user's
    own. What cannot be written lasts as long as this object; one warning says so.
    ``directory``: by default ``files.cache_folder``.
    """

    def __init__(self, directory: str | Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.directory = Path(directory) if directory is not None else cache_folder()
        self.max_bytes = max_bytes
        self._memory: dict[str, bytes] = {}  # what could not be written

    def get(self, key: str) -> bytes | None:
        """The bytes stored under ``key``, or None."""
        if key in self._memory:
            return self._memory[key]
        if self.directory is None:
            return None
        path = self._path(self.directory, key)
        try:
            with open_regular(path) as file:
                trusted = is_trusted(os.fstat(file.fileno()), self.directory)
                data = file.read() if trusted else b""
        except FileNotFoundError:
            return None
        except OSError:
            data = b""
        payload = data[_DIGEST:]
        if data[:_DIGEST] != _seal(key, payload):
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # the time of last use, which pruning goes by
        return payload

    def put(self, key: str, data: bytes) -> None:
        """Stores ``data`` under ``key``, a name without separators such as ``cache_key`` gives."""
        try:
            if self.directory is None:
                raise FileNotFoundError("this user has no home directory")
            private_folder(self.directory)
            write_atomic(self._path(self.directory, key), [_seal(key, data), data], PRIVATE_FILE)
        except OSError as error:
            if not self._memory:
                message = f"object cache: {error}; code is not kept beyond this process (set BURNISH_CACHE)"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            self._memory[key] = data
            return
        if _written[self.directory] % _PRUNE_EVERY == 0:
            self.prune()
        _written[self.directory] += 1

    def entries(self) -> list[tuple[float, int, Path]]:
        """(time of last use, bytes, file) of every entry, with what crashed writers left."""
        found: list[tuple[float, int, Path]] = []
        if self.directory is None:
            return found
        with suppress(OSError):
            for path in self.directory.glob(f"*{_SUFFIX}*"):
                with suppress(OSError):  # another process may be pruning, too
                    status = path.lstat()
                    found.append((status.st_mtime, status.st_size, path))
        return found

    def prune(self) -> None:
        """Removes the least recently used entries until the rest fills three quarters of ``max_bytes``, if above it."""
        entries = self.entries()
        total = sum(size for _, size, _ in entries)
        if total <= self.max_bytes:
            return
        for _, size, path in sorted(entries):
            if total <= self.max_bytes * 3 // 4:
                break
            with suppress(OSError):
                path.unlink()
            total -= size

    @staticmethod
    def _path(directory: Path, key: str) -> Path:
        return directory / f"{key}{_SUFFIX}"


class Archive:
    """Read-only entries of an object cache in one file, compressed: what a package brings along.

    A file that is damaged, no regular file, or may have been written by somebody other than the package's owner counts
    as one without entries, a damaged entry as absent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, key: str) -> bytes | None:
        """The bytes stored under ``key``, a name such as ``cache_key`` gives, or None."""
        begin, size = self._index.get(bytes.fromhex(key), (0, 0))
        if not size:
            return None
        try:
            with open_regular(self.path) as file:
                file.seek(begin)
                data = zlib.decompress(file.read(size))
        except (OSError, zlib.error):
            return None
        return data[_DIGEST:] if data[:_DIGEST] == _seal(key, data[_DIGEST:]) else None

    @cached_property
    def _index(self) -> dict[bytes, tuple[int, int]]:
        """Archive index: of each key where its entry begins in the file, and its bytes there."""
        try:
            with open_regular(self.path) as file:
                status = os.fstat(file.fileno())
                head = file.read(len(_MAGIC) + _COUNT.size)
                if not is_trusted(status, self.path.parent) or not head.startswith(_MAGIC):
                    return {}
                (count,) = _COUNT.unpack_from(head, len(_MAGIC))
                rows = file.read(min(count * _ROW.size, status.st_size))
            found = {key: (begin, size) for key, begin, size in _ROW.iter_unpack(rows)}
            return {key: (begin, size) for key, (begin, size) in found.items() if begin + size <= status.st_size}
        except (OSError, struct.error):
            return {}

    @staticmethod
    def write(path: Path, entries: Mapping[str, bytes]) -> None:
        """Writes a file of these entries, their bytes by key."""
        packed = {
            bytes.fromhex(key): zlib.compress(_seal(key, data) + data, 9) for key, data in sorted(entries.items())
        }
        begin = len(_MAGIC) + _COUNT.size + len(packed) * _ROW.size
        head = [_MAGIC, _COUNT.pack(len(packed))]
        for key, data in packed.items():
            head.append(_ROW.pack(key, begin, len(data)))
            begin += len(data)
        write_atomic(path, [*head, *packed.values()], _READABLE)


def _seal(key: str, payload: bytes) -> bytes:
    """Digest that begins an entry: it holds for these bytes under this key alone."""
    digest = hashlib.sha256(f"{len(key)} {key} ".encode())
    digest.update(payload)
    return digest.digest()
