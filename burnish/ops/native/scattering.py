"""Scatters, unpooling and folded windows as loops: writes at positions that are held in a tensor, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from burnish.loops.expr import ITEM_BYTES
from burnish.loops.sizes import hinted, is_size
from burnish.ops.operator import NativeCall, TensorType, normal_axis

REDUCTIONS = ("none", "add", "mul", "max", "min")
REDUCIBLE = ("float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
MOST_RANK = 6  # dimensions of tensors whose extents differ, and coordinates of an index tuple


def _placed(index: int, extent: int) -> int:
    """A position: negative ones count from the end, those out of range are the nearer end."""
    index = index + extent if index < 0 else index
    return min(max(index, 0), max(extent - 1, 0))


def _reduced(old: Any, new: Any, reduction: int) -> Any:
    """Scatter reduction of two elements at one place; NaN stays in a maximum or minimum."""
    if reduction == 0:
        return new
    if reduction == 1:
        return old + new
    if reduction == 2:
        return old * new
    if reduction == 3:
        return new if new > old or new != new else old
    return new if new < old or new != new else old


def _scatter_lines(data: Any, indices: Any, updates: Any, out: Any, reduction: int, begin: int, end: int) -> None:
    """[outer, extent, inner], written along the middle."""
    for o in range(begin, end):
        for k in range(data.shape[1]):
            for i in range(data.shape[2]):
                out[o, k, i] = data[o, k, i]
        for k in range(indices.shape[1]):
            for i in range(indices.shape[2]):
                place = _placed(indices[o, k, i], data.shape[1])
                out[o, place, i] = _reduced(out[o, place, i], updates[o, k, i], reduction)


def _scatter_some(
    data: Any, indices: Any, updates: Any, out: Any, reduction: int, axis: int, begin: int, end: int
) -> None:
    """Six dimensions, of which the indices may have less than the data in all but ``axis``."""
    n = data.shape
    for a in range(n[0]):
        for b in range(n[1]):
            for c in range(n[2]):
                for d in range(n[3]):
                    for e in range(n[4]):
                        for f in range(n[5]):
                            out[a, b, c, d, e, f] = data[a, b, c, d, e, f]
    m = indices.shape
    for a in range(m[0]):
        for b in range(m[1]):
            for c in range(m[2]):
                for d in range(m[3]):
                    for e in range(m[4]):
                        for f in range(m[5]):
                            at = _placed(indices[a, b, c, d, e, f], n[axis])
                            i, j = at if axis == 0 else a, at if axis == 1 else b
                            k, p = at if axis == 2 else c, at if axis == 3 else d
                            q, r = at if axis == 4 else e, at if axis == 5 else f
                            new = updates[a, b, c, d, e, f]
                            out[i, j, k, p, q, r] = _reduced(out[i, j, k, p, q, r], new, reduction)


def _scatter_slices(
    data: Any, indices: Any, updates: Any, out: Any, reduction: int, n0: int, n1: int, n2: int, n3: int, n4: int,
    n5: int, begin: int, end: int,
) -> None:  # fmt: skip
    """Slices [places, elements] at tuples of coordinates, ``n0`` ... the extents that these have."""
    for place in range(data.shape[0]):
        for i in range(data.shape[1]):
            out[place, i] = data[place, i]
    for t in range(updates.shape[0]):
        place = 0
        for k in range(indices.shape[1]):
            extent = n0 if k == 0 else n1 if k == 1 else n2 if k == 2 else n3 if k == 3 else n4 if k == 4 else n5
            place = place * extent + _placed(indices[t, k], extent)
        for i in range(updates.shape[1]):
            out[place, i] = _reduced(out[place, i], updates[t, i], reduction)


def _scatter_caches(past: Any, update: Any, start: Any, out: Any, circular: int, begin: int, end: int) -> None:
    """[batch, outer, extent, inner], written along the third from the place of each batch row on."""
    outer, extent = past.shape[1], past.shape[2]
    for part in range(begin, end):
        b, o = part // outer, part % outer
        for k in range(extent):
            for i in range(past.shape[3]):
                out[b, o, k, i] = past[b, o, k, i]
        for k in range(update.shape[2]):
            at = start[b] + k
            place = at % extent if circular else min(max(at, 0), extent - 1)
            for i in range(past.shape[3]):
                out[b, o, place, i] = update[b, o, k, i]


def _unpool(x: Any, indices: Any, out: Any, begin: int, end: int) -> None:
    """Elements of each channel at their flat positions in all images, within their own, which is zero elsewhere."""
    size = out.shape[1]
    last = out.shape[0] * size - 1
    for channel in range(begin, end):
        for i in range(size):
            out[channel, i] = 0
        for i in range(x.shape[1] if size > 0 else 0):
            out[channel, min(max(indices[channel, i], 0), last) % size] = x[channel, i]


def _fold(columns: Any, out: Any, s0: int, s1: int, p0: int, p1: int, d0: int, d1: int, begin: int, end: int) -> None:
    """Columns [channels, taps 0, taps 1, windows 0, windows 1] added up to images, tap after tap."""
    for channel in range(begin, end):
        for y in range(out.shape[1]):
            for x in range(out.shape[2]):
                out[channel, y, x] = 0
        for a in range(columns.shape[1]):
            for b in range(columns.shape[2]):
                for i in range(columns.shape[3]):
                    y = i * s0 + a * d0 - p0
                    if 0 <= y < out.shape[1]:
                        for j in range(columns.shape[4]):
                            x = j * s1 + b * d1 - p1
                            if 0 <= x < out.shape[2]:
                                out[channel, y, x] += columns[channel, a, b, i, j]


def _whole(types: Sequence[TensorType], reduction: str) -> list[TensorType] | None:
    """Types for elements that are combined, or only moved, as integers of their bytes; None where there are none."""
    if reduction != "none":
        return list(types) if types[0][1] in REDUCIBLE else None
    return [(s, f"uint{8 * ITEM_BYTES[d]}") if d == types[0][1] else (s, d) for s, d in types]


def scatter_elements_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``scatter_elements``."""
    kinds = _whole([inputs[0], inputs[2]], attrs["reduction"])
    (data, _), (indices, index), _ = inputs
    if kinds is None or not data:
        return None
    axis, dtype = normal_axis(attrs["axis"], len(data)), kinds[0][1]
    code, work = REDUCTIONS.index(attrs["reduction"]), hinted(prod(data)) + hinted(prod(indices))
    if data[:axis] == indices[:axis] and data[axis + 1 :] == indices[axis + 1 :]:
        whole, some = ((prod(s[:axis]), s[axis], prod(s[axis + 1 :])) for s in (data, indices))
        lines = ((whole, dtype), (some, index), (some, dtype), (whole, dtype))
        return NativeCall(_scatter_lines, lines, (code,), whole[0], work)
    if len(data) > MOST_RANK:
        return None
    first, second = ((*s, *[1] * (MOST_RANK - len(s))) for s in (data, indices))
    views = ((first, dtype), (second, index), (second, dtype), (first, dtype))
    return NativeCall(_scatter_some, views, (code, axis))


