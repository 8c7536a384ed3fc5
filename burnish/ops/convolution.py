"""Two-dimensional convolution and its transpose, in NCHW / OIHW index space."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.loops.expr import FLOATS, INTS, Expr, Var, all_of, cast, select, wrap
from burnish.loops.expr import equal as equal_expr
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
    _require_groups(groups, channels, outputs)
    found = f"shape {list(weight.shape)} (groups {groups})"
    require(weight.shape[1] * groups == channels, "input 'weight'", found, f"{channels} / groups input channels")
    if bias is not None:
        require_shape(bias, "bias", (outputs,))
    return _convolve(name, x, weight, bias, strides, pads, dilations, groups)


def _require_groups(groups: int, channels: int, outputs: int) -> None:
    ok = groups > 0 and channels % groups == 0 and outputs % groups == 0
    require(ok, "attribute 'groups'", groups, f"a divisor of both {channels} input and {outputs} output channels")


def _convolve(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, strides: Ints, pads: Ints, dilations: Ints, groups: int
) -> Tensor:
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


@operator
def conv2d_transpose(
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    output_padding: Ints = (0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Transposed convolution of ``x`` [N, C, H, W] with ``weight`` [C, O / groups, KH, KW] plus ``bias`` [O].

    Output extents are ``(H - 1) * stride + dilation * (K - 1) + 1 + output_padding - pads``. Output positions of equal
    phase modulo the stride use the same taps, so the whole is one ordinary convolution with stride 1 and
    ``O * SH * SW`` channels (``name.conv``, its taps in ``name.weight``), then interleaved. Source: Shi et al. 2016.
    """
    size = _transposed_size(x, weight, bias, strides, pads, output_padding, dilations, groups)
    dilated = [dilations[d] * (weight.shape[2 + d] - 1) + 1 for d in (0, 1)]
    taps = tuple(-(-dilated[d] // strides[d]) for d in (0, 1))
    kernel = _phase_kernel(f"{name}.weight", weight, strides, taps, dilations, groups)
    # Output o has phase (o + pad) % stride and reads inputs q - taps + 1 … q with q = (o + pad) // stride.
    first = [pads[d] // strides[d] for d in (0, 1)]
    last = [(size[d] - 1 + pads[d]) // strides[d] for d in (0, 1)]
    low = [taps[d] - 1 - first[d] for d in (0, 1)]
    high = [last[d] - (x.shape[2 + d] - 1) for d in (0, 1)]
    if strides == (1, 1):
        return _convolve(name, x, kernel, bias, (1, 1), (*low, *high), (1, 1), groups)
    phases = _convolve(f"{name}.conv", x, kernel, None, (1, 1), (*low, *high), (1, 1), groups)

    def element(n: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        row, column = oh + pads[0], ow + pads[1]
        channel = (oc * strides[0] + row % strides[0]) * strides[1] + column % strides[1]
        value: Expr = phases[n, channel, row // strides[0] - first[0], column // strides[1] - first[1]]
        return value if bias is None else value + bias[oc]

    return compute((x.shape[0], weight.shape[1] * groups, *size), element, name)


def _transposed_size(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    strides: Ints,
    pads: Ints,
    output_padding: Ints,
    dilations: Ints,
    groups: int,
) -> tuple[int, int]:
    """Output height and width, after all arguments are checked."""
    require_rank(x, "x", 4, "[N, C, H, W]")
    require_rank(weight, "weight", 4, "[C, O / groups, KH, KW]")
    require_window(strides, pads, dilations)
    require_dtype(x, "x", FLOATS)
    require_dtype(weight, "weight", (x.dtype,))
    require(len(output_padding) == 2, "attribute 'output_padding'", list(output_padding), "two integers")
    outputs = weight.shape[1] * groups
    _require_groups(groups, x.shape[1], outputs)
    found = f"shape {list(weight.shape)}"
    require(weight.shape[0] == x.shape[1], "input 'weight'", found, f"{x.shape[1]} input channels first")
    if bias is not None:
        require_shape(bias, "bias", (outputs,))
    height, width = (
        (x.shape[2 + d] - 1) * strides[d]
        + dilations[d] * (weight.shape[2 + d] - 1)
        + 1
        + output_padding[d]
        - pads[d]
        - pads[2 + d]
        for d in (0, 1)
    )
    ok = height > 0 and width > 0
    require(ok, "attribute 'pads'", list(pads), f"pads that leave a positive output, not {height}×{width}")
    return height, width


def _phase_kernel(name: str, weight: Tensor, strides: Ints, taps: Ints, dilations: Ints, groups: int) -> Tensor:
    """The taps of every phase as one OIHW kernel [O * SH * SW, C / groups, TH, TW]; taps beyond the kernel are zero."""
    channels, per_group, kernel_h, kernel_w = weight.shape
    depth = channels // groups
    stride_h, stride_w = strides

    def element(o: Var, ic: Var, th: Var, tw: Var) -> Expr:
        oc = o // (stride_h * stride_w)
        row = o // stride_w % stride_h + (taps[0] - 1 - th) * stride_h
        column = o % stride_w + (taps[1] - 1 - tw) * stride_w
        inside = []
        for position, kernel, stride, tap, dilation in (
            (row, kernel_h, stride_h, taps[0], dilations[0]),
            (column, kernel_w, stride_w, taps[1], dilations[1]),
        ):
            inside += [equal_expr(position % dilation, 0)] if dilation > 1 else []
            inside += [position // dilation < kernel] if tap * stride != kernel else []
        source = weight[oc // per_group * depth + ic, oc % per_group, row // dilations[0], column // dilations[1]]
        return select(all_of(*inside), source, 0.0) if inside else source

    return compute((groups * per_group * stride_h * stride_w, depth, *taps), element, name)


OPERATORS = (conv2d, conv2d_transpose)
