"""Blocks of rows on disk (thesis-chen §2.3.3): pieces that are compressed and checked, dealt out to several folders."""

import contextlib
import hashlib
import json
import os
import secrets
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.outofcore.codec import AUTO, KEEP_COMPRESSED, NONE, codec
from burnish.errors import DataError, ParameterError

# A folder holds BLOCKS: the header MAGIC, identity (16 bytes), folder number, number of folders; then pieces, end to
# end. The first folder holds INDEX too: MAGIC, length of JSON text, the text, arrays, SHA-256 of all before it.
# INDEX is written last, so that a store without it was never finished.
INDEX = "burnish-store.index"
BLOCKS = "burnish-store.blocks"
SPOOL = "burnish-store.spool"  # the values themselves, during an ingest: see spool.py
PARTIAL = ".partial"
MAGIC = b"BURNISH STORE 1\n"
BLOCKS_HEADER = struct.Struct("<16s16sII")
BLOCK_ROWS = 1 << 16  # most rows of a block: row numbers inside of it fit 16 bits
PIECE = np.dtype([("offset", "<u8"), ("stored", "<u4"), ("raw", "<u4"), ("checksum", "<u4"), ("compressed", "<u4")])


def folder_paths(folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """One or several folders as paths. Raises ParameterError if there is none, or one is named twice."""
    paths = [folders] if isinstance(folders, str | os.PathLike) else list(folders)
    resolved = tuple(Path(path) for path in paths)
    if not resolved:
        raise ParameterError("folders is empty, must name at least one folder")
    if len({path.resolve() for path in resolved}) != len(resolved):
        raise ParameterError(f"folders names a folder twice: {', '.join(map(str, resolved))}")
    return resolved


@dataclass(frozen=True)
class Packed:
    """A piece as it is written."""

    stored: Any  # bytes or memoryview
    raw: int  # bytes before compression
    checksum: int  # CRC-32 of `stored`
    compressed: bool


class StoreWriter:
    """Writes a store; used as a context, it leaves nothing behind unless `finish` was reached.

    Block b goes to folder b % len(folders). Raises DataError if a folder holds a store already, is being written by
    another process, or cannot be written.
    """

    def __init__(
        self, folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], compression: str = AUTO
    ) -> None:
        """``compression``: a codec's name; "auto" is none until :meth:`use` names one."""
        self.folders = folder_paths(folders)
        self.compression, self._codec = compression, None if compression == AUTO else codec(compression)
        self._index = np.zeros((0, 0), PIECE)
        self._identity = secrets.token_bytes(16)
        self._files: list[Any] = []
        self._made: list[Path] = []  # folders that were not there before
        self._written: list[Path] = []  # files, in the order of writing
        try:
            for number, folder in enumerate(self.folders):
                self._open(folder, number)
        except OSError as error:
            self.abandon()
            raise DataError(f"folder of a store cannot be written: {error}") from error
        except DataError:
            self.abandon()
            raise

    def _open(self, folder: Path, number: int) -> None:
        """Makes a folder and starts its file of blocks."""
        if (folder / INDEX).exists():
            raise DataError(f"{folder} holds a store already; open it with Store.open, or remove it with store.remove")
        if not folder.exists():
            folder.mkdir(parents=True)
            self._made.append(folder)
        # Files of an ingest that was killed have no index, and are replaced; the lock tells them from a live one's.
        path = folder / (BLOCKS + PARTIAL)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=1 << 20)
        try:
            lock_file(file.fileno())
        except OSError:
            file.close()
            raise DataError(f"{folder} is being written by another process") from None
        file.truncate(0)
        self._files.append(file)
        self._written.append(path)
        file.write(BLOCKS_HEADER.pack(MAGIC, self._identity, number, len(self.folders)))

    def shape(self, blocks: int, pieces: int) -> None:
        """Says how many blocks and pieces of each there will be; before the first piece."""
        self._index = np.zeros((blocks, pieces), PIECE)

    def use(self, compression: str) -> None:
        """Names the codec of the pieces that are packed from now on."""
        self.compression, self._codec = compression, codec(compression)

    def pack(self, data: Any) -> "Packed":
        """Compresses a piece if that pays; `data` is bytes or a C-contiguous array. Any thread may call this."""
        raw = memoryview(data).cast("B") if len(data) else memoryview(b"")
        stored: Any = raw
        if self._codec is not None and raw.nbytes:
            packed = self._codec.compress(raw)
            if len(packed) <= KEEP_COMPRESSED * raw.nbytes:
                stored = packed
        return Packed(stored, raw.nbytes, zlib.crc32(stored), stored is not raw)

    def append(self, block: int, piece: int, packed: "Packed") -> None:
        """Writes a piece of a block."""
        folder = block % len(self.folders)
        file = self._files[folder]
        self._index[block, piece] = (file.tell(), len(packed.stored), packed.raw, packed.checksum, packed.compressed)
        try:
            file.write(packed.stored)
        except OSError as error:
            raise DataError(f"{self.folders[folder]} cannot be written: {error}") from error

    def write(self, block: int, piece: int, data: Any) -> None:
        """Packs and appends a piece."""
        self.append(block, piece, self.pack(data))

    def finish(self, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Makes the store valid: files get their names, and the index is written last."""
        try:
            for file, folder in zip(self._files, self.folders, strict=True):
                file.flush()
                os.fsync(file.fileno())
                os.replace(folder / (BLOCKS + PARTIAL), folder / BLOCKS)
                self._written.append(folder / BLOCKS)
            sizes = [file.tell() for file in self._files]
            own = {
                "identity": self._identity.hex(),
                "sizes": sizes,
                "compression": NONE if self.compression == AUTO else self.compression,
            }
            path = self.folders[0] / (INDEX + PARTIAL)
            self._written.append(path)
            with open(path, "wb") as index:
                index.write(pack_index({**header, **own}, {**arrays, "pieces": self._index}))
                index.flush()
                os.fsync(index.fileno())
            os.replace(path, self.folders[0] / INDEX)
        except OSError as error:
            raise DataError(f"store cannot be written: {error}") from error
        for file in self._files:
            file.close()
        self._files.clear()
        self._written.clear()
        self._made.clear()

    def abandon(self) -> None:
        """Removes every file and folder that this writer made; nothing after `finish`."""
        for file in self._files:
            with contextlib.suppress(OSError):  # a full disk fails again while it flushes
                file.close()
        for path in self._written:
            path.unlink(missing_ok=True)
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # something else was put there meanwhile
                folder.rmdir()
        self._files.clear()
        self._written.clear()
        self._made.clear()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abandon()


class ColumnStore:
    """A finished store, opened for reading. `read` may be called from several threads at once."""

    def __init__(self, folders: tuple[Path, ...], header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.folders = folders
        self.header = header
        self.arrays = arrays
        self.pieces = arrays["pieces"]  # (blocks, pieces) of PIECE
        self._codec = codec(header["compression"])
        self._checked = np.zeros(self.pieces.shape, np.bool_)
        self._files: list[int] = []
        try:
            for number, folder in enumerate(folders):
                self._files.append(self._open(folder, number))
        except OSError as error:
            self.close()
            raise DataError(f"store cannot be read: {error}") from error
        except DataError:
            self.close()
            raise

    @classmethod
    def open(cls, folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> "ColumnStore":
        """Opens the store in the folders that it was written to, in the same order.

        Raises DataError if it is not there, was not finished, was truncated or altered, or if a folder is another's.
        """
        paths = folder_paths(folders)
        path = paths[0] / INDEX
        try:
            data = path.read_bytes()
        except OSError as error:
            left = (paths[0] / BLOCKS).exists() or (paths[0] / (BLOCKS + PARTIAL)).exists()
            reason = "its ingest did not finish" if left else str(error)
            raise DataError(f"{paths[0]} holds no store: {reason}") from None
        header, arrays = unpack_index(data, path)
        if len(header["sizes"]) != len(paths):
            raise DataError(f"store of {path} lies in {len(header['sizes'])} folders, but {len(paths)} are named")
        return cls(paths, header, arrays)

    def _open(self, folder: Path, number: int) -> int:
        """Opens a folder's file of blocks, and checks that it belongs to this store."""
        path = folder / BLOCKS
        file = os.open(path, os.O_RDONLY)
        head = os.pread(file, BLOCKS_HEADER.size, 0)
        expected = (MAGIC, bytes.fromhex(self.header["identity"]), number, len(self.folders))
        if len(head) != BLOCKS_HEADER.size or BLOCKS_HEADER.unpack(head) != expected:
            os.close(file)
            raise DataError(f"{path} is not folder {number} of the store of {self.folders[0] / INDEX}")
        size, stated = os.fstat(file).st_size, self.header["sizes"][number]
        if size != stated:
            os.close(file)
            raise DataError(f"{path} has {size} bytes, must have {stated}: it was truncated or altered")
        return file

    def read(self, block: int, piece: int, into: NDArray[np.uint8], scratch: bytearray) -> None:
        """Reads a piece into a contiguous array of its raw size; `scratch` holds what is compressed, and may grow.

        Raises DataError if the piece is truncated or altered; its checksum is compared when it is read first, as that
        takes as long as reading from the system's cache.
        """
        offset, stored, raw, checksum, compressed = self.pieces[block, piece].item()
        if len(into) != raw:
            raise DataError(f"{self.name(block, piece)} has {raw} bytes, but {len(into)} are expected")
        if compressed and len(scratch) < stored:
            scratch.extend(bytes(stored - len(scratch)))
        target = memoryview(scratch)[:stored] if compressed else into.data
        read = os.preadv(self._files[block % len(self.folders)], [target], offset) if stored else 0
        if read != stored or not (self._checked[block, piece] or zlib.crc32(target) == checksum):
            raise DataError(f"{self.name(block, piece)} is truncated or altered: its checksum does not match")
        self._checked[block, piece] = True
        if compressed:
            assert self._codec is not None
            into[:] = np.frombuffer(self._codec.decompress(target, raw), np.uint8)

    def name(self, block: int, piece: int) -> str:
        """Name of a piece in errors."""
        folder = self.folders[block % len(self.folders)]
        return f"piece {piece} of block {block} in {folder / BLOCKS}"

    def forget(self) -> None:
        """Asks the system to drop its cache of the store's files: the next pass reads from the disk."""
        for file in self._files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            os.close(file)
        self._files.clear()

    def __enter__(self) -> "ColumnStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def remove(folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> None:
    """Removes a store's files, finished or not, and folders that are empty then; the index goes first."""
    paths = folder_paths(folders)
    for name in (INDEX, INDEX + PARTIAL, BLOCKS, BLOCKS + PARTIAL, SPOOL):
        for path in paths:
            (path / name).unlink(missing_ok=True)
    for path in paths:
        with contextlib.suppress(OSError):
            path.rmdir()


def lock_file(file: int) -> None:
    """Locks an open file for this process until it is closed; raises OSError if another process holds it."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: two ingests into one folder are not told apart
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def pack_index(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Header and arrays as bytes, with their SHA-256 at the end."""
    described, body = {}, []
    for name, array in arrays.items():
        dtype = "piece" if array.dtype == PIECE else array.dtype.str
        described[name] = {"dtype": dtype, "shape": list(array.shape)}
        body.append(np.ascontiguousarray(array).tobytes())
    text = json.dumps({"header": dict(header), "arrays": described}).encode()
    data = MAGIC + struct.pack("<Q", len(text)) + text + b"".join(body)
    return data + hashlib.sha256(data).digest()


def unpack_index(data: bytes, path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The inverse of `pack_index`; raises DataError naming `path` if the bytes are not what was written."""
    if not data.startswith(MAGIC):
        raise DataError(f"{path} is not the index of a store of this version")
    if len(data) < len(MAGIC) + 40 or hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise DataError(f"{path} is truncated or altered: its checksum does not match")
    at = len(MAGIC) + 8
    (length,) = struct.unpack_from("<Q", data, len(MAGIC))
    content = json.loads(data[at : at + length])
    at += length
    arrays = {}
    for name, form in content["arrays"].items():
        dtype = PIECE if form["dtype"] == "piece" else np.dtype(form["dtype"])
        count = int(np.prod(form["shape"], dtype=np.int64))
        arrays[name] = np.frombuffer(data, dtype, count, at).reshape(form["shape"])
        at += count * dtype.itemsize
    return content["header"], arrays
