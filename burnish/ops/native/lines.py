"""Running products along lines, determinants by elimination, and pairwise coupling of classes, as loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from burnish.loops.sizes import greatest, hinted
from burnish.ops.native.ordering import SORTABLE
from burnish.ops.operator import NativeCall, TensorType, normal_axis

MOST = 1 << 9  # rows of a matrix that is eliminated by a kernel: it has a copy in scratch memory
ROUNDS = 100  # of pairwise coupling


def _products(x: Any, out: Any, exclusive: int, reverse: int, begin: int, end: int) -> None:
    """[outer, extent, inner]: running products along the middle."""
    extent, inner = x.shape[1], x.shape[2]
    for o in range(begin, end):
        for k in range(extent):
            at = extent - 1 - k if reverse else k
            before = at + 1 if reverse else at - 1
            for i in range(inner):
                if k == 0:
                    out[o, at, i] = 1 if exclusive else x[o, at, i]
                elif exclusive:
                    out[o, at, i] = out[o, before, i] * x[o, before, i]
                else:
                    out[o, at, i] = out[o, before, i] * x[o, at, i]


def cumprod_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``cumprod``."""
    ((shape, dtype),) = inputs
    if dtype not in SORTABLE:
        return None
    axis = normal_axis(attrs["axis"], len(shape))
    lines = ((prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])), dtype)
    numbers = (int(attrs["exclusive"]), int(attrs["reverse"]))
    return NativeCall(_products, (lines, lines), numbers, lines[0][0], hinted(prod(shape)))


def _determinants(x: Any, out: Any, rows: Any, begin: int, end: int) -> None:
    """Elimination with the greatest pivot of each column, of matrices [matrices, N, N]."""
    n = x.shape[1]
    for m in range(begin, end):
        for i in range(n):
            for j in range(n):
                rows[i, j] = x[m, i, j]
        found = 1.0
        for k in range(n):
            pivot = k
            for i in range(k + 1, n):
                if abs(rows[i, k]) > abs(rows[pivot, k]):
                    pivot = i
            if pivot != k:
                found = -found
                for j in range(k, n):
                    rows[k, j], rows[pivot, j] = rows[pivot, j], rows[k, j]
            found = found * rows[k, k]
            if rows[k, k] == 0.0:
                break
            for i in range(k + 1, n):
                factor = rows[i, k] / rows[k, k]
                for j in range(k + 1, n):
                    rows[i, j] -= factor * rows[k, j]
        out[m] = found


def determinant_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``determinant``."""
    ((shape, dtype),) = inputs
    n, count = shape[-1], prod(shape[:-2])
    if dtype not in ("float32", "float64") or greatest(n) > MOST:
        return None
    views = (((count, n, n), dtype), ((count,), dtype))
    return NativeCall(_determinants, views, (), count, hinted(prod(shape)) * hinted(n), (((n, n), "float64"),))


def _couple(pairs: Any, out: Any, q: Any, p: Any, product: Any, begin: int, end: int) -> None:
    """The fixed point of Wu, Lin and Weng (2004), second method, of rows ``begin`` to ``end``."""
    n = pairs.shape[1]
    for row in range(begin, end):
        for i in range(n):
            p[i] = 1.0 / n
            own = 0.0
            for j in range(n):
                if j != i:
                    own += float(pairs[row, j, i]) * float(pairs[row, j, i])
                    q[i, j] = -float(pairs[row, j, i]) * float(pairs[row, i, j])
            q[i, i] = own
        for _ in range(ROUNDS):
            total, away = 0.0, 0.0
            for i in range(n):
                product[i] = 0.0
                for j in range(n):
                    product[i] += q[i, j] * p[j]
                total += p[i] * product[i]
            for i in range(n):
                away = max(away, abs(product[i] - total))
            if not away >= 0.005 / n:
                break
            # Gauss-Seidel: p[t] is solved for with the others fixed, then p is normalized. `product` = Q p and
            # `total` = p' Q p are updated for the step and the scale, in O(n), instead of computed anew.
            for t in range(n):
                own = q[t, t]
                step = (total - product[t]) / (1.0 if own == 0.0 else own)
                p[t] += step
                total = (total + step * (step * own + 2 * product[t])) / (1 + step) / (1 + step)
                for j in range(n):
                    product[j] = (product[j] + step * q[t, j]) / (1 + step)
                    p[j] = p[j] / (1 + step)
        for i in range(n):
            out[row, i] = p[i]


def coupled_probabilities_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``coupled_probabilities``."""
    ((shape, _),) = inputs
    n = shape[1]
    scratch = (((n, n), "float64"), ((n,), "float64"), ((n,), "float64"))
    return NativeCall(_couple, (*inputs, *outputs), (), shape[0], hinted(prod(shape)) * 50, scratch)
