"""Binary files of graphs (.bngraph): a small JSON header, then aligned sections that are read as they are.

Bytes 0–7 are ``BNGRAPH1``, 8–15 the length of the header (little-endian), then the header, and at the byte that it
gives for each section the array, row-major and little-endian: offsets, sources, and those of weights, features, labels,
train, validation, test and order that there are. Features are read a block of rows at a time, or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from burnish.base.arguments import typed
from burnish.base.files import open_regular, write_atomic
from burnish.errors import DataError, ParameterError
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.graph import MASKS, Graph
from burnish.gnn.data.rows import FileRows, blocks, check_finite, check_range, fill

SUFFIX = ".bngraph"
MAGIC = b"BNGRAPH1"
ALIGNMENT = 4096  # bytes, a page: sections can be read without the system's cache, or mapped
_PREFIX = len(MAGIC) + 8
_LARGEST_HEADER = 1 << 20
# dtypes that a section may have, and its form: rows or edges, then columns, if any.
_FORMS = {
    "offsets": (("<i8",), 1), "sources": (("<i4",), 1), "weights": (("<f4",), 1), "features": (("<f4",), 2),
    "labels": (("<i4", "|u1"), 0), "train": (("|b1",), 1), "validation": (("|b1",), 1), "test": (("|b1",), 1),
    "order": (("<i8",), 1),
}  # fmt: skip
FEATURES = ("memory", "file")


@dataclass(frozen=True)
class ArraySection:
    """One array of a file: its dtype, its shape, and its first byte."""

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def bytes(self) -> int:
        """Its length."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class GraphFile:
    """A graph on disk: its header has been read and fits the file's length, its sections are read when asked for."""

    path: Path
    sections: dict[str, ArraySection]
    classes: int
    symmetric: bool

    @classmethod
    def open(cls, path: str | Path) -> GraphFile:
        """Reads the header. Raises OSError, and DataError for a file that is truncated, altered or of another kind."""
        path = Path(path)
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(_PREFIX)
            if prefix[: len(MAGIC)] != MAGIC[: len(prefix)] or not prefix:
                raise DataError(f"'{path}': found a file of another kind; allowed: a graph that burnish wrote")
            length = int.from_bytes(prefix[len(MAGIC) :], "little")
            if len(prefix) < _PREFIX or length > min(size, _LARGEST_HEADER):
                raise DataError(f"'{path}' is truncated: found {size} bytes; its header is longer")
            text = np.empty(length, np.uint8)
            fill(file, _PREFIX, text, path)
        header = _header(path, text.tobytes())
        found = {name: _section(path, name, value) for name, value in header["sections"].items()}
        _check_sections(path, found, size)
        return cls(path, found, header["classes"], header["symmetric"])

    @property
    def vertices(self) -> int:
        """V."""
        return self.sections["offsets"].shape[0] - 1

    @property
    def edges(self) -> int:
        """E."""
        return self.sections["sources"].shape[0]

    def read(self, name: str, begin: int = 0, end: int | None = None) -> NDArray[Any]:
        """Rows begin … end - 1 of a section, in a new array."""
        section = self.sections[name]
        end = section.shape[0] if end is None else end
        check_range(begin, end, section.shape[0])
        out = np.empty((end - begin, *section.shape[1:]), np.dtype(section.dtype))
        row = section.bytes // max(1, section.shape[0])
        with open_regular(self.path) as file:
            fill(file, section.start + begin * row, out, self.path)
        return out.view(np.uint8) != 0 if out.dtype == np.bool_ else out

    def rows(self, cached: bool = True) -> FileRows | None:
        """The features, read block by block; None without."""
        section = self.sections.get("features")
        if section is None:
            return None
        return FileRows(self.path, section.start, (section.shape[0], section.shape[1]), cached)

    def part(self, begin: int, end: int) -> CSR:
        """The in-edges of the vertices begin … end - 1, from any vertex: nothing else is read."""
        check_range(begin, end, self.vertices)
        offsets = self.read("offsets", begin, end + 1)
        first, last = int(offsets[0]), int(offsets[-1])
        if not 0 <= first <= last <= self.edges:
            raise DataError(f"'{self.path}': offsets: found {first} to {last}; allowed: 0 to {self.edges}")
        weights = self.read("weights", first, last) if "weights" in self.sections else None
        return CSR(offsets - first, self.read("sources", first, last), self.vertices, weights)


def load(path: str | Path, features: str = "memory", cached: bool = True) -> Graph:
    """The graph of a file. features: "memory", or "file": ``FileRows`` that are read block by block.

    cached: whether the system may keep pages of such rows. Raises OSError, ParameterError, and DataError that names the
    file for one that is truncated or altered, or does not hold a graph.
    """
    if features not in FEATURES:
        raise ParameterError(f"features: found {features!r}; allowed: {', '.join(FEATURES)}")
    file = GraphFile.open(path)
    weights = file.read("weights") if "weights" in file.sections else None
    fields: dict[str, Any] = {name: file.read(name) for name in ("labels", *MASKS, "order") if name in file.sections}
    if features == "file":
        fields["features"] = file.rows(cached)
    elif "features" in file.sections:
        fields["features"] = file.read("features")
    try:
        csr = CSR(file.read("offsets"), file.read("sources"), file.vertices, weights)
        csr.__dict__["symmetric"] = file.symmetric
        return Graph(csr, classes=file.classes, **fields)
    except DataError as error:
        raise DataError(f"'{path}': {error}") from None


