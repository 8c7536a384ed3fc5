"""Eight characters at a time, as one 64-bit word: how many of them are digits, and the number they make."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

WIDTH = 8  # bytes that may be read after the end of a text
TENS = np.array([10**power for power in range(WIDTH + 1)], np.uint64)


@intrinsic
def word_at(_context: Any, text: Any, index: Any) -> Any:
    """``word_at(text, index)`` is the 8 bytes from ``text.data[index]`` on, the first of them lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(address, align=1)

    return types.uint64(text, index), generate


@intrinsic
def trailing_zeros(_context: Any, word: Any) -> Any:
    """The number of zeros below the lowest bit that is set; 64 if none is."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@njit(cache=True, nogil=True)
def leading_digits(text: Any, at: Any) -> Any:
    """How many of the 8 characters from a position on are digits, up to the first that is none; and their number.

    A digit's byte is 0 … 9 once 0x30 is taken off, and then adding 6 does not reach its upper half; a carry out of
    another byte changes only what comes after it. Neighbours are then joined in pairs, fours and eights.
    """
    word = word_at(text, at) ^ np.uint64(0x3030303030303030)
    others = ((word + np.uint64(0x0606060606060606)) | word) & np.uint64(0xF0F0F0F0F0F0F0F0)
    count = trailing_zeros(others) >> np.uint64(3)
    if count == np.uint64(0):
        return count, count
    word <<= np.uint64(64) - (count << np.uint64(3))  # zeros before the digits
    word = word * np.uint64(10) + (word >> np.uint64(8))
    low = (word & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    high = ((word >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return count, ((low + high) & np.uint64(0xFFFFFFFFFFFFFFFF)) >> np.uint64(32)
