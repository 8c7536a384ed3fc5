"""Two-dimensional convolution, in NCHW / OIHW index space."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.loops.expr import FLOATS, INTS, Expr, Var, all_of, cast, select, wrap
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.operator import (
    Ints,
    accumulator_dtype,
    operator,
    require,
    require_dtype,
    require_rank,
    require_shape,
    wide,
)


def window_extent(size: int, kernel: int, stride: int, low: int, high: int, dilation: int) -> int:
    """Number of positions of a dilated window over ``size`` elements padded by ``low`` and ``high``; may be <= 0."""
    return (size + low + high - dilation * (kernel - 1) - 1) // stride + 1


def padded(name: str, x: Tensor, low: Sequence[int], high: Sequence[int], value: float = 0.0) -> Tensor:
    """``x`` with ``low`` / ``high`` elements of ``value`` around each dimension (negative: cropped); ``x`` if none."""
    if not any((*low, *high)):
        return x
    shape = tuple(d + lo + hi for d, lo, hi in zip(x.shape, low, high, strict=True))

    def element(*i: Expr) -> Expr:
        inside = []
        for v, d, lo, hi in zip(i, x.shape, low, high, strict=True):
            inside += [v >= lo] if lo > 0 else []
            inside += [v < d + lo] if hi > 0 else []
        source = x[tuple(v - lo for v, lo in zip(i, low, strict=True))]
        return select(all_of(*inside), source, wrap(value, x.dtype)) if inside else source

    return compute(shape, element, name)


def require_window(strides: Ints, pads: Ints, dilations: Ints = (1, 1)) -> None:
    """Refuses strides, pads (top, left, bottom, right) and dilations that describe no window."""
    require(len(strides) == 2 and min(strides) > 0, "attribute 'strides'", list(strides), "two positive integers")
    require(len(pads) == 4, "attribute 'pads'", list(pads), "top, left, bottom, right")
    ok = len(dilations) == 2 and min(dilations) > 0
    require(ok, "attribute 'dilations'", list(dilations), "two positive integers")


@operator
def conv2d(
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Convolution of ``x`` [N, C, H, W] with ``weight`` [O, C / groups, KH, KW] plus ``bias`` [O].

    ``pads`` is top, left, bottom, right. Stages: ``name.pad`` where padded, ``name.sum`` where a bias or a
    narrower dtype follows the reduction. 8-bit operands give int32.
    """
    require_rank(x, "x", 4, "[N, C, H, W]")
    require_rank(weight, "weight", 4, "[O, C / groups, KH, KW]")
    require_window(strides, pads, dilations)
    require_dtype(x, "x", (*FLOATS, *INTS))
    channels, outputs = x.shape[1], weight.shape[0]
    require_groups(groups, channels, outputs)
    found = f"shape {list(weight.shape)} (groups {groups})"
    require(weight.shape[1] * groups == channels, "input 'weight'", found, f"{channels} / groups input channels")
    if bias is not None:
        require_shape(bias, "bias", (outputs,))
    return convolve(name, x, weight, bias, strides, pads, dilations, groups)


def require_groups(groups: int, channels: int, outputs: int) -> None:
    ok = groups > 0 and channels % groups == 0 and outputs % groups == 0
    require(ok, "attribute 'groups'", groups, f"a divisor of both {channels} input and {outputs} output channels")


def convolve(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, strides: Ints, pads: Ints, dilations: Ints, groups: int
) -> Tensor:
    """The convolution, its arguments checked but for the weight's dtype and an empty result."""
    accumulator = accumulator_dtype(x.dtype)
    result = x.dtype if x.dtype in FLOATS else accumulator
    require_dtype(weight, "weight", (x.dtype,) if accumulator != "int32" else ("int32", "int8", "uint8", "int16"))
    outputs, depth, kernel_h, kernel_w = weight.shape
    height = window_extent(x.shape[2], kernel_h, strides[0], pads[0], pads[2], dilations[0])
    width = window_extent(x.shape[3], kernel_w, strides[1], pads[1], pads[3], dilations[1])
    words = f"an input of at least the dilated kernel, {kernel_h}×{kernel_w}"
    require(height > 0 and width > 0, "input 'x'", f"shape {list(x.shape)} with pads {list(pads)}", words)
    image = padded(f"{name}.pad", x, (0, 0, *pads[:2]), (0, 0, *pads[2:]))
    per_group = outputs // groups

    def element(n: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        ic, kh, kw = reduce_axis(depth, "ic"), reduce_axis(kernel_h, "kh"), reduce_axis(kernel_w, "kw")
        first = oc // per_group * depth if groups > 1 else 0
        channel = first + ic.var if depth > 1 or groups == 1 else wrap(first)
        row, column = oh * strides[0] + kh.var * dilations[0], ow * strides[1] + kw.var * dilations[1]
        product = wide(image[n, channel, row, column]) * wide(weight[oc, ic.var, kh.var, kw.var])
        return sum_over(product, (ic, kh, kw))

    shape = (x.shape[0], outputs, height, width)
    if bias is None and accumulator == result:
        return compute(shape, element, name)
    total = compute(shape, element, f"{name}.sum")

    def finish(n: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        value: Expr = total[n, oc, oh, ow]
        return cast(result, value if bias is None else value + cast(accumulator, bias[oc]))

    return compute(shape, finish, name)


OPERATORS = (conv2d,)
