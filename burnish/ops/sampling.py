"""Opaque operators that read images between their elements, at places that tensors hold, by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import (
    Composed,
    Ints,
    differentiated,
    opaque,
    require,
    require_dtype,
    require_float,
    require_rank,
)
from burnish.ops.sampled import CUBIC, deformed_columns_terms, grid_sample_terms, roi_align_terms

MODES = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")


def cubic_weights(x: np.ndarray) -> list[np.ndarray]:
    """The weights of four successive elements at ``x`` in [0, 1] behind the second one (Keys 1981)."""
    near, far = x, 1 - x

    def outer(t: np.ndarray) -> np.ndarray:
        return ((CUBIC * (t + 1) - 5 * CUBIC) * (t + 1) + 8 * CUBIC) * (t + 1) - 4 * CUBIC

    def inner(t: np.ndarray) -> np.ndarray:
        return ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1

    return [outer(near), inner(near), inner(far), outer(far)]


def _reflected(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """``x`` mirrored at ``low`` and ``high`` until it lies between them."""
    width = high - low
    if width <= 0:
        return np.zeros_like(x)
    away = np.abs(x - low) % (2 * width)
    return low + np.where(away > width, 2 * width - away, away)


def _taps(mode: str, x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Positions and weights of the elements that make the value at ``x`` along one dimension."""
    if mode == "nearest":
        return [(np.rint(x).astype(np.int64), np.ones_like(x))]
    first = np.floor(x)
    rest, at = x - first, first.astype(np.int64)
    if mode == "linear":
        return [(at, 1 - rest), (at + 1, rest)]
    return [(at - 1 + k, weight) for k, weight in enumerate(cubic_weights(rest))]


