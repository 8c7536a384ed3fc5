"""Exporters of recurrent cells. ONNX knows whole layers only: a cell becomes its products and gates."""

from __future__ import annotations

from collections.abc import Mapping

from burnish.frontend.onnx.export.writer import ExportedNode, Exporter, Writer


def _recurrent_product(w: Writer, state: str, recurrent: str, gates: int, hidden: int) -> str:
    """``state`` [B, H] times the transposed weight [G, H, H]: [B, G · H]."""
    return w.emit("Gemm", state, w.reshape(recurrent, (gates * hidden, hidden)), transB=1)


def _lstm_cell(w: Writer, n: ExportedNode) -> list[str]:
    x_gates, h, c, recurrent = n.inputs
    total = w.emit("Add", _recurrent_product(w, h, recurrent, 4, w.shape(h)[1]), x_gates)
    parts = w.emit_many("Split", 4, total, axis=1, num_outputs=4)
    entry, output, forget = (w.emit("Sigmoid", part) for part in parts[:3])
    new_c = w.emit("Add", w.emit("Mul", forget, c), w.emit("Mul", entry, w.emit("Tanh", parts[3])))
    return [w.emit("Mul", output, w.emit("Tanh", new_c)), new_c]


def _gru_cell(w: Writer, n: ExportedNode) -> str:
    x_gates, h, recurrent, bias = n.inputs
    hidden = w.shape(h)[1]
    x_update, x_reset, x_hidden = w.emit_many("Split", 3, x_gates, axis=1, num_outputs=3)
    if n.attrs["linear_before_reset"]:
        product = w.emit("Add", _recurrent_product(w, h, recurrent, 3, hidden), bias)
        update, reset, entry = w.emit_many("Split", 3, product, axis=1, num_outputs=3)
        reset = w.emit("Sigmoid", w.emit("Add", reset, x_reset))
        inner = w.emit("Mul", reset, entry)
    else:
        weights = w.emit_many("Split", 2, recurrent, w.ints((2, 1)), axis=0)
        biases = w.emit_many("Split", 2, bias, w.ints((2 * hidden, hidden)), axis=0)
        product = w.emit("Add", _recurrent_product(w, h, weights[0], 2, hidden), biases[0])
        update, reset = w.emit_many("Split", 2, product, axis=1, num_outputs=2)
        state = w.emit("Mul", w.emit("Sigmoid", w.emit("Add", reset, x_reset)), h)
        inner = w.emit("Add", _recurrent_product(w, state, weights[1], 1, hidden), biases[1])
    proposal = w.emit("Tanh", w.emit("Add", inner, x_hidden))
    update = w.emit("Sigmoid", w.emit("Add", update, x_update))
    complement = w.emit("Sub", w.scalar(1.0, h), update)
    return w.emit("Add", w.emit("Mul", complement, proposal), w.emit("Mul", update, h))


EXPORTERS: Mapping[str, Exporter] = {"lstm_cell": _lstm_cell, "gru_cell": _gru_cell}
