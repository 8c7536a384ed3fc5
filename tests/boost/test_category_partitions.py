"""Partitions of categories against a plain search with the same regularisation; the same trees on every path."""

from typing import Any

import numpy as np
import pytest

import burnish.boost.grower as grower_module
from burnish.boost import predict, train
from burnish.boost.data import Dataset
from burnish.boost.grower import HistGrower
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN
from burnish.runtime.threads import Workers
from tests.boost.growing import equal, route


def table(rows: int, categories: int, missing: float, seed: int = 0) -> Dataset:
    """Skewed categories, most of them present, and a number."""
    random = np.random.default_rng(seed)
    x = np.empty((rows, 2), np.float32)
    x[:, 0] = np.floor(random.random(rows) ** 3 * categories)
    x[random.random(rows) < missing, 0] = np.nan
    x[:, 1] = random.standard_normal(rows)
    return Dataset(x, rows, 2, categories=(tuple(range(categories)), None))


def exact_statistics(dataset: Dataset, seed: int = 0) -> tuple[Any, Any]:
    """Gradients that depend on the category and that fixed point represents exactly; Hessians of 1."""
    random = np.random.default_rng(seed)
    effect = random.standard_normal(len(dataset.categories[0]) + 1)
    code = np.nan_to_num(np.asarray(dataset.table)[:, 0], nan=-1).astype(int)
    gradient = np.clip(np.rint(64 * (effect[code] + random.standard_normal(dataset.rows))), -255, 255) / 256
    return gradient.astype(np.float32), np.ones(dataset.rows, np.float32)


