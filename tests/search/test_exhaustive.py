import numpy as np

from burnish.search.exhaustive import BLOCK, Exhaustive
from burnish.search.space import GridSpace, Union
from tests.search.toys import Counted


def test_the_best_of_all_points_over_several_blocks() -> None:
    space = Union([GridSpace((BLOCK, 2)), GridSpace((7, 5))])
    worth = np.random.default_rng(0).permutation(space.size).astype(float)
    worth[10] = -np.inf
    score = Counted(lambda points: worth[space.keys(points)])
    order = np.argsort(-worth)
    tried = set(order[:3].tolist())
    points = Exhaustive(space).propose(score, 20, tried)
    assert space.keys(points).tolist() == order[3:23].tolist()
    assert score.rows == space.size
    everything = Exhaustive(space).propose(score, space.size, set())
    assert len(everything) == space.size - 1  # all but the one known to fail
