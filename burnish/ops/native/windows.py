"""Pooling with positions and region of interest pooling (RoiAlign) as loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from burnish.loops.sizes import hinted, is_size
from burnish.ops.native.ordering import SORTABLE
from burnish.ops.operator import NativeCall, TensorType

RANK = 3  # spatial dimensions that the loops have
SAMPLES = 1 << 40  # a bin of more is of no finite region


def _within(start: int, step: int, count: int, extent: int) -> tuple[int, int]:
    """Which of ``count`` places from ``start`` on, ``step`` apart, are in an image: from the first up to the second."""
    first = 0 if start >= 0 else (step - 1 - start) // step
    last = start + (count - 1) * step
    return first, count if last < extent else count - (last - extent + step) // step


def _window_places(
    x: Any, out: Any, best: Any, window: Any, p0: int, p1: int, p2: int, column_major: int, begin: int, end: int
) -> None:
    """Channels [channels, D, H, W] and the flat positions of the greatest elements of their windows; ``best``: those
    of a row of windows, in which a tap is that of all of them. ``window`` [3, 3]: extents, strides and dilations.
    """
    k0, k1, k2 = window[0, 0], window[0, 1], window[0, 2]
    s0, s1, s2 = window[1, 0], window[1, 1], window[1, 2]
    d0, d1, d2 = window[2, 0], window[2, 1], window[2, 2]
    n0, n1, n2 = x.shape[1], x.shape[2], x.shape[3]
    for channel in range(begin, end):
        for i in range(out.shape[1]):
            a0, a1 = _within(i * s0 - p0, d0, k0, n0)
            for j in range(out.shape[2]):
                b0, b1 = _within(j * s1 - p1, d1, k1, n1)
                for k in range(out.shape[3]):
                    out[channel, i, j, k] = -1
                    best[k] = 0
                for a in range(a0, a1):
                    y0 = i * s0 - p0 + a * d0
                    for b in range(b0, b1):
                        y1 = j * s1 - p1 + b * d1
                        row = (y0 * n1 + y1) * n2
                        for c in range(k2):
                            y2 = c * d2 - p2
                            first, behind = _within(y2, s2, out.shape[3], n2)
                            for k in range(first, behind):
                                value, place = x[channel, y0, y1, y2 + k * s2], out[channel, i, j, k]
                                greater = (place < 0) | (value > best[k])
                                best[k] = value if greater else best[k]
                                out[channel, i, j, k] = row + y2 + k * s2 if greater else place
                for k in range(out.shape[3]):
                    place = out[channel, i, j, k]
                    if column_major and place >= 0:
                        place = place // (n1 * n2) + n0 * (place // n2 % n1 + n1 * (place % n2))
                    out[channel, i, j, k] = place + channel * n0 * n1 * n2


def max_pool_indices_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``max_pool_indices``, of images of one to three dimensions."""
    ((shape, dtype),), rank = inputs, len(attrs["kernel"])
    if rank > RANK or dtype not in SORTABLE:
        return None
    ones, rest = (1,) * (RANK - rank), (0,) * (RANK - rank)
    channels = shape[0] * shape[1]
    views = (((channels, *ones, *shape[2:]), dtype), ((channels, *ones, *attrs["size"]), "int64"))
    window = np.array([(*ones, *attrs[name]) for name in ("kernel", "strides", "dilations")], np.int64)
    numbers = (*rest, *attrs["pads"][:rank], int(attrs["column_major"]))
    work = hinted(channels) * prod(map(hinted, attrs["size"])) * prod(attrs["kernel"])
    return NativeCall(_window_places, views, numbers, channels, work, (((attrs["size"][-1],), dtype),), (window,))


# --- regions ----------------------------------------------------------------------------------------------------------


