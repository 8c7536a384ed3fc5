"""Products and convolutions of quantized operands: exact sums of integers, by float32 where that holds every sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from burnish.frontend.onnx.context import Context

EXACT = 1 << 24  # integers below are all float32 numbers
MOST = {"uint8": 255, "int8": 128}  # magnitudes


def is_zero(c: Context, zero_point: str) -> bool:
    """Whether a zero point is not given, or a constant of zeros."""
    value = c.builder.constants.get(zero_point) if zero_point else None
    return not zero_point or (value is not None and not value.any())


def integer_matmul(c: Context, a: str, b: str, a_zero: str, b_zero: str) -> str:
    """``(a - a_zero) (b - b_zero)`` in int32; zero points are one number, or one a row of a, or one a column of b.

    The product is that of the operands as they are: what zero points add to it are sums of rows and columns.
    """
    product = _product(c, a, b)
    wide_a, wide_b = c.cast(a, "int32"), c.cast(b, "int32")
    depth = c.shape(a)[-1]
    first = "" if is_zero(c, a_zero) else c.cast(row_numbers(c, a_zero, a), "int32")
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
    """A zero point of the rows of ``a``: a number, or a column of them."""
    if one(c, zero):
        return c.reshape(zero, ())
    return c.reshape(zero, (*c.shape(zero), 1)) if c.rank(zero) == 1 and c.rank(a) > 1 else zero


def _product(c: Context, a: str, b: str) -> str:
    """``a b`` in int32: of 8-bit matrices as float32 products over parts of the depth that no sum outgrows."""
    if c.dtype(a) not in MOST or c.dtype(b) not in MOST or c.rank(a) < 2 or c.rank(b) < 2:
        return c.add("matmul", a, b)
    depth, known = c.shape(a)[-1], c.builder.constants.get(b)
    part = (EXACT - 1) // (MOST[c.dtype(a)] * MOST[c.dtype(b)])
    if known is not None and known.size:
        greatest = np.abs(known.astype(np.int64)).sum(-2).max()
        part = depth if greatest * MOST[c.dtype(a)] < EXACT else part
    left = c.cast(a, "float32")
    right = c.cast(b, "float32") if known is None else c.constant(known, "float32")
    total = ""
    for start in range(0, max(depth, 1), max(part, 1)):
        stop = min(start + part, depth)
        whole = stop - start == depth
        x = left if whole else c.slice(left, c.rank(a) - 1, start, stop)
        y = right if whole else c.slice(right, c.rank(b) - 2, start, stop)
        product = c.cast(c.add("matmul", x, y), "int32")
        total = c.add("add", total, product) if total else product
    return total


# --- convolutions -----------------------------------------------------------------------------------------------------

MOST_TAPS = 49  # elements of a window: of each becomes a convolution of its own, whose sums no transform rounds


def tapwise(
    c: Context, x: str, weight: str, strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], groups: int
) -> str | None:
    """The convolution in int32 of an image and a constant weight, whole float32 numbers up to 255 in magnitude.

    One convolution of single elements for each tap of the window; their sums go to int32 before float32 rounds them.
    None where one tap's sum might be rounded, or the window has too many taps.
    """
    outputs, depth, *kernel = c.shape(weight)
    reach = 255 * np.abs(c.builder.constants[weight]).sum(1).max(0, initial=0)  # of each tap
    if kernel[0] * kernel[1] > MOST_TAPS or reach.max(initial=0) >= EXACT:
        return None
    image = c.add("pad", x, pads=(0, 0, *pads[:2], 0, 0, *pads[2:])) if any(pads) else x
    batch, channels, *sizes = c.shape(image)
    size = [(e - d * (k - 1) - 1) // s + 1 for e, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)]
    if min(size) < 1:
        return None
    total, part, held = "", "", 0.0
    for tap in np.ndindex(*kernel):
        starts = (0, 0, *(t * d for t, d in zip(tap, dilations, strict=True)))
        steps = (1, 1, *(s if n > 1 else 1 for s, n in zip(strides, size, strict=True)))
        seen = c.add("slice", image, starts=starts, extents=(batch, channels, *size), steps=steps)
        own = c.add("slice", weight, starts=(0, 0, *tap), extents=(outputs, depth, 1, 1))
        product = c.add("conv2d", seen, own, groups=groups)
        if part and held + reach[tap] >= EXACT:
            total, part, held = _summed(c, total, part), "", 0.0
        part, held = (c.add("add", part, product) if part else product), held + float(reach[tap])
    return _summed(c, total, part)


def _summed(c: Context, total: str, part: str) -> str:
    whole = c.cast(part, "int32")
    return c.add("add", total, whole) if total else whole
