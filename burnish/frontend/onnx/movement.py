"""Translators of ONNX operators that move, select, join, repeat or create elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator, np_dtype
from burnish.frontend.onnx.dtypes import dtype_name, to_array
from burnish.frontend.onnx.generators import seed
from burnish.loops.sizes import extent_of, greatest, is_size, larger, least, smaller


def _reshape(c: OnnxContext, n: OnnxNode) -> str:
    x, source = n.inputs[0], c.shape(n.inputs[0])
    wanted = c.ints_of("shape", 1) or ()
    if n.input(1) and c.rank(n.inputs[1]) != 1:
        c.invalid("input 'shape'", f"shape {list(c.shape(n.inputs[1]))}", "one dimension")
    if wanted.count(-1) > 1 or (n.attr("allowzero", 0) and -1 in wanted and 0 in wanted):
        c.invalid("input 'shape'", list(wanted), "one -1 at most, and none beside a 0 that is allowed")
    shape = [source[d] if v == 0 and not n.attr("allowzero", 0) else v for d, v in enumerate(wanted)]
    if -1 in shape:
        rest = math.prod(v for v in shape if v != -1)
        shape[shape.index(-1)] = math.prod(source) // rest if rest else 0
    return c.add("reshape", x, shape=tuple(shape))


def _flatten(c: OnnxContext, n: OnnxNode) -> str:
    x, axis, rank = n.inputs[0], n.attr("axis", 1), c.rank(n.inputs[0])
    if not -rank <= axis <= rank:
        c.invalid("attribute 'axis'", axis, f"-{rank} to {rank} for an input of {rank} dimensions")
    return c.flatten(x, axis + rank if axis < 0 else axis)


def _squeeze(c: OnnxContext, n: OnnxNode) -> str:
    x, shape = n.inputs[0], c.shape(n.inputs[0])
    axes = c.ints_of("axes", 1)
    unsure = [d for d, extent in enumerate(shape) if extent != 1 and least(extent) <= 1 <= greatest(extent)]
    if axes is None and unsure:  # then the result's rank depends on the call
        found = f"none, where extents of the input's shape {list(shape)} may be 1"
        c.refuse("axes", found, "axes, or numbers for those extents")
    dropped = [d for d, extent in enumerate(shape) if extent == 1] if axes is None else [c.axis(x, a) for a in axes]
    wrong = [d for d in dropped if shape[d] != 1]
    if wrong:
        c.invalid("axes", f"{wrong}, where the input's shape is {list(shape)}", "dimensions of extent 1")
    return c.add("reshape", x, shape=tuple(e for d, e in enumerate(shape) if d not in dropped))


def _unsqueeze(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    axes = c.ints_of("axes", 1) or ()
    rank = c.rank(x) + len(axes)
    new = {a % rank for a in axes if -rank <= a < rank}
    if len(new) < len(axes):
        c.invalid("axes", list(axes), f"each once, -{rank} to {rank - 1} for a result of {rank} dimensions")
    rest = iter(c.shape(x))
    return c.add("reshape", x, shape=tuple(1 if d in new else next(rest) for d in range(rank)))


def _transpose(c: OnnxContext, n: OnnxNode) -> str:
    x = n.inputs[0]
    return c.add("transpose", x, perm=tuple(n.attr("perm", range(c.rank(x) - 1, -1, -1))))


def _concat(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("concat", *n.inputs, axis=n.attr("axis", 1))


def _split(c: OnnxContext, n: OnnxNode) -> list[str]:
    x = n.inputs[0]
    axis = c.axis(x, n.attr("axis", 0))
    extent = c.shape(x)[axis]
    sizes = c.ints_of("split", 1)
    if sizes is None:
        parts = n.attr("num_outputs", len(n.outputs))
        if parts != len(n.outputs) or ("num_outputs" not in n.attrs and extent % parts):
            c.invalid("split", f"{parts} parts of extent {extent}", "equal parts, or sizes that are given")
        chunk = -(-extent // parts)
        sizes = tuple(max(min(chunk, extent - i * chunk), 0) for i in range(parts))
    if sum(sizes) != extent or len(sizes) != len(n.outputs) or min(sizes) < 0:
        c.invalid("split", list(sizes), f"{len(n.outputs)} sizes that add up to {extent}")
    ends = np.cumsum(sizes)
    return [c.slice(x, axis, int(end - size), int(end)) for size, end in zip(sizes, ends, strict=True)]


def _slice(c: OnnxContext, n: OnnxNode) -> str:
    x, shape = n.inputs[0], c.shape(n.inputs[0])
    starts, ends = c.ints_of("starts", 1) or (), c.ints_of("ends", 2) or ()
    axes = c.ints_of("axes", 3)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = c.ints_of("steps", 4)
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        lengths = [len(starts), len(ends), len(axes), len(steps)]
        c.invalid("starts, ends, axes and steps", f"{lengths} numbers", "as many of each")
    normal = [c.axis(x, axis) for axis in axes]
    if len(set(normal)) < len(normal) or 0 in steps:
        c.invalid("axes and steps", f"{list(axes)} and {list(steps)}", "each axis once, and steps other than 0")
    first, extents, step_of = [0] * len(shape), list(shape), [1] * len(shape)
    for start, end, d, step in zip(starts, ends, normal, steps, strict=True):
        if step == 1 and (is_size(shape[d]) or is_size(start) or is_size(end)):
            first[d], extents[d] = _open_slice(c, shape[d], start, end)
            continue
        taken = _taken(shape[d], start, end, step)
        first[d], extents[d], step_of[d] = (taken[0] if taken else 0), len(taken), step if len(taken) > 1 else 1
    return c.add("slice", x, starts=tuple(first), extents=tuple(extents), steps=tuple(step_of))


def _open_slice(c: OnnxContext, extent: int, start: int, end: int) -> tuple[int, int]:
    """Start and extent of a slice in single steps, where something depends on dimensions: clamped, if it is decided."""
    begin, stop = (v + extent if greatest(v) < 0 else v for v in (start, end))
    bounds = [smaller(larger(v, 0), extent) for v in (begin, stop)]
    if None in bounds or least(bounds[1] - bounds[0]) < 0:  # type: ignore[operator]
        c.refuse("starts and ends", f"{start} to {end} of {extent}", "positions that are in order for all dimensions")
    return bounds[0], bounds[1] - bounds[0]  # type: ignore[return-value, operator]


def _taken(extent: int, start: int, end: int, step: int) -> range:
    """The positions from ``start`` to before ``end``: negative ones count from the end, then both are clamped.

    Backwards to 0 to ``extent - 1`` and -1 to ``extent - 1``, forwards to 0 to ``extent`` (ONNX, Slice-13).
    """
    start, end = (v + extent if v < 0 else v for v in (start, end))
    if is_size(start) or is_size(end) or is_size(extent):
        raise TypeError(f"positions {start} to {end} of {extent}")
    if step > 0:
        return range(min(max(start, 0), extent), min(max(end, 0), extent), step)
    return range(min(max(start, 0), extent - 1), min(max(end, -1), extent - 1), step)


def _gather(c: OnnxContext, n: OnnxNode) -> str:
    x, index = n.inputs[:2]
    axis = c.axis(x, n.attr("axis", 0))
    c.require_positions(index, x, (axis,))
    value = c.builder.constants.get(index)
    known = value is not None and value.ndim == 0 and c.rank(x) > 0
    if value is not None and known and x not in c.builder.constants:  # one known position is a slice
        position = int(value) % c.shape(x)[axis]
        part = c.slice(x, axis, position, position + 1)
        return c.add("reshape", part, shape=tuple(e for d, e in enumerate(c.shape(x)) if d != axis))
    return c.add("gather", x, index, axis=axis)


def _gather_elements(c: OnnxContext, n: OnnxNode) -> str:
    x, index = n.inputs
    axis = c.axis(x, n.attr("axis", 0))
    c.require_positions(index, x, (axis,))
    return c.add("gather_elements", x, index, axis=axis)


def _gather_nd(c: OnnxContext, n: OnnxNode) -> str:
    (x, index), batch = n.inputs, n.attr("batch_dims", 0)
    depth = c.shape(index)[-1] if c.rank(index) else 0
    c.require_positions(index, x, range(batch, batch + depth))
    return c.add("gather_nd", x, index, batch_dims=batch)


def _pad(c: OnnxContext, n: OnnxNode) -> str:
    x, rank, mode = n.inputs[0], c.rank(n.inputs[0]), n.attr("mode", "constant")
    given = c.ints_of("paddings" if "paddings" in n.attrs else "pads", 1) or ()
    value = n.attr("value", 0.0)
    if n.input(2):
        value = c.number(n.input(2), "constant_value").item()
    axes = c.ints(n.input(3), "axes") if n.input(3) else tuple(range(rank))
    if len(given) != 2 * len(axes):
        c.invalid("pads", f"{len(given)} integers", f"{2 * len(axes)}: a low one and a high one for each axis")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        c.invalid("attribute 'mode'", mode, "constant, reflect, edge, wrap")
    if len({c.axis(x, axis) for axis in axes}) < len(axes):
        c.invalid("input 'axes'", list(axes), "each axis once")
    low, high = [0] * rank, [0] * rank
    for position, axis in enumerate(axes):
        d = c.axis(x, axis)
        low[d], high[d] = given[position], given[position + len(axes)]
    if mode == "wrap":
        return _wrapped(c, x, low, high)
    if mode != "constant":
        return c.add("pad", x, pads=(*low, *high), mode=mode)
    return c.add("pad", x, pads=(*low, *high), value=int(value) if c.dtype(x) == "bool" else value)


def _wrapped(c: OnnxContext, x: str, low: Sequence[int], high: Sequence[int]) -> str:
    """``x`` repeated periodically before and behind, or cut where pads are negative."""
    for d, (before, behind) in enumerate(zip(low, high, strict=True)):
        extent = c.shape(x)[d]
        if before or behind:
            if not extent:
                c.invalid("input 0", f"shape {list(c.shape(x))}", "some elements to repeat")
            x = c.add("gather", x, c.constant(np.arange(-before, extent + behind) % extent), axis=d)
    return x


def _expand(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("expand", n.inputs[0], shape=c.ints(n.inputs[1], "shape"))


def _tile(c: OnnxContext, n: OnnxNode) -> str:
    x, given = n.inputs[0], c.ints(n.inputs[1], "repeats")
    if n.opset < 6:  # how often, and along which axis
        axis = c.axis(x, c.ints(n.inputs[2], "axis")[0])
        given = tuple(given[0] if d == axis else 1 for d in range(c.rank(x)))
    return c.add("tile", x, repeats=given)


def _shape(c: OnnxContext, n: OnnxNode) -> str:
    shape = c.shape(n.inputs[0])
    part = range(len(shape))[n.attr("start", 0) : n.attr("end", len(shape))]
    if any(is_size(shape[d]) for d in part):
        return c.add("shape_of", n.inputs[0], dims=tuple(part))
    return c.constant([shape[d] for d in part], "int64")


def _size(c: OnnxContext, n: OnnxNode) -> str:
    size = math.prod(c.shape(n.inputs[0]))
    if is_size(size):
        return c.add("reduce_prod", c.add("shape_of", n.inputs[0]), axes=(0,), keepdims=False)
    return c.constant(size, "int64")


def _constant(c: OnnxContext, n: OnnxNode) -> str:
    if len(n.attrs) != 1:
        c.invalid("attributes", ", ".join(n.attrs) or "none", "one of value, value_int(s), value_float(s)")
    ((key, value),) = n.attrs.items()
    if key in ("sparse_value", "value_string", "value_strings"):
        c.refuse("attribute", key, "one of value, value_int(s), value_float(s)")
    if isinstance(value, onnx.TensorProto):
        return c.constant(to_array(value, str(n), c.data))
    return c.constant(value, "float32" if "float" in key else "int64")


def _constant_of_shape(c: OnnxContext, n: OnnxNode) -> str:
    """A constant that takes no memory however large: a view of its one element."""
    shape = c.ints(n.inputs[0], "input") if c.shape(n.inputs[0]) else ()
    tensor = n.attr("value")
    fill = np.zeros(1, np.float32) if tensor is None else to_array(tensor, str(n), c.data)
    if fill.size != 1 or any(least(extent) < 0 for extent in shape):
        c.invalid("value and shape", f"{fill.size} elements and {list(shape)}", "one element, and no extent below 0")
    c.require_room(shape, str(fill.dtype))
    if any(map(is_size, shape)):
        return c.add("expand", c.constant(fill.reshape(())), shape=shape)
    return c.constant(np.broadcast_to(fill.reshape(()), shape))


def _range(c: OnnxContext, n: OnnxNode) -> str:
    arguments = zip(n.inputs, ("start", "limit", "delta"), strict=True)
    if any(c.shape(name) not in ((), (1,)) for name in n.inputs):
        c.invalid("start, limit and delta", [list(c.shape(name)) for name in n.inputs], "one element each")
    start, limit, delta = (c.static(name, what).reshape(-1)[0] for name, what in arguments)
    if any(map(is_size, (start, limit, delta))):
        return _open_range(c, n, *(v if is_size(v) else int(v) for v in (start, limit, delta)))
    if delta == 0 or not np.isfinite([float(v) for v in (start, limit, delta)]).all():
        c.invalid("start, limit and delta", f"{start}, {limit}, {delta}", "finite numbers, delta other than 0")
    first, last, step = (v.item() if isinstance(v, np.generic) else v for v in (start, limit, delta))
    dtype = np_dtype(c.dtype(n.inputs[0]))
    count = len(range(first, last, step)) if dtype.kind in "iu" else max(math.ceil((last - first) / step), 0)
    c.require_room((count,), str(dtype))
    return c.constant((first + np.arange(count, dtype=_counting(dtype)) * step).astype(dtype))


def _open_range(c: OnnxContext, n: OnnxNode, start: Any, limit: Any, delta: Any) -> str:
    """A range whose length depends on dimensions."""
    if is_size(delta) or delta <= 0:
        c.refuse("delta", delta, "a positive number, where start or limit depend on dimensions")
    count = -((start - limit) // delta)
    if least(count) < 0:
        c.refuse("limit", limit, f"{start} or more for all values of the dimensions")
    first = n.inputs[0] if c.shape(n.inputs[0]) == () else c.reshape(n.inputs[0], ())
    return c.add("iota", first, extent=extent_of(count), step=delta)


def _counting(dtype: np.dtype) -> str:
    """The dtype in which the numbers of a range of ``dtype`` are computed."""
    return "int64" if dtype.kind in "iu" else "float64"


def _eye_like(c: OnnxContext, n: OnnxNode) -> str:
    if c.rank(n.inputs[0]) != 2:
        c.invalid("input 0", f"shape {list(c.shape(n.inputs[0]))}", "2 dimensions")
    rows, columns = c.shape(n.inputs[0])
    dtype = dtype_name(n.attrs["dtype"], str(n)) if "dtype" in n.attrs else c.dtype(n.inputs[0])
    c.require_room((rows, columns), dtype)
    return c.constant(np.eye(rows, columns, n.attr("k", 0), dtype=np_dtype(dtype)))


def _one_hot(c: OnnxContext, n: OnnxNode) -> str:
    indices, depth, values = n.inputs
    if c.dtype(indices) not in ("int32", "int64"):
        indices = c.cast(indices, "int64")
    count = int(c.number(depth, "depth"))
    if count < 0 or c.shape(values) != (2,):
        c.invalid("depth and values", f"{count} and shape {list(c.shape(values))}", "no depth below 0, and two values")
    return c.add("one_hot", indices, values, depth=count, axis=n.attr("axis", -1))


def _depth_to_space(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("depth_to_space", n.inputs[0], block=n.attrs["blocksize"], mode=n.attr("mode", "DCR"))


def _space_to_depth(c: OnnxContext, n: OnnxNode) -> str:
    return c.add("space_to_depth", n.inputs[0], block=n.attrs["blocksize"], mode=n.attr("mode", "DCR"))


def _trilu(c: OnnxContext, n: OnnxNode) -> str:
    diagonal = int(c.number(n.input(1), "k")) if n.input(1) else 0
    return c.add("trilu", n.inputs[0], upper=bool(n.attr("upper", 1)), diagonal=diagonal)


def _dropout(c: OnnxContext, n: OnnxNode) -> list[str]:
    """The form of inference, which keeps everything; in training, elements by chance, and scales them."""
    if n.input(1):
        c.require_one(n.input(1), "ratio")
    if n.input(2):
        training = bool(c.number(n.input(2), "training_mode"))
        ratio = float(c.number(n.input(1), "ratio")) if n.input(1) else 0.5
        if training and ratio != 0.0:
            return _random_dropout(c, n, ratio)
    ratio = _ratio(c, n) if c.training else 0.0
    if ratio:
        return [c.add("dropout", n.inputs[0], c.constant(0, "int64"), rate=ratio)]
    y = c.add("identity", n.inputs[0])
    return [y, c.constant(np.broadcast_to(np.True_, c.shape(y)))] if len(n.outputs) > 1 else [y]


def _ratio(c: OnnxContext, n: OnnxNode) -> float:
    """An attribute up to version 11, then an input; version 6 and before have a form of inference of their own."""
    if n.attr("is_test", 0):
        return 0.0
    return float(c.number(n.input(1), "ratio")) if n.input(1) else float(n.attr("ratio", 0.5))


def _random_dropout(c: OnnxContext, n: OnnxNode, ratio: float) -> list[str]:
    x = n.inputs[0]
    if not 0 <= ratio < 1:
        c.invalid("input 'ratio'", ratio, "0 to less than 1")
    chance = c.add("random_uniform", shape=c.shape(x), dtype="float64", **seed(c, n))
    kept = c.add("greater_equal", chance, c.constant(ratio, "float64"))
    scaled = c.add("mul", x, c.scalar(1 / (1 - ratio), x))
    return [c.add("where", kept, scaled, c.scalar(0, x)), kept]


def _center_crop_pad(c: OnnxContext, n: OnnxNode) -> str:
    """Cut, or filled with zeros, around the centre to a shape."""
    y, wanted = n.inputs[0], c.ints(n.inputs[1], "shape")
    axes = [c.axis(y, a) for a in n.attr("axes", range(c.rank(y)))]
    if len(axes) != len(wanted):
        c.invalid("shape and axes", f"{list(wanted)} and {axes}", "as many of each")
    low, high = [0] * c.rank(y), [0] * c.rank(y)
    for d, extent in zip(axes, wanted, strict=True):
        found = c.shape(y)[d]
        if found > extent:
            start = (found - extent) // 2
            y = c.slice(y, d, start, start + extent)
        else:
            low[d] = (extent - found) // 2
            high[d] = extent - found - low[d]
    return c.add("pad", y, pads=(*low, *high)) if any(low + high) else c.add("identity", y)


def _reverse_sequence(c: OnnxContext, n: OnnxNode) -> str:
    batch, time = n.attr("batch_axis", 1), n.attr("time_axis", 0)
    if {batch, time} == {0, 1} and c.rank(n.inputs[0]) > 1:
        extent = c.shape(n.inputs[0])[time]
        if not is_size(extent):
            c.require_range(n.inputs[1], "sequence_lens", 0, extent + 1, "numbers of steps")
    return c.add("reverse_sequence", *n.inputs, batch_axis=batch, time_axis=time)


TRANSLATORS: Mapping[str, Translator] = {
    "Reshape": _reshape, "Flatten": _flatten, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose,
    "Concat": _concat, "Split": _split, "Slice": _slice, "Gather": _gather, "GatherElements": _gather_elements,
    "GatherND": _gather_nd, "Pad": _pad, "Expand": _expand, "Tile": _tile, "Shape": _shape, "Size": _size,
    "Constant": _constant, "ConstantOfShape": _constant_of_shape, "Range": _range,
    "EyeLike": _eye_like, "OneHot": _one_hot, "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu, "Dropout": _dropout, "CenterCropPad": _center_crop_pad, "ReverseSequence": _reverse_sequence,
}  # fmt: skip
