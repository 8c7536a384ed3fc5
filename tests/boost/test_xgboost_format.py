import json
from pathlib import Path

import numpy as np
import pytest

from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.formats.xgboost_format import dumps_xgboost, loads_xgboost
from burnish.boost.model import Model
from burnish.boost.prediction import predict
from burnish.errors import DataError
from tests.boost.trees import random_model, random_table

ROWS, FEATURES = 300, 6


def case(name: str) -> tuple[dict, dict, np.ndarray]:
    """Parameters, arguments of the DMatrix, and a table with missing values."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    y = np.nan_to_num(x[:, 0]) + np.nan_to_num(x[:, 1]) ** 2 + rng.normal(size=ROWS) * 0.1
    query = {"qid": np.arange(ROWS) // 10}
    cases = {
        "regression": ({"objective": "reg:squarederror"}, {"label": y}),
        "exact, pruned": ({"objective": "reg:squarederror", "tree_method": "exact", "gamma": 2.0}, {"label": y}),
        "lossguide, deep": ({"grow_policy": "lossguide", "max_leaves": 60, "max_depth": 0}, {"label": y}),
        "binary": ({"objective": "binary:logistic"}, {"label": y > 0.3}),
        "raw": ({"objective": "binary:logitraw"}, {"label": y > 0.3}),
        "counts": ({"objective": "count:poisson"}, {"label": np.floor(np.abs(y) * 3)}),
        "multi-class": ({"objective": "multi:softprob", "num_class": 3}, {"label": rng.integers(0, 3, ROWS)}),
        "classes, parallel": (
            {"objective": "multi:softmax", "num_class": 3, "num_parallel_tree": 2, "subsample": 0.5},
            {"label": rng.integers(0, 3, ROWS)},
        ),
        "ranking": ({"objective": "rank:ndcg"}, {"label": rng.integers(0, 4, ROWS), **query}),
        "quantile": ({"objective": "reg:quantileerror", "quantile_alpha": 0.3}, {"label": y}),
    }
    params, data = cases[name]
    return {"max_depth": 4, "nthread": 1, **params}, data, x


NAMES = (
    "regression", "exact, pruned", "lossguide, deep", "binary", "raw", "counts", "multi-class", "classes, parallel",
    "ranking", "quantile",
)  # fmt: skip


def margins(xgboost: object, booster: object, x: np.ndarray, **options: object) -> np.ndarray:
    data = xgboost.DMatrix(x, **options)  # type: ignore[attr-defined]
    return booster.predict(data, output_margin=True).reshape(len(x), -1).T  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_models_of_xgboost_predict_the_same_here_and_written_back(name: str, tmp_path: Path) -> None:
    import xgboost

    params, data, x = case(name)
    booster = xgboost.train(params, xgboost.DMatrix(x, **data), 6)
    booster.save_model(tmp_path / "theirs.json")
    model = Model.load(tmp_path / "theirs.json")
    expected = margins(xgboost, booster, x)
    found = model.predict_margin(x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    if name in ("regression", "multi-class", "ranking"):
        assert np.array_equal(found, expected)
    model.save(tmp_path / "ours.json", "xgboost")
    again = xgboost.Booster(model_file=tmp_path / "ours.json")
    np.testing.assert_allclose(margins(xgboost, again, x), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(again.predict(xgboost.DMatrix(x)), booster.predict(xgboost.DMatrix(x)), rtol=1e-6)
    if name == "regression":
        assert np.array_equal(model.predict_leaf(x), booster.predict(xgboost.DMatrix(x), pred_leaf=True))


def test_categories_and_missing_values() -> None:
    import pandas
    import xgboost

    rng = np.random.default_rng(3)
    codes = rng.integers(0, 7, ROWS)
    names = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu"]
    frame = pandas.DataFrame(
        {"size": rng.normal(size=ROWS), "kind": pandas.Categorical([names[code] for code in codes], names)}
    )
    frame.loc[rng.random(ROWS) < 0.1, "kind"] = None
    y = np.array([3.0, -1, 2, 0, 5, -2, 1])[codes] + frame["size"]
    data = xgboost.DMatrix(frame, y, enable_categorical=True)
    booster = xgboost.train({"max_depth": 4, "max_cat_to_onehot": 2}, data, 5)
    model = loads_xgboost(booster.save_raw("json").decode())
    assert model.feature_names == ("size", "kind")
    assert model.categories == (None, tuple(names))
    x = np.stack([frame["size"], frame["kind"].cat.codes], 1).astype(np.float32)
    x[x[:, 1] < 0, 1] = np.nan
    expected = booster.predict(data, output_margin=True)
    assert any(len(tree.category) for tree in model.trees)
    assert np.array_equal(model.predict_margin(x)[0], expected)
    again = xgboost.Booster()
    again.load_model(bytearray(dumps_xgboost(model), "utf-8"))
    assert np.array_equal(again.predict(data, output_margin=True), expected)


def test_the_best_iteration_and_attributes_survive() -> None:
    import xgboost

    params, data, x = case("binary")
    matrix = xgboost.DMatrix(x, **data)
    other = xgboost.DMatrix(x, label=np.random.default_rng(0).integers(0, 2, ROWS))
    booster = xgboost.train(params, matrix, 20, evals=[(other, "other")], early_stopping_rounds=3, verbose_eval=False)
    booster.set_attr(colour="blue")
    model = loads_xgboost(booster.save_raw("json").decode())
    assert model.best_iteration == booster.best_iteration < model.rounds - 1
    assert model.attributes["colour"] == "blue"
    again = xgboost.Booster()
    again.load_model(bytearray(dumps_xgboost(model), "utf-8"))
    assert again.best_iteration == booster.best_iteration
    assert again.attr("colour") == "blue"
    best = model.best_iteration + 1
    expected = booster.predict(matrix, output_margin=True, iteration_range=(0, best))
    np.testing.assert_allclose(model.predict_margin(x, rounds=(0, best))[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("objective", ["squared_error", "logistic", "poisson", "softmax", "rank_ndcg", "custom"])
@pytest.mark.parametrize("depth", [0, 3, 9])
def test_own_models_predict_the_same_in_xgboost(objective: str, depth: int) -> None:
    import xgboost

    rng = np.random.default_rng(depth)
    outputs = 3 if objective == "softmax" else 1
    plain = random_model(rng, 4, FEATURES, depth, outputs)
    model = Model(plain.trees, FEATURES, outputs, plain.base_score, objective)
    x = random_table(rng, 100, FEATURES)
    x[np.isinf(x)] = 1.0  # which XGBoost refuses
    booster = xgboost.Booster()
    booster.load_model(bytearray(dumps_xgboost(model), "utf-8"))
    np.testing.assert_allclose(margins(xgboost, booster, x), model.predict_margin(x), rtol=0, atol=1e-6)


def test_a_base_score_without_an_equal_goes_into_the_trees() -> None:
    import xgboost

    rng = np.random.default_rng(0)
    plain = random_model(rng, 2, FEATURES, 3)
    model = Model(plain.trees, FEATURES, 1, np.array([15.25], np.float32), "logistic")
    x = random_table(rng, 50, FEATURES)
    x[np.isinf(x)] = 1.0
    booster = xgboost.Booster()
    booster.load_model(bytearray(dumps_xgboost(model), "utf-8"))
    np.testing.assert_allclose(margins(xgboost, booster, x), model.predict_margin(x), rtol=0, atol=2e-6)


def test_older_files_have_one_base_score() -> None:
    model = random_model(np.random.default_rng(0), 2, 3, 2, outputs=2)
    document = json.loads(dumps_xgboost(model))
    document["learner"]["learner_model_param"]["base_score"] = "5E-1"
    assert loads_xgboost(json.dumps(document)).base_score.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("learner"), "'learner' is missing"),
        (lambda d: d["learner"]["gradient_booster"].update(name="gblinear"), "booster is 'gblinear'"),
        (lambda d: d["learner"]["objective"].update(name="survival:new"), "objective is 'survival:new'"),
        (lambda d: tree_of(d)["left_children"].__setitem__(0, 0), "children|parent"),
        (lambda d: tree_of(d)["left_children"].__setitem__(0, 10**6), "children|parent"),
        (lambda d: tree_of(d)["left_children"].__setitem__(1, 0), "children|parent"),
        (lambda d: tree_of(d)["split_indices"].__setitem__(0, 99), "feature"),
        (lambda d: tree_of(d)["split_conditions"].pop(), "shape"),
        (lambda d: tree_of(d).update(split_conditions="x"), "numbers"),
        (
            lambda d: tree_of(d).update(categories_nodes=[0], categories_segments=[5], categories_sizes=[9]),
            "categories",
        ),
        (lambda d: tree_of(d)["tree_param"].update(size_leaf_vector="3"), "vectors"),
        (lambda d: d["learner"]["gradient_booster"]["model"].update(tree_info=[0, 7]), "tree_info"),
        (lambda d: d["learner"]["learner_model_param"].update(base_score="[1, 2, 3]"), "base_score"),
        (lambda d: d["learner"].update(gradient_booster=5), "wrong type"),
    ],
)
def test_what_is_no_model_is_refused(change: object, message: str) -> None:
    document = json.loads(dumps_xgboost(random_model(np.random.default_rng(0), 2, 3, 2, sparseness=0.0)))
    change(document)  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        loads_xgboost(json.dumps(document))


def tree_of(document: dict) -> dict:
    tree: dict = document["learner"]["gradient_booster"]["model"]["trees"][0]
    return tree


def test_truncated_text_and_foreign_objectives() -> None:
    model = random_model(np.random.default_rng(0), 2, 3, 2)
    with pytest.raises(DataError, match="truncated"):
        loads_xgboost(dumps_xgboost(model)[:-20])
    with pytest.raises(DataError, match="objective is 'mine'"):
        dumps_xgboost(Model(model.trees, 3, 1, model.base_score, "mine"))


@pytest.mark.parametrize("kinds", [[100, 7, 3], [0, 1, 2], [-4, 2**40, 5, 1], ["x", "10", "9"]])
def test_categories_are_found_by_value_in_xgboost(kinds: list) -> None:
    import pandas
    import xgboost

    rng = np.random.default_rng(len(kinds))
    values = [kinds[number] for number in rng.integers(0, len(kinds), ROWS)]
    frame = pandas.DataFrame({"k": pandas.Categorical(values), "x": rng.normal(size=ROWS)})
    label = np.array([kinds.index(value) for value in values]) % 2 * 2.0
    model = train({"max_cat_to_onehot": 1, "max_depth": 3}, Dataset.of(frame, label=label), 4)
    text = dumps_xgboost(model)
    booster = xgboost.Booster(model_file=bytearray(text.encode()))
    other = frame.assign(k=pandas.Categorical(values, categories=kinds))
    found = booster.predict(xgboost.DMatrix(other, enable_categorical=True))
    np.testing.assert_allclose(found, predict(model, other), atol=1e-6)
    assert loads_xgboost(text).categories == loads_xgboost(bytes(booster.save_raw("json"))).categories
    assert loads_xgboost(text).categories == model.categories


def test_categories_that_xgboost_does_not_have_are_refused() -> None:
    table = np.array([[0.5], [1.5], [2.0]] * 9)
    model = train({}, Dataset.of(table, label=table[:, 0] > 1, categorical=[0]), 2)
    with pytest.raises(DataError, match=r"categories of f0 are fractions, such as 0\.5; allowed: text and integers"):
        dumps_xgboost(model)


@pytest.mark.parametrize("score", ["[0E0]", "1E0", "[1E-20]", "[9.9999994E-1]", "[2.5E-1]"])
@pytest.mark.parametrize("objective", ["binary:logistic", "reg:logistic"])
def test_base_scores_of_one_class_are_clipped_as_in_xgboost(objective: str, score: str) -> None:
    import xgboost

    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    booster = xgboost.train({"objective": objective, "nthread": 1}, xgboost.DMatrix(x, label=x[:, 0] > 0), 2)
    document = json.loads(bytes(booster.save_raw("json")))
    document["learner"]["learner_model_param"]["base_score"] = score
    text = json.dumps(document)
    again = xgboost.Booster(model_file=bytearray(text.encode()))
    found = loads_xgboost(text).predict_margin(x)
    np.testing.assert_allclose(found, margins(xgboost, again, x), rtol=1e-6)
    back = xgboost.Booster(model_file=bytearray(dumps_xgboost(loads_xgboost(text)).encode()))
    np.testing.assert_allclose(found, margins(xgboost, back, x), rtol=1e-5)
    for wrong in ("[-1E0]", "[2E0]"):
        document["learner"]["learner_model_param"]["base_score"] = wrong
        with pytest.raises(DataError, match=r"base_score is .*, allowed for .*: 0 … 1"):
            loads_xgboost(json.dumps(document))


def test_counts_that_are_all_zero_are_predicted_as_zero() -> None:
    import xgboost

    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    booster = xgboost.train({"objective": "count:poisson", "nthread": 1}, xgboost.DMatrix(x, label=np.zeros(60)), 2)
    found = predict(loads_xgboost(bytes(booster.save_raw("json"))), x)
    assert np.abs(found - booster.predict(xgboost.DMatrix(x))).max() < 1e-37
