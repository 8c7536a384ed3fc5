"""Products of quantized matrices: sums of integers in int32, and what zero points add to them."""

from __future__ import annotations

from burnish.frontend.onnx.context import Context


def is_zero(c: Context, zero_point: str) -> bool:
    """Whether a zero point is not given, or a constant of zeros."""
    value = c.builder.constants.get(zero_point) if zero_point else None
    return not zero_point or (value is not None and not value.any())


def integer_matmul(c: Context, a: str, b: str, a_zero: str, b_zero: str) -> str:
    """``(a - a_zero) (b - b_zero)`` in int32; zero points are one number, or one a row of a, or one a column of b.

    The product is that of the operands as they are: what zero points add to it are sums of rows and columns.
    """
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


def one(c: Context, parameter: str) -> bool:
    """Whether a parameter is a single number: for the whole tensor, not for each row or column."""
    return all(e == 1 for e in c.shape(parameter))


def row_numbers(c: Context, zero: str, a: str) -> str:
    """A scale or zero point of the rows of ``a``: a number, or a column of them."""
    if one(c, zero):
        return c.reshape(zero, ())
    column = c.reshape(zero, (*c.shape(zero), 1)) if c.rank(zero) == 1 and c.rank(a) > 1 else zero
    c.require_onto(column, "scale or zero point of rows", (*c.shape(a)[:-1], 1))
    return column
