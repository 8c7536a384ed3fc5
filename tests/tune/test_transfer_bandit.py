"""Transfer that is never worse than none by more than 5 %: a bandit trusts others' models as far as they rank."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np
import pytest

from burnish.search.exhaustive import Exhaustive
from burnish.search.space import Points
from burnish.tune import pretrained, tuner
from burnish.tune.features import extract
from burnish.tune.models.neural import TreeGRUModel
from burnish.tune.models.transfer import TransferModel
from burnish.tune.models.trees import TreeModel
from burnish.tune.pretrained import fit_nests
from burnish.tune.space import TuningSpace
from burnish.tune.strategy import AUTOTVM, TREEGRU_TRANSFER, TuningStrategy
from burnish.tune.transfer_bandit import TransferBandit, rank_correlation
from burnish.tune.tuner import Tuner
from tests.tune.test_tuner import SPACE, products

TRANSFER = AUTOTVM.with_(
    batch=16, initial=16, informed=False, transfer=True, representation="relation", common="relation",
    walker=lambda space, seed: Exhaustive(space, seed),
)  # fmt: skip


def landscape(space: TuningSpace, points: Points) -> np.ndarray:
    """Costs with one valley, in which nothing fails."""
    found = np.empty(len(points))
    for i, point in enumerate(points):
        c = space.candidate(point).choice
        found[i] = 1 + 0.5 * np.log2(int(c["tile"]) / 9) ** 2 + 0.3 * abs(int(c["vectors"]) - 3)
        found[i] += 0.1 * (c["unroll"] != 4) + 0.1 * (c["outer"] == "all") + 0.05 * np.log2(1 + int(c["depth"]) / 16)
    return 1e-4 * found


EVERY = SPACE.space.at(np.arange(SPACE.size))
PLACE = {key: place for place, key in enumerate(SPACE.space.keys(EVERY).tolist())}


@pytest.fixture(scope="module")
def costs() -> np.ndarray:
    return landscape(SPACE, EVERY)


@pytest.fixture
def known_features(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Features of the space's points are computed once for all searches."""
    table = extract(SPACE, "relation", EVERY)
    monkeypatch.setattr(tuner, "extract", lambda space, name, points: table[[PLACE[k] for k in keys(points)]])
    yield


def keys(points: Points) -> list[int]:
    found: list[int] = SPACE.space.keys(points).tolist()
    return found


def old_task(sign: float, seed: int) -> TreeModel:
    """A model of a task whose costs are those of the new one, or their inverses."""
    points = SPACE.space.sample(np.random.default_rng(100 + seed), 256)
    model = TreeModel("rank", rounds=40)
    model.fit(extract(SPACE, "relation", points), landscape(SPACE, points) ** sign, np.zeros(256, np.int64))
    return model


def search(costs: np.ndarray, seed: int, trials: int, prior: TreeModel | None) -> np.ndarray:
    """The best so far after 1, 2, … trials."""
    made, best = Tuner(SPACE, TRANSFER, seed, prior), [inf]
    while len(best) <= trials:
        points = made.propose(16)
        found = costs[[PLACE[k] for k in keys(points)]].tolist()
        made.observe(points, found)
        for cost in found:
            best.append(min(best[-1], cost))
    return np.array(best[1 : trials + 1])


@pytest.mark.slow
def test_an_old_task_that_misleads_costs_nothing_and_one_that_is_alike_helps(
    costs: np.ndarray, known_features: None
) -> None:
    """Medians of 15 seeds of the speed with transfer over the speed without, after each batch."""
    alone, misled, helped = (
        np.array([search(costs, seed, 64, None if sign is None else old_task(sign, seed)) for seed in range(15)])
        for sign in (None, -1.0, 1.0)
    )
    batches = [15, 31, 47, 63]
    against = np.median((alone / misled)[:, batches], axis=0)
    assert against.min() >= 0.95, against
    gain = np.median((alone / helped)[:, batches], axis=0)
    assert gain[0] > 1.1 and gain.min() >= 0.99, gain


@pytest.mark.parametrize(("sign", "least", "most"), [(-1.0, 0.0, 0.0), (1.0, 0.5, 1.0)])
def test_the_share_of_a_model_follows_how_it_ranks_the_first_trials(
    costs: np.ndarray, known_features: None, sign: float, least: float, most: float
) -> None:
    """Of an old task that misleads, no proposal of the second batch is by it."""
    asked = []

    class Watched(TransferBandit):
        @property
        def share(self) -> float:
            asked.append(super().share)
            return asked[-1]

    made = Tuner(SPACE, TRANSFER, 0, old_task(sign, 0))
    made._bandit = Watched()
    for _ in range(2):
        points = made.propose(16)
        made.observe(points, costs[[PLACE[k] for k in keys(points)]].tolist())
    assert all(least <= share <= most for share in asked)
    assert bool(asked) == (sign > 0) or max(asked) == 0.0
    assert made._bandit.begun


def test_a_bandit_compares_rankings_of_trials_that_no_model_was_fitted_on() -> None:
    bandit = TransferBandit()
    assert bandit.share == 0.5 and not bandit.begun
    costs = [1.0, 2.0, 3.0, inf]
    right, wrong = np.array([4.0, 3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0, 4.0])
    bandit.foresee([1, 2, 3, 4], right, wrong)
    bandit.observe([9], [1.0])  # a trial that none foresaw
    assert bandit.share == 0.5
    bandit.observe([1, 2, 3, 4], costs)
    assert bandit.share == 1.0
    for _ in range(3):
        bandit.foresee([1, 2, 3, 4], wrong, right)
        bandit.observe([1, 2, 3, 4], costs)
    assert bandit.share == 0.0
    bandit.foresee([1, 2, 3, 4], right, right)
    bandit.observe([1, 2, 3, 4], costs)
    assert bandit.share < 0.5


def test_rank_correlation_is_kendalls() -> None:
    assert rank_correlation(np.array([4.0, 3.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(4 / 6)
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, inf])) == pytest.approx(-2 / 3)
    assert rank_correlation(np.arange(30.0), np.full(30, inf)) == 0.0


@pytest.mark.slow
def test_a_context_encoded_treegru_is_the_global_model_of_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads loop nests of other spaces; beside it, trees learn this kernel (thesis-chen figure 5.3 d, eq. 5.4)."""
    monkeypatch.setattr(pretrained, "_STEPS", 5)
    known = []
    for space in (products(64, 64, 128), products(96, 256, 256)):
        points = space.space.sample(np.random.default_rng(1), 48)
        known.append((space, points, landscape(space, points).tolist()))
    model = fit_nests(known)
    assert isinstance(model, TreeGRUModel) and model.settings["encoding"] == "context"
    assert fit_nests([(space, points[:8], costs[:8]) for space, points, costs in known]) is None  # too few
    strategy: TuningStrategy = TREEGRU_TRANSFER.with_(
        batch=8, initial=8, candidates=2, walker=lambda space, seed: Exhaustive(space, seed)
    )
    small = products(2, 16, 16)
    made = Tuner(small, strategy, 0, model)
    for _ in range(2):
        points = made.propose(8)
        assert len(points) and small.space.contains(points).all()
        made.observe(points, landscape(small, points).tolist())
    assert isinstance(made._fitted, TransferModel) and 0.0 <= made._fitted.trust <= 1.0
