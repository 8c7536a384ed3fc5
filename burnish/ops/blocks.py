"""Products with weights of few bits: blocks of the depth have a scale and a zero point, words of 32 bits hold numbers.

A word holds numbers of one column, one behind the other along the depth: of 4 bits those of steps 0 to 3 are the low
halves of its four bytes, those of steps 4 to 7 the high ones. So a shift and a mask make of a register of words four
unsigned bytes a column, which an instruction multiplies with four bytes of the other factor
(:mod:`burnish.ops.byte_words`). That one is rounded in each block to a whole number of steps, of one byte or of three:
signed digits to the base 256, of which each is multiplied alone. Three hold what float32 holds of the largest number of
a block, and sums of integers are exact, so that the product is as near as one of float32 numbers.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from burnish.loops.expr import BYTE_DOT, FLOATS, Const, Expr, Var, cast, math, maximum
from burnish.loops.tensor import Tensor, compute, reduce_axis
from burnish.loops.tensor import max as max_over
from burnish.loops.tensor import sum as sum_over
from burnish.ops.byte_words import BYTES
from burnish.ops.operator import declare, internal, operator, require, require_input

WORD = 32  # bits
LEAST = 1e-30  # blocks of numbers that are nearer to zero count as zeros
LARGEST = 127  # of the first digit
BITS = (2, 4, 8)


def pack_words(integers: np.ndarray, bits: int) -> np.ndarray:
    """Integers [K, N], from 0 on, of ``bits`` bits, as words [K / (32 / bits), N]; K is a multiple of 32 / bits."""
    depth, columns = integers.shape
    groups = 8 // bits
    parts = integers.astype(np.uint32).reshape(depth // (BYTES * groups), groups, BYTES, columns)
    shifts = bits * np.arange(groups)[:, None] + 8 * np.arange(BYTES)[None, :]
    words = np.zeros((len(parts), columns), np.uint32)
    for g, t in np.ndindex(groups, BYTES):
        words |= parts[:, g, t] << np.uint32(shifts[g, t])
    return words.view(np.int32)


@operator
def block_dequantize(
    name: str, w: Tensor, scale: Tensor, zero: Tensor, *, bits: int, block: int, axis: int = 0, bytewise: bool = False
) -> Tensor:
    """``(w - zero) * scale``: ``block`` successive elements of ``w`` along ``axis`` have one scale and zero point.

    ``w`` is a matrix of uint8 or int8 of which ``bits`` bits are used. ``bytewise``: products with the result may round
    their other factor to bytes, with a scale in each block.
    """
    require_input(w, "w", 2, "[K, N]", dtype=("uint8", "int8"))
    wanted = tuple(-(-extent // block) if d == axis else extent for d, extent in enumerate(w.shape))
    for what, t in (("scale", scale), ("zero", zero)):
        ok = t.shape == wanted and t.dtype == scale.dtype and t.dtype in FLOATS
        require(ok, f"input '{what}'", f"{t.dtype}{list(t.shape)}", f"floats {list(wanted)}")
    require(bits in BITS and axis in (0, 1), "attributes", f"bits {bits}, axis {axis}", "2, 4, 8; 0, 1")
    del bytewise

    def element(i: Var, j: Var) -> Expr:
        at = (i // block, j) if axis == 0 else (i, j // block)
        return (cast(scale.dtype, cast("int32", w[i, j])) - zero[at]) * scale[at]

    return compute(w.shape, element, name)


def _digits(value: Expr, count: int, at: Expr) -> Expr:
    """Digit number ``at`` of an int32, of ``count`` signed ones to the base 256, the highest first: in its low byte."""
    middle = Const(sum(128 << 8 * low for low in range(count - 1)), "int32")
    moved = math("bitxor", value + middle, middle)  # the low ones from -128 to 127, in two's complement
    shifted = math("shr", moved, cast("int32", (count - 1 - at) * 8))
    return math("bitand", shifted, Const(255, "int32"))


@declare(layout_affinity=-4.0, weight_channel=-1)
@operator
def block_matmul(
    name: str, x: Tensor, words: Tensor, scale: Tensor, zero: Tensor, *, bits: int, block: int, digits: int = 3
) -> Tensor:
    """``x`` [..., K] times a matrix [K, N] of which ``words`` are :func:`pack_words`.

    ``scale`` and ``zero`` are [K / block, N]; one zero point for all is [1, 1]. ``digits``: bytes to which ``x`` is
    rounded in each block. Stages: ``name.most``, the greatest magnitude of each block of ``x``, ``name.bytes`` [digit,
    ..., K / 4], their ``name.sums`` [digit, ..., block], ``name.dots`` [..., digit, block, n], and ``name``.
    """
    require_input(x, "x", dtype=("float32",))
    require_input(words, "words", 2, "[K / (32 / bits), N]", dtype=("int32",))
    *lead, depth = x.shape
    columns, groups = words.shape[1], 8 // bits
    blocks, steps = depth // block, block * bits // WORD  # words of a block
    require(bits in BITS and digits in (1, 3), "attributes", f"bits {bits}, digits {digits}", "2, 4, 8; 1, 3")
    whole = block * bits % WORD == 0 and depth % block == 0 and words.shape[0] == blocks * steps
    require(whole, "input 'words'", f"shape {list(words.shape)}", f"words of whole blocks of {depth} rows")
    require(scale.shape == (blocks, columns), "input 'scale'", f"shape {list(scale.shape)}", f"{[blocks, columns]}")
    ok = zero.shape in ((1, 1), scale.shape)
    require(ok, "input 'zero'", f"shape {list(zero.shape)}", f"[1, 1] or {[blocks, columns]}")
    limit = LARGEST << 8 * (digits - 1)

    def most_of(*i: Var) -> Expr:
        k = reduce_axis(block, "k")
        return max_over(math("abs", x[(*i[:-1], i[-1] * block + k.var)]), k)

    most = compute((*lead, blocks), most_of, f"{name}.most")

    def unit(*i: Expr) -> Expr:
        return maximum(most[i], LEAST) * (1.0 / limit)

    def word_of(*i: Var) -> Expr:
        d, *row, word = i

        def byte(at: int) -> Expr:
            whole = math("round", x[(*row, word * BYTES + at)] / unit(*row, word * BYTES // block))
            value = _digits(cast("int32", whole), digits, d)
            return math("shl", value, Const(8 * at, "int32")) if at else value

        return reduce(lambda a, b: math("bitor", a, b), [byte(at) for at in range(BYTES)])

    bytes_ = compute((digits, *lead, depth // BYTES), word_of, f"{name}.bytes")

    def sum_of(*i: Var) -> Expr:
        w = reduce_axis(block // BYTES, "w")
        word = bytes_[(*i[:-1], i[-1] * (block // BYTES) + w.var)]
        return sum_over(math(BYTE_DOT, Const(0x01010101, "int32"), word), w)

    sums = compute((digits, *lead, blocks), sum_of, f"{name}.sums")

    def dot_of(*i: Var) -> Expr:
        *row, d, b, n = i
        q, g = reduce_axis(steps, "q"), reduce_axis(groups, "g")
        numbers: Expr = words[b * steps + q.var, n]
        if groups > 1:
            mask = Const(0x01010101 * ((1 << bits) - 1), "int32")
            numbers = math("bitand", math("shr", numbers, cast("int32", g.var * bits)), mask)
        other = bytes_[(d, *row, (b * steps + q.var) * groups + g.var)]
        return sum_over(math(BYTE_DOT, numbers, other), (q, g))

    dots = compute((*lead, digits, blocks, columns), dot_of, f"{name}.dots")
    single = zero.shape == (1, 1)

    def element(*i: Var) -> Expr:
        *row, n = i
        b = reduce_axis(blocks, "b")
        offset = cast("float32", zero[0, 0] if single else zero[b.var, n])
        total: Expr | None = None
        for d in range(digits):
            own = cast("float32", dots[(*row, d, b.var, n)]) - offset * cast("float32", sums[(d, *row, b.var)])
            total = own if total is None else total * 256.0 + own
        assert total is not None
        return sum_over(scale[b.var, n] * (total * unit(*row, b.var)), b)

    return compute((*lead, columns), element, name)


OPERATORS = internal(block_dequantize, block_matmul)
