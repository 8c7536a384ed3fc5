"""Integer inputs: a label that is no class, and an index out of range, are refused before the call that they spoil."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from burnish.errors import InputError

_UNSIGNED: Mapping[int, np.dtype[Any]] = {n: np.dtype(f"uint{8 * n}") for n in (1, 2, 4, 8)}


class Allowed(NamedTuple):
    """Input number ``position`` holds integers from ``low`` to below ``high``, or ``ignore``.

    Without ``low`` they are labels of classes, of which negative ones are left out.
    """

    position: int
    low: int | None
    high: int
    ignore: int | None = None


def known_integers(info: Mapping[str, Any], inputs: int) -> tuple[Allowed, ...]:
    """Ranges of a model's integer inputs, of its ``info``, in lists: "labels" as position, number of classes and what
    is ignored, "indices" as position, low and high. What is no such list is left out.
    """
    labels = [Allowed(p, None, high, ignore) for p, high, ignore in _lists(info.get("labels"), inputs)
              if isinstance(high, int) and isinstance(ignore, int | None)]  # fmt: skip
    indices = [Allowed(p, low, high) for p, low, high in _lists(info.get("indices"), inputs)
               if isinstance(low, int) and isinstance(high, int)]  # fmt: skip
    return (*labels, *indices)


def _lists(held: Any, inputs: int) -> list[list[Any]]:
    lists = [e for e in held if isinstance(e, list) and len(e) == 3] if isinstance(held, list) else []
    return [e for e in lists if isinstance(e[0], int) and 0 <= e[0] < inputs]


def check_integers(allowed: Sequence[Allowed], names: Sequence[str], arrays: Sequence[np.ndarray | None]) -> None:
    """Raises InputError for a label beyond the last class, and an index out of range: its place, its value, and what is
    allowed. An input that is None is not checked.
    """
    for position, low, high, ignore in allowed:
        array = arrays[position]
        if array is None or not array.size or _all_within(array, low, high):
            continue
        if low is not None:
            wrong = (array < low) | (array >= high)
        else:
            wrong = array >= high if ignore is None else (array >= high) & (array != ignore)
        if wrong.any():
            place = [int(i) for i in np.argwhere(wrong)[0]]
            what = "label" if low is None else "index"
            found = f"found {what} {array[tuple(place)]} at {place}, {int(wrong.sum())} such in all"
            raise InputError(f"input '{names[position]}': {found}; allowed: {_allowed_text(low, high, ignore)}")


def _all_within(array: np.ndarray, low: int | None, high: int) -> bool:
    """Whether all elements are within the bounds, in one pass where nothing negative is allowed."""
    if low == 0 and array.dtype.kind == "i":  # a negative one is greater than any other without its sign
        array = array.view(_UNSIGNED[array.itemsize])
    most = np.maximum.reduce(array, axis=None)
    return bool(most < high and (low is None or low == 0 or np.minimum.reduce(array, axis=None) >= low))


def _allowed_text(low: int | None, high: int, ignore: int | None) -> str:
    if low is not None:
        return f"{low} to {high - 1}"
    also = "" if ignore is None else f", and {ignore}, which is left out too"
    return f"the {high} classes 0 to {high - 1}, and negative numbers, which are left out{also}"
