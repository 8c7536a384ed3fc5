"""Translators of ONNX operators that write at positions held in a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping

from burnish.frontend.onnx.context import OnnxContext, OnnxNode, Translator
from burnish.loops.sizes import dims_of


def _scatter_elements(c: OnnxContext, n: OnnxNode) -> str:
    axis = c.axis(n.inputs[0], n.attr("axis", 0))
    c.require_positions(n.inputs[1], n.inputs[0], (axis,))
    return c.add("scatter_elements", *n.inputs, axis=axis, reduction=n.attr("reduction", "none"))


def _scatter_nd(c: OnnxContext, n: OnnxNode) -> str:
    index = n.inputs[1]
    c.require_positions(index, n.inputs[0], range(c.shape(index)[-1] if c.rank(index) else 0))
    return c.add("scatter_nd", *n.inputs, reduction=n.attr("reduction", "none"))


def _tensor_scatter(c: OnnxContext, n: OnnxNode) -> str:
    """A cache with new rows for every batch row, from a position of its own on, or from 0."""
    past, update, start = n.inputs[0], n.inputs[1], n.input(2)
    mode = n.attr("mode", "linear")
    if mode not in ("linear", "circular"):
        c.invalid("attribute 'mode'", mode, "linear, circular")
    start = start or c.constant([0] * c.shape(past)[0], "int64")
    axis = c.axis(past, n.attr("axis", -2))
    room = c.shape(past)[axis] - (c.shape(update)[axis] if mode == "linear" else 1)
    if not dims_of((room,)):
        c.require_range(start, "write_indices", 0, room + 1, f"positions along dimension {axis} of '{past}'")
    return c.add("scatter_rows", past, update, start, axis=axis, circular=mode == "circular")


def _col2im(c: OnnxContext, n: OnnxNode) -> str:
    size, block = c.ints(n.inputs[1], "image_shape"), c.ints(n.inputs[2], "block_shape")
    rank = len(size)
    attrs = {key: tuple(n.attr(key, [1] * rank)) for key in ("strides", "dilations")}
    pads = tuple(n.attr("pads", [0] * (2 * rank)))
    return c.add("fold_windows", n.inputs[0], size=size, block=block, pads=pads, **attrs)


def _max_unpool(c: OnnxContext, n: OnnxNode) -> str:
    """Indices are those of the image that the windows cover exactly; a greater output has zeros behind it."""
    x, indices = n.inputs[:2]
    kernel, rank = n.attrs["kernel_shape"], c.rank(x) - 2
    strides, pads = n.attr("strides", [1] * rank), n.attr("pads", [0] * (2 * rank))
    size = tuple((c.shape(x)[2 + d] - 1) * strides[d] + kernel[d] - pads[d] - pads[rank + d] for d in range(rank))
    image = math.prod((*c.shape(x)[:2], *size))
    c.require_room((*c.shape(x)[:2], *size), c.dtype(x))
    c.require_range(indices, "I", 0, image, f"positions of an output of {image} elements")
    y = c.add("max_unpool", x, indices, size=size)
    if not n.input(2):
        return y
    wanted = c.ints(n.input(2), "output_shape")
    if len(wanted) != rank + 2 or any(w < s for w, s in zip(wanted[2:], size, strict=True)):
        c.invalid("input 'output_shape'", list(wanted), f"{[*c.shape(x)[:2], *size]} or more")
    more = [w - s for w, s in zip(wanted[2:], size, strict=True)]
    return c.add("pad", y, pads=(*[0] * (rank + 2), 0, 0, *more)) if any(more) else y


TRANSLATORS: Mapping[str, Translator] = {
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "Col2Im": _col2im,
    "MaxUnpool": _max_unpool,
}
