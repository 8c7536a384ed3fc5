"""The collector is rare inside a compilation, and what it was behind it."""

import gc

import pytest

from burnish.base.garbage import MANY, rarely_collected


@pytest.mark.parametrize("before", [(700, 10, 10), (0, 10, 10), (5_000_000, 5, 5)])
def test_thresholds_come_back_and_those_of_others_stay(before: tuple[int, int, int]) -> None:
    kept = gc.get_threshold()
    try:
        gc.set_threshold(*before)
        inside = MANY if 0 < before[0] < MANY[0] else before
        with rarely_collected():
            with rarely_collected():
                assert gc.get_threshold() == inside
            assert gc.get_threshold() == inside
        assert gc.get_threshold() == before
        with pytest.raises(KeyError), rarely_collected():
            gc.set_threshold(123, 4, 5)
            raise KeyError
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*kept)
