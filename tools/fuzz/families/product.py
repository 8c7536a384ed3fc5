"""Draws of matrix products, of Einsum, of attention, and of recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from burnish.runtime.buffers import numpy_dtype
from tools.fuzz.families.common import Draw
from tools.fuzz.sketch import EXTENTS, FLOATS, Rejected, Sketch

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def matrix(s: Sketch, shape: tuple[int, ...], dtype: str, inner: int) -> str:
    """An existing value of this shape, or a new one whose products with ``inner`` terms stay small."""
    found = s.find(lambda v: v.shape == shape and str(v.dtype) == dtype)
    if found is not None and s.chance(0.4):
        return found
    half = min(2.0, 2.0 / math.sqrt(max(inner, 1)))
    return s.new(s.floats(shape, dtype, -half, half), s.chance(0.6))


def matmul(s: Sketch) -> None:
    x = s.pick(s.types("MatMul", 0, FLOATS), (1, 2, 3, 4))
    *lead, inner = s.value(x).shape
    columns = s.choose(EXTENTS)
    manner = s.random.random()
    batch = tuple(lead[:-1])
    if manner < 0.5:
        shape: tuple[int, ...] = (inner, columns)
    elif manner < 0.6:
        shape = (inner,)
    else:
        shape = (*(1 if s.chance(0.3) else e for e in batch), inner, columns)
    if math.prod(lead) * inner * columns > 2_000_000:
        raise Rejected("a large product")
    s.add("MatMul", x, matrix(s, shape, s.kind(x), inner))


def gemm(s: Sketch) -> None:
    x = s.pick(s.types("Gemm", 0, FLOATS), (2,))
    rows, inner = s.value(x).shape
    transposed = s.chance(0.2)
    if transposed:
        rows, inner = inner, rows
    columns, other = s.choose(EXTENTS), s.chance(0.5)
    dtype = s.kind(x)
    y = matrix(s, (columns, inner) if other else (inner, columns), dtype, inner)
    extra = [s.new(s.floats(s.choose(((columns,), (rows, columns), (1, columns), (rows, 1), ())), dtype))]
    if s.opset >= 11 and s.chance(0.3):
        extra = []
    numbers: dict[str, Any] = {"alpha": s.choose((None, None, 0.5)), "beta": s.choose((None, None, 2.0, 0.0))}
    s.add("Gemm", x, y, *extra, transA=1 if transposed else None, transB=1 if other else None, **numbers)


def attention(s: Sketch) -> None:
    """Softmax of scaled scores, times values."""
    batch, heads = s.choose((1, 2)), s.choose((1, 2, 3))
    length, keys, width = s.choose((1, 5, 16, 17)), s.choose((1, 7, 16, 33)), s.choose((4, 8, 13, 32))
    dtype = s.dtype_of(s.types("MatMul", 0, FLOATS))
    q = matrix(s, (batch, heads, length, width), dtype, 4)
    k = s.new(s.floats((batch, heads, keys, width), dtype), s.chance(0.2))
    v = s.new(s.floats((batch, heads, keys, width), dtype), s.chance(0.2))
    scores = s.add("MatMul", q, s.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = s.add("Mul", scores, s.constant(np.asarray(1 / math.sqrt(width), numpy_dtype(dtype))))
    if s.chance(0.5):
        scores = s.add("Add", scores, s.new(s.floats((batch, 1, length, keys), dtype)))
    weights = s.add("Softmax", scores, axis=-1)
    y = s.add("MatMul", weights, v)
    s.add("Reshape", s.add("Transpose", y, perm=[0, 2, 1, 3]), s.index([0, 0, -1]))


def operand(s: Sketch, rank: int, dtype: str) -> str | None:
    """Existing small value with a given number of dimensions."""
    return s.find(lambda v: v.ndim == rank and str(v.dtype) == dtype and 0 < v.size < 3000)


def einsum(s: Sketch) -> None:
    equation = s.choose(
        ("ij,jk->ik", "bij,bjk->bik", "bij,bkj->bik", "ij,ij->i", "ij->ji", "ij->j", "i,j->ij", "bhqd,bhkd->bhqk",
         "bqhd,bkhd->bhqk", "ij,jk,kl->il", "bij,jk->bik", "ijk->", "bi,bi->b")
    )  # fmt: skip
    extents: dict[str, int] = {}
    terms = equation.split("->")[0].split(",")
    s.types("Einsum")
    dtype = s.dtype_of(s.types("Einsum", 0, FLOATS))
    inputs = []
    for term in terms:
        found = operand(s, len(term), dtype)
        if found is not None and s.chance(0.7):
            shape = s.value(found).shape
            if all(extents.get(label, e) == e for label, e in zip(term, shape, strict=True)):
                extents.update(zip(term, shape, strict=True))
                inputs.append(found)
                continue
        for label in term:
            extents.setdefault(label, s.choose((1, 2, 3, 5, 8, 13, 16)))
        inputs.append(s.new(s.floats([extents[label] for label in term], dtype)))
    if math.prod(extents.values()) > 300_000:
        raise Rejected("a large contraction")
    s.add("Einsum", *inputs, equation=equation)


def recurrent(s: Sketch) -> None:
    op = s.choose(tuple(GATES))
    direction = s.choose((None, None, "reverse", "bidirectional"))
    count, hidden = (2 if direction == "bidirectional" else 1), s.choose((1, 3, 5, 8, 16, 17))
    dtype = "float32" if s.chance(0.9) else "float64"
    x = s.find(lambda v: v.ndim == 3 and str(v.dtype) == dtype and 0 < v.shape[0] <= 6 and 0 < v.shape[2] <= 64)
    if x is None:
        shape = (s.between(1, 5), s.choose((1, 2, 3, 8)), s.choose((1, 4, 8, 13)))
        x = s.new(s.floats(shape, dtype), False)
    _, batch, width = s.value(x).shape
    rows = GATES[op] * hidden
    weights = [s.new(s.floats((count, rows, n), dtype, -0.7, 0.7), s.chance(0.9)) for n in (width, hidden)]
    extra = [s.new(s.floats((count, 2 * rows), dtype), s.chance(0.9)) if s.chance(0.7) else ""]
    if s.chance(0.4):
        extra += ["", s.new(s.floats((count, batch, hidden), dtype), s.chance(0.3))]
        if op == "LSTM" and s.chance(0.7):
            extra.append(s.new(s.floats((count, batch, hidden), dtype), s.chance(0.3)))
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attrs["linear_before_reset"] = s.choose((None, 1))
    if op == "RNN" and s.chance(0.5):
        attrs["activations"] = [s.choose(("Tanh", "Relu", "Sigmoid"))] * count
    s.add_many(s.between(1, 3 if op == "LSTM" else 2), op, x, *weights, *extra, **attrs)


DRAWS: Mapping[str, Draw] = {
    "matmul": matmul, "matmul2": matmul, "gemm": gemm, "attention": attention, "einsum": einsum,
}  # fmt: skip
RECURRENT_DRAWS: Mapping[str, Draw] = {"recurrent": recurrent}
