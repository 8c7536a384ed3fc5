import numpy as np

from burnish.search.genetic import Evolution, Genetic, breed
from burnish.search.random_search import RandomSearch
from burnish.search.space import GridSpace
from burnish.search.walker import Walker
from tests.search.toys import TARGET, VALLEYS, Counted, rugged


def refused(points: np.ndarray) -> np.ndarray:
    raise AssertionError("the score was called")


def best_measured(walker: Walker, trials: int) -> float:
    """The best of a search that measures batches of 32."""
    tried: set[int] = set()
    best = -np.inf
    for _ in range(trials // 32):
        points = walker.propose(refused, 32, tried)
        scores = rugged(points)
        walker.observe(points, scores)
        tried |= set(walker.space.keys(points).tolist())
        best = max(best, scores.max())
    return best


def test_breeding_from_measurements_beats_random_points() -> None:
    genetic = [best_measured(Genetic(VALLEYS, seed=seed), 1024) for seed in range(3)]
    random = [best_measured(RandomSearch(VALLEYS, seed=seed), 1024) for seed in range(3)]
    assert min(genetic) > max(random) + 0.5


def test_the_parents_are_the_best_of_all_that_was_measured() -> None:
    space = GridSpace((100,))
    walker = Genetic(space, population=4)
    for start in (0, 50, 20):
        points = space.enumerate(start, start + 20)
        walker.observe(points, np.where(points[:, 0] == 69, -np.inf, points[:, 0].astype(float)))
    assert walker._parents[:, 0].tolist() == [68, 67, 66, 65]


def test_children_come_from_the_better_parents() -> None:
    space = GridSpace((50,) * 3)
    rng = np.random.default_rng(0)
    parents = np.repeat(np.arange(50, dtype=np.int32)[:, None], 3, axis=1)
    children = breed(space, rng, parents, np.arange(50.0), 4000, mutation=0.0)
    assert abs(children.mean() - 2 / 3 * 49) < 1.0  # the mean of the larger of two
    assert (children[:, 0] != children[:, 1]).mean() > 0.4
    moved = breed(space, rng, np.zeros((1, 3), np.int32), np.zeros(1), 4000, mutation=0.5)
    assert abs((moved == 0).all(axis=1).mean() - 0.25) < 0.03


def test_evolution_finds_the_optimum() -> None:
    score = Counted(rugged)
    points = Evolution(VALLEYS, seed=0).propose(score, 5)
    assert points[0].tolist() == TARGET.tolist()
    assert score.rows < 64_000


def test_evolution_ends_where_nothing_better_comes() -> None:
    small, score = GridSpace((4, 4)), Counted(lambda points: -points.sum(axis=1).astype(float))
    points = Evolution(small, population=64, generations=100, seed=0).propose(score, 16)
    assert points[0].tolist() == [0, 0]
    assert len(points) == 16
    assert score.calls < 20


def test_the_population_persists() -> None:
    walker = Evolution(VALLEYS, population=256, generations=20, seed=0)
    walker.propose(rugged, 1)
    walker.generations = 1
    assert walker.propose(rugged, 1)[0].tolist() == TARGET.tolist()
    fresh = Evolution(VALLEYS, population=256, generations=1, seed=0)
    assert fresh.propose(rugged, 1)[0].tolist() != TARGET.tolist()


def test_scores_without_any_finite_value_give_random_points() -> None:
    walker = Evolution(GridSpace((5, 5)), population=8, generations=2)
    assert walker.propose(lambda p: np.full(len(p), -np.inf), 6).shape == (6, 2)
