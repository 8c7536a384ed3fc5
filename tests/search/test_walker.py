import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.search.annealing import Annealing
from burnish.search.diversity import DiverseBatches
from burnish.search.exhaustive import Exhaustive
from burnish.search.genetic import Evolution, Genetic
from burnish.search.random_search import RandomSearch
from burnish.search.remembered import Remembered
from burnish.search.space import GridSpace, SearchSpace, Union
from burnish.search.walker import Walker, best_distinct, evaluate, filled, unseen
from tests.search.toys import HUGE, SPACES, VALLEYS, rugged

WALKERS = {
    "random": lambda space, seed: RandomSearch(space, seed),
    "exhaustive": lambda space, seed: Exhaustive(space, seed),
    "annealing": lambda space, seed: Annealing(space, chains=8, steps=20, seed=seed),
    "genetic": lambda space, seed: Genetic(space, population=8, seed=seed),
    "evolution": lambda space, seed: Evolution(space, population=16, generations=4, seed=seed),
    "diverse": lambda space, seed: DiverseBatches(Annealing(space, 8, seed, steps=20), share=0.3, seed=seed),
}
every_walker = pytest.mark.parametrize("make", WALKERS.values(), ids=WALKERS)


def total(points: np.ndarray) -> np.ndarray:
    return points.sum(axis=1).astype(np.float64)


def search(walker: Walker, batches: int, count: int, tried: set[int]) -> list[list[list[int]]]:
    """The batches of a search that tries every proposal."""
    proposed = []
    for _ in range(batches):
        points = walker.propose(rugged if walker.space is VALLEYS else total, count, tried)
        walker.observe(points, total(points))
        tried |= set(walker.space.keys(points).tolist())
        proposed.append(points.tolist())
    return proposed


@every_walker
@settings(deadline=None, max_examples=15)
@given(SPACES, st.integers(1, 20), st.integers(0, 99))
def test_proposals_are_distinct_and_untried_until_the_space_is_exhausted(
    make, space: SearchSpace, count: int, seed
) -> None:
    walker, tried = make(space, seed), set()
    left = space.size
    for _ in range(4):
        points = walker.propose(total, count, tried)
        assert points.shape == (min(count, left), space.width) and points.dtype == np.int32
        assert space.contains(points).all()
        keys = set(space.keys(points).tolist())
        assert len(keys) == len(points) and not keys & tried
        walker.observe(points, total(points))
        tried |= keys
        left -= len(points)


@every_walker
def test_the_seed_decides_and_a_dumped_walker_goes_on_where_it_stood(make) -> None:
    space = GridSpace((6, 5, 4, 3)) if make is WALKERS["exhaustive"] else VALLEYS
    whole = search(make(space, 5), 4, 7, set())
    tried: set[int] = set()
    walker = make(space, 5)
    first = search(walker, 2, 7, tried)
    again = make(space, 99)
    again.load(json.loads(json.dumps(walker.dump())))
    assert first + search(again, 2, 7, tried) == whole
    if make is not WALKERS["exhaustive"]:
        assert search(make(space, 6), 4, 7, set()) != whole


@every_walker
def test_huge_spaces_are_walked(make) -> None:
    if make is WALKERS["exhaustive"]:
        return
    for space in HUGE:
        walker, tried = make(space, 0), set()
        search(walker, 3, 10, tried)
        assert len(tried) == 30


@pytest.mark.parametrize("name", ["annealing", "genetic", "evolution"])
def test_a_state_of_another_space_is_refused(name: str) -> None:
    walker = WALKERS[name](GridSpace((9, 9)), 0)
    search(walker, 1, 5, set())
    for other in (GridSpace((2, 2)), GridSpace((9, 9, 9))):
        with pytest.raises(ValueError, match="not in"):
            WALKERS[name](other, 0).load(walker.dump())


@settings(deadline=None)
@given(SPACES, st.integers(0, 99), st.integers(1, 12), st.data())
def test_best_distinct_is_the_sorted_list_without_repetitions(space: SearchSpace, seed: int, count: int, data) -> None:
    rng = np.random.default_rng(seed)
    points = space.sample(rng, data.draw(st.integers(0, 120)))
    keys = space.keys(points).tolist()
    worth = {key: data.draw(st.sampled_from([-np.inf, 0.0, 0.5, 1.0, 2.0])) for key in dict.fromkeys(keys)}
    scores = np.array([worth[key] for key in keys])
    exclude = set(data.draw(st.lists(st.sampled_from(keys)))) if keys else set()
    got, got_scores = best_distinct(space, points, scores, count, exclude)
    naive = []
    for row in sorted(range(len(keys)), key=lambda row: -scores[row]):
        if keys[row] not in exclude and scores[row] > -np.inf and keys[row] not in [keys[other] for other in naive]:
            naive.append(row)
    assert got.tolist() == points[naive[:count]].tolist() and got_scores.tolist() == scores[naive[:count]].tolist()


def test_best_distinct_looks_further_where_the_best_are_repeated_or_excluded() -> None:
    space = GridSpace((1000,))
    points = np.concatenate([np.zeros(5000), np.arange(1000)]).astype(np.int32)[:, None]
    got, _ = best_distinct(space, points, -points[:, 0].astype(float), 3, set(range(1, 500)))
    assert got[:, 0].tolist() == [0, 500, 501]


@settings(deadline=None)
@given(SPACES, st.integers(0, 60), st.data())
def test_unseen_gives_all_that_is_left_and_no_more(space: SearchSpace, count: int, data) -> None:
    exclude = set(data.draw(st.lists(st.integers(0, space.size - 1))))
    points = unseen(space, np.random.default_rng(0), count, exclude)
    keys = set(space.keys(points).tolist())
    assert len(points) == len(keys) == min(count, space.size - len(exclude)) and not keys & exclude


def test_unseen_finds_the_last_points_of_a_space() -> None:
    space = Union([GridSpace((100, 100)), GridSpace((3,))])
    points = unseen(space, np.random.default_rng(0), 10, set(range(space.size)) - {17, 10_001})
    assert sorted(space.keys(points).tolist()) == [17, 10_001]


def test_filled_keeps_the_points_and_adds_others() -> None:
    space = GridSpace((3, 3))
    points = filled(space, np.random.default_rng(0), space.enumerate(2, 4), 6, {0, 1})
    assert space.keys(points).tolist()[:2] == [2, 3]
    assert len(points) == 6 and set(space.keys(points).tolist()) <= set(range(2, 9))


def test_scores_are_checked() -> None:
    points = GridSpace((4,)).enumerate(0, 4)
    assert evaluate(lambda p: [0, np.nan, np.inf, -np.inf], points).tolist() == [0, -np.inf, np.inf, -np.inf]
    with pytest.raises(ValueError, match=r"shape \(4, 1\) for 4 points"):
        evaluate(lambda p: p, points)


def test_walks_are_the_same_with_a_remembered_score() -> None:
    for name in ("annealing", "evolution", "diverse"):
        plain, remembered = WALKERS[name](VALLEYS, 0), WALKERS[name](VALLEYS, 0)
        assert (plain.propose(rugged, 9) == remembered.propose(Remembered(VALLEYS, rugged), 9)).all()
