"""Translators of ONNX operators whose results' extent depends on values: NonZero, Compress, Unique, suppression."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.graph.graph import Attribute
from burnish.loops.sizes import dim, dims_of, greatest


def _counting(c: OnnxContext, op: str, bound: int, *inputs: str, **attrs: Attribute) -> tuple[str, ...]:
    """The results of an operator that counts, of which there are at most ``bound``, but for the count itself."""
    count = dim(f"count_{len(c.builder.types)}", 0, greatest(bound))
    c.counted.update(dims_of((count,)))
    return c.add_many(op, *inputs, count=count, **attrs)[:-1]


def _along(axis: int | None) -> dict[str, Attribute]:
    """The attribute of an operator that works along a dimension, or on the flat tensor."""
    return {} if axis is None else {"axis": axis}


def _nonzero(c: OnnxContext, n: OnnxNode) -> str:
    known = c.builder.constants.get(n.inputs[0])
    if known is not None:
        return c.constant(np.array(np.nonzero(np.atleast_1d(known)), np.int64).reshape(max(known.ndim, 1), -1))
    return _counting(c, "nonzero", prod(c.shape(n.inputs[0])), n.inputs[0])[0]


def _compress(c: OnnxContext, n: OnnxNode) -> str:
    x, condition = n.inputs
    axis = c.axis(x, n.attrs["axis"]) if "axis" in n.attrs else None
    condition = c.cast(c.reshape(condition, (prod(c.shape(condition)),)), "bool")
    extent = prod(c.shape(x)) if axis is None else c.shape(x)[axis]
    bound = min(greatest(extent), greatest(c.shape(condition)[0]))
    return _counting(c, "compress", bound, x, condition, **_along(axis))[0]


def _unique(c: OnnxContext, n: OnnxNode) -> list[str]:
    x = n.inputs[0]
    own, axis = c.dtype(x), c.axis(x, n.attrs["axis"]) if "axis" in n.attrs else None
    wide = {"bool": "uint8", "float16": "float32", "bfloat16": "float32"}.get(own, own)
    extent = prod(c.shape(x)) if axis is None else c.shape(x)[axis]
    found = _counting(c, "unique", extent, c.cast(x, wide), **_along(axis), sorted=bool(n.attr("sorted", 1)))
    return [c.cast(found[0], own), *found[1:]]


def _non_max_suppression(c: OnnxContext, n: OnnxNode) -> str:
    """Best boxes; where their number is not known statically, there may be as many as there are boxes."""
    boxes, scores = (c.cast(x, "float32") if c.dtype(x) != "float64" else x for x in n.inputs[:2])
    batch, classes, places = (greatest(extent) for extent in c.shape(scores))
    known = c.known(n.input(2)) if n.input(2) else np.zeros(1, np.int64)
    most = places if known is None else min(max(int(greatest(known.reshape(-1)[0])), 0), places)
    scalars = []
    for position, dtype in ((2, "int64"), (3, "float32")):
        name = n.input(position)
        scalars.append(c.cast(c.reshape(name, (1,)), dtype) if name else c.constant(np.zeros(1), dtype))
    least = c.cast(c.reshape(n.input(4), (1,)), "float32") if n.input(4) else c.constant(np.zeros(0), "float32")
    attrs: dict[str, Attribute] = {"center": bool(n.attr("center_point_box", 0)), "most": most}
    return _counting(c, "non_max_suppression", batch * classes * most, boxes, scores, *scalars, least, **attrs)[0]


TRANSLATORS: Mapping[str, Translator] = {
    "NonZero": _nonzero,
    "Compress": _compress,
    "Unique": _unique,
    "NonMaxSuppression": _non_max_suppression,
}
