"""Opaque operators on the structure of graphs: offsets, order and targets of edges, as in CSR matrices, by NumPy.

They run once for every call of a model that has them in it: give a model the structures that it needs as inputs.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import numpy as np

from burnish.loops.expr import FLOATS
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import Application, declare, differentiated, internal, opaque, require, require_input

INDEX_DTYPES = ("int64", "int32")


@cache
def _loops() -> Any:
    """Loaded where edges are first sorted: a model that is loaded to be run needs no compiler of loops."""
    return importlib.import_module("burnish.ops.csr_loops")


def _checked(rows: np.ndarray, extent: int) -> np.ndarray:
    """The rows; IndexError for one outside of 0 to ``extent``."""
    if len(rows) and not 0 <= rows.min() <= rows.max() < extent:
        raise IndexError(f"rows of edges: found {rows.min()} to {rows.max()}; allowed: 0 to {extent - 1}")
    return rows


def _checked_offsets(offsets: np.ndarray, edges: int) -> np.ndarray:
    """The offsets; IndexError for ones that fall or leave the edges."""
    if len(offsets) and (offsets[0] < 0 or offsets[-1] > edges or (np.diff(offsets) < 0).any()):
        raise IndexError(f"offsets of edges: found {offsets[0]} to {offsets[-1]}; allowed: 0 to {edges}, rising")
    return offsets


def _csr_offsets(rows: np.ndarray, extent: int) -> np.ndarray:
    counts = np.bincount(_checked(rows, extent), minlength=extent)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


@differentiated("none")
@declare(structure=True)
@opaque(_csr_offsets)
def csr_offsets(name: str, rows: Tensor, *, extent: int) -> Tensor:
    """Row pointers of a CSR structure: int64 [extent + 1], the beginnings of ``extent`` rows, of ``rows`` [E] once
    ordered.
    """
    _require_rows(rows, "rows")
    return placeholder((extent + 1,), "int64", name)


def _csr_order(rows: np.ndarray, extent: int) -> np.ndarray:
    return np.asarray(_loops().order(_checked(rows, extent), _csr_offsets(rows, extent)))


@differentiated("none")
@declare(structure=True)
@opaque(_csr_order)
def csr_order(name: str, rows: Tensor, *, extent: int) -> Tensor:
    """The edges in order of their row, of ``extent`` rows, and of equal ones in their own: int32 [E]."""
    _require_rows(rows, "rows")
    return placeholder(rows.shape, "int32", name)


def _csr_targets(offsets: np.ndarray, extent: int) -> np.ndarray:
    counts = np.diff(_checked_offsets(offsets, extent))
    found = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), counts)
    if len(found) != extent:
        raise IndexError(f"offsets of edges: found {len(found)} edges; allowed: {extent}")
    return found


@differentiated("none")
@declare(structure=True)
@opaque(_csr_targets)
def csr_targets(name: str, offsets: Tensor, *, extent: int) -> Tensor:
    """The row of each of ``extent`` edges, int32 [extent], from where the edges of each row begin (``csr_offsets``)."""
    _require_rows(offsets, "offsets")
    return placeholder((extent,), "int32", name)


def _csr_transposed(offsets: np.ndarray, sources: np.ndarray, extent: int) -> np.ndarray:
    return np.asarray(_csr_targets(offsets, len(sources))[_csr_order(sources, extent)])


@differentiated("none")
@declare(structure=True)
@opaque(_csr_transposed)
def csr_transposed(name: str, offsets: Tensor, sources: Tensor, *, extent: int) -> Tensor:
    """The row of each edge, int32 [E], in order of its source, of ``extent`` ones: the sources of the transpose."""
    _require_rows(offsets, "offsets")
    _require_rows(sources, "sources")
    return placeholder(sources.shape, "int32", name)


def _csr_block_pointers(offsets: np.ndarray, sources: np.ndarray, extent: int, rows: int) -> np.ndarray:
    pointers = np.zeros((max(1, -(-extent // rows)), len(offsets)), np.int32)
    _loops().count_blocks(_checked_offsets(offsets, len(sources)), _checked(sources, extent), rows, pointers)
    return pointers


@differentiated("none")
@declare(structure=True)
@opaque(_csr_block_pointers)
def csr_block_pointers(name: str, offsets: Tensor, sources: Tensor, *, extent: int, rows: int) -> Tensor:
    """Row pointers by blocks: the beginnings of each vertex's edges within each block of ``rows`` of ``extent``
    sources.

    int32 [blocks, V + 1], of edges in order of blocks and then of vertices: fewer than 2^31.
    """
    _require_rows(offsets, "offsets")
    _require_rows(sources, "sources")
    require(0 < rows <= 1 << 16, "attribute 'rows'", rows, f"1 to {1 << 16}")
    return placeholder((max(1, -(-extent // rows)), offsets.shape[0]), "int32", name)


def _csr_block_places(
    offsets: np.ndarray, sources: np.ndarray, pointers: np.ndarray, extent: int, rows: int
) -> np.ndarray:
    places = np.empty(len(sources), np.uint16)
    own = pointers[:, :-1].copy()
    _loops().fill_blocks(_checked_offsets(offsets, len(sources)), _checked(sources, extent), rows, own, places)
    return places


@differentiated("none")
@declare(structure=True)
@opaque(_csr_block_places)
def csr_block_places(
    name: str, offsets: Tensor, sources: Tensor, pointers: Tensor, *, extent: int, rows: int
) -> Tensor:
    """Each edge's source as its place in its block, uint16 [E], in the order of ``csr_block_pointers``."""
    _require_rows(offsets, "offsets")
    _require_rows(sources, "sources")
    return placeholder(sources.shape, "uint16", name)


