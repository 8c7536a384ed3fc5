"""Operators that read images between their elements, at places that tensors hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from math import prod
from operator import add, mul

import numpy as np

from burnish.errors import InputError
from burnish.loops.expr import FLOATS, INDEX, Expr, all_of, any_of, cast, math, maximum, minimum, select, wrap
from burnish.loops.sizes import is_size
from burnish.loops.tensor import Tensor, compute, placeholder, reduce_axis
from burnish.loops.tensor import max as max_over
from burnish.loops.tensor import sum as sum_over
from burnish.ops.native.windows import roi_align_call
from burnish.ops.operator import (
    Application,
    Composed,
    Ints,
    Shape,
    accumulator_dtype,
    composed,
    differentiated,
    internal,
    opaque,
    operator,
    require,
    require_input,
)
from burnish.ops.sampled import CUBIC, FINITE, deformed_columns_terms, grid_sample_terms, roi_align_terms

MODES = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")
Tap = tuple[Expr, Expr, Expr | None]  # a position that can be read, its weight, and whether what is there counts


def _number(size: int, dtype: str) -> Expr:
    """An extent, which may be open, as a float."""
    return cast(dtype, wrap(size)) if is_size(size) else wrap(float(size), dtype)


def _cubic_weights(x: Expr) -> list[Expr]:
    """The weights of four successive elements at ``x`` in [0, 1] behind the second one (Keys 1981)."""

    def outer(t: Expr) -> Expr:
        t = t + 1.0
        return ((t * CUBIC - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC

    def inner(t: Expr) -> Expr:
        return (t * (CUBIC + 2) - (CUBIC + 3)) * t * t + 1.0

    return [outer(x), inner(x), inner(1.0 - x), outer(1.0 - x)]


def _reflected(at: Expr, low: Expr, high: Expr) -> Expr:
    """``at`` mirrored at ``low`` and ``high`` until it lies between them."""
    width = high - low
    away = math("abs", at - low)
    period = maximum(width * 2.0, 1e-9)
    away = away - period * math("floor", away / period)
    return select(width > 0.0, low + select(away > width, period - away, away), 0.0)


def _places(mode: str, at: Expr) -> list[tuple[Expr, Expr]]:
    """Positions, still floats, and weights of the elements that make the value at ``at`` along one dimension."""
    if mode == "nearest":
        return [(at, wrap(1.0, at.dtype))]
    first = math("floor", at)
    rest = at - first
    if mode == "linear":
        return [(first, 1.0 - rest), (first + 1.0, rest)]
    return [(first + (k - 1.0), weight) for k, weight in enumerate(_cubic_weights(rest))]


def _read_at(at: Expr, size: int) -> Expr:
    """A float position as one that can be read."""
    return minimum(maximum(cast(INDEX, at), 0), size - 1)


def _live(at: Expr, size: int) -> Expr:
    """Whether a float position is in the image."""
    return all_of(at >= 0.0, at <= _number(size, at.dtype) - 1.0)


def _line(place: Expr, size: int, mode: str, padding: str, align_corners: bool, bounded: bool) -> list[Tap]:
    """Interpolation taps along a dimension of ``size``, for one coordinate of a grid."""
    extent = _number(size, place.dtype)
    low, high = (extent * 0.0, extent - 1.0) if align_corners else (extent * 0.0 - 0.5, extent - 0.5)
    at = (place + 1.0) * ((extent - 1.0) * 0.5) if align_corners else ((place + 1.0) * extent - 1.0) * 0.5
    at = select(math("abs", at) <= FINITE, at, -1.0 - extent)
    if mode == "nearest":
        at = math("round", at)
    if padding == "border" and bounded:
        at = minimum(maximum(at, 0.0), extent - 1.0)
    elif padding == "reflection" and bounded:
        at = select(any_of(at < low, at > high), _reflected(at, low, high), at)
    taps: list[Tap] = []
    for tap, weight in _places(mode, at):
        if padding == "reflection":
            tap = select(_live(tap, size), tap, _reflected(tap, low, high))
        taps.append((_read_at(tap, size), weight, _live(tap, size) if padding == "zeros" else None))
    return taps


def _blend(lines: Sequence[Sequence[Tap]], read: Callable[[Sequence[Expr]], Expr]) -> Expr:
    """The sum over all choices of a tap from every line: what is read there, times the weights; nothing outside."""
    terms = []
    for choice in product(*lines):
        weight = reduce(mul, [w for _, w, _ in choice])
        live = [tap[2] for tap in choice if tap[2] is not None]
        value = read([position for position, _, _ in choice])
        terms.append((select(all_of(*live), value, 0.0) if live else value) * weight)
    return reduce(add, terms)


@differentiated(Composed(grid_sample_terms))
@operator
def grid_sample(
    name: str,
    x: Tensor,
    grid: Tensor,
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    bounded: bool = True,
) -> Tensor:
    """``x`` [N, C, D1, ...] at the places of ``grid`` [N, E1, ..., r]: r coordinates, the last dimension's first.

    -1 and 1 are the image's edges, or the centres of its outermost elements with ``align_corners``. Places outside are
    zero, the nearest edge ("border"), or mirrored at it ("reflection"): ``bounded`` moves them before the elements
    around them are weighed, as ONNX does, and else moves each of the elements, as PyTorch does for "cubic". Source:
    Jaderberg et al. 2015.
    """
    require_input(x, "x", dtype=FLOATS)
    require_input(grid, "grid", dtype=FLOATS)
    sizes, rank = x.shape[2:], len(x.shape) - 2
    require(rank > 0, "input 'x'", f"shape {list(x.shape)}", "at least 3 dimensions, [N, C, ...]")
    ok = len(grid.shape) == rank + 2 and grid.shape[-1] == rank and grid.shape[0] == x.shape[0]
    require(ok, "input 'grid'", f"shape {list(grid.shape)}", f"[{x.shape[0]}, {rank} extents, {rank}]")
    require(0 not in sizes, "input 'x'", f"shape {list(x.shape)}", "an image of some elements")
    require(mode in MODES, "attribute 'mode'", mode, ", ".join(MODES))
    require(padding in PADDINGS, "attribute 'padding'", padding, ", ".join(PADDINGS))
    work = "float64" if "float64" in (x.dtype, grid.dtype) else "float32"

    def element(*i: Expr) -> Expr:
        places = [cast(work, grid[(i[0], *i[2:], rank - 1 - d)]) for d in range(rank)]
        lines = [_line(p, size, mode, padding, align_corners, bounded) for p, size in zip(places, sizes, strict=True)]
        return cast(x.dtype, _blend(lines, lambda at: cast(work, x[(*i[:2], *at)])))

    return compute((*x.shape[:2], *grid.shape[1:-1]), element, name)


# --- regions ----------------------------------------------------------------------------------------------------------


def _edges(at: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Lower and upper element of every place, the upper one's weight, and whether the place is in the image."""
    live = (at >= -1.0) & (at <= size)
    at = np.clip(at, 0, size - 1)
    low = np.minimum(np.floor(at).astype(np.int64), size - 1)
    return low, np.minimum(low + 1, size - 1), at - low, live


