"""A least number of rows in leaves: equal to min_child_weight where Hessians are 1, and counted where they are not."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse

from burnish.boost import Dataset, predict, train
from burnish.boost.binning import Cuts
from burnish.boost.distributed import train_distributed
from burnish.boost.exact import ExactGrower
from burnish.boost.grower import HistGrower
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN
from burnish.runtime.threads import Workers
from tests.boost.growing import Plain, dense, plain_tree, route, same
from tests.boost.test_category_partitions import exact_statistics
from tests.boost.test_category_partitions import table as category_table

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2000, 5)).astype(np.float32)
X[RANDOM.random(X.shape) < 0.2] = np.nan
Y = np.nan_to_num(X[:, 0] * X[:, 1]) + RANDOM.normal(0, 0.3, 2000)
SPARSE = scipy.sparse.csr_matrix(np.nan_to_num(X))


METHODS = [{}, {"tree_method": "approx"}, {"tree_method": "approx", "proposal": "local"}, {"tree_method": "exact"}]
NAMES = ["hist", "approx", "local", "exact"]


@pytest.mark.parametrize("table", [X, np.nan_to_num(X), SPARSE], ids=["missing", "dense", "sparse"])
@pytest.mark.parametrize(
    "more", [{}, {"grow_policy": "lossguide", "max_leaves": 20}, {"monotone_constraints": "1,0,0,0,0"}]
)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_rows_are_hessians_of_squared_error(table: Any, more: dict[str, Any], method: dict[str, Any]) -> None:
    if method == METHODS[-1] and "grow_policy" in more:
        more = {"max_leaves": 20}
    data = Dataset.of(table, label=Y)
    params = {"max_depth": 6, "base_score": 0.0} | more | method
    rows = train(params | {"min_child_samples": 37, "min_child_weight": 0}, data, 4)
    weight = train(params | {"min_child_weight": 37}, data, 4)
    assert (predict(rows, data) == predict(weight, data)).all() and rows.trees[0].leaves > 5


@pytest.mark.parametrize("objective", ["binary", "gamma"])
@pytest.mark.parametrize("table", [X, SPARSE], ids=["missing", "sparse"])
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_every_leaf_has_its_rows(objective: str, table: Any, method: dict[str, Any]) -> None:
    label = (Y > 0).astype(np.float32) if objective == "binary" else np.exp(Y)
    data = Dataset.of(table, label=label, weight=np.random.default_rng(2).random(2000))
    params = {"objective": objective, "min_data_in_leaf": 50, "min_child_weight": 0, "max_depth": 8} | method
    model = train(params, data, 5)
    leaf = predict(model, data, output="leaf")
    sizes = [np.unique(column, return_counts=True)[1].min() for column in leaf.T]
    assert min(sizes) >= 50 and min(sizes) < 100
    assert (predict(train(params, data, 5, workers=Workers(3)), data) == predict(model, data)).all()


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_sampled_rows_alone_count(method: dict[str, Any]) -> None:
    data = Dataset.of(X, label=Y)
    params = {"max_depth": 6, "subsample": 0.5, "base_score": 0.0} | method
    rows = train(params | {"min_data_in_leaf": 40, "min_child_weight": 0}, data, 3)
    assert (predict(rows, X) == predict(train(params | {"min_child_weight": 40}, data, 3), X)).all()


def random_case(seed: int) -> tuple[Dataset, Any, Any, Params]:
    """A small table with ties and missing values, statistics that are no counts, and a least number of rows."""
    random = np.random.default_rng(seed)
    rows = int(random.integers(60, 250))
    x = random.normal(size=(rows, 3)).astype(np.float32)
    x[:, 1] = np.round(x[:, 1])
    x[random.random(x.shape) < random.choice([0.0, 0.25])] = np.nan
    hessian = np.exp(2 * random.normal(size=rows)).astype(np.float32)
    gradient = (random.normal(size=rows) * hessian).astype(np.float32)
    least = int(random.integers(2, 25))
    return Dataset(x, rows, 3), gradient, hessian, Params(max_depth=3, min_child_weight=0.0, min_data_in_leaf=least)


@pytest.mark.parametrize("seed", range(12))
def test_trees_of_bins_against_a_plain_search(seed: int) -> None:
    data, gradient, hessian, params = random_case(seed)
    cuts = Cuts.of(data, 16, Workers(1))
    grower = HistGrower(data, params, Workers(2), cuts=cuts)
    tree, leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
    order = grower.bins.layout.feature.tolist()
    same(tree, plain_tree(data, cuts, order, gradient, hessian, params), params.learning_rate, leaf)


@pytest.mark.parametrize("seed", range(12))
def test_exact_trees_against_a_plain_search(seed: int) -> None:
    data, gradient, hessian, params = random_case(seed)
    columns = [np.unique(column[~np.isnan(column)])[1:] for column in dense(data).T]
    cuts = Cuts.join([np.append(column, np.float32(np.inf)).astype(np.float32) for column in columns])
    expected = plain_tree(data, cuts, range(3), gradient, hessian, params)
    tree, leaf = ExactGrower(data, params, Workers(2)).grow(gradient, hessian, EVERY_COLUMN)
    assert np.array_equal(leaf, route(tree, data.table))

    def leaves(node: Plain) -> list[tuple[int, ...]]:
        return [tuple(node.rows)] if not node.children else leaves(node.children[0]) + leaves(node.children[1])

    assert {tuple(np.flatnonzero(leaf == one)) for one in np.unique(leaf)} == set(leaves(expected))
    assert np.isclose(tree.gain.sum(), total_gain(expected), rtol=1e-5)


def total_gain(node: Plain) -> float:
    """Gains of a node and of all below it."""
    return node.gain + sum(total_gain(child) for child in node.children)


def best_set(x: Any, g: Any, h: Any, params: Params) -> float:
    """The best gain of a partition of categories with the least rows on each side, from the definition."""
    mean, codes, absent = h.mean(), int(np.nanmax(x)) + 1, np.isnan(x)
    own = np.array([[g[x == c].sum(), h[x == c].sum(), (x == c).sum()] for c in range(codes)])
    total, none = np.array([g.sum(), h.sum(), len(g)]), np.array([g[absent].sum(), h[absent].sum(), absent.sum()])

    def score(sums: Any, more: float) -> float:
        return float(sums[0] ** 2 / (sums[1] + params.reg_lambda + more))

    def gain(right: Any, more: float) -> float:
        left = total - right
        if min(left[2], right[2]) < params.min_data_in_leaf or min(left[1], right[1]) <= 0:
            return -np.inf
        return score(right, more) + score(left, more) - score(total, 0.0)

    found = [gain(none, 0.0)]
    if codes < params.max_cat_to_onehot:
        return max([*found, *(gain(one + more, 0.0) for one in own for more in (0 * none, none))])
    least = min(params.cat_smooth * mean, total[1] / codes)
    kept = [c for c in range(codes) if own[c, 2] and own[c, 1] >= least]
    kept.sort(key=lambda c: own[c, 0] / (own[c, 1] + params.cat_smooth))
    for ordered in (kept, kept[::-1]):
        right, since = 0 * total, 0.0
        for c in ordered[: min(params.max_cat_threshold or 16, (len(kept) + 1) // 2)]:
            right, since = right + own[c], since + own[c, 1]
            if total[1] - right[1] < params.min_data_per_group * mean or total[2] - right[2] < params.min_data_in_leaf:
                break
            if since < params.min_data_per_group * mean or right[2] + none[2] < params.min_data_in_leaf:
                continue
            since = 0.0
            found += [gain(right + more, params.cat_l2) for more in (0 * none, none)]
    return max(found)


@pytest.mark.parametrize("missing", [0.0, 0.1])
@pytest.mark.parametrize("categories", [3, 12, 90])
@pytest.mark.parametrize("least", [2, 300, 900])
def test_sides_of_partitions_of_categories_have_their_rows(categories: int, missing: float, least: int) -> None:
    more: dict[str, Any] = {"cat_smooth": 3.0, "min_data_per_group": 5, "min_child_weight": 0.0}
    params = Params(max_depth=1, min_data_in_leaf=least, max_cat_to_onehot=4, **more)
    for seed in range(4):
        data = category_table(3000, categories, missing, seed)
        data.table[:, 1] = 0.0
        gradient, _ = exact_statistics(data, seed)
        hessian = (np.random.default_rng(seed).integers(1, 64, 3000) / 16).astype(np.float32)
        tree, leaf = HistGrower(data, params, Workers(2)).grow(gradient, hessian, EVERY_COLUMN)
        expected = best_set(data.table[:, 0], gradient.astype(float), hessian.astype(float), params)
        if not np.isfinite(expected) or expected <= 0:
            assert tree.size == 1
            continue
        assert np.isclose(tree.gain[0], expected, rtol=1e-4)
        assert np.unique(leaf, return_counts=True)[1].min() >= least
        assert np.array_equal(leaf, route(tree, data.table))


@pytest.mark.parametrize("method", METHODS[:3], ids=NAMES[:3])
def test_any_number_of_workers_counts_all_rows(method: dict[str, Any]) -> None:
    x = X.copy()
    x[:, 4] = np.random.default_rng(4).integers(0, 25, 2000)
    data = Dataset.of(x, label=Y > 0, categorical=[4])
    params = {"objective": "binary", "min_data_in_leaf": 60, "min_child_weight": 0, "max_depth": 5} | method
    alone = predict(train(params, data, 3), data)
    for workers in (2, 3):
        assert (predict(train_distributed(params, data, 3, workers=workers, worker_kind="thread"), data) == alone).all()
