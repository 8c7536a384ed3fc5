"""Trees of the histogram grower against the oracle of growing.py, and what must not change them."""

import heapq
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import burnish.boost.grower as grower_module
from burnish.boost.data import Dataset, Sparse
from burnish.boost.grower import HistGrower
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN, ColumnSampler
from burnish.comm.local import thread_comms
from burnish.errors import DataError
from burnish.runtime.threads import Workers
from tests.boost.growing import dense, equal, plain_tree, route, same
from tests.marks import slow_except


def data(seed: int, rows: int = 300, features: int = 5, missing: float = 0.2, values: int = 0) -> Dataset:
    """A random table; with `values`, of so many distinct ones."""
    random = np.random.default_rng(seed)
    table = random.standard_normal((rows, features)).astype(np.float32)
    if values:
        table = np.round(table * values / 4).astype(np.float32)
    table[random.random(table.shape) < missing] = np.nan
    return Dataset(table, rows, features)


def sparse(dataset: Dataset) -> Dataset:
    """The same data as compressed rows."""
    present = ~np.isnan(dataset.table)
    start = np.append(0, np.cumsum(present.sum(axis=1))).astype(np.int64)
    columns = np.nonzero(present)[1].astype(np.int32)
    return replace(dataset, table=Sparse(start, columns, dataset.table[present]))


def statistics(seed: int, rows: int) -> tuple[Any, Any]:
    """Gradients and Hessians that fixed point and sums represent exactly."""
    random = np.random.default_rng(seed)
    return (
        (random.integers(-512, 512, rows) / 512).astype(np.float32),
        (random.integers(1, 256, rows) / 256).astype(np.float32),
    )


def check(dataset: Dataset, params: Params, seed: int = 0, threads: int = 1) -> None:
    grower = HistGrower(dataset, params, Workers(threads))
    gradient, hessian = statistics(seed, dataset.rows)
    for _ in range(2):  # buffers are used again
        tree, leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
        oracle = plain_tree(dataset, grower.cuts, grower.bins.layout.feature, gradient, hessian, params)
        same(tree, oracle, params.learning_rate, leaf)
        assert np.array_equal(leaf, route(tree, dense(dataset)))
        gradient = gradient[::-1].copy()


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("form", [lambda d: d, sparse], ids=["dense", "sparse"])
@pytest.mark.parametrize("seed", slow_except(range(3), 0))
def test_trees_are_the_oracles(seed: int, form: Any, missing: float) -> None:
    check(form(data(seed, missing=missing)), Params(max_depth=4, max_bin=16), seed)
    check(form(data(seed, missing=missing, values=7)), Params(max_depth=5, reg_alpha=0.4, gamma=0.3), seed)
    check(form(data(seed, missing=missing)), Params(max_depth=3, min_child_weight=9, reg_lambda=0.0), seed)


@pytest.mark.parametrize("form", [lambda d: d, sparse], ids=["dense", "sparse"])
def test_packed_statistics_and_many_features(form: Any) -> None:
    """More than 1024 rows are packed; more than 32 features lie in several groups, which threads share."""
    check(form(data(5, 3000, 3, missing=0.1)), Params(max_depth=5, max_bin=32), threads=2)
    check(form(data(6, 1200, 70, missing=0.05)), Params(max_depth=2, max_bin=8), threads=3)


@pytest.mark.parametrize("params", [Params(max_depth=4), Params(max_depth=4, reg_alpha=0.4, min_child_weight=3)])
def test_features_of_one_bin_beside_others(params: Params) -> None:
    dataset = data(17, 2500, 70, missing=0.7)
    dataset.table[:, 3:] = np.where(np.isnan(dataset.table[:, 3:]), np.nan, 1)
    check(sparse(dataset), params, threads=2)


def test_more_than_256_bins() -> None:
    dataset = data(7, 2000, 3, missing=0.1)
    grower = HistGrower(dataset, Params(max_bin=1000), Workers(1))
    assert grower.bins.columns.dtype == np.uint16
    assert grower.cuts.most == 999
    check(dataset, Params(max_depth=3, max_bin=1000))