MOST_PLACES = 1 << 22  # that are read for one region, of all bins: more are no image's


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
            found = np.ceil(np.nan_to_num(length / extent))
            count = sampling_ratio if sampling_ratio > 0 else int(min(max(found, 0), MOST_PLACES))
            step = length / extent
            places.append(start + np.arange(extent)[:, None] * step + (np.arange(count) + 0.5) * step / max(count, 1))
            counts.append(count)
        if np.prod([float(p.size) for p in places]) > MOST_PLACES:
            raise InputError(f"region {n}: found {roi.tolist()}, {counts} places a bin; allowed: {MOST_PLACES} in all")
        if 0 not in counts:
            result[n] = _bins(x[min(max(int(batch[n]), 0), len(x) - 1)], places, mode)  # out of range: the nearer end
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


def _edge_taps(at: Expr, size: int) -> list[Tap]:
    """The two elements around a place; one that is up to 1 outside counts as on the edge, one beyond it not at all."""
    live = all_of(at >= -1.0, at <= _number(size, at.dtype))
    at = minimum(maximum(at, 0.0), _number(size, at.dtype) - 1.0)
    low = math("floor", at)
    return [(_read_at(low, size), 1.0 - (at - low), live), (_read_at(low + 1.0, size), at - low, live)]


@differentiated(Composed(roi_align_terms))
@operator
def region_samples(
    name: str,
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    *,
    size: Ints,
    mode: str = "avg",
    sampling_ratio: int = 2,
    spatial_scale: float = 1.0,
    half_pixel: bool = True,
) -> Tensor:
    """:data:`roi_align` with a fixed number of places a bin, ``sampling_ratio`` squared."""
    shape = _require_regions(x, rois, batch, size, mode)
    require(sampling_ratio > 0, "attribute 'sampling_ratio'", sampling_ratio, "1 or more")
    require(0 not in x.shape[2:], "input 'x'", f"shape {list(x.shape)}", "images of some elements")
    work = accumulator_dtype(x.dtype)

    def element(r: Expr, c: Expr, *bins: Expr) -> Expr:
        samples = [reduce_axis(sampling_ratio, f"s{d}") for d in (0, 1)]
        lines = []
        for d, k in enumerate((1, 0)):  # height, then width: the last coordinate is the height's
            begin, end = (cast(work, rois[r, k + j]) * spatial_scale - 0.5 * half_pixel for j in (0, 2))
            length = end - begin if half_pixel else maximum(end - begin, 1.0)
            part = cast(work, bins[d]) + (cast(work, samples[d].var) + 0.5) * (1.0 / sampling_ratio)
            lines.append(_edge_taps(begin + part * (length * (1.0 / size[d])), x.shape[2 + d]))
        image = minimum(maximum(cast(INDEX, batch[r]), 0), x.shape[0] - 1)

        def read(at: Sequence[Expr]) -> Expr:
            return cast(work, x[(image, c, *at)])

        return sum_over(_blend(lines, read), samples) if mode == "avg" else max_over(_greatest(lines, read), samples)

    sampled = compute(shape, element, name if mode == "max" and work == x.dtype else f"{name}.combined")
    if sampled.name == name:
        return sampled
    part = 1.0 / sampling_ratio**2 if mode == "avg" else 1.0
    return compute(shape, lambda *i: cast(x.dtype, sampled[i] * part), name)


