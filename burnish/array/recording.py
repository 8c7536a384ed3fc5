"""Recording of operators applied to values, with NumPy's conversions of mixed operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.array.lazy import LazyValue, call, concrete
from burnish.array.memory import view_of
from burnish.array.operators import CAST, Number, common_dtype, conditions, for_dtype
from burnish.array.program import OperatorCall
from burnish.array.types import ArrayType, array_type, dtype_name, promoted
from burnish.errors import InputError
from burnish.graph.graph import Attribute

_MOST_SCALARS = 4096
_calls: dict[tuple[Any, ...], OperatorCall] = {}
_scalars: dict[tuple[type, Number, str], LazyValue] = {}


def apply(operator: str, operands: Sequence[LazyValue | Number], attrs: Mapping[str, Any]) -> tuple[LazyValue, ...]:
    """Records an operator; its results. Operands of signs are converted to one dtype, as NumPy has it.

    Raises ModelError and UnsupportedOperator, naming the operator and the argument, and InputError.
    """
    dtypes = [o.type.dtype if isinstance(o, LazyValue) else o for o in operands]
    first, dtype = conditions(operator), common_dtype(operator, dtypes)
    values = [
        converted(o, promoted([own]) if dtype is None or at < first else dtype)
        for at, (o, own) in enumerate(zip(operands, dtypes, strict=True))
    ]
    return call(call_of(for_dtype(operator, dtype), tuple([v.type for v in values]), attrs), values)


def call_of(operator: str, types: tuple[ArrayType, ...], attrs: Mapping[str, Any]) -> OperatorCall:
    """The operator at the types of its operands."""
    try:
        key = (operator, types, *attrs.items())
        found = _calls.get(key)
    except TypeError:  # a list, or what no attribute can be
        attrs = {name: _frozen(value) for name, value in attrs.items()}
        return OperatorCall(operator, types, attrs)
    if found is None:
        found = _calls[key] = OperatorCall(operator, types, {name: _frozen(value) for name, value in attrs.items()})
    return found


def _frozen(value: Any) -> Attribute:
    """An attribute's value as graphs hold it."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    return value.item() if isinstance(value, np.generic) else value


def converted(operand: LazyValue | Number, dtype: str) -> LazyValue:
    """An operand of a dtype."""
    if not isinstance(operand, LazyValue):
        return scalar(operand, dtype)
    if operand.type.dtype == dtype:
        return operand
    return call(call_of(CAST, (operand.type,), {"to": dtype}), [operand])[0]


def scalar(number: Number, dtype: str) -> LazyValue:
    """A number of Python as a value. Numbers are operands, not part of an expression: it stays the same for others."""
    return from_numpy(np.asarray(number, array_type((), dtype).numpy))


def scalar_beside(number: Number, dtype: str) -> LazyValue:
    """Scalar operand: a number of Python, converted for an array of a dtype. Raises InputError."""
    key = (number.__class__, number, dtype)
    found = _scalars.get(key)
    if found is None:
        found = scalar(number, promoted([dtype, number]))
        if len(_scalars) >= _MOST_SCALARS:
            _scalars.clear()
        if number != 0:  # 0.0 and -0.0 are equal
            _scalars[key] = found
    return found


def from_numpy(array: np.ndarray) -> LazyValue:
    """A copy of an array. Raises InputError for a dtype that there is not."""
    kind = array_type(array.shape, dtype_name(array.dtype))
    block = kind.recycler.block()
    np.copyto(view_of(block, block.address, kind.shape, kind.numpy), array)
    return concrete(kind, block, block.address)


def part(root: LazyValue, kind: ArrayType, offset: int) -> LazyValue:
    """Elements that lie one after the other in the memory of a value, from a byte on."""
    assert root.block is not None
    return concrete(kind, root.block, root.address + offset)


def as_number(value: Any) -> Number | None:
    """The number of Python that something is, if it is one; those of NumPy are arrays."""
    return value if isinstance(value, bool | int | float) and not isinstance(value, np.generic) else None


def is_operand(value: Any) -> bool:
    """Whether something can be an operand together with an array."""
    return isinstance(value, bool | int | float | np.ndarray | np.generic | list | tuple) or hasattr(value, "geometry")


def refuse_operand(value: Any) -> InputError:
    """The error for what is no operand."""
    return InputError(f"operand: found a {type(value).__name__}; allowed: an array, of NumPy too, or a number")
