"""Exact greedy trees against Algorithms 1 and 3 in plain NumPy, on small data with ties, missing values and weights."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.data import Dataset, Sparse
from burnish.boost.exact import LEAST_GAIN, ExactGrower
from burnish.boost.grower import HistGrower
from burnish.boost.growth import scan_state as records
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN, ColumnSampler
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers

ONE = Workers(1)


def compress(table):
    present = ~np.isnan(table)
    start = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return Sparse(start, np.nonzero(present)[1].astype(np.int32), table[present])


def make(random, rows, features):
    """A table with ties, missing values, a constant column and an empty one; statistics with rows of no weight."""
    table = random.integers(-4, 5, (rows, features)).astype(np.float32) / 2
    table[:, 0] = random.normal(size=rows)
    table[random.random((rows, features)) < random.choice([0, 0.3])] = np.nan
    if features > 2:
        table[:, 1] = np.where(random.random(rows) < 0.5, 1.0, np.nan)
        table[:, 2] = np.nan
    weight = random.integers(0, 4, rows)
    gradient = (random.normal(size=rows) * weight).astype(np.float32)
    return table, gradient, (random.random(rows) * weight).astype(np.float32)


def weight_of(g, h, params, lower, upper):
    shrunk = np.sign(g) * max(abs(g) - params.reg_alpha, 0)
    weight = -shrunk / (h + params.reg_lambda) if h > 0 else 0.0
    if params.max_delta_step:
        weight = np.clip(weight, -params.max_delta_step, params.max_delta_step)
    return float(np.clip(weight, lower, upper))


def score_of(g, h, params, lower, upper):
    weight = weight_of(g, h, params, lower, upper)
    return -(2 * g * weight + (h + params.reg_lambda) * weight**2 + 2 * params.reg_alpha * abs(weight))


def gain_of(left, right, params, sign, lower, upper):
    """Eq. 2.7 without its ½, from (G, H) of both sides; −inf if the split is not allowed."""
    if min(left[1], right[1]) < max(params.min_child_weight, 1e-9):
        return -np.inf
    weights = [weight_of(*side, params, lower, upper) for side in (left, right)]
    if sign * (weights[1] - weights[0]) < 0:
        return -np.inf
    whole = (left[0] + right[0], left[1] + right[1])
    scores = [score_of(*side, params, lower, upper) for side in (left, right, whole)]
    return scores[0] + scores[1] - scores[2]


def naive_best(table, g, h, params, signs, lower, upper):
    """Algorithm 3 by definition: each threshold of each feature, the missing rows on either side."""
    best = -np.inf
    used = (g != 0) | (h != 0)
    for feature in range(table.shape[1]):
        column = table[:, feature].astype(np.float64)
        missing = np.isnan(column)
        for threshold in [*np.unique(column[used & ~missing]), np.inf]:
            for default_left in (False, True):
                left = np.where(missing, default_left, column < threshold)
                sides = [(g[side].sum(), h[side].sum()) for side in (left, ~left)]
                best = max(best, gain_of(*sides, params, signs[feature], lower, upper))
    return best


def check_tree(tree, leaf, table, gradient, hessian, params, tolerance):
    """Every split is as good as the best there is, no leaf has one that is worth it, every row is where it belongs."""
    g, h = gradient.astype(np.float64), hessian.astype(np.float64)
    signs = np.zeros(table.shape[1])
    signs[: len(params.monotone_constraints)] = params.monotone_constraints
    rows_of, depth, bounds = {0: np.arange(len(table))}, {0: 0}, {0: (-np.inf, np.inf)}
    for node in range(tree.size):
        rows = rows_of[node]
        best = naive_best(table[rows], g[rows], h[rows], params, signs, *bounds[node])
        expected = weight_of(g[rows].sum(), h[rows].sum(), params, *bounds[node])
        np.testing.assert_allclose(tree.value[node], params.learning_rate * expected, atol=tolerance, rtol=tolerance)
        np.testing.assert_allclose(tree.cover[node], h[rows].sum(), atol=tolerance, rtol=tolerance)
        if tree.left[node] < 0:
            assert (leaf[rows] == node).all()
            assert depth[node] == params.max_depth or best <= max(params.gamma, LEAST_GAIN) + tolerance
            continue
        feature, children = tree.feature[node], (int(tree.left[node]), int(tree.right[node]))
        column = table[rows, feature]
        left = np.where(np.isnan(column), tree.default_left[node], column < tree.threshold[node])
        sides = [(g[rows[side]].sum(), h[rows[side]].sum()) for side in (left, ~left)]
        # A child may miss its least weight by rounding, but no more.
        lenient = dataclasses.replace(params, min_child_weight=params.min_child_weight - tolerance)
        actual = gain_of(*sides, lenient, 0, *bounds[node])
        np.testing.assert_allclose(tree.gain[node], actual, atol=tolerance, rtol=tolerance)
        np.testing.assert_allclose(actual, best, atol=tolerance, rtol=tolerance)
        lower, upper = bounds[node]
        weights = [weight_of(*side, params, lower, upper) for side in sides]
        middle = sum(weights) / 2
        sign = signs[feature]
        assert sign * (weights[1] - weights[0]) >= -tolerance
        limits = [(lower, upper)] * 2 if sign == 0 else [(lower, middle), (middle, upper)][:: int(sign)]
        for child, side, limit in zip(children, (left, ~left), limits, strict=True):
            rows_of[child], depth[child], bounds[child] = rows[side], depth[node] + 1, limit


PARAMS = st.builds(
    Params,
    max_depth=st.integers(1, 4),
    reg_lambda=st.sampled_from([0.0, 1.0, 3.0]),
    reg_alpha=st.sampled_from([0.0, 0.0, 0.5]),
    gamma=st.sampled_from([0.0, 0.3]),
    min_child_weight=st.sampled_from([0.01, 1.0, 2.5]),
    max_delta_step=st.sampled_from([0.0, 0.0, 0.2]),
    monotone_constraints=st.sampled_from([(), (), (1, 0, 0, -1)]),
    learning_rate=st.sampled_from([0.1, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(PARAMS, st.integers(0, 10_000), st.sampled_from([1, 7, 40]), st.sampled_from([1, 4]), st.booleans())
def test_trees_are_those_of_the_algorithm(params, seed, rows, features, sparse):
    params = dataclasses.replace(params, monotone_constraints=params.monotone_constraints[:features])
    table, gradient, hessian = make(np.random.default_rng(seed), rows, features)
    data = Dataset(compress(table) if sparse else table, rows, features)
    tree, leaf = ExactGrower(data, params, Workers(2)).grow(gradient, hessian, EVERY_COLUMN)
    check_tree(tree, leaf, table, gradient, hessian, params, 1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_narrow_records_give_the_same_to_their_precision(monkeypatch, sparse):
    table, gradient, hessian = make(np.random.default_rng(3), 400, 5)
    data = Dataset(compress(table) if sparse else table, 400, 5)
    params = Params(max_depth=3)
    monkeypatch.setattr(records, "_FEW_ROWS", 0)
    grower = ExactGrower(data, params, Workers(2))
    tree, leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
    assert grower._records.words.ndim == 1
    check_tree(tree, leaf, table, gradient, hessian, params, 1e-4)
    gradient[7] = 1e6  # an outlier would take all precision
    tree, leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
    assert grower._records.words.ndim == 2
    check_tree(tree, leaf, table, gradient, hessian, params, 1e-3)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_any_number_of_threads_gives_the_same_tree(sparse, alpha):
    table, gradient, hessian = make(np.random.default_rng(4), 50_000, 7)
    table[:, 4] = table[:, 3]  # equal gains: the lower feature is to win
    data = Dataset(compress(table) if sparse else table, *table.shape)
    params = Params(max_depth=5, reg_alpha=alpha)
    trees = [ExactGrower(data, params, Workers(t)).grow(gradient, hessian, EVERY_COLUMN) for t in (1, 2, 3, 4)]
    assert not (trees[0][0].feature == 4).any()
    for tree, leaf in trees[1:]:
        for field in dataclasses.fields(tree):
            np.testing.assert_array_equal(getattr(tree, field.name), getattr(trees[0][0], field.name))
        np.testing.assert_array_equal(leaf, trees[0][1])


def test_dense_and_sparse_tables_give_the_same_tree():
    table, gradient, hessian = make(np.random.default_rng(5), 3000, 6)
    params = Params(max_depth=5)
    dense, sparse = (
        ExactGrower(Dataset(form, *table.shape), params, ONE).grow(gradient, hessian, EVERY_COLUMN)
        for form in (table, compress(table))
    )
    np.testing.assert_array_equal(dense[1], sparse[1])
    np.testing.assert_array_equal(dense[0].threshold, sparse[0].threshold)


def test_equals_hist_when_every_value_has_a_bin():
    random = np.random.default_rng(6)
    table = np.round(random.normal(size=(3000, 5)) * 15).astype(np.float32)
    table[random.random(table.shape) < 0.1] = np.nan
    gradient, hessian = random.normal(size=3000).astype(np.float32), random.random(3000).astype(np.float32)
    data, params = Dataset(table, *table.shape), Params(max_depth=4)
    (exact, leaf), (hist, other) = (
        grower(data, params, ONE).grow(gradient, hessian, EVERY_COLUMN) for grower in (ExactGrower, HistGrower)
    )
    assert exact.size == hist.size > 20
    np.testing.assert_allclose(exact.value[leaf], hist.value[other], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(np.sort(exact.gain), np.sort(hist.gain), rtol=1e-3)


class Masks(ColumnSampler):
    """Feature d at depth d, and at the second node of a level none."""

    def allowed(self, depth, node):
        mask = np.zeros(4, np.bool_)
        mask[depth] = node != 2
        return mask


def test_nodes_split_only_on_allowed_columns():
    table, gradient, hessian = make(np.random.default_rng(7), 500, 4)
    table[:, :2] = np.random.default_rng(8).normal(size=(500, 2))
    gradient[:] = table[:, 0] + table[:, 1]
    hessian[:] = 1
    tree, _ = ExactGrower(Dataset(table, 500, 4), Params(max_depth=2), ONE).grow(gradient, hessian, Masks())
    assert tree.feature[0] == 0
    assert tree.feature[1] == 1
    assert tree.left[2] < 0


def test_leaves_are_limited_and_the_best_splits_kept():
    table, gradient, hessian = make(np.random.default_rng(9), 2000, 4)
    data = Dataset(table, *table.shape)
    full, _ = ExactGrower(data, Params(max_depth=3), ONE).grow(gradient, hessian, EVERY_COLUMN)
    few, leaf = ExactGrower(data, Params(max_depth=3, max_leaves=3), ONE).grow(gradient, hessian, EVERY_COLUMN)
    assert few.leaves == 3 == len(np.unique(leaf))
    assert few.gain[1:3].max() == full.gain[1:3].max()


def test_without_a_depth_limit_it_grows_until_nothing_gains():
    table = np.arange(40, dtype=np.float32).reshape(-1, 1)
    gradient, hessian = np.arange(40, dtype=np.float32) ** 2, np.ones(40, np.float32)
    tree, leaf = ExactGrower(Dataset(table, 40, 1), Params(max_depth=0, reg_lambda=0), ONE).grow(
        gradient, hessian, EVERY_COLUMN
    )
    assert tree.leaves == 40 == len(np.unique(leaf))


def test_slots_beyond_one_scan(monkeypatch):
    """More nodes than a scan has slots are scanned in several; the tree is the same."""
    table, gradient, hessian = make(np.random.default_rng(10), 2000, 4)
    grower = ExactGrower(Dataset(table, *table.shape), Params(max_depth=5), ONE)
    whole, leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
    monkeypatch.setattr("burnish.boost.exact.SLOTS", 3)
    parts, other = grower.grow(gradient, hessian, EVERY_COLUMN)
    np.testing.assert_array_equal(leaf, other)
    np.testing.assert_array_equal(whole.threshold, parts.threshold)


def test_thresholds_lie_between_neighbours():
    values = np.array([1, np.nextafter(np.float32(1), np.float32(2)), -np.inf, np.inf], np.float32)
    for pair in ((0, 1), (2, 0), (1, 3), (2, 3)):
        table = np.repeat(values[list(pair)], 5).reshape(-1, 1)
        gradient = np.repeat(np.array([1, -1], np.float32), 5)
        tree, leaf = ExactGrower(Dataset(table, 10, 1), Params(), ONE).grow(
            gradient, np.ones(10, np.float32), EVERY_COLUMN
        )
        assert table[0] < tree.threshold[0] <= table[5]
        np.testing.assert_array_equal(leaf, np.repeat([1, 2], 5))


def test_refusals():
    data = Dataset(np.zeros((3, 1), np.float32), 3, 1)
    with pytest.raises(ParameterError, match=r"grow_policy.*lossguide.*depthwise"):
        ExactGrower(data, Params(grow_policy="lossguide"), ONE)
    categorical = dataclasses.replace(data, categories=(("a", "b"),))
    with pytest.raises(ParameterError, match="feature 0 is categorical"):
        ExactGrower(categorical, Params(), ONE)
    for bad in (np.nan, np.inf):
        gradient = np.array([1, bad, 1], np.float32)
        with pytest.raises(DataError, match="finite"):
            ExactGrower(data, Params(), ONE).grow(gradient, np.ones(3, np.float32), EVERY_COLUMN)
