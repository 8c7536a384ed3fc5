"""External sorting of random edges into rows: a graph that is larger than main memory is made piece by piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from burnish.base.files import open_regular
from burnish.gnn.data.csr import Offsets, Sources, readonly
from burnish.gnn.data.draws import collect
from burnish.gnn.data.edges import count_edges
from burnish.gnn.data.rows import check_range, fill

PIECE = 1 << 22  # edges that are sorted at a time, 8 bytes each, or those of one vertex
_LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class FileSources:
    """Sources of all edges, int32 (edges,), in a file that holds nothing else."""

    path: Path
    shape: tuple[int]
    dtype = np.dtype(np.int32)

    def read(self, begin: int, end: int) -> Sources:
        """Sources of the edges begin … end - 1, in a new array. Raises ParameterError, DataError."""
        check_range(begin, end, self.shape[0])
        out = np.empty(end - begin, self.dtype)
        with open_regular(self.path) as file:
            fill(file, begin * self.dtype.itemsize, out, self.path)
        return out


def spooled(pairs: Iterable[tuple[Sources, Sources]], vertices: int, folder: Path) -> tuple[Offsets, FileSources]:
    """The undirected graph of pairs of (ends, other ends) as ``CSR.from_pairs`` makes it, with its sources in a file.

    Main memory holds offsets, a chunk of pairs and ``PIECE`` edges; ``folder``, which takes the pairs and the sources,
    is the caller's to remove. Raises OSError.
    """
    before, sizes = np.zeros(vertices + 1, np.int64), []
    drawn, path = folder / "pairs", folder / "sources"
    with drawn.open("wb") as file:
        for ends, others in pairs:
            count_edges(readonly(ends), readonly(others), True, False, before)
            file.write(ends.data)
            file.write(others.data)
            sizes.append(len(ends))
    np.cumsum(before, out=before)
    ranges = _ranges(before)
    keys = np.empty(max((int(before[end] - before[begin]) for begin, end in ranges), default=0), np.int64)
    offsets = np.zeros(vertices + 1, np.int64)
    with path.open("wb") as out:
        for begin, end in ranges:
            found = _distinct(keys[: _collected(drawn, sizes, begin, end, keys)])
            offsets[begin + 1 : end + 1] = np.bincount(found >> 32, minlength=end - begin)
            out.write((found & _LOW).astype(np.int32).data)
    drawn.unlink()
    np.cumsum(offsets, out=offsets)
    return offsets, FileSources(path, (int(offsets[-1]),))


def _ranges(before: Offsets) -> list[tuple[int, int]]:
    """Ranges of vertices that cover all, each of at most ``PIECE`` edges, or one vertex; ``before``: edges before."""
    vertices, begin, found = len(before) - 1, 0, []
    while begin < vertices:
        end = max(int(np.searchsorted(before, before[begin] + PIECE, "right")) - 1, begin + 1)
        found.append((begin, end))
        begin = end
    return found


def _collected(path: Path, sizes: list[int], begin: int, end: int, keys: NDArray[np.int64]) -> int:
    """Fills ``keys`` with the edges that lead to a range of vertices, and returns how many there are."""
    count = place = 0
    room = np.empty(2 * max(sizes, default=0), np.int32)
    with open_regular(path) as file:
        for size in sizes:
            both = room[: 2 * size]
            fill(file, place, both, path)
            count = int(collect(both[:size], both[size:], begin, end, keys, count))
            place += both.nbytes
    return count


def _distinct(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each of the keys once, ascending; their array is used up."""
    keys.sort()
    first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return keys[first]
