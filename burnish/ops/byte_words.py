"""Products of 8-bit integers by words: four bytes along the depth are one int32, which one instruction multiplies.

The left operand's bytes are unsigned, the right one's signed, as AVX-512 VNNI's ``vpdpbusd`` takes them. Bytes of the
other sign are moved by 128, ``x + 128`` or ``x - 128``, which inverts their highest bit; what that adds to a sum of
products is 128 times the sum of the other operand's bytes (:mod:`burnish.graph.byte_products`).
"""

from __future__ import annotations

from functools import reduce

from burnish.loops.expr import BYTE_DOT, Const, Expr, Var, all_of, cast, math, select
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import sum as sum_over
from burnish.ops.convolution import convolve, first_channel, require_operands
from burnish.ops.operator import Ints, declare, internal, normal_axis, operator, require, require_input

BYTES = 4  # of a word


@declare(packs=True)
@operator
def byte_words(name: str, x: Tensor, *, axis: int, flip: bool = False) -> Tensor:
    """int32 words of four successive elements of ``x``, uint8 or int8, along ``axis``; the lowest byte comes first.

    ``flip``: with the highest bit of every byte inverted. Bytes beyond the end are zero, flipped or not.
    """
    require_input(x, "x", dtype=("uint8", "int8"))
    axis = normal_axis(axis, len(x.shape))
    extent = x.shape[axis]
    words = -(-extent // BYTES)

    def element(*i: Var) -> Expr:
        def byte(at: int) -> Expr:
            position = i[axis] * BYTES + at
            value = math("bitand", cast("int32", x[(*i[:axis], position, *i[axis + 1 :])]), Const(255, "int32"))
            if flip:
                value = math("bitxor", value, Const(128, "int32"))
            if at and extent % BYTES and at >= extent % BYTES:
                value = select(all_of(position < extent), value, Const(0, "int32"))
            return math("shl", value, Const(8 * at, "int32")) if at else value

        return reduce(lambda a, b: math("bitor", a, b), [byte(at) for at in range(BYTES)])

    return compute((*x.shape[:axis], words, *x.shape[axis + 1 :]), element, name)


@declare(layout_affinity=-4.0, weight_channel=-1)
@operator
def byte_matmul(name: str, a: Tensor, b: Tensor) -> Tensor:
    """``a`` [..., M, K] times ``b`` [..., K, N], int32 words of unsigned bytes and of signed ones; sums in int32.

    Leading dimensions are the same, or ``b`` has none.
    """
    require_input(a, "a", dtype=("int32",))
    require_input(b, "b", dtype=("int32",))
    require(len(a.shape) > 1, "input 'a'", f"shape {list(a.shape)}", "at least 2 dimensions")
    ok = len(b.shape) > 1 and b.shape[-2] == a.shape[-1] and b.shape[:-2] in ((), a.shape[:-2])
    require(ok, "input 'b'", f"shape {list(b.shape)}", f"[K, N] or [..., K, N] for {list(a.shape)}")
    depth = a.shape[-1]

    def element(*i: Var) -> Expr:
        k = reduce_axis(depth, "k")
        batch = i[:-2] if len(b.shape) > 2 else ()
        return sum_over(math(BYTE_DOT, a[(*i[:-1], k.var)], b[(*batch, k.var, i[-1])]), k)

    return compute((*a.shape[:-1], b.shape[-1]), element, name)


@declare(layout_affinity=8.0, row_major="dense", weight_channel=0)
@operator
def byte_conv2d(
    name: str,
    x: Tensor,
    weight: Tensor,
    *,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Convolution in int32 of ``x`` [N, C, H, W] with ``weight`` [O, C / groups, KH, KW].

    Both hold words of four channels: unsigned bytes of the image, signed ones of the weight. Padded with zeros.
    """
    require_operands(x, weight, strides, pads, dilations, groups, ("int32",))
    require_input(weight, "weight", dtype=("int32",))
    first = first_channel(weight, groups)
    return convolve(name, x, weight, None, strides, pads, dilations, first, lambda a, b: math(BYTE_DOT, a, b))


OPERATORS = internal(byte_words, byte_matmul, byte_conv2d)
