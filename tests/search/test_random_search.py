import numpy as np

from burnish.search.random_search import BLOCK, GridSearch, RandomSearch
from burnish.search.space import GridSpace, Union


def refused(points: np.ndarray) -> np.ndarray:
    raise AssertionError("the score was called")


def test_grid_search_is_the_enumeration_without_what_was_tried() -> None:
    space = Union([GridSpace((3, 4)), GridSpace((5,))])
    walker = GridSearch(space)
    found = np.concatenate([walker.propose(refused, count, {0, 3, 4, 16}) for count in (1, 4, 2, 9)])
    assert space.keys(found).tolist() == [1, 2, *range(5, 16)]


def test_grid_search_passes_over_blocks_that_were_tried() -> None:
    space = GridSpace((4 * BLOCK,))
    tried = set(range(3 * BLOCK)) | {3 * BLOCK + 1}
    assert GridSearch(space).propose(refused, 3, tried)[:, 0].tolist() == [3 * BLOCK, 3 * BLOCK + 2, 3 * BLOCK + 3]


def test_random_search_is_uniform() -> None:
    walker = RandomSearch(GridSpace((10,)), seed=3)
    first = [int(walker.propose(refused, 1)[0, 0]) for _ in range(2000)]
    assert np.abs(np.bincount(first, minlength=10) / 2000 - 0.1).max() < 0.03
