"""Loss of precision in conversion to float32: whole numbers beyond 2^24, such as seconds since 1970, or identifiers."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

EXACT = 1 << 24  # float32 holds all whole numbers up to this
_WHOLE = 1 << 53  # floats beyond this are whole numbers all, and measurements as likely as counts
_EXAMPLES = 3  # features that a warning names


class Rounding:
    """Notes the features whose whole numbers are rounded, while blocks of a table are converted on several threads."""

    def __init__(self) -> None:
        self._found: dict[int, int | float] = {}  # feature -> one of its numbers

    def look(self, source: NDArray[Any], target: NDArray[np.float32], first: int = 0) -> None:
        """Compares a block (rows, features) of numbers with what it became; `first` is the number of its first feature.

        NaN in the target is missing.
        """
        if source.dtype.kind not in "iuf" or source.dtype.itemsize < 4 or source.dtype == np.float32:
            return
        large = (target > EXACT) | (target < -EXACT)
        if not large.any():
            return
        for feature in np.flatnonzero(large.any(axis=0)).tolist():
            here = large[:, feature]
            given, kept = source[here, feature], target[here, feature]
            with np.errstate(invalid="ignore"):  # of numbers that round to 2^63
                lost = kept.astype(given.dtype) != given
            if given.dtype.kind == "f":
                lost &= (given == np.floor(given)) & (np.abs(given) < _WHOLE)
            if lost.any():
                self._found.setdefault(first + feature, given[lost][0].item())

    def warn(self, names: Sequence[str], numbered: NDArray[np.bool_] | None = None) -> None:
        """Warns once of all features that were noted, but for those that are numbered as categories anyway."""
        found = {f: value for f, value in sorted(self._found.items()) if numbered is None or not numbered[f]}
        if not found:
            return
        some = [f"{names[f] if len(names) else f'feature {f}'} ({value})" for f, value in found.items()][:_EXAMPLES]
        more = f" and {len(found) - len(some)} more" if len(found) > len(some) else ""
        warnings.warn(
            f"x: whole numbers of {', '.join(some)}{more} are rounded: features are float32, which is exact up to "
            "2^24 = 16777216; near ones become equal. Subtract an origin, split them into parts, or list the feature "
            "in categorical=",
            stacklevel=6,
        )
