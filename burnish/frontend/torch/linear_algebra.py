"""Translators of ATen linear algebra: inverses, systems of equations, determinants, Cholesky factors, grouped products.

What LAPACK refuses is refused by the call; ``info``, which says so in torch, is 0 otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.frontend.torch.context import Ref, TorchContext, Translator


def _fine(c: TorchContext, x: Ref) -> Ref:
    return c.constant(np.zeros(c.shape(x)[:-2]), "int32")


def _turned(c: TorchContext, x: Ref) -> Ref:
    rank = c.rank(x)
    return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _one(c: TorchContext, x: Ref) -> Ref:
    return c.expand(c.constant(np.eye(c.shape(x)[-1]), c.dtype(x)), c.shape(x))


def _solved(c: TorchContext, a: Ref, b: Ref, left: bool = True) -> Ref:
    """``x`` with ``a x = b``, or ``x a = b``; batches broadcast."""
    if not left:
        return _turned(c, _solved(c, _turned(c, a), _turned(c, b)))
    lead = np.broadcast_shapes(c.shape(a)[:-2], c.shape(b)[:-2])
    return c.add("solve", *(c.expand(x, (*lead, *c.shape(x)[-2:])) for x in (a, b)))


def _inverse(c: TorchContext, A: Ref) -> Ref:  # noqa: N803
    return c.add("solve", A, _one(c, A))


def _inverse_of(c: TorchContext, x: Ref) -> Ref:
    return _inverse(c, x)


def _checked_inverse(c: TorchContext, A: Ref, check_errors: bool = False) -> list[Ref]:  # noqa: N803
    return [_inverse(c, A), _fine(c, A)]


def _solve(c: TorchContext, A: Ref, B: Ref, left: bool = True) -> Ref:  # noqa: N803
    """A right side of one dimension less than the matrices is a vector."""
    if c.rank(B) == 1 or c.shape(B) == c.shape(A)[:-1]:
        return c.reshape(_solved(c, A, c.reshape(B, (*c.shape(B), 1))), c.out_shape)
    return _solved(c, A, B, left)


def _checked_solve(
    c: TorchContext, A: Ref, B: Ref, left: bool = True, check_errors: bool = False  # noqa: N803
) -> list[Ref | None]:  # fmt: skip
    return [_solve(c, A, B, left), None, None, _fine(c, A)]


def _triangle(c: TorchContext, x: Ref, upper: bool, unit: bool) -> Ref:
    """One triangle of matrices, with ones on the diagonal if ``unit``."""
    n = c.shape(x)[-1]
    inside = np.tri(n, k=-1 if unit else 0, dtype=bool)
    y = c.add("where", c.constant(inside.T if upper else inside), x, c.scalar(0, x))
    return c.add("add", y, c.constant(np.eye(n), c.dtype(x))) if unit else y


def _solve_triangular(
    c: TorchContext, x: Ref, B: Ref, upper: bool, left: bool = True, unitriangular: bool = False  # noqa: N803
) -> Ref:  # fmt: skip
    return _solved(c, _triangle(c, x, upper, unitriangular), B, left)


def _cholesky(c: TorchContext, x: Ref, upper: bool = False) -> Ref:
    factor = c.add("cholesky", _turned(c, x) if upper else x)
    return _turned(c, factor) if upper else factor


def _checked_cholesky(c: TorchContext, x: Ref, upper: bool = False, check_errors: bool = False) -> list[Ref]:
    return [_cholesky(c, x, upper), _fine(c, x)]


def _cholesky_solve(c: TorchContext, x: Ref, input2: Ref, upper: bool = False) -> Ref:
    lower = _triangle(c, _turned(c, input2) if upper else input2, False, False)
    return _solved(c, _turned(c, lower), _solved(c, lower, x))


def _determinant(c: TorchContext, A: Ref) -> list[Ref | None]:  # noqa: N803
    return [c.add("determinant", A), None, None]


def _log_determinant(c: TorchContext, A: Ref) -> list[Ref | None]:  # noqa: N803
    return [*c.add_many("log_determinant", A), None, None]


def _grouped(c: TorchContext, input: Ref, weight: Ref, offs: Ref) -> Ref:
    """Groups of rows, each times its own matrix."""
    return c.add("grouped_matmul", input, weight, offs)


def _grouped_mm(
    c: TorchContext, x: Ref, mat2: Ref, offs: Ref | None = None, bias: Ref | None = None, out_dtype: Any = None
) -> Ref:
    ranks: Sequence[int] = (c.rank(x), c.rank(mat2))
    if offs is None and ranks == (3, 3):
        y = c.add("matmul", x, mat2)
    elif offs is not None and ranks == (2, 3):
        y = c.add("grouped_matmul", x, mat2, offs)
    elif offs is not None and ranks == (2, 2):
        y = c.add("grouped_outer", _turned(c, x), mat2, offs)
    else:
        c.refuse("self, mat2, offs", f"{ranks[0]} and {ranks[1]} dimensions", "2 and 3, or 2 and 2, with offs")
    return c.cast(y if bias is None else c.add("add", y, bias), c.out_dtype)


TRANSLATORS: Mapping[str, Translator] = {
    "aten.linalg_inv": _inverse, "aten.inverse": _inverse_of, "aten.linalg_inv_ex": _checked_inverse,
    "aten.linalg_solve": _solve, "aten._linalg_solve_ex": _checked_solve, "aten.linalg_cholesky": _cholesky,
    "aten.cholesky": _cholesky, "aten.linalg_cholesky_ex": _checked_cholesky,
    "aten.linalg_solve_triangular": _solve_triangular, "aten.cholesky_solve": _cholesky_solve,
    "aten._linalg_det": _determinant, "aten._linalg_slogdet": _log_determinant, "aten._grouped_mm": _grouped_mm,
    "transformers.grouped_mm_fallback": _grouped,
}  # fmt: skip