def best_partition(
    x: Any, g: Any, params: Params, group_rows: float, category_rows: float, categories: int = 90
) -> tuple[float, set[int]]:
    """The best gain and its set of categories, from the definition."""
    total, rows, absent = g.sum(), len(g), np.isnan(x)
    missing, missing_rows = g[absent].sum(), int(absent.sum())
    sums = {c: (g[x == c].sum(), int((x == c).sum())) for c in np.unique(x[~absent]).astype(int).tolist()}

    def gain(right: float, right_rows: int, more: float) -> float:
        if min(right_rows, rows - right_rows) < max(params.min_child_weight, 1):
            return -np.inf
        own = params.reg_lambda + more
        return float(
            right**2 / (right_rows + own) + (total - right) ** 2 / (rows - right_rows + own)
            - total**2 / (rows + params.reg_lambda)
        )  # fmt: skip

    most = params.max_cat_threshold or min(max(int(rows / 30 / categories), 16), 64)
    found: list[tuple[float, set[int]]] = []
    found += [(gain(total - missing, rows - missing_rows, 0.0), set())] if missing_rows else []
    kept = sorted(
        (c for c in sums if sums[c][1] >= category_rows),
        key=lambda c: (sums[c][0] / (sums[c][1] + params.cat_smooth), c),
    )
    for ordered in (kept, kept[::-1]):
        right, right_rows, since = 0.0, 0, 0
        for k in range(min(most, (len(kept) + 1) // 2)):
            own, count = sums[ordered[k]]
            right, right_rows, since = right + own, right_rows + count, since + count
            if rows - right_rows < group_rows:
                break
            if since < group_rows:
                continue
            since = 0
            for way in (0, 1):
                more = (missing, missing_rows) if way else (0.0, 0)
                found.append((gain(right + more[0], right_rows + more[1], params.cat_l2), set(ordered[: k + 1])))
    return max(found, key=lambda f: f[0], default=(-np.inf, set()))


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize(
    "params",
    [
        Params(max_depth=1),
        Params(max_depth=1, min_data_per_group=200),
        Params(max_depth=1, cat_smooth=0.0, cat_l2=0.0, min_data_per_group=1, max_cat_threshold=3),
        Params(max_depth=1, cat_smooth=30.0, cat_l2=50.0, min_child_weight=40),
    ],
    ids=["defaults", "groups", "few", "much"],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_best_partition_of_many_categories(params: Params, missing: float, seed: int) -> None:
    dataset = table(3000, 90, missing, seed)
    x, (gradient, hessian) = np.asarray(dataset.table)[:, 0], exact_statistics(dataset, seed)
    tree, leaf = HistGrower(dataset, params, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    group, category = params.min_data_per_group or 100, min(params.cat_smooth, 3000 / 90)
    best, listed = best_partition(x, gradient.astype(float), params, group, category)
    assert best > 1 and tree.feature[0] == 0
    assert np.isclose(tree.gain[0], best, rtol=1e-5)
    assert set(tree.categories(0).tolist()) == listed
    assert np.array_equal(leaf, route(tree, dataset.table))


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize(
    "params", [Params(max_depth=6), Params(max_depth=0, min_child_weight=20), Params(max_depth=5, reg_alpha=0.1)]
)
def test_subtrees_apart_and_levels_give_one_tree(params: Params, missing: float, monkeypatch: Any) -> None:
    dataset = table(6000, 150, missing)
    gradient, hessian = exact_statistics(dataset)
    growers = [HistGrower(dataset, params, Workers(threads)) for threads in (1, 2, 3)]
    trees = [grower.grow(gradient, hessian, EVERY_COLUMN) for grower in growers for _ in range(2)]
    for name, value in (("_LITTLE", 0), ("_FEW_ROWS", 0), ("_SUBTREES", 2)):
        monkeypatch.setattr(grower_module, name, value)
    trees += [grower.grow(gradient, hessian, EVERY_COLUMN) for grower in growers]
    monkeypatch.setattr(HistGrower, "_masks", lambda self, columns: None)
    expected, leaves = HistGrower(dataset, params, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    assert expected.size > 30
    assert any(len(expected.categories(node)) for node in range(expected.size))
    monkeypatch.setattr(HistGrower, "_wide", True)
    trees.append(HistGrower(dataset, params, Workers(2)).grow(gradient, hessian, EVERY_COLUMN))
    for tree, leaf in trees:
        assert equal(tree, expected)
        assert np.array_equal(leaf, leaves)


def test_missing_against_all_categories() -> None:
    """The set of those that go right is never empty, so that the split is not taken for one by threshold."""
    random = np.random.default_rng(0)
    code = random.integers(0, 6, 2000).astype(np.float32)
    code[code == 5] = np.nan
    label = np.isnan(code) * 3.0
    data = Dataset.of(code[:, None], label, categorical=[0])
    model = train({}, data, 30)
    assert np.abs(predict(model, code[:, None]) - label).max() < 1e-3


@pytest.mark.slow
def test_many_categories_of_few_rows_are_learnt() -> None:
    effect = np.random.default_rng(1).standard_normal(2000)
    code = np.repeat(np.arange(2000.0), 2)[:, None]
    model = train({"min_child_weight": 0, "max_depth": 8}, Dataset.of(code, np.repeat(effect, 2), categorical=[0]), 30)
    assert np.corrcoef(predict(model, code), np.repeat(effect, 2))[0, 1] > 0.9


def test_categories_that_no_row_of_a_node_has_go_with_the_larger_side() -> None:
    code = np.repeat(np.arange(6.0), 50)
    label = (code == 2) * 1.0
    model = train({"max_depth": 1, "learning_rate": 1.0}, Dataset.of(code[:, None], label, categorical=[0]), 1)
    (tree,) = (model.trees[0],)
    assert tree.categories(0).tolist() == [2]
    assert tree.default_left[0]


@pytest.mark.parametrize(("rows", "most"), [(20_000, 16), (66_000, 22), (400_000, 50)])
def test_the_smaller_side_follows_the_rows_of_a_category(rows: int, most: int) -> None:
    random = np.random.default_rng(1)
    code = random.integers(0, 100, rows)
    sign = np.where(random.permutation(100) < 50, -1.0, 1.0)[code]
    dataset = Dataset.of(code[:, None].astype(np.float32), categorical=[0])
    gradient, hessian = (sign + code / 1000).astype(np.float32), np.ones(rows, np.float32)
    tree, _ = HistGrower(dataset, Params(max_depth=1), Workers(2)).grow(gradient, hessian, EVERY_COLUMN)
    assert len(tree.categories(0)) == most


def test_sides_of_very_many_categories_are_larger() -> None:
    code = np.repeat(np.arange(5000), 2)
    effect = np.random.default_rng(1).normal(size=5000)[code]
    data = Dataset.of(code[:, None].astype(np.float32), effect, categorical=[0])
    tree = train({"min_child_weight": 0, "max_depth": 1}, data, 1).trees[0]
    assert 16 < len(tree.categories(0)) <= 62
