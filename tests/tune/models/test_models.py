"""What holds for every cost model: order, failures, tasks apart, the same after a round trip through JSON, refusals."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from burnish.errors import DataError, ParameterError
from burnish.tune.models import load_model
from burnish.tune.models.base import CostModel, LoopNests, MeasuredTrials
from burnish.tune.models.ensemble import BootstrapEnsemble
from burnish.tune.models.forest import ForestModel
from burnish.tune.models.neural import TreeGRUModel
from burnish.tune.models.transfer import TransferModel
from burnish.tune.models.trees import TreeModel
from tests.tune.models.synthetic import Sample, joined, linear_scores, pairs_in_order, sample


def tree_network(objective: str = "rank", encoding: str = "context", steps: int = 12) -> CostModel:
    """A network small enough for tests."""
    torch.set_num_threads(1)  # two would wait for each other where the machine is shared
    return TreeGRUModel(encoding, objective, hidden=24, slots=4, steps=steps, learning_rate=5e-3, device="cpu")


def transferred(objective: str) -> CostModel:
    """A model over a global one of another size."""
    other = sample(200, 50, size=128)
    known = TreeModel(objective)
    known.fit(other.features, other.cost, other.groups)
    return TransferModel(known)


MODELS: dict[str, Callable[[], CostModel]] = {
    "trees, rank": lambda: TreeModel("rank"),
    "trees, regression": lambda: TreeModel("regression"),
    "forest": ForestModel,
    "ensemble, rank": lambda: BootstrapEnsemble(TreeModel("rank"), 3),
    "ensemble, regression": lambda: BootstrapEnsemble(TreeModel("regression"), 3),
    "transfer, rank": lambda: transferred("rank"),
    "transfer, regression": lambda: transferred("regression"),
    "network, rank": tree_network,
    "network, regression": lambda: tree_network("regression"),
    "network, identifier": lambda: tree_network(encoding="identifier"),
}


def read_by(name: str, data: Sample) -> Any:
    """The features that a model reads."""
    return data.nests if name.startswith("network") else data.features


def made(name: str) -> CostModel:
    """A model that is to be good at what it does."""
    if name.startswith("network"):
        objective, encoding = ("rank", "identifier") if "identifier" in name else (name.split()[1], "context")
        return tree_network(objective, encoding, 150)
    return MODELS[name]()


def fitted(name: str, data: Sample, make: Callable[[str], CostModel] = lambda name: MODELS[name]()) -> CostModel:
    model = make(name)
    model.fit(read_by(name, data), data.cost, data.groups)
    return model


@pytest.fixture(scope="module")
def unseen() -> Sample:
    return sample(400, 99)


@pytest.mark.parametrize("name", MODELS)
def test_orders_unseen_candidates_better_than_a_linear_model(name: str, unseen: Sample) -> None:
    data = sample(400, 1, failing=0.1)
    baseline = pairs_in_order(linear_scores(data, unseen), unseen.cost)
    scores = fitted(name, data, made).predict(read_by(name, unseen))
    assert scores.dtype == np.float32 and scores.shape == (400,)
    assert baseline < 0.82
    assert pairs_in_order(scores, unseen.cost) > baseline + (0.03 if name.startswith("network") else 0.08)


@pytest.mark.parametrize("name", MODELS)
def test_failed_candidates_come_last(name: str) -> None:
    data = sample(300, 2)
    failing = data.features[:, 3] > 15  # tiles that touch more than 32 KiB, whatever their speed
    data.cost[failing] = np.inf
    assert 50 < failing.sum() < 150
    scores = fitted(name, data, made).predict(read_by(name, data))
    behind = scores[failing][:, None] < scores[~failing][None, :]
    assert behind.mean() > (0.8 if name.startswith("network") else 0.9)


@pytest.mark.parametrize("name", MODELS)
def test_costs_of_different_tasks_are_never_compared(name: str) -> None:
    first, second = sample(80, 3, task=4), sample(80, 4, task=-2)
    slow = Sample(second.features, second.nests, second.cost * 1024, second.groups)
    both = joined(first, second)
    scores = [fitted(name, data).predict(read_by(name, both)) for data in (both, joined(first, slow))]
    assert np.array_equal(*scores)


def test_rank_trees_learn_nothing_from_what_only_tells_tasks_apart() -> None:
    groups = np.repeat([0, 1], 50)
    random = np.random.default_rng(0)
    cost = np.where(groups == 0, random.uniform(1, 1.1, 100), random.uniform(1, 50, 100))
    model = TreeModel("rank")
    model.fit(groups[:, None].astype(np.float32), cost, groups)
    assert np.abs(model.predict(np.array([[0.0], [1.0]], np.float32))).max() < 1e-3


@pytest.mark.parametrize("name", ["trees, rank", "trees, regression"])  # others draw samples of the rows
def test_the_order_of_tasks_in_the_data_does_not_matter(name: str) -> None:
    data = joined(sample(50, 3, task=0), sample(50, 4, task=1))
    mixed = np.argsort(np.tile(np.arange(50), 2), kind="stable")  # tasks take turns
    model = fitted(name, data)
    other = MODELS[name]()
    other.fit(data.features[mixed], data.cost[mixed], data.groups[mixed])
    assert np.array_equal(model.predict(data.features), other.predict(data.features))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_the_same_after_json(name: str, unseen: Sample) -> None:
    model = fitted(name, sample(120, 5, failing=0.1))
    again = load_model(json.loads(json.dumps(model.dump(), allow_nan=False)))
    assert type(again) is type(model) and again.objective == model.objective
    features = read_by(name, unseen)
    assert np.array_equal(again.predict(features), model.predict(features))
    if hasattr(model, "predict_distribution"):
        for ours, theirs in zip(
            model.predict_distribution(features), again.predict_distribution(features), strict=True
        ):
            assert np.array_equal(ours, theirs)
    more = sample(60, 6)  # a loaded model can be fitted again
    for one in (model, again):
        one.fit(read_by(name, more), more.cost, more.groups)
    assert np.array_equal(again.predict(features), model.predict(features))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_same_settings_and_another_seed(name: str) -> None:
    data = sample(60, 7)
    features = read_by(name, data)
    scores = []
    for seed in (3, 3, 4):
        model = fitted(name, data).fresh(seed)
        model.fit(features, data.cost, data.groups)
        scores.append(model.predict(features))
    assert np.array_equal(scores[0], scores[1])
    if "trees, regression" != name != "transfer, regression":  # which draw nothing
        assert not np.array_equal(scores[0], scores[2])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cost", [[1.0], [np.inf], [np.inf, np.inf, np.inf], [2.0, 2.0]])
def test_data_from_which_nothing_can_be_learnt(name: str, cost: list[float]) -> None:
    data = sample(len(cost), 8)
    model = MODELS[name]()
    model.fit(read_by(name, data), cost, data.groups)
    assert np.isfinite(model.predict(read_by(name, sample(20, 9)))).all()


@pytest.mark.parametrize("name", MODELS)
def test_refusals(name: str) -> None:
    data = sample(8, 10)
    features, model = read_by(name, data), MODELS[name]()
    for cost, groups, message in (
        (data.cost[:7], data.groups, r"8 candidates, costs \[7\] and groups \[8\]"),
        (data.cost, data.groups[:, None], r"8 candidates, costs \[8\] and groups \[8, 1\]"),
        (data.cost, data.groups.astype(float), "groups are float64; allowed: integers"),
        (np.where(np.arange(8) == 3, 0.0, 1.0), data.groups, "cost of candidate 3: found 0.0; allowed: seconds > 0"),
        (np.where(np.arange(8) == 5, np.nan, 1.0), data.groups, "cost of candidate 5: found nan"),
    ):
        with pytest.raises(DataError, match=message):
            model.fit(features, cost, groups)
    with pytest.raises(DataError, match="found no candidates; allowed: 1 and more"):
        model.fit(features[:0], data.cost[:0], data.groups[:0])
    if not name.startswith("transfer"):
        with pytest.raises(DataError, match="the model has not been fitted"):
            model.predict(features)
    model.fit(features, data.cost, data.groups)
    if not name.startswith("network"):
        refuse_tables(model, data)


def refuse_tables(model: CostModel, data: Sample) -> None:
    spoiled = data.features.copy()
    spoiled[2, 5] = np.nan
    with pytest.raises(DataError, match=r"fit: feature 5 of candidate 2: found nan; allowed: finite"):
        model.fit(spoiled, data.cost, data.groups)
    with pytest.raises(DataError, match=r"predict: feature 5 of candidate 2: found nan"):
        model.predict(spoiled)
    with pytest.raises(DataError, match=r"features float32\[8, 31\]; allowed: float32\[n, 32\]"):
        model.predict(data.features[:, :31])
    with pytest.raises(DataError, match=r"fit: found features float32\[32\]"):
        model.fit(data.features[0], data.cost, data.groups)


def test_documents_that_are_no_models() -> None:
    data = sample(20, 11)
    model = fitted("trees, rank", data)
    dumped = model.dump()
    for change, message in (
        ({"format": "other"}, "no document of format"),
        ({"version": 2}, "no document of format"),
        ({"kind": "magic"}, "kind is 'magic'; allowed: 'trees', 'forest'"),
        ({"kind": None}, "'kind', 'settings' or 'state' is missing"),
        ({"kind": "forest"}, "a part is missing, or has the wrong type"),
        ({"settings": {"speed": 3}}, "a part is missing, or has the wrong type"),
        ({"state": {**dumped["state"], "sha256": "0"}}, "checksum"),
    ):
        with pytest.raises(DataError, match=message):
            load_model({**dumped, **change})
    with pytest.raises(DataError, match="kind is 'trees'; allowed: 'forest'"):
        ForestModel.load(dumped)


def test_settings_that_are_refused() -> None:
    for make, message in (
        (lambda: TreeModel("regresion"), "objective: found 'regresion'; allowed: 'rank', 'regression'"),
        (lambda: TreeModel(rounds=-1), "'rounds'"),
        (lambda: ForestModel(trees=0), "trees: found 0"),
        (lambda: ForestModel(max_depth=0), "max_depth: found 0"),
        (lambda: ForestModel(least=0), "least: found 0"),
        (lambda: ForestModel(share=1.5), "colsample_bylevel"),
        (lambda: BootstrapEnsemble(TreeModel(), 1), "members: found 1; allowed: 2"),
        (lambda: TransferModel(TreeModel("rank"), TreeModel("regression")), "objective 'regression'; allowed: 'rank'"),
        (lambda: TransferModel(TreeModel("rank"), invariant=0), "invariant: found 0"),
    ):
        with pytest.raises(ParameterError, match=message):
            make()


def test_throughput_is_relative_to_the_best_of_the_task() -> None:
    measured = MeasuredTrials.of(6, [4.0, 1.0, np.inf, 3.0, 6.0, np.inf], [7, 7, 7, -1, -1, 9])
    assert np.allclose(measured.throughput, [0.25, 1, 0, 1, 0.5, 0])
    assert measured.group.tolist() == [1, 1, 1, 0, 0, 2]
    order, sizes = measured.by_group()
    assert order.tolist() == [3, 4, 0, 1, 2, 5] and sizes.tolist() == [2, 3, 1]


def test_loop_nests_check_themselves() -> None:
    levels, mask = np.zeros((2, 3, 4), np.float32), np.array([[True, True, False], [True, False, False]])
    levels[0, 2] = np.nan  # not a level of the nest
    nests = LoopNests(levels, mask)
    assert len(nests) == 2 and not nests.levels.any() and len(nests[1:]) == 1
    levels[1, 0, 3] = np.inf
    with pytest.raises(DataError, match="level 0 of candidate 1 has a feature that is not finite"):
        LoopNests(levels, mask)
    with pytest.raises(DataError, match="candidate 1 has no level"):
        LoopNests(levels, np.array([[True, False, False], [False] * 3]))
    with pytest.raises(DataError, match=r"levels \[2, 3, 4\] and mask bool\[2, 4\]"):
        LoopNests(levels, np.ones((2, 4), bool))
    with pytest.raises(DataError, match=r"mask int64\[2, 3\]"):
        LoopNests(levels, mask.astype(np.int64))
