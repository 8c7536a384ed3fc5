"""Exporters of reductions, normalizations and softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from burnish.frontend.onnx.export.writer import ExportedNode, Exporter, Writer


def _reduce(op_type: str, w: Writer, n: ExportedNode) -> str:
    x, axes = n.inputs[0], n.attrs["axes"]
    keepdims = int(n.attrs["keepdims"])
    if axes == () or w.rank(x) == 0:  # for ONNX no axes are all, or nothing is computed: reduce one of extent 1
        return w.emit(op_type, w.reshape(x, (*w.shape(x), 1)), w.ints([-1]), keepdims=0)
    return w.emit(op_type, x, *([] if axes is None else [w.ints(axes)]), keepdims=keepdims)


def _arg(op_type: str, w: Writer, n: ExportedNode) -> str:
    keepdims, last = int(n.attrs["keepdims"]), int(n.attrs["last"])
    return w.emit(op_type, n.inputs[0], axis=n.attrs["axis"], keepdims=keepdims, select_last_index=last)


def _cumsum(w: Writer, n: ExportedNode) -> str:
    exclusive, reverse = int(n.attrs["exclusive"]), int(n.attrs["reverse"])
    return w.emit("CumSum", n.inputs[0], w.constant(n.attrs["axis"], "int64"), exclusive=exclusive, reverse=reverse)


def _plain(op_type: str, w: Writer, n: ExportedNode) -> str:
    return w.emit(op_type, *n.inputs, **n.attrs)


def _batch_norm(w: Writer, n: ExportedNode) -> str:
    """BatchNormalization of ONNX, whose momentum weighs the old statistics (1 - momentum here)."""
    moves = {"momentum": 1 - n.attrs["momentum"]} if "momentum" in n.attrs else {}
    known = {key: value for key, value in n.attrs.items() if key != "frozen"}
    return w.emit("BatchNormalization", *n.inputs, **{**known, **moves})


def _layer_norm(w: Writer, n: ExportedNode) -> str:
    """LayerNormalization, which is over the last dimensions: others are moved there and back."""
    x, *parameters = n.inputs
    rank, trailing = w.rank(x), int(n.attrs["trailing"])
    axis = int(n.attrs["axis"]) % rank
    over = range(axis, rank - trailing)
    if not parameters:
        parameters = [w.constant(np.ones([w.shape(x)[d] for d in over]), w.dtypes[x])]
    perm = [*range(axis), *range(rank - trailing, rank), *over]
    x = w.emit("Transpose", x, perm=perm) if trailing else x
    y = w.emit("LayerNormalization", x, *parameters, axis=axis + trailing, epsilon=n.attrs["epsilon"])
    return w.emit("Transpose", y, perm=[perm.index(d) for d in range(rank)]) if trailing else y


def _rms_norm(w: Writer, n: ExportedNode) -> str:
    """RMSNormalization is younger than OPSET. Halves are squared and summed in float32."""
    x, dtype = n.inputs[0], w.dtypes[n.inputs[0]]
    rank, trailing = w.rank(x), int(n.attrs["trailing"])
    axes = list(range(int(n.attrs["axis"]) % rank, rank - trailing))
    wide = w.cast(x, "float32" if dtype in ("float16", "bfloat16") else dtype)
    mean = w.emit("ReduceMean", w.emit("Mul", wide, wide), w.ints(axes), keepdims=1)
    root = w.emit("Sqrt", w.emit("Add", mean, w.scalar(n.attrs["epsilon"], wide)))
    y = w.emit("Div", wide, root)
    if len(n.inputs) > 1:
        scale = w.reshape(n.inputs[1], (*w.shape(n.inputs[1]), *[1] * trailing)) if trailing else n.inputs[1]
        y = w.emit("Mul", y, w.cast(scale, w.dtypes[y]))
    return w.cast(y, dtype)


def _group_norm(w: Writer, n: ExportedNode) -> str:
    """As instance normalization of [N, groups, rest]: ONNX's own had one scale a group before opset 21."""
    x, scale, bias = n.inputs
    shape, groups = w.shape(x), int(n.attrs["groups"])
    rows = w.reshape(x, (shape[0], groups, math.prod(shape[1:]) // groups))
    one, zero = (w.constant(np.full(groups, value), w.dtypes[x]) for value in (1, 0))
    y = w.reshape(w.emit("InstanceNormalization", rows, one, zero, epsilon=n.attrs["epsilon"]), shape)
    channel = (shape[1], *(1 for _ in shape[2:]))
    return w.emit("Add", w.emit("Mul", y, w.reshape(scale, channel)), w.reshape(bias, channel))


def _instance_norm(w: Writer, n: ExportedNode) -> str:
    x, *parameters = n.inputs
    if w.rank(x) > 2:
        return w.emit("InstanceNormalization", x, *parameters, **n.attrs)
    y = w.emit("InstanceNormalization", w.reshape(x, (*w.shape(x), 1)), *parameters, **n.attrs)
    return w.reshape(y, w.shape(x))


EXPORTERS: Mapping[str, Exporter] = {
    "reduce_sum": partial(_reduce, "ReduceSum"),
    "reduce_prod": partial(_reduce, "ReduceProd"),
    "reduce_max": partial(_reduce, "ReduceMax"),
    "reduce_min": partial(_reduce, "ReduceMin"),
    "reduce_mean": partial(_reduce, "ReduceMean"),
    "reduce_l1": partial(_reduce, "ReduceL1"),
    "reduce_l2": partial(_reduce, "ReduceL2"),
    "reduce_sumsq": partial(_reduce, "ReduceSumSquare"),
    "reduce_logsumexp": partial(_reduce, "ReduceLogSumExp"),
    "argmax": partial(_arg, "ArgMax"),
    "argmin": partial(_arg, "ArgMin"),
    "cumsum": _cumsum,
    "softmax": partial(_plain, "Softmax"),
    "log_softmax": partial(_plain, "LogSoftmax"),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "lrn": partial(_plain, "LRN"),
}
