"""Weights and gains against their definitions, minimised numerically."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.splitter import UNBOUNDED, child_bounds, leaf_score, leaf_weight, split_gain, weight_score

finite = st.floats(-50, 50)
positive = st.floats(0.1, 50)
penalty = st.floats(0, 5)


@settings(max_examples=100, deadline=None)
@given(
    finite,
    positive,
    penalty,
    penalty,
    st.sampled_from([0.0, 0.3, 2.0]),
    st.sampled_from([(-math.inf, math.inf), (-1, 0.5)]),
)
def test_the_weight_takes_most_loss_away(
    g: float, h: float, reg_lambda: float, reg_alpha: float, limit: float, bounds: tuple[float, float]
) -> None:
    weight = leaf_weight(g, h, reg_lambda, reg_alpha, limit, *bounds)
    reach = limit or 1e9
    assert max(-reach, bounds[0]) <= weight <= min(reach, bounds[1])
    others = np.clip(weight + np.array([-1, -1e-2, 1e-2, 1]), max(-reach, bounds[0]), min(reach, bounds[1]))
    best = weight_score(g, h, weight, reg_lambda, reg_alpha)
    assert all(weight_score(g, h, other, reg_lambda, reg_alpha) <= best + 1e-9 for other in others)
    if bounds == (-math.inf, math.inf):
        assert leaf_score(g, h, reg_lambda, reg_alpha, limit) == pytest.approx(best, abs=1e-9)


def test_gain_is_twice_equation_2_7() -> None:
    gain = split_gain(1.0, 2.0, -3.0, 4.0, 1.0, 0.0, 0.0, 1.0, 0, -UNBOUNDED, UNBOUNDED)
    assert gain == pytest.approx(1 / 3 + 9 / 5 - 4 / 7)
    assert split_gain(1.0, 2.0, -3.0, 4.0, 1.0, 0.0, 0.0, 2.5, 0, -UNBOUNDED, UNBOUNDED) == -math.inf
    assert split_gain(1.0, 0.0, -3.0, 4.0, 1.0, 0.0, 0.0, 0.0, 0, -UNBOUNDED, UNBOUNDED) == -math.inf


def test_monotone_gain() -> None:
    falling = (-3.0, 2.0, 3.0, 2.0, 1.0, 0.0, 0.0, 1.0)  # left weight 1, right weight -1
    free = split_gain(*falling, 0, -UNBOUNDED, UNBOUNDED)
    assert split_gain(*falling, 1, -UNBOUNDED, UNBOUNDED) == -math.inf
    assert split_gain(*falling, -1, -UNBOUNDED, UNBOUNDED) == pytest.approx(free)
    assert split_gain(*falling, -1, -0.5, 0.5) < free
    assert child_bounds(1, -1.0, 2.0, -5.0, 5.0) == (-5.0, 0.5, 0.5, 5.0)
    assert child_bounds(-1, 2.0, -1.0, -5.0, 5.0) == (0.5, 5.0, -5.0, 0.5)
    assert child_bounds(0, 2.0, -1.0, -5.0, 5.0) == (-5.0, 5.0, -5.0, 5.0)
