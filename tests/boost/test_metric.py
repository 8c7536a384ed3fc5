from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.losses.reduction import Reduction
from burnish.boost.metric import _log_gamma, area_under_curve, metric_of
from burnish.boost.params import Params
from burnish.comm import thread_comms
from burnish.errors import DataError, ParameterError

ROWS = 3000
RANDOM = np.random.default_rng(9)
UNIT = np.round(RANDOM.random((1, ROWS)), 3).astype(np.float32)  # with ties
WEIGHT = RANDOM.integers(1, 5, ROWS).astype(np.float32)
BINARY = (RANDOM.random(ROWS) < 0.3 + 0.4 * UNIT[0]).astype(np.float32)
REAL = RANDOM.normal(size=ROWS).astype(np.float32)
COUNTS = RANDOM.poisson(3.0, ROWS).astype(np.float32)
CLASSES = RANDOM.integers(0, 4, ROWS).astype(np.float32)
SHARES = RANDOM.dirichlet(np.ones(4), ROWS).T.astype(np.float32)
GRADES = RANDOM.integers(0, 4, ROWS).astype(np.float32)
SIZES = [20] * (ROWS // 20)


def data(label: np.ndarray, weight: Any = None, group: Any = None) -> Dataset:
    return Dataset.of(np.zeros((len(label), 1), np.float32), label=label, weight=weight, group=group)


def value(name: Any, prediction: np.ndarray, dataset: Dataset, **params: Any) -> float:
    settled = Params.of({"eval_metric": name} | params)
    return metric_of(name)(prediction.astype(np.float32), dataset, Reduction(), settled)


CASES = [
    ("rmse", UNIT, REAL, None), ("mae", UNIT, REAL, None), ("logloss", UNIT, BINARY, None),
    ("error", UNIT, BINARY, None), ("error@0.3", UNIT, BINARY, None), ("auc", UNIT, BINARY, None),
    ("mlogloss", SHARES, CLASSES, None), ("merror", SHARES, CLASSES, None),
    ("poisson-nloglik", UNIT * 5 + 0.1, COUNTS, None), ("quantile", UNIT, REAL, None),
    ("ndcg", UNIT, GRADES, SIZES), ("ndcg@5", UNIT, GRADES, SIZES), ("ndcg@1", UNIT, GRADES, SIZES),
    ("map", UNIT, BINARY, SIZES), ("map@5", UNIT, BINARY, SIZES),
]  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "prediction", "label", "group"), CASES)
def test_values_are_those_of_xgboost(
    name: str, prediction: np.ndarray, label: np.ndarray, group: Any, weighted: bool
) -> None:
    import xgboost

    weight = WEIGHT[: len(group)] if group else WEIGHT
    if group:  # without ties: XGBoost breaks them in another way
        prediction = (RANDOM.permutation(ROWS) / ROWS).reshape(1, -1)
    dataset = data(label, weight if weighted else None, group)
    found = value(name, prediction, dataset, **({"quantile_alpha": 0.3} if name == "quantile" else {}))
    matrix = xgboost.DMatrix(np.zeros((ROWS, 1)), label, weight=weight if weighted else None, group=group)
    # One round of a useless tree from these margins leaves the predictions as they are.
    objective, margin = "reg:squarederror", prediction[0]
    more: dict[str, Any] = {}
    if name in ("mlogloss", "merror"):
        objective, margin, more = "multi:softprob", np.log(prediction.T), {"num_class": 4}
    elif name in ("logloss", "error", "error@0.3", "auc"):
        objective, margin = "binary:logistic", np.log(np.clip(prediction[0], 1e-7, 1 - 1e-7))
        margin = margin - np.log1p(-np.clip(prediction[0], 1e-7, 1 - 1e-7))
    elif name == "poisson-nloglik":
        objective, margin = "count:poisson", np.log(prediction[0])
    elif name == "quantile":
        objective, more = "reg:quantileerror", {"quantile_alpha": 0.3}
    elif group:
        objective = "rank:ndcg"
    matrix.set_base_margin(margin)
    scores: dict[str, Any] = {}
    params = {"objective": objective, "eval_metric": name, "max_depth": 1, "eta": 1e-12, "nthread": 1} | more
    xgboost.train(params, matrix, 1, evals=[(matrix, "here")], evals_result=scores, verbose_eval=False)
    np.testing.assert_allclose(found, scores["here"][name][0], rtol=2e-5)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_values_are_those_of_scikit_learn(weight: np.ndarray | None) -> None:
    import sklearn.metrics as metrics

    binary, classes = data(BINARY, weight), data(CLASSES, weight)
    wide = UNIT.astype(np.float64)
    assert value("auc", UNIT, binary) == pytest.approx(metrics.roc_auc_score(BINARY, wide[0], sample_weight=weight))
    inside = np.clip(UNIT, 1e-6, 1 - 1e-6)
    expected = metrics.log_loss(BINARY, inside[0].astype(np.float64), sample_weight=weight)
    assert value("logloss", inside, binary) == pytest.approx(expected, rel=1e-6)
    shares = SHARES.T.astype(np.float64)
    expected = metrics.log_loss(CLASSES, shares / shares.sum(axis=1, keepdims=True), sample_weight=weight)
    assert value("mlogloss", SHARES, classes) == pytest.approx(expected, rel=1e-6)
    expected = metrics.mean_squared_error(REAL, wide[0], sample_weight=weight) ** 0.5
    assert value("rmse", UNIT, data(REAL, weight)) == pytest.approx(expected, rel=1e-6)
    expected = metrics.mean_pinball_loss(REAL, wide[0], alpha=0.2, sample_weight=weight)
    assert value("quantile", UNIT, data(REAL, weight), quantile_alpha=0.2) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 3)), max_size=25))
