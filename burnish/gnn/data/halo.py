"""Halo exchange: the rows of other workers that a partition's in-edges read, and their gradients on the way back.

Each of P workers owns a contiguous range of vertices with their in-edges. The sources outside of it are its halo.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.comm.protocol import Comm
from burnish.errors import DataError, InputError
from burnish.gnn.data.csr import CSR
from burnish.gnn.data.partition import Cuts, checked_cuts

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GraphPart:
    """One worker's part of a graph: n own vertices and the in-edges of these, and H rows of others.

    csr: n rows of n + H columns; sources are renumbered: own vertices first, then the halo. halo: (H,), their numbers
    in the whole graph, ascending, so that those of one owner stand together. sends: by worker, own rows that it needs,
    ascending; receives: by worker, how many rows of the halo it owns.
    """

    begin: int
    end: int
    csr: CSR
    halo: Numbers
    sends: tuple[Numbers, ...]
    receives: tuple[int, ...]

    @property
    def vertices(self) -> int:
        """n."""
        return self.end - self.begin

    @classmethod
    def of(cls, rows: CSR, cuts: Any, comm: Comm) -> GraphPart:
        """A worker's partition from its own rows, whose sources have the numbers of the whole graph.

        The workers tell each other which rows they need by one ``all_to_all_v``. Raises DataError, WorkerError.
        """
        found = checked_cuts(cuts, rows.columns)
        if len(found) - 1 != comm.size:
            raise DataError(f"partition: found {len(found) - 1} ranges; allowed: {comm.size}, one for each worker")
        begin, end = int(found[comm.rank]), int(found[comm.rank + 1])
        csr, halo = _localized(rows, begin, end)
        wanted = _by_owner(halo, found)
        asked = comm.all_to_all_v(wanted)
        for rank, numbers in enumerate(asked):
            if len(numbers) and (numbers.min() < begin or numbers.max() >= end):
                raise DataError(f"partition: worker {rank} asks for vertices outside of {begin} to {end - 1}")
        sends = tuple(numbers - begin for numbers in asked)
        return cls(begin, end, csr, halo, sends, tuple(len(numbers) for numbers in wanted))


def split(csr: CSR, cuts: Any) -> list[GraphPart]:
    """The partitions of a whole graph between the cuts, without any exchange. Raises DataError."""
    found = checked_cuts(cuts, csr.rows)
    parts = []
    for begin, end in itertools.pairwise(found.tolist()):
        local, halo = _localized(csr.slice(begin, end), begin, end)
        parts.append((begin, end, local, halo, _by_owner(halo, found)))
    return [
        GraphPart(
            begin, end, local, halo,
            tuple(other[4][rank] - begin for other in parts), tuple(len(numbers) for numbers in wanted),
        )
        for rank, (begin, end, local, halo, wanted) in enumerate(parts)
    ]  # fmt: skip


def exchange(comm: Comm, part: GraphPart, rows: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Own rows and behind them those of the halo, (n + H, …), by one ``all_to_all_v``; rows: (n, …).

    out: where they are written; its first n rows may be ``rows`` itself. Raises InputError, WorkerError.
    """
    if rows.shape[:1] != (part.vertices,):
        raise InputError(f"exchange: rows: found shape {rows.shape}; allowed: {part.vertices} rows")
    wanted = (part.vertices + len(part.halo), *rows.shape[1:])
    if out is None:
        out = np.empty(wanted, rows.dtype)
    if out.shape != wanted or out.dtype != rows.dtype:
        raise InputError(f"exchange: out: found {out.dtype} {out.shape}; allowed: {rows.dtype} {wanted}")
    received = comm.all_to_all_v([rows[numbers] for numbers in part.sends])
    if out[: part.vertices].ctypes.data != rows.ctypes.data or out.strides != rows.strides:
        out[: part.vertices] = rows
    place = part.vertices
    for block in received:
        out[place : place + len(block)] = block
        place += len(block)
    return out


def halo_sizes(csr: CSR, cuts: Any) -> Numbers:
    """Rows that each range reads from others, (ranges,): what an exchange sends."""
    found = checked_cuts(cuts, csr.rows)
    return np.array(
        [len(_outside(csr.slice(begin, end), begin, end)) for begin, end in itertools.pairwise(found.tolist())],
        np.int64,
    )


def _by_owner(halo: Numbers, cuts: Cuts) -> list[Numbers]:
    """The halo's numbers by who owns them."""
    ends = np.searchsorted(halo, cuts)
    return [halo[first:last] for first, last in itertools.pairwise(ends.tolist())]


def _outside(rows: CSR, begin: int, end: int) -> Numbers:
    """Sources outside of begin … end - 1, each once, ascending."""
    used = np.zeros(rows.columns, np.bool_)
    used[rows.sources] = True
    used[begin:end] = False
    return np.flatnonzero(used)


def _localized(rows: CSR, begin: int, end: int) -> tuple[CSR, Numbers]:
    """Rows of renumbered sources, and the halo."""
    if rows.rows != end - begin:
        raise DataError(f"partition: found {rows.rows} rows; allowed: {end - begin}, of the vertices {begin} to {end}")
    halo = _outside(rows, begin, end)
    place = np.empty(rows.columns, np.int32)
    place[halo] = np.arange(end - begin, end - begin + len(halo), dtype=np.int32)
    sources = np.empty(rows.edges, np.int32)
    given = np.empty(0, np.float32) if rows.weights is None else rows.weights
    weights = np.empty_like(given)
    _renumber(rows.offsets, rows.sources, given, begin, end, place, sources, weights)
    local = CSR(rows.offsets, sources, end - begin + len(halo), None if rows.weights is None else weights)
    return local, halo


@njit(cache=True, nogil=True, error_model="numpy")
def _renumber(offsets, sources, given, begin, end, place, out, weights):  # type: ignore[no-untyped-def]
    """Rows with own sources first, then those of the halo: each row's two ends change places, and it ascends again."""
    for v in range(offsets.shape[0] - 1):
        k = offsets[v]
        for e in range(offsets[v], offsets[v + 1]):
            u = sources[e]
            if u >= begin and u < end:
                out[k] = u - begin
                if given.size:
                    weights[k] = given[e]
                k += 1
        for e in range(offsets[v], offsets[v + 1]):
            u = sources[e]
            if u < begin or u >= end:
                out[k] = place[u]
                if given.size:
                    weights[k] = given[e]
                k += 1
