"""Exporter of matrix products."""

from __future__ import annotations

from collections.abc import Mapping

from burnish.frontend.onnx.export.writer import ExportedNode, Exporter, Writer


def _matmul(w: Writer, n: ExportedNode) -> str:
    """Gemm for transposed matrices, else MatMul behind transposes; narrow integers are multiplied as their sums are."""
    result = w.graph.types[n.outputs[0]].dtype
    operands = [w.cast(name, result) for name in n.inputs]
    ranks = [w.rank(name) for name in n.inputs]
    flags = (n.attrs["transpose_a"], n.attrs["transpose_b"])
    transposed = [bool(flag) and rank > 1 for flag, rank in zip(flags, ranks, strict=True)]
    if ranks == [2, 2] and any(transposed):
        return w.emit("Gemm", *operands, transA=int(transposed[0]), transB=int(transposed[1]))
    for i, rank in enumerate(ranks):
        if transposed[i]:
            operands[i] = w.emit("Transpose", operands[i], perm=[*range(rank - 2), rank - 1, rank - 2])
    return w.emit("MatMul", *operands)


EXPORTERS: Mapping[str, Exporter] = {"matmul": _matmul}
