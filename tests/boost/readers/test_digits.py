"""Decimal numbers as float32, rounded as Python and NumPy round them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.readers.digits import exact, number


def between(bits: int) -> float:
    """The middle between two neighbours in float32."""
    below, above = np.array([bits, bits + 1], np.uint32).view(np.float32).astype(float)
    return float(below + (above - below) / 2)


decimal = st.one_of(
    st.from_regex(r"\A[+-]?([0-9]{1,25}\.?[0-9]{0,25}|\.[0-9]{1,25})([eE][+-]?[0-9]{1,3})?\Z"),
    st.floats(width=32).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    # Numbers at, and next to, the middle between two neighbours in float32.
    st.builds(lambda bits, rest: f"{between(bits):.60f}{rest}", st.integers(1 << 23, 254 << 23), st.sampled_from("01")),
)


@given(decimal, st.sampled_from([bytes(8), b"00000000", b"\xff" * 8]))
@settings(max_examples=500, deadline=None)
def test_numbers_are_rounded_as_python_and_numpy_do(text: str, after: bytes) -> None:
    token = text.strip().encode()
    value, end, certain = number(np.frombuffer(token + b"\n" + after, np.uint8), np.uint64(0))
    if certain:
        assert end == len(token)
        with np.errstate(over="ignore"):
            assert value == np.float32(float(text))


@pytest.mark.parametrize("text", ["0", "-0", "1", "-2.5", "3e2", "0.1", "123456.789", "1e-30", "16777217", ".5", "5."])
def test_common_numbers_take_the_fast_way(text: str) -> None:
    value, _end, certain = number(np.frombuffer(text.encode() + b"\n" + bytes(8), np.uint8), np.uint64(0))
    assert certain
    assert value == np.float32(float(text))
    assert math.copysign(1, value) == math.copysign(1, float(text))


@pytest.mark.parametrize("text", ["", "-", ".", "e5", "1e", "1_000", "0x10", "1.5.2", "abc", "1e+", "--1", "infinite"])
def test_what_is_no_number_is_not_certain_nor_exact(text: str) -> None:
    _value, end, certain = number(np.frombuffer(text.encode() + b"\n" + bytes(8), np.uint8), np.uint64(0))
    assert not certain or end < len(text)
    with pytest.raises(ValueError):
        exact(text.encode())
