"""Label matrices: an output for each column, of regression and of several binary labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.model_selection import GridSearchCV, cross_val_score

import burnish as bn
from burnish.boost import Dataset, GBTClassifier, GBTRegressor, Model, cv, predict, train
from burnish.boost.distributed import train_distributed
from burnish.boost.external import train_external
from burnish.boost.importance import importance
from burnish.boost.shap import contributions
from burnish.errors import DataError, ParameterError

RANDOM = np.random.default_rng(5)
ROWS, OUTPUTS = 500, 3
X = RANDOM.normal(size=(ROWS, 5)).astype(np.float32)
X[RANDOM.random(X.shape) < 0.1] = np.nan
SIGNAL = np.nan_to_num(X)
Y = np.stack([SIGNAL[:, 0] + SIGNAL[:, 1] * SIGNAL[:, 2], np.abs(SIGNAL[:, 3]), SIGNAL[:, 4] ** 2], axis=1)
LABELS = np.greater(Y, Y.mean(axis=0)).astype(np.int64)
POSITIVE = np.abs(Y) + 0.1
TARGETS = {
    "squared_error": Y, "logistic": LABELS, "poisson": POSITIVE, "quantile": Y, "reg:absoluteerror": Y,
    "reg:pseudohubererror": Y, "huber": Y, "reg:gamma": POSITIVE, "reg:tweedie": POSITIVE,
}  # fmt: skip
THEIRS = {
    "squared_error": "reg:squarederror", "logistic": "binary:logistic", "reg:absoluteerror": "reg:absoluteerror",
    "reg:pseudohubererror": "reg:pseudohubererror", "poisson": "count:poisson", "reg:gamma": "reg:gamma",
    "reg:tweedie": "reg:tweedie",
}  # fmt: skip


@pytest.mark.parametrize("objective", TARGETS)
def test_each_output_is_a_training_of_its_own(objective: str) -> None:
    label, params = TARGETS[objective], {"objective": objective, "max_depth": 4}
    model = train(params, Dataset.of(X, label=label), 6)
    assert (model.outputs, model.rounds) == (OUTPUTS, 6)
    found = predict(model, X)
    for output in range(OUTPUTS):
        single = train(params, Dataset.of(X, label=label[:, output]), 6)
        assert np.array_equal(found[:, output], predict(single, X))


@pytest.mark.parametrize("more", [{"tree_method": "exact"}, {"tree_method": "approx"}, {"max_leaves": 6}])
def test_ways_of_growing_and_weights(more: dict[str, Any]) -> None:
    weight = RANDOM.random(ROWS).astype(np.float32)
    model = train(more, Dataset.of(X, label=Y, weight=weight), 4)
    for output in range(OUTPUTS):
        single = train(more, Dataset.of(X, label=Y[:, output], weight=weight), 4)
        assert np.array_equal(predict(model, X)[:, output], predict(single, X))


def test_metrics_are_means_over_rows_and_outputs() -> None:
    weight = RANDOM.random(ROWS).astype(np.float32)
    data, history = Dataset.of(X, label=LABELS, weight=weight), {}  # type: ignore[var-annotated]
    params = {"objective": "logistic", "eval_metric": ["rmse", "mae", "logloss", "error", "auc", "aucpr"]}
    model = train(params, data, 3, validation_data={"t": data}, history=history)
    p, y = predict(model, X).astype(np.float64), LABELS
    last = {name: values[-1] for name, values in history["t"].items()}

    def mean(losses: Any) -> float:
        return float(np.average(losses.mean(axis=1), weights=weight))

    assert last["rmse"] == pytest.approx(np.sqrt(mean((p - y) ** 2)), rel=1e-6)
    assert last["mae"] == pytest.approx(mean(np.abs(p - y)), rel=1e-6)
    assert last["logloss"] == pytest.approx(mean(-y * np.log(p) - (1 - y) * np.log(1 - p)), rel=1e-6)
    assert last["error"] == pytest.approx(mean((p > 0.5) != y), rel=1e-6, abs=1e-9)
    for name in ("auc", "aucpr"):
        single: list[float] = []
        for output in range(OUTPUTS):
            kept: dict[str, Any] = {}
            one = Dataset.of(X, label=LABELS[:, output], weight=weight)
            train({**params, "eval_metric": name}, one, 3, validation_data={"t": one}, history=kept)
            single.append(kept["t"][name][-1])
        assert last[name] == pytest.approx(np.mean(single), rel=1e-9)


@pytest.mark.parametrize("objective", THEIRS)
@pytest.mark.parametrize("ending", ["json", "ubj"])
def test_models_are_exchanged_with_xgboost(objective: str, ending: str, tmp_path: Path) -> None:
    import xgboost

    matrix = xgboost.DMatrix(X, label=TARGETS[objective])
    theirs = xgboost.train({"objective": THEIRS[objective], "max_depth": 4, "nthread": 1}, matrix, 5)
    theirs.save_model(tmp_path / f"theirs.{ending}")
    read = Model.load(tmp_path / f"theirs.{ending}")
    expected = theirs.predict(matrix, output_margin=True)
    np.testing.assert_allclose(predict(read, X, output="margin"), expected, rtol=1e-6, atol=1e-6)

    ours = train({"objective": objective, "max_depth": 4}, Dataset.of(X, label=TARGETS[objective]), 5)
    ours.save(tmp_path / f"ours.{ending}", format="xgboost")
    booster = xgboost.Booster(model_file=tmp_path / f"ours.{ending}")
    found = booster.predict(matrix, output_margin=True)
    np.testing.assert_allclose(found, predict(ours, X, output="margin"), rtol=1e-6, atol=1e-6)


def test_trees_with_vectors_at_their_leaves_are_refused(tmp_path: Path) -> None:
    import xgboost

    params = {"multi_strategy": "multi_output_tree", "tree_method": "hist", "nthread": 1}
    xgboost.train(params, xgboost.DMatrix(X, label=Y), 2).save_model(tmp_path / "m.json")
    with pytest.raises(DataError, match="vectors of 3 values at its leaves"):
        Model.load(tmp_path / "m.json")


def test_continued_saved_explained_and_compiled(tmp_path: Path) -> None:
    data = Dataset.of(X, label=LABELS)
    params = {"objective": "logistic", "max_depth": 3}
    model = train(params, data, 6)
    expected = predict(model, X)
    continued = train(params, data, 3, continue_from=train(params, data, 3))
    assert np.array_equal(predict(continued, X), expected)
    model.save(tmp_path / "m.json")
    assert np.array_equal(predict(Model.load(tmp_path / "m.json"), X), expected)
    shares = contributions(model, X)
    margin = predict(model, X, output="margin")
    np.testing.assert_allclose(shares.sum(axis=2).T, margin, rtol=1e-5, atol=1e-5)
    assert importance(model).shape == (5,)
    assert np.array_equal(np.asarray(bn.compile(model)(X)), expected)
    assert np.array_equal(predict(model, X, output="class"), (expected > 0.5).astype(np.int64))


def test_early_stopping_and_cross_validation() -> None:
    data, held = Dataset.of(X[:300], label=Y[:300]), Dataset.of(X[300:], label=Y[300:])
    model = train({"learning_rate": 1.0}, data, 60, validation_data={"held": held}, early_stopping_rounds=3)
    assert model.best_iteration is not None and model.rounds < 60
    assert len(cv({"max_depth": 2}, data, 3, nfold=3)) == 3


def test_out_of_core_training_has_the_same_trees(tmp_path: Path) -> None:
    data = Dataset.of(X, label=Y)
    whole = train({"max_depth": 3}, data, 3)
    model = train_external({"max_depth": 3}, [data], 3, folders=[tmp_path], memory_budget=64 << 20)
    assert np.array_equal(predict(model, X), predict(whole, X))
    bounds = Dataset.of(X, label_lower_bound=POSITIVE[:, 0], label_upper_bound=POSITIVE[:, 0] + 1)
    with pytest.raises(DataError, match="label: found lower and upper bounds; allowed with memory_budget"):
        train_external({}, [bounds], 1, folders=[tmp_path])


def test_workers_with_parts_of_the_rows_grow_the_same_trees() -> None:
    params = {"max_depth": 3, "objective": "logistic", "eval_metric": ["logloss", "auc"]}
    data, history, found = Dataset.of(X, label=LABELS), {}, {}  # type: ignore[var-annotated]
    whole = train(params, data, 3, validation_data={"t": data}, history=history)
    model = train_distributed(
        params, data, 3, workers=2, worker_kind="thread", validation_data={"t": data}, history=found, threads=1
    )
    assert np.array_equal(predict(model, X), predict(whole, X))
    assert found == history


def test_functions_of_the_users_see_the_matrix() -> None:
    def squares(margin: Any, data: Any) -> Any:
        return margin - data.label, np.ones_like(margin)

    model = train({"objective": squares, "base_score": 0.0}, Dataset.of(X, label=Y), 5)
    expected = train({"base_score": 0.0}, Dataset.of(X, label=Y), 5)
    np.testing.assert_allclose(predict(model, X), predict(expected, X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"objective": "rank:ndcg"}, "'rank_ndcg' with a label matrix of 3 outputs; allowed: 'squared_error'"),
        ({"objective": "softmax", "num_class": 3}, "'softmax' with a label matrix"),
        ({"objective": "survival:aft"}, "'survival:aft' with a label matrix"),
        ({"objective": "quantile", "quantile_alpha": [0.1, 0.9]}, "2 quantiles with a label matrix of 3 outputs"),
        ({"multi_strategy": "multi_output_tree"}, "nearest there is: 'one_output_per_tree'"),
        ({"eval_metric": "mlogloss"}, "allows one for each row"),
        ({"eval_metric": "ndcg"}, "allows one for each row"),
    ],
)
def test_what_has_no_form_for_a_matrix_is_refused_by_name(params: dict[str, Any], message: str) -> None:
    data = Dataset.of(X, label=Y)
    with pytest.raises((ParameterError, DataError), match=message):
        train(params, data, 1, validation_data={"t": data})


def test_labels_of_another_shape_or_range_are_refused() -> None:
    data = Dataset.of(X, label=Y)
    with pytest.raises(DataError, match=r"validation_data 't': label: found shape \(500,\); allowed: \(500, 3\)"):
        train({}, data, 1, validation_data={"t": Dataset.of(X, label=Y[:, 0])})
    with pytest.raises(DataError, match=r"validation_data 't': label: found shape \(500, 3\); allowed: \(500,\)"):
        train({}, Dataset.of(X, label=Y[:, 0]), 1, validation_data={"t": data})
    with pytest.raises(DataError, match=r"output 1: label of row 3: found 7\.0; allowed: 0 or 1"):
        train({"objective": "logistic"}, Dataset.of(X, label=np.where(np.arange(ROWS * 3) == 10, 7, 0).reshape(-1, 3)))
    with pytest.raises(DataError, match=r"label: found shape \(5, 3\); allowed is \(500,\) or \(500, outputs\)"):
        Dataset.of(X, label=Y[:5])
    bounds = Dataset.of(X, label_lower_bound=POSITIVE[:, 0], label_upper_bound=POSITIVE[:, 0] + 1)
    with pytest.raises(DataError, match=r"label: found shape \(500, 2\); allowed: \(500,\)"):
        train({}, bounds, 1)


def test_estimators() -> None:
    regressor = GBTRegressor(n_estimators=8, early_stopping_rounds=5).fit(X, Y, eval_set=[(X, Y)])
    assert regressor.predict(X).shape == Y.shape and regressor.score(X, Y) > 0.8
    assert cross_val_score(GBTRegressor(n_estimators=8), X, Y, cv=3).min() > 0.5
    classifier = GBTClassifier(n_estimators=8).fit(X, LABELS)
    probability = classifier.predict_proba(X)
    assert probability.shape == LABELS.shape and classifier.score(X, LABELS) > 0.8
    assert np.array_equal(classifier.predict(X), (probability > 0.5).astype(np.int64))
    assert classifier.classes_.tolist() == [0, 1, 2]
    sparse = GBTClassifier(n_estimators=8).fit(X, scipy.sparse.csr_matrix(LABELS))
    assert np.array_equal(sparse.predict_proba(X), probability)
    search = GridSearchCV(GBTClassifier(n_estimators=3), {"max_depth": [1, 3]}, cv=2, scoring="roc_auc")
    assert search.fit(X, LABELS).best_params_ == {"max_depth": 3}
    with pytest.raises(ParameterError, match=r"nearest there is: sklearn\.multioutput\.MultiOutputClassifier"):
        classifier.fit(X, np.digitize(Y, [0.2, 0.8]))
    with pytest.raises(ParameterError, match=r"eval_set: found labels of shape \(500, 2\); allowed: \(rows, 3\)"):
        GBTClassifier(n_estimators=2).fit(X, LABELS, eval_set=[(X, LABELS[:, :2])])
