"""Winograd convolution F(m x m) of any window and stride: an explicit algorithm of ``conv2d``.

Source: thesis-chen section 4.6.2 (the pre-transformed "PT" form). A strided convolution is the sum of convolutions of
stride 1 over the phases of its input, which are summed before the inverse transform.
"""

from __future__ import annotations

import numpy as np

from burnish.loops.expr import Const, Expr, Var, all_of, minimum, select
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.convolution import require_groups
from burnish.ops.interpolation import entry, matrices
from burnish.ops.operator import Ints, declare, internal, operator, require, require_input

BLOCK = 1 << 9  # windows whose weights are transformed at a time: a product that BLAS leaves to one thread
TILES = (2, 4)  # the sizes m there are


def transform_weight(weight: np.ndarray, m: int, strides: Ints = (1, 1)) -> np.ndarray:
    """``G g G^T`` of a weight [O, D, KH, KW] as [n, n, O, D], n = (m - 1) * stride + K, computed in float64."""
    g_h, g_w = (matrices(m, *axis)[1] for axis in zip(weight.shape[2:], strides, strict=True))
    both = np.kron(g_h, g_w)  # [n * n, KH * KW]
    outputs, depth = weight.shape[:2]
    flat = weight.reshape(outputs * depth, -1).T
    found = np.empty((len(both), outputs * depth), weight.dtype)
    for begin in range(0, found.shape[1], BLOCK):  # one product, of parts that stay in a cache
        part = slice(begin, begin + BLOCK)
        found[:, part] = both @ flat[:, part].astype(np.float64)
    return found.reshape(len(g_h), len(g_w), outputs, depth)


def weight_points(name: str, weight: Tensor, m: int, strides: Ints) -> Tensor:
    """``G g G^T`` [n, n, O, D] of a weight [O, D, KH, KW]; stages: ``name.rows`` [i, kw, o, d], and ``name``."""
    outputs, depth, kernel_h, kernel_w = weight.shape
    g_h, g_w = (matrices(m, *axis)[1] for axis in zip((kernel_h, kernel_w), strides, strict=True))
    dtype = weight.dtype

    def row_of(i: Var, kw: Var, o: Var, d: Var) -> Expr:
        kh = reduce_axis(kernel_h, "kh")
        return sum_over(entry(g_h, i, kh.var, dtype) * weight[o, d, kh.var, kw], kh)

    rows = compute((len(g_h), kernel_w, outputs, depth), row_of, f"{name}.rows")

    def element(i: Var, j: Var, o: Var, d: Var) -> Expr:
        kw = reduce_axis(kernel_w, "kw")
        return sum_over(entry(g_w, j, kw.var, dtype) * rows[i, kw.var, o, d], kw)

    return compute((len(g_h), len(g_w), outputs, depth), element, name)