def _samples_of(
    taps: Any, weights: Any, begins: Any, axis: int, start: float, length: float, bins: int, size: int, ratio: int
) -> int:
    """Sampling positions of a region along one dimension (RoI align), those in the image, bin after bin; returns their
    number a bin.

    ``begins`` [axis, bins + 1]: where the places of each bin begin.
    """
    step = length / bins
    count = ratio
    if ratio == 0:
        count = 0
        if 0.0 < step < SAMPLES:
            count = int(step)
            count = count + 1 if count < step else count
    at = 0
    for b in range(bins):
        begins[axis, b] = at
        low = start + b * step
        apart = step / max(count, 1)
        first, last = 0, count
        if ratio == 0 and count > 1:  # the places in front of the image and behind it read nothing
            if low < -2.0:
                first = min(int((-2.0 - low) / apart), count)
            if low + step > size + 1.0:
                inside = (size + 1.0 - low) / apart
                last = min(int(inside) + 1, count) if inside > 0.0 else 0
        for k in range(first, last):
            place = low + (k + 0.5) * apart
            if -1.0 <= place <= size and at < taps.shape[1]:
                place = min(max(place, 0.0), size - 1.0)
                near = min(int(place), size - 1)
                taps[2 * axis, at], taps[2 * axis + 1, at] = near, min(near + 1, size - 1)
                weights[axis, at] = place - near
                at += 1
    begins[axis, bins] = at
    return count


def _align(
    x: Any, rois: Any, batch: Any, out: Any, taps: Any, weights: Any, begins: Any, scale: float, shift: float,
    ratio: int, greatest: int, begin: int, end: int,
) -> None:  # fmt: skip
    """Regions ``begin`` to ``end``: bins of ``out`` [regions, channels, rows, columns]."""
    height, width = x.shape[2], x.shape[3]
    rows, columns = out.shape[2], out.shape[3]
    for r in range(begin, end):
        left, top = rois[r, 0] * scale - shift, rois[r, 1] * scale - shift
        wide, high = rois[r, 2] * scale - shift - left, rois[r, 3] * scale - shift - top
        if shift == 0.0:
            wide, high = max(wide, 1.0), max(high, 1.0)
        # Rows and columns of samples are separable: found once a region, and used for all channels and bins.
        down = _samples_of(taps, weights, begins, 0, top, high, rows, height, ratio)
        across = _samples_of(taps, weights, begins, 1, left, wide, columns, width, ratio)
        image = min(max(batch[r], 0), x.shape[0] - 1)
        for c in range(x.shape[1]):
            for i in range(rows):
                for j in range(columns):
                    total, seen = 0.0, 0
                    for p in range(begins[0, i], begins[0, i + 1]):
                        y0, y1, v = taps[0, p], taps[1, p], weights[0, p]
                        for q in range(begins[1, j], begins[1, j + 1]):
                            x0, x1, u = taps[2, q], taps[3, q], weights[1, q]
                            a, b = x[image, c, y0, x0] * ((1 - v) * (1 - u)), x[image, c, y0, x1] * ((1 - v) * u)
                            d, e = x[image, c, y1, x0] * (v * (1 - u)), x[image, c, y1, x1] * (v * u)
                            if greatest:
                                value = max(max(a, b), max(d, e))
                                total = value if seen == 0 else max(total, value)
                            else:
                                total += a + b + d + e
                            seen += 1
                    # Samples outside of the image count as 0: in the mean by the divisor, in the maximum here, where
                    # any is outside.
                    if greatest:
                        total = max(total, 0.0) if 0 < seen < down * across else total
                    elif down * across > 0:
                        total = total / (down * across)
                    out[r, c, i, j] = total


def roi_align_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``roi_align``."""
    (shape, dtype), (rois, kind), _ = inputs
    if {dtype, kind} - {"float32", "float64"} or any(map(is_size, shape[2:])) or 0 in shape:
        return None
    bins, ratio = max(attrs["size"]), attrs["sampling_ratio"]
    most = bins * ratio if ratio else 2 * (max(shape[2:]) + 4) + 2 * bins
    scratch = (((4, most), "int64"), ((2, most), "float64"), ((2, bins + 1), "int64"))
    numbers = (float(attrs["spatial_scale"]), 0.5 * attrs["half_pixel"], ratio, int(attrs["mode"] == "max"))
    work = hinted(prod(outputs[0][0])) * 4
    return NativeCall(_align, (*inputs, *outputs), numbers, rois[0], work, scratch)