def _greatest(lines: Sequence[Sequence[Tap]], read: Callable[[Sequence[Expr]], Expr]) -> Expr:
    """The greatest of the terms that :func:`_blend` adds."""
    return reduce(maximum, [_blend([[tap] for tap in choice], read) for choice in product(*lines)])


def _fixed_regions(a: Application) -> list[str] | None:
    """Composition by ``region_samples``, which has a definition; None where regions determine the samples of a bin."""
    return [a.add("region_samples", *a.inputs, **a.attrs)] if a.attrs["sampling_ratio"] > 0 else None


def _require_regions(x: Tensor, rois: Tensor, batch: Tensor, size: Ints, mode: str) -> Shape:
    """The result's shape."""
    require_input(x, "x", 4, "[N, C, H, W]", dtype=FLOATS)
    ok = len(rois.shape) == 2 and rois.shape[1] == 4 and batch.shape == rois.shape[:1]
    require(ok, "input 'rois'", f"shapes {list(rois.shape)}, {list(batch.shape)}", "[R, 4], [R]")
    require_input(batch, "batch", dtype=("int64", "int32"))
    require(mode in ("avg", "max"), "attribute 'mode'", mode, "avg, max")
    require(len(size) == 2 and min(size) > 0, "attribute 'size'", list(size), "two positive integers")
    return (rois.shape[0], x.shape[1], *size)


@composed(_fixed_regions)
@differentiated(Composed(roi_align_terms))
@opaque(_roi_align, roi_align_call)
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
    shape = _require_regions(x, rois, batch, size, mode)
    require(sampling_ratio >= 0, "attribute 'sampling_ratio'", sampling_ratio, "0 or more")
    return placeholder(shape, x.dtype, name)


@differentiated(Composed(deformed_columns_terms))
@operator
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
    require_input(x, "x", 4, "[N, C, H, W]", dtype=FLOATS)
    require_input(offset, "offset", 4, "[N, G * KH * KW * 2, OH, OW]")
    taps = offset_groups * kernel[0] * kernel[1]
    require(offset.shape[1] == 2 * taps, "input 'offset'", f"shape {list(offset.shape)}", f"{2 * taps} channels")
    require(x.shape[1] % offset_groups == 0, "attribute 'offset_groups'", offset_groups, f"divisors of {x.shape[1]}")
    if mask is not None:
        ok = mask.shape == (offset.shape[0], taps, *offset.shape[2:])
        require(ok, "input 'mask'", f"shape {list(mask.shape)}", f"{taps} channels, else as 'offset'")
    work, columns, depth = accumulator_dtype(x.dtype), offset.shape[3], x.shape[1] // offset_groups

    def element(n: Expr, c: Expr, k: Expr, p: Expr) -> Expr:
        tap, out = (k // kernel[1], k % kernel[1]), (p // columns, p % columns)
        own = c // depth * prod(kernel) + k
        lines = []
        for d in (0, 1):
            start = cast(work, tap[d] * dilations[d] + out[d] * strides[d] - pads[d])
            at = cast(work, offset[(n, own * 2 + d, *out)]) + start
            size = x.shape[2 + d]
            lines.append([(_read_at(t, size), weight, _live(t, size)) for t, weight in _places("linear", at)])
        total = _blend(lines, lambda at: cast(work, x[(n, c, *at)]))
        return cast(x.dtype, total * cast(work, mask[(n, own, *out)]) if mask is not None else total)

    return compute((*x.shape[:2], prod(kernel), offset.shape[2] * columns), element, name)


OPERATORS = (grid_sample, roi_align, *internal(region_samples, deformed_columns))
