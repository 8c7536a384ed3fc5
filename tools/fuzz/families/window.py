"""Draws of operators that slide a window: convolutions, pools, and resampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tools.fuzz.families.common import Draw
from tools.fuzz.sketch import CHANNELS, FLOATS, Rejected, Sketch

MOST_PRODUCTS = 3_000_000  # multiplications of one convolution
ROOT = 0.6  # of the number of terms: weights are scaled so that values neither grow nor vanish


def image(s: Sketch, op: str, rank: int | None = None) -> str:
    """A value [N, C, W] or [N, C, H, W]."""
    ranks = (3, 4, 4, 4) if rank is None else (rank,)

    def fits(value: np.ndarray) -> bool:
        return value.size > 0 and value.shape[1] <= 130 and max(value.shape[2:]) <= 70

    dtypes = s.types(op, 0, FLOATS)
    found = s.find(lambda v: str(v.dtype) in dtypes and v.ndim in ranks and fits(v))
    if found is not None and s.chance(0.9):
        return found
    spatial = [s.choose((1, 3, 5, 7, 8, 9, 13, 14, 16, 17, 20)) for _ in range(s.choose(ranks) - 2)]
    shape = (s.choose((1, 1, 1, 2, 3)), s.choose(CHANNELS), *spatial)
    if np.prod(shape) > 2 * s.fuel:
        raise Rejected("a large image")
    return s.new(s.floats(shape, s.dtype_of(dtypes)), s.chance(0.05))


def window(s: Sketch, extents: Sequence[int], kernel: Sequence[int], pools: bool = False) -> dict[str, Any]:
    """Strides, pads and dilations for a kernel."""
    rank = len(kernel)
    attrs: dict[str, Any] = {}
    if s.chance(0.45):
        attrs["strides"] = [s.choose((1, 2, 2, 3)) for _ in range(rank)]
    if s.chance(0.2) and (not pools or s.opset >= 10):
        attrs["dilations"] = [s.choose((1, 2, 3)) for _ in range(rank)]
    manner = s.random.random()
    if manner < 0.5:
        attrs["pads"] = [k // 2 for k in kernel] * 2
    elif manner < 0.7:
        attrs["pads"] = [s.between(0, k - 1 if pools else k) for k in [*kernel, *kernel]]
    elif manner < 0.85:
        attrs["auto_pad"] = s.choose(("SAME_UPPER", "SAME_LOWER", "VALID"))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs.get("dilations", [1] * rank), strict=True)]
    pads = attrs.get("pads", [0] * (2 * rank))
    if any(e + pads[d] + pads[rank + d] < r for d, (e, r) in enumerate(zip(extents, reach, strict=True))):
        raise Rejected("a window larger than the image")
    return attrs


def bias(s: Sketch, count: int, dtype: str) -> list[str]:
    return [s.new(s.floats((count,), dtype), s.chance(0.9))] if s.chance(0.6) else []


def conv(s: Sketch) -> None:
    x = image(s, "Conv")
    batch, channels, *extents = s.value(x).shape
    kernel = [s.choose((1, 1, 3, 3, 3, 5, 2)) for _ in extents] if s.chance(0.4) else [s.choose((1, 3))] * len(extents)
    manner = s.random.random()
    if manner < 0.6:
        groups, outputs = 1, s.choose(CHANNELS)
    elif manner < 0.8:  # depthwise
        groups, outputs = channels, channels * s.choose((1, 1, 1, 2))
    else:
        groups = s.choose([g for g in range(1, channels + 1) if channels % g == 0])
        outputs = groups * s.choose((1, 2, 3, 4, 8))
    shape = (outputs, channels // groups, *kernel)
    work = batch * np.prod(extents) * np.prod(shape)
    if work > MOST_PRODUCTS or outputs > 200:
        raise Rejected("a large convolution")
    half = min(1.0, 2 * ROOT / np.sqrt(np.prod(shape[1:])) + 0.05)
    weight = s.new(s.floats(shape, s.kind(x), -half, half), s.chance(0.9))
    attrs = window(s, extents, kernel)
    attrs["kernel_shape"] = kernel if s.chance(0.7) or "auto_pad" in attrs else None
    y = s.add("Conv", x, weight, *bias(s, outputs, s.kind(x)), group=groups if groups > 1 else None, **attrs)
    if s.chance(0.5):
        s.add(s.choose(("Relu", "Relu", "Sigmoid", "LeakyRelu", "Tanh")), y)


def conv_transpose(s: Sketch) -> None:
    x = image(s, "ConvTranspose")
    if not np.isfinite(s.value(x)).all():
        raise Rejected("infinity times zeros between the phases")
    batch, channels, *extents = s.value(x).shape
    kernel = [s.choose((1, 2, 3, 4)) for _ in extents]
    groups = 1 if s.chance(0.7) else s.choose([g for g in range(1, channels + 1) if channels % g == 0])
    each = s.choose((1, 2, 3, 8, 16)) if groups < 9 else 1
    shape = (channels, each, *kernel)
    if batch * np.prod(extents) * np.prod(shape) > MOST_PRODUCTS:
        raise Rejected("a large convolution")
    weight = s.new(s.floats(shape, s.kind(x), -0.4, 0.4), s.chance(0.9))
    attrs: dict[str, Any] = {"group": groups if groups > 1 else None}
    strides = [s.choose((1, 2, 2, 3)) for _ in kernel]
    attrs["strides"] = strides
    if s.chance(0.4):
        attrs["pads"] = [s.between(0, max(k - 1, 0) // 2) for k in [*kernel, *kernel]]
    elif s.chance(0.2) and all(k >= t for k, t in zip(kernel, strides, strict=True)):  # else the oracles differ
        attrs["auto_pad"] = s.choose(("SAME_UPPER", "SAME_LOWER"))
    if s.chance(0.25) and "auto_pad" not in attrs:
        attrs["output_padding"] = [s.between(0, t - 1) for t in strides]
    if s.chance(0.15):
        attrs["dilations"] = [s.choose((1, 2)) for _ in kernel]
    attrs["kernel_shape"] = kernel
    s.add("ConvTranspose", x, weight, *bias(s, each * groups, s.kind(x)), **attrs)


def pool(s: Sketch) -> None:
    op = s.choose(("MaxPool", "AveragePool"))
    x = image(s, op)
    if op == "MaxPool" and np.isnan(s.value(x)).any():
        raise Rejected("whether NaN is the largest is not said")
    extents = s.value(x).shape[2:]
    kernel = [s.choose((1, 2, 2, 3, 3, 5)) for _ in extents]
    attrs = window(s, extents, kernel, pools=True)
    if op == "AveragePool" and s.opset < 19:
        attrs.pop("dilations", None)
    if s.opset >= 10 and "auto_pad" not in attrs:
        attrs["ceil_mode"] = s.choose((None, None, 1))
    if op == "AveragePool":
        attrs["count_include_pad"] = s.choose((None, None, 1))
    s.add(op, x, kernel_shape=kernel, **attrs)


def global_pool(s: Sketch) -> None:
    op = s.choose(("GlobalAveragePool", "GlobalMaxPool"))
    s.add(op, image(s, op))


def resize(s: Sketch) -> None:
    if s.opset < 10:
        upsample(s)
        return
    x = image(s, "Resize", s.choose((3, 4, 4)))
    shape = s.value(x).shape
    mode = s.choose(("nearest", "linear")) if np.isfinite(s.value(x)).all() else "nearest"
    if s.opset == 10:
        scales = [1.0, 1.0, *(s.choose((1.0, 2.0, 0.5, 3.0)) for _ in shape[2:])]
        s.add("Resize", x, s.constant(np.asarray(scales, np.float32)), mode=mode)
        return
    attrs: dict[str, Any] = {"mode": mode}
    coordinates = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
    attrs["coordinate_transformation_mode"] = s.choose((None, *coordinates))
    if mode == "nearest":
        attrs["nearest_mode"] = s.choose((None, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    roi = "" if s.opset >= 13 else s.constant(np.zeros(0, np.float32))
    if s.chance(0.5):
        scales = [1.0, 1.0, *(s.choose((1.0, 2.0, 0.5, 1.5, 3.0, 0.7)) for _ in shape[2:])]
        s.add("Resize", x, roi, s.constant(np.asarray(scales, np.float32)), **attrs)
    else:
        sizes = [*shape[:2], *(s.choose((1, 3, 7, 8, 16, 2 * e, e)) for e in shape[2:])]
        none = "" if s.opset >= 13 else s.constant(np.zeros(0, np.float32))
        s.add("Resize", x, roi, none, s.index(sizes), **attrs)


def upsample(s: Sketch) -> None:
    x = image(s, "Upsample", 4)
    scales = [1.0, 1.0, s.choose((1.0, 2.0)), s.choose((2.0, 3.0))]
    s.add("Upsample", x, s.constant(np.asarray(scales, np.float32)), mode=s.choose(("nearest", "linear")))


def pyramid(s: Sketch) -> None:
    """A convolution whose result is both combined with what came before and reduced again."""
    conv(s)
    x = f"v{len(s.nodes) - 1}"
    channels, dtype = s.value(x).shape[1], s.kind(x)
    half = min(1.0, 2 * ROOT / np.sqrt(9 * channels))
    spatial = s.value(x).ndim - 2
    shape = (channels, channels, *([3] * spatial))
    if np.prod(shape) * np.prod(s.value(x).shape[2:]) > MOST_PRODUCTS:
        raise Rejected("a large convolution")
    weight = s.new(s.floats(shape, dtype, -half, half), True)
    y = s.add("Conv", x, weight, pads=[1] * (2 * spatial))
    s.add(s.choose(("Add", "Mul", "Max")), *((x, y) if s.chance(0.5) else (y, x)))


DRAWS: Mapping[str, Draw] = {
    "conv": conv, "conv2": conv, "conv3": conv, "conv_transpose": conv_transpose, "pool": pool, "pool2": pool,
    "global_pool": global_pool, "resize": resize, "pyramid": pyramid,
}  # fmt: skip