def test_auc_counts_pairs(rows: list[tuple[int, bool, int]]) -> None:
    score = np.array([r[0] for r in rows], np.float32)
    positive = np.array([r[1] for r in rows], bool)
    weight = np.array([r[2] for r in rows], np.float32)
    pairs = np.outer(weight[positive], weight[~positive]).astype(np.float64)
    gap = score[positive][:, None] - score[~positive][None, :]
    found = area_under_curve(score, positive, weight)
    if pairs.sum() == 0:
        assert np.isnan(found)
    else:
        assert found == pytest.approx((pairs * ((gap > 0) + 0.5 * (gap == 0))).sum() / pairs.sum())


def test_a_list_without_a_relevant_document_counts_as_perfect_and_equal_scores_stay_in_order() -> None:
    dataset = data(np.array([0, 0, 1, 0]), group=[2, 2])
    equal = np.zeros((1, 4))
    assert value("ndcg", equal, dataset) == 1.0 and value("map", equal, dataset) == 1.0
    turned = np.array([[0, 0, 0, 1.0]])
    assert value("map", turned, dataset) == 0.75
    assert value("ndcg", turned, dataset) == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert value("ndcg@1", turned, dataset) == 0.5


def test_linear_gain() -> None:
    dataset = data(np.array([3, 1]), group=[2])
    worst = np.array([[0.0, 1.0]])
    discount = 1 / np.log2(3)
    assert value("ndcg", worst, dataset, ndcg_exp_gain=False) == pytest.approx((1 + 3 * discount) / (3 + discount))
    assert value("ndcg", worst, dataset) == pytest.approx((1 + 7 * discount) / (7 + discount))


def test_log_gamma() -> None:
    import mpmath

    x = np.array([1.0, 1.5, 2.0, 3.0, 9.99, 10.0, 57.3, 1e4, 1e6])
    expected = [float(mpmath.loggamma(v)) for v in x]
    np.testing.assert_allclose(_log_gamma(x), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("name", "prediction", "label", "group"), CASES)
def test_workers_agree_bit_for_bit_with_one(name: str, prediction: np.ndarray, label: np.ndarray, group: Any) -> None:
    whole = data(label, WEIGHT, group)
    half = ROWS // 2 if group is None else 20 * (len(SIZES) // 2)

    def part(comm: Any) -> float:
        rows = slice(0, half) if comm.rank == 0 else slice(half, ROWS)
        sizes = None if group is None else [20] * ((rows.stop - rows.start) // 20)
        dataset = data(label[rows], WEIGHT[rows], sizes)
        return metric_of(name)(prediction[:, rows].astype(np.float32), dataset, Reduction(comm), Params())

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(part, thread_comms(2))) == [value(name, prediction, whole)] * 2


