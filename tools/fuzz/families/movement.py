"""Draws of operators that move, join, select or create elements."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from onnx import helper, numpy_helper

from tools.fuzz.families.common import Draw
from tools.fuzz.sketch import DTYPES, FLOATS, NUMBERS, Rejected, Sketch


def factors(s: Sketch, size: int) -> list[int]:
    """Random shape with a given number of elements."""
    shape: list[int] = []
    while size > 1 and len(shape) < 4:
        divisors = [d for d in range(1, min(size, 200) + 1) if size % d == 0]
        shape.append(s.choose(divisors))
        size //= shape[-1]
    return [*shape, size] if size != 1 or not shape else shape


def reshape(s: Sketch) -> None:
    x = s.pick(DTYPES)
    shape = s.value(x).shape
    if s.value(x).size == 0:
        raise Rejected("nothing to reshape")
    if len(shape) > 1 and s.chance(0.5):  # neighbours merged
        d = s.between(0, len(shape) - 2)
        wanted = [*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :]]
    else:
        wanted = factors(s, s.value(x).size)
    if wanted and s.chance(0.4):
        wanted[s.between(0, len(wanted) - 1)] = -1
    wanted = [0 if d < len(shape) and v == shape[d] and s.chance(0.15) else v for d, v in enumerate(wanted)]
    s.add("Reshape", x, s.index(wanted))


def flatten(s: Sketch) -> None:
    x = s.pick(s.types("Flatten", 0, DTYPES))
    rank = s.value(x).ndim
    s.add("Flatten", x, axis=None if rank and s.chance(0.2) else s.between(0, rank))  # the default is 1


def squeeze(s: Sketch) -> None:
    x = s.pick(DTYPES, fits=lambda v: 1 in v.shape)
    axes = [d for d, e in enumerate(s.value(x).shape) if e == 1]
    if s.chance(0.3):
        s.add("Squeeze", x)
        return
    axes = [d for d in axes if s.chance(0.6)] or axes[:1]
    s.add("Squeeze", x, s.index(axes)) if s.opset >= 13 else s.add("Squeeze", x, axes=axes)


def unsqueeze(s: Sketch) -> None:
    x = s.pick(DTYPES, (0, 1, 2, 3, 4))
    rank = s.value(x).ndim + 1
    axes = [s.axis(rank) if s.opset >= 11 else s.between(0, rank - 1)]
    s.add("Unsqueeze", x, s.index(axes)) if s.opset >= 13 else s.add("Unsqueeze", x, axes=axes)


def transpose(s: Sketch) -> None:
    x = s.pick(DTYPES, (2, 3, 4, 5))
    perm = [int(v) for v in s.random.permutation(s.value(x).ndim)]
    s.add("Transpose", x, perm=perm if s.chance(0.85) else None)


def concat(s: Sketch) -> None:
    x = s.pick(DTYPES, (1, 2, 3, 4, 5))
    shape, dtype = s.value(x).shape, s.kind(x)
    axis = s.between(0, len(shape) - 1)

    def fits(value: np.ndarray) -> bool:
        same = value.ndim == len(shape) and str(value.dtype) == dtype
        return same and all(a == b for d, (a, b) in enumerate(zip(value.shape, shape, strict=True)) if d != axis)

    parts = [x]
    for _ in range(s.between(0, 3)):
        other = s.find(fits) if s.chance(0.6) else None
        if other is None:
            extents = list(shape)
            extents[axis] = s.choose((1, 2, 3, 8, 16, 17, shape[axis]))
            other = s.new(s.array(extents, dtype))
        parts.insert(s.between(0, len(parts)), other)
    s.add("Concat", *parts, axis=axis - len(shape) if s.chance(0.3) else axis)


def split(s: Sketch) -> None:
    x = s.pick(DTYPES, (1, 2, 3, 4), fits=lambda v: v.size > 0)
    shape = s.value(x).shape
    axis = s.between(0, len(shape) - 1)
    extent = shape[axis]
    count = s.between(1, min(4, extent))
    cuts = sorted({int(v) for v in s.random.integers(1, max(extent, 2), count - 1)} & set(range(1, extent)))
    sizes = [int(v) for v in np.diff([0, *cuts, extent])]
    if s.chance(0.3) and s.opset >= 18:
        count = s.between(1, min(3, extent))
        s.add_many(count, "Split", x, axis=axis, num_outputs=count)
    elif s.opset >= 13:
        s.add_many(len(sizes), "Split", x, s.index(sizes), axis=axis)
    else:
        s.add_many(len(sizes), "Split", x, axis=axis, split=sizes)


def slice_(s: Sketch) -> None:
    x = s.pick(DTYPES, (1, 2, 3, 4, 5))
    shape = s.value(x).shape
    axes = s.split_axes(len(shape))
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = shape[axis]
        step = s.choose((1, 1, 1, 2, 3, -1, -2, 7)) if s.opset >= 10 else 1
        low, high = s.between(0, max(extent // 2, 0)), s.between(extent // 2, extent)
        if step < 0:
            starts.append(s.choose((high - 1, -1, extent + 3, 1 << 40)))
            ends.append(s.choose((low - extent - 1, -(1 << 60), -extent - 1)) if extent else -1)
        else:
            starts.append(s.choose((low, low - extent if extent else 0, -extent - 5)))
            ends.append(s.choose((high, high - extent if 0 < high < extent else high, extent + 7, 2**63 - 1)))
        steps.append(step)
    if s.opset < 10:
        s.add("Slice", x, starts=starts, ends=ends, axes=axes)
        return
    extra = [s.index(axes), s.index(steps)] if max(steps) > 1 or min(steps) < 0 or s.chance(0.3) else [s.index(axes)]
    s.add("Slice", x, s.index(starts), s.index(ends), *extra)
    if math.prod(s.value(f"v{len(s.nodes) - 1}").shape) == 0 and s.chance(0.9):
        raise Rejected("an empty slice")


def pad(s: Sketch) -> None:
    dtypes = s.types("Pad", 0, DTYPES) if s.opset >= 11 else FLOATS
    x = s.pick(dtypes, (1, 2, 3, 4))
    shape = s.value(x).shape
    modes = ("constant", "constant", "constant", "reflect", "edge", "wrap")
    mode = s.choose(modes if s.opset >= 19 else modes[:-1])
    most = [max(e - 1, 0) if mode == "reflect" else e if mode == "wrap" else 5 for e in shape]
    low, high = ([s.between(0, min(m, 4)) if s.chance(0.5) else 0 for m in most] for _ in range(2))
    if mode == "constant" and s.chance(0.15):  # cut off instead
        d = s.between(0, len(shape) - 1)
        low[d] = -s.between(0, max(shape[d] - 1, 0))
    if s.opset < 11:
        s.add("Pad", x, pads=[*low, *high], mode=mode, value=s.choose((None, 1.5)) if mode == "constant" else None)
        return
    value = s.new(s.array((), s.kind(x)), True) if mode == "constant" and s.chance(0.5) else ""
    if s.opset >= 18 and s.chance(0.2):
        axes = s.split_axes(len(shape))
        pads = [*(low[a] for a in axes), *(high[a] for a in axes)]
        s.add("Pad", x, s.index(pads), value, s.index(axes), mode=mode)
    else:
        s.add("Pad", x, s.index([*low, *high]), *([value] if value else []), mode=mode)


def expand(s: Sketch) -> None:
    x = s.pick(DTYPES, (0, 1, 2, 3, 4))
    shape = [s.choose((2, 3, 8, 17)) if e == 1 else e if s.chance(0.7) else 1 for e in s.value(x).shape]
    if s.chance(0.3):
        shape = [s.choose((1, 2, 3)), *shape]
    s.add("Expand", x, s.index(shape))


def tile(s: Sketch) -> None:
    x = s.pick(s.types("Tile", 0, DTYPES), (1, 2, 3, 4))
    s.add("Tile", x, s.index([s.choose((1, 1, 2, 3)) for _ in s.value(x).shape]))


def blocks(s: Sketch) -> None:
    """DepthToSpace and SpaceToDepth."""
    block = s.choose((2, 2, 3))
    op = s.choose(("DepthToSpace", "SpaceToDepth"))
    dtypes = s.types(op, 0, FLOATS)
    if op == "DepthToSpace":
        x = s.pick(dtypes, (4,), lambda v: v.shape[1] % block**2 == 0) if s.chance(0.5) else ""
        x = x or s.new(s.floats((s.choose((1, 2)), block**2 * s.choose((1, 2, 3, 8)), 3, 5), s.dtype_of(dtypes)), False)
        s.add(op, x, blocksize=block, mode=s.choose((None, "DCR", "CRD")) if s.opset >= 11 else None)
    else:
        x = s.pick(dtypes, (4,), lambda v: v.shape[2] % block == 0 == v.shape[3] % block) if s.chance(0.5) else ""
        x = x or s.new(s.floats((1, s.choose((1, 3, 8)), 2 * block, 3 * block), s.dtype_of(dtypes)), False)
        s.add(op, x, blocksize=block)


def triangle(s: Sketch) -> None:
    x = s.pick(s.types("Trilu", 0, DTYPES), (2, 3, 4))
    diagonal = [s.index(s.between(-4, 4))] if s.chance(0.5) else []
    s.add("Trilu", x, *diagonal, upper=s.choose((None, 0, 1)))


def dropout(s: Sketch) -> None:
    s.add("Dropout", s.pick(s.types("Dropout", 0, FLOATS)))


# --- by indices -------------------------------------------------------------------------------------------------------


def is_index(value: np.ndarray, extent: int) -> bool:
    """Whether all of it are positions along an axis."""
    whole = value.dtype in (np.int64, np.int32) and value.size > 0
    return whole and bool(-extent <= value.min() <= value.max() < extent)


def indices(s: Sketch, shape: tuple[int, ...], extent: int) -> str:
    """Valid positions, counted from the front or the back: a constant, an input, or what the model computes."""
    if extent == 0:
        raise Rejected("nothing to index")
    found = s.find(lambda v: is_index(v, extent))
    if found is not None and s.value(found).shape == shape and s.chance(0.6):
        return found
    dtype = s.choose(("int64", "int64", "int32"))
    low = -extent if s.chance(0.6) else 0
    return s.new(s.random.integers(low, extent, shape).astype(dtype), s.chance(0.45))


def gather(s: Sketch) -> None:
    x = s.pick(DTYPES, (1, 2, 3, 4), fits=lambda v: v.size > 0)
    shape = s.value(x).shape
    axis = s.axis(len(shape))
    wanted = s.choose(((), (1,), (3,), (17,), (2, 3), (8,), (1, 5)))
    extent = shape[axis]
    found = s.find(lambda v: v.size <= 64 and is_index(v, extent))
    if found is not None and s.chance(0.5):
        s.add("Gather", x, found, axis=axis)
    else:
        s.add("Gather", x, indices(s, wanted, extent), axis=axis)


def gather_elements(s: Sketch) -> None:
    x = s.pick(DTYPES, (1, 2, 3, 4), fits=lambda v: v.size > 0)
    shape = s.value(x).shape
    axis = s.axis(len(shape))
    wanted = tuple(
        s.choose((1, 2, 8, 17, e)) if d == axis % len(shape) else e if s.chance(0.8) else s.between(1, e)
        for d, e in enumerate(shape)
    )
    s.add("GatherElements", x, indices(s, wanted, shape[axis]), axis=axis)


def gather_nd(s: Sketch) -> None:
    x = s.pick(DTYPES, (1, 2, 3, 4), fits=lambda v: v.size > 0)
    shape = s.value(x).shape
    batch = s.between(0, min(len(shape) - 1, 1)) if s.opset >= 12 else 0
    depth = s.between(1, len(shape) - batch)
    lead = (*shape[:batch], *s.choose(((), (3,), (2, 4), (17,))))
    columns = [s.random.integers(-e, e, lead) for e in shape[batch : batch + depth]]
    array = np.stack(columns, -1).astype(np.int64)
    s.add("GatherND", x, s.new(array, s.chance(0.45)), batch_dims=batch or None)


def one_hot(s: Sketch) -> None:
    depth = s.choose((2, 5, 16, 17))
    shape = s.shape(s.choose((1, 2, 3)), 200)
    positions = s.new(s.random.integers(-depth, depth, shape).astype(s.choose(("int64", "int32", "int64"))))
    values = s.new(s.array((2,), s.choose(("float32", "int64", "float32"))))
    s.add("OneHot", positions, s.index(depth), values, axis=s.choose((-1, 0, None)))


def cumulate(s: Sketch) -> None:
    x = s.pick(s.types("CumSum", 0, NUMBERS), (1, 2, 3, 4))
    axis = s.new(np.asarray(s.axis(s.value(x).ndim), s.choose(("int64", "int32"))), True)
    s.add("CumSum", x, axis, exclusive=s.choose((None, 1)), reverse=s.choose((None, 1)))


# --- known statically -------------------------------------------------------------------------------------------------


def describe(s: Sketch) -> None:
    """The shape or the size of a value, used as data."""
    x = s.pick(DTYPES)
    if s.chance(0.3):
        s.add("Size", x)
    elif s.opset >= 15 and s.chance(0.5):
        s.add("Shape", x, start=s.choose((None, 0, 1, -2)), end=s.choose((None, -1)))
    else:
        s.add("Shape", x)


def create(s: Sketch) -> None:
    """Values out of nothing."""
    kind = s.choose(("Constant", "ConstantOfShape", "Range", "EyeLike", "NonZero"))
    if kind == "Constant":
        array = s.array(s.shape(most=400), s.choose(DTYPES))
        s.add(kind, value=numpy_helper.from_array(array))
    elif kind == "ConstantOfShape":
        fill = s.array((1,), s.choose(DTYPES))
        shape = s.shape(s.choose((1, 2, 3)), 400)
        s.add(kind, s.index(shape), value=numpy_helper.from_array(fill) if s.chance(0.8) else None)
    elif kind == "Range":
        dtype = s.choose(("int64", "int32", "float32"))
        s.add(kind, *(s.constant(np.asarray(v, dtype)) for v in (s.between(-5, 5), s.between(6, 40), s.between(1, 3))))
    elif kind == "EyeLike":
        x = s.pick(s.types(kind, 0, DTYPES), (2,))
        to = s.choose((None, "float32", "int64"))
        number = None if to is None else helper.np_dtype_to_tensor_dtype(np.dtype(to))
        s.add(kind, x, k=s.choose((None, 1, -2)), dtype=number)
    else:
        s.add(kind, s.constant(s.integers(s.shape(2, 60), "int64", 0, 1)))


def resized(s: Sketch) -> None:
    """A shape computed by the model: Reshape by Concat of Shape's parts."""
    x = s.pick(FLOATS, (2, 3, 4), fits=lambda v: v.size > 0)
    if s.opset < 13:
        raise Rejected("by newer opsets")
    first = s.add("Slice", s.add("Shape", x), s.index([0]), s.index([1]))
    s.add("Reshape", x, s.add("Concat", first, s.index([-1]), axis=0))


DRAWS: Mapping[str, Draw] = {
    "reshape": reshape, "flatten": flatten, "squeeze": squeeze, "unsqueeze": unsqueeze, "transpose": transpose,
    "transpose2": transpose, "concat": concat, "concat2": concat, "split": split, "slice": slice_, "slice2": slice_,
    "pad": pad, "pad2": pad, "expand": expand, "tile": tile, "blocks": blocks, "triangle": triangle,
    "dropout": dropout,
}  # fmt: skip
GATHER_DRAWS: Mapping[str, Draw] = {
    "gather": gather, "gather2": gather, "gather_elements": gather_elements, "gather_nd": gather_nd,
    "one_hot": one_hot, "cumulate": cumulate,
}  # fmt: skip
STATIC_DRAWS: Mapping[str, Draw] = {"describe": describe, "create": create, "resized": resized}
