"""Labels of classes: one that is no class is refused before the step that it would spoil."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from burnish.errors import InputError


class Labels(NamedTuple):
    """Input number ``position`` holds labels below ``classes``, or negative ones, which are left out, or ``ignore``."""

    position: int
    classes: int
    ignore: int | None = None


def known_labels(info: Mapping[str, Any], inputs: int) -> tuple[Labels, ...]:
    """What a model's ``info`` says of its labels, as :class:`Labels` in lists; what is no such list is left out."""
    held = info.get("labels")
    found = []
    for each in held if isinstance(held, list) else ():
        numbers = isinstance(each, list) and len(each) == 3 and all(isinstance(n, int) for n in each[:2])
        if numbers and 0 <= each[0] < inputs and (each[2] is None or isinstance(each[2], int)):
            found.append(Labels(*each))
    return tuple(found)


def check_labels(labels: Sequence[Labels], names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
    """Raises InputError for a label beyond the last class, naming its place, its value and the number of classes."""
    for position, classes, ignore in labels:
        array = arrays[position]
        if not array.size or array.max() < classes:
            continue
        wrong = array >= classes if ignore is None else (array >= classes) & (array != ignore)
        if wrong.any():
            place = [int(i) for i in np.argwhere(wrong)[0]]
            also = "" if ignore is None else f", and {ignore}, which is left out too"
            found = f"found label {array[tuple(place)]} at {place}, {int(wrong.sum())} such in all"
            raise InputError(
                f"input '{names[position]}': {found}; allowed: the {classes} classes 0 to {classes - 1}, and negative "
                f"numbers, which are left out{also}"
            )
