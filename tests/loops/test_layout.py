"""Layouts: tags, packing and unpacking, and that physical indices say the same as packing does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.errors import ScheduleError
from burnish.loops.expr import Const
from burnish.loops.layout import Layout, layout, row_major


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...]]:
    """A layout with permuted and blocked dimensions, and a shape for it."""
    rank = draw(st.integers(1, 4))
    letters = [chr(ord("A") + d) for d in range(rank)]
    tokens = draw(st.permutations(letters))
    for _ in range(draw(st.integers(0, 3))):
        letter = draw(st.sampled_from(letters)).lower()
        block = f"{draw(st.integers(1, 5))}{letter}"
        first = tokens.index(letter.upper()) + 1
        tokens = [*tokens]
        tokens.insert(draw(st.integers(first, len(tokens))), block)
    return layout("".join(tokens)), tuple(draw(st.integers(1, 9)) for _ in range(rank))


def iota(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1, np.prod(shape) + 1, dtype="int64").reshape(shape)


@settings(max_examples=200, deadline=None)
@given(layouts())
def test_unpack_undoes_pack(case: tuple[Layout, tuple[int, ...]]) -> None:
    tag, shape = case
    packed = tag.pack(iota(shape))
    assert packed.shape == tag.physical_shape(shape)
    assert packed.flags.c_contiguous
    np.testing.assert_array_equal(tag.unpack(packed, shape), iota(shape))
    assert (packed == 0).sum() == packed.size - iota(shape).size, "padding is zero"


@settings(max_examples=100, deadline=None)
@given(layouts())
def test_physical_indices_find_the_packed_elements(case: tuple[Layout, tuple[int, ...]]) -> None:
    tag, shape = case
    array = iota(shape)
    packed = tag.pack(array)
    out = np.full_like(packed, 7)
    assert tag.pack(array, out) is out and np.array_equal(out, packed)
    for index in np.ndindex(shape):
        place = tag.physical_index(tuple(Const(i) for i in index))
        assert packed[tuple(int(p.value) for p in place)] == array[index]  # type: ignore[attr-defined]


def test_blocked_channels() -> None:
    nchw16c = layout("ABCD16b")
    assert nchw16c.physical_shape((1, 20, 3, 5)) == (1, 2, 3, 5, 16)
    assert (nchw16c.block(1), nchw16c.block(0), nchw16c.plain, str(nchw16c)) == (16, 1, False, "ABCD16b")
    assert nchw16c.pack(iota((1, 20, 3, 5)))[0, 1, 2, 4, 3] == iota((1, 20, 3, 5))[0, 19, 2, 4]


def test_two_blocks_of_one_dimension() -> None:
    pairs = layout("AB16a16b2a")
    assert pairs.physical_shape((40, 16)) == (2, 1, 16, 16, 2)
    assert pairs.pack(iota((40, 16)))[1, 0, 3, 5, 1] == iota((40, 16))[39, 5]


def test_row_major_is_plain() -> None:
    assert row_major(3).tag == "ABC"
    assert row_major(3).plain
    assert not layout("BA").plain
    np.testing.assert_array_equal(row_major(0).pack(np.array(3.0)), np.array(3.0))


@pytest.mark.parametrize("tag", ["", "AC", "AA", "ab", "AB16", "AB16B", "AB0b", "A-B", "AB4c", "16aA2"])
def test_malformed_tags_are_refused(tag: str) -> None:
    with pytest.raises(ScheduleError, match="layout "):
        layout(tag)


def test_packing_checks_the_rank() -> None:
    with pytest.raises(ScheduleError, match="layout ABCD16b: array has 2 dimensions, layout has 4"):
        layout("ABCD16b").pack(np.zeros((3, 4)))
