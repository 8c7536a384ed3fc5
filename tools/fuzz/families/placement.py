"""Draws of operators that put, order, crop or reverse elements, and of shapes that follow other values' shapes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tools.fuzz.families.common import Draw
from tools.fuzz.families.movement import indices
from tools.fuzz.sketch import DTYPES, FLOATS, NUMBERS, Rejected, Sketch


def top_k(s: Sketch) -> None:
    x = s.pick(s.types("TopK", 0, FLOATS), (1, 2, 3), fits=lambda v: v.size > 0)
    axis = s.axis(s.value(x).ndim)
    k = s.between(1, s.value(x).shape[axis])
    largest = s.choose((None, 0)) if s.opset >= 11 else None
    if s.opset < 10:
        raise Rejected("by newer opsets")
    s.add_many(2, "TopK", x, s.index([k]), axis=axis, largest=largest)


def scatter_elements(s: Sketch) -> None:
    x = s.pick(s.types("ScatterElements", 0, NUMBERS), (1, 2, 3), fits=lambda v: v.size > 0)
    shape = s.value(x).shape
    axis = s.between(0, len(shape) - 1)
    row = s.random.permutation(shape[axis])[: s.between(1, shape[axis])]  # each once: the order of writes is not said
    places = np.broadcast_to(row.reshape([-1 if d == axis else 1 for d in range(len(shape))]),
                             [len(row) if d == axis else e for d, e in enumerate(shape)])  # fmt: skip
    updates = s.new(s.array(places.shape, s.kind(x)))
    reduction = s.choose((None, "add")) if s.opset >= 16 else None
    place = s.new(np.ascontiguousarray(places).astype(np.int64), s.chance(0.5))
    s.add("ScatterElements", x, place, updates, axis=axis, reduction=reduction)


def scatter_nd(s: Sketch) -> None:
    x = s.pick(s.types("ScatterND", 0, NUMBERS), (1, 2, 3), fits=lambda v: v.size > 0)
    shape = s.value(x).shape
    rows = s.random.permutation(shape[0])[: s.between(1, shape[0])]
    updates = s.new(s.array((len(rows), *shape[1:]), s.kind(x)))
    s.add("ScatterND", x, s.new(rows.reshape(-1, 1).astype(np.int64), s.chance(0.5)), updates)


def center_crop_pad(s: Sketch) -> None:
    x = s.pick(s.types("CenterCropPad", 0, NUMBERS), (1, 2, 3, 4), fits=lambda v: v.size > 0)
    axes = s.split_axes(s.value(x).ndim)
    if not axes:
        raise Rejected("no axis")
    s.add("CenterCropPad", x, s.index([s.choose((1, 3, 4, 8, 17)) for _ in axes]), axes=axes)


def reverse_sequence(s: Sketch) -> None:
    x = s.pick(s.types("ReverseSequence", 0, NUMBERS), (2, 3), fits=lambda v: v.size > 0)
    time, batch = s.value(x).shape[:2]
    lengths = s.random.integers(1, time + 1, batch).astype(np.int64)
    s.add("ReverseSequence", x, s.new(lengths, s.chance(0.5)), time_axis=0, batch_axis=1)


def expand_as(s: Sketch) -> None:
    """A value as long as another, by that one's Shape."""
    x = s.pick(DTYPES, (1, 2, 3), fits=lambda v: v.size > 0)
    one = s.new(s.array([1] * s.value(x).ndim, s.choose(("float32", "int64"))))
    s.add("Expand", one, s.add("Shape", x))


def positions(s: Sketch) -> None:
    """Range over an extent of another value."""
    x = s.pick(DTYPES, (1, 2, 3), fits=lambda v: v.size > 0)
    shape = s.add("Shape", x)
    extent = s.add("Gather", shape, s.index(s.between(0, s.value(x).ndim - 1)), axis=0)
    s.add("Range", s.index(s.choose((0, 0, 1))), extent, s.index(s.choose((1, 1, 2))))


def gather_rows(s: Sketch) -> None:
    """Positions as many as another value's first extent."""
    x = s.pick(NUMBERS, (1, 2, 3), fits=lambda v: v.size > 0)
    other = s.pick(NUMBERS, (1, 2), fits=lambda v: v.size > 0)
    s.add("Gather", x, indices(s, s.value(other).shape[:1], s.value(x).shape[0]), axis=0)


def trilu_sum(s: Sketch) -> None:
    """A sum of a triangle, which is what causal masks are read by."""
    x = s.pick(s.types("Trilu", 0, FLOATS), (2, 3), fits=lambda v: v.size > 0)
    kept = s.add("Trilu", x, upper=s.choose((0, 1)))
    axis = s.new(np.asarray(s.between(0, s.value(x).ndim - 1), np.int64), True)
    s.add("CumSum", kept, axis, reverse=s.choose((None, 1)), exclusive=s.choose((None, 1)))


def diagonal(s: Sketch) -> None:
    """Einsum along one operand's rows, of any number."""
    x = s.pick(("float32", "float64"), (2,), fits=lambda v: v.size > 0)
    y = s.new(s.array(s.value(x).shape, s.kind(x)))
    s.add("Einsum", x, y, equation=s.choose(("ij,ij->i", "ij,kj->ik", "ij,ij->j", "ij,ij->")))


def attention(s: Sketch) -> None:
    if s.opset < 23:
        raise Rejected("by newer opsets")
    batch, heads, rows, columns, depth = (s.choose((1, 2)), s.choose((1, 2, 4)), s.choose((1, 3, 8, 17)),
                                          s.choose((1, 3, 8, 17)), s.choose((2, 8)))  # fmt: skip
    q = s.new(s.array((batch, heads, rows, depth), "float32"), False)
    k, v = (s.new(s.array((batch, heads, columns, depth), "float32"), False) for _ in range(2))
    s.add("Attention", q, k, v, is_causal=s.choose((None, 1)))


DRAWS: Mapping[str, Draw] = {
    "top_k": top_k, "scatter_elements": scatter_elements, "scatter_nd": scatter_nd, "center_crop_pad": center_crop_pad,
    "reverse_sequence": reverse_sequence, "expand_as": expand_as, "positions": positions, "gather_rows": gather_rows,
    "trilu_sum": trilu_sum, "diagonal": diagonal, "attention": attention,
}  # fmt: skip
