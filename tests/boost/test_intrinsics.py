import numpy as np

from burnish.boost.intrinsics import CACHE_LINE, add_pair, aligned
from burnish.boost.kernels import lean


@lean
def _add(sums, places, first, second):  # type: ignore[no-untyped-def]
    for i in range(len(places)):
        add_pair(sums, places[i], first[i], second[i])


def test_pairs_are_added_where_they_belong() -> None:
    rng = np.random.default_rng(0)
    places = rng.integers(0, 19, 500)  # also at odd places, which overlap
    first, second = rng.integers(-(2**62), 2**62, (2, 500))
    sums = np.zeros(20, np.int64)
    _add(sums, places, first, second)
    expected = np.zeros(20, np.int64)
    with np.errstate(over="ignore"):
        np.add.at(expected, places, first)
        np.add.at(expected, places + 1, second)
    assert np.array_equal(sums, expected)


def test_aligned_arrays_begin_at_cache_lines() -> None:
    for size in (1, 7, 64):
        array = aligned((size, 3), np.int64)
        assert array.shape == (size, 3) and array.ctypes.data % CACHE_LINE == 0
