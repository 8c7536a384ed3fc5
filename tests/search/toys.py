"""Spaces and scores that the tests of the walkers share."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from burnish.search.space import GridSpace, Points, Union

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5)
GRIDS = SIZES.flatmap(
    lambda sizes: st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)).map(lambda o: GridSpace(sizes, o))
)
SPACES = st.one_of(GRIDS, st.lists(GRIDS, min_size=1, max_size=4).map(Union))
HUGE = (GridSpace((1000,) * 10), Union([GridSpace((2**31 - 1,) * 4), GridSpace((3, 2)), GridSpace((7,) * 30)]))

TARGET = np.array([3, 11, 14, 6, 0, 9, 12, 5])
VALLEYS = GridSpace((16,) * 8)


def rugged(points: Points) -> np.ndarray:
    """0 at TARGET alone and less everywhere else, with a valley every four positions and coupled columns."""
    away = points - TARGET
    slope = np.abs(away).sum(axis=1) / 8
    ripples = (1 - np.cos(2 * np.pi * away / 4)).sum(axis=1) / 4
    coupled = (away[:, 1:] * away[:, :-1] % 5 != 0).sum(axis=1) / 4
    return -(slope + ripples + coupled)


class Counted:
    """A score that counts the rows it was asked for, and the calls."""

    def __init__(self, score) -> None:
        self.score = score
        self.rows = 0
        self.calls = 0

    def __call__(self, points: Points) -> np.ndarray:
        self.rows += len(points)
        self.calls += 1
        return self.score(points)
