from dataclasses import replace
from itertools import combinations
from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost import GBTClassifier, GBTRegressor, explainer_trees
from burnish.boost.booster import train
from burnish.boost.data import Dataset, Sparse
from burnish.boost.model import Model
from burnish.boost.prediction import predict
from burnish.boost.shap import contributions, interactions
from burnish.boost.tree import Tree
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers
from tests.boost.trees import naive_leaf, random_model, random_table


def expectation(tree: Tree, row: np.ndarray, known: frozenset[int], node: int = 0) -> float:
    """What a tree gives if only some features are known: at tests of the others, the mean by cover."""
    if tree.left[node] < 0:
        return float(tree.value[node])
    children = int(tree.left[node]), int(tree.right[node])
    if int(tree.feature[node]) in known:
        stump = Tree(
            np.array([1, -1, -1]), np.array([2, -1, -1]), tree.feature[[node] * 3], tree.threshold[[node] * 3],
            tree.default_left[[node] * 3], *[tree.value[[node] * 3]] * 3,
            np.array([0] + [len(tree.categories(node))] * 3), tree.categories(node),
        )  # fmt: skip
        return expectation(tree, row, known, children[naive_leaf(stump, row) - 1])
    cover = tree.cover[list(children)].astype(float)
    return float(np.dot([expectation(tree, row, known, child) for child in children], cover / cover.sum()))


def shapley(model: Model, row: np.ndarray, features: int) -> np.ndarray:
    """Shapley's values by their definition, over all subsets: (outputs, features + 1)."""

    def worth(known: frozenset[int]) -> np.ndarray:
        total = model.base_score.astype(float).copy()
        for number, tree in enumerate(model.trees):
            total[number % model.outputs] += expectation(tree, row, known)
        return total

    result = np.zeros((model.outputs, features + 1))
    result[:, -1] = worth(frozenset())
    for feature in range(features):
        others = [f for f in range(features) if f != feature]
        for size in range(features):
            share = factorial(size) * factorial(features - size - 1) / factorial(features)
            for subset in combinations(others, size):
                result[:, feature] += share * (worth(frozenset({*subset, feature})) - worth(frozenset(subset)))
    return result


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 5), st.integers(1, 2), st.booleans())
def test_contributions_are_shapley_values(seed: int, features: int, depth: int, outputs: int, listed: bool) -> None:
    rng = np.random.default_rng(seed)
    categorical = (0,) if listed else ()
    model = random_model(rng, 2, features, depth, outputs, categorical)
    table = random_table(rng, 3, features, categorical)
    found = contributions(model, table)
    assert found.shape == (outputs, 3, features + 1)
    for i, row in enumerate(table):
        np.testing.assert_allclose(found[:, i], shapley(model, row, features), atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 9), st.integers(1, 3))
def test_contributions_add_up_to_the_margin(seed: int, features: int, depth: int, outputs: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, 3, features, depth, outputs)
    table = random_table(rng, 40, features)
    found = contributions(model, table)
    np.testing.assert_allclose(found.sum(2), model.predict_margin(table), atol=1e-5)
    assert np.array_equal(contributions(model, table, Workers(1)), contributions(model, table, Workers(3)))


def test_sparse_tables_base_margins_and_rounds() -> None:
    rng = np.random.default_rng(0)
    model = random_model(rng, 4, 5, 4, 2)
    table = random_table(rng, 30, 5)
    present = ~np.isnan(table)
    start = np.concatenate([[0], np.cumsum(present.sum(1))]).astype(np.int64)
    sparse = Sparse(start, np.nonzero(present)[1].astype(np.int32), table[present])
    assert np.array_equal(contributions(model, sparse), contributions(model, table))
    part = contributions(model, table, rounds=(1, 3))
    np.testing.assert_allclose(part.sum(2), model.predict_margin(table, rounds=(1, 3)), atol=1e-5)
    data = Dataset(table, *table.shape, base_margin=rng.normal(size=(30, 2)).astype(np.float32))
    np.testing.assert_allclose(contributions(model, data).sum(2), model.predict_margin(data), atol=1e-5)


