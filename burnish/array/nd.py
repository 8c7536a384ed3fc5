"""Imperative arrays, with NumPy's names (``burnish.nd``): lazy, compiled where expressions repeat, changed in place.

Every operator is a function here, by its name or NumPy's: ``nd.relu(x)``, ``nd.softmax(x, axis=-1)``, ``nd.sum(x)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from burnish.array import random as random
from burnish.array.array import Array as Array
from burnish.array.array import as_value, check_fits, holding
from burnish.array.functions import function_named, names
from burnish.array.lazy import LazyValue, concrete
from burnish.array.lazy import wait_all as wait_all
from burnish.array.memory import MemoryBlock
from burnish.array.operators import METHODS, POWER
from burnish.array.recording import apply, as_number, from_numpy
from burnish.array.signs import quick
from burnish.array.types import array_type, dtype_name
from burnish.errors import InputError
from burnish.runtime.buffers import address_of
from burnish.runtime.dlpack import from_dlpack as _view_of_tensor

Shape = int | Sequence[int]


def array(values: Any, dtype: Any = None) -> Array:
    """A copy of an array, a tensor, a number or nested lists; lists of floats become float32.

    Raises InputError for what is none, or of a dtype that there is not.
    """
    if isinstance(values, Array):
        return values.copy() if dtype is None else values.astype(dtype)
    if not isinstance(values, np.ndarray | np.generic) and hasattr(values, "__dlpack__"):
        values = _view_of_tensor(values)
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise InputError(f"array: {error}") from error
    if dtype is None and not isinstance(values, np.ndarray | np.generic) and found.dtype == np.float64:
        dtype = "float32"
    name = dtype_name(found.dtype if dtype is None else dtype)
    return holding(from_numpy(found.astype(array_type((), name).numpy, copy=False)))


def from_dlpack(tensor: Any) -> Array:
    """An array in the memory of a tensor, without a copy: what either changes in place, the other sees.

    Also of NumPy's arrays. Raises InputError for a tensor that is not contiguous, writable and in CPU memory.
    """
    found = tensor if isinstance(tensor, np.ndarray) else _view_of_tensor(tensor)
    if not (found.flags.c_contiguous and found.flags.aligned and found.size and found.flags.writeable):
        raise InputError("from_dlpack: found memory that is empty, has gaps or cannot be written; allowed: use array()")
    kind = array_type(found.shape, dtype_name(found.dtype))
    block = MemoryBlock.shared(found.reshape(-1).view(np.uint8), address_of(found))
    return holding(concrete(kind, block, block.address))


def zeros(shape: Shape, dtype: Any = "float32") -> Array:
    """An array of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Shape, dtype: Any = "float32") -> Array:
    """An array of ones."""
    return full(shape, 1, dtype)


def full(shape: Shape, value: Any, dtype: Any = "float32") -> Array:
    """An array of one number."""
    return holding(from_numpy(np.full(shape, value, array_type((), dtype_name(dtype)).numpy)))


def zeros_like(x: Array) -> Array:
    """Zeros of the type of ``x``."""
    return full(x.shape, 0, x.value.type.dtype)


def ones_like(x: Array) -> Array:
    """Ones of the type of ``x``."""
    return full(x.shape, 1, x.value.type.dtype)


def arange(*bounds: Any, dtype: Any = None) -> Array:
    """Numbers in equal steps, as ``numpy.arange`` has them; floats become float32."""
    return array(np.arange(*bounds).tolist(), dtype)


def stack(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Arrays of one shape along a new axis."""
    values = [_operand(a) for a in arrays]
    rank = len(values[0].type.shape) + 1 if values else 0
    if not values or not -rank <= axis < rank:
        raise InputError(
            f"stack: found {len(values)} arrays and axis {axis}; allowed: arrays, and an axis of the result"
        )
    at = axis % rank
    shaped = [holding(v).reshape(*v.type.shape[:at], 1, *v.type.shape[at:]).value for v in values]
    return holding(apply("concat", shaped, {"axis": at})[0])


def transpose(x: Any, axes: Sequence[int] | None = None) -> Array:
    """A view with the dimensions in another order."""
    return holding(_operand(x)).transpose(*(axes or ())) if not isinstance(x, Array) else x.transpose(*(axes or ()))


def reshape(x: Any, shape: Shape) -> Array:
    """A view of another shape."""
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    return (x if isinstance(x, Array) else array(x)).reshape(*wanted)


def _operand(given: Any) -> Any:
    return as_value(given)


def _make(operator: str, operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Applies an operator; its result, or the tuple of several. ``out``: arrays that take them."""
    out = attrs.pop("out", None) if attrs else None
    given = [o.value if isinstance(o, Array) else o if as_number(o) is not None else as_value(o) for o in operands]
    if operator == POWER and out is None and isinstance(operands[0], Array):
        return operands[0] ** operands[1]
    results = apply(operator, given, attrs)
    if out is not None:
        return _put(operator, results, out)
    if len(results) == 1:
        return holding(results[0])
    return tuple([holding(value) for value in results])


def _put(operator: str, results: Sequence[LazyValue], out: Any) -> Any:
    """Writes results to arrays, all of them or, where one does not fit, none."""
    targets = (out,) if isinstance(out, Array) else tuple(out)
    if len(targets) != len(results):
        raise InputError(f"{operator}: out: found {len(targets)} arrays; allowed: {len(results)}")
    for target, value in zip(targets, results, strict=True):
        if value.type.shape != target.shape:
            raise InputError(f"{operator}: out: found shape {list(target.shape)}; allowed: {list(value.type.shape)}")
        check_fits(value, target.shape, target.value.type.dtype)
    for target, value in zip(targets, results, strict=True):
        target._assign(value)
    return out


def _is_operand(given: Any) -> bool:
    return isinstance(given, Array | np.ndarray)


def __getattr__(name: str) -> Callable[..., Any]:
    found = None if name.startswith("_") else function_named(name, _make, _is_operand)
    if found is None:
        raise AttributeError(f"burnish.nd has no function {name!r}; operators are listed in docs/operators.md")
    globals()[name] = found = quick(found, Array)
    return found


__all__ = [
    "Array", "arange", "array", "from_dlpack", "full", "ones", "ones_like", "random", "stack", "wait_all", "zeros",
    "zeros_like", *names(),
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


for _name in METHODS:
    setattr(Array, _name, function_named(_name, _make, _is_operand))