@pytest.mark.parametrize(
    "params",
    [
        Params(max_depth=6),
        Params(max_depth=0, max_leaves=40, grow_policy="lossguide"),
        Params(max_depth=6, monotone_constraints=(1, 0, -1)),
    ],
)
@pytest.mark.parametrize("form", [lambda d: d, sparse], ids=["dense", "sparse"])
@pytest.mark.parametrize("outlier", [False, True], ids=["packed", "pairs"])
def test_any_number_of_threads_gives_the_same_tree(form: Any, params: Params, outlier: bool) -> None:
    dataset = form(data(8, 60_000, 6))
    random = np.random.default_rng(1)
    gradient = random.standard_normal(60_000).astype(np.float32)
    hessian = random.random(60_000).astype(np.float32)
    if outlier:
        gradient[11] = 1e7
    first, first_leaf = HistGrower(dataset, params, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    assert first.size > 20
    for threads in (2, 3, 7, 16):
        tree, leaf = HistGrower(dataset, params, Workers(threads)).grow(gradient, hessian, EVERY_COLUMN)
        assert equal(tree, first)
        assert np.array_equal(leaf, first_leaf)


def test_few_rows_of_many_features_are_shared_by_more_threads_than_a_path_has_nodes() -> None:
    """One thread grows 32 nodes for 16 threads first: each keeps its histogram, more than a descent needs."""
    dataset, params = data(8, 15_000, 140), Params(max_depth=0, min_child_weight=20)
    gradient, hessian = statistics(3, dataset.rows)
    first, first_leaf = HistGrower(dataset, params, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    grower = HistGrower(dataset, params, Workers(16))
    tree, leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
    assert equal(tree, first)
    assert np.array_equal(leaf, first_leaf)
    free, unused = grower._histograms.slots
    assert sorted(free[: unused[0]].tolist()) == list(range(len(grower._histograms.pool)))  # all are back, each once


@pytest.mark.parametrize("form", [lambda d: d, sparse], ids=["dense", "sparse"])
def test_workers_with_shards_give_the_same_tree(form: Any) -> None:
    whole = data(9, 5000, 4, missing=0.0)
    whole.table[100:140, 2] = np.nan  # in one shard only
    gradient, hessian = statistics(9, 5000)
    params = Params(max_depth=5)
    grower = HistGrower(form(whole), params, Workers(1))
    expected, expected_leaf = grower.grow(gradient, hessian, EVERY_COLUMN)
    edges = [0, 700, 3000, 5000]
    comms, results = thread_comms(3), [None] * 3

    def work(rank: int) -> None:
        part = slice(edges[rank], edges[rank + 1])
        shard = form(Dataset(whole.table[part], edges[rank + 1] - edges[rank], 4))
        mine = HistGrower(shard, params, Workers(1), comms[rank], grower.cuts)
        results[rank] = mine.grow(gradient[part].copy(), hessian[part].copy(), EVERY_COLUMN)

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for rank, (tree, leaf) in enumerate(results):
        assert equal(tree, expected)
        assert np.array_equal(leaf, expected_leaf[edges[rank] : edges[rank + 1]])


def test_best_first_growth_with_no_limit_is_depth_wise_growth() -> None:
    dataset, (gradient, hessian) = data(10, 400), statistics(10, 400)
    wide = Params(max_depth=4)
    deep = Params(max_depth=4, grow_policy="lossguide")
    _, leaf = HistGrower(dataset, wide, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    _, other = HistGrower(dataset, deep, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    assert len(np.unique(leaf)) > 8
    assert len(np.unique(np.stack([leaf, other]), axis=1).T) == len(np.unique(leaf)) == len(np.unique(other))


@pytest.mark.parametrize("policy", ["depthwise", "lossguide"])
def test_leaves_are_limited_and_the_best_come_first(policy: str) -> None:
    dataset, (gradient, hessian) = data(11, 400), statistics(11, 400)
    grower = HistGrower(dataset, Params(max_depth=0, max_leaves=6, grow_policy=policy), Workers(1))
    full = HistGrower(dataset, Params(max_depth=0, grow_policy=policy), Workers(1))
    everything, _ = full.grow(gradient, hessian, EVERY_COLUMN)
    for _ in range(3):
        tree, _ = grower.grow(gradient, hessian, EVERY_COLUMN)
        assert tree.leaves == 6
    if policy == "lossguide":
        best, queue = [], [(-everything.gain[0], 0)]
        for _ in range(5):
            gain, node = heapq.heappop(queue)
            best.append(-gain)
            for child in (everything.left[node], everything.right[node]):
                heapq.heappush(queue, (-everything.gain[child], child))
        assert sorted(best) == sorted(tree.gain[tree.left >= 0])


def test_monotone_constraints_hold_on_every_path() -> None:
    random = np.random.default_rng(12)
    dataset = data(12, 2000, 3, missing=0.0)
    gradient = (-dataset.table[:, 0] + np.sin(5 * dataset.table[:, 0]) + random.standard_normal(2000)).astype(
        np.float32
    )
    params = Params(max_depth=6, monotone_constraints=(1, 0, 0), learning_rate=1.0)
    tree, _ = HistGrower(dataset, params, Workers(1)).grow(gradient, np.ones(2000, np.float32), EVERY_COLUMN)
    assert np.count_nonzero(tree.feature == 0) > 3
    probe = np.repeat(dataset.table[:200], 50, axis=0)
    probe[:, 0] = np.tile(np.linspace(-3, 3, 50, dtype=np.float32), 200)
    steps = np.diff(tree.value[route(tree, probe)].reshape(200, 50), axis=1)
    assert (steps >= 0).all()
    free, _ = HistGrower(dataset, Params(max_depth=6), Workers(1)).grow(
        gradient, np.ones(2000, np.float32), EVERY_COLUMN
    )
    assert (np.diff(free.value[route(free, probe)].reshape(200, 50), axis=1) < 0).any()


def test_largest_weight() -> None:
    dataset, (gradient, hessian) = data(13), statistics(13, 300)
    params = Params(max_delta_step=0.1, learning_rate=1.0, max_depth=4)
    tree, _ = HistGrower(dataset, params, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    assert tree.leaves > 4
    assert abs(tree.value).max() == np.float32(0.1)


class OneByDepth(ColumnSampler):
    """At depth d only feature d."""

    def allowed(self, depth: int, node: int) -> Any:
        return np.arange(5) == depth


def test_only_allowed_features_are_split_on() -> None:
    dataset, (gradient, hessian) = data(14), statistics(14, 300)
    tree, _ = HistGrower(dataset, Params(max_depth=5), Workers(1)).grow(gradient, hessian, OneByDepth())
    level = {0: 0}
    for node in np.flatnonzero(tree.left >= 0):
        assert tree.feature[node] == level[node]
        level |= {int(tree.left[node]): level[node] + 1, int(tree.right[node]): level[node] + 1}
    assert set(level.values()) == {0, 1, 2, 3, 4, 5}


def one_leaf(dataset: Dataset, gradient: Any, hessian: Any, params: Params = Params()) -> float:  # noqa: B008
    tree, leaf = HistGrower(dataset, params, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    assert tree.size == 1
    assert (leaf == 0).all()
    return float(tree.value[0])


def test_trees_of_one_leaf() -> None:
    ones = np.ones(4, np.float32)
    constant = Dataset(np.full((4, 2), 3.0, np.float32), 4, 2)
    empty = Dataset(np.full((4, 2), np.nan, np.float32), 4, 2)
    nothing = Dataset(np.empty((4, 0), np.float32), 4, 0)
    for dataset in (constant, empty, nothing):
        assert one_leaf(dataset, ones, ones, Params(learning_rate=1.0)) == pytest.approx(-4 / 5)
    assert one_leaf(data(0, 1), ones[:1], ones[:1], Params(learning_rate=1.0)) == -0.5
    varied = data(15, 4, missing=0.0)
    assert one_leaf(varied, ones, 0 * ones, Params(min_child_weight=0)) == 0  # no curvature, no step
    assert one_leaf(varied, 0 * ones, 0 * ones) == 0
    assert one_leaf(varied, ones, ones, Params(reg_lambda=0, min_child_weight=0)) < 0  # nothing to gain


def test_an_empty_feature_beside_others() -> None:
    dataset = data(16, 200)
    dataset.table[:, 1] = np.nan
    dataset.table[:, 3] = 2.0
    check(dataset, Params(max_depth=4))
    check(sparse(dataset), Params(max_depth=4))


def test_negative_hessians_and_outliers_do_not_overflow() -> None:
    dataset = data(17, 3000, 4)
    gradient, hessian = statistics(17, 3000)
    hessian[::7] *= -1
    tree, leaf = HistGrower(dataset, Params(max_depth=4), Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    assert tree.cover[0] == np.float32(hessian.sum(dtype=np.float64))
    for node in np.flatnonzero(tree.left < 0):
        assert np.isclose(tree.cover[node], hessian[leaf == node].sum(dtype=np.float64))
    gradient[5] = 3e30
    tree, leaf = HistGrower(dataset, Params(max_depth=2), Workers(1)).grow(gradient, abs(hessian), EVERY_COLUMN)
    assert tree.value[leaf[5]] < -1e25
    gradient[5] = 1e5
    tree, leaf = HistGrower(dataset, Params(learning_rate=1.0), Workers(1)).grow(gradient, abs(hessian), EVERY_COLUMN)
    for node in np.flatnonzero(tree.left < 0):  # small gradients count beside a large one
        mine = leaf == node
        expected = -gradient[mine].sum(dtype=np.float64) / (abs(hessian[mine]).sum(dtype=np.float64) + 1)
        assert np.isclose(tree.value[node], expected, rtol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_gradients_must_be_finite(bad: float) -> None:
    grower = HistGrower(data(0), Params(), Workers(1))
    gradient, hessian = statistics(0, 300)
    gradient[3] = bad
    with pytest.raises(DataError, match="gradient"):
        grower.grow(gradient, hessian, EVERY_COLUMN)
    gradient[3] = 0
    hessian[299] = bad
    with pytest.raises(DataError, match="NaN or infinite"):
        grower.grow(gradient, hessian, EVERY_COLUMN)


def test_rows_without_statistics_are_routed() -> None:
    dataset, (gradient, hessian) = data(18), statistics(18, 300)
    gradient[::2] = hessian[::2] = 0
    tree, leaf = HistGrower(dataset, Params(max_depth=4), Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    assert tree.leaves > 4
    assert np.array_equal(leaf, route(tree, dataset.table))


def categorical(rows: int, categories: int, missing: float) -> Dataset:
    random = np.random.default_rng(categories)
    table = random.standard_normal((rows, 3)).astype(np.float32)
    table[:, 1] = random.integers(0, categories, rows)
    table[random.random(rows) < missing, 1] = np.nan
    return Dataset(table, rows, 3, categories=(None, tuple(range(categories)), None))


@pytest.mark.parametrize("form", [lambda d: d, sparse], ids=["dense", "sparse"])
@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("one_hot", [True, False])
def test_splits_by_category(one_hot: bool, missing: float, form: Any) -> None:
    """The root's split has the largest gain of all subsets of the categories (one-hot: of all single ones)."""
    dataset = categorical(1500, 7, missing)
    gradient, hessian = statistics(19, 1500)
    category = dataset.table[:, 1]
    gradient += np.isin(category, [1, 4, 6]).astype(np.float32) * (1 + (category == 4))
    free = {"cat_smooth": 0.0, "cat_l2": 0.0, "min_data_per_group": 1}
    params = Params(max_depth=3, max_cat_to_onehot=8 if one_hot else 4, learning_rate=1.0, **free)
    workers = form(dataset)
    tree, leaf = HistGrower(workers, params, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    assert np.array_equal(leaf, route(tree, dataset.table))
    subsets = [1 << c for c in range(7)] if one_hot else range(1, 127)
    best = 0.0
    for subset in subsets:
        listed = [c for c in range(7) if subset >> c & 1]
        for default_right in (False, True):
            right = np.isin(category, listed) | (np.isnan(category) & default_right)
            if 0 < right.sum() < 1500:
                parts = (right, ~right, np.ones(1500, bool))
                scores = [gradient[p].sum(dtype=float) ** 2 / (hessian[p].sum(dtype=float) + 1) for p in parts]
                best = max(best, scores[0] + scores[1] - scores[2])
    assert tree.feature[0] == 1
    assert len(tree.categories(0)) >= 1
    assert np.isclose(tree.gain[0], best, rtol=1e-4)


@pytest.mark.parametrize(("form", "missing"), [(lambda d: d, 0.0), (lambda d: d, 0.2), (sparse, 0.2), (sparse, 0.9)])
@pytest.mark.parametrize(
    "params",
    [Params(max_depth=7), pytest.param(Params(max_depth=0, min_child_weight=5, reg_alpha=0.5), marks=pytest.mark.slow)],
)
def test_growing_subtrees_apart_is_growing_by_level(
    params: Params, form: Any, missing: float, monkeypatch: Any
) -> None:
    dataset, (gradient, hessian) = form(data(20, 9000, 40, missing=missing)), statistics(20, 9000)
    trees = [HistGrower(dataset, params, Workers(n)).grow(gradient, hessian, EVERY_COLUMN) for n in (1, 2, 3)]
    monkeypatch.setattr(grower_module, "_LITTLE", 0)
    trees += [HistGrower(dataset, params, Workers(n)).grow(gradient, hessian, EVERY_COLUMN) for n in (1, 2, 3)]
    monkeypatch.setattr(grower_module, "_FEW_ROWS", 0)
    monkeypatch.setattr(grower_module, "_SUBTREES", 2)
    monkeypatch.setattr(grower_module, "_SPARSE_SUBTREES", 2)
    grower = HistGrower(dataset, params, Workers(2))
    trees += [grower.grow(gradient, hessian, EVERY_COLUMN) for _ in range(2)]
    monkeypatch.setattr(HistGrower, "_masks", lambda self, columns: None)
    expected, expected_leaf = HistGrower(dataset, params, Workers(1)).grow(gradient, hessian, EVERY_COLUMN)
    assert expected.size > 60
    for tree, leaf in trees:
        assert equal(tree, expected)
        assert np.array_equal(leaf, expected_leaf)
