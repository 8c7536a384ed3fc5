"""Functions of operators: those of the registry that are a user's, by name or NumPy's name, for any kind of operand."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from burnish import ops
from burnish.array.operators import ALIASES, POSITIONS, REDUCTIONS, reduction_attrs
from burnish.errors import InputError
from burnish.ops.operator import Operator

Make = Callable[[str, Sequence[Any], dict[str, Any]], Any]  # operator, operands and attributes to a result


def function_named(name: str, make: Make, is_operand: Callable[[Any], bool]) -> Callable[..., Any] | None:
    """The function of an operator, or None if there is none of this name. ``make`` applies it.

    Operands come first, by position or by name, then attributes. ``is_operand`` tells what can only be an operand.
    """
    if name in REDUCTIONS:
        return _reduction(ops.operator_named(REDUCTIONS[name]), name, make)
    operator = ops.OPERATORS.get(ALIASES.get(name, name))
    if operator is None or operator.traits.internal:
        return None
    return _positions(operator, make) if name in POSITIONS else _function(operator, name, make, is_operand)


def names() -> list[str]:
    """All names that :func:`function_named` knows."""
    public = (name for name, operator in ops.OPERATORS.items() if not operator.traits.internal)
    return sorted({*public, *ALIASES, *REDUCTIONS})


def _reduction(operator: Operator, name: str, make: Make) -> Callable[..., Any]:
    def function(x: Any, axis: Any = None, keepdims: bool = False, **others: Any) -> Any:
        return make(operator.name, [x], {**reduction_attrs(axis, keepdims), **others})

    return _described(function, name, f"{operator.doc}\n\nAlong ``axis``, an integer or several; by default all.")


def _positions(operator: Operator, make: Make) -> Callable[..., Any]:
    def function(x: Any, axis: int, keepdims: bool = False, **others: Any) -> Any:
        return make(operator.name, [x], {"axis": axis, "keepdims": keepdims, **others})

    return _described(function, operator.name, operator.doc)


def _function(operator: Operator, name: str, make: Make, is_operand: Callable[[Any], bool]) -> Callable[..., Any]:
    least, most = operator.inputs

    def function(*given: Any, **named: Any) -> Any:
        if len(given) == least == most:
            return make(operator.name, given, named)
        if most is None and len(given) > 0 and isinstance(given[0], list | tuple):
            given = (*given[0], *given[1:])
        count = least
        while count < len(given) and (most is None or count < most) and is_operand(given[count]):
            count += 1
        operands, rest = list(given[:count]), given[count:]
        if most is not None:
            for argument in operator.arguments[len(operands) :]:
                if argument not in named:
                    break
                operands.append(named.pop(argument))
        attributes = list(operator.attrs)
        if len(rest) > len(attributes):
            raise InputError(f"{name}: found {len(given)} arguments; allowed: {count + len(attributes)}")
        for key, value in zip(attributes, rest, strict=False):
            if key in named:
                raise InputError(f"{name}: argument '{key}' is given twice")
            named[key] = value
        return make(operator.name, operands, named)

    operands = [f"*{a}" if most is None else a for a in operator.arguments]
    attributes = [
        key if default is ops.REQUIRED else f"{key}={default!r}" for key, default in operator.attrs.items()
    ]  # fmt: skip
    return _described(function, name, f"``{name}({', '.join(operands + attributes)})``\n\n{operator.doc}")


def _described(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = inspect.cleandoc(doc)
    return function
