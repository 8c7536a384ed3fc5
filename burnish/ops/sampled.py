"""Samplers of images as compositions of other operators, which are compiled, and differentiated by image and places."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import prod

import numpy as np

from burnish.ops.operator import Application, Shape, accumulator_dtype, require
from burnish.ops.terms import GraphTerm

CUBIC = -0.75  # Keys 1981, as the standard has it
FINITE = 1e38  # beyond it, a place is nowhere
Tap = tuple[GraphTerm, GraphTerm]  # the position of an element, int64, and its weight


def grid_sample_terms(a: Application) -> list[str]:
    """``grid_sample``: every place is a sum of weighted elements of its neighbourhood."""
    (x, dtype), (grid, grid_dtype) = a.types
    sizes, count, rank = x[2:], prod(grid[1:-1]), len(x) - 2
    padding, corners = a.attrs["padding"], a.attrs["align_corners"]
    work = "float64" if "float64" in (dtype, grid_dtype) else "float32"
    places = GraphTerm.of(a, 1).cast(work).reshape(x[0], count, rank)
    taps = []
    for d, size in enumerate(sizes):
        at = places.part((x[0], count, rank), 2, rank - 1 - d).reshape(x[0], count) + 1.0
        at = at * ((size - 1) / 2) if corners else (at * float(size) - 1.0) * 0.5
        at = (at.apply("abs") <= FINITE).choose(at, -(size + 1.0))
        low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
        if a.attrs["mode"] == "nearest":
            at = at.apply("round")
        if padding == "border" and a.attrs["bounded"]:
            at = at.clip(0.0, size - 1.0)
        elif padding == "reflection" and a.attrs["bounded"]:
            at = ((at < low) | (at > high)).choose(_reflected(at, low, high), at)
        taps.append([_inside(t, size, padding, low, high) for t in _taps(a.attrs["mode"], at)])
    images = GraphTerm.of(a, 0).transpose(0, *range(2, rank + 2), 1).reshape(x[0] * prod(sizes), x[1])
    first = GraphTerm.places(a, x[0]).reshape(x[0], 1) * prod(sizes)
    total = _weighted(images, first, sizes, taps, (x[0], count)).cast(dtype)
    return [total.transpose(0, 2, 1).reshape(x[0], x[1], *grid[1:-1]).name]


def _reflected(at: GraphTerm, low: float, high: float) -> GraphTerm:
    """Places mirrored at ``low`` and ``high`` until they lie between them."""
    width = high - low
    if width <= 0:
        return at * 0.0
    away = (at - low).apply("abs") % (2 * width)
    return (away > width).choose(away * -1.0 + 2 * width, away) + low


def _taps(mode: str, at: GraphTerm) -> list[tuple[GraphTerm, GraphTerm]]:
    """The elements that make the value at a place along one dimension, and their weights; both floats."""
    if mode == "nearest":
        return [(at, at * 0.0 + 1.0)]
    first = at.apply("floor")
    rest = at - first
    if mode == "linear":
        return [(first, rest * -1.0 + 1.0), (first + 1.0, rest)]
    return [(first + (k - 1.0), weight) for k, weight in enumerate(_cubic_weights(rest))]


def _cubic_weights(x: GraphTerm) -> list[GraphTerm]:
    near, far = x, x * -1.0 + 1.0

    def outer(t: GraphTerm) -> GraphTerm:
        t = t + 1.0
        return ((t * CUBIC - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC

    def inner(t: GraphTerm) -> GraphTerm:
        return (t * (CUBIC + 2) - (CUBIC + 3)) * t * t + 1.0

    return [outer(near), inner(near), inner(far), outer(far)]


def _inside(tap: tuple[GraphTerm, GraphTerm], size: int, padding: str, low: float, high: float) -> Tap:
    """The position as one that can be read, and its weight, 0 where nothing counts."""
    index, weight = tap
    outside = (index < 0.0) | (index > size - 1.0)
    if padding == "reflection":
        index = outside.choose(_reflected(index, low, high), index)
    elif padding == "zeros":
        weight = outside.choose(weight * 0.0, weight)
    return index.clip(0.0, size - 1.0).cast("int64"), weight


def _weighted(
    images: GraphTerm, first: GraphTerm, sizes: Sequence[int], taps: Sequence[Sequence[Tap]], shape: Shape
) -> GraphTerm:
    """The sum of the elements of all choices of taps, one a dimension, times their weights: [*shape, channels].

    ``images`` [elements of all, channels]; ``first``: where the image of each place begins.
    """
    total: GraphTerm | None = None
    for choice in product(*taps):
        flat = choice[0][0]
        for size, (index, _) in zip(sizes[1:], choice[1:], strict=True):
            flat = flat * size + index
        weight = reduce(lambda u, v: u * v, [w for _, w in choice])
        read = images.rows((flat + first).expand(*shape)).cast(weight.dtype)
        term = read * weight.expand(*shape).reshape(*shape, 1)
        total = term if total is None else total + term
    assert total is not None
    return total


def roi_align_terms(a: Application) -> list[str]:
    """``roi_align`` with a fixed number of places a bin."""
    (x, dtype), (rois, _), _ = a.types
    count, size, mode = a.attrs["sampling_ratio"], a.attrs["size"], a.attrs["mode"]
    require(count > 0, "attribute 'sampling_ratio'", count, "1 or more, in what has a gradient")
    work = accumulator_dtype(dtype)
    half, scale = 0.5 * a.attrs["half_pixel"], a.attrs["spatial_scale"]
    regions = GraphTerm.of(a, 1).cast(work)
    taps: list[list[Tap]] = []
    lives = []
    for d, extent in enumerate(size):  # height, then width: the last coordinate is the height's
        begin, end = (regions.part(rois, 1, k + 1 - d) * scale - half for k in (0, 2))
        length = end - begin
        length = length if a.attrs["half_pixel"] else length.apply("maximum", 1.0)
        bins = np.arange(extent)[:, None] + (np.arange(count) + 0.5) / count
        at = length * GraphTerm.constant(a, bins.reshape(1, -1) / extent, work) + begin
        lives.append((at >= -1.0) & (at <= float(x[2 + d])))
        at = at.clip(0.0, x[2 + d] - 1.0)
        low = at.apply("floor")
        part, high = at - low, (low + 1.0).clip(0.0, x[2 + d] - 1.0)
        own = (rois[0], -1, 1) if d == 0 else (rois[0], 1, -1)
        places = extent * count
        spread = tuple(places if e == -1 else e for e in own)
        taps.append([(i.cast("int64").reshape(*spread), w.reshape(*spread))
                     for i, w in ((low, part * -1.0 + 1.0), (high, part))])  # fmt: skip
        lives[-1] = lives[-1].reshape(*spread)
    shape = (rois[0], size[0] * count, size[1] * count)
    live = (lives[0] & lives[1]).expand(*shape)
    images = GraphTerm.of(a, 0).transpose(0, 2, 3, 1).reshape(x[0] * x[2] * x[3], x[1])
    first = (GraphTerm.of(a, 2).cast("int64") * (x[2] * x[3])).reshape(rois[0], 1, 1)
    corners = []
    for (row, row_weight), (column, column_weight) in product(*taps):
        weight = (row_weight * column_weight).expand(*shape)
        weight = live.choose(weight, weight * 0.0)
        read = images.rows((row * x[3] + column + first).expand(*shape)).cast(work)
        corners.append(read * weight.reshape(*shape, 1))
    value = reduce((lambda u, v: u + v) if mode == "avg" else (lambda u, v: u.apply("maximum", v)), corners)
    value = value.reshape(rois[0], size[0], count, size[1], count, x[1])
    value = value.apply("reduce_mean" if mode == "avg" else "reduce_max", axes=(2, 4), keepdims=False)
    return [value.cast(dtype).transpose(0, 3, 1, 2).name]


def deformed_columns_terms(a: Application) -> list[str]:
    """``deformed_columns``: bilinear, with zeros outside of the image."""
    (x, dtype), (offset, _) = a.types[:2]
    kernel, groups = a.attrs["kernel"], a.attrs["offset_groups"]
    batch, channels, sizes, out = x[0], x[1] // groups, x[2:], offset[2:]
    shape, work = (batch, groups, *kernel, *out), accumulator_dtype(dtype)
    split = (batch, groups, *kernel, 2, *out)
    moved = GraphTerm.of(a, 1).cast(work).reshape(*split)
    taps = []
    for d in (0, 1):
        tap = np.arange(kernel[d]) * a.attrs["dilations"][d]
        start = np.arange(out[d]) * a.attrs["strides"][d] - a.attrs["pads"][d]
        fixed = np.zeros((1, 1, *kernel, *out))
        fixed += tap.reshape([-1 if e == 2 + d else 1 for e in range(6)])
        fixed += start.reshape([-1 if e == 4 + d else 1 for e in range(6)])
        at = moved.part(split, 4, d).reshape(*shape) + GraphTerm.constant(a, fixed, work)
        low = at.apply("floor")
        rest = at - low
        pairs = ((low, rest * -1.0 + 1.0), (low + 1.0, rest))
        taps.append([_inside(pair, sizes[d], "zeros", 0.0, sizes[d] - 1.0) for pair in pairs])
    images = GraphTerm.of(a, 0).reshape(batch, groups, channels, *sizes).transpose(0, 1, 3, 4, 2)
    images = images.reshape(batch * groups * prod(sizes), channels)
    first = GraphTerm.places(a, batch * groups).reshape(batch, groups, 1, 1, 1, 1) * prod(sizes)
    total = _weighted(images, first, sizes, taps, shape)
    if len(a.inputs) > 2:
        total = total * GraphTerm.of(a, 2).cast(work).reshape(*shape, 1)
    columns = total.cast(dtype).transpose(0, 1, 6, 2, 3, 4, 5)
    return [columns.reshape(batch, x[1], kernel[0] * kernel[1], out[0] * out[1]).name]