@declare(layout_affinity=8.0)
@operator
def winograd_conv2d(
    name: str,
    x: Tensor,
    weight: Tensor,
    *,
    m: int = 4,
    strides: Ints = (1, 1),
    pads: Ints = (1, 1, 1, 1),
    groups: int = 1,
    transforms_weight: bool = False,
) -> Tensor:
    """The convolution of ``x`` [N, C, H, W] with a weight transformed by :func:`transform_weight`.

    ``weight``: [n, n, O, C / groups]; with ``transforms_weight`` [O, C / groups, KH, KW], transformed by the stages
    ``name.weight.rows`` and ``name.weight``. The others, p running over tiles of m x m outputs: ``name.pixels``
    [p, c, r, s], the padded inputs of a tile, ``name.rows`` [p, c, q, s] and ``name.data`` [q, r, c, p] (``B^T d B``),
    ``name.product`` [i, j, oc, p], a sum over the phases q of i and r of j, ``name.columns`` [p, oc, a, j], ``name``.
    """
    require_input(x, "x", 4, "[N, C, H, W]")
    require_input(weight, "weight", 4, "[O, C / groups, KH, KW]" if transforms_weight else "[n, n, O, C / groups]")
    if transforms_weight:
        weight = weight_points(f"{name}.weight", weight, m, strides)
    require(m in TILES, "attribute 'm'", m, f"one of {list(TILES)}")
    batch, channels, height, width = x.shape
    n_h, n_w, outputs, depth = weight.shape
    require_groups(groups, channels, outputs)
    require(depth * groups == channels, "input 'weight'", f"shape {list(weight.shape)}", f"{channels} / groups inputs")
    kernel = n_h - (m - 1) * strides[0], n_w - (m - 1) * strides[1]
    for taps, stride in zip(kernel, strides, strict=True):
        require(taps >= stride, "attribute 'strides'", strides, f"no more than the window, here {kernel}")
    out_h = (height + pads[0] + pads[2] - kernel[0]) // strides[0] + 1
    out_w = (width + pads[1] + pads[3] - kernel[1]) // strides[1] + 1
    tiles_h, tiles_w = -(-out_h // m), -(-out_w // m)
    tiles = batch * tiles_h * tiles_w
    (outer_h, _, data_h), (outer_w, _, data_w) = (matrices(m, *axis) for axis in zip(kernel, strides, strict=True))
    points_h, points_w = outer_h.shape[1], outer_w.shape[1]
    dtype = x.dtype

    def pixel_of(p: Var, c: Var, r: Var, s: Var) -> Expr:
        h = p // tiles_w % tiles_h * (m * strides[0]) + r - pads[0]
        w = p % tiles_w * (m * strides[1]) + s - pads[1]
        inside = all_of(h >= 0, h < height, w >= 0, w < width)
        return select(inside, x[p // (tiles_h * tiles_w), c, h, w], Const(0.0, dtype))

    pixels = compute((tiles, channels, n_h, n_w), pixel_of, f"{name}.pixels")

    def rows_of(p: Var, c: Var, q: Var, s: Var) -> Expr:
        r = reduce_axis(n_h, "r")
        return sum_over(entry(data_h, q, r.var, dtype) * pixels[p, c, r.var, s], r)

    rows = compute((tiles, channels, n_h, n_w), rows_of, f"{name}.rows")

    def data_of(q: Var, r: Var, c: Var, p: Var) -> Expr:
        s = reduce_axis(n_w, "s")
        return sum_over(entry(data_w, r, s.var, dtype) * rows[p, c, q, s.var], s)

    transformed = compute((n_h, n_w, channels, tiles), data_of, f"{name}.data")

    def product_of(i: Var, j: Var, oc: Var, p: Var) -> Expr:
        phase_h, phase_w = reduce_axis(strides[0], "phase_h"), reduce_axis(strides[1], "phase_w")
        ic = reduce_axis(depth, "ic")
        first = oc // (outputs // groups) * depth if groups > 1 else 0
        q, r = i * strides[0] + phase_h.var, j * strides[1] + phase_w.var
        at: Expr = transformed[q, r, first + ic.var, p]
        if points_h * strides[0] > n_h or points_w * strides[1] > n_w:  # some phases lack the last point
            at = select(all_of(q < n_h, r < n_w), at, Const(0.0, dtype))
            q, r = minimum(q, n_h - 1), minimum(r, n_w - 1)
        return sum_over(at * weight[q, r, oc, ic.var], (phase_h, phase_w, ic))

    product = compute((points_h, points_w, outputs, tiles), product_of, f"{name}.product")

    def columns_of(p: Var, oc: Var, a: Var, j: Var) -> Expr:
        i = reduce_axis(points_h, "i")
        return sum_over(entry(outer_h, a, i.var, dtype) * product[i.var, j, oc, p], i)

    columns = compute((tiles, outputs, m, points_w), columns_of, f"{name}.columns")

    def output_of(b: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        j = reduce_axis(points_w, "j")
        p = (b * tiles_h + oh // m) * tiles_w + ow // m
        return sum_over(entry(outer_w, ow % m, j.var, dtype) * columns[p, oc, oh % m, j.var], j)

    return compute((batch, outputs, out_h, out_w), output_of, name)


OPERATORS = internal(winograd_conv2d)