def test_a_metric_of_ones_own() -> None:
    def largest(prediction: np.ndarray, dataset: Dataset) -> float:
        assert prediction.shape == (ROWS,) and dataset.rows == ROWS
        return float(prediction.max())

    metric = metric_of(largest)
    assert (metric.name, metric.maximize) == ("largest", False)
    assert metric(UNIT, data(REAL), Reduction(), Params()) == float(UNIT.max())
    largest.maximize = True  # type: ignore[attr-defined]
    assert metric_of(largest).maximize
    assert metric_of(lambda p, d: float(p.shape[1]))(SHARES, data(CLASSES), Reduction(), Params()) == 4.0


def test_directions_and_synonyms() -> None:
    assert {n: metric_of(n).maximize for n in ("auc", "ndcg@3", "map", "rmse", "logloss", "error@0.2")} == {
        "auc": True, "ndcg@3": True, "map": True, "rmse": False, "logloss": False, "error@0.2": False
    }  # fmt: skip
    assert metric_of("binary_logloss").name == "logloss" and metric_of("l1").name == "mae"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("logloos", "found 'logloos'; allowed: 'rmse'.*did you mean 'logloss'"),
        ("ndcg@x", "found 'ndcg@x'; allowed: ndcg@k"),
        ("ndcg@0", "found 'ndcg@0'"),
        ("error@x", "found 'error@x'"),
    ],
)
def test_unknown_metrics(name: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        metric_of(name)


def test_metrics_need_their_data() -> None:
    with pytest.raises(DataError, match="no labels"):
        value("rmse", UNIT, Dataset(np.zeros((ROWS, 1), np.float32), ROWS, 1))
    with pytest.raises(DataError, match="no queries"):
        value("ndcg", UNIT, data(GRADES))
    with pytest.raises(DataError, match="predictions of 4 outputs"):
        value("rmse", SHARES, data(REAL))


@pytest.mark.parametrize("returned", [("mine", 1.0), ("mine", 1.0, True), [1.0], "1", None, np.ones(2)])
def test_functions_return_one_number(returned: Any) -> None:
    def mine(prediction: np.ndarray, dataset: Dataset) -> Any:
        return returned

    with pytest.raises(DataError, match=r"function 'mine' returned .*; allowed: one number"):
        value(mine, UNIT, data(REAL))
    for number in (2, np.float32(2), np.array(2.0), np.array([2.0]), True + 1):
        assert value(lambda p, d, number=number: number, UNIT, data(REAL)) == 2.0


@pytest.mark.parametrize("label", [4, -1, 1.5])
def test_labels_that_are_no_class_are_refused(label: float) -> None:
    labels = CLASSES.astype(np.float32)
    labels[3] = label
    with pytest.raises(DataError, match=f"label of row 3: found {float(label)}; allowed: 0 to 3"):
        value("mlogloss", SHARES, data(labels))
    with pytest.raises(DataError, match="predictions of 1 output; 'mlogloss' allows 2 and more"):
        value("mlogloss", UNIT, data(BINARY))


@pytest.mark.parametrize("sizes", [[10] * 30, [300], [2] * 20 + [5] * 52, [1] * 10 + [7] * 41 + [3]])
@pytest.mark.parametrize("weighted", [False, True])
def test_auc_of_queries_is_xgboosts(sizes: list[int], weighted: bool, tmp_path: Path) -> None:
    import xgboost

    rng = np.random.default_rng(3)
    x = rng.normal(size=(sum(sizes), 4)).astype(np.float32)
    grades = np.digitize(x[:, 0] + rng.normal(size=len(x)), [-0.5, 0.5, 1.0])
    weight = rng.random(len(sizes)) + 0.1 if weighted else None
    data, history = Dataset.of(x, label=grades, group=sizes, weight=weight), {}  # type: ignore[var-annotated]
    params = {"objective": "rank:pairwise", "eval_metric": "auc", "max_depth": 2}
    train(params, data, 4, validation_data={"t": data}, history=history).save(tmp_path / "m.json", format="xgboost")
    matrix = xgboost.DMatrix(x, label=grades)
    matrix.set_group(sizes)
    if weighted:
        matrix.set_weight(weight)
    booster = xgboost.Booster({"eval_metric": "auc"}, model_file=tmp_path / "m.json")
    assert history["t"]["auc"][-1] == pytest.approx(float(booster.eval(matrix).split(":")[-1]), abs=1e-9)
