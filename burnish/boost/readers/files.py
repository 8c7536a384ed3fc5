"""Files of a path, their format, and their text in blocks of whole lines, parsed by several threads in order."""

import gzip
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError, ParameterError

FORMATS = ("libsvm", "csv", "parquet")
BLOCK = 1 << 22  # bytes of text parsed at a time
_SUFFIXES = {
    ".libsvm": "libsvm", ".svm": "libsvm", ".svmlight": "libsvm", ".svml": "libsvm",
    ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
_LIBSVM_LINE = re.compile(rb"\s*[^\s,:;]+(:\S+)?(\s+(qid|\d+):\S+)+\s*(#.*)?")
NEWLINE = b"\n"

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True)
class LineBlock:
    """Whole lines of a file: bytes that end in a newline, and the number of the first line, from 1."""

    file: Path
    text: bytes
    line: int

    def error(self, position: int, message: str) -> DataError:
        """The error for what stands at a position, which names file and line."""
        return DataError(f"{self.file}, line {self.line + self.text.count(NEWLINE, 0, position)}: {message}")


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """The file, or the files of a folder by name, but for those whose names start with a dot or an underscore."""
    root = Path(path)
    if not root.is_dir():
        if not root.exists():
            raise DataError(f"{root}: no such file or folder")
        return [root]
    found = sorted(file for file in root.iterdir() if file.is_file() and file.name[0] not in "._")
    if not found:
        raise DataError(f"{root}: found no file; allowed is a folder with files of one format")
    return found


def format_of(files: list[Path], asked: str | None) -> str:
    """The format that all the files have: by suffix, or by their first line."""
    if asked is not None:
        if asked not in FORMATS:
            raise ParameterError(f"format: found {asked!r}; allowed are {', '.join(FORMATS)}")
        return asked
    formats = {file: _SUFFIXES.get(_suffix(file)) or _sniffed(file) for file in files}
    first = formats[files[0]]
    for file, found in formats.items():
        if found != first:
            raise DataError(
                f"{file}: found {found} beside {first} ({files[0].name}); allowed is one format in a folder"
            )
    return first


def _suffix(file: Path) -> str:
    return Path(file.stem).suffix.lower() if file.suffix.lower() == ".gz" else file.suffix.lower()


def _sniffed(file: Path) -> str:
    with opened(file) as stream:
        try:
            start = stream.read(1 << 16)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            start = b""  # the reader will say what is wrong with it
    if start[:4] == b"PAR1":
        return "parquet"
    if b"\0" in start:
        raise DataError(f"{file}: found a binary file; allowed: text (CSV, LibSVM), which may be gzipped, or Parquet")
    lines = (line for line in start.splitlines() if line.strip() and not line.lstrip().startswith(b"#"))
    return "libsvm" if _LIBSVM_LINE.fullmatch(next(lines, b"")) else "csv"


def opened(file: Path) -> IO[bytes]:
    """The file's bytes, decompressed if its name ends in .gz."""
    if file.suffix.lower() == ".gz":
        return gzip.open(file, "rb")  # type: ignore[return-value]
    return file.open("rb")


def blocks(file: Path, quoted: bool, size: int | None = None) -> Iterator[LineBlock]:
    """The text of a file in blocks of about `size` bytes (BLOCK) that end with a line, not within a quoted field."""
    size = size or BLOCK
    rest, line = b"", 1
    with opened(file) as stream:
        while True:
            try:
                more = stream.read(size)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise DataError(
                    f"{file}, line {line} or after: the compressed file is damaged or cut off; {error}"
                ) from None
            text = rest + more
            if not more and text and not text.endswith(NEWLINE):
                text += NEWLINE
            end = _last_line(text, quoted) if more else len(text)
            if end:
                yield LineBlock(file, text[:end], line)
                line += text.count(NEWLINE, 0, end)
            if not more:
                return
            rest = text[end:]
            size = size if end else 2 * size  # one line, or one quoted field, larger than a block


def _last_line(text: bytes, quoted: bool) -> int:
    """The end of the last line that is complete: within a quoted field, the quotes before are odd in number."""
    end = text.rfind(NEWLINE) + 1
    quotes = text.count(b'"', 0, end) if quoted else 0
    while end and quotes % 2:
        before = text.rfind(NEWLINE, 0, end - 1) + 1
        quotes -= text.count(b'"', before, end)
        end = before
    return end


def ahead(function: Callable[[T], S], items: Iterable[T], threads: int) -> Iterator[S]:
    """``map(function, items)`` in order, with as many items worked on at once as there are threads."""
    if threads == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="burnish-read")
    waiting: deque[Future[S]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def name_tokens(tokens: Iterable[Any]) -> tuple[frozenset[bytes], NDArray[np.float32]]:
    """Marks of missing values, apart: texts, and numbers as float32."""
    texts: set[bytes] = set()
    numbers: set[float] = set()
    for token in tokens:
        if isinstance(token, str):
            texts.add(token.encode())
            try:
                numbers.add(float(token))
            except ValueError:
                continue
        else:
            numbers.add(float(token))
            texts.add(f"{token:g}".encode())
    marks = np.array(sorted(number for number in numbers if number == number), np.float32)
    return frozenset(texts), marks
