"""Columns matched by name: where the features of training are in other data, or why they are not there."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from burnish.errors import DataError

_SHOWN = 5  # names that a message lists


def order_of(found: Sequence[str], wanted: Sequence[str], what: str) -> NDArray[np.int64] | None:
    """Which of the columns `found` each of the columns `wanted` is, (wanted,); None if all are in place.

    So are, for want of names to tell, those of data or of a model without any. Raises DataError, which begins with
    `what`, unless both name the same columns.
    """
    found, wanted = tuple(found), tuple(wanted)
    if not found or not wanted or found == wanted:
        return None
    place = {name: number for number, name in enumerate(found)}
    lacking = [name for name in wanted if name not in place]
    known = set(wanted)
    further = [name for name in found if name not in known]
    if lacking or further:
        parts = [f"lacks the features {_listed(lacking)}"] if lacking else []
        parts += [f"has {_listed(further)} besides"] if further else []
        raise DataError(f"{what}: {', '.join(parts)}; allowed are the feature names of the training data, in any order")
    return np.array([place[name] for name in wanted], np.int64)


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(map(repr, names[:_SHOWN]))
    return text + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
