"""The exponential function in float32, by additions and multiplications: the same bits everywhere."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from burnish.boost.kernels import inlined

LOG2E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(0.693359375)  # 9 bits: its products with whole numbers up to 2^15 are exact
LN2_LOW = np.float32(-2.12194440e-4)
ROUND = np.float32(12582912.0)  # 1.5 × 2^23: adding it rounds to a whole number, left in the low bits
LEAST, LARGEST = np.float32(-87.0), np.float32(88.0)


@intrinsic
def _power_of_two(typing_context: Any, shifted: Any) -> Any:
    """2^n of ``shifted = 1.5 × 2^23 + n``: n lies in the low bits, and moves to the exponent. -126 <= n <= 127."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.shl(builder.bitcast(arguments[0], word), ir.Constant(word, 23))
        return builder.bitcast(builder.add(bits, ir.Constant(word, 127 << 23)), ir.FloatType())

    return types.float32(types.float32), generate


@intrinsic
def round20(typing_context: Any, x: Any) -> Any:
    """x to 20 significant bits, so that its product with a whole number of up to 16 is exact."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(32)
        bits = builder.add(builder.bitcast(arguments[0], word), ir.Constant(word, 8))
        return builder.bitcast(builder.and_(bits, ir.Constant(word, ~15)), ir.FloatType())

    return types.float32(types.float32), generate


@inlined
def exp32(x: Any) -> Any:
    """e^x to 2 units in the last place; x is first limited to [-87, 88]. NaN gives e^-87 or e^88.

    x = n ln 2 + r with whole n and \\|r\\| <= (ln 2) / 2; e^r by Taylor's polynomial of degree 7.
    """
    x = x if x > LEAST else LEAST
    x = x if x < LARGEST else LARGEST
    shifted = x * LOG2E + ROUND
    n = shifted - ROUND
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = np.float32(1.0 / 5040.0)
    p = p * r + np.float32(1.0 / 720.0)
    p = p * r + np.float32(1.0 / 120.0)
    p = p * r + np.float32(1.0 / 24.0)
    p = p * r + np.float32(1.0 / 6.0)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1.0)
    p = p * r + np.float32(1.0)
    return p * _power_of_two(shifted)


@inlined
def sigmoid32(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return np.float32(1.0) / (np.float32(1.0) + exp32(-x))
