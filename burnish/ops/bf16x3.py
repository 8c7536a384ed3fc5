"""float32 products from bfloat16 parts: an explicit algorithm of ``conv2d`` and ``matmul``.

``x = hi + lo`` with ``hi = bfloat16(x)`` and ``lo = bfloat16(x - hi)`` keeps 16 bits of mantissa, and
``hi * hi' + hi * lo' + lo * hi'`` loses only terms of 2**-18 of the product, accumulated in float32. A matrix unit that
multiplies bfloat16 many times faster than float32 wins in spite of the three products. An infinite input may give NaN
instead of infinity. Source: Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
Higher-Precision Computations", 2019, section II.

Outputs are computed in tiles of flattened pixels: a row of ``width`` padded pixels after the other, so that one tile's
input pixels for any tap of the window lie side by side. Strides split the input into phases, each dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from burnish.loops.expr import Const, Expr, Var, all_of, cast, equal, math, select
from burnish.loops.numeric import numpy_dtype
from burnish.loops.sizes import is_size
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.machines.unit import MatrixUnit
from burnish.ops.convolution import window_extent
from burnish.ops.operator import Ints, declare, internal, operator, require, require_input

TERMS = 3  # products: (lo, hi), (hi, hi), (hi, lo)
ROWS, COLUMNS, DEPTH = 16, 16, 32  # output pixels, output channels and input channels of a matrix unit's tile
HUGE = 3.0e38  # above, the low part is zero: infinity minus infinity is not a number


def multiplies_parts(unit: MatrixUnit | None) -> bool:
    """Whether a matrix unit multiplies the tiles that these definitions are made of."""
    return unit is not None and (unit.dtype, unit.rows, unit.columns, unit.depth) == ("bfloat16", ROWS, COLUMNS, DEPTH)


def split_weight(weight: np.ndarray) -> np.ndarray:
    """float32 ``weight`` [O, C, ...] as bfloat16 parts [2, O', C', ...], rounded up to whole tiles with zeros."""
    pad = [(0, 0)] * weight.ndim
    pad[0], pad[1] = (0, -weight.shape[0] % COLUMNS), (0, -weight.shape[1] % DEPTH)
    padded = np.pad(weight, pad)
    high = padded.astype(numpy_dtype("bfloat16"))
    low = (padded - high.astype(np.float32)).astype(numpy_dtype("bfloat16"))
    return np.stack([high, low])


def part(value: Expr, s: Expr) -> Expr:
    """Part ``s`` (0: high, 1: low) of a float32 value."""
    high = cast("bfloat16", value)
    rest = select(math("abs", value) < HUGE, value - cast("float32", high), 0.0)
    return select(equal(s, 0), high, cast("bfloat16", rest))


def _factors(term: Expr) -> tuple[Expr, Expr]:
    """The parts that product ``term`` multiplies: from one term to the next, one of the factors stays the same."""
    return (2 - term) // 2, term // 2


@declare(layout_affinity=8.0, row_major="always")
@operator
def split_conv2d(
    name: str,
    x: Tensor,
    weight: Tensor,
    *,
    outputs: int,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    rows: int = 1,
) -> Tensor:
    """Convolution of ``x`` [N, C, H, W] with weight parts [2, O', C', KH, KW] of :func:`split_weight`.

    Stages: ``name.parts`` [s, n, c, phase_h, phase_w, row, column], ``name.tile`` [n, oc, block, q] where a block holds
    at most ``rows`` output rows and q counts their pixels including ``width - OW`` that are not used, and ``name``.
    """
    require_input(x, "x", 4, "[N, C, H, W]")
    require_input(weight, "weight", 5, "[2, O', C', KH, KW]")
    batch, channels, height, width = x.shape
    _, padded, depth, kernel_h, kernel_w = weight.shape
    found = f"{depth} input channels"
    require(depth == -(-channels // DEPTH) * DEPTH, "input 'weight'", found, f"{channels} in whole tiles of {DEPTH}")
    out_h = window_extent(height, kernel_h, strides[0], pads[0], pads[2], 1)
    out_w = window_extent(width, kernel_w, strides[1], pads[1], pads[3], 1)
    blocks = -(-out_h // rows)
    rows = -(-out_h // blocks)
    pitch = out_w + (kernel_w - 1) // strides[1]  # pixels from one row to the next, in a phase
    granule = ROWS if rows * pitch <= ROWS else 2 * ROWS  # whole pairs of tiles
    size = -(-rows * pitch // granule) * granule
    last = (blocks - 1) * rows * pitch + size - 1 + (kernel_h - 1) // strides[0] * pitch + (kernel_w - 1) // strides[1]
    phases = (min(strides[0], kernel_h), min(strides[1], kernel_w))

    def part_of(s: Var, n: Var, c: Var, ph: Var, pw: Var, row: Var, column: Var) -> Expr:
        h, w = row * strides[0] + ph - pads[0], column * strides[1] + pw - pads[1]
        inside = all_of(h >= 0, h < height, w >= 0, w < width, c < channels)
        return part(select(inside, x[n, c, h, w], Const(0.0, "float32")), s)

    parts = compute((2, batch, depth, *phases, last // pitch + 1, pitch), part_of, f"{name}.parts")

    def tile_of(n: Var, oc: Var, block: Var, q: Var) -> Expr:
        term, ic = reduce_axis(TERMS, "term"), reduce_axis(depth, "ic")
        kh, kw = reduce_axis(kernel_h, "kh"), reduce_axis(kernel_w, "kw")
        p = block * (rows * pitch) + q + kh.var // strides[0] * pitch + kw.var // strides[1]
        index = (n, ic.var, kh.var % strides[0], kw.var % strides[1], p // pitch, p % pitch)
        left, right = _factors(term.var)
        product = cast("float32", parts[(left, *index)]) * cast("float32", weight[right, oc, ic.var, kh.var, kw.var])
        return sum_over(product, (ic, kh, kw, term))

    tile = compute((batch, padded, blocks, size), tile_of, f"{name}.tile")

    def output_of(n: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        return tile[n, oc, oh // rows, oh % rows * pitch + ow]

    return compute((batch, outputs, out_h, out_w), output_of, name)


def split_stem_weight(weight: np.ndarray) -> np.ndarray:
    """float32 ``weight`` [O, C, KH, KW] of few channels as parts [2, O', K', KH] with ``k = kw * C + c``."""
    outputs, channels, kernel_h, kernel_w = weight.shape
    return split_weight(weight.transpose(0, 3, 1, 2).reshape(outputs, kernel_w * channels, kernel_h))


@declare(layout_affinity=8.0, row_major="always")
@operator
def split_stem(
    name: str,
    x: Tensor,
    weight: Tensor,
    *,
    outputs: int,
    kernel_w: int,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
) -> Tensor:
    """Convolution of ``x`` [N, C, H, W] of few channels with weight parts [2, O', K', KH] of :func:`split_stem_weight`.

    A row of the window, all its columns and channels, is one run of elements once channels are innermost: it takes the
    place of the channels. Stages: ``name.parts`` [s, n, row, column, c], ``name.tile`` [n, oc, oh, q], and ``name``.
    """
    require_input(x, "x", 4, "[N, C, H, W]")
    require_input(weight, "weight", 4, "[2, O', K', KH]")
    batch, channels, height, width = x.shape
    _, padded, depth, kernel_h = weight.shape
    row = f"at most {depth} elements in a window's row"
    require(kernel_w * channels <= depth, "attribute 'kernel_w'", kernel_w, row)
    out_h = window_extent(height, kernel_h, strides[0], pads[0], pads[2], 1)
    out_w = window_extent(width, kernel_w, strides[1], pads[1], pads[3], 1)
    size = -(-out_w // ROWS) * ROWS
    step = strides[1] * channels
    columns = ((size - 1) * step + depth - 1) // channels + 1

    def part_of(s: Var, n: Var, row: Var, column: Var, c: Var) -> Expr:
        h, w = row - pads[0], column - pads[1]
        inside = all_of(h >= 0, h < height, w >= 0, w < width)
        return part(select(inside, x[n, c, h, w], Const(0.0, "float32")), s)

    parts = compute((2, batch, (out_h - 1) * strides[0] + kernel_h, columns, channels), part_of, f"{name}.parts")

    def tile_of(n: Var, oc: Var, oh: Var, q: Var) -> Expr:
        k, kh, term = reduce_axis(depth, "k"), reduce_axis(kernel_h, "kh"), reduce_axis(TERMS, "term")
        e = q * step + k.var
        left, right = _factors(term.var)
        element = parts[left, n, oh * strides[0] + kh.var, e // channels, e % channels]
        return sum_over(cast("float32", element) * cast("float32", weight[right, oc, k.var, kh.var]), (k, kh, term))

    tile = compute((batch, padded, out_h, size), tile_of, f"{name}.tile")
    return compute((batch, outputs, out_h, out_w), lambda n, oc, oh, ow: tile[n, oc, oh, ow], name)


def split_matrix(b: np.ndarray) -> np.ndarray:
    """A float32 matrix [K, N] as bfloat16 parts [2, K', N']: both extents rounded up to whole tiles, with zeros."""
    columns = 2 * COLUMNS if b.shape[1] > COLUMNS else COLUMNS  # whole pairs of tiles
    return np.swapaxes(split_weight(np.pad(b.T, [(0, -b.shape[1] % columns), (0, 0)])), 1, 2)


@operator
def split_matmul(name: str, a: Tensor, b: Tensor, *, columns: int) -> Tensor:
    """``a`` [..., M, K] times a matrix of ``columns`` columns given by the parts [2, K', N'] of :func:`split_matrix`.

    Stages: ``name.parts`` [s, m, k] with the leading dimensions of ``a`` flattened into m and padded to whole tiles,
    ``name.tile`` [m, n], and ``name``.
    """
    require(len(a.shape) >= 2, "input 'a'", f"{len(a.shape)} dimensions", "at least 2")
    require_input(b, "b", 3, "[2, K', N']")
    lead, extent = a.shape[:-1], a.shape[-1]
    count = prod(lead)
    _, depth, width = b.shape
    require(depth == -(-extent // DEPTH) * DEPTH, "input 'b'", f"depth {depth}", f"{extent} in whole tiles of {DEPTH}")
    rest = 0 if is_size(count) else count % (2 * ROWS)  # of any number of rows, not all fill pairs of tiles
    granule = 2 * ROWS if rest > ROWS or (rest == 0 and not is_size(count)) else ROWS
    rows = -(-count // granule) * granule

    def part_of(s: Var, m: Var, k: Var) -> Expr:
        inside = all_of(m < count, k < extent)
        return part(select(inside, a[(*_unflatten(m, lead), k)], Const(0.0, "float32")), s)

    parts = compute((2, rows, depth), part_of, f"{name}.parts")

    def tile_of(m: Var, n: Var) -> Expr:
        term, k = reduce_axis(TERMS, "term"), reduce_axis(depth, "k")
        left, right = _factors(term.var)
        return sum_over(cast("float32", parts[left, m, k.var]) * cast("float32", b[right, k.var, n]), (k, term))

    tile = compute((rows, width), tile_of, f"{name}.tile")
    return compute((*lead, columns), lambda *i: tile[_flatten(i[:-1], lead), i[-1]], name)


def _flatten(index: Sequence[Expr], shape: Sequence[int]) -> Expr:
    flat: Expr = Const(0)
    for i, extent in zip(index, shape, strict=True):
        flat = flat * extent + i
    return flat


def _unflatten(flat: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    index: list[Expr] = []
    for position, extent in enumerate(reversed(shape)):
        index.append(flat if position == len(shape) - 1 else flat % extent)
        flat = flat // extent
    return tuple(reversed(index))


OPERATORS = internal(split_conv2d, split_stem, split_matmul)
