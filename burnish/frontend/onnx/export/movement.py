"""Exporters of operators that move, select, join or repeat elements."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from burnish.frontend.onnx.export.writer import ExportedNode, Exporter, Writer


def _reshape(w: Writer, n: ExportedNode) -> str:
    return w.reshape(n.inputs[0], w.result_shape)


def _transpose(w: Writer, n: ExportedNode) -> str:
    perm = n.attrs["perm"] or tuple(reversed(range(w.rank(n.inputs[0]))))
    return w.emit("Transpose", n.inputs[0], perm=perm)


def _expand(w: Writer, n: ExportedNode) -> str:
    return w.emit("Expand", n.inputs[0], w.ints(w.result_shape))


def _slice(w: Writer, n: ExportedNode) -> str:
    x, shape, result = n.inputs[0], w.shape(n.inputs[0]), w.result_shape
    starts, steps = n.attrs["starts"], n.attrs["steps"] or (1,) * len(shape)
    ends = [start + extent * step for start, extent, step in zip(starts, result, steps, strict=True)]
    # Before the first element there is no position but "as far as it goes".
    ends = [end if end >= 0 else -extent - 1 for end, extent in zip(ends, shape, strict=True)]
    axes = [d for d in range(len(shape)) if shape[d] != result[d] or steps[d] != 1]
    if not axes:
        return x
    parts = [[values[d] for d in axes] for values in (starts, ends, range(len(shape)), steps)]
    return w.emit("Slice", x, *(w.ints(part) for part in parts))


def _pad(w: Writer, n: ExportedNode) -> str:
    x, mode = n.inputs[0], n.attrs["mode"]
    value = [w.scalar(n.attrs["value"], x)] if mode == "constant" else []
    return w.emit("Pad", x, w.ints(n.attrs["pads"]), *value, mode=mode)


def _tile(w: Writer, n: ExportedNode) -> str:
    return w.emit("Tile", n.inputs[0], w.ints(n.attrs["repeats"]))


def _depth_to_space(w: Writer, n: ExportedNode) -> str:
    return w.emit("DepthToSpace", n.inputs[0], blocksize=n.attrs["block"], mode=n.attrs["mode"])


def _space_to_depth(w: Writer, n: ExportedNode) -> str:
    x, block = n.inputs[0], n.attrs["block"]
    if n.attrs["mode"] == "DCR":
        return w.emit("SpaceToDepth", x, blocksize=block)
    batch, channels, height, width = w.shape(x)  # the mode is younger than OPSET
    x = w.reshape(x, (batch, channels, height // block, block, width // block, block))
    return w.reshape(w.emit("Transpose", x, perm=(0, 1, 3, 5, 2, 4)), w.result_shape)


def _trilu(w: Writer, n: ExportedNode) -> str:
    diagonal = w.constant(n.attrs["diagonal"], "int64")
    return w.emit("Trilu", n.inputs[0], diagonal, upper=int(n.attrs["upper"]))


def _indexed(op_type: str, w: Writer, n: ExportedNode) -> str:
    return w.emit(op_type, *n.inputs, **n.attrs)


def _one_hot(w: Writer, n: ExportedNode) -> str:
    indices, values = n.inputs  # onnxruntime has the kernels for int64 indices
    indices = w.cast(indices, "int64")
    return w.emit("OneHot", indices, w.constant(n.attrs["depth"], "int64"), values, axis=n.attrs["axis"])


EXPORTERS: Mapping[str, Exporter] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "expand": _expand,
    "slice": _slice,
    "concat": partial(_indexed, "Concat"),
    "pad": _pad,
    "tile": _tile,
    "depth_to_space": _depth_to_space,
    "space_to_depth": _space_to_depth,
    "trilu": _trilu,
    "gather": partial(_indexed, "Gather"),
    "gather_elements": partial(_indexed, "GatherElements"),
    "gather_nd": partial(_indexed, "GatherND"),
    "one_hot": _one_hot,
}
