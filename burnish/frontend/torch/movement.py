"""Translators of ATen operators that view, slice, join, repeat, pad or convert tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from burnish.frontend.torch.context import Ref, TorchContext, Translator
from burnish.frontend.torch.layout import dense_order, inverse
from burnish.frontend.torch.symbols import is_open

# --- views ------------------------------------------------------------------------------------------------------------


def _reshaped(c: TorchContext, x: Ref) -> Ref:
    """Any operator that keeps the elements in their row-major order: torch says the shape."""
    return c.reshape(x, c.out_shape)


def _view(c: TorchContext, x: Ref, size: Any = None, shape: Any = None, dtype: Any = None) -> Ref:
    if dtype is not None and c.out_dtype != c.dtype(x):
        c.refuse("dtype", f"{c.dtype(x)} seen as {c.out_dtype}", "the tensor's own")
    return _reshaped(c, x)


def _unsqueeze(c: TorchContext, x: Ref, dim: int) -> Ref:
    return _reshaped(c, x)


def _squeeze(c: TorchContext, x: Ref, dim: Any = None) -> Ref:
    return _reshaped(c, x)


def _flatten(c: TorchContext, x: Ref, start_dim: int, end_dim: int) -> Ref:
    return _reshaped(c, x)


def _unflatten(c: TorchContext, x: Ref, dim: int, sizes: Sequence[int]) -> Ref:
    return _reshaped(c, x)


def _same(c: TorchContext, x: Ref) -> Ref:
    return x


def detach(c: TorchContext, x: Ref) -> Ref:
    """The same value; in training no gradient passes."""
    return c.add("stop_gradient", x) if c.training and c.is_real(x) else x


def _converted(c: TorchContext, x: Ref, dtype: Any = None, other: Any = None, copy: bool = False) -> Ref:
    return c.cast(x, c.out_dtype)


def _expand(c: TorchContext, x: Ref, size: Any = None, other: Any = None, implicit: bool = False) -> Ref:
    return c.expand(x, c.out_shape)


def _permute(c: TorchContext, x: Ref, dims: Sequence[int]) -> Ref:
    return c.transpose(x, [c.axis(x, d) for d in dims])


def _transpose(c: TorchContext, x: Ref, dim0: int, dim1: int) -> Ref:
    order = list(range(c.rank(x)))
    if order:
        a, b = c.axis(x, dim0), c.axis(x, dim1)
        order[a], order[b] = order[b], order[a]
    return c.transpose(x, order)


def _reversed(c: TorchContext, x: Ref) -> Ref:
    return c.transpose(x, tuple(reversed(range(c.rank(x)))))


def _matrix_transpose(c: TorchContext, x: Ref) -> Ref:
    return _transpose(c, x, -1, -2)


def _as_strided(
    c: TorchContext, x: Ref, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Ref:
    """Another shape and order of dimensions of the same dense memory."""
    own = [c.symbols.extent(v, c.label) for v in c.raw["x"].stride()]
    before, after = dense_order(c.shape(x), own), dense_order(size, stride)
    same_count = math.prod(size) - math.prod(c.shape(x)) == 0
    if before is None or after is None or storage_offset or not same_count:
        found = f"{list(size)} and {list(stride)} of a tensor {list(c.shape(x))} with strides {own}"
        c.refuse("size and stride", found, "those of a dense tensor")
    memory = c.reshape(c.transpose(x, before), [size[d] for d in after])
    return c.transpose(memory, inverse(after))


# --- parts ------------------------------------------------------------------------------------------------------------


def _start(c: TorchContext, x: Ref, axis: int, start: int | None) -> int:
    """A position as slices have it: negative ones count from the end, then it is clamped."""
    extent = c.shape(x)[axis]
    start = 0 if start is None else start
    start = start + extent if start < 0 else start
    if is_open(start) or is_open(extent):
        return start
    return min(max(start, 0), extent)


def _slice(c: TorchContext, x: Ref, dim: int, start: int | None, end: int | None, step: int) -> Ref:
    axis = c.axis(x, dim)
    extent = c.out_shape[axis]
    first = _start(c, x, axis, start) if is_open(extent) or extent else 0
    return c.slice(x, axis, first, extent, step)


def _narrow(c: TorchContext, x: Ref, dim: int, start: int, length: int) -> Ref:
    return c.slice(x, c.axis(x, dim), _start(c, x, c.axis(x, dim), start), length)


def _select(c: TorchContext, x: Ref, dim: int, index: int) -> Ref:
    axis = c.axis(x, dim)
    index = index + c.shape(x)[axis] if index < 0 else index
    return c.reshape(c.slice(x, axis, index, 1), c.out_shape)


def _pieces(c: TorchContext, x: Ref, axis: int, sizes: Sequence[int]) -> list[Ref]:
    starts = [0, *accumulate(sizes)]
    return [c.slice(x, axis, start if size else 0, size) for start, size in zip(starts, sizes, strict=False)]


def _split(
    c: TorchContext, x: Ref, dim: int, split_size: Any = None, split_sizes: Any = None, chunks: Any = None
) -> Any:
    """Parts of the extents that torch says."""
    axis = c.axis(x, dim)
    return _pieces(c, x, axis, [c.symbols.extent(part.shape[axis], c.label) for part in c.result])


def _unbind(c: TorchContext, x: Ref, dim: int) -> list[Ref]:
    axis = c.axis(x, dim)
    rest = tuple(e for d, e in enumerate(c.shape(x)) if d != axis)
    return [c.reshape(part, rest) for part in _pieces(c, x, axis, [1] * c.shape(x)[axis])]


def _flip(c: TorchContext, x: Ref, dims: Sequence[int]) -> Ref:
    for d in c.axes(x, dims) if dims else ():
        extent = c.shape(x)[d]
        if is_open(extent) or extent > 1:
            x = c.slice(x, d, extent - 1, extent, -1)
    return x


def _roll(c: TorchContext, x: Ref, shifts: Any, dims: Any) -> Ref:
    shape = c.shape(x)
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    dims = (dims,) if isinstance(dims, int) else dims
    if not dims:
        return c.reshape(_rolled(c, c.flat(x), shifts[0], 0), shape)
    for shift, d in zip(shifts, dims, strict=True):
        x = _rolled(c, x, shift, c.axis(x, d))
    return x


def _rolled(c: TorchContext, x: Ref, shift: int, axis: int) -> Ref:
    extent = c.shape(x)[axis]
    if extent == 0:
        return x
    shift = shift if is_open(extent) else shift % extent
    if shift == 0:
        return x
    cut = extent - shift if shift > 0 else -shift
    return c.concat([c.slice(x, axis, cut, extent - cut), c.slice(x, axis, 0, cut)], axis)


def _triangle(upper: bool, c: TorchContext, x: Ref, diagonal: int) -> Ref:
    if c.dtype(x) == "bool":
        return c.cast(c.add("trilu", c.cast(x, "int8"), upper=upper, diagonal=diagonal), "bool")
    return c.add("trilu", x, upper=upper, diagonal=diagonal)


def _diagonal(c: TorchContext, x: Ref, offset: int, dim1: int, dim2: int) -> Ref:
    """Elements along two dimensions, which become one, the last."""
    a, b = c.axis(x, dim1), c.axis(x, dim2)
    rest = [d for d in range(c.rank(x)) if d not in (a, b)]
    moved = c.transpose(x, [*rest, a, b])
    rows, columns = c.shape(moved)[-2:]
    count = c.out_shape[-1]
    lead = c.shape(moved)[:-2]
    if is_open(rows * columns) or count == 0:
        c.refuse("shape", list(c.shape(x)), "numbers, and a diagonal of some elements")
    flat = c.reshape(moved, (*lead, rows * columns))
    first = offset if offset >= 0 else -offset * columns
    return c.slice(flat, len(lead), first, count, columns + 1)


# --- joins and repetition ---------------------------------------------------------------------------------------------


def _cat(c: TorchContext, tensors: Sequence[Ref], dim: int) -> Ref:
    """Legacy: empty vectors among them count for nothing."""
    rank = len(c.out_shape)
    parts = [c.cast(t, c.out_dtype) for t in tensors if c.rank(t) == rank]
    return c.concat(parts, c.axis(parts[0], dim))


def _stack(c: TorchContext, tensors: Sequence[Ref], dim: int) -> Ref:
    axis = dim % len(c.out_shape)
    shape = tuple(1 if d == axis else e for d, e in enumerate(c.out_shape))
    return c.concat([c.reshape(c.cast(t, c.out_dtype), shape) for t in tensors], axis)


def _repeat(c: TorchContext, x: Ref, repeats: Sequence[int]) -> Ref:
    shape = c.shape(x)
    full = (*(1,) * (len(repeats) - len(shape)), *shape)
    x = c.reshape(x, full)
    if all(r == 1 or e == 1 for r, e in zip(repeats, full, strict=True)):
        return c.expand(x, c.out_shape)
    for d, count in enumerate(repeats):
        if is_open(count):  # a dimension in front that is expanded, and joined with this one
            before, extent, after = c.shape(x)[:d], c.shape(x)[d], c.shape(x)[d + 1 :]
            spread = c.expand(c.reshape(x, (*before, 1, extent, *after)), (*before, count, extent, *after))
            x = c.reshape(spread, (*before, count * extent, *after))
    rest = tuple(1 if is_open(count) else count for count in repeats)
    return x if set(rest) == {1} else c.add("tile", x, repeats=rest)


def _repeat_interleave(c: TorchContext, x: Ref, repeats: Any, dim: int | None = None) -> Ref:
    if isinstance(repeats, Ref):
        c.refuse("repeats", "a tensor", "a number")
    if dim is None:
        x, dim = c.flat(x), 0
    axis, shape = c.axis(x, dim), c.shape(x)
    lead, tail = shape[: axis + 1], shape[axis + 1 :]
    spread = c.expand(c.reshape(x, (*lead, 1, *tail)), (*lead, repeats, *tail))
    return c.reshape(spread, (*shape[:axis], shape[axis] * repeats, *tail))


def _slice_scatter(c: TorchContext, x: Ref, src: Ref, dim: int, start: int | None, end: int | None, step: int) -> Ref:
    """``x`` with ``src`` in place of a slice."""
    axis, extent = c.axis(x, dim), c.shape(x)[c.axis(x, dim)]
    taken = c.symbols.extent(c.raw["src"].shape[axis], c.label)
    if taken == 0:
        return x
    first = _start(c, x, axis, start)
    src = c.cast(src, c.dtype(x))
    if step != 1 and taken != 1:
        return _strided_scatter(c, x, src, axis, range(first, first + taken * step, step))
    last = first + taken
    before = [c.slice(x, axis, 0, first)] if is_open(first) or first else []
    after = [] if last == extent else [c.slice(x, axis, last, extent - last)]
    return c.concat([*before, src, *after], axis)


def _strided_scatter(c: TorchContext, x: Ref, src: Ref, axis: int, places: range) -> Ref:
    """``x`` with ``src`` at some places along ``axis``: one gather from both, joined."""
    extent = c.shape(x)[axis]
    written = {place: extent + k for k, place in enumerate(places)}
    source = c.constant([written.get(i, i) for i in range(extent)], "int64")
    return c.add("gather", c.concat([x, src], axis), source, axis=axis)


def _select_scatter(c: TorchContext, x: Ref, src: Ref, dim: int, index: int) -> Ref:
    axis = c.axis(x, dim)
    shape = c.shape(x)
    index = index + shape[axis] if index < 0 else index
    part = c.reshape(c.cast(src, c.dtype(x)), tuple(1 if d == axis else e for d, e in enumerate(shape)))
    last = shape[axis] - index - 1
    before = [c.slice(x, axis, 0, index)] if index else []
    after = [c.slice(x, axis, index + 1, last)] if is_open(last) or last else []
    return c.concat([*before, part, *after], axis)


# --- padding ----------------------------------------------------------------------------------------------------------


def _pad(c: TorchContext, x: Ref, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Ref:
    """``pad`` holds low and high of the last dimension, then of the one before, and so on."""
    rank = c.rank(x)
    if any(is_open(p) for p in pad):
        c.refuse("pad", ", ".join(map(str, pad)), "numbers")
    low, high = [0] * rank, [0] * rank
    for position in range(len(pad) // 2):
        low[rank - 1 - position], high[rank - 1 - position] = pad[2 * position], pad[2 * position + 1]
    if mode == "circular":
        return _wrapped(c, x, low, high)
    if mode == "constant":
        fill = value or 0
        return c.add("pad", x, pads=(*low, *high), value=fill if c.is_real(x) else int(fill))
    return c.add("pad", x, pads=(*low, *high), mode={"replicate": "edge"}.get(mode, mode))


def _padded(mode: str, c: TorchContext, x: Ref, padding: Sequence[int]) -> Ref:
    return _pad(c, x, padding, mode)


def _wrapped(c: TorchContext, x: Ref, low: Sequence[int], high: Sequence[int]) -> Ref:
    for d, (before, after) in enumerate(zip(low, high, strict=True)):
        extent = c.shape(x)[d]
        parts = [c.slice(x, d, extent - before, before)] if before else []
        parts += [x, *([c.slice(x, d, 0, after)] if after else [])]
        x = c.concat(parts, d)
    return x


def _pixel_shuffle(c: TorchContext, x: Ref, upscale_factor: int) -> Ref:
    image = c.reshape(x, (math.prod(c.shape(x)[:-3]), *c.shape(x)[-3:]))
    return c.reshape(c.add("depth_to_space", image, block=upscale_factor, mode="CRD"), c.out_shape)


def _channel_shuffle(c: TorchContext, x: Ref, groups: int) -> Ref:
    batch, channels, *rest = c.shape(x)
    parts = c.reshape(x, (batch, groups, channels // groups, *rest))
    return c.reshape(c.transpose(parts, (0, 2, 1, *range(3, c.rank(parts)))), c.shape(x))


def _pixel_unshuffle(c: TorchContext, x: Ref, downscale_factor: int) -> Ref:
    image = c.reshape(x, (math.prod(c.shape(x)[:-3]), *c.shape(x)[-3:]))
    return c.reshape(c.add("space_to_depth", image, block=downscale_factor, mode="CRD"), c.out_shape)


TRANSLATORS: Mapping[str, Translator] = {
    "aten.view": _view, "aten.reshape": _view, "aten._unsafe_view": _view, "aten.unsqueeze": _unsqueeze,
    "aten._reshape_copy": _view, "aten.view_copy": _view, "aten.squeeze": _squeeze,
    "aten.flatten": _flatten, "aten.unflatten": _unflatten, "aten.clone": _same, "aten.alias": _same,
    "aten.detach": detach, "aten.contiguous": _same, "aten.lift_fresh_copy": _same, "aten.lift_fresh": _same,
    "aten.detach_copy": detach, "aten._to_copy": _converted, "aten.to": _converted, "aten.type_as": _converted,
    "prims.convert_element_type": _converted, "aten.expand": _expand, "aten.expand_as": _expand,
    "aten.permute": _permute, "aten.transpose": _transpose, "aten.swapaxes": _transpose, "aten.t": _reversed,
    "aten.numpy_T": _reversed, "aten.mT": _matrix_transpose, "aten.as_strided": _as_strided, "aten.slice": _slice,
    "aten.narrow": _narrow, "aten.select": _select, "aten.split": _split, "aten.split_with_sizes": _split,
    "aten.chunk": _split, "aten.unbind": _unbind, "aten.flip": _flip, "aten.roll": _roll,
    "aten.tril": partial(_triangle, False), "aten.triu": partial(_triangle, True), "aten.diagonal": _diagonal,
    "aten.cat": _cat, "aten.stack": _stack, "aten.repeat": _repeat, "aten.repeat_interleave": _repeat_interleave,
    "aten.slice_scatter": _slice_scatter, "aten.select_scatter": _select_scatter, "aten.pad": _pad,
    "aten.constant_pad_nd": _pad,
    **{f"aten.reflection_pad{rank}d": partial(_padded, "reflect") for rank in (1, 2, 3)},
    **{f"aten.replication_pad{rank}d": partial(_padded, "replicate") for rank in (1, 2, 3)},
    "aten.pixel_shuffle": _pixel_shuffle,
    "aten.pixel_unshuffle": _pixel_unshuffle, "aten.channel_shuffle": _channel_shuffle,
    "aten.native_channel_shuffle": _channel_shuffle,
}  # fmt: skip
