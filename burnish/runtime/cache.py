"""A content-addressed cache of machine code on disk, shared by processes; what cannot be read is compiled again."""

from __future__ import annotations

import hashlib
import os
import warnings
from contextlib import suppress
from pathlib import Path

from burnish.runtime.files import write_atomic

MAX_BYTES = 1 << 30
_SUFFIX = ".bnobj"  # no other program's: pruning removes files
_DIGEST = hashlib.sha256().digest_size
_PRUNE_EVERY = 256  # entries written between two looks at the size of the directory


def cache_key(*parts: str | bytes) -> str:
    """A name for whatever is computed from exactly these parts; list the compiler's version among them."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def default_directory() -> Path:
    """``$BURNISH_CACHE``, else ``$XDG_CACHE_HOME/burnish``, else ``~/.cache/burnish``."""
    if chosen := os.environ.get("BURNISH_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "burnish"
    return Path(os.path.expanduser("~")) / ".cache" / "burnish"


class ObjectCache:
    """Bytes by key, at most about ``max_bytes``: the least recently used go first.

    An entry is its SHA-256 followed by its bytes; damaged ones count as absent. If the directory cannot be written,
    one warning is given, and entries last as long as this object.
    """

    def __init__(self, directory: str | Path | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.directory = Path(directory) if directory is not None else default_directory()
        self.max_bytes = max_bytes
        self._memory: dict[str, bytes] | None = None  # used once the directory has proved unwritable
        self._written = 0

    def get(self, key: str) -> bytes | None:
        """The bytes stored under ``key``, or None."""
        if self._memory is not None and key in self._memory:
            return self._memory[key]
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        payload = data[_DIGEST:]
        if hashlib.sha256(payload).digest() != data[:_DIGEST]:
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # the time of last use, which pruning goes by
        return payload

    def put(self, key: str, data: bytes) -> None:
        """Stores ``data`` under ``key``, a name without separators such as ``cache_key`` gives."""
        if self._memory is None:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                write_atomic(self._path(key), [hashlib.sha256(data).digest(), data])
            except OSError as error:
                self._memory = {}
                message = f"object cache: {error}; code is not kept beyond this process (set BURNISH_CACHE)"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
            else:
                if self._written % _PRUNE_EVERY == 0:
                    self.prune()
                self._written += 1
                return
        self._memory[key] = data

    def prune(self) -> None:
        """Removes the least recently used entries until the rest fills three quarters of ``max_bytes``, if above it."""
        entries = []
        with suppress(OSError):
            for path in self.directory.glob(f"*{_SUFFIX}*"):  # with what crashed writers left
                with suppress(OSError):  # another process may be pruning, too
                    status = path.stat()
                    entries.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total <= self.max_bytes:
            return
        for _, size, path in sorted(entries):
            if total <= self.max_bytes * 3 // 4:
                break
            with suppress(OSError):
                path.unlink()
            total -= size

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_SUFFIX}"
