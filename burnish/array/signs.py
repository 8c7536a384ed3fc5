"""Operator overloading: fast path of binary operators, half a microsecond for pairs of types seen before."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from burnish.array import lazy
from burnish.array.lazy import LazyValue, flush, record
from burnish.array.operators import MULTIPLY, POWER, POWERS, Sign, common_dtype, for_dtype
from burnish.array.program import OperatorCall
from burnish.array.recording import apply, call_of, is_operand, scalar_beside
from burnish.array.types import ArrayType, is_float

Method = Callable[[Any, Any], Any]
AsValue = Callable[..., LazyValue]
_recorded = lazy.recorded
_NUMBERS = (float, int, bool)


def binary(sign: Sign, kind: type[Any], as_value: AsValue) -> tuple[Method, Method]:
    """The methods of a sign for arrays of the class ``kind``, and with the operands in reverse: they record."""
    calls: dict[tuple[ArrayType, ArrayType], OperatorCall] = {}  # where nothing has to be converted
    operator, most = sign.operator, lazy.MOST_RECORDED
    is_power = operator == POWER

    def holding(value: LazyValue) -> Any:
        array = kind()
        array.value = value
        return array

    def general(a: LazyValue, b: LazyValue) -> Any:
        """Slow path: pairs of types not seen before, or that need conversions."""
        dtype = common_dtype(operator, [a.type.dtype, b.type.dtype])
        if dtype is None or (a.type.dtype == dtype and b.type.dtype == dtype):
            calls[a.type, b.type] = call_of(for_dtype(operator, dtype), (a.type, b.type), {})
        return holding(apply(operator, [a, b], {})[0])

    def recorded_call(found: OperatorCall, a: LazyValue, b: LazyValue) -> Any:
        value = LazyValue()
        value.type, value.block, value.index = found.result, None, None
        record((found, value, a, b))
        if len(_recorded) >= most:
            flush()
        array = kind()
        array.value = value
        return array

    def method(self: Any, other: Any) -> Any:
        a = self.value
        if other.__class__ is kind:
            b = other.value
        elif other.__class__ in _NUMBERS:
            if is_power and (power := _power(a, other)) is not None:
                return holding(power)
            b = scalar_beside(other, a.type.dtype)
        elif is_operand(other):
            b = as_value(other, a.type.dtype)
        else:
            return NotImplemented
        found = calls.get((a.type, b.type))
        if found is None:
            return general(a, b)
        value = LazyValue()
        value.type, value.block, value.index = found.result, None, None
        record((found, value, a, b))
        if len(_recorded) >= most:
            flush()
        array = kind()
        array.value = value
        return array

    def reverse(self: Any, other: Any) -> Any:
        b = self.value
        if other.__class__ in _NUMBERS:
            a = scalar_beside(other, b.type.dtype)
        elif is_operand(other):
            a = as_value(other, b.type.dtype)
        else:
            return NotImplemented
        found = calls.get((a.type, b.type))
        return general(a, b) if found is None else recorded_call(found, a, b)

    for made, prefix in ((method, ""), (reverse, "r")):
        made.__name__ = made.__qualname__ = f"__{prefix}{sign.method}__"
    return method, reverse


def quick(function: Callable[..., Any], kind: type[Any]) -> Callable[..., Any]:
    """A function of an operator that records it at once where it has been seen with such operands before."""
    calls: dict[Any, OperatorCall] = {}  # where nothing has to be converted
    most = lazy.MOST_RECORDED

    @wraps(function)
    def quickly(*given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and given[0].__class__ is kind:
            a = given[0].value
            found = calls.get(a.type)
            if found is not None:
                value = LazyValue()
                value.type, value.block, value.index = found.result, None, None
                record((found, value, a))
                if len(_recorded) >= most:
                    flush()
                array = kind()
                array.value = value
                return array
        return slowly(given, named)

    def slowly(given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        key: Any = None
        if given and given[0].__class__ is kind:
            a = given[0].value
            rest: tuple[LazyValue, ...] = ()
            if len(given) == 1:
                key = (a.type, *named.items()) if named else a.type
            elif len(given) == 2 and given[1].__class__ is kind and not named:
                rest = (given[1].value,)
                key = a.type, rest[0].type
        try:
            found = calls.get(key)
        except TypeError:  # a list among the attributes
            found = key = None
        if found is not None:
            value = LazyValue()
            value.type, value.block, value.index = found.result, None, None
            record((found, value, a, *rest))
            if len(_recorded) >= most:
                flush()
            array = kind()
            array.value = value
            return array
        result = function(*given, **named)
        if key is not None and "out" not in named and _recorded and result.__class__ is kind:
            last = _recorded[-1]
            if last[1] is result.value and last[2:] == (a, *rest):
                calls[key] = last[0]
        return result

    return quickly


def in_place(forward: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The method of a sign in place: the array, and all views of its memory, hold the result."""

    def method(self: Any, other: Any) -> Any:
        result = forward(self, other)
        if result is NotImplemented:
            return result
        self._assign(result.value)
        return self

    return method


def _power(base: LazyValue, exponent: Any) -> LazyValue | None:
    """A power with a small exponent by operators that are faster and closer to the true value."""
    if exponent == 2 and base.type.dtype != "bool":
        return apply(MULTIPLY, [base, base], {})[0]
    named = POWERS.get(exponent) if is_float(base.type.dtype) else None
    return None if named is None else apply(named, [base], {})[0]
