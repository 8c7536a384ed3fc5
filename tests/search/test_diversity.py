import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.search.annealing import Annealing
from burnish.search.diversity import DiverseBatches, select
from burnish.search.exhaustive import Exhaustive
from burnish.search.space import GridSpace, SearchSpace, Union
from tests.search.toys import SPACES


def knobs(space: SearchSpace, point: list[int]) -> set[tuple[int, ...]]:
    """The named values of a point's choices."""
    if isinstance(space, GridSpace):
        return {(column, position) for column, position in enumerate(point)}
    used = len(space.grids[point[0]].sizes)
    return {(point[0], column, point[1 + column]) for column in range(used)}


def objective(space: SearchSpace, points: np.ndarray, scores: np.ndarray, rows: list[int], weight: float) -> float:
    """Equation 5.3."""
    covered = set().union(*(knobs(space, points[row].tolist()) for row in rows))
    return sum(scores[row] for row in rows) + weight * len(covered)


@settings(deadline=None)
@given(SPACES, st.integers(0, 99), st.integers(1, 8), st.sampled_from([0.0, 0.25, 1.0, 8.0]))
def test_the_choice_is_the_greedy_one(space: SearchSpace, seed: int, count: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    points = space.sample(rng, 20)
    scores = rng.integers(0, 8, 20) / 4  # sums of quarters are exact
    naive: list[int] = []
    for _ in range(count):
        rest = [row for row in range(20) if row not in naive]
        naive.append(max(rest, key=lambda row: objective(space, points, scores, [*naive, row], weight)))
    assert select(space, points, scores, count, weight).tolist() == naive


def test_a_large_weight_covers_every_value_and_none_takes_the_best() -> None:
    space = GridSpace((4, 4))
    points = space.enumerate(0, 16)
    scores = np.arange(16.0)
    chosen = points[select(space, points, scores, 4, 100.0)]
    assert sorted(chosen[:, 0]) == sorted(chosen[:, 1]) == [0, 1, 2, 3]
    assert select(space, points, scores, 4, 0.0).tolist() == [15, 14, 13, 12]


def test_rows_are_never_chosen_twice() -> None:
    space = GridSpace((30,))
    points = space.enumerate(0, 30)
    assert sorted(select(space, points, np.full(30, -np.inf), 40, 1.0).tolist()) == list(range(30))


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_the_share_of_random_points_is_right_on_average(share: float) -> None:
    space = GridSpace((100_000,))
    walker = DiverseBatches(Exhaustive(GridSpace((100_000,))), weight=0.0, share=share)
    batches = [walker.propose(lambda p: p[:, 0], 3)[:, 0] for _ in range(40)]
    random = np.mean([(batch < space.size - 3).sum() for batch in batches]) / 3
    assert abs(random - share) < 0.08
    assert share in (0.0, 1.0) or {int((batch < space.size - 3).sum()) for batch in batches} >= {0, 1}


def test_batches_of_more_weight_cover_more_values() -> None:
    space = Union([GridSpace((8,) * 6), GridSpace((5, 5))])
    worth = np.random.default_rng(1).random((2, 7, 8))
    covered = []
    for weight in (0.0, 1.0, 5.0):
        walker = DiverseBatches(Annealing(space, chains=32, steps=100, seed=0), weight=weight, share=0.0, candidates=8)
        points = walker.propose(lambda p: worth[p[:, :1], np.arange(7), p].sum(axis=1), 12)
        covered.append(len(set().union(*(knobs(space, point) for point in points.tolist()))))
    assert covered[0] < covered[1] < covered[2]


def test_of_equal_scores_the_batch_covers_most() -> None:
    space = GridSpace((8, 8))
    batch = DiverseBatches(Exhaustive(space), candidates=8, weight=0.25, share=0.0).propose(
        lambda p: np.ones(len(p)), 8
    )
    assert len(np.unique(batch[:, 0])) == len(np.unique(batch[:, 1])) == 8
