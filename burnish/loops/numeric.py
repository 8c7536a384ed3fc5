"""NumPy's counterparts of the expression language: dtypes, operators, element-wise functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import ml_dtypes
import numpy as np

from burnish.loops.expr import FLOATS, ITEM_BYTES

_erf = np.frompyfunc(erf, 1, 1)


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of a Burnish dtype; bfloat16 is that of ``ml_dtypes``."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def convert(value: np.ndarray, source: str, target: str, as_dtype: np.dtype) -> np.ndarray:
    """``value`` of dtype ``source`` as ``target``, held in ``as_dtype``: truncated to integers, wrapped, ``!= 0``."""
    if target == "bool":
        return np.not_equal(value, 0)
    if source in FLOATS and target not in FLOATS and ITEM_BYTES[target] < 8:
        value = np.asarray(value).astype("int64")  # a direct conversion to a narrow or unsigned type is undefined in C
    return np.asarray(value).astype(as_dtype)


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide, "%": np.remainder,
    "min": np.minimum, "max": np.maximum, "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal,
    ">": np.greater, ">=": np.greater_equal, "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip
REDUCERS: Mapping[str, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "erf": lambda x: np.asarray(_erf(np.asarray(x, "float64"))).astype(np.asarray(x).dtype),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "isnan": np.isnan,
    "pow": np.power,
}
