"""Two-dimensional convolution, in NCHW / OIHW index space."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from burnish.loops.expr import FLOATS, Expr, Var, all_of, cast, minimum, select, wrap
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.operator import (
    NUMBERS,
    Application,
    Ints,
    Shape,
    accumulator_dtype,
    declare,
    differentiated,
    internal,
    operator,
    require,
    require_input,
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


def _gradient(a: Application) -> list[str | None]:
    """Convolution's gradient: of the input a transposed convolution, with stride 1 one with a turned weight; of the
    weight as defined.
    """
    seed = a.seeds[0]
    assert seed is not None
    (x, _), (weight, _) = a.types[:2]
    attrs = {key: a.attrs[key] for key in ("strides", "pads", "dilations", "groups")}
    strides, pads, dilations = attrs["strides"], attrs["pads"], attrs["dilations"]
    dx = dw = db = None
    if a.wanted[0]:
        reach = [dilations[d] * (weight[2 + d] - 1) + 1 for d in (0, 1)]
        around = tuple(reach[d % 2] - 1 - pads[d] for d in range(4))
        if strides == (1, 1) and min(around) >= 0:
            turned = _turned(a, weight, attrs["groups"])
            dx = a.add("conv2d", seed, turned, **{**attrs, "pads": around})
    if a.wanted[0] and dx is None:
        rest = tuple((x[2 + d] + pads[d] + pads[2 + d] - reach[d]) % strides[d] for d in (0, 1))
        dx = a.add("conv2d_transpose", seed, a.inputs[1], output_padding=rest, **attrs)
    if a.wanted[1]:
        sizes = tuple((x[2 + d] + pads[d] + pads[2 + d] - dilations[d] * (weight[2 + d] - 1) - 1) // strides[d] + 1
                      for d in (0, 1))  # fmt: skip
        dw = weight_gradient(a, (a.inputs[0], x), (seed, (x[0], weight[0], *sizes)), weight[2:])
    if len(a.wanted) > 2 and a.wanted[2]:
        db = a.add("reduce_sum", seed, axes=(0, 2, 3), keepdims=False)
    return [dx, dw, db][: len(a.inputs)]


def _turned(a: Application, shape: Shape, groups: int) -> str:
    """The weight [O, C / groups, KH, KW] turned around, with its channels exchanged: [C, O / groups, KH, KW]."""
    outputs, depth, kernel_h, kernel_w = shape
    weight = a.inputs[1]
    if kernel_h * kernel_w > 1:
        last = (0, 0, kernel_h - 1, kernel_w - 1)
        weight = a.add("slice", weight, starts=last, extents=shape, steps=(1, 1, -1, -1))
    if groups == 1:
        return a.add("transpose", weight, perm=(1, 0, 2, 3))
    if outputs == groups and depth == 1:
        return weight
    parted = a.add("reshape", weight, shape=(groups, outputs // groups, depth, kernel_h, kernel_w))
    swapped = a.add("transpose", parted, perm=(0, 2, 1, 3, 4))
    return a.add("reshape", swapped, shape=(groups * depth, outputs // groups, kernel_h, kernel_w))


def weight_gradient(a: Application, image: tuple[str, Shape], seed: tuple[str, Shape], kernel: Shape) -> str:
    """The gradient of a convolution's weight, from its definition; of one in groups of several channels by another one.

    There images are channels, channels are images, and the adjoint is the weight. Strides and dilations change places.
    Beyond the kernel there may be rows and columns left over: they are cut off.
    """
    (x, shape), (dy, out) = image, seed
    groups, batch = a.attrs["groups"], shape[0]
    depth, outputs = shape[1] // groups, out[1]
    if groups == 1 or groups == shape[1] == outputs:
        names = ("strides", "pads", "dilations", "groups")
        attributes = tuple((key, a.attrs[key]) for key in sorted(names) if a.attrs[key] != conv2d.attrs[key])
        dtype = a.types[0][1]
        types = ((shape, dtype), ((outputs, depth, *kernel), dtype))
        return a.add("adjoint", x, dy, operator="conv2d", attributes=attributes, types=types, wrt=1, seeded=(0,),
                     reads=(0, 3))  # fmt: skip
    parted = a.add("reshape", x, shape=(batch, groups, depth, *shape[2:]))
    swapped = a.add("transpose", parted, perm=(2, 1, 0, 3, 4))
    swapped = a.add("reshape", swapped, shape=(depth, groups * batch, *shape[2:]))
    strides, dilations = a.attrs["dilations"], a.attrs["strides"]
    taps = a.add("transpose", dy, perm=(1, 0, 2, 3))
    found = a.add("conv2d", swapped, taps, strides=strides, pads=a.attrs["pads"], dilations=dilations, groups=groups)
    cut = a.add("slice", found, starts=(0, 0, 0, 0), extents=(depth, outputs, *kernel))
    return a.add("transpose", cut, perm=(1, 0, 2, 3))


@differentiated(_gradient)
@declare(layout_affinity=8.0, row_major="dense", weight_channel=0)
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
    require_operands(x, weight, strides, pads, dilations, groups, NUMBERS)
    if bias is not None:
        require_input(bias, "bias", shape=(weight.shape[0],))
    return convolve(name, x, weight, bias, strides, pads, dilations, first_channel(weight, groups))


def require_operands(
    x: Tensor, weight: Tensor, strides: Ints, pads: Ints, dilations: Ints, groups: int, dtypes: Sequence[str]
) -> None:
    """Refuses operands of a convolution in ``groups`` whose ranks, windows, channels or image's dtype do not fit."""
    require_input(x, "x", 4, "[N, C, H, W]")
    require_input(weight, "weight", 4, "[O, C / groups, KH, KW]")
    require_window(strides, pads, dilations)
    require_input(x, "x", dtype=dtypes)
    require_groups(groups, x.shape[1], weight.shape[0])
    found = f"shape {list(weight.shape)} (groups {groups})"
    require(weight.shape[1] * groups == x.shape[1], "input 'weight'", found, f"{x.shape[1]} / groups input channels")


