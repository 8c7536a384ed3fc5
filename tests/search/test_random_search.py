import numpy as np

from burnish.search.random_search import RandomSearch
from burnish.search.space import GridSpace


def refused(points: np.ndarray) -> np.ndarray:
    raise AssertionError("the score was called")


def test_random_search_is_uniform() -> None:
    walker = RandomSearch(GridSpace((10,)), seed=3)
    first = [int(walker.propose(refused, 1)[0, 0]) for _ in range(2000)]
    assert np.abs(np.bincount(first, minlength=10) / 2000 - 0.1).max() < 0.03
