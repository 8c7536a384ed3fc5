"""Opaque operators on the structure of graphs: offsets, order and targets of edges, as in CSR matrices, by NumPy.

They run once for every call of a model that has them in it: give a model the structures that it needs as inputs.
"""

from __future__ import annotations

import numpy as np

from burnish.jit import njit
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import (
    Application,
    differentiated,
    opaque,
    require_dtype,
    require_rank,
)

INDEX_DTYPES = ("int64", "int32")


@njit(cache=True)
def _order(rows: np.ndarray, begin: np.ndarray) -> np.ndarray:  # pragma: no cover - compiled
    """Positions of ``rows`` [E] in order of their values, equal ones as they are; row r's begin at ``begin[r]``."""
    place = begin.copy()
    order = np.empty(rows.shape[0], np.int32)
    for e in range(rows.shape[0]):
        order[place[rows[e]]] = e
        place[rows[e]] += 1
    return order


def _checked(rows: np.ndarray, extent: int) -> np.ndarray:
    """The rows; IndexError for one outside of 0 to ``extent``."""
    if len(rows) and not 0 <= rows.min() <= rows.max() < extent:
        raise IndexError(f"rows of edges: found {rows.min()} to {rows.max()}; allowed: 0 to {extent - 1}")
    return rows


def _csr_offsets(rows: np.ndarray, extent: int) -> np.ndarray:
    counts = np.bincount(_checked(rows, extent), minlength=extent)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


@differentiated("none")
@opaque(_csr_offsets)
def csr_offsets(name: str, rows: Tensor, *, extent: int) -> Tensor:
    """Where the edges of each of ``extent`` rows begin, once they are in order: int64 [extent + 1], of ``rows`` [E]."""
    _require_rows(rows, "rows")
    return placeholder((extent + 1,), "int64", name)


def _csr_order(rows: np.ndarray, extent: int) -> np.ndarray:
    return np.asarray(_order(_checked(rows, extent), _csr_offsets(rows, extent)))


@differentiated("none")
@opaque(_csr_order)
def csr_order(name: str, rows: Tensor, *, extent: int) -> Tensor:
    """The edges in order of their row, of ``extent`` rows, and of equal ones in their own: int32 [E]."""
    _require_rows(rows, "rows")
    return placeholder(rows.shape, "int32", name)


def _csr_targets(offsets: np.ndarray, extent: int) -> np.ndarray:
    found = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))
    if len(found) != extent:
        raise IndexError(f"offsets of edges: found {len(found)} edges; allowed: {extent}")
    return found


@differentiated("none")
@opaque(_csr_targets)
def csr_targets(name: str, offsets: Tensor, *, extent: int) -> Tensor:
    """The row of each of ``extent`` edges, int32 [extent], from where the edges of each row begin (``csr_offsets``)."""
    _require_rows(offsets, "offsets")
    return placeholder((extent,), "int32", name)


def _require_rows(t: Tensor, argument: str) -> None:
    require_rank(t, argument, 1)
    require_dtype(t, argument, INDEX_DTYPES)


def transposed(a: Application, at: int) -> tuple[str, str]:
    """Offsets and sources of the transpose of a structure, which is the operator's inputs from ``at`` on.

    Given behind offsets and sources, else sorted anew.
    """
    offsets, sources, *given = a.inputs[at:]
    if given:
        return given[0], given[1]
    edges = a.types[at + 1][0][0]
    targets = a.add("gather", a.add("csr_targets", offsets, extent=edges), transposed_order(a, at))
    return a.add("csr_offsets", sources, extent=a.types[0][0][0]), targets


def transposed_order(a: Application, at: int) -> str:
    """The position among the edges of each edge of the transpose: given, or sorted anew."""
    given = a.inputs[at + 4 :]
    return given[0] if given else a.add("csr_order", a.inputs[at + 1], extent=a.types[0][0][0])


OPERATORS = (csr_offsets, csr_order, csr_targets)