def scatter_nd_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``scatter_nd``."""
    kinds = _whole([inputs[0], inputs[2]], attrs["reduction"])
    (data, _), (indices, index), _ = inputs
    depth = indices[-1]
    if kinds is None or is_size(depth) or depth > MOST_RANK:
        return None
    dtype, tuples, slices = kinds[0][1], prod(indices[:-1]), prod(data[depth:])
    whole = ((prod(data[:depth]), slices), dtype)
    views = (whole, ((tuples, depth), index), ((tuples, slices), dtype), whole)
    extents = (*data[:depth], *[1] * (MOST_RANK - depth))
    return NativeCall(_scatter_slices, views, (REDUCTIONS.index(attrs["reduction"]), *extents))


def scatter_rows_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``scatter_rows``."""
    (past, dtype), (update, _), (start, index) = inputs
    axis, own = normal_axis(attrs["axis"], len(past)), f"uint{8 * ITEM_BYTES[dtype]}"
    views = [((s[0], prod(s[1:axis]), s[axis], prod(s[axis + 1 :])), own) for s in (past, update)]
    parts = past[0] * prod(past[1:axis])
    return NativeCall(
        _scatter_caches, (*views, (start, index), views[0]), (int(attrs["circular"]),), parts, hinted(prod(past))
    )


def max_unpool_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``max_unpool``."""
    (x, dtype), (_, index) = inputs
    channels, own = x[0] * x[1], f"uint{8 * ITEM_BYTES[dtype]}"
    flat, size = (channels, prod(x[2:])), (channels, prod(attrs["size"]))
    return NativeCall(_unpool, ((flat, own), (flat, index), (size, own)), (), channels, hinted(prod(size)))


def fold_windows_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``fold_windows``, of images of one or two dimensions."""
    ((x, dtype),), rank = inputs, len(attrs["size"])
    if rank > 2 or dtype not in ("float32", "float64"):
        return None
    size, block, strides, dilations = (
        (*[1] * (2 - rank), *attrs[key]) for key in ("size", "block", "strides", "dilations")
    )
    begins, ends = ((*[0] * (2 - rank), *own) for own in (attrs["pads"][:rank], attrs["pads"][rank:]))
    windows = [(size[d] + begins[d] + ends[d] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1 for d in range(2)]
    channels = x[0] * (x[1] // prod(block))
    views = (((channels, *block, *windows), dtype), ((channels, *size), dtype))
    return NativeCall(_fold, views, (*strides, *begins, *dilations), channels, hinted(prod(x)))
