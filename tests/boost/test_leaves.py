"""Weights of leaves, and predictions, beside float64: statistics of any distribution, for any number of threads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.binning import Cuts
from burnish.boost.booster import train
from burnish.boost.data import Dataset
from burnish.boost.leaves import LeafSums
from burnish.boost.model import dumps
from burnish.boost.params import Params
from burnish.boost.prediction import predict
from burnish.runtime.threads import Workers
from tests.boost.growing import Plain, plain_tree, route
from tests.boost.trees import random_tree

Array = np.ndarray[Any, Any]


def spread(rng: np.random.Generator, rows: int, exponents: int) -> Array:
    """Magnitudes over 2^exponents, as float32."""
    return np.ldexp(rng.uniform(0.5, 1, rows), rng.integers(-exponents, 1, rows)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 24]), st.integers(1, 3))
def test_weights_and_covers_are_those_of_float64(seed: int, exponents: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, 4, 5)
    rows = 40_000
    leaf = rng.choice(np.flatnonzero(tree.left < 0), rows).astype(np.int32)
    sign = rng.choice([-1, 1], tree.size)[leaf].astype(np.float32)
    gradient, hessian = sign * spread(rng, rows, exponents), spread(rng, rows, exponents)
    params = Params.of({"reg_lambda": 0.5, "learning_rate": 0.3})
    found = LeafSums(params, rows, 4, Workers(threads)).refined(tree, leaf, gradient, hessian)
    sums = [np.bincount(leaf, values.astype(np.float64), tree.size) for values in (gradient, hessian)]
    for node in range(tree.size - 1, -1, -1):
        if tree.left[node] >= 0:
            for part in sums:
                part[node] = part[tree.left[node]] + part[tree.right[node]]
    there = sums[1] > 0
    np.testing.assert_allclose(found.cover, sums[1], rtol=1e-6)
    expected = np.where(there, -0.3 * sums[0] / (sums[1] + 0.5), 0)
    leaves = tree.left < 0
    np.testing.assert_allclose(found.value[leaves], expected[leaves], rtol=1e-6)
    np.testing.assert_allclose(found.value, expected, rtol=1e-6, atol=1e-7 * abs(expected).max())
    again = LeafSums(params, rows, 4, Workers(5 - threads)).refined(tree, leaf, gradient, hessian)
    assert np.array_equal(again.value, found.value) and np.array_equal(again.cover, found.cover)


def test_weights_keep_within_constraints() -> None:
    rng = np.random.default_rng(2)
    tree = random_tree(rng, 1, 4, sparseness=0.0)
    rows = 2000
    leaf = rng.choice(np.flatnonzero(tree.left < 0), rows).astype(np.int32)
    gradient = rng.normal(size=rows).astype(np.float32)
    params = Params.of({"monotone_constraints": (1,), "max_delta_step": 0.01, "learning_rate": 1.0})
    found = LeafSums(params, rows, 1, Workers(1)).refined(tree, leaf, gradient, np.ones(rows, np.float32))
    assert abs(found.value).max() <= np.float32(0.01)
    for node in np.flatnonzero(tree.left >= 0):
        low, high = [int(tree.left[node])], [int(tree.right[node])]
        for below in (low, high):
            for inner in below:  # grows while it is read
                if tree.left[inner] >= 0:
                    below += [int(tree.left[inner]), int(tree.right[inner])]
        assert max(found.value[i] for i in low if tree.left[i] < 0) <= min(
            found.value[i] for i in high if tree.left[i] < 0
        )


def table(rows: int, seed: int = 0) -> tuple[Array, Array]:
    """Three columns of few values, and the number of the cell that a row is in."""
    rng = np.random.default_rng(seed)
    x = np.stack([rng.integers(0, count, rows) for count in (2, 3, 4)], 1)
    return x.astype(np.float32), (x[:, 0] * 12 + x[:, 1] * 4 + x[:, 2])


def in_float64(
    data: Dataset, params: Params, loss: Callable[[Array], tuple[Array, Array]], base: float | Array
) -> Array:
    """Margins of a training in float64, by the oracle of growers."""
    cuts = Cuts.of(data, 256, Workers(1))
    margin = np.full(data.rows, base, np.float64)

    def add(node: Plain) -> None:
        for child in node.children:
            add(child)
        if not node.children:
            margin[node.rows] += params.learning_rate * node.weight

    for _ in range(params.rounds):
        add(plain_tree(data, cuts, range(data.features), *loss(margin), params))
    return margin


METHODS = ("hist", "approx", "exact")
ROWS = 6000


@pytest.mark.parametrize("method", METHODS)
def test_slow_ones_beside_one_percent_of_fast_movers(method: str) -> None:
    x, cell = table(ROWS)
    rng = np.random.default_rng(1)
    fast = rng.random(ROWS) < 0.01
    x[:, 0] = fast
    slow = 0.02 * (1 + cell % 12 / 4)
    label = np.where(fast, rng.poisson(20_000 * (1 + cell % 3), ROWS), rng.random(ROWS) < slow).astype(np.float32)
    start = np.log(np.where(fast, 30_000, 0.05)).astype(np.float32)
    given = {"objective": "poisson", "max_delta_step": 0.0, "rounds": 3, "max_depth": 5, "learning_rate": 0.5}
    params = Params.of(given | {"tree_method": method, "base_score": 1.0})
    data = Dataset.of(x, label, base_margin=start)
    found = train(params, data).predict_margin(data)[0]
    expected = in_float64(data, params, lambda margin: (np.exp(margin) - label, np.exp(margin)), start)
    np.testing.assert_allclose(np.exp(found), np.exp(expected), rtol=1e-4)
    assert abs(np.exp(found[~fast]).mean() - label[~fast].mean()) < 0.01


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("heavy", ["rows", "cells"])
@pytest.mark.parametrize("ratio", [1e3, 1e5, 1e7])
def test_weights_far_apart(ratio: float, heavy: str, method: str) -> None:
    x, cell = table(ROWS)
    rng = np.random.default_rng(2)
    label = (np.sin(3 * cell) + 2 + 0.05 * rng.normal(size=ROWS)).astype(np.float32)
    chosen = rng.random(ROWS) < 0.01 if heavy == "rows" else cell % 12 == 5
    weight = np.where(chosen, ratio, 1).astype(np.float32)
    given = {"rounds": 2, "max_depth": 5, "learning_rate": 0.5, "tree_method": method, "base_score": 2.0}
    params = Params.of(given)
    data = Dataset.of(x, label, weight)
    found = predict(train(params, data), x)
    expected = in_float64(data, params, lambda margin: ((margin - label) * weight, weight.astype(np.float64)), 2.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert dumps(train(params, data, threads=3)) == dumps(train(params, data, threads=1))


@pytest.mark.parametrize("method", METHODS)
def test_hessians_far_apart(method: str) -> None:
    x, cell = table(ROWS)
    curvature = np.where(cell % 6 == 1, 1e6, 1).astype(np.float32)
    label = (np.cos(2 * cell) + 2 + 0.05 * np.random.default_rng(3).normal(size=ROWS)).astype(np.float32)

    def objective(margin: Array, data: Dataset) -> tuple[Array, Array]:
        gradient = ((margin.reshape(-1) - label) * curvature).astype(np.float32)
        return gradient.reshape(margin.shape), curvature.reshape(margin.shape)

    given = {"rounds": 2, "max_depth": 5, "learning_rate": 0.5, "tree_method": method, "base_score": 0.0}
    params = Params.of(given | {"objective": objective})
    data = Dataset.of(x, label)
    found = predict(train(params, data), x, output="margin")
    expected = in_float64(data, params, lambda margin: ((margin - label) * curvature, 1.0 * curvature), 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_routed_rows_have_the_weights_of_their_leaves() -> None:
    x, cell = table(ROWS)
    label = np.cos(2.0 * cell).astype(np.float32)
    data = Dataset.of(x, label)
    model = train({"rounds": 1, "max_depth": 4, "base_score": 0.0, "learning_rate": 1.0}, data)
    leaf = route(model.trees[0], x)
    for node in np.unique(leaf):
        own = label[leaf == node].astype(np.float64)
        assert abs(model.trees[0].value[node] - own.sum() / (len(own) + 1)) < 1e-6
