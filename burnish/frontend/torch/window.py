"""Translators of ATen operators over windows: convolutions, pooling, resampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from burnish.frontend import volume
from burnish.frontend.torch.context import Ref, TorchContext, Translator, pair
from burnish.frontend.torch.dtypes import to_numpy
from burnish.frontend.torch.symbols import is_open
from burnish.graph.graph import Attribute

RANKS = (1, 2, 3)  # spatial dimensions

# --- convolutions -----------------------------------------------------------------------------------------------------


def _image(c: TorchContext, x: Ref, rank: int) -> Ref:
    """``x`` [N, C, L], [N, C, H, W], … as an image or a volume, one without a batch as a batch of one. ``rank``:
    spatial dimensions.
    """
    shape = c.shape(x)
    if len(shape) == rank + 1:
        shape = (1, *shape)
    return c.reshape(x, (*shape[:2], 1, shape[2]) if rank == 1 else shape)


def _wide(values: Sequence[int], neutral: int) -> tuple[int, ...]:
    """Values for height and width: a single one is the width's."""
    return (neutral, *values) if len(values) == 1 else tuple(values)


def convolution(
    c: TorchContext, input: Ref, weight: Ref, bias: Ref | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Ref:  # fmt: skip
    """A convolution of any rank, or the transposed one."""
    rank = c.rank(weight) - 2
    image, kernel = _image(c, input, rank), _image(c, weight, rank)
    stride, dilation = pair(stride, rank), pair(dilation, rank)
    pads = _explicit_pads(c.shape(weight)[2:], padding, dilation, rank)
    low, high = (_wide(p, 0) for p in pads)
    attrs: dict[str, Attribute] = {
        "strides": _wide(stride, 1),
        "pads": (*low, *high),
        "dilations": _wide(dilation, 1),
        "groups": groups,
    }
    if rank > 2:
        y = _over_volume(c, image, kernel, (stride, [*low, *high], dilation, groups),
                         pair(output_padding, rank) if transposed else None)  # fmt: skip
        y = y if bias is None else c.add("add", y, c.reshape(bias, (*c.shape(bias), *(1,) * rank)))
        return c.reshape(y, c.out_shape)
    operands = [image, kernel] if bias is None else [image, kernel, bias]
    if transposed:
        y = c.add("conv2d_transpose", *operands, output_padding=_wide(pair(output_padding, rank), 0), **attrs)
    else:
        y = c.add("conv2d", *operands, **attrs)
    return c.reshape(y, c.out_shape)


def _over_volume(
    c: TorchContext, x: Ref, weight: Ref, window: tuple[Any, Any, Any, int], output_padding: tuple[int, ...] | None
) -> Ref:
    """A convolution over three or more dimensions, transposed if it has an ``output_padding``."""
    if output_padding is None:
        return Ref(volume.convolution(c, x, weight, *window))
    strides, pads, dilations, groups = window
    return Ref(volume.transposed(c, x, weight, strides, pads, output_padding, dilations, groups))


def _explicit_pads(
    kernel: Sequence[int], padding: Any, dilation: Sequence[int], rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Low and high padding. "same": the output has the input's extents, an odd rest is at the high end."""
    if padding == "valid":
        return (0,) * rank, (0,) * rank
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return pair(padding, rank), pair(padding, rank)


def _conv(
    c: TorchContext, input: Ref, weight: Ref, bias: Ref | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Ref:
    return convolution(c, input, weight, bias, stride, padding, dilation, False, 0, groups)


def _conv_transpose(
    c: TorchContext, input: Ref, weight: Ref, bias: Ref | None, stride: Any, padding: Any, output_padding: Any,
    groups: int, dilation: Any,
) -> Ref:  # fmt: skip
    return convolution(c, input, weight, bias, stride, padding, dilation, True, output_padding, groups)


# --- pooling ----------------------------------------------------------------------------------------------------------


def _pool(
    op: str, c: TorchContext, x: Ref, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
    rank: int, **attrs: Any,
) -> Ref:  # fmt: skip
    kernel = pair(kernel_size, rank)
    step = pair(stride, rank) if stride not in (None, [], ()) else kernel
    pads = _wide(pair(padding, rank), 0)
    y = volume.pool(
        c, op, _image(c, x, rank), _wide(kernel, 1), _wide(step, 1), (*pads, *pads),
        _wide(pair(dilation, rank), 1), ceil_mode=ceil_mode, **attrs,
    )  # fmt: skip
    return c.reshape(y, c.out_shape)


def max_pool(
    rank: int, c: TorchContext, x: Ref, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Ref:  # fmt: skip
    """Max pooling over windows of ``rank`` dimensions."""
    return _pool("max_pool2d", c, x, kernel_size, stride, padding, dilation, ceil_mode, rank)


def _max_pool_with_indices(
    rank: int, c: TorchContext, x: Ref, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> list[Ref | None]:  # fmt: skip
    return [max_pool(rank, c, x, kernel_size, stride, padding, dilation, ceil_mode), None]


def avg_pool(
    rank: int, c: TorchContext, x: Ref, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Ref:  # fmt: skip
    """Average pooling over windows of ``rank`` dimensions."""
    y = _pool("avg_pool2d", c, x, kernel_size, stride, padding, 1, ceil_mode, rank,
              count_include_pad=count_include_pad or divisor_override is not None)  # fmt: skip
    if divisor_override is None:
        return y
    if ceil_mode:
        c.refuse("divisor_override", divisor_override, "None where ceil_mode holds")
    return c.add("mul", y, c.scalar(math.prod(pair(kernel_size, rank)) / divisor_override, y))


def adaptive_avg_pool(rank: int, c: TorchContext, x: Ref, output_size: Any) -> Ref:
    """Means of windows that begin at floor(i·n/m) and end at ceil((i+1)·n/m): a linear map along each dimension."""
    sizes = c.out_shape[-rank:]
    if all(size == 1 for size in sizes):
        axes = tuple(range(c.rank(x) - rank, c.rank(x)))
        return c.reshape(c.add("reduce_mean", x, axes=axes, keepdims=True), c.out_shape)
    extents = c.shape(x)[-rank:]
    _require_numbers(c, extents, sizes)
    if all(n % m == 0 for n, m in zip(extents, sizes, strict=True)):
        kernel = tuple(n // m for n, m in zip(extents, sizes, strict=True))
        return _pool("avg_pool2d", c, x, kernel, kernel, 0, 1, False, rank)
    for position, (n, m) in enumerate(zip(extents, sizes, strict=True)):
        rows = np.zeros((m, n))
        for i in range(m):
            first, last = i * n // m, -(-(i + 1) * n // m)
            rows[i, first:last] = 1 / (last - first)
        x = _mapped(c, x, c.rank(x) - rank + position, rows)
    return x


def _adaptive_max_pool(rank: int, c: TorchContext, x: Ref, output_size: Any) -> list[Ref | None]:
    """Maxima of the same windows: of elements that are read once for each window, the last again in shorter ones."""
    extents, sizes = c.shape(x)[-rank:], c.out_shape[-rank:]
    _require_numbers(c, extents, sizes)
    kernel: list[int] = []
    for position, (n, m) in enumerate(zip(extents, sizes, strict=True)):
        ends = [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
        kernel.append(max(last - first for first, last in ends))
        if n % m:
            places = [min(first + k, last - 1) for first, last in ends for k in range(kernel[-1])]
            x = c.add("gather", x, c.constant(np.array(places)), axis=c.rank(x) - rank + position)
    return [_pool("max_pool2d", c, x, kernel, kernel, 0, 1, False, rank), None]


def _require_numbers(c: TorchContext, *shapes: Sequence[int]) -> None:
    if any(is_open(extent) for shape in shapes for extent in shape):
        c.refuse("spatial extents", ", ".join(map(str, (*shapes[0], *shapes[-1]))), "numbers")


def _mapped(c: TorchContext, x: Ref, axis: int, matrix: np.ndarray) -> Ref:
    """The product of ``matrix`` [out, in] with ``x`` along ``axis``."""
    weight = c.constant(matrix, c.dtype(x))
    if axis == c.rank(x) - 1:
        return c.add("matmul", x, weight, transpose_b=True)
    if axis == c.rank(x) - 2:
        return c.add("matmul", weight, x)
    order = [*range(c.rank(x))]
    order[axis], order[-1] = order[-1], order[axis]
    return c.transpose(_mapped(c, c.transpose(x, order), c.rank(x) - 1, matrix), order)


# --- resampling -------------------------------------------------------------------------------------------------------


def _upsample(
    mode: str, coordinates: str, c: TorchContext, input: Ref, scales: Sequence[float | None], rank: int
) -> Ref:
    """Resampling to the size that torch says. A scale that is given places the samples, else the sizes do."""
    sizes = c.out_shape
    _require_numbers(c, c.shape(input)[-rank:], sizes[-rank:])
    given = [1.0] * (len(sizes) - rank)
    for extent, size, scale in zip(c.shape(input)[-rank:], sizes[-rank:], scales, strict=True):
        given.append(float(scale) if scale else size / extent)
    extra = {"rounding": "floor" if coordinates == "asymmetric" else "round_prefer_ceil"} if mode == "nearest" else {}
    return c.add("resize", input, sizes=sizes, scales=tuple(given), mode=mode, coordinates=coordinates, **extra)


def _nearest(
    coordinates: str, rank: int, c: TorchContext, input: Any = None, x: Any = None, output_size: Any = None,
    scale_factors: Any = None, scales: Any = None, scales_d: Any = None, scales_h: Any = None, scales_w: Any = None,
) -> Ref:  # fmt: skip
    factors = scale_factors or ([scales] if rank == 1 else [scales_d, scales_h, scales_w][-rank:])
    return _upsample("nearest", coordinates, c, x if input is None else input, factors, rank)


def _linear(
    rank: int, c: TorchContext, align_corners: bool, input: Any = None, x: Any = None, output_size: Any = None,
    scale_factors: Any = None, scales: Any = None, scales_d: Any = None, scales_h: Any = None, scales_w: Any = None,
) -> Ref:  # fmt: skip
    factors = scale_factors or ([scales] if rank == 1 else [scales_d, scales_h, scales_w][-rank:])
    coordinates = "align_corners" if align_corners else "half_pixel"
    return _upsample("linear", coordinates, c, x if input is None else input, factors, rank)


def _by_matrices(operator: str, c: TorchContext, input: Any = None, x: Any = None, **arguments: Any) -> Ref:
    """Bicubic and antialiased resampling: a linear map along each dimension, found by the operator of torch itself."""
    import torch

    image = x if input is None else input
    _require_numbers(c, c.shape(image)[-2:], c.out_shape[-2:])
    scales = arguments.get("scale_factors") or [arguments.get("scales_h"), arguments.get("scales_w")]
    for axis, (n, m, scale) in enumerate(zip(c.shape(image)[-2:], c.out_shape[-2:], scales, strict=True)):
        # Channels are the unit vectors, in two columns: of one, torch's antialiased forms mistake the layout.
        unit = torch.eye(n, dtype=torch.float64).reshape(1, n, n, 1).expand(1, n, n, 2).contiguous()
        moved = getattr(torch.ops.aten, operator)(unit, [m, 2], arguments["align_corners"], scale, None)
        image = _mapped(c, image, c.rank(image) - 2 + axis, to_numpy(moved[0, :, :, 0].T, c.label))
    return image


def _cubic(
    operator: str, c: TorchContext, align_corners: bool, input: Any = None, x: Any = None, output_size: Any = None,
    scale_factors: Any = None, scales_h: Any = None, scales_w: Any = None,
) -> Ref:  # fmt: skip
    return _by_matrices(
        operator, c, input, x, align_corners=align_corners, scale_factors=scale_factors, scales_h=scales_h,
        scales_w=scales_w,
    )  # fmt: skip


GRID_MODES, GRID_PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


def _grid_sampler(
    c: TorchContext, input: Ref, grid: Ref, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Ref:
    mode, padding = GRID_MODES[interpolation_mode], GRID_PADDINGS[padding_mode]
    return c.add(
        "grid_sample", input, grid, mode=mode, padding=padding, align_corners=align_corners, bounded=mode != "cubic"
    )


TRANSLATORS: Mapping[str, Translator] = {
    "aten.convolution": convolution, "aten.conv1d": _conv, "aten.conv2d": _conv, "aten.conv3d": _conv,
    "aten.conv_transpose1d": _conv_transpose, "aten.conv_transpose2d": _conv_transpose,
    "aten.conv_transpose3d": _conv_transpose,
    **{f"aten.max_pool{rank}d": partial(max_pool, rank) for rank in RANKS},
    **{f"aten.max_pool{rank}d_with_indices": partial(_max_pool_with_indices, rank) for rank in RANKS},
    **{f"aten.avg_pool{rank}d": partial(avg_pool, rank) for rank in RANKS},
    **{f"aten.adaptive_avg_pool{rank}d": partial(adaptive_avg_pool, rank) for rank in RANKS},
    **{f"aten._adaptive_avg_pool{rank}d": partial(adaptive_avg_pool, rank) for rank in RANKS},
    **{f"aten.adaptive_max_pool{rank}d": partial(_adaptive_max_pool, rank) for rank in RANKS},
    **{f"aten.upsample_nearest{rank}d": partial(_nearest, "asymmetric", rank) for rank in RANKS},
    **{f"aten._upsample_nearest_exact{rank}d": partial(_nearest, "half_pixel", rank) for rank in RANKS},
    "aten.upsample_linear1d": partial(_linear, 1), "aten.upsample_bilinear2d": partial(_linear, 2),
    "aten.upsample_trilinear3d": partial(_linear, 3),
    "aten.grid_sampler_2d": _grid_sampler, "aten.grid_sampler_3d": _grid_sampler,
    "aten.upsample_bicubic2d": partial(_cubic, "upsample_bicubic2d"),
    "aten._upsample_bilinear2d_aa": partial(_cubic, "_upsample_bilinear2d_aa"),
    "aten._upsample_bicubic2d_aa": partial(_cubic, "_upsample_bicubic2d_aa"),
}  # fmt: skip
