import numpy as np
import pytest

from burnish.search.annealing import Annealing, ContextualShare, contextual_share
from burnish.search.diversity import DiverseBatches
from burnish.search.space import GridSpace, Union
from tests.search.toys import TARGET, VALLEYS, Counted, rugged


def test_annealing_finds_the_optimum_that_random_points_come_nowhere_near() -> None:
    score = Counted(rugged)
    points, scores = Annealing(VALLEYS, seed=0).explore(score, keep=10)
    assert points[0].tolist() == TARGET.tolist() and scores[0] == 0.0
    assert score.rows == 128 * (1 + 3 * 250) and score.calls == 251
    random = rugged(VALLEYS.sample(np.random.default_rng(0), 5 * score.rows))
    assert random.max() < np.median(scores) and random.max() < -0.5


def test_temperature_leads_out_of_valleys() -> None:
    """One deep valley, from which every single move is worse."""
    trap = GridSpace((30, 30), ordered=(False, False))
    centre = np.array([7, 22])

    def score(points: np.ndarray) -> np.ndarray:
        equal = points == centre
        return np.where(equal.all(axis=1), 3.0, np.where(equal.any(axis=1), -0.5, np.where(points.sum(1) == 0, 1, 0)))

    walker = Annealing(trap, chains=16, seed=1, steps=200, temperature=(0.0, 0.0))
    walker._states = np.zeros((16, 2), np.int32)
    walker.explore(score, keep=1)
    assert (walker._states == 0).all()
    walker = Annealing(trap, chains=16, seed=1, steps=200, temperature=(8.0, 8.0))
    walker._states = np.zeros((16, 2), np.int32)
    walker.explore(score, keep=1)
    assert not (walker._states == 0).all(axis=1).any()


def test_moves_are_accepted_with_metropolis_probability() -> None:
    """At a fixed temperature the chains' stationary distribution is exp(score / temperature)."""
    space = GridSpace((4,), ordered=(False,))
    worth = np.array([0.0, 1.0, 0.5, -1.0])
    walker = Annealing(space, chains=2000, seed=0, steps=60, temperature=(0.5, 0.5))
    walker.explore(lambda points: worth[points[:, 0]], keep=1)
    unit = 0.5 * worth.std()  # of the scores of uniform points
    expected = np.exp(worth / unit) / np.exp(worth / unit).sum()
    found = np.bincount(walker._states[:, 0], minlength=4) / 2000
    assert np.abs(found - expected).max() < 0.04


def test_the_walk_does_not_depend_on_scale_and_offset_of_the_score() -> None:
    plain, _ = Annealing(VALLEYS, chains=16, seed=4, steps=50).explore(rugged, keep=20)
    scaled, _ = Annealing(VALLEYS, chains=16, seed=4, steps=50).explore(lambda p: 2.0**20 * rugged(p), keep=20)
    assert (plain == scaled).all()


def test_chains_go_on_where_they_stood_when_the_score_changes() -> None:
    walker = Annealing(VALLEYS, chains=32, seed=0)
    walker.explore(rugged, keep=1)
    stood = walker._states.copy()
    asked = []
    walker.explore(lambda points: asked.append(points.copy()) or -rugged(points), steps=1, keep=1)
    assert (asked[1] == stood).all()  # after the random points that measure the spread of scores
    assert ((asked[2] != stood).sum(axis=1) == 1).all()


def test_a_second_walk_costs_little_after_a_small_change_of_the_score() -> None:
    walker = Annealing(VALLEYS, seed=0)
    walker.explore(rugged, keep=1)
    moved = TARGET.copy()
    moved[2] -= 1
    points, _ = walker.explore(lambda p: rugged(p + (TARGET - moved)), steps=40, keep=1)
    assert points[0].tolist() == moved.tolist()
    afresh, _ = Annealing(VALLEYS, seed=0).explore(lambda p: rugged(p + (TARGET - moved)), steps=40, keep=1)
    assert afresh[0].tolist() != moved.tolist()


def test_what_is_given_is_the_best_of_all_that_was_scored() -> None:
    space = Union([GridSpace((9, 9, 9)), GridSpace((5, 40))])
    asked = []
    worth = np.random.default_rng(0).random(space.size)
    worth[::7] = -np.inf

    def score(points: np.ndarray) -> np.ndarray:
        keys = space.keys(points)
        asked.extend(keys.tolist())
        return worth[keys]

    tried = set(range(0, space.size, 3))
    points, scores = Annealing(space, chains=4, seed=0).explore(score, steps=600, keep=50, exclude=tried)
    assert len(asked) == 4 * (1 + 3 * 300)
    seen = [key for key in set(asked) - tried if worth[key] > -np.inf]
    assert space.keys(points).tolist() == sorted(seen, key=lambda key: -worth[key])[:50]
    assert scores.tolist() == sorted(worth[seen], reverse=True)[:50]


def test_scores_without_any_finite_value_give_random_points() -> None:
    walker = Annealing(GridSpace((5, 5)), chains=4, steps=10)
    points, _ = walker.explore(lambda p: np.full(len(p), -np.inf), keep=5)
    assert points.shape == (0, 2)
    assert walker.propose(lambda p: np.full(len(p), np.nan), 5).shape == (5, 2)


def test_a_state_with_another_number_of_chains_is_refused() -> None:
    walker = Annealing(VALLEYS, chains=8)
    walker.explore(rugged, steps=2, keep=1)
    with pytest.raises(ValueError, match="8 chains; this walker has 9"):
        Annealing(VALLEYS, chains=9).load(walker.dump())


def test_the_contextual_share_is_equation_3() -> None:
    assert contextual_share(np.array([1.0, 2.0, 3.0]), 40.0) == 0.05
    assert contextual_share(np.array([50.0]), 40.0) == 1.0
    assert contextual_share(np.array([1.0]), 0.0) == 1.0


def test_contextual_annealing_draws_untried_plans_for_every_batch() -> None:
    space = GridSpace((10, 10))
    tried = set(range(60))
    plans = []

    def deviation(points: np.ndarray) -> np.ndarray:
        plans.append(set(space.keys(points).tolist()))
        return np.full(len(points), 2.0)

    best = 8.0
    share = ContextualShare(deviation, lambda: best, plans=30)
    assert share(space, np.random.default_rng(0), tried) == 0.25
    assert len(plans[0]) == 30 and not plans[0] & tried
    assert share(space, np.random.default_rng(0), set(range(100))) == 0.0
    walker = DiverseBatches(Annealing(space, chains=8, steps=30), weight=0.0, share=share)
    high = set(space.keys(space.enumerate(92, 100)).tolist())
    greedy = [len(high & set(space.keys(walker.propose(space.keys, 8, set())).tolist())) for _ in range(20)]
    assert 6 <= np.mean(greedy) < 7  # six of eight, and what chance adds
    best = 2.0
    greedy = [len(high & set(space.keys(walker.propose(space.keys, 8, set())).tolist())) for _ in range(20)]
    assert np.mean(greedy) < 2