def test_interactions_add_up_and_are_symmetric() -> None:
    rng = np.random.default_rng(1)
    model = random_model(rng, 3, 4, 4, 2)
    table = random_table(rng, 10, 4)
    found = interactions(model, table)
    np.testing.assert_allclose(found.sum(3), contributions(model, table), atol=1e-5)
    np.testing.assert_allclose(found, found.transpose(0, 1, 3, 2), atol=1e-5)


def test_xgboost_agrees() -> None:
    import xgboost

    from burnish.boost.formats.xgboost_format import loads_xgboost

    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 6)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    label = rng.integers(0, 3, 400)
    data = xgboost.DMatrix(x, label)
    booster = xgboost.train({"objective": "multi:softprob", "num_class": 3, "max_depth": 5, "nthread": 1}, data, 8)
    model = loads_xgboost(bytes(booster.save_raw("json")))
    expected = booster.predict(data, pred_contribs=True).transpose(1, 0, 2)
    np.testing.assert_allclose(contributions(model, x), expected, atol=1e-5)
    few = xgboost.DMatrix(x[:20])
    pairs = booster.predict(few, pred_interactions=True).transpose(1, 0, 2, 3)
    np.testing.assert_allclose(interactions(model, x[:20]), pairs, atol=2e-5)


def test_explanations_are_of_the_rounds_and_the_values_that_predictions_use() -> None:
    rng = np.random.default_rng(3)
    model = replace(random_model(rng, 6, 4, 4, 2), best_iteration=1)
    table = random_table(rng, 30, 4)
    margin = predict(model, table, output="margin")
    assert not np.allclose(margin, model.predict_margin(table).T, atol=1e-3)
    np.testing.assert_allclose(contributions(model, table).sum(2).T, margin, atol=1e-5)
    np.testing.assert_allclose(interactions(model, table[:5]).sum((2, 3)).T, margin[:5], atol=1e-5)
    every = contributions(model, table, rounds=(0, model.rounds))
    np.testing.assert_allclose(every.sum(2), model.predict_margin(table), atol=1e-5)
    codes = rng.choice([100.0, 7.0, 3.0], (200, 1))  # values of categories, not their numbers
    own = train({"max_depth": 2}, Dataset.of(codes, label=codes[:, 0] == 7, categorical=[0]), 5)
    np.testing.assert_allclose(contributions(own, codes)[0].sum(1), predict(own, codes), atol=1e-5)


def test_shap_explains_our_trees() -> None:
    shap = pytest.importorskip("shap")
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=(200, 4)), 1).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    y = np.nan_to_num(x[:, 0]) + np.nan_to_num(x[:, 1] * x[:, 2])
    small: dict[str, int] = {"n_estimators": 8, "max_depth": 4}
    kinds = np.digitize(y, [-0.5, 0.5])
    for one in (
        GBTRegressor(**small).fit(x, y),
        GBTClassifier(**small).fit(x, y > 0),
        GBTClassifier(**small).fit(x, kinds),
    ):
        explainer = shap.TreeExplainer(explainer_trees(one))
        found, own = explainer.shap_values(x), np.asarray(contributions(one.model_, x))
        own = own[0] if len(own) == 1 else own.transpose(1, 2, 0)
        np.testing.assert_allclose(found, own[:, :-1], atol=1e-4)
        np.testing.assert_allclose(explainer.expected_value, own[0, -1], atol=1e-4)
    listed = train({}, Dataset.of(np.floor(x * 3), label=y, categorical=[0]), 3)
    with pytest.raises(DataError, match="found splits by category"):
        explainer_trees(listed)
    with pytest.raises(ParameterError, match="explainer_trees: found dict"):
        explainer_trees({})
