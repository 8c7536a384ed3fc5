"""Winograd convolution F(m x m, 3 x 3): an explicit algorithm beside the definition of ``conv2d``.

Source: thesis-chen section 4.6.2 (the pre-transformed "PT" form).
"""

from __future__ import annotations

import numpy as np

from burnish.loops.expr import Const, Expr, Var, all_of, select
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.interpolation import entry, matrices
from burnish.ops.operator import Ints, operator, require, require_rank

KERNEL = 3
TILES = (2, 4)  # the sizes m there are


def transform_weight(weight: np.ndarray, m: int) -> np.ndarray:
    """``G g G^T`` of a weight [O, C, 3, 3] as [n, n, O, C], computed in float64."""
    g = matrices(m, KERNEL)[1]
    return np.einsum("ik,ockl,jl->ijoc", g, weight.astype(np.float64), g, optimize=True).astype(weight.dtype)


@operator
def winograd_conv2d(name: str, x: Tensor, weight: Tensor, *, m: int = 4, pads: Ints = (1, 1, 1, 1)) -> Tensor:
    """The 3x3, stride 1 convolution of ``x`` [N, C, H, W] with a weight transformed by :func:`transform_weight`.

    ``weight``: [m + 2, m + 2, O, C]. Stages, p running over tiles of m x m outputs: ``name.rows`` [p, c, i, s] and
    ``name.data`` [i, j, c, p] (``B^T d B``), ``name.product`` [i, j, oc, p], ``name.columns`` [p, oc, a, j], ``name``.
    """
    require_rank(x, "x", 4, "[N, C, H, W]")
    require_rank(weight, "weight", 4, "[m + 2, m + 2, O, C]")
    require(m in TILES, "attribute 'm'", m, f"one of {list(TILES)}")
    batch, channels, height, width = x.shape
    outputs, n = weight.shape[2], m + KERNEL - 1
    out_h, out_w = height + pads[0] + pads[2] - 2, width + pads[1] + pads[3] - 2
    tiles_h, tiles_w = -(-out_h // m), -(-out_w // m)
    tiles = batch * tiles_h * tiles_w
    outer, _, data = matrices(m, KERNEL)
    dtype = x.dtype

    def pixel(p: Expr, c: Expr, r: Expr, s: Expr) -> Expr:
        h = p // tiles_w % tiles_h * m + r - pads[0]
        w = p % tiles_w * m + s - pads[1]
        inside = all_of(h >= 0, h < height, w >= 0, w < width)
        return select(inside, x[p // (tiles_h * tiles_w), c, h, w], Const(0.0, dtype))

    def rows_of(p: Var, c: Var, i: Var, s: Var) -> Expr:
        r = reduce_axis(n, "r")
        return sum_over(entry(data, i, r.var, dtype) * pixel(p, c, r.var, s), r)

    rows = compute((tiles, channels, n, n), rows_of, f"{name}.rows")

    def data_of(i: Var, j: Var, c: Var, p: Var) -> Expr:
        s = reduce_axis(n, "s")
        return sum_over(entry(data, j, s.var, dtype) * rows[p, c, i, s.var], s)

    transformed = compute((n, n, channels, tiles), data_of, f"{name}.data")

    def product_of(i: Var, j: Var, oc: Var, p: Var) -> Expr:
        ic = reduce_axis(channels, "ic")
        return sum_over(transformed[i, j, ic.var, p] * weight[i, j, oc, ic.var], ic)

    product = compute((n, n, outputs, tiles), product_of, f"{name}.product")

    def columns_of(p: Var, oc: Var, a: Var, j: Var) -> Expr:
        i = reduce_axis(n, "i")
        return sum_over(entry(outer, a, i.var, dtype) * product[i.var, j, oc, p], i)

    columns = compute((tiles, outputs, m, n), columns_of, f"{name}.columns")

    def output_of(b: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        j = reduce_axis(n, "j")
        p = (b * tiles_h + oh // m) * tiles_w + ow // m
        return sum_over(entry(outer, ow % m, j.var, dtype) * columns[p, oc, oh % m, j.var], j)

    return compute((batch, outputs, out_h, out_w), output_of, name)


OPERATORS = (winograd_conv2d,)
