"""Exporters of operators that order elements, as TopK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from burnish.frontend.onnx.export.writer import ExportedNode, Exporter, Writer


def _sort(w: Writer, n: ExportedNode) -> Sequence[str]:
    axis: int = n.attrs["axis"]
    count = w.ints((w.shape(n.inputs[0])[axis],))
    return w.emit_many("TopK", 2, n.inputs[0], count, axis=axis, largest=int(n.attrs["descending"]))


def _top_k(w: Writer, n: ExportedNode) -> Sequence[str]:
    axis, count = n.attrs["axis"], w.ints((n.attrs["k"],))
    values, order = w.emit_many("TopK", 2, n.inputs[0], count, axis=axis, largest=int(n.attrs["largest"]))
    if n.attrs["sorted"]:
        return values, order
    positions, _ = w.emit_many("TopK", 2, order, count, axis=axis, largest=0)
    return w.emit("GatherElements", n.inputs[0], positions, axis=axis), positions


EXPORTERS: Mapping[str, Exporter] = {"sort": _sort, "top_k": _top_k}
