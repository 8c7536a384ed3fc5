"""Products of integers of few bits, bit by bit: AND of words of bits, and counts of what is left, in wider sums.

``sum(x w)`` of ``x = Σ 2^p x_p`` and ``w = Σ 2^q w_q`` is ``Σ 2^(p+q) sum(x_p w_q)``, and a product of bits is their
AND. An int32 word has two halves of 16 bits, each of one plane (bit of their numbers) of successive elements: 32
elements of one plane, or 16 of two. Counts of both halves are summed as two 16-bit numbers side by side, which become
one number, scaled by their planes, at the end (:mod:`burnish.graph.bit_products`).

Source: thesis-chen section 4.6.2 (bit-serial products), 4.3.3 (sums in progressively wider types).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from burnish.loops.expr import BIT_COUNTS, Const, Expr, Var, all_of, cast, math, select
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.convolution import convolve, first_channel, require_operands
from burnish.ops.operator import Ints, declare, differentiated, internal, normal_axis, operator, require, require_input

HALF = 16  # bits of half a word
MOST_BITS = 4
MOST_WORDS = ((1 << HALF) - 1) // HALF  # in a sum of counts, which half a word holds


def elements(planes: Ints) -> int:
    """Successive elements in a word of one plane or of two."""
    return HALF * (3 - len(planes))


def _int32(value: int) -> Const:
    return Const(value, "int32")


def _spread(element: Expr, planes: Ints) -> Expr:
    """The bits of an element, where they are in the word of which it is the first."""
    low = math("shr", element, _int32(planes[0])) if planes[0] else element
    if len(planes) == 1:
        return math("bitand", low, _int32(1))
    up = math("shl", low, _int32(HALF - (planes[1] - planes[0])))
    return math("bitand", math("bitor", low, up), _int32(1 << HALF | 1))


@operator
def bit_words(name: str, x: Tensor, *, axis: int, planes: Ints) -> Tensor:
    """int32 words of bits of successive elements of ``x``, uint8, along ``axis``; that of the first comes lowest.

    ``planes``: one, of 32 elements; or two, of 16 elements, the second not below the first, in the upper half. Bits
    beyond the end are zero.
    """
    require_input(x, "x", dtype=("uint8",))
    ok = len(planes) in (1, 2) and all(0 <= p < MOST_BITS for p in planes) and sorted(planes) == list(planes)
    require(ok, "attribute 'planes'", list(planes), f"one or two bits, rising, below {MOST_BITS}")
    axis = normal_axis(axis, len(x.shape))
    extent, length = x.shape[axis], elements(planes)
    words = -(-extent // length)

    def element(*i: Var) -> Expr:
        def bits(at: int) -> Expr:
            position = i[axis] * length + at
            value = _spread(cast("int32", x[(*i[:axis], position, *i[axis + 1 :])]), planes)
            if at and extent % length and at >= extent % length:
                value = select(all_of(position < extent), value, _int32(0))
            return math("shl", value, _int32(at)) if at else value

        return reduce(lambda a, b: math("bitor", a, b), [bits(at) for at in range(length)])

    return compute((*x.shape[:axis], words, *x.shape[axis + 1 :]), element, name)


def pack(value: np.ndarray, axis: int, planes: Ints) -> np.ndarray:
    """Words of a constant, as :func:`bit_words` makes them."""
    length = elements(planes)
    moved = np.moveaxis(value, axis, -1)
    padded = np.pad(moved, [(0, 0)] * (value.ndim - 1) + [(0, -value.shape[axis] % length)])
    runs = padded.reshape(*padded.shape[:-1], -1, length)
    halves = [runs >> p & 1 for p in planes]
    bits = np.packbits(np.concatenate(halves, -1), -1, bitorder="little")
    words = np.ascontiguousarray(bits).view("<i4")[..., 0].astype(np.int32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def _whole(total: Tensor, scales: Ints, name: str) -> Tensor:
    """Sums of counts, two side by side, as one number."""

    def element(*i: Var) -> Expr:
        low = math("bitand", total[i], _int32((1 << HALF) - 1))
        high = math("bitand", math("shr", total[i], _int32(HALF)), _int32((1 << HALF) - 1))
        if scales[0] == scales[1]:
            return (low + high) * _int32(scales[0])
        return low * _int32(scales[0]) + high * _int32(scales[1])

    return compute(total.shape, element, name)


def _counts(a: Expr, b: Expr) -> Expr:
    return math(BIT_COUNTS, a, b)


def _require_words(terms: int, scales: Ints) -> None:
    require(len(scales) == 2, "attribute 'scales'", list(scales), "two integers")
    require(terms <= MOST_WORDS, "input 'weight'", f"sums of {terms} words", f"at most {MOST_WORDS}")


@declare(layout_affinity=-4.0, weight_channel=-1)
@operator
def bit_matmul(name: str, a: Tensor, b: Tensor, *, scales: Ints) -> Tensor:
    """``scales`` times the bits that words of ``a`` [..., M, K] and ``b`` [K, N] both have, in each half, in int32."""
    require_input(a, "a", dtype=("int32",))
    require_input(b, "b", 2, "[K, N]", dtype=("int32",))
    require(len(a.shape) > 1, "input 'a'", f"shape {list(a.shape)}", "at least 2 dimensions")
    depth = a.shape[-1]
    require(b.shape[0] == depth, "input 'b'", f"shape {list(b.shape)}", f"[K, N] for {list(a.shape)}")
    _require_words(depth, scales)

    def element(*i: Var) -> Expr:
        k = reduce_axis(depth, "k")
        return sum_over(_counts(a[(*i[:-1], k.var)], b[k.var, i[-1]]), k)

    return _whole(compute((*a.shape[:-1], b.shape[-1]), element, f"{name}.sum"), scales, name)


@declare(layout_affinity=8.0, row_major="dense", weight_channel=0)
@operator
def bit_conv2d(
    name: str,
    x: Tensor,
    weight: Tensor,
    *,
    scales: Ints,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
) -> Tensor:
    """``scales`` times the bits that words of ``x`` [N, C, H, W] and ``weight`` [O, C / groups, KH, KW] both have.

    Of the lower halves, and of the upper ones, over windows, in int32; words are int32, of bits of channels. Padded
    with zeros.
    """
    require_operands(x, weight, strides, pads, dilations, groups, ("int32",))
    require_input(weight, "weight", dtype=("int32",))
    _require_words(weight.shape[1] * weight.shape[2] * weight.shape[3], scales)
    first = first_channel(weight, groups)
    total = convolve(f"{name}.sum", x, weight, None, strides, pads, dilations, first, _counts)
    return _whole(total, scales, name)


# --- what users call --------------------------------------------------------------------------------------------------


def _require_codes(x: Tensor, weight: Tensor, bits: int, weight_bits: int) -> None:
    require_input(x, "x", dtype=("uint8",))
    require_input(weight, "weight", dtype=("uint8",))
    for key, value in (("bits", bits), ("weight_bits", weight_bits)):
        require(1 <= value <= MOST_BITS, f"attribute '{key}'", value, f"1 to {MOST_BITS}")


def _product(bits: int, weight_bits: int, bipolar: bool) -> Callable[[Expr, Expr], Expr]:
    """The product in int32 of an activation's code and what a weight's code means."""

    def multiply(a: Expr, b: Expr) -> Expr:
        left, right = (math("bitand", cast("int32", e), _int32((1 << n) - 1)) for e, n in ((a, bits), (b, weight_bits)))
        return left * (right * _int32(2) - _int32((1 << weight_bits) - 1) if bipolar else right)

    return multiply


@differentiated("none")
@operator
def low_bit_conv2d(
    name: str,
    x: Tensor,
    weight: Tensor,
    *,
    bits: int = 2,
    weight_bits: int = 1,
    bipolar: bool = False,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Convolution in int32 of integers of ``bits`` bits, uint8 ``x`` [N, C, H, W], with weights of ``weight_bits``.

    ``weight`` [O, C / groups, KH, KW], uint8, are codes of as many bits: themselves, or if ``bipolar`` the odd numbers
    ``2 code - (2^bits - 1)``, of one bit -1 and 1. Higher bits of both do not count. Padded with zeros.
    """
    require_operands(x, weight, strides, pads, dilations, groups, ("uint8",))
    _require_codes(x, weight, bits, weight_bits)
    first, multiply = first_channel(weight, groups), _product(bits, weight_bits, bipolar)
    return convolve(name, x, weight, None, strides, pads, dilations, first, multiply)


@differentiated("none")
@operator
def low_bit_matmul(
    name: str, x: Tensor, weight: Tensor, *, bits: int = 2, weight_bits: int = 1, bipolar: bool = False
) -> Tensor:
    """Product in int32 of uint8 ``x`` [..., M, K], of ``bits`` bits, and ``weight`` [K, N], of ``weight_bits``.

    What codes mean is as of ``low_bit_conv2d``.
    """
    _require_codes(x, weight, bits, weight_bits)
    require(len(x.shape) > 1, "input 'x'", f"shape {list(x.shape)}", "at least 2 dimensions")
    require_input(weight, "weight", 2, "[K, N]")
    depth = x.shape[-1]
    require(weight.shape[0] == depth, "input 'weight'", f"shape {list(weight.shape)}", f"[K, N] for {list(x.shape)}")
    multiply = _product(bits, weight_bits, bipolar)

    def element(*i: Var) -> Expr:
        k = reduce_axis(depth, "k")
        return sum_over(multiply(x[(*i[:-1], k.var)], weight[k.var, i[-1]]), k)

    return compute((*x.shape[:-1], weight.shape[1]), element, name)


OPERATORS = (low_bit_conv2d, low_bit_matmul, *internal(bit_words, bit_matmul, bit_conv2d))
