"""Translators of ONNX operators that slide a window: convolutions, pooling and resampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from burnish.frontend import volume
from burnish.frontend.onnx import sampling
from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator, np_dtype
from burnish.loops.expr import FLOATS
from burnish.loops.sizes import is_size

FARTHEST = 1 << 31  # of strides, dilations and pads: positions are int64


def _explicit_pads(
    c: OnnxContext, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """All lows, then all highs, from ``pads`` or from ``auto_pad`` for the spatial dimensions of the first input."""
    n = c.node
    rank = len(kernel)
    mode = n.attr("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = list(n.attr("pads", [0] * (2 * rank)))
        _require_lengths(c, rank, pads=pads)
        return pads
    if mode == "VALID":
        return [0] * (2 * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        c.refuse("attribute 'auto_pad'", mode, "NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    low, high = [], []
    for extent, k, s, d in zip(c.shape(n.inputs[0])[2:], kernel, strides, dilations, strict=True):
        total = max((-(-extent // s) - 1) * s + d * (k - 1) + 1 - extent, 0)
        less = total // 2
        low.append(less if mode == "SAME_UPPER" else total - less)
        high.append(total - low[-1])
    return low + high


def _require_lengths(c: OnnxContext, rank: int, **lists: Sequence[int]) -> None:
    """Refuses attributes with another number of integers than there are spatial dimensions (pads: twice as many)."""
    if c.rank(c.node.inputs[0]) != rank + 2:
        c.invalid(
            "input 0", f"shape {list(c.shape(c.node.inputs[0]))}", f"{rank + 2} dimensions, as the kernel has them"
        )
    for name, values in lists.items():
        wanted = rank * (2 if name == "pads" else 1)
        if len(values) != wanted:
            c.invalid(f"attribute '{name}'", list(values), f"{wanted} integers, for {rank} spatial dimensions")
        least = 1 if name in ("kernel_shape", "strides", "dilations") else -FARTHEST
        if not all(least <= v <= FARTHEST for v in values):
            c.invalid(f"attribute '{name}'", list(values), f"{least} to {FARTHEST}")


def as_image(c: OnnxContext, x: str) -> str:
    """``x`` [N, C, L] as an image of one row; an image as it is."""
    shape = c.shape(x)
    if len(shape) < 3:
        c.invalid("input 0", f"shape {list(shape)}", "at least 3 dimensions: [N, C, L]")
    if any(is_size(extent) for extent in shape[1:]):
        c.refuse("input 0", f"shape [{', '.join(map(str, shape))}]", "an open dimension in front; numbers behind it")
    return x if len(shape) > 3 else c.add("reshape", x, shape=(*shape[:2], 1, shape[2]))


def _two(values: Sequence[int], neutral: int) -> tuple[int, ...]:
    """Values for height and width: a single one is the width's."""
    return (neutral, *values) if len(values) == 1 else tuple(values)


def _two_pads(pads: Sequence[int]) -> tuple[int, ...]:
    return (0, pads[0], 0, pads[1]) if len(pads) == 2 else tuple(pads)


def restored(c: OnnxContext, y: str, rank: int) -> str:
    """The image ``y`` with ``rank`` dimensions again."""
    shape = c.shape(y)
    return y if rank > 3 else c.add("reshape", y, shape=(*shape[:2], shape[3]))


def _with_bias(c: OnnxContext, y: str, bias: str) -> str:
    """``y`` [N, C, ...] plus one number a channel, if there is a bias."""
    return c.add("add", y, c.reshape(bias, (*c.shape(bias), *[1] * (c.rank(y) - 2)))) if bias else y


def _conv(c: OnnxContext, n: OnnxNode) -> str:
    return convolution(c, n.inputs[0], n.inputs[1], n.input(2))


def window_of(c: OnnxContext, kernel: Sequence[int]) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Strides, pads (all lows, then all highs) and dilations that the node's attributes give a kernel of this size."""
    n = c.node
    strides, dilations = n.attr("strides", [1] * len(kernel)), n.attr("dilations", [1] * len(kernel))
    _require_lengths(c, len(kernel), strides=strides, dilations=dilations)
    return strides, _explicit_pads(c, kernel, strides, dilations), dilations


def window_attributes(c: OnnxContext, kernel: Sequence[int]) -> dict[str, Any]:
    """Convolution attributes of the node, for images; signals are images of one row."""
    strides, pads, dilations = window_of(c, kernel)
    attrs = {"strides": _two(strides, 1), "pads": _two_pads(pads), "dilations": _two(dilations, 1)}
    return {**attrs, "groups": c.node.attr("group", 1)}


