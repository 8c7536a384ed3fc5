"""Errors are relative to each output's scale; what is not finite agrees with itself alone."""

import math

import numpy as np
import pytest

from burnish.errors import InputError
from burnish.measure.accuracy import scaled_error


def test_scaled_error_is_relative_to_each_output() -> None:
    expected = [np.array([10.0, -100.0]), np.array([1.0])]
    assert scaled_error([np.array([11.0, -100.0]), np.array([1.0])], expected) == pytest.approx(0.01)
    assert scaled_error([np.array([10.0, -100.0]), np.array([1.5])], expected) == pytest.approx(0.5)


def test_scaled_error_accepts_the_same_nan_only() -> None:
    nan = np.array([np.nan, 1.0])
    assert scaled_error([nan], [nan.copy()]) == 0.0
    assert math.isnan(scaled_error([nan, np.array([2.0])], [np.array([0.0, 1.0]), np.array([1.0])]))


def test_scaled_error_accepts_the_same_infinity_only() -> None:
    expected = np.array([np.inf, -np.inf, 2.0])
    assert scaled_error([np.array([np.inf, -np.inf, 3.0])], [expected]) == 0.5
    assert scaled_error([np.array([np.inf, np.inf, 2.0])], [expected]) == math.inf


def test_scaled_error_refuses_other_shapes() -> None:
    with pytest.raises(InputError, match=r"shapes \[\(2,\)\], expected \[\(3,\)\]"):
        scaled_error([np.zeros(2)], [np.zeros(3)])
