"""Decimal numbers of a text as float32, rounded as ``np.float32(float(text))`` does, at some 2 ns a digit."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.jit import njit

POWERS = 10.0 ** np.arange(81)  # of ten, each correctly rounded; as a global it costs kernels no reference count
EXACT_POWER = 22  # the largest that float64 holds exactly
EXACT_WHOLE = np.uint64(1 << 53)
LEAST, MOST = 1.2e-38, 3.4e38  # between them float32 is normal; the rest is for `exact`
SLACK = 1e-15  # more than three roundings of float64 err by
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf|infinity)", re.IGNORECASE)


@njit(cache=True, nogil=True)
def number(text: Any, at: Any) -> Any:
    """The number that starts at a position, the position after it, and whether it is certain.

    Of up to 53 bits of digits and 22 places, float64 holds both the digits and the power of ten that divides them, so
    that the quotient is rounded once. The rest is left to `_careful`, and what is not certain there to `exact`.
    """
    one = np.uint64(1)
    begin = at
    negative = text[at] == 45
    if negative:
        at += one
    start = at
    whole = np.uint64(0)
    digit = np.uint8(text[at] - np.uint8(48))
    while digit < 10:
        whole = whole * np.uint64(10) + np.uint64(digit)
        at += one
        digit = np.uint8(text[at] - np.uint8(48))
    digits = at - start
    places = np.uint64(0)
    if text[at] == 46:
        at += one
        start = at
        digit = np.uint8(text[at] - np.uint8(48))
        while digit < 10:
            whole = whole * np.uint64(10) + np.uint64(digit)
            at += one
            digit = np.uint8(text[at] - np.uint8(48))
        places = at - start
        digits += places
    # 19 digits do not overflow; one less than 1 in unsigned arithmetic is more than any.
    if digits - one >= np.uint64(19) or whole > EXACT_WHOLE or (text[at] | np.uint8(32)) == 101:
        return _careful(text, begin)
    value = np.float64(whole) / POWERS[places]
    return np.float32(-value if negative else value), at, True


@njit(cache=True, nogil=True)
def _careful(text: Any, at: Any) -> Any:
    """What `number` returns, for texts of any length, with an exponent or without.

    The first 19 digits are multiplied by one power of ten: three roundings at most, in float64. If a value so little
    larger and one so little smaller round to the same float32, that is what the text rounds to; else, for about one
    number in 10⁷, it is not certain.
    """
    one = np.uint64(1)
    negative = text[at] == 45
    if negative or text[at] == 43:
        at += one
    whole, scale, seen, at = _first_digits(text, at)
    certain: Any = seen > 0
    if certain and (text[at] == 101 or text[at] == 69):
        at += one
        below = text[at] == 45
        if below or text[at] == 43:
            at += one
        power: Any = 0
        start = at
        digit = np.uint8(text[at] - np.uint8(48))
        while digit < 10:
            power = min(power * 10 + digit, 9999)
            at += one
            digit = np.uint8(text[at] - np.uint8(48))
        certain = at > start
        scale += -power if below else power
    value: Any = np.float64(whole)
    if whole != np.uint64(0):
        if -80 <= scale <= 80:
            value = value * POWERS[scale] if scale >= 0 else value / POWERS[-scale]
        else:
            certain = False
        if whole > EXACT_WHOLE or not -EXACT_POWER <= scale <= EXACT_POWER:
            certain &= np.float32(value * (1.0 - SLACK)) == np.float32(value * (1.0 + SLACK))
        certain &= LEAST < value < MOST
    return np.float32(-value if negative else value), at, certain


@njit(cache=True, nogil=True)
def _first_digits(text: Any, at: Any) -> Any:
    """The whole number of the first 19 digits that count, the power of ten it is to be multiplied by, how many digits
    there are in all, and the position after them.
    """
    whole = np.uint64(0)
    digits: Any = 0
    scale: Any = 0
    seen: Any = 0
    fraction = False
    while True:
        digit = np.uint8(text[at] - np.uint8(48))
        if text[at] == 46 and not fraction:
            fraction = True
        elif digit >= 10:
            return whole, scale, seen, at
        else:
            seen += 1
            if digits < 19:
                whole = whole * np.uint64(10) + np.uint64(digit)
                digits += whole > np.uint64(0)
                scale -= fraction
            else:
                scale += not fraction
        at += np.uint64(1)


def exact(token: bytes) -> float:
    """A number by Python's own conversion; raises ValueError for what is none, such as ``1_000`` or ``0x10``."""
    if not _NUMBER.fullmatch(token):
        raise ValueError
    return float(token)


def shown(token: bytes) -> str:
    """A token as error messages quote it."""
    text = token.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:37] + "…")


def single(value: float) -> np.float32:
    """The nearest float32, infinite if it is beyond."""
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(value)


def marked(table: NDArray[np.float32], marks: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which entries equal one of the marks of a missing value."""
    found: NDArray[np.bool_] = table == marks[0]
    for mark in marks[1:]:
        found |= table == mark
    return found
