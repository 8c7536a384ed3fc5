"""Transposed two-dimensional convolution, in NCHW index space."""

from __future__ import annotations

from dataclasses import dataclass, replace

from burnish.loops.expr import FLOATS, Expr, Literal, Var, all_of, select
from burnish.loops.expr import equal as equal_expr
from burnish.loops.tensor import Tensor, compute, placeholder, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.convolution import convolve, padded, require_groups, require_window, weight_gradient
from burnish.ops.operator import (
    DERIVED,
    Application,
    Ints,
    declare,
    differentiated,
    internal,
    operator,
    require,
    require_input,
)

FEW = 16  # output channels below which phases are computed as channels, to fill vectors


@dataclass(frozen=True)
class _Window:
    """Attributes of a transposed convolution; ``taps``: the most kernel rows and columns that one phase sees."""

    strides: Ints
    pads: Ints
    dilations: Ints
    taps: Ints
    groups: int
    kernel: Ints

    def position(self, d: int, phase: Expr, tap: Expr) -> Expr:
        """The row, or column, of the dilated kernel that is a tap of a phase; taps are in the order of the inputs."""
        stride = self.strides[d]
        return (phase + self.pads[d]) % stride + (self.taps[d] - 1 - tap) * stride

    def inside(self, d: int, phase: Expr, tap: Expr) -> list[Expr]:
        """The conditions on which a phase has a tap, where not all have: each has its own share of the kernel."""
        position, dilation = self.position(d, phase, tap), self.dilations[d]
        found = [equal_expr(position % dilation, 0)] if dilation > 1 else []
        return found + (
            [position // dilation < self.kernel[d]] if self.taps[d] * self.strides[d] != self.kernel[d] else []
        )


def _gradient(a: Application) -> list[str | None]:
    """Gradient of the transposed convolution: of the input a convolution, of the weight that of this convolution with
    input and adjoint swapped.
    """
    seed = a.seeds[0]
    assert seed is not None
    (x, _), (weight, _) = a.types[:2]
    attrs = {key: a.attrs[key] for key in ("strides", "pads", "dilations", "groups")}
    beyond = any(rest >= stride for rest, stride in zip(a.attrs["output_padding"], attrs["strides"], strict=True))
    if a.attrs["kernel"] or beyond:
        return [DERIVED] * len(a.inputs)
    dx = a.add("conv2d", seed, a.inputs[1], **attrs) if a.wanted[0] else None
    dw = db = None
    if a.wanted[1]:
        size = _transposed_size(
            placeholder(x), placeholder(weight), None, attrs["strides"], attrs["pads"], a.attrs["output_padding"],
            attrs["dilations"], attrs["groups"],
        )  # fmt: skip
        shape = (x[0], weight[1] * attrs["groups"], *size)
        dw = weight_gradient(a, (seed, shape), (a.inputs[0], x), weight[2:])
    if len(a.wanted) > 2 and a.wanted[2]:
        db = a.add("reduce_sum", seed, axes=(0, 2, 3), keepdims=False)
    return [dx, dw, db][: len(a.inputs)]


@differentiated(_gradient)
@declare(layout_affinity=4.0, weight_channel=1)
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
    kernel: Ints = (),
) -> Tensor:
    """Transposed convolution of ``x`` [N, C, H, W] with ``weight`` [C, O / groups, KH, KW] plus ``bias`` [O].

    Output extents are ``(H - 1) * stride + dilation * (K - 1) + 1 + output_padding - pads``. Output positions of equal
    phase modulo the stride use the same taps: their values are one ordinary convolution, with stride 1 and kernel
    ``name.weight``, which is then interleaved (Shi et al. 2016). Few channels make the phases channels of one
    convolution; more keep them apart, so that no phase computes positions only another one needs. A single input
    pixel makes it a matrix product. ``kernel``: the weight is what :func:`transposed_weight` makes of one with this
    height and width.
    """
    shape = weight.shape
    if kernel:
        require(len(kernel) == 2 and min(kernel) > 0, "attribute 'kernel'", list(kernel), "a height and a width")
        apart = len(shape) == 6
        require(apart or len(shape) == 4, "input 'weight'", f"shape {list(shape)}", "4 or 6 dimensions")
        outputs = shape[0] if apart else shape[0] // (strides[0] * strides[1])
        shape = (x.shape[1], outputs // groups, *kernel)
    plain = placeholder(shape, weight.dtype, f"{name}.plain") if kernel else weight
    size = _transposed_size(x, plain, bias, strides, pads, output_padding, dilations, groups)
    if not kernel and is_single_pixel(x.shape, dilations, output_padding):
        return _single_pixel(name, x, weight, bias, size, pads, groups)
    window = _window_of(shape, strides, pads, dilations, groups)
    if _has_few(shape, window):
        flat = weight if kernel else _flat_kernel(name, weight, window)
        return _phases_as_channels(name, x, flat, bias, size, window)
    apart_kernel = weight if kernel else _phase_kernel(f"{name}.weight", weight, window)
    return _phases_apart(name, x, apart_kernel, bias, size, window)


@operator
def transposed_weight(
    name: str,
    weight: Tensor,
    *,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
) -> Tensor:
    """The taps of every phase of a weight [C, O / groups, KH, KW] of :func:`conv2d_transpose`, for its ``kernel``.

    [O, SH, SW, C / groups, TH, TW], or [O * SH * SW, C / groups, TH, TW] where phases are channels.
    """
    require_input(weight, "weight", 4, "[C, O / groups, KH, KW]")
    require_window(strides, pads, dilations)
    require_groups(groups, weight.shape[0], weight.shape[1] * groups)
    window = _window_of(weight.shape, strides, pads, dilations, groups)
    if _has_few(weight.shape, window):
        return _flat_kernel(name, weight, window, name)
    return _phase_kernel(name, weight, window)


def is_single_pixel(shape: Ints, dilations: Ints, output_padding: Ints) -> bool:
    """Whether a transposed convolution of images [N, C, H, W] is a matrix product over the channels of one pixel."""
    return shape[2:] == (1, 1) and dilations == (1, 1) and output_padding == (0, 0)


def _window_of(shape: Ints, strides: Ints, pads: Ints, dilations: Ints, groups: int) -> _Window:
    dilated = [dilations[d] * (shape[2 + d] - 1) + 1 for d in (0, 1)]
    taps = (-(-dilated[0] // strides[0]), -(-dilated[1] // strides[1]))
    return _Window(strides, pads, dilations, taps, groups, shape[2:])


def _has_few(shape: Ints, window: _Window) -> bool:
    """Whether the phases of a weight of this shape become channels."""
    return window.strides == (1, 1) or shape[1] * window.groups < FEW


def _single_pixel(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, size: Ints, pads: Ints, groups: int
) -> Tensor:
    """One input pixel: an output is one tap of the kernel, a matrix product over channels."""
    per_group, depth = weight.shape[1], weight.shape[0] // groups

    def element(n: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        ic = reduce_axis(depth, "ic")
        channel = oc // per_group * depth + ic.var if groups > 1 else ic.var
        tap = weight[channel, oc % per_group if groups > 1 else oc, oh + pads[0], ow + pads[1]]
        return sum_over(x[n, channel, 0, 0] * tap, ic)

    shape = (x.shape[0], per_group * groups, *size)
    if bias is None:
        return compute(shape, element, name)
    total = compute(shape, element, f"{name}.sum")
    return compute(shape, lambda n, oc, oh, ow: total[n, oc, oh, ow] + bias[oc], name)


def _phases_apart(name: str, x: Tensor, kernel: Tensor, bias: Tensor | None, size: Ints, window: _Window) -> Tensor:
    """``name.phases`` [N, O, SH, SW, OH / SH, OW / SW]: output row ``q * SH + r`` is element ``q`` of phase ``r``."""
    strides, pads, taps, groups = window.strides, window.pads, window.taps, window.groups
    outputs, per_group, depth = kernel.shape[0], kernel.shape[0] // groups, kernel.shape[3]
    count = [-(-size[d] // strides[d]) for d in (0, 1)]
    # The first tap of element q of phase r is input q + (r + pad) // stride - (taps - 1).
    low = [taps[d] - 1 - pads[d] // strides[d] for d in (0, 1)]
    last = [count[d] - 1 + (strides[d] - 1 + pads[d]) // strides[d] for d in (0, 1)]
    high = [last[d] - (x.shape[2 + d] - 1) for d in (0, 1)]
    image = padded(f"{name}.pad", x, (0, 0, *low), (0, 0, *high))

    def element(n: Var, oc: Var, rh: Var, rw: Var, qh: Var, qw: Var) -> Expr:
        ic, th, tw = reduce_axis(depth, "ic"), reduce_axis(taps[0], "th"), reduce_axis(taps[1], "tw")
        channel = oc // per_group * depth + ic.var if groups > 1 else ic.var
        row = qh + (rh + pads[0] % strides[0]) // strides[0] + th.var
        column = qw + (rw + pads[1] % strides[1]) // strides[1] + tw.var
        tap: Expr = kernel[oc, rh, rw, ic.var, th.var, tw.var]
        inside = window.inside(0, rh, th.var) + window.inside(1, rw, tw.var)
        tap = select(all_of(*inside), tap, Literal(0.0, tap.dtype)) if inside else tap  # elsewhere there is no term
        return sum_over(image[n, channel, row, column] * tap, (ic, th, tw))

    phases = compute((x.shape[0], outputs, *strides, *count), element, f"{name}.phases")

    def interleave(n: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        rows, columns = strides
        value: Expr = phases[n, oc, oh % rows, ow % columns, oh // rows, ow // columns]
        return value if bias is None else value + bias[oc]

    return compute((x.shape[0], outputs, *size), interleave, name)


def _phases_as_channels(name: str, x: Tensor, flat: Tensor, bias: Tensor | None, size: Ints, window: _Window) -> Tensor:
    """``name.conv``: an ordinary convolution with stride 1 and ``O * SH * SW`` channels, then interleaved."""
    strides, pads, taps, groups = window.strides, window.pads, window.taps, window.groups
    # Output o has phase (o + pad) % stride and reads inputs q - taps + 1 … q with q = (o + pad) // stride.
    first = [pads[d] // strides[d] for d in (0, 1)]
    last = [(size[d] - 1 + pads[d]) // strides[d] for d in (0, 1)]
    low = [taps[d] - 1 - first[d] for d in (0, 1)]
    high = [last[d] - (x.shape[2 + d] - 1) for d in (0, 1)]
    area, depth = strides[0] * strides[1], flat.shape[1]
    outputs = flat.shape[0] // area

    def first_channel(o: Var) -> Expr | int:
        return o // (outputs // groups * area) * depth if groups > 1 else 0

    if strides == (1, 1):
        return convolve(name, x, flat, bias, (1, 1), (*low, *high), (1, 1), first_channel)
    phases = convolve(f"{name}.conv", x, flat, None, (1, 1), (*low, *high), (1, 1), first_channel)

    def interleave(n: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        row, column = oh + pads[0], ow + pads[1]
        channel = (oc * strides[0] + row % strides[0]) * strides[1] + column % strides[1]
        value: Expr = phases[n, channel, row // strides[0] - first[0], column // strides[1] - first[1]]
        return value if bias is None else value + bias[oc]

    return compute((x.shape[0], outputs, *size), interleave, name)


def _flat_kernel(name: str, weight: Tensor, window: _Window, result: str = "") -> Tensor:
    """The phases of a weight as channels, [O * SH * SW, C / groups, TH, TW], by default called ``name.weight``."""
    kernel = _phase_kernel(f"{name}.kernel", weight, replace(window, pads=(0, 0)))
    outputs, strides = weight.shape[1] * window.groups, window.strides
    area = strides[0] * strides[1]

    def as_channel(o: Var, ic: Var, th: Var, tw: Var) -> Expr:
        return kernel[o // area, o // strides[1] % strides[0], o % strides[1], ic, th, tw]

    depth = weight.shape[0] // window.groups
    return compute((outputs * area, depth, *window.taps), as_channel, result or f"{name}.weight")


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
    require_input(x, "x", 4, "[N, C, H, W]")
    require_input(weight, "weight", 4, "[C, O / groups, KH, KW]")
    require_window(strides, pads, dilations)
    require_input(x, "x", dtype=FLOATS)
    require_input(weight, "weight", dtype=(x.dtype,))
    require(len(output_padding) == 2, "attribute 'output_padding'", list(output_padding), "two integers")
    outputs = weight.shape[1] * groups
    require_groups(groups, x.shape[1], outputs)
    found = f"shape {list(weight.shape)}"
    require(weight.shape[0] == x.shape[1], "input 'weight'", found, f"{x.shape[1]} input channels first")
    if bias is not None:
        require_input(bias, "bias", shape=(outputs,))
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


def _phase_kernel(name: str, weight: Tensor, window: _Window) -> Tensor:
    """The taps of every phase, [O, SH, SW, C / groups, TH, TW], in the order of the inputs; beyond the kernel zero."""
    channels, per_group = weight.shape[:2]
    dilations, depth = window.dilations, channels // window.groups

    def element(oc: Var, rh: Var, rw: Var, ic: Var, th: Var, tw: Var) -> Expr:
        row, column = window.position(0, rh, th), window.position(1, rw, tw)
        inside = window.inside(0, rh, th) + window.inside(1, rw, tw)
        source = weight[oc // per_group * depth + ic, oc % per_group, row // dilations[0], column // dilations[1]]
        return select(all_of(*inside), source, 0.0) if inside else source

    return compute((window.groups * per_group, *window.strides, depth, *window.taps), element, name)


OPERATORS = (conv2d_transpose, *internal(transposed_weight))
