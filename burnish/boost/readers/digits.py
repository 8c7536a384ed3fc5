"""Decimal numbers of a text by Python's own conversion, their rounding to float32, and marks of missing values."""

import re

import numpy as np
from numpy.typing import NDArray

_BEYOND = 2.0**128 - 2.0**103  # the middle between the largest float32 and what would come next, to which ties go
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf|infinity)", re.IGNORECASE)


def exact(token: bytes) -> float:
    """A number by Python's own conversion; raises ValueError for what is none, such as ``1_000`` or ``0x10``."""
    if not _NUMBER.fullmatch(token):
        raise ValueError
    return float(token)


def has_payload(text: bytes) -> bool:
    """Whether there may be a NaN with a payload, such as nan(ind), which pyarrow reads and `exact` refuses."""
    return b"(" in text and (b"n(" in text or b"N(" in text)


def shown(token: bytes) -> str:
    """A token as error messages quote it."""
    text = token.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:37] + "…")


def infinite(value: float) -> bool:
    """Whether the nearest float32 of a number is infinite."""
    return abs(value) >= _BEYOND


def marked(table: NDArray[np.float32], marks: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which entries equal one of the marks of a missing value."""
    found: NDArray[np.bool_] = table == marks[0]
    for mark in marks[1:]:
        found |= table == mark
    return found