def kernel_of(c: OnnxContext, weight: str) -> tuple[int, ...]:
    """The extents of the window, those of the weight, which an attribute may repeat."""
    kernel = c.shape(weight)[2:]
    given = c.node.attr("kernel_shape")
    if given is not None and tuple(given) != kernel:
        c.invalid("attribute 'kernel_shape'", list(given), f"{list(kernel)}, as the weight has it")
    if 0 in kernel:
        c.invalid("weight", f"shape {list(c.shape(weight))}", "a window of 1 or more along each dimension")
    return kernel


def convolution(c: OnnxContext, x: str, weight: str, bias: str) -> str:
    """The convolution that the node's attributes describe."""
    n = c.node
    kernel = kernel_of(c, weight)
    strides, pads, dilations = window_of(c, kernel)
    if len(kernel) > 2:
        for d, extent in enumerate(c.shape(x)[2:]):
            room, reach = extent + pads[d] + pads[len(kernel) + d], (kernel[d] - 1) * dilations[d] + 1
            if room < reach:
                c.invalid("input 0", f"{room} padded positions", f"at least those of the dilated kernel of {reach}")
        y = volume.convolution(c, as_image(c, x), weight, strides, pads, dilations, n.attr("group", 1))
        return _with_bias(c, y, bias)
    attrs = window_attributes(c, kernel)
    y = c.add("conv2d", as_image(c, x), as_image(c, weight), *([bias] if bias else []), **attrs)
    return restored(c, y, c.rank(x))


def _conv_transpose(c: OnnxContext, n: OnnxNode) -> str:
    x, weight = n.inputs[:2]
    kernel = kernel_of(c, weight)
    rank = len(kernel)
    strides, dilations = n.attr("strides", [1] * rank), n.attr("dilations", [1] * rank)
    extra = list(n.attr("output_padding", [0] * rank))
    pads = list(n.attr("pads", [0] * (2 * rank)))
    _require_lengths(c, rank, strides=strides, dilations=dilations, output_padding=extra, pads=pads)
    if min(extra, default=0) < 0:
        c.invalid("attribute 'output_padding'", extra, "0 or more")
    mode, wanted = n.attr("auto_pad", "NOTSET"), n.attr("output_shape")
    if wanted is not None and (len(wanted) not in (rank, rank + 2) or min(wanted) < 1):
        c.invalid("attribute 'output_shape'", list(wanted), f"{rank} extents of 1 or more")
    if wanted is not None or mode in ("SAME_UPPER", "SAME_LOWER"):
        for d, extent in enumerate(c.shape(x)[2:]):
            out = wanted[len(wanted) - rank + d] if wanted is not None else extent * strides[d]
            total = strides[d] * (extent - 1) + extra[d] + (kernel[d] - 1) * dilations[d] + 1 - out
            if total < 0:  # the output is larger than the windows reach
                extra[d], total = extra[d] - total, 0
            more, less = total - total // 2, total // 2
            pads[d], pads[rank + d] = (less, more) if mode == "SAME_UPPER" else (more, less)
    bias = [n.input(2)] if n.input(2) else []
    if rank > 2:
        y = volume.transposed(c, as_image(c, x), weight, strides, pads, extra, dilations, n.attr("group", 1))
        return _with_bias(c, y, n.input(2))
    y = c.add(
        "conv2d_transpose", as_image(c, x), as_image(c, weight), *bias,
        strides=_two(strides, 1), pads=_two_pads(pads), output_padding=_two(extra, 0), dilations=_two(dilations, 1),
        groups=n.attr("group", 1),
    )  # fmt: skip
    return restored(c, y, c.rank(x))


