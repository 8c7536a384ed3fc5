"""Products of quantized matrices: sums of integers in int32, and what zero points add to them."""

from __future__ import annotations

import numpy as np

from burnish.frontend.onnx.context import OnnxContext
from burnish.graph.integer_products import Weight


def is_zero(c: OnnxContext, zero_point: str) -> bool:
    """Whether a zero point is not given, or a constant of zeros."""
    value = c.builder.constants.get(zero_point) if zero_point else None
    return not zero_point or (value is not None and not value.any())


def integer_matmul(c: OnnxContext, a: str, b: str, a_zero: str, b_zero: str) -> str:
    """``(a - a_zero) (b - b_zero)`` in int32; zero points are one number, or one a row of a, or one a column of b.

    The product is that of the operands as they are: what zero points add to it are sums of rows and columns. A constant
    matrix is bytes without its zero point, and a number for each column where these do not hold it.
    """
    weight = constant_weight(c, b, b_zero, -1) if c.rank(b) == 2 else None
    if weight is not None:
        b, b_zero = (
            c.constant(weight.integers),
            c.constant(-weight.moved.astype(np.int32)) if weight.moved.any() else "",
        )
    product = c.add("matmul", a, b)
    wide_a, wide_b = c.cast(a, "int32"), c.cast(b, "int32")
    depth = c.shape(a)[-1]
    first = "" if is_zero(c, a_zero) else c.cast(row_numbers(c, a_zero, a), "int32")
    if b_zero and not one(c, b_zero):
        c.require_onto(b_zero, "b_zero_point", (*c.shape(b)[:-2], 1, c.shape(b)[-1])[-c.rank(b) :])
    second = "" if is_zero(c, b_zero) else c.cast(c.reshape(b_zero, ()) if one(c, b_zero) else b_zero, "int32")
    vector_a, vector_b = c.rank(a) == 1, c.rank(b) == 1
    if first:
        columns = c.add("reduce_sum", wide_b, axes=(0 if vector_b else -2,), keepdims=not (vector_b or vector_a))
        product = c.add("sub", product, c.add("mul", first, columns))
    if second:
        rows = c.add("reduce_sum", wide_a, axes=(-1,), keepdims=not (vector_a or vector_b))
        product = c.add("sub", product, c.add("mul", rows, second))
    if first and second:
        both = c.add("mul", first, second)
        product = c.add("add", product, c.add("mul", both, c.constant(depth, "int32")))
    return product


def one(c: OnnxContext, parameter: str) -> bool:
    """Whether a parameter is a single number: for the whole tensor, not for each row or column."""
    return all(e == 1 for e in c.shape(parameter))


def constant_weight(c: OnnxContext, weight: str, zero: str, axis: int) -> Weight | None:
    """Constant bytes less a constant zero point, of one number or of one for each output channel along ``axis``."""
    known, point = c.builder.constants.get(weight), c.builder.constants.get(zero)
    if known is None or known.dtype not in (np.int8, np.uint8) or not (is_zero(c, zero) or point is not None):
        return None
    if point is None or not point.any():
        return Weight.of(known, 0, axis)
    shape = [-1 if d == axis % known.ndim else 1 for d in range(known.ndim)]
    return Weight.of(known, point.astype(np.int64).reshape(shape), axis)


def row_numbers(c: OnnxContext, zero: str, a: str) -> str:
    """A scale or zero point of the rows of ``a``: a number, or a column of them."""
    if one(c, zero):
        return c.reshape(zero, ())
    column = c.reshape(zero, (*c.shape(zero), 1)) if c.rank(zero) == 1 and c.rank(a) > 1 else zero
    c.require_onto(column, "scale or zero point of rows", (*c.shape(a)[:-1], 1))
    return column