def _csr_block_weights(
    offsets: np.ndarray, sources: np.ndarray, pointers: np.ndarray, weights: np.ndarray, extent: int, rows: int
) -> np.ndarray:
    found = np.empty_like(weights)
    own = pointers[:, :-1].copy()
    _loops().fill_weights(_checked_offsets(offsets, len(sources)), _checked(sources, extent), weights, rows, own, found)
    return found


@differentiated("none")
@declare(structure=True)
@opaque(_csr_block_weights)
def csr_block_weights(
    name: str, offsets: Tensor, sources: Tensor, pointers: Tensor, weights: Tensor, *, extent: int, rows: int
) -> Tensor:
    """The weights of edges [E] in the order of ``csr_block_pointers``."""
    _require_rows(offsets, "offsets")
    _require_rows(sources, "sources")
    require_input(weights, "weights", shape=sources.shape, dtype=FLOATS)
    return placeholder(sources.shape, weights.dtype, name)


def _require_rows(t: Tensor, argument: str) -> None:
    require_input(t, argument, 1, dtype=INDEX_DTYPES)


def transposed(a: Application, at: int) -> tuple[str, str]:
    """Offsets and sources of the transpose of a structure, which is the operator's inputs from ``at`` on.

    Given behind offsets and sources, else sorted anew.
    """
    offsets, sources, *given = a.inputs[at:]
    if len(given) > 1:
        return given[0], given[1]
    rows = a.types[0][0][0]
    return a.add("csr_offsets", sources, extent=rows), a.add("csr_transposed", offsets, sources, extent=rows)


def transposed_order(a: Application, at: int) -> str:
    """The position among the edges of each edge of the transpose: given, or sorted anew."""
    given = a.inputs[at + 4 :]
    return (
        given[0]
        if given and a.types[at + 4][1] in INDEX_DTYPES
        else a.add("csr_order", a.inputs[at + 1], extent=a.types[0][0][0])
    )


OPERATORS = internal(
    csr_offsets,
    csr_order,
    csr_targets,
    csr_transposed,
    csr_block_pointers,
    csr_block_places,
    csr_block_weights,
)
