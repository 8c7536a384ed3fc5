"""Opaque operators of matrices, by LAPACK: systems of equations, Cholesky factors, products of groups of rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from burnish.errors import InputError
from burnish.loops.expr import FLOATS
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import Application, differentiated, opaque, require, require_input
from burnish.ops.terms import GraphTerm


def _lapack(name: str, function: Callable[..., Any], *matrices: np.ndarray) -> np.ndarray:
    """A result of LAPACK, of halves computed in float32."""
    dtype = matrices[0].dtype
    try:
        found = function(*(m.astype(np.float32) if dtype.itemsize == 2 else m for m in matrices))
    except np.linalg.LinAlgError as error:
        raise InputError(f"{name}: found a matrix for which LAPACK says: {error}; allowed: others") from None
    return np.asarray(found).astype(dtype)


def _require_square(x: Tensor, argument: str) -> None:
    ok = len(x.shape) > 1 and x.shape[-1] == x.shape[-2]
    require(ok, f"input '{argument}'", f"shape {list(x.shape)}", "square matrices")


def _turned(x: GraphTerm, rank: int) -> GraphTerm:
    """Transposed matrices."""
    return x.transpose(*range(rank - 2), rank - 1, rank - 2)


def _solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _lapack("solve", np.linalg.solve, a, b)


def _solve_gradient(a: Application) -> list[str | None]:
    """Gradient of solve: of the right side ``G = solve(A', dY)``, of the matrix ``-G Y'``."""
    assert a.seeds[0] is not None
    (shape, dtype), _ = a.types
    seed, y = GraphTerm(a, a.seeds[0], dtype), GraphTerm(a, a.outputs[0], dtype)
    right = _turned(GraphTerm.of(a, 0), len(shape)).apply("solve", seed)
    return [right.apply("matmul", y, transpose_b=True).apply("neg").name, right.name]


@differentiated(_solve_gradient)
@opaque(_solve)
def solve(name: str, a: Tensor, b: Tensor) -> Tensor:
    """``x`` [..., N, K] with ``a x = b``, of square matrices ``a`` [..., N, N]; calls refuse singular ones."""
    require_input(a, "a", dtype=FLOATS)
    _require_square(a, "a")
    require_input(b, "b", dtype=(a.dtype,))
    ok = len(b.shape) == len(a.shape) and b.shape[:-1] == a.shape[:-1]
    require(ok, "input 'b'", f"shape {list(b.shape)}", f"{list(a.shape[:-1])} and a number of columns")
    return placeholder(b.shape, a.dtype, name)


def _cholesky(x: np.ndarray) -> np.ndarray:
    return _lapack("cholesky", np.linalg.cholesky, x)


def _cholesky_gradient(a: Application) -> list[str | None]:
    """``(S + S') / 2`` with ``S = L'^-1 P L^-1``, P the lower triangle of ``L' dL`` with half its diagonal.

    Source: Murray, Differentiation of the Cholesky decomposition (2016), eq. 10.
    """
    assert a.seeds[0] is not None
    shape, dtype = a.types[0]
    rank, n = len(shape), shape[-1]
    seed, factor = GraphTerm(a, a.seeds[0], dtype), GraphTerm(a, a.outputs[0], dtype)
    lower = factor.apply("matmul", seed, transpose_a=True) * GraphTerm.constant(a, np.tri(n) - np.eye(n) / 2, dtype)
    left = _turned(factor, rank)
    s = left.apply("solve", _turned(left.apply("solve", lower), rank))  # the transposed one
    return [((s + _turned(s, rank)) * 0.5).name]


@differentiated(_cholesky_gradient)
@opaque(_cholesky)
def cholesky(name: str, x: Tensor) -> Tensor:
    """The lower factors ``L`` with ``L L' = x``, of symmetric positive matrices ``x`` [..., N, N], of which the lower
    triangles are read; others are refused at the call.
    """
    require_input(x, "x", dtype=FLOATS)
    _require_square(x, "x")
    return placeholder(x.shape, x.dtype, name)


def _log_determinant(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sign, size = np.linalg.slogdet(x.astype(np.float64))
    return np.asarray(sign).astype(x.dtype), np.asarray(size).astype(x.dtype)


def _log_determinant_gradient(a: Application) -> list[str | None]:
    """Gradient of the log-determinant: the transposed inverse."""
    shape, dtype = a.types[0]
    if a.seeds[1] is None:
        return [None]
    one = GraphTerm.constant(a, np.eye(shape[-1]), dtype).expand(*shape)
    inverse = _turned(GraphTerm.of(a, 0), len(shape)).apply("solve", one)
    return [(inverse * GraphTerm(a, a.seeds[1], dtype).reshape(*shape[:-2], 1, 1)).name]


@differentiated(_log_determinant_gradient)
@opaque(_log_determinant)
def log_determinant(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The signs of the determinants of square matrices ``x`` [..., N, N], and the logarithms of their sizes."""
    require_input(x, "x", dtype=FLOATS)
    _require_square(x, "x")
    return placeholder(x.shape[:-2], x.dtype, f"{name}.0"), placeholder(x.shape[:-2], x.dtype, f"{name}.1")


# --- groups of rows ---------------------------------------------------------------------------------------------------


def _bounds(ends: np.ndarray, rows: int) -> list[tuple[int, int]]:
    """Row ranges (begin, end) of the groups. Raises InputError for ends that are in no order."""
    given = [0, *ends.tolist()]
    if given != sorted(given) or given[-1] > rows:
        raise InputError(f"grouped_matmul: input 'ends': found {ends.tolist()}; allowed: in order, up to {rows} rows")
    return list(pairwise(given))


def _grouped_matmul(x: np.ndarray, weight: np.ndarray, ends: np.ndarray) -> np.ndarray:
    work = np.float32 if x.dtype.itemsize == 2 else x.dtype
    found = np.zeros((len(x), weight.shape[2]), x.dtype)
    for own, (begin, end) in zip(weight, _bounds(ends, len(x)), strict=True):
        if end > begin:
            found[begin:end] = x[begin:end].astype(work, copy=False) @ own.astype(work, copy=False)
    return found


def _grouped_matmul_gradient(a: Application) -> list[str | None]:
    """Gradient of grouped_matmul: of the rows the product with transposed matrices, of each matrix that of its own
    rows.
    """
    assert a.seeds[0] is not None
    turned = a.add("transpose", a.inputs[1], perm=(0, 2, 1))
    rows = a.add("grouped_matmul", a.seeds[0], turned, a.inputs[2])
    return [rows, a.add("grouped_outer", a.inputs[0], a.seeds[0], a.inputs[2]), None]


@differentiated(_grouped_matmul_gradient)
@opaque(_grouped_matmul)
def grouped_matmul(name: str, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows of ``x`` [M, K] times the matrix of their group, ``weight`` [G, K, N]: group g ends before row ``ends[g]``
    and begins where the one before ends (a mixture of experts). Rows behind the last group are 0.
    """
    _require_groups(x, ends)
    require_input(weight, "weight", 3, "[G, K, N]", dtype=(x.dtype,))
    require_input(weight, "weight", shape=(ends.shape[0], x.shape[1], weight.shape[2]))
    return placeholder((x.shape[0], weight.shape[2]), x.dtype, name)


def _require_groups(x: Tensor, ends: Tensor) -> None:
    require_input(x, "x", 2, "[M, K]", dtype=FLOATS)
    require_input(ends, "ends", 1, "[G]", dtype=("int64", "int32"))


def _grouped_outer(x: np.ndarray, y: np.ndarray, ends: np.ndarray) -> np.ndarray:
    work = np.float32 if x.dtype.itemsize == 2 else x.dtype
    bounds = _bounds(ends, len(x))
    found = np.zeros((len(bounds), x.shape[1], y.shape[1]), x.dtype)
    for g, (begin, end) in enumerate(bounds):
        found[g] = x[begin:end].astype(work, copy=False).T @ y[begin:end].astype(work, copy=False)
    return found


def _grouped_outer_gradient(a: Application) -> list[str | None]:
    assert a.seeds[0] is not None
    turned = a.add("transpose", a.seeds[0], perm=(0, 2, 1))
    return [
        a.add("grouped_matmul", a.inputs[1], turned, a.inputs[2]),
        a.add("grouped_matmul", a.inputs[0], a.seeds[0], a.inputs[2]),
        None,
    ]


@differentiated(_grouped_outer_gradient)
@opaque(_grouped_outer)
def grouped_outer(name: str, x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """Grouped outer products ``x' y`` [K, N] of the rows of each group of :data:`grouped_matmul`: [G, K, N]."""
    _require_groups(x, ends)
    require_input(y, "y", dtype=(x.dtype,))
    require_input(y, "y", shape=(x.shape[0], *y.shape[1:]))
    require_input(y, "y", 2, "[M, N]")
    return placeholder((ends.shape[0], x.shape[1], y.shape[1]), x.dtype, name)


OPERATORS = (solve, cholesky, log_determinant, grouped_matmul, grouped_outer)