def _pool(op: str, c: OnnxContext, n: OnnxNode) -> str | list[str]:
    x, kernel = n.inputs[0], n.attrs["kernel_shape"]
    strides, dilations = n.attr("strides", [1] * len(kernel)), n.attr("dilations", [1] * len(kernel))
    _require_lengths(c, len(kernel), kernel_shape=kernel, strides=strides, dilations=dilations)
    attrs = {"count_include_pad": bool(n.attr("count_include_pad", 0))} if op == "avg_pool2d" else {}
    y = volume.pool(
        c, op, as_image(c, x), _two(kernel, 1), _two(strides, 1),
        _two_pads(_explicit_pads(c, kernel, strides, dilations)), _two(dilations, 1),
        ceil_mode=bool(n.attr("ceil_mode", 0)), **attrs,
    )  # fmt: skip
    y = restored(c, y, c.rank(x))
    if len(n.outputs) == 1:
        return y
    pads = _explicit_pads(c, kernel, strides, dilations)
    indices = c.add(
        "max_pool_indices", x, kernel=tuple(kernel), strides=tuple(strides), pads=tuple(pads[: len(kernel)]),
        dilations=tuple(dilations), size=c.shape(y)[2:], column_major=bool(n.attr("storage_order", 0)),
    )  # fmt: skip
    return [y, indices]


def _lp_pool(c: OnnxContext, n: OnnxNode) -> str:
    """``(sum of |x|^p) ^ (1 / p)`` of each window: a mean that counts padding, times the number of elements."""
    x, p = n.inputs[0], float(n.attr("p", 2))
    power = c.add("pow", c.add("abs", x), c.scalar(p, x)) if p != 2 else c.add("mul", x, x)
    kernel = n.attrs["kernel_shape"]
    strides, dilations = n.attr("strides", [1] * len(kernel)), n.attr("dilations", [1] * len(kernel))
    _require_lengths(c, len(kernel), kernel_shape=kernel, strides=strides, dilations=dilations)
    pads = _explicit_pads(c, kernel, strides, dilations)
    ceil_mode = bool(n.attr("ceil_mode", 0))
    padded = c.add("pad", power, pads=(0, 0, *pads[: len(kernel)], 0, 0, *pads[len(kernel) :]))
    if ceil_mode:
        padded = _room_for_last(c, padded, kernel, strides, dilations)
    mean = volume.pool(
        c, "avg_pool2d", as_image(c, padded), _two(kernel, 1), _two(strides, 1), (0,) * 2 * max(len(kernel), 2),
        _two(dilations, 1), count_include_pad=True,
    )  # fmt: skip
    total = c.add("mul", restored(c, mean, c.rank(x)), c.scalar(math.prod(kernel), x))
    return _root(c, total, p)


