"""Loops over the edges of graphs, compiled: counting sorts by row, and by block of rows."""

from __future__ import annotations

import numpy as np

from burnish.base.jit import njit


@njit(cache=True)
def order(rows: np.ndarray, begin: np.ndarray) -> np.ndarray:  # pragma: no cover - compiled
    """Positions of ``rows`` [E] in order of their values, equal ones as they are; row r's begin at ``begin[r]``."""
    place = begin.copy()
    order = np.empty(rows.shape[0], np.int32)
    for e in range(rows.shape[0]):
        order[place[rows[e]]] = e
        place[rows[e]] += 1
    return order


@njit(cache=True)
def count_blocks(offsets: np.ndarray, sources: np.ndarray, rows: int, pointers: np.ndarray) -> None:  # pragma: no cover
    """Row pointers by block and vertex, in order of blocks and then of vertices."""
    blocks, count = pointers.shape[0], pointers.shape[1] - 1
    for v in range(count):
        for e in range(offsets[v], offsets[v + 1]):
            pointers[sources[e] // rows, v + 1] += 1
    total = 0
    for b in range(blocks):
        pointers[b, 0] = total
        for v in range(count):
            total += pointers[b, v + 1]
            pointers[b, v + 1] = total


@njit(cache=True)
def fill_blocks(  # pragma: no cover - compiled
    offsets: np.ndarray, sources: np.ndarray, rows: int, pointers: np.ndarray, places: np.ndarray
) -> None:
    """The place in its block of each edge's source, in the order of ``pointers``, which are advanced."""
    for v in range(offsets.shape[0] - 1):
        for e in range(offsets[v], offsets[v + 1]):
            b = sources[e] // rows
            places[pointers[b, v]] = sources[e] - b * rows
            pointers[b, v] += 1


@njit(cache=True)
def fill_weights(  # pragma: no cover - compiled
    offsets: np.ndarray, sources: np.ndarray, weights: np.ndarray, rows: int, pointers: np.ndarray, found: np.ndarray
) -> None:
    """Each edge's weight, in the order of ``pointers``, which are advanced."""
    for v in range(offsets.shape[0] - 1):
        for e in range(offsets[v], offsets[v + 1]):
            b = sources[e] // rows
            found[pointers[b, v]] = weights[e]
            pointers[b, v] += 1
