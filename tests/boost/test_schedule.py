"""Learning rates that differ by round, with everything that a training may have beside."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from burnish.boost import Dataset, GBTRegressor, Model, cv, predict, save_every, train, train_distributed
from burnish.boost.external import train_external
from burnish.boost.model import dumps
from burnish.boost.params import Params
from burnish.errors import ParameterError

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(400, 4)).astype(np.float32)
Y = X[:, 0] + X[:, 1] * X[:, 2]
RATES = [0.5, 0.4, 0.05, 0.3, 0.2, 0.1]
LABELS: dict[str, Any] = {"softmax": np.digitize(Y, [-0.5, 0.5]), "logistic": Y > 0, "rank:ndcg": Y > 0}


def half(number: int) -> float:
    return 0.5 / (number + 1)


def data(objective: str = "squared_error") -> Dataset:
    group = [20] * 20 if objective == "rank:ndcg" else None
    return Dataset.of(X, label=np.asarray(LABELS.get(objective, Y), np.float32), group=group)


@pytest.mark.parametrize(
    "more",
    [
        {}, {"tree_method": "exact"}, {"tree_method": "approx"}, {"objective": "quantile"}, {"num_parallel_tree": 2},
        {"objective": "softmax", "num_class": 3}, {"objective": "rank:ndcg"},
        {"objective": "quantile", "quantile_alpha": [0.2, 0.8]},
    ],
)  # fmt: skip
def test_a_list_is_training_round_by_round(more: dict[str, Any]) -> None:
    params, dataset = {"max_depth": 3, **more}, data(str(more.get("objective")))
    model = None
    for rate in RATES:
        model = train({**params, "eta": rate}, dataset, 1, continue_from=model)
    assert model is not None
    whole = train({**params, "eta": RATES}, dataset, len(RATES), threads=3)
    assert dumps(whole) == dumps(model)
    begun = train({**params, "learning_rates": np.array(RATES)}, dataset, 2)
    assert dumps(train({**params, "eta": RATES}, dataset, 4, continue_from=begun)) == dumps(model)


def test_a_function_with_dart_metrics_and_resuming() -> None:
    dataset = data()
    listed = {"learning_rate": [half(number) for number in range(6)]}
    assert dumps(train({"learning_rate": half}, dataset, 6)) == dumps(train(listed, dataset, 6))
    dart = {"booster": "dart", "rate_drop": 0.5, "seed": 1}
    assert dumps(train({**dart, "eta": half}, dataset, 6)) == dumps(train({**dart, **listed}, dataset, 6))
    assert dumps(train({**dart, "eta": half}, dataset, 6)) != dumps(train({**dart, "eta": 0.5}, dataset, 6))
    begun = train({"eta": half}, dataset, 3)
    assert dumps(train({"eta": half}, dataset, 6, resume_from=begun)) == dumps(train(listed, dataset, 6))
    assert cv({"eta": half}, dataset, 3, as_pandas=False) == cv(listed, dataset, 3, as_pandas=False)


def test_from_disk_on_workers_and_with_checkpoints(tmp_path: Path) -> None:
    params, dataset = {"eta": RATES, "max_depth": 3}, data()
    whole = train(params, dataset, 6)
    outside = train_external(params, [dataset], 6, folders=tmp_path / "store")
    assert dumps(outside) == dumps(whole)
    home = tmp_path / "checkpoints"
    given: dict[str, Any] = {"worker_kind": "thread", "checkpoint": home, "checkpoint_every": 2, "threads": 1}
    train_distributed(params, dataset, 4, **given)
    assert dumps(train_distributed(params, dataset, 6, **given)) == dumps(whole)
    train(params, dataset, 6, callbacks=[save_every(6, tmp_path)])
    assert (predict(Model.load(tmp_path / "round-000006.json"), X) == predict(whole, X)).all()


def test_estimators_take_a_schedule() -> None:
    one = clone(GBTRegressor(n_estimators=6, learning_rate=RATES)).fit(X, Y)
    assert (one.predict(X) == predict(train({"eta": RATES}, data(), 6), X)).all()
    two = GBTRegressor(n_estimators=3, learning_rate=RATES, warm_start=True).fit(X, Y)
    assert (two.set_params(n_estimators=6).fit(X, Y).predict(X) == one.predict(X)).all()


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ([0.1, 0.2], r"'learning_rate': found 2 rates; allowed: one for each round, 3 or more"),
        ([], "found no rates"),
        ([0.1, 0.0, 0.2], r"'learning_rate': found 0.0; allowed: a number in \(0.0"),
        ("[0.1, x, 0.2]", "'learning_rate': found 'x'"),
        (lambda number: -1.0, "learning_rate of round 2': found -1.0"),
        (lambda number: None, "learning_rate of round 2': found None"),
    ],
)
def test_wrong_rates_are_refused(rate: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        train({"learning_rate": rate}, data(), 3)


def test_text_as_on_a_command_line() -> None:
    assert Params.of({"eta": "[0.5, 0.25]"}).learning_rate == (0.5, 0.25)
    assert Params.of({"eta": "0.5"}).learning_rate == 0.5
