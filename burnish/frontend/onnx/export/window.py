"""Exporters of operators that slide a window: convolutions, pooling and resampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from burnish.frontend.onnx.export.writer import ExportedNode, Exporter, Writer
from burnish.loops.expr import FLOATS


def _conv(op_type: str, w: Writer, n: ExportedNode) -> str:
    x, weight = n.inputs[:2]
    if w.dtypes[x] not in FLOATS:
        w.refuse("input 'x'", f"dtype {w.dtypes[x]}", f"dtype {', '.join(FLOATS)}")
    if kernel := n.attrs.get("kernel"):
        w.refuse("attribute 'kernel'", str(list(kernel)), "no weight that an algorithm has transformed")
    attrs = {key: value for key, value in n.attrs.items() if key not in ("groups", "kernel")}
    return w.emit(op_type, *n.inputs, kernel_shape=w.shape(weight)[2:], group=n.attrs["groups"], **attrs)


def _pool(op_type: str, w: Writer, n: ExportedNode) -> str:
    """``ceil_mode`` only where it adds a window: ONNX before opset 22 counts windows that start beyond the input."""
    x = n.inputs[0]
    kernel, strides, dilations, pads = (n.attrs[key] for key in ("kernel", "strides", "dilations", "pads"))
    size, result = w.shape(x)[2:], w.result_shape[2:]
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    spare = [size[d] + pads[d] + pads[2 + d] - reach[d] for d in (0, 1)]  # beyond the first window
    ceil_mode = any(result[d] != spare[d] // strides[d] + 1 for d in (0, 1))
    if ceil_mode and any(result[d] != -(-spare[d] // strides[d]) + 1 for d in (0, 1)):
        # One dimension gains a window, the other must not: it is made to end with its last window.
        stops, high = list(size), list(pads[2:])
        for d in (0, 1):
            end = (result[d] - 1) * strides[d] + reach[d] - pads[d]
            if end < size[d] + pads[2 + d]:
                stops[d], high[d] = min(end, size[d]), max(end - size[d], 0)
        pads = (*pads[:2], *high)
        x = w.emit("Slice", x, w.ints((0, 0)), w.ints(stops), w.ints((2, 3)))
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    if "count_include_pad" in n.attrs:
        attrs["count_include_pad"] = int(bool(n.attrs["count_include_pad"]))
    return w.emit(op_type, x, ceil_mode=int(ceil_mode), **attrs)


def _resize(w: Writer, n: ExportedNode) -> str:
    """Resize by sizes where they give the scales, else by scales, which then have to give the sizes."""
    x, shape, sizes, scales = n.inputs[0], w.shape(n.inputs[0]), w.result_shape, n.attrs["scales"]
    attrs = {
        "mode": n.attrs["mode"],
        "coordinate_transformation_mode": n.attrs["coordinates"],
        "nearest_mode": n.attrs["rounding"],
    }
    if scales is None or all(m == s * d for m, s, d in zip(sizes, scales, shape, strict=True)):
        return w.emit("Resize", x, "", "", w.ints(sizes), **attrs)
    stored = np.array(scales, np.float32)
    if sizes != tuple(math.floor(d * s) for d, s in zip(shape, stored.tolist(), strict=True)):
        w.refuse("attribute 'scales'", f"{list(scales)} for sizes {list(sizes)}", "scales from which the sizes follow")
    return w.emit("Resize", x, "", w.constant(stored, "float32"), **attrs)


EXPORTERS: Mapping[str, Exporter] = {
    "conv2d": partial(_conv, "Conv"),
    "conv2d_transpose": partial(_conv, "ConvTranspose"),
    "max_pool2d": partial(_pool, "MaxPool"),
    "avg_pool2d": partial(_pool, "AveragePool"),
    "resize": _resize,
}
