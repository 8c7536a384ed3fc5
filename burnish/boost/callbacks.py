"""Callbacks of training: functions, and objects with a method for each moment, checked before the first round."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from burnish.errors import ParameterError

MOMENTS = ("before_training", "before_iteration", "after_iteration", "after_training")

Function = Callable[[Any], Any]


def callbacks_of(moment: str, callbacks: Sequence[Any]) -> list[Function]:
    """The functions of one argument to call at a moment, in their order.

    A function is called after an iteration, or before it if its attribute `before_iteration` is true, as in LightGBM.
    Raises ParameterError for what is neither a function nor has a method of any moment, and for other arguments.
    """
    found: list[Function] = []
    for callback in callbacks:
        methods = {name: method for name in MOMENTS if callable(method := getattr(callback, name, None))}
        if not methods and not callable(callback):
            raise ParameterError(
                f"callbacks: found {callback!r}; allowed: a function, or an object with methods of {', '.join(MOMENTS)}"
            )
        if not methods:
            methods = {
                "before_iteration" if getattr(callback, "before_iteration", False) else "after_iteration": callback
            }
        if moment in methods:
            _check_arguments(methods[moment], moment)
            found.append(methods[moment])
    return found


def _check_arguments(function: Function, moment: str) -> None:
    """Raises ParameterError for a function that does not take one argument, such as (model, epoch, evals_log)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of compiled code: unknown
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(function, "__name__", moment)
        raise ParameterError(
            f"callbacks: found {name}{signature}; allowed: one argument, a Progress, with round, scores, history and "
            "model() among its fields"
        ) from None