def first_channel(weight: Tensor, groups: int) -> Callable[[Var], Expr | int]:
    """The first input channel that an output channel of a convolution in equal groups reads."""
    per_group = weight.shape[0] // groups
    return lambda oc: oc // per_group * weight.shape[1] if groups > 1 else 0


def require_groups(groups: int, channels: int, outputs: int) -> None:
    """Refuses a number of groups that does not divide the channels on both sides."""
    ok = groups > 0 and channels % groups == 0 and outputs % groups == 0
    require(ok, "attribute 'groups'", groups, f"a divisor of both {channels} input and {outputs} output channels")


def convolve(
    name: str,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    first: Callable[[Var], Expr | int],
    multiply: Callable[[Expr, Expr], Expr] = lambda a, b: wide(a) * wide(b),
) -> Tensor:
    """The convolution, its arguments checked but for the weight's dtype and an empty result.

    ``first``: the first input channel that an output channel sees; it sees as many as the weight holds.
    ``multiply``: what is summed, of an element of the image and one of the weight.
    """
    accumulator = accumulator_dtype(x.dtype)
    result = x.dtype if x.dtype in FLOATS else accumulator
    require_input(weight, "weight", dtype=(x.dtype,) if accumulator != "int32" else ("int32", "int8", "uint8", "int16"))
    outputs, depth, kernel_h, kernel_w = weight.shape
    height = window_extent(x.shape[2], kernel_h, strides[0], pads[0], pads[2], dilations[0])
    width = window_extent(x.shape[3], kernel_w, strides[1], pads[1], pads[3], dilations[1])
    words = f"an input of at least the dilated kernel, {kernel_h}×{kernel_w}"
    require(height > 0 and width > 0, "input 'x'", f"shape {list(x.shape)} with pads {list(pads)}", words)
    image = padded(f"{name}.pad", x, (0, 0, *pads[:2]), (0, 0, *pads[2:]))

    def element(n: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        ic, kh, kw = reduce_axis(depth, "ic"), reduce_axis(kernel_h, "kh"), reduce_axis(kernel_w, "kw")
        start = first(oc)
        channel = start + ic.var if depth > 1 or start == 0 else wrap(start)
        row, column = oh * strides[0] + kh.var * dilations[0], ow * strides[1] + kw.var * dilations[1]
        product = multiply(image[n, channel, row, column], weight[oc, ic.var, kh.var, kw.var])
        return sum_over(product, (ic, kh, kw))

    shape = (x.shape[0], outputs, height, width)
    if bias is None and accumulator == result:
        return compute(shape, element, name)
    total = compute(shape, element, f"{name}.sum")

    def finish(n: Var, oc: Var, oh: Var, ow: Var) -> Expr:
        value: Expr = total[n, oc, oh, ow]
        return cast(result, value if bias is None else value + cast(accumulator, bias[oc]))

    return compute(shape, finish, name)


@declare(layout_affinity=8.0)
@operator
def banded_conv2d(
    name: str,
    x: Tensor,
    weight: Tensor,
    *,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    outputs: int,
    depth: int,
    block: int,
) -> Tensor:
    """Grouped convolution of ``x`` [N, C, H, W] in which ``block`` successive output channels read the same inputs.

    Groups have ``outputs`` output and ``depth`` input channels; ``weight`` [O, R, KH, KW] is :func:`band` of theirs:
    with zeros for what a channel of the block does not read.
    """
    require_input(x, "x", 4, "[N, C, H, W]")
    require_input(weight, "weight", 4, "[O, R, KH, KW]")
    require_window(strides, pads, dilations)
    require_input(x, "x", dtype=FLOATS)
    last = x.shape[1] - weight.shape[1]
    require(last >= 0, "input 'weight'", f"shape {list(weight.shape)}", f"at most {x.shape[1]} input channels")

    def first(oc: Var) -> Expr:
        return minimum(oc // block * block // outputs * depth, last)

    return convolve(name, x, weight, None, strides, pads, dilations, first)


def band(weight: np.ndarray, groups: int, block: int) -> np.ndarray:
    """The weight [O, C / groups, KH, KW] of a grouped convolution as that of :func:`banded_conv2d`, [O, R, KH, KW]."""
    outputs, depth = len(weight), weight.shape[1]
    per_group = outputs // groups
    reach = band_depth(outputs, depth, groups, block)
    result = np.zeros((outputs, reach, *weight.shape[2:]), weight.dtype)
    for oc in range(outputs):
        start = min(oc // block * block // per_group * depth, groups * depth - reach)
        own = oc // per_group * depth - start
        result[oc, own : own + depth] = weight[oc]
    return result


def band_depth(outputs: int, depth: int, groups: int, block: int) -> int:
    """The most input channels that a block of output channels reads."""
    per_group = outputs // groups
    ends = ((start, min(start + block, outputs) - 1) for start in range(0, outputs, block))
    return max(last // per_group - first // per_group + 1 for first, last in ends) * depth


OPERATORS = (conv2d, *internal(banded_conv2d))
