"""Update of a model's leaves from other data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.boost import Dataset, GBTRegressor, cv, predict, train, train_distributed
from burnish.boost.external import train_external
from burnish.boost.model import dumps
from burnish.errors import ParameterError

RANDOM = np.random.default_rng(8)
X = RANDOM.normal(size=(500, 4)).astype(np.float32)
X[RANDOM.random(X.shape) < 0.1] = np.nan
X[:, 3] = RANDOM.integers(0, 7, 500)
Y = np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) + (X[:, 3] == 2)
LABELS: dict[str, Any] = {"softmax": np.digitize(Y, [-0.5, 0.5]), "logistic": Y > 0, "rank:ndcg": Y > 0}
UPDATE = {"process_type": "update"}


KINDS = (None, None, None, tuple(range(7)))


def data(objective: str = "squared_error", sign: float = 1.0, rows: slice = slice(None)) -> Dataset:
    label = np.asarray(LABELS.get(objective, sign * Y), np.float32)[rows]
    group = [20] * (len(label) // 20) if objective == "rank:ndcg" else None
    return Dataset.of(X[rows], label=label, group=group, categories=KINDS)


@pytest.mark.parametrize(
    "params",
    [
        {"max_depth": 4}, {"objective": "softmax", "num_class": 3}, {"objective": "rank:ndcg"},
        {"objective": "quantile", "quantile_alpha": 0.7}, {"tree_method": "approx"}, {"num_parallel_tree": 2},
        {"objective": "logistic", "learning_rate": [0.5, 0.4, 0.3, 0.2]},
    ],
)  # fmt: skip
def test_the_same_data_give_the_same_leaves(params: dict[str, Any]) -> None:
    dataset = data(str(params.get("objective")))
    model = train(params, dataset, 4)
    for threads in (1, 3):
        assert dumps(train({**params, **UPDATE}, dataset, continue_from=model, threads=threads)) == dumps(model)
    assert dumps(train({**params, **UPDATE}, dataset, 2, continue_from=model)) == dumps(
        model.slice(0, 2 * params.get("num_parallel_tree", 1))
    )


def test_other_data_give_other_leaves_of_the_same_splits() -> None:
    model = train({"max_depth": 3}, data(), 10)
    history: dict[str, Any] = {}
    other = data(sign=-1.0)
    given: dict[str, Any] = {"validation_data": {"v": other}, "early_stopping_rounds": 3, "history": history}
    found = train({"max_depth": 3, **UPDATE}, other, continue_from=model, **given)
    assert np.corrcoef(predict(found, X), -Y)[0, 1] > 0.9 and history["v"]["rmse"][-1] < history["v"]["rmse"][0]
    for one, two in zip(model.trees, found.trees, strict=True):
        assert (one.feature == two.feature).all() and (one.threshold == two.threshold).all()
    few = train({"max_depth": 3, **UPDATE}, data(rows=slice(0, 3)), continue_from=model)
    assert np.isfinite(predict(few, X)).all()


def test_estimators_update_by_warm_start() -> None:
    one = GBTRegressor(n_estimators=5, warm_start=True, categorical=[3]).fit(X, Y)
    splits = [tree.feature.tolist() for tree in one.model_.trees]
    one.set_params(process_type="update").fit(X, -Y)
    assert [tree.feature.tolist() for tree in one.model_.trees] == splits
    assert np.corrcoef(one.predict(X), -Y)[0, 1] > 0.5


def test_updates_that_cannot_be_are_refused(tmp_path: Path) -> None:
    model, dataset = train({}, data(), 3), data()
    alone = "'process_type': found 'update' without a model"
    for refused, message in (
        (lambda: train(UPDATE, dataset, 2), alone),
        (lambda: cv(UPDATE, dataset, 2), alone),
        (lambda: train_distributed(UPDATE, dataset, 2, worker_kind="thread"), alone),
        (lambda: train_external(UPDATE, [dataset], 2, folders=tmp_path), alone),
        (lambda: train(UPDATE, dataset, 4, continue_from=model), "rounds: found 4 .* 0 to 3"),
        (lambda: train({**UPDATE, "booster": "dart"}, dataset, continue_from=model), "with booster 'dart'"),
        (lambda: train({**UPDATE, "refresh_leaf": 0}, dataset, continue_from=model), "'refresh_leaf': found 0"),
        (lambda: train({"updater": "refresh"}, dataset), "'updater': found 'refresh'.*process_type 'update' alone"),
        (lambda: train({**UPDATE, "process_type": "prune"}, dataset), "'process_type': found 'prune'"),
    ):
        with pytest.raises(ParameterError, match=message):
            refused()
