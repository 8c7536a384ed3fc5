"""Structures that layers read of a graph's edges: as they are, without self loops, or with one at each vertex."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from burnish.gnn.data.csr import CSR, Weights
from burnish.gnn.model.layers import STRUCTURES


def structures_of(names: Iterable[str], csr: CSR) -> dict[str, CSR]:
    """Structures of a whole graph, ``names`` of ``layers.STRUCTURES``, by name."""
    return {name: _whole(name, csr) for name in names}


def _whole(structure: str, csr: CSR) -> CSR:
    if structure == STRUCTURES[0]:
        return csr
    if structure == STRUCTURES[1]:
        return csr.without_self_loops()
    # Loops that are there twice count once, as everywhere.
    return csr.without_self_loops().with_self_loops() if csr.weights is None else adapted(structure, csr, 0)


def adapted(structure: str, part: CSR, begin: int, means: Weights | None = None) -> CSR:
    """Rows of a structure of ``layers.STRUCTURES`` from those of a graph, for the vertices from ``begin`` on.

    ``means``: weights of self loops that are added, by default :func:`mean_weights`; of out-edges those of in-edges.
    """
    if structure == STRUCTURES[0]:
        return part
    bare = _bare(part, begin)
    if structure == STRUCTURES[1]:
        return bare
    own = mean_weights(part, begin) if means is None else means
    return bare.add_loops(np.zeros(bare.rows, np.bool_), begin, own)


def mean_weights(part: CSR, begin: int = 0) -> Weights:
    """The mean weight of the edges that lead to each vertex from another, float32 [rows]; 0 of none, or of no weights.

    Those of the self loops that attention adds (``add_self_loops`` with ``fill_value="mean"`` in PyG's GATConv).
    """
    if part.weights is None:
        return np.zeros(part.rows, np.float32)
    others = ~_loops(part, begin)
    rows = np.repeat(np.arange(part.rows), part.degrees)[others]
    sums = np.bincount(rows, part.weights[others], part.rows)
    return (sums / np.maximum(np.bincount(rows, minlength=part.rows), 1)).astype(np.float32)


def _bare(part: CSR, begin: int) -> CSR:
    """Without edges from a vertex to itself."""
    loops = _loops(part, begin)
    if not loops.any():
        return part
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(loops)])
    weights = None if part.weights is None else part.weights[~loops]
    return CSR(part.offsets - before[part.offsets], part.sources[~loops], part.columns, weights)


def _loops(part: CSR, begin: int) -> np.ndarray:
    """Which edges go from a vertex to itself."""
    targets = np.repeat(np.arange(begin, begin + part.rows, dtype=np.int32), part.degrees)
    return np.asarray(part.sources == targets)
