"""Scores that are remembered: asked once for each point, whatever the space."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.search.remembered import Distinct, Remembered
from burnish.search.space import GridSpace, SearchSpace, Union
from burnish.search.walker import evaluate
from tests.search.toys import HUGE, SPACES


def total(points: np.ndarray) -> np.ndarray:
    return points.sum(axis=1).astype(np.float64)


@settings(deadline=None)
@given(SPACES, st.integers(0, 2**32 - 1))
def test_a_remembered_score_is_asked_once_for_each_point(space: SearchSpace, seed: int) -> None:
    asked = []

    def score(points: np.ndarray) -> np.ndarray:
        asked.extend(space.keys(points).tolist())
        return np.where(total(points) % 3 == 0, np.nan, total(points))

    rng, remembered = np.random.default_rng(seed), Remembered(space, score)
    for count in (0, 7, 7, 30):
        points = np.concatenate([space.sample(rng, count)] * 2)
        assert (
            remembered(points).tolist() == evaluate(lambda p: np.where(total(p) % 3, total(p), np.nan), points).tolist()
        )
    assert len(asked) == len(set(asked))


def test_an_alternative_that_is_asked_about_often_is_scored_whole() -> None:
    space, rng, asked = Union([GridSpace((32, 32)), GridSpace((1000,) * 5)]), np.random.default_rng(0), []

    def score(points: np.ndarray) -> np.ndarray:
        asked.append(np.bincount(points[:, 0], minlength=2).tolist())
        return total(points)

    remembered = Remembered(space, score)
    for _ in range(20):
        points = np.concatenate([space.at(rng.integers(1024, size=8)), space.at(1024 + rng.integers(10**15, size=8))])
        assert (remembered(points) == total(points)).all()
    small, large = np.array(asked).T
    assert len(asked) == 20 and small.sum() == 1024 and (large == 8).all()
    assert (small[:3] <= 8).all() and small[3] > 990  # the fourth call for 1024 points


def test_points_have_the_places_in_which_they_were_first_met() -> None:
    for space in (*HUGE, GridSpace((9, 7, 50))):
        distinct, rng, places = Distinct(space.width), np.random.default_rng(0), {}
        for count in (0, 1, 700, 3000, 3000):
            points = space.sample(rng, count)
            points = np.concatenate([points, points[::2]])
            expected = [places.setdefault(key, len(places)) for key in space.keys(points).tolist()]
            assert distinct.places(points).tolist() == expected
        assert {key: at for at, key in enumerate(space.keys(distinct.points).tolist())} == places