def _room_for_last(
    c: OnnxContext, x: str, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> str:
    """``x`` with zeros behind it for last windows that are not whole."""
    high = []
    for extent, k, s, d in zip(c.shape(x)[2:], kernel, strides, dilations, strict=True):
        reach = d * (k - 1) + 1
        count = -(-(extent - reach) // s) + 1
        high.append(max((count - 1) * s + reach - extent, 0) if (count - 1) * s < extent else 0)
    return c.add("pad", x, pads=(*[0] * c.rank(x), 0, 0, *high))


def _root(c: OnnxContext, x: str, p: float) -> str:
    return c.add("sqrt", x) if p == 2 else c.add("pow", x, c.scalar(1 / p, x)) if p != 1 else x


def _global_lp_pool(c: OnnxContext, n: OnnxNode) -> str:
    x, p = n.inputs[0], float(n.attr("p", 2))
    power = c.add("pow", c.add("abs", x), c.scalar(p, x))
    return _root(c, c.add("reduce_sum", power, axes=tuple(range(2, c.rank(x))), keepdims=True), p)


def _global_pool(op: str, c: OnnxContext, n: OnnxNode) -> str:
    return c.add(op, n.inputs[0], axes=tuple(range(2, c.rank(n.inputs[0]))), keepdims=True)


_MORE_COORDINATES = ("half_pixel_symmetric", "tf_crop_and_resize")
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


def _resize(c: OnnxContext, n: OnnxNode) -> str:
    """Resize of any opset, and Upsample; integers between others are computed in float32 and rounded towards zero."""
    x, dtype = n.inputs[0], c.dtype(n.inputs[0])
    if n.attr("mode", "nearest") == "nearest" or dtype in FLOATS:
        return _resized(c, n)
    if np_dtype(dtype).kind not in "iu" or np_dtype(dtype).itemsize > 4:
        c.refuse("input 0", f"dtype {dtype}", "floats, and integers of 32 bits or less")
    work = "float32" if np_dtype(dtype).itemsize < 4 else "float64"
    found = _resized(c, replace(n, inputs=(c.cast(x, work), *n.inputs[1:])))
    if n.attr("mode") == "cubic":  # whose weights leave the range of what they weigh
        limits = np.iinfo(np_dtype(dtype))
        found = c.add("clip", found, min=float(limits.min), max=float(limits.max))
    return c.cast(found, dtype)


def _resized(c: OnnxContext, n: OnnxNode) -> str:
    """Resize of numbers that may be weighed; Upsample is its asymmetric form that rounds down."""
    x, shape = n.inputs[0], c.shape(n.inputs[0])
    modern = n.op == "Resize" and n.opset >= 11
    coordinates = n.attr("coordinate_transformation_mode", "half_pixel" if modern else "asymmetric")
    mode = n.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        c.invalid("attribute 'mode'", mode, "nearest, linear, cubic")
    if coordinates not in (*_COORDINATES, *_MORE_COORDINATES):
        allowed = ", ".join((*_COORDINATES, *_MORE_COORDINATES))
        c.invalid("attribute 'coordinate_transformation_mode'", coordinates, allowed)
    axes = [c.axis(x, a) for a in n.attr("axes", range(len(shape)))]
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if len({*axes}) < len(axes) or policy not in ("stretch", "not_larger", "not_smaller"):
        c.invalid("axes and policy", f"{axes} and {policy}", "each axis once; stretch, not_larger, not_smaller")
    scales, sizes = [1.0] * len(shape), list(shape)
    position = 2 if modern else 1
    given = c.static(n.input(position), "scales").tolist() if n.input(position) else n.attr("scales", [])
    if len(given) and modern and n.input(3) and 0 not in c.shape(n.input(3)):
        c.invalid("inputs", "scales and sizes", "one of them")
    if "height_scale" in n.attrs:  # of Upsample-1
        given = [1.0, 1.0, n.attrs["height_scale"], n.attrs["width_scale"]]
    sized = [] if len(given) else c.ints(n.input(3), "sizes") if n.input(3) else []
    if len(axes) not in (len(given), len(sized)):
        c.invalid("scales and sizes", f"{len(given)} and {len(sized)} numbers", f"{len(axes)} of one of them")
    if len(given):
        for d, scale in zip(axes, given, strict=True):
            scales[d], sizes[d] = scale, math.floor(shape[d] * scale) if abs(scale) < math.inf else -1
    elif policy != "stretch":
        kept = sampling.kept_aspect(policy, sized, [shape[d] for d in axes])
        for d, scale, size in zip(axes, *kept, strict=True):
            scales[d], sizes[d] = scale, size
    else:
        for d, size in zip(axes, sized, strict=True):
            scales[d], sizes[d] = size / shape[d] if shape[d] and size else 1.0, size
    if not all(0 < scale < math.inf for scale in scales) or min(sizes, default=0) < 0:
        c.invalid("scales and sizes", f"{scales} and {sizes}", "finite numbers above 0, and no size below 0")
    c.require_room(sizes, c.dtype(x))
    if mode == "cubic" or n.attr("antialias", 0) or coordinates in _MORE_COORDINATES:
        return _resampled(c, n, axes, scales, sizes, coordinates)
    rounding = n.attr("nearest_mode", "round_prefer_floor" if modern else "floor")
    return c.add(
        "resize", x, sizes=tuple(sizes), scales=tuple(scales), mode=mode.removeprefix("bi"), coordinates=coordinates,
        rounding=rounding,
    )  # fmt: skip


def _resampled(
    c: OnnxContext, n: OnnxNode, axes: Sequence[int], scales: Sequence[float], sizes: Sequence[int], coordinates: str
) -> str:
    """The resize that no definition of its own says: dimension after dimension."""
    x, crops = n.inputs[0], coordinates == "tf_crop_and_resize"
    roi = c.static(n.input(1), "roi").tolist() if crops and n.input(1) else []
    roi = roi or [0.0] * len(axes) + [1.0] * len(axes)
    lines = {
        d: sampling.ResizeAxis(c.shape(x)[d], sizes[d], scales[d], coordinates, (roi[k], roi[len(axes) + k]))
        for k, d in enumerate(axes)
    }
    moved = {d: line for d, line in lines.items() if line.size != line.extent or line.roi != (0.0, 1.0)}
    return sampling.resampled(c, x, moved, n) if moved else c.add("identity", x)


TRANSLATORS: Mapping[str, Translator] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": partial(_pool, "max_pool2d"),
    "AveragePool": partial(_pool, "avg_pool2d"),
    "GlobalAveragePool": partial(_global_pool, "reduce_mean"),
    "LpPool": _lp_pool,
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": partial(_global_pool, "reduce_max"),
    "Resize": _resize,
    "Upsample": _resize,
}