class Saved(Protocol):
    """Contents of a graph's file: arrays as :class:`Graph` has them, or readers of features and sources by ranges."""

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(V + 1,)."""

    @property
    def sources(self) -> Any:
        """(E,)."""

    @property
    def classes(self) -> int:
        """C."""

    @property
    def symmetric(self) -> bool:
        """Whether every edge has its reverse."""


@typed
def save(path: str | Path, graph: Saved) -> None:
    """Writes a graph; the file is complete or absent. Arrays that are not in memory are read in blocks, and checked.

    Raises OSError, and DataError for features that are not finite.
    """
    arrays: dict[str, Any] = {"offsets": graph.offsets, "sources": graph.sources}
    arrays |= {name: getattr(graph, name) for name in ("weights", "labels", *MASKS, "order", "features")}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    shapes = {name: (_stored(name, array), tuple(int(size) for size in array.shape)) for name, array in arrays.items()}
    header, sections = _arranged(shapes, graph)
    write_atomic(Path(path), _parts(header, sections, arrays))


def _stored(name: str, array: Any) -> str:
    """The dtype of a section: that of the array, or float32 of rows that are not in memory."""
    return "<f4" if name == "features" else str(array.dtype.newbyteorder("<").str)


def _arranged(shapes: dict[str, tuple[str, tuple[int, ...]]], graph: Saved) -> tuple[bytes, dict[str, ArraySection]]:
    """The header, for which two pages are more than enough, and the sections behind it."""
    header: dict[str, Any] = {"classes": graph.classes, "symmetric": graph.symmetric}
    start = 2 * ALIGNMENT
    sections = {}
    for name, (dtype, shape) in shapes.items():
        sections[name] = ArraySection(dtype, shape, start)
        start += -(-sections[name].bytes // ALIGNMENT) * ALIGNMENT
    table = {name: {"dtype": s.dtype, "shape": s.shape, "start": s.start} for name, s in sections.items()}
    text = json.dumps(header | {"sections": table}).encode()
    return MAGIC + len(text).to_bytes(8, "little") + text, sections


def _parts(header: bytes, sections: dict[str, ArraySection], arrays: dict[str, Any]) -> Iterator[bytes | memoryview]:
    yield header
    place = len(header)
    for name, section in sections.items():
        yield bytes(section.start - place)
        array = arrays[name]
        if isinstance(array, np.ndarray):
            if array.nbytes:
                yield np.ascontiguousarray(array).data.cast("B")
        else:
            for begin, end in blocks((section.shape[0], prod(section.shape[1:]))):
                block = array.read(begin, end)
                if block.dtype.kind == "f":
                    check_finite(block, begin)
                yield block.data.cast("B")
        place = section.start + section.bytes


def _header(path: Path, text: bytes) -> dict[str, Any]:
    """The header. Raises DataError for one that is no JSON, or not of this form."""
    try:
        header = json.loads(text)
    except ValueError:
        raise DataError(f"'{path}': its header cannot be read: the file is altered") from None
    fits = (
        isinstance(header, dict)
        and isinstance(header.get("sections"), dict)
        and type(header.get("classes")) is int
        and isinstance(header.get("symmetric"), bool)
    )
    if not fits:
        raise DataError(f"'{path}': its header lacks what a graph has: the file is altered")
    return header


def _section(path: Path, name: str, entry: Any) -> ArraySection:
    """A section as the header tells. Raises DataError for one that no graph has."""
    dtypes, dimensions = _FORMS.get(name, ((), 0))
    shape = entry.get("shape") if isinstance(entry, dict) else None
    if (
        not isinstance(shape, list)
        or not all(type(size) is int and 0 <= size < 2**48 for size in shape)
        or entry.get("dtype") not in dtypes
        or len(shape) not in ((dimensions,) if dimensions else (1, 2))
        or type(entry.get("start")) is not int
        or entry["start"] < 0
    ):
        raise DataError(f"'{path}': section {name!r}: found {entry}; the file is altered, or of a later version")
    return ArraySection(entry["dtype"], tuple(shape), entry["start"])


def _check_sections(path: Path, sections: dict[str, ArraySection], size: int) -> None:
    """Raises DataError for sections that are missing, at odds, or beyond the end of the file."""
    if not {"offsets", "sources"} <= sections.keys() or not sections["offsets"].shape[0]:
        raise DataError(f"'{path}': found sections {', '.join(sections) or 'none'}; allowed: offsets, sources and more")
    vertices, edges = sections["offsets"].shape[0] - 1, sections["sources"].shape[0]
    for name, section in sections.items():
        if section.start + section.bytes > size:
            needed = section.start + section.bytes
            raise DataError(f"'{path}' is truncated: found {size} bytes; allowed: {needed}, to the end of its {name}")
        rows = {"offsets": vertices + 1, "sources": edges, "weights": edges}.get(name, vertices)
        if section.shape[0] != rows:
            raise DataError(f"'{path}': section {name!r}: found {section.shape[0]} rows; allowed: {rows}")
