"""Transfer: fewer measurements than from scratch on a shifted task; a global model alone; columns it does not know."""

import numpy as np
import pytest

from burnish.errors import DataError
from burnish.tune.models.base import CostModel
from burnish.tune.models.transfer import TransferModel
from burnish.tune.models.trees import TreeModel
from tests.tune.models.synthetic import joined, pairs_in_order, sample

SHIFTED = {"size": 512, "cache": 2.0**12}  # another size, and caches of an eighth


def known(objective: str) -> TreeModel:
    source = joined(*(sample(300, 10 + task, size=size, task=task) for task, size in enumerate((128, 256, 1024))))
    model = TreeModel(objective)
    model.fit(source.features, source.cost, source.groups)
    return model


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_needs_fewer_measurements_than_from_scratch(objective: str) -> None:
    unseen = sample(300, 99, **SHIFTED)
    global_model = known(objective)

    def accuracy(model: CostModel, count: int) -> float:
        each = []
        for seed in range(3):
            data = sample(count, seed, **SHIFTED)
            model.fit(data.features, data.cost, data.groups)
            each.append(pairs_in_order(model.predict(unseen.features), unseen.cost))
        return float(np.mean(each))

    assert accuracy(TransferModel(global_model), 16) > accuracy(TreeModel(objective), 32) + 0.03
    alone = pairs_in_order(global_model.predict(unseen.features), unseen.cost)
    assert accuracy(TransferModel(global_model), 128) > alone + 0.08


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_is_the_sum_of_the_global_and_the_local_model(objective: str) -> None:
    global_model, data = known(objective), sample(40, 1, **SHIFTED)
    model = TransferModel(global_model)
    before = global_model.predict(data.features)
    assert np.array_equal(model.predict(data.features), before)
    model.fit(data.features, data.cost, data.groups)
    assert np.array_equal(global_model.predict(data.features), before)  # frozen
    local = TreeModel(objective)
    trusted = np.float32(model.trust) * before
    local.fit(data.features, data.cost, data.groups, scores=trusted)
    assert np.array_equal(model.predict(data.features), trusted + local.predict(data.features))


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_trust_in_a_global_model_that_is_wrong_is_lost_with_the_first_measurements(objective: str) -> None:
    source = sample(300, 10)
    misled = TreeModel(objective)
    misled.fit(source.features, 1 / source.cost, source.groups)
    unseen, data = sample(300, 99), sample(64, 1)
    model, alone, kept = TransferModel(misled), TreeModel(objective), TransferModel(known(objective))
    assert model.trust == 1.0
    for each in (model, alone, kept):
        each.fit(data.features, data.cost, data.groups)
    assert model.trust < 0.05 < 0.5 < kept.trust <= 1.0
    right = pairs_in_order(alone.predict(unseen.features), unseen.cost)
    assert pairs_in_order(model.predict(unseen.features), unseen.cost) > right - 0.03


def test_local_trees_leave_alone_what_the_global_model_explains() -> None:
    data = sample(60, 2)
    explained = (data.cost.min() / data.cost).astype(np.float32)
    local = TreeModel("regression")
    local.fit(data.features, data.cost, data.groups, scores=explained)
    assert np.abs(local.predict(data.features)).max() < 1e-5


def test_the_global_model_reads_the_invariant_columns_alone() -> None:
    global_model, data = known("rank"), sample(40, 3, **SHIFTED)
    own = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    wide = np.concatenate([data.features, own], axis=1)
    model = TransferModel(global_model, invariant=data.features.shape[1])
    assert np.array_equal(model.predict(wide), global_model.predict(data.features))
    model.fit(wide, data.cost, data.groups)
    assert pairs_in_order(model.predict(wide), data.cost) > 0.9
    with pytest.raises(DataError, match=r"float32\[40, 31\]; allowed: float32\[n, 32\]"):
        model.predict(wide[:, :31])


def test_scores_to_go_on_from_must_fit() -> None:
    data = sample(10, 4)
    with pytest.raises(DataError, match=r"scores \[9\]; allowed: \[10\]"):
        TreeModel().fit(data.features, data.cost, data.groups, scores=np.zeros(9, np.float32))
