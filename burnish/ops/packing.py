"""Weight transforms of convolution and product algorithms as operators: for weights that are known at a call only.

Each computes the result of the same algorithm's function of a constant weight at compile time, in the weight's dtype.
"""

from __future__ import annotations

from burnish.loops.expr import Const, Expr, Var, all_of, minimum, select
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.bf16x3 import COLUMNS, DEPTH, part
from burnish.ops.convolution import band_depth, require_groups
from burnish.ops.interpolation import entry, matrices
from burnish.ops.operator import Ints, internal, operator, require, require_input
from burnish.ops.polyphase import taps_of
from burnish.ops.winograd import weight_points


@operator
def winograd_weight(name: str, weight: Tensor, *, m: int, strides: Ints = (1, 1)) -> Tensor:
    """``G g G^T`` [n, n, O, D] of a weight [O, D, KH, KW], as :func:`winograd.transform_weight` makes it.

    Stages: ``name.rows`` [i, kw, o, d], and ``name``.
    """
    require_input(weight, "weight", 4, "[O, D, KH, KW]")
    return weight_points(name, weight, m, strides)


@operator
def polyphase_weight(name: str, weight: Tensor, *, m: int, stride: int) -> Tensor:
    """A weight [O, C, KH, KW] as [n, KH, C, stride, O], as :func:`polyphase.transform_phases` makes it."""
    require_input(weight, "weight", 4, "[O, C, KH, KW]")
    outputs, channels, kernel_h, kernel_w = weight.shape
    taps = taps_of(kernel_w, stride)
    g, dtype = matrices(m, taps)[1], weight.dtype

    def element(i: Var, kh: Var, c: Var, f: Var, o: Var) -> Expr:
        t = reduce_axis(taps, "t")
        kw = t.var * stride + f
        tap = weight[o, c, kh, kw]
        known = tap if kernel_w == taps * stride else select(kw < kernel_w, tap, Const(0.0, dtype))
        return sum_over(entry(g, i, t.var, dtype) * known, t)

    return compute((len(g), kernel_h, channels, stride, outputs), element, name)


@operator
def banded_weight(name: str, weight: Tensor, *, groups: int, block: int) -> Tensor:
    """The weight [O, C / groups, KH, KW] of a grouped convolution as [O, R, KH, KW]: see :func:`convolution.band`."""
    require_input(weight, "weight", 4, "[O, C / groups, KH, KW]")
    outputs, depth, kernel_h, kernel_w = weight.shape
    require_groups(groups, groups * depth, outputs)
    per_group, reach = outputs // groups, band_depth(outputs, depth, groups, block)

    def element(o: Var, r: Var, kh: Var, kw: Var) -> Expr:
        start = minimum(o // block * block // per_group * depth, groups * depth - reach)
        d = r - (o // per_group * depth - start)
        return select(all_of(d >= 0, d < depth), weight[o, d, kh, kw], Const(0.0, weight.dtype))

    return compute((outputs, reach, kernel_h, kernel_w), element, name)


@operator
def split_weight_parts(name: str, weight: Tensor) -> Tensor:
    """bfloat16 parts [2, O', C', KH, KW] of a weight [O, C, KH, KW], as :func:`bf16x3.split_weight` makes them."""
    _require_float32_image(weight)
    outputs, channels, kernel_h, kernel_w = weight.shape

    def element(s: Var, o: Var, c: Var, kh: Var, kw: Var) -> Expr:
        inside = _within((o, outputs, COLUMNS), (c, channels, DEPTH))
        return part(_or_zero(inside, weight[o, c, kh, kw]), s)

    return compute((2, _whole(outputs, COLUMNS), _whole(channels, DEPTH), kernel_h, kernel_w), element, name)


@operator
def split_stem_parts(name: str, weight: Tensor) -> Tensor:
    """bfloat16 parts [2, O', K', KH] of a weight [O, C, KH, KW], as :func:`bf16x3.split_stem_weight` makes them."""
    _require_float32_image(weight)
    outputs, channels, kernel_h, kernel_w = weight.shape
    extent = kernel_w * channels

    def element(s: Var, o: Var, k: Var, kh: Var) -> Expr:
        inside = _within((o, outputs, COLUMNS), (k, extent, DEPTH))
        return part(_or_zero(inside, weight[o, k % channels, kh, k // channels]), s)

    return compute((2, _whole(outputs, COLUMNS), _whole(extent, DEPTH), kernel_h), element, name)


@operator
def split_matrix_parts(name: str, matrix: Tensor) -> Tensor:
    """bfloat16 parts [2, K', N'] of a float32 matrix [K, N], as :func:`bf16x3.split_matrix` makes them."""
    require_input(matrix, "matrix", 2, "[K, N]", dtype=("float32",))
    extent, columns = matrix.shape
    block = 2 * COLUMNS if columns > COLUMNS else COLUMNS

    def element(s: Var, k: Var, n: Var) -> Expr:
        return part(_or_zero(_within((k, extent, DEPTH), (n, columns, block)), matrix[k, n]), s)

    return compute((2, _whole(extent, DEPTH), _whole(columns, block)), element, name)


def _require_float32_image(weight: Tensor) -> None:
    require_input(weight, "weight", 4, "[O, C, KH, KW]", dtype=("float32",))
    require(min(weight.shape) > 0, "input 'weight'", f"shape {list(weight.shape)}", "at least one element")


def _whole(extent: int, block: int) -> int:
    """``extent`` rounded up to whole blocks."""
    return -(-extent // block) * block


def _within(*axes: tuple[Var, int, int]) -> list[Expr]:
    """Conditions that indices lie before the zeros that fill up their last block."""
    return [index < extent for index, extent, block in axes if extent % block]


def _or_zero(inside: list[Expr], value: Expr) -> Expr:
    return select(all_of(*inside), value, Const(0.0, "float32")) if inside else value


OPERATORS = internal(
    winograd_weight,
    polyphase_weight,
    banded_weight,
    split_weight_parts,
    split_stem_parts,
    split_matrix_parts,
)
