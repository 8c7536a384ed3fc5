"""Integer inputs: labels and indices that a call refuses, and those that it takes."""

import numpy as np
import pytest

from burnish.errors import InputError
from burnish.runtime.integers import Allowed, check_integers, known_integers


def _refused(allowed: Allowed, values: object, dtype: str) -> bool:
    try:
        check_integers([allowed], ["i"], [np.array(values).astype(dtype)])
    except InputError as error:
        assert "input 'i': found" in str(error)
        return True
    return False


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize(
    ("low", "value", "refused"),
    [(0, -1, True), (0, 0, False), (0, 9, False), (0, 10, True), (-10, -10, False), (-10, -11, True), (-10, 10, True)],
)
def test_an_index_is_refused_exactly_outside_of_its_bounds(dtype: str, low: int, value: int, refused: bool) -> None:
    assert _refused(Allowed(0, low, 10), [[1, 2], [3, value]], dtype) is refused


def test_unsigned_ones_strided_ones_and_none_at_all() -> None:
    assert _refused(Allowed(0, 0, 10), [3, 200], "uint8")
    assert not _refused(Allowed(0, 0, 10), np.zeros((0, 3)), "int64")
    check_integers([Allowed(0, 0, 10)], ["i"], [np.array([1, 99, 2, 99])[::2]])
    check_integers([Allowed(0, 0, 10)], ["i"], [None])


def test_labels_may_be_negative_or_the_one_that_is_ignored() -> None:
    assert not _refused(Allowed(0, None, 10, 255), [-1, 9, 255], "int64")
    assert _refused(Allowed(0, None, 10, 255), [-1, 10, 255], "int64")


def test_what_an_altered_file_may_hold_is_left_out() -> None:
    info = {"labels": [[0, 10, None], [7, 10, None], "x", [1]], "indices": [[1, 0, 5], [1, None, 5], [1, 0, "5"]]}
    assert known_integers(info, 2) == (Allowed(0, None, 10), Allowed(1, 0, 5))
    assert known_integers({"labels": 3, "indices": {}}, 2) == ()
