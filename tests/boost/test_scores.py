"""Metrics of scores.py against XGBoost and scikit-learn."""

import numpy as np
import pytest

from burnish.boost import Dataset
from burnish.boost.losses.reduction import Reduction
from burnish.boost.metric import metric_of
from burnish.boost.params import Params
from burnish.errors import ParameterError

RANDOM = np.random.default_rng(0)
ROWS = 500
LABEL = RANDOM.gamma(2, 1, ROWS).astype(np.float32) + np.float32(0.01)
GUESS = RANDOM.gamma(2, 1, ROWS).astype(np.float32) + np.float32(0.01)
WEIGHT = RANDOM.random(ROWS).astype(np.float32)


def value(name: str, prediction: np.ndarray, label: np.ndarray, weighted: bool, **params: float) -> float:
    weight = WEIGHT if weighted else None
    data = Dataset.of(np.zeros((ROWS, 1), np.float32), label=label, weight=weight)
    return metric_of(name)(np.atleast_2d(prediction), data, Reduction(), Params.of(params))


@pytest.mark.parametrize("weighted", [False, True])
def test_row_wise_metrics_are_those_of_scikit_learn(weighted: bool) -> None:
    from sklearn import metrics

    more = {"sample_weight": WEIGHT if weighted else None}
    y, p = LABEL.astype(np.float64), GUESS.astype(np.float64)
    wanted = {
        "rmsle": metrics.root_mean_squared_log_error(y, p, **more),
        "mape": metrics.mean_absolute_percentage_error(y, p, **more),
        "mae": metrics.mean_absolute_error(y, p, **more),
        "gamma-deviance": metrics.mean_gamma_deviance(y, p, **more),
        "poisson-deviance": metrics.mean_poisson_deviance(y, p, **more),
        "tweedie-deviance@1.3": metrics.mean_tweedie_deviance(y, p, power=1.3, **more),
        "quantile": metrics.mean_pinball_loss(y, p, alpha=0.5, **more),
    }
    for name, want in wanted.items():
        assert value(name, GUESS, LABEL, weighted) == pytest.approx(want, rel=1e-4), name


@pytest.mark.parametrize("weighted", [False, True])
def test_several_classes_have_the_area_of_each_against_the_rest(weighted: bool) -> None:
    from sklearn import metrics

    label = RANDOM.integers(0, 3, ROWS)
    score = RANDOM.random((ROWS, 3)) + 0.5 * np.eye(3)[label]
    share = (score / score.sum(axis=1, keepdims=True)).astype(np.float32)
    weight = WEIGHT if weighted else np.ones(ROWS)
    areas = [metrics.roc_auc_score(label == c, share[:, c], sample_weight=weight) for c in range(3)]
    want = np.average(areas, weights=[weight[label == c].sum() for c in range(3)])
    assert value("auc", share.T.copy(), label, weighted) == pytest.approx(want, rel=1e-6)


def test_values_are_those_of_xgboost() -> None:
    import xgboost

    def theirs(name: str, objective: str, label: np.ndarray, weighted: bool, **more: float) -> tuple[float, np.ndarray]:
        x = np.stack([GUESS, LABEL * RANDOM.random(ROWS)], axis=1)
        matrix = xgboost.DMatrix(x, label=label, weight=WEIGHT if weighted else None)
        result: dict = {}
        params = {"objective": objective, "eval_metric": name, "max_depth": 2, **more}
        booster = xgboost.train(params, matrix, 4, evals=[(matrix, "t")], evals_result=result, verbose_eval=False)
        return next(iter(result["t"].values()))[-1], booster.predict(matrix)

    binary, three, time = LABEL > 1.7, np.digitize(LABEL, [1, 2]), np.where(GUESS > 1, LABEL, -LABEL)
    cases = [
        ("aucpr", "binary:logistic", binary, {}), ("error@0.7", "binary:logistic", binary, {}),
        ("auc", "multi:softprob", three, {"num_class": 3}), ("aucpr", "multi:softprob", three, {"num_class": 3}),
        ("rmsle", "reg:gamma", LABEL, {}), ("mape", "reg:gamma", LABEL, {}), ("mphe", "reg:gamma", LABEL, {}),
        ("gamma-nloglik", "reg:gamma", LABEL, {}), ("gamma-deviance", "reg:gamma", LABEL, {}),
        ("poisson-nloglik", "reg:gamma", LABEL, {}), ("tweedie-nloglik@1.3", "reg:gamma", LABEL, {}),
        ("cox-nloglik", "survival:cox", time, {}),
    ]  # fmt: skip
    for name, objective, label, more in cases:
        for weighted in (False, True):
            want, prediction = theirs(name, objective, label.astype(np.float32), weighted, **more)
            got = value(name, np.ascontiguousarray(prediction.T), label.astype(np.float32), weighted)
            assert got == pytest.approx(want, rel=1e-4), (name, objective, weighted)


def test_a_query_of_nothing_relevant_counts_as_the_name_says() -> None:
    data = Dataset.of(np.zeros((4, 1), np.float32), label=[1, 0, 0, 0], group=[2, 2])
    prediction = np.array([[2.0, 1.0, 2.0, 1.0]], np.float32)
    for name, want in (("ndcg", 1.0), ("ndcg-", 0.5), ("ndcg@1-", 0.5), ("map@2", 1.0), ("map@2-", 0.5)):
        assert metric_of(name)(prediction, data, Reduction(), Params()) == want


def test_numbers_that_mean_nothing_are_refused() -> None:
    for name in ("rmse@3", "tweedie-nloglik@2.5", "aucpr@2"):
        with pytest.raises(ParameterError, match="allowed"):
            metric_of(name)
