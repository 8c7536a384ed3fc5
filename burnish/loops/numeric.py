"""NumPy's counterparts of the expression language: dtypes, operators, element-wise functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import numpy as np

from burnish.base.optional import optional
from burnish.loops.expr import BIT_COUNTS, BYTE_DOT, FLOATS, ITEM_BYTES, NARROW

ml_dtypes = optional("ml_dtypes", "runtime")  # a model without such numbers runs without it
_erf = np.frompyfunc(erf, 1, 1)


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of a Burnish dtype; bfloat16 and the narrow ones are those of ``ml_dtypes``."""
    return np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" or name in NARROW else np.dtype(name)


def convert(value: np.ndarray, source: str, target: str, as_dtype: np.dtype) -> np.ndarray:
    """``value`` of dtype ``source`` as ``target``, held in ``as_dtype``: integers wrapped, floats truncated to
    the nearest integer that there is, NaN to 0; ``!= 0``.
    """
    if target == "bool":
        return np.not_equal(value, 0)
    if source in FLOATS and target not in FLOATS and ITEM_BYTES[target] < 8:
        limits = np.iinfo(target)  # a direct conversion of what lies outside is undefined in C
        whole = np.asarray(value).astype("float64")
        value = np.clip(np.where(np.isnan(whole), 0.0, whole), limits.min, limits.max).astype("int64")
    return np.asarray(value).astype(as_dtype)


def overflows(value: np.ndarray, *operands: np.ndarray) -> bool:
    """Whether finite operands made a number that is infinite."""
    if str(value.dtype) not in FLOATS:
        return False
    finite = np.all([np.isfinite(np.broadcast_to(x, value.shape)) for x in operands], axis=0)
    return bool(np.any(finite & ~np.isfinite(value)))


def underflows(value: np.ndarray, *operands: np.ndarray) -> bool:
    """Whether a product of operands that have all their digits has lost some, or all: it is subnormal or zero."""
    if str(value.dtype) not in FLOATS:
        return False
    least = ml_dtypes.finfo(value.dtype).smallest_normal
    full = np.all([np.abs(np.broadcast_to(x, value.shape)) >= least for x in operands], axis=0)
    return bool(np.any(full & (np.abs(value) < least)))


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide, "%": np.remainder,
    "min": np.minimum, "max": np.maximum, "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal,
    ">": np.greater, ">=": np.greater_equal, "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip
REDUCERS: Mapping[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x) by powers that do not overflow."""
    power = np.exp(-np.abs(x))
    return np.where(np.less(x, 0), power, np.ones_like(power)) / (1 + power)


def _power(x: Any, y: Any) -> Any:
    """x^y; of integers modulo their width, where a negative y gives what 1 / x^-y truncates to, and 0 for x = 0."""
    if np.asarray(x).dtype.kind not in "iu":
        return np.power(x, y)
    square, exponent = np.broadcast_arrays(x, y)
    result = np.ones_like(square)
    remaining = np.maximum(exponent, 0)
    while remaining.any():
        result = np.where(remaining & 1, result * square, result)
        square, remaining = square * square, remaining >> 1
    odd, unit = np.bitwise_and(y, 1), np.equal(x, 1) | np.equal(np.negative(x), 1)
    inverse = np.where(unit, np.where(odd, x, np.multiply(x, x)), np.zeros_like(result))
    return np.where(np.less(y, 0), inverse, result)


def _shift(shift: np.ufunc, x: Any, y: Any, beyond: Any) -> Any:
    """``x`` shifted by ``y`` bits; ``beyond`` where these are the width or more, or less than 0."""
    x, y = np.asarray(x), np.asarray(y)
    inside = (y >= 0) & (y < 8 * x.dtype.itemsize)
    return np.where(inside, shift(x, np.where(inside, y, 0).astype(x.dtype)), np.asarray(beyond).astype(x.dtype))


def _byte_dot(x: Any, y: Any) -> Any:
    """The sums of the products of unsigned bytes of int32 ``x`` and signed bytes of int32 ``y``, four and four."""
    x, y = np.broadcast_arrays(np.asarray(x, np.int32), np.asarray(y, np.int32))
    left, right = (np.ascontiguousarray(v).reshape(*v.shape, 1) for v in (x, y))
    return np.einsum("...k,...k->...", left.view(np.uint8).astype(np.int32), right.view(np.int8).astype(np.int32))


def _bit_counts(x: Any, y: Any) -> Any:
    """The numbers of bits that halves of int32 ``x`` and ``y`` both have, side by side."""
    both = np.bitwise_and(np.asarray(x, np.int32), np.asarray(y, np.int32))
    low, high = (np.bitwise_count(both >> shift & 0xFFFF).astype(np.int32) for shift in (0, 16))
    return low | high << 16


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": lambda x: np.asarray(_erf(np.asarray(x, "float64"))).astype(np.asarray(x).dtype),
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "isnan": np.isnan,
    "pow": _power,
    "fmod": np.fmod,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    BYTE_DOT: _byte_dot,
    BIT_COUNTS: _bit_counts,
    "shl": lambda x, y: _shift(np.left_shift, x, y, 0),
    "shr": lambda x, y: _shift(np.right_shift, x, y, np.where(np.less(x, 0), -1, 0)),
}
