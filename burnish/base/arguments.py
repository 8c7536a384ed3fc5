"""Argument checks before any work: each error names argument, found and allowed."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from burnish.errors import ParameterError

C = TypeVar("C", bound=Callable[..., Any])
WORDS = {int: "an integer", float: "a number", bool: "True or False", str: "a text", Path: "a path", NoneType: "None"}


def refusal(argument: str, found: Any, allowed: str) -> ParameterError:
    """The error for an argument that is not what is allowed."""
    return ParameterError(f"{argument}: found {found!r}; allowed: {allowed}")


def check_flag(argument: str, found: Any) -> None:
    """Raises ParameterError for what is not True or False."""
    if not isinstance(found, bool):
        raise refusal(argument, found, "True or False")


def check_number(argument: str, found: Any, least: float, most: float = math.inf, open_below: bool = False) -> None:
    """Raises ParameterError for what is no finite number from ``least`` to ``most``; above it where ``open_below``."""
    number = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    if not (number and least <= found <= most and not (open_below and found == least)):
        beyond = "more than " if open_below else "from "
        raise refusal(argument, found, f"a number {beyond}{least:g}" + (f" to {most:g}" if most < math.inf else ""))


def check_count(argument: str, found: Any, least: int) -> None:
    """Raises ParameterError for what is no integer from ``least``."""
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise refusal(argument, found, f"an integer from {least}")


def check_shapes(shapes: Any) -> None:
    """Raises ParameterError for what is no mapping from names to extents; names are the importer's to check.

    An extent is an integer or the name of a dimension that stays open; a dimension may have a number for itself.
    """
    if shapes is None:
        return
    if not isinstance(shapes, Mapping) or not all(isinstance(name, str) for name in shapes):
        raise refusal("shapes", shapes, "extents of inputs by their names, such as {'x': (1, 3, 224, 224)}")
    for name, extents in shapes.items():
        if _is_extent(extents):
            continue
        fits = isinstance(extents, Sequence) and not isinstance(extents, (str, bytes))
        if not fits or not all(isinstance(e, str) or _is_extent(e) for e in extents):
            raise refusal(f"shapes[{name!r}]", extents, "integers from 0, one for each dimension")


def _is_extent(e: Any) -> bool:
    return hasattr(e, "__index__") and not isinstance(e, bool) and not hasattr(e, "__len__") and e >= 0


def check_folder(argument: str, found: Any) -> None:
    """Raises ParameterError for what cannot be the path of a folder."""
    _check_path(argument, found)
    if found is not None and Path(found).exists() and not Path(found).is_dir():
        raise ParameterError(f"{argument}: '{found}' is a file; allowed: a folder, which need not exist yet")


def check_file(argument: str, found: Any) -> None:
    """Raises ParameterError for what cannot be the path of a file."""
    _check_path(argument, found)
    if found is not None and Path(found).is_dir():
        raise ParameterError(f"{argument}: '{found}' is a folder; allowed: a file")


def _check_path(argument: str, found: Any) -> None:
    if found is not None and not isinstance(found, (str, os.PathLike)):
        raise refusal(argument, found, "a path")


def typed(function: C) -> C:
    """Type checks of a function's arguments, or of a dataclass's fields, by their annotations: a decorator.

    A call with an argument that is none of its annotation's numbers, texts, flags and containers raises ParameterError;
    NaN is no number, but where it is the default. Other classes and arrays are the function's to refuse, and what a
    class refuses by itself comes first, as that says more.
    """
    if isinstance(function, type):
        made: Any = function
        own = made.__init__

        @wraps(own)
        def initialized(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                own(self, *args, **kwargs)
            except (TypeError, ValueError, AttributeError, ArithmeticError):
                _check_call(own, (self, *args), kwargs, f"{made.__name__}: ")
                raise
            _check_call(own, (self, *args), kwargs, f"{made.__name__}: ")

        made.__init__ = initialized
        return function

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        _check_call(function, args, kwargs, "")
        return function(*args, **kwargs)

    return called  # type: ignore[return-value]


def _check_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], prefix: str) -> None:
    parameters, hints = _signature(function)
    for name, value in [*zip(parameters, args, strict=False), *kwargs.items()]:
        if name not in hints or value is parameters[name].default or _fits(value, hints[name]):
            continue
        raise refusal(f"{prefix}{name}", value, _words(hints[name]))


@cache
def _signature(function: Callable[..., Any]) -> tuple[Mapping[str, inspect.Parameter], Mapping[str, Any]]:
    """Parameters that a call gives one value each, and their types."""
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = {n: p for n, p in inspect.signature(function).parameters.items() if p.kind not in several}
    hints = get_type_hints(function)
    return parameters, {name: hints[name] for name in parameters if name in hints}


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, member) for member in inner)
    if origin is Literal:
        return value in inner
    kind = origin or hint
    if kind in (int, float):
        is_number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
        return is_number and not math.isnan(value)
    if kind is Path:
        return isinstance(value, os.PathLike)
    if kind in (str, bool, NoneType):
        return isinstance(value, kind)
    if not isinstance(kind, type) or not issubclass(kind, Iterable) or kind.__name__ == "ndarray":
        return True
    if issubclass(kind, Mapping):
        return isinstance(value, kind)
    if isinstance(value, str) or not isinstance(value, Iterable):
        return False
    if not isinstance(value, (list, tuple)) or not inner:
        return True
    several = len(inner) == 1 or inner[-1] is ...
    return (several or len(inner) == len(value)) and all(
        map(_fits, value, inner[:1] * len(value) if several else inner)
    )


def _words(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(member) for member in get_args(hint)))
    if get_origin(hint) is Literal:
        return ", ".join(map(repr, get_args(hint)))
    kind = get_origin(hint) or hint
    if kind in WORDS:
        return WORDS[kind]
    if isinstance(kind, type) and issubclass(kind, Iterable):
        if issubclass(kind, Mapping):
            return "a mapping"
        return "a sequence" if get_args(hint)[1:] in ((), (...,)) else f"a sequence of {len(get_args(hint))}"
    return f"a {getattr(kind, '__name__', kind)}"
