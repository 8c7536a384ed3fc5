"""Splits by category: what training does with a row, and what every reader of the tree does with it, agree."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.boost import Dataset, predict
from burnish.boost.distributed import train_distributed
from burnish.boost.external import train_external
from burnish.boost.formats.xgboost_format import dumps_xgboost, loads_xgboost
from burnish.boost.model import Model, dumps, loads
from burnish.boost.params import Params
from burnish.boost.render import dot, svg, text
from burnish.boost.shap import contributions
from burnish.boost.training import Training
from burnish.boost.tree import PRESENT
from burnish.runtime.threads import Workers

Array = np.ndarray[Any, Any]
PARAMS = {"max_depth": 4, "learning_rate": 0.6, "max_cat_to_onehot": 4}
ROUNDS = 3


def columns(categories: int, seed: int = 0, rows: int = 400) -> tuple[Array, Array, Array, Array]:
    """Category codes (-1: missing) of two columns, numbers, and labels that depend on what is missing above all."""
    rng = np.random.default_rng(seed)
    code, other = rng.integers(0, categories, rows), rng.integers(0, 6, rows)
    code[rng.random(rows) < 0.3] = -1
    other[rng.random(rows) < 0.2] = -1
    number = rng.normal(size=rows).astype(np.float32)
    label = 3.0 * (code < 0) - 2 * (other < 0) + 0.2 * (code % 3) + 0.1 * number
    return code, other, number, label


def frame(kind: str, values: Array, code: Array, other: Array, number: Array) -> Any:
    """The columns as a table of some kind; `values` of the categories."""
    one = [None if c < 0 else values[c].item() for c in code]
    two = [None if c < 0 else f"other{c}" for c in other]
    if kind == "pandas":
        import pandas

        return pandas.DataFrame({"c": pandas.Categorical(one), "d": pandas.Categorical(two), "z": number})
    import pyarrow

    return pyarrow.table({"c": pyarrow.array(one).dictionary_encode(), "d": two, "z": number})


def trained(data: Dataset, params: dict[str, Any], rounds: int = ROUNDS) -> tuple[Model, Array]:
    """The model, and the margins of its training."""
    training = Training(Params.of(params), data, Workers(1))
    for _ in range(rounds):
        training.boost()
    return training.model(), training.margin.copy()


def tells_missing(model: Model) -> bool:
    return any(bool((tree.threshold == np.float32(PRESENT)).any()) for tree in model.trees)


@pytest.mark.parametrize("method", ["hist", "approx"])
@pytest.mark.parametrize("categories", [1, 3, 4, 40, 300])
@pytest.mark.parametrize(("kind", "values"), [("pandas", "text"), ("pandas", "whole"), ("arrow", "text")])
def test_predictions_of_training_rows_are_the_margins_of_training(
    kind: str, values: str, categories: int, method: str
) -> None:
    code, other, number, label = columns(categories)
    names = np.array([f"k{i:03}" for i in range(categories)]) if values == "text" else 7 * np.arange(categories) - 5
    x = frame(kind, names, code, other, number)
    data = Dataset.of(x, label)
    model, margin = trained(data, {**PARAMS, "tree_method": method})
    assert tells_missing(model)
    for given in (data, x):
        assert np.array_equal(predict(model, given, output="margin"), margin[0])
    assert np.array_equal(model.predict_margin(data.table), margin)
    assert np.array_equal(loads(dumps(model)).predict_margin(data), margin)
    leaf = model.predict_leaf(data)
    values_of_leaves = [tree.value[leaf[:, t]] for t, tree in enumerate(model.trees)]
    np.testing.assert_allclose(model.base_score[0] + sum(values_of_leaves), margin[0], atol=1e-5)
    np.testing.assert_allclose(contributions(model, data).sum(axis=2), margin, atol=2e-5)


def test_compiled_trees_predict_the_margins_of_training(tmp_path: Path) -> None:
    code, other, number, label = columns(9)
    data = Dataset.of(frame("pandas", np.arange(9), code, other, number), label)
    model, margin = trained(data, PARAMS)
    assert tells_missing(model)
    compiled = np.asarray(bn.compile(model, cache_dir=tmp_path)(data.table))
    assert np.array_equal(compiled.reshape(-1), margin[0])


@pytest.mark.parametrize("values", ["text", "whole"])
def test_xgboost_predicts_and_dumps_what_was_trained(values: str) -> None:
    import pandas
    import xgboost

    code, other, number, label = columns(9)
    names = np.array([f"k{i}" for i in range(9)]) if values == "text" else np.arange(9)
    x = frame("pandas", names, code, other, number)
    model, margin = trained(Dataset.of(x, label), PARAMS)
    assert tells_missing(model)
    written = dumps_xgboost(model)
    booster = xgboost.Booster()
    booster.load_model(bytearray(written, "utf-8"))
    matrix = xgboost.DMatrix(x, enable_categorical=True)
    np.testing.assert_allclose(booster.predict(matrix, output_margin=True), margin[0], rtol=1e-6, atol=1e-6)
    dumped = booster.trees_to_dataframe()
    assert isinstance(dumped, pandas.DataFrame)
    assert len(booster.get_dump()) == ROUNDS
    again = loads_xgboost(written)
    assert np.array_equal(again.predict_margin(Dataset.of(x).table), margin)


def test_training_out_of_core_and_by_workers_makes_the_same_trees(tmp_path: Path) -> None:
    code, other, number, label = columns(12)
    data = Dataset.of(frame("pandas", np.arange(12), code, other, number), label)
    model, _ = trained(data, PARAMS)
    assert tells_missing(model)
    assert dumps(train_external(PARAMS, [data], ROUNDS, folders=tmp_path / "store")) == dumps(model)
    assert dumps(train_distributed(PARAMS, data, ROUNDS, workers=2, worker_kind="thread", threads=1)) == dumps(model)


@pytest.mark.parametrize("policy", ["missing", "other"])
def test_unseen_categories_go_with_the_missing_or_with_the_rest(policy: str) -> None:
    code, other, number, _ = columns(8)
    label = 3.0 * (code < 0)
    x = frame("pandas", np.array(list("abcdefgh")), code, other, number)
    model, margin = trained(Dataset.of(x, label, policy=policy), {**PARAMS, "max_depth": 1})
    assert tells_missing(model)
    of_missing, of_rest = margin[0, code < 0][0], margin[0, code >= 0][0]
    assert of_missing > of_rest + 1
    new = x.iloc[:2].assign(c=["unseen", None])
    found = predict(model, new, output="margin")
    assert found.tolist() == [of_missing if policy == "missing" else of_rest, of_missing]
    again = loads_xgboost(dumps_xgboost(model))
    table = Dataset.of(new, categories=model.categories, policy=policy).table
    assert again.predict_margin(table)[0].tolist() == found.tolist()


def test_a_split_between_missing_and_all_categories_is_drawn_as_such() -> None:
    code, other, number, _ = columns(8)
    data = Dataset.of(frame("pandas", np.arange(8), code, other, number), 3.0 * (code < 0))
    model, _ = trained(data, {**PARAMS, "max_depth": 1})
    for draw in (text, dot, svg):
        assert "c in any category" in draw(model, 0)
    assert "no, missing" in text(model, 0)
