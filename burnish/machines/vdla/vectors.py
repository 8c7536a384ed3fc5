"""The core's product of 16 x 16 as vector code for numba, whose own loops over 16 numbers stay scalar."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

LANES = 16
_BYTE, _WORD = ir.IntType(8), ir.IntType(32)


@intrinsic
def multiply16(typing: Any, acc: Any, wgt: Any, inp: Any, d: Any, w: Any, x: Any) -> Any:
    """``acc[d, i] += sum over k of wgt[w, k, i] * inp[x, k]``, of int32 [_, 16], int8 [_, 16, 16] and [_, 16]."""
    del typing
    return types.void(acc, wgt, inp, d, w, x), _generate


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """A vector of sums in a register, to which a row of weights times one input is added 16 times."""
    row, sums = ir.VectorType(_BYTE, LANES), ir.VectorType(_WORD, LANES)
    pointers = []
    for number, size in ((0, 4 * LANES), (1, LANES * LANES), (2, LANES)):
        array = context.make_array(signature.args[number])(context, builder, arguments[number])
        first = builder.bitcast(array.data, _BYTE.as_pointer())
        offset = builder.mul(arguments[3 + number], arguments[3 + number].type(size))
        pointers.append(builder.gep(first, [offset]))
    place = builder.bitcast(pointers[0], sums.as_pointer())
    total = builder.load(place, align=4)
    for k in range(LANES):
        weights = builder.bitcast(builder.gep(pointers[1], [ir.IntType(64)(LANES * k)]), row.as_pointer())
        wide = builder.sext(builder.load(weights, align=1), sums)
        one = builder.sext(builder.load(builder.gep(pointers[2], [ir.IntType(64)(k)])), _WORD)
        undefined = ir.Constant(sums, ir.Undefined)
        spread = builder.insert_element(undefined, one, _WORD(0))
        lanes = ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES)
        total = builder.add(total, builder.mul(wide, builder.shuffle_vector(spread, undefined, lanes)))
    builder.store(total, place, align=4)
    return context.get_dummy_value()
