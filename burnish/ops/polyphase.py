"""Polyphase Winograd convolution along the width: an explicit algorithm of ``conv2d``.

A convolution of stride s is the sum of s convolutions of stride 1, one for each phase of its input's columns. Each is
computed as F(m, taps), one-dimensional, and they are summed before the inverse transform.
"""

from __future__ import annotations

import numpy as np

from burnish.loops.expr import Const, Expr, Var, all_of, select
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.interpolation import POINTS, entry, matrices
from burnish.ops.operator import Ints, declare, internal, operator, require, require_input


def taps_of(kernel: int, stride: int) -> int:
    """The longest phase of a row of the window."""
    return -(-kernel // stride)


def transform_phases(weight: np.ndarray, m: int, stride: int) -> np.ndarray:
    """A weight [O, C, KH, KW] as [n, KH, C, stride, O]: ``G`` times each phase of its rows, computed in float64."""
    outputs, channels, kernel_h, kernel_w = weight.shape
    taps = taps_of(kernel_w, stride)
    phases = np.zeros((outputs, channels, kernel_h, taps * stride))
    phases[..., :kernel_w] = weight
    phases = phases.reshape(outputs, channels, kernel_h, taps, stride)
    return np.einsum("it,ochtf->ihcfo", matrices(m, taps)[1], phases, optimize=True).astype(weight.dtype)


def _phase_matrix(data: np.ndarray, stride: int) -> np.ndarray:
    """``B^T`` [n, n] for every phase: [stride * n, stride * n], row ``phase * n + i`` reads every stride-th column."""
    n = len(data)
    every = np.zeros((stride, n, n, stride))
    for phase in range(stride):
        every[phase, :, :, phase] = data
    return every.reshape(stride * n, n * stride)


@declare(layout_affinity=8.0, row_major="ragged")
@operator
def polyphase_conv2d(
    name: str, x: Tensor, weight: Tensor, *, m: int = 4, kernel_w: int, strides: Ints, pads: Ints = (0, 0, 0, 0)
) -> Tensor:
    """The convolution of ``x`` [N, C, H, W] with a weight [O, C, KH, kernel_w] as :func:`transform_phases` makes it.

    ``weight``: [n, KH, C, phases, O]. Stages, t running over groups of m output columns: the padded ``name.rows``
    [b, c, h, w], ``name.data`` [b, c, h, t, phase * n + i], ``name.product`` [i, b, oc, oh, t], ``name``.
    """
    require_input(x, "x", 4, "[N, C, H, W]")
    require_input(weight, "weight", 5, "[n, KH, C, phases, O]")
    stride_h, stride = strides
    taps = taps_of(kernel_w, stride)
    n = m + taps - 1
    require(n in POINTS, "attribute 'm'", m, f"m + {taps} - 1 one of {sorted(POINTS)}")
    require(weight.shape[0] == n and weight.shape[3] == stride, "weight", weight.shape, f"[{n}, KH, C, {stride}, O]")
    batch, channels, height, width = x.shape
    kernel_h, outputs = weight.shape[1], weight.shape[4]
    out_h = (height + pads[0] + pads[2] - kernel_h) // stride_h + 1
    out_w = (width + pads[1] + pads[3] - kernel_w) // stride + 1
    tiles, rows = -(-out_w // m), (out_h - 1) * stride_h + kernel_h
    outer, _, data = matrices(m, taps)
    phased = _phase_matrix(data, stride)
    dtype = x.dtype

    def row_of(b: Var, c: Var, h: Var, w: Var) -> Expr:
        y, column = h - pads[0], w - pads[1]
        inside = all_of(y >= 0, y < height, column >= 0, column < width)
        return select(inside, x[b, c, y, column], Const(0.0, dtype))

    padded = compute((batch, channels, rows, (tiles - 1) * m * stride + n * stride), row_of, f"{name}.rows")

    def data_of(b: Var, c: Var, h: Var, t: Var, q: Var) -> Expr:
        s = reduce_axis(n * stride, "s")
        return sum_over(entry(phased, q, s.var, dtype) * padded[b, c, h, t * (m * stride) + s.var], s)

    transformed = compute((batch, channels, rows, tiles, stride * n), data_of, f"{name}.data")

    def product_of(i: Var, b: Var, oc: Var, oh: Var, t: Var) -> Expr:
        kh, c, f = reduce_axis(kernel_h, "kh"), reduce_axis(channels, "ic"), reduce_axis(stride, "phase")
        at = transformed[b, c.var, oh * stride_h + kh.var, t, f.var * n + i]
        return sum_over(at * weight[i, kh.var, c.var, f.var, oc], (kh, c, f))

    product = compute((n, batch, outputs, out_h, tiles), product_of, f"{name}.product")

    def output_of(b: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        i = reduce_axis(n, "i")
        return sum_over(entry(outer, ow % m, i.var, dtype) * product[i.var, b, oc, oh, ow // m], i)

    return compute((batch, outputs, out_h, out_w), output_of, name)


OPERATORS = internal(polyphase_conv2d)
