"""Types of arrays: shape and dtype as one object for each, and NumPy's rules of promotion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from burnish.array.memory import Recycler, recycler
from burnish.errors import InputError
from burnish.graph.graph import TensorType
from burnish.loops.expr import DTYPES
from burnish.loops.numeric import numpy_dtype

Shape = tuple[int, ...]


class ArrayType:
    """A shape and a dtype. There is one object for each, so that types are compared and looked up by identity."""

    __slots__ = ("dtype", "nbytes", "numpy", "recycler", "shape", "tensor")

    def __init__(self, shape: Shape, dtype: str) -> None:
        self.tensor = TensorType(shape, dtype)
        self.shape, self.dtype, self.numpy = shape, dtype, numpy_dtype(dtype)
        self.nbytes = self.tensor.nbytes
        self.recycler: Recycler = recycler(self.nbytes)

    def __repr__(self) -> str:
        return str(self.tensor)


@cache
def array_type(shape: Shape, dtype: str) -> ArrayType:
    """The type of this shape and dtype."""
    return ArrayType(shape, dtype)


_NAMES = {numpy_dtype(name): name for name in DTYPES}


def dtype_name(dtype: Any) -> str:
    """Burnish's name of what NumPy takes as a dtype, or of a name. Raises InputError."""
    try:
        found = numpy_dtype(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    except (TypeError, AttributeError) as error:
        raise InputError(f"dtype: found {dtype!r}; allowed: {', '.join(DTYPES)}") from error
    name = _NAMES.get(found)
    if name is None:
        raise InputError(f"dtype: found {found}; allowed: {', '.join(DTYPES)}")
    return name


def promoted(operands: Sequence[str | bool | int | float]) -> str:
    """Type promotion of operands: NumPy's, where numbers of Python take the dtype of the arrays.

    bfloat16 beside numbers stays what it is; with other floats it becomes float32, or float64. Raises InputError.
    """
    first = operands[0]
    if isinstance(first, str) and all(o == first for o in operands):
        return first
    names = [o for o in operands if isinstance(o, str)]
    if "bfloat16" in names:
        operands = [np.dtype("float32") if o == "bfloat16" else o for o in operands]  # type: ignore[misc]
        others = [n for n in names if n != "bfloat16" and n.startswith("float")]
        if not others:
            return "bfloat16"
    given = [numpy_dtype(o) if isinstance(o, str) else o for o in operands]
    try:
        return dtype_name(np.result_type(*given))
    except (TypeError, OverflowError) as error:
        raise InputError(f"operands of dtypes {', '.join(map(str, operands))}: {error}") from error


def fits(source: str, target: str) -> bool:
    """Whether results of one dtype may be written in place to an array of another: NumPy's "same kind"."""
    if "bfloat16" in (source, target):
        pair = [np.dtype("float32") if n == "bfloat16" else numpy_dtype(n) for n in (source, target)]
        return np.can_cast(pair[0], pair[1], "same_kind")
    return np.can_cast(numpy_dtype(source), numpy_dtype(target), "same_kind")


def is_float(dtype: str) -> bool:
    """Whether it holds floating-point numbers."""
    return dtype == "bfloat16" or np.issubdtype(numpy_dtype(dtype), np.floating)
