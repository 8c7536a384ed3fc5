"""A worker's share of a graph: its vertices, what it knows of them, and their in-edges, block by block of vertices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from burnish.gnn.data.csr import CSR
from burnish.gnn.data.rows import FeatureRows, Matrix, check_range

Blocks = tuple[tuple[int, int], ...]
# Rows of a block, and of a share: a model for one row would be another one, whose gradients sum what is repeated.
LEAST_ROWS = 2


@dataclass(frozen=True, eq=False)
class Edges:
    """In-edges of blocks of vertices, of ``columns`` sources: by block ``offsets`` from 0 on, and ``sources``.

    All blocks have ``room`` for the edges of the largest: what lies behind a block's own is not read. Sources that are
    not in memory are None; ``read(block, out)`` reads them. ``exchange(rows)`` fills the rows of other
    workers' vertices in ``rows`` [columns, F], behind one's own. ``weights``: of the edges, by block, if they have any;
    ``read_weights`` as ``read``.
    """

    columns: int
    offsets: tuple[np.ndarray, ...]
    sources: tuple[np.ndarray, ...] | None
    read: Callable[[int, np.ndarray], object] | None = None
    exchange: Callable[[np.ndarray], None] | None = None
    weights: tuple[np.ndarray, ...] | None = None
    read_weights: Callable[[int, np.ndarray], object] | None = None

    @property
    def weighted(self) -> bool:
        """Whether edges have weights."""
        return self.weights is not None or self.read_weights is not None

    @property
    def counts(self) -> tuple[int, ...]:
        """Edges by block."""
        return tuple(int(offsets[-1]) for offsets in self.offsets)

    def of(self, block: int) -> np.ndarray:
        """The sources of a block, with its room; read anew if they are not in memory."""
        if self.sources is not None:
            return self.sources[block]
        assert self.read is not None, "edges are in memory, or are read"
        out = np.empty(self.room, np.int32)
        self.read(block, out)
        return out

    def weights_of(self, block: int) -> np.ndarray:
        """The weights of a block's edges, as ``of``."""
        if self.weights is not None:
            return self.weights[block]
        assert self.read_weights is not None, "a graph without weights has a model without"
        out = np.empty(self.room, np.float32)
        self.read_weights(block, out)
        return out

    @property
    def room(self) -> int:
        """The most edges of a block."""
        return max(self.counts)


@dataclass(frozen=True, eq=False)
class Share:
    """The vertices begin … end - 1 of ``vertices``, in ``blocks`` numbered from 0.

    ``features``: of these vertices, where they are not in memory; ``tensors``: rows that are, by the inputs' names;
    ``edges``: by the names of offsets.
    """

    begin: int
    end: int
    vertices: int
    blocks: Blocks
    features: FeatureRows | None
    tensors: Mapping[str, np.ndarray]
    edges: Mapping[str, Edges]

    _read: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Vertices of this share."""
        return self.end - self.begin

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows of its blocks, each once, the most first."""
        return tuple(sorted({end - begin for begin, end in self.blocks}, reverse=True))

    def read(self, name: str, offsets: str) -> np.ndarray:
        """All rows [columns, ...] of one of ``tensors`` that edges read: own ones, and behind them those of others.

        They are exchanged once, by a first call of all workers: these tensors never change.
        """
        edges, own = self.edges[offsets], self.tensors[name]
        if edges.exchange is None:
            return own
        if (name, offsets) not in self._read:
            rows = np.empty((edges.columns, *own.shape[1:]), own.dtype)
            rows[: self.rows] = own
            edges.exchange(rows.reshape(edges.columns, prod(own.shape[1:])))
            self._read[name, offsets] = rows
        return self._read[name, offsets]


@dataclass(frozen=True)
class SomeRows:
    """Rows begin … end - 1 of others."""

    rows: FeatureRows | Matrix
    begin: int
    end: int

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, features)."""
        return self.end - self.begin, int(self.rows.shape[1])

    def read(self, begin: int, end: int, out: Matrix | None = None) -> Matrix:
        """As ``Rows.read``."""
        check_range(begin, end, self.end - self.begin)
        first, last = self.begin + begin, self.begin + end
        if not isinstance(self.rows, np.ndarray):
            return self.rows.read(first, last, out)
        if out is None:
            return self.rows[first:last]
        np.copyto(out, self.rows[first:last])
        return out


def blocks_of(rows: int, block: int) -> Blocks:
    """Ranges of ``block`` rows that cover all; the last has fewer, or, rather than one by itself, one more."""
    begins = [*range(0, rows - LEAST_ROWS + 1, block)] or [0]
    return tuple(itertools.pairwise([*begins, rows]))


def edges_of(
    csr: CSR, blocks: Sequence[tuple[int, int]], exchange: Callable[[np.ndarray], None] | None = None
) -> Edges:
    """Edges in memory: sources are views of those of ``csr``, but where it ends before the room of a block does."""
    room = max(int(csr.offsets[end] - csr.offsets[begin]) for begin, end in blocks)
    offsets, sources = [], []
    weights: list[np.ndarray] | None = None if csr.weights is None else []
    for begin, end in blocks:
        first = int(csr.offsets[begin])
        whole = (begin, end) == (0, csr.rows)
        offsets.append(csr.offsets if whole else np.ascontiguousarray(csr.offsets[begin : end + 1] - first))
        sources.append(_with_room(csr.sources[first:], room))
        if csr.weights is not None and weights is not None:
            weights.append(_with_room(csr.weights[first:], room))
    return Edges(
        csr.columns, tuple(offsets), tuple(sources), None, exchange, None if weights is None else tuple(weights)
    )


def _with_room(array: np.ndarray, room: int) -> np.ndarray:
    """The first ``room`` elements, the array itself where these are all, with zeros behind those that there are."""
    if len(array) >= room:
        return array[:room]
    return np.concatenate([array, np.zeros(room - len(array), array.dtype)])
