import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.formats.ubjson import DEEPEST, dumps_ubjson, loads_ubjson
from burnish.errors import DataError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def length(count: int) -> bytes:
    return b"L" + struct.pack(">q", count)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_what_is_written_is_read(document: dict) -> None:
    assert loads_ubjson(dumps_ubjson(document)) == document


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "i4", "i8", "f4", "f8"])
def test_arrays_of_one_kind(kind: str) -> None:
    values = np.array([0, 1, 100], kind)
    found = loads_ubjson(dumps_ubjson({"a": values}))["a"]
    assert found.dtype == values.dtype
    assert np.array_equal(found, values)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[$d#" + length(2**40), "truncated"),
        (b"[$d#" + length(2**62), "truncated"),
        (b"[#" + length(2**31), "bytes are left"),
        (b"[$S#" + length(1), "allowed: of numbers"),
        (b"[$d", "no length"),
        (b"S" + length(-1), "length is -1"),
        (b"S" + length(9) + b"ab", "truncated"),
        (b"[" * 100_000, "levels"),
        (b"{i\x01a" * 100_000, "levels"),
        (b"S" + length(1) + b"\xff", "UTF-8"),
        (b"H" + length(1) + b"1", "marker"),
    ],
)
def test_damaged_files_are_refused_without_taking_memory(body: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        loads_ubjson(b"{" + length(1) + b"x" + body, "file")


def test_every_truncation_is_refused() -> None:
    whole = dumps_ubjson({"a": [1, "b", {"c": np.arange(3)}], "d": 0.5, "e": {"f": None}})
    for end in range(len(whole)):
        with pytest.raises(DataError):
            loads_ubjson(whole[:end])
    with pytest.raises(DataError, match="after the end"):
        loads_ubjson(whole + b" ")
    with pytest.raises(DataError, match="allowed: an object"):
        _ = loads_ubjson(b"[]")


def test_nesting_up_to_the_limit() -> None:
    document: dict = {}
    for _ in range(DEEPEST):
        document = {"a": document}
    assert loads_ubjson(dumps_ubjson(document)) == document
