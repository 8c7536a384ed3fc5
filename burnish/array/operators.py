"""Operators of arrays and symbols: which of the registry NumPy's names and Python's signs stand for, at which dtypes.

These are the only operators that anything here asks for by name; all others are found in the registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.array.types import is_float, promoted
from burnish.loops.expr import INTS

Number = bool | int | float


@dataclass(frozen=True)
class Sign:
    """A sign of Python: ``method`` without underscores, the operator for floats, for integers and for bool if others.

    ``divides``: integers become float64, as NumPy's true division makes them.
    """

    method: str
    operator: str
    integers: str = ""
    booleans: str = ""
    reflected: bool = True
    in_place: bool = True
    divides: bool = False

    def named(self, dtype: str) -> str:
        """The operator for operands of a dtype."""
        if dtype == "bool" and self.booleans:
            return self.booleans
        return self.integers if self.integers and dtype in INTS else self.operator


SIGNS = (
    Sign("add", "add", booleans="logical_or"),
    Sign("sub", "sub"),
    Sign("mul", "mul", booleans="logical_and"),
    Sign("truediv", "div", divides=True),
    Sign("floordiv", "floor_div"),
    Sign("mod", "mod"),
    Sign("pow", "pow"),
    Sign("matmul", "matmul"),
    Sign("and", "bitwise_and", booleans="logical_and"),
    Sign("or", "bitwise_or", booleans="logical_or"),
    Sign("xor", "bitwise_xor", booleans="logical_xor"),
    Sign("lshift", "shift_left"),
    Sign("rshift", "shift_right"),
    Sign("lt", "less", reflected=False, in_place=False),
    Sign("le", "less_equal", reflected=False, in_place=False),
    Sign("gt", "greater", reflected=False, in_place=False),
    Sign("ge", "greater_equal", reflected=False, in_place=False),
    Sign("eq", "equal", reflected=False, in_place=False),
    Sign("ne", "not_equal", reflected=False, in_place=False),
)
NEGATIVE, ABSOLUTE, NOT, COPY, CAST = "neg", "abs", "logical_not", "identity", "cast"
RESHAPE, TRANSPOSE, EXPAND, MULTIPLY, POWER = "reshape", "transpose", "expand", "mul", "pow"
UNIFORM, NORMAL = "random_uniform", "random_normal"
POWERS: Mapping[float, str] = {0.5: "sqrt", -1.0: "reciprocal", -0.5: "rsqrt"}  # of floats

# NumPy's names of operators. Reductions take ``axis``, an integer or several, and drop what they reduce.
ALIASES: Mapping[str, str] = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "floor_divide": "floor_div",
    "power": "pow", "remainder": "mod", "negative": "neg", "absolute": "abs", "dot": "matmul",
    "concatenate": "concat", "broadcast_to": "expand", "conv": "conv2d", "take": "gather",
}  # fmt: skip
REDUCTIONS: Mapping[str, str] = {
    "sum": "reduce_sum", "prod": "reduce_prod", "max": "reduce_max", "min": "reduce_min", "mean": "reduce_mean",
}  # fmt: skip
POSITIONS = ("argmax", "argmin")
METHODS = (*REDUCTIONS, *POSITIONS, "dot", "clip", "cumsum", "exp", "log", "sqrt", "tanh", "relu", "sigmoid", "softmax")
_SAME_DTYPE = {sign.operator for sign in SIGNS} | {"minimum", "maximum", "where", "concat"}
_DIVIDES = {sign.operator for sign in SIGNS if sign.divides}
_BOOLEAN = {sign.operator: sign for sign in SIGNS if sign.booleans}


def common_dtype(operator: str, dtypes: Sequence[str | Number]) -> str | None:
    """The dtype to which the operands of an operator are converted; None if they stay what they are.

    ``dtypes``: of arrays; of a number of Python, the number. Raises InputError.
    """
    if operator not in _SAME_DTYPE:
        return None
    if operator == "where":
        dtypes = dtypes[1:]
    dtype = promoted(dtypes)
    return "float64" if operator in _DIVIDES and not is_float(dtype) else dtype


def for_dtype(operator: str, dtype: str | None) -> str:
    """The operator that a sign's stands for at a dtype: of bool, addition is "or"."""
    return _BOOLEAN[operator].named(dtype) if dtype is not None and operator in _BOOLEAN else operator


def conditions(operator: str) -> int:
    """Number of operands before those that are converted to one dtype."""
    return 1 if operator == "where" else 0


def reduction_attrs(axis: Any, keepdims: bool) -> dict[str, Any]:
    """NumPy's arguments of a reduction as attributes."""
    axes = {} if axis is None else {"axes": (axis,) if hasattr(axis, "__index__") else tuple(axis)}
    return {**axes, "keepdims": bool(keepdims)}
