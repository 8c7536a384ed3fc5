"""Accuracy: the scaled error, one measure for all comparisons of answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import ml_dtypes
import numpy as np

from burnish.errors import InputError

TOLERANCE = 1e-4  # of the scale of a kernel's result
EXACT_TOLERANCE = 1e-5  # the same where no transformation may change rounding
ROUNDINGS = 4  # a kernel that stores half precision may err by this many of its units of rounding


def rounding(dtypes: Iterable[str]) -> float:
    """The coarsest unit of rounding of the floating-point types among these names; 0 if there is none."""
    found = [np.dtype(getattr(ml_dtypes, name, name)) for name in dtypes if "float" in name]
    return max((float(ml_dtypes.finfo(dtype).eps) for dtype in found), default=0.0)


def tolerance(dtypes: Iterable[str], exact: bool = False) -> float:
    """The largest allowed error of a result computed from and to values of these types.

    ``exact``: no transformation was allowed to change rounding.
    """
    return max(EXACT_TOLERANCE if exact else TOLERANCE, ROUNDINGS * rounding(dtypes))


def scaled_error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest |found − expected| / max |expected| of all pairs; the maximum is over finite values.

    NaN and infinity agree with themselves. The error is NaN if one side alone is NaN, infinite if one alone is
    infinite. Raises InputError if the number of arrays or a shape differs.
    """
    shapes = [[array.shape for array in arrays] for arrays in (found, expected)]
    if shapes[0] != shapes[1]:
        raise InputError(f"outputs have shapes {shapes[0]}, expected {shapes[1]}")
    return float(np.max([0.0, *(_error(a, b) for a, b in zip(found, expected, strict=True))]))


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    a, b = found.astype(np.float64), expected.astype(np.float64)
    wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return 0.0
    scale = np.abs(b[np.isfinite(b)]).max(initial=0.0) or 1.0
    with np.errstate(invalid="ignore"):
        return float(np.abs(a[wrong] - b[wrong]).max() / scale)