def _grid_sample(x: np.ndarray, grid: np.ndarray, mode: str, padding: str, align_corners: bool) -> np.ndarray:
    sizes, (batch, channels) = x.shape[2:], x.shape[:2]
    taps = []
    for d, size in enumerate(sizes):
        place = grid[..., len(sizes) - 1 - d].reshape(batch, -1).astype(np.float64)
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        at = (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2
        at = np.where(np.isfinite(at), at, -(size + 1.0))
        if mode == "nearest":
            at = np.rint(at)
        if padding == "border":
            at = np.clip(at, 0, size - 1)
        elif padding == "reflection":
            at = np.where((at < low) | (at > high), _reflected(at, low, high), at)
        taps.append([(*_inside(i, size, padding, low, high), w) for i, w in _taps(mode, at)])
    rows = np.arange(batch)[:, None]
    result = np.zeros((batch, int(np.prod(grid.shape[1:-1])), channels), np.float64)
    images = np.moveaxis(x, 1, -1)
    for choice in product(*taps):
        weight = np.prod([w * live for _, live, w in choice], axis=0)
        result += images[(rows, *(index for index, _, _ in choice))] * weight[..., None]
    return np.moveaxis(result, -1, 1).reshape(batch, channels, *grid.shape[1:-1]).astype(x.dtype)


def _inside(index: np.ndarray, size: int, padding: str, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Positions that can be read, and whether what is there counts."""
    if padding == "reflection":
        outside = (index < 0) | (index >= size)
        mirrored = np.trunc(_reflected(index.astype(np.float64), low, high)).astype(np.int64)
        index = np.where(outside, mirrored, index)
    live = (index >= 0) & (index < size) if padding == "zeros" else np.ones(index.shape, bool)
    return np.clip(index, 0, size - 1), live


@differentiated(Composed(grid_sample_terms))
@opaque(_grid_sample)
def grid_sample(
    name: str, x: Tensor, grid: Tensor, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False
) -> Tensor:
    """``x`` [N, C, D1, ...] at the places of ``grid`` [N, E1, ..., r]: r coordinates, the last dimension's first.

    -1 and 1 are the image's edges, or the centres of its outermost elements with ``align_corners``. Places outside are
    zero, the nearest edge ("border"), or mirrored at it ("reflection"). Source: Jaderberg et al. 2015.
    """
    require_float(x, "x")
    require_float(grid, "grid")
    rank = len(x.shape) - 2
    require(rank > 0, "input 'x'", f"shape {list(x.shape)}", "at least 3 dimensions, [N, C, ...]")
    ok = len(grid.shape) == rank + 2 and grid.shape[-1] == rank and grid.shape[0] == x.shape[0]
    require(ok, "input 'grid'", f"shape {list(grid.shape)}", f"[{x.shape[0]}, {rank} extents, {rank}]")
    require(0 not in x.shape[2:], "input 'x'", f"shape {list(x.shape)}", "an image of some elements")
    require(mode in MODES, "attribute 'mode'", mode, ", ".join(MODES))
    require(padding in PADDINGS, "attribute 'padding'", padding, ", ".join(PADDINGS))
    return placeholder((*x.shape[:2], *grid.shape[1:-1]), x.dtype, name)


# --- regions ----------------------------------------------------------------------------------------------------------


def _edges(at: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Lower and upper element of every place, the upper one's weight, and whether the place is in the image."""
    live = (at >= -1.0) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.minimum(np.floor(at).astype(np.int64), size - 1)
    return low, np.minimum(low + 1, size - 1), at - low, live


def _roi_align(
    x: np.ndarray,
    rois: np.ndarray,
    batch: np.ndarray,
    size: Ints,
    mode: str,
    sampling_ratio: int,
    spatial_scale: float,
    half_pixel: bool,
) -> np.ndarray:
    result = np.zeros((len(rois), x.shape[1], *size), x.dtype)
    for n, roi in enumerate(rois.astype(np.float64)):
        begin, end = (roi[k : k + 2] * spatial_scale - 0.5 * half_pixel for k in (0, 2))
        places, counts = [], []
        for d, extent in enumerate(size):  # height, then width: the last coordinate is the height's
            start, length = begin[1 - d], end[1 - d] - begin[1 - d]
            length = length if half_pixel else max(length, 1.0)
            count = sampling_ratio if sampling_ratio > 0 else max(int(np.ceil(length / extent)), 0)
            step = length / extent
            places.append(start + np.arange(extent)[:, None] * step + (np.arange(count) + 0.5) * step / max(count, 1))
            counts.append(count)
        if 0 not in counts:
            result[n] = _bins(x[batch[n]], places, mode)
    return result


def _bins(image: np.ndarray, places: Sequence[np.ndarray], mode: str) -> np.ndarray:
    """Means or maxima of an image [C, H, W] over the places of every bin: ``places`` [bins, samples] a dimension."""
    (low_y, high_y, part_y, live_y), (low_x, high_x, part_x, live_x) = (
        _edges(p.reshape(-1), n) for p, n in zip(places, image.shape[1:], strict=True)
    )
    live = live_y[:, None] & live_x[None, :]
    corners = []
    for rows, row_weight in ((low_y, 1 - part_y), (high_y, part_y)):
        for columns, column_weight in ((low_x, 1 - part_x), (high_x, part_x)):
            weight = row_weight[:, None] * column_weight[None, :] * live
            corners.append(image[:, rows][:, :, columns] * weight)
    combine: Callable[..., np.ndarray] = np.sum if mode == "avg" else np.max
    value = combine(corners, axis=0)
    (bins_y, samples_y), (bins_x, samples_x) = places[0].shape, places[1].shape
    value = value.reshape(-1, bins_y, samples_y, bins_x, samples_x)
    return value.mean((2, 4)) if mode == "avg" else value.max((2, 4))


@differentiated(Composed(roi_align_terms))
@opaque(_roi_align)
def roi_align(
    name: str,
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    *,
    size: Ints,
    mode: str = "avg",
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    half_pixel: bool = True,
) -> Tensor:
    """Regions ``rois`` [R, 4] (left, top, right, bottom) of the images ``batch`` [R] of ``x``, in bins of ``size``.

    A bin is the mean ("avg") or maximum of ``sampling_ratio`` squared places, or of as many as it is large if that is
    0. Result: [R, C, H, W]. Source: He et al. 2017, Mask R-CNN.
    """
    require_float(x, "x")
    require_rank(x, "x", 4, "[N, C, H, W]")
    ok = len(rois.shape) == 2 and rois.shape[1] == 4 and batch.shape == rois.shape[:1]
    require(ok, "input 'rois'", f"shapes {list(rois.shape)}, {list(batch.shape)}", "[R, 4], [R]")
    require_dtype(batch, "batch", ("int64", "int32"))
    require(mode in ("avg", "max"), "attribute 'mode'", mode, "avg, max")
    require(len(size) == 2 and min(size) > 0, "attribute 'size'", list(size), "two positive integers")
    require(sampling_ratio >= 0, "attribute 'sampling_ratio'", sampling_ratio, "0 or more")
    return placeholder((rois.shape[0], x.shape[1], *size), x.dtype, name)


def _deformed_columns(
    x: np.ndarray,
    offset: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    offset_groups: int,
) -> np.ndarray:
    (batch, channels, *sizes), out = x.shape, offset.shape[2:]
    moved = offset.reshape(batch, offset_groups, *kernel, 2, *out).astype(np.float64)
    images = x.reshape(batch, offset_groups, channels // offset_groups, *sizes)
    taps = []
    for d in (0, 1):
        own = [1, 1, 1, 1, 1, 1]
        own[2 + d] = kernel[d]
        tap = (np.arange(kernel[d]) * dilations[d]).reshape(own)
        own = [1, 1, 1, 1, 1, 1]
        own[4 + d] = out[d]
        start = (np.arange(out[d]) * strides[d] - pads[d]).reshape(own)
        at = moved[:, :, :, :, d] + tap + start
        low = np.floor(at).astype(np.int64)
        rest = at - low
        taps.append([(np.clip(i, 0, sizes[d] - 1), w * ((i >= 0) & (i < sizes[d]))) for i, w in
                     ((low, 1 - rest), (low + 1, rest))])  # fmt: skip
    rows = np.arange(batch).reshape(-1, 1, 1, 1, 1, 1)
    groups = np.arange(offset_groups).reshape(1, -1, 1, 1, 1, 1)
    total = np.zeros((*np.broadcast_shapes(rows.shape, groups.shape, taps[0][0][0].shape), images.shape[2]))
    values = np.moveaxis(images, 2, -1)
    for (y, y_weight), (at_x, x_weight) in product(*taps):
        total += values[rows, groups, y, at_x] * (y_weight * x_weight)[..., None]
    if mask is not None:
        total *= mask.reshape(batch, offset_groups, *kernel, *out)[..., None]
    columns = np.moveaxis(total, -1, 2)  # [N, groups, channels of a group, KH, KW, OH, OW]
    return columns.reshape(batch, channels, kernel[0] * kernel[1], out[0] * out[1]).astype(x.dtype)


@differentiated(Composed(deformed_columns_terms))
@opaque(_deformed_columns)
def deformed_columns(
    name: str,
    x: Tensor,
    offset: Tensor,
    mask: Tensor | None = None,
    *,
    kernel: Ints,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    offset_groups: int = 1,
) -> Tensor:
    """The elements that a convolution's windows read where every tap is moved: [N, C, KH * KW, OH * OW].

    ``offset`` [N, offset_groups * KH * KW * 2, OH, OW] moves rows and columns by fractions; ``mask`` scales what is
    read, likewise without the 2. Places outside the image are zero. Source: Zhu et al. 2018, Deformable ConvNets v2.
    """
    require_float(x, "x")
    require_rank(x, "x", 4, "[N, C, H, W]")
    require_rank(offset, "offset", 4, "[N, G * KH * KW * 2, OH, OW]")
    taps = offset_groups * kernel[0] * kernel[1]
    require(offset.shape[1] == 2 * taps, "input 'offset'", f"shape {list(offset.shape)}", f"{2 * taps} channels")
    require(x.shape[1] % offset_groups == 0, "attribute 'offset_groups'", offset_groups, f"divisors of {x.shape[1]}")
    if mask is not None:
        ok = mask.shape == (offset.shape[0], taps, *offset.shape[2:])
        require(ok, "input 'mask'", f"shape {list(mask.shape)}", f"{taps} channels, else as 'offset'")
    return placeholder((*x.shape[:2], kernel[0] * kernel[1], offset.shape[2] * offset.shape[3]), x.dtype, name)


OPERATORS = (grid_sample, roi_align, deformed_columns)
