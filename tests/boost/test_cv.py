"""Cross-validation and warm starts against trainings by hand."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from burnish.boost import Dataset, GBTRegressor, cv, train
from burnish.boost.cross_validation import take
from burnish.errors import ParameterError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(600, 4)).astype(np.float32)
Y = (X[:, 0] + 0.3 * RANDOM.normal(size=600)).astype(np.float32)
DATA = Dataset.of(X, label=Y)


def test_folds_are_trainings_of_their_own() -> None:
    rows = np.arange(600)
    folds = [(rows[rows % 3 != k], rows[rows % 3 == k]) for k in range(3)]
    table = cv({"max_depth": 3}, DATA, 5, folds=folds, metrics=["mae", "rmse"])
    assert isinstance(table, pd.DataFrame) and len(table) == 5
    values = []
    for a, b in folds:
        history: dict = {}
        valid = {"test": Dataset.of(X[b], label=Y[b])}
        train(
            {"max_depth": 3, "eval_metric": "rmse"},
            Dataset.of(X[a], label=Y[a]),
            5,
            validation_data=valid,
            history=history,
        )
        values.append(history["test"]["rmse"])
    np.testing.assert_allclose(table["test-rmse-mean"], np.mean(values, axis=0), rtol=1e-12)
    np.testing.assert_allclose(table["test-rmse-std"], np.std(values, axis=0), rtol=1e-9)
    sparse = Dataset.of(scipy.sparse.csr_matrix(X), label=Y)
    assert len(cv({"max_depth": 3}, sparse, 2, folds=folds)) == 2


def test_early_stopping_ends_at_the_best_round() -> None:
    table = cv({"max_depth": 6, "eta": 0.6}, DATA, 60, nfold=4, early_stopping_rounds=3, as_pandas=False)
    means = table["test-rmse-mean"]
    whole = cv({"max_depth": 6, "eta": 0.6}, DATA, len(means) + 3, nfold=4, as_pandas=False)["test-rmse-mean"]
    assert len(means) < 60 and whole[: len(means)] == means and min(whole) == means[-1]


def test_a_mean_that_is_nan_stops_with_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="nothing of the test rows is NaN in round 1") as said:
        table = cv({"eval_metric": nothing}, DATA, 60, nfold=2, early_stopping_rounds=3, as_pandas=False)
    assert len(table["test-nothing-mean"]) == 1 and len(said) == 1


def nothing(prediction: np.ndarray, dataset: Dataset) -> float:
    return float("nan")


def test_stratified_folds_and_queries() -> None:
    from sklearn.model_selection import GroupKFold

    label = (np.arange(600) < 60).astype(np.float32)
    data = Dataset.of(X, label=label)
    table = cv({"objective": "logistic", "eval_metric": "auc"}, data, 2, nfold=5, stratified=True)
    assert table["test-auc-mean"].notna().all()
    ranked = Dataset.of(X, label=label, group=[30] * 20)
    for more in ({"nfold": 4}, {"folds": GroupKFold(4)}):
        assert len(cv({"objective": "rank:ndcg"}, ranked, 2, **more)) == 2
    assert (take(ranked, np.arange(30, 90)).group_start == [0, 30, 60]).all()
    with pytest.raises(ParameterError, match="nfold"):
        cv({}, ranked, 2, nfold=21)


def test_warm_start_goes_on_with_the_model_and_constraints_go_by_name() -> None:
    whole = GBTRegressor(n_estimators=8).fit(X, Y)
    part = GBTRegressor(n_estimators=3, warm_start=True).fit(X, Y)
    part.set_params(n_estimators=8).fit(X, Y)
    assert part.model_.rounds == 8 and (part.predict(X) == whole.predict(X)).all()
    with pytest.raises(ValueError, match="n_estimators"):
        part.set_params(n_estimators=2).fit(X, Y)
    frame = pd.DataFrame(X, columns=list("abcd"))
    named = GBTRegressor(n_estimators=4, monotone_constraints={"a": 1}, interaction_constraints=[["a", "b"]])
    numbers = GBTRegressor(n_estimators=4, monotone_constraints=(1, 0, 0, 0), interaction_constraints=[[0, 1]])
    assert (named.fit(frame, Y).predict(frame) == numbers.fit(X, Y).predict(X)).all()
