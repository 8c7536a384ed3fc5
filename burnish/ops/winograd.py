"""Winograd convolution F(m x m, 3 x 3): an explicit algorithm beside the definition of ``conv2d``.

Source: thesis-chen section 4.6.2 (the pre-transformed "PT" form); matrices by Toom-Cook interpolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np

from burnish.loops.expr import Const, Expr, Var, all_of, equal, select
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.operator import Ints, operator, require, require_rank

KERNEL = 3
# Interpolation points besides infinity. For m = 4 the usual {0, 1, -1, 2, -2} costs three times the rounding error.
POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(11, 8), Fraction(-11, 8)),
}


@cache
def matrices(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``A^T`` [m, n], ``G`` [n, 3], ``B^T`` [n, n], float64, n = m + 2: ``y = A^T [(G g G^T) * (B^T d B)] A``."""
    points = POINTS[m]
    n = m + KERNEL - 1
    outer = np.zeros((m, n))
    weight = np.zeros((n, KERNEL))
    data = np.zeros((n, n))
    for j, p in enumerate(points):
        others = [q for q in points if q != p]
        scale = Fraction(1)
        for q in others:
            scale *= p - q
        outer[:, j] = [float(p**i) for i in range(m)]
        weight[j] = [float(p**k / scale) for k in range(KERNEL)]
        data[j, : n - 1] = _coefficients(others)
    outer[m - 1, n - 1] = 1
    weight[n - 1, KERNEL - 1] = 1
    data[n - 1] = _coefficients(points)
    return outer, weight, data


def _coefficients(roots: Sequence[Fraction]) -> list[float]:
    """The polynomial with these roots, constant term first."""
    poly = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *poly]
        poly = [s - root * p for s, p in zip(shifted, [*poly, Fraction(0)], strict=True)]
    return [float(c) for c in poly]


def transform_weight(weight: np.ndarray, m: int) -> np.ndarray:
    """``G g G^T`` of a weight [O, C, 3, 3] as [n, n, O, C], computed in float64."""
    g = matrices(m)[1]
    return np.einsum("ik,ockl,jl->ijoc", g, weight.astype(np.float64), g, optimize=True).astype(weight.dtype)


def _entry(matrix: np.ndarray, row: Expr, column: Expr, dtype: str) -> Expr:
    """``matrix[row, column]`` as nested selects: a literal once the loops over both are unrolled."""

    def pick(values: Sequence[Expr], index: Expr) -> Expr:
        chosen = values[-1]
        for position in reversed(range(len(values) - 1)):
            chosen = select(equal(index, position), values[position], chosen)
        return chosen

    return pick([pick([Const(float(v), dtype) for v in r], column) for r in matrix], row)


@operator
def winograd_conv2d(name: str, x: Tensor, weight: Tensor, *, m: int = 4, pads: Ints = (1, 1, 1, 1)) -> Tensor:
    """The 3x3, stride 1 convolution of ``x`` [N, C, H, W] with a weight transformed by :func:`transform_weight`.

    ``weight``: [m + 2, m + 2, O, C]. Stages, p running over tiles of m x m outputs: ``name.rows`` [p, c, i, s] and
    ``name.data`` [i, j, c, p] (``B^T d B``), ``name.product`` [i, j, oc, p], ``name.columns`` [p, oc, a, j], ``name``.
    """
    require_rank(x, "x", 4, "[N, C, H, W]")
    require_rank(weight, "weight", 4, "[m + 2, m + 2, O, C]")
    require(m in POINTS, "attribute 'm'", m, f"one of {sorted(POINTS)}")
    batch, channels, height, width = x.shape
    outputs, n = weight.shape[2], m + KERNEL - 1
    out_h, out_w = height + pads[0] + pads[2] - 2, width + pads[1] + pads[3] - 2
    tiles_h, tiles_w = -(-out_h // m), -(-out_w // m)
    tiles = batch * tiles_h * tiles_w
    outer, _, data = matrices(m)
    dtype = x.dtype

    def pixel(p: Expr, c: Expr, r: Expr, s: Expr) -> Expr:
        h = p // tiles_w % tiles_h * m + r - pads[0]
        w = p % tiles_w * m + s - pads[1]
        inside = all_of(h >= 0, h < height, w >= 0, w < width)
        return select(inside, x[p // (tiles_h * tiles_w), c, h, w], Const(0.0, dtype))

    def rows_of(p: Var, c: Var, i: Var, s: Var) -> Expr:
        r = reduce_axis(n, "r")
        return sum_over(_entry(data, i, r.var, dtype) * pixel(p, c, r.var, s), r)

    rows = compute((tiles, channels, n, n), rows_of, f"{name}.rows")

    def data_of(i: Var, j: Var, c: Var, p: Var) -> Expr:
        s = reduce_axis(n, "s")
        return sum_over(_entry(data, j, s.var, dtype) * rows[p, c, i, s.var], s)

    transformed = compute((n, n, channels, tiles), data_of, f"{name}.data")

    def product_of(i: Var, j: Var, oc: Var, p: Var) -> Expr:
        ic = reduce_axis(channels, "ic")
        return sum_over(transformed[i, j, ic.var, p] * weight[i, j, oc, ic.var], ic)

    product = compute((n, n, outputs, tiles), product_of, f"{name}.product")

    def columns_of(p: Var, oc: Var, a: Var, j: Var) -> Expr:
        i = reduce_axis(n, "i")
        return sum_over(_entry(outer, a, i.var, dtype) * product[i.var, j, oc, p], i)

    columns = compute((tiles, outputs, m, n), columns_of, f"{name}.columns")

    def output_of(b: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        j = reduce_axis(n, "j")
        p = (b * tiles_h + oh // m) * tiles_w + ow // m
        return sum_over(_entry(outer, ow % m, j.var, dtype) * columns[p, oc, oh % m, j.var], j)

    return compute((batch, outputs, out_h, out_w), output_of, name)


OPERATORS = (winograd_conv2d,)
