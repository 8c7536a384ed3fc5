"""Approximate trees: global candidates are Hessian-weighted quantiles of all rows, local ones those of each node."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.approx import ApproxGrower, GlobalGrower, LocalGrower
from burnish.boost.binning import LAST_CUT, column_cuts
from burnish.boost.blocks import column_block
from burnish.boost.data import Dataset, Sparse
from burnish.boost.exact import ExactGrower
from burnish.boost.grower import HistGrower
from burnish.boost.growth import requantize as rebin
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN
from burnish.comm.local import launch
from burnish.runtime.threads import Workers

ONE = Workers(1)


def compress(table):
    present = ~np.isnan(table)
    start = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return Sparse(start, np.nonzero(present)[1].astype(np.int32), table[present])


def make(seed, rows=4000):
    """A table of continuous, coarse and incomplete columns, and statistics that depend on it."""
    random = np.random.default_rng(seed)
    table = random.normal(size=(rows, 5)).astype(np.float32)
    table[:, 1] = np.round(table[:, 1] * 3)
    table[random.random(rows) < 0.3, 2] = np.nan
    table[:, 3] = np.where(random.random(rows) < 0.5, 0.25, table[:, 3])  # a value of half the weight
    gradient = np.sin(2 * table[:, 0]) + table[:, 1] / 5 - np.nan_to_num(table[:, 2]) + random.normal(size=rows) / 9
    return table, gradient.astype(np.float32), random.gamma(0.5, size=rows).astype(np.float32)


def same(first, second):
    for field in dataclasses.fields(first[0]):
        np.testing.assert_array_equal(getattr(first[0], field.name), getattr(second[0], field.name))
    np.testing.assert_array_equal(first[1], second[1])


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 9), st.integers(1, 60), st.booleans())
def test_proposal_and_bins_are_those_of_the_definition(seed, most, rows, missing):
    """`rebin.propose` against `binning.column_cuts`, and its bins against a binary search."""
    random = np.random.default_rng(seed)
    column = random.integers(0, 30, rows).astype(np.float32)
    if missing:
        column[random.random(rows) < 0.4] = np.nan
    weight = random.integers(0, 5, rows).astype(np.int32)
    if len(np.unique(column[(weight > 0) & ~np.isnan(column)])) <= most:
        return  # then each value has a bin, and nothing is proposed
    block = column_block(Dataset(column.reshape(-1, 1), rows, 1), ONE)
    codes, cuts = np.full(rows, 99, np.uint8), np.zeros(most, np.float32)
    total = rebin.present_weight(block.rows, 0, block.start[1], weight)
    assert total == weight[~np.isnan(column)].sum()
    rebin.propose(block.rows, block.values, 0, block.start[1], weight, total, most, codes, cuts)
    inner = cuts[cuts < LAST_CUT]
    absent = int(np.isnan(column).any())
    # A value of no weight may follow one that has a bin of its own, and then takes the cut after it.
    if (weight > 0).all():
        expected = column_cuts(column.copy(), weight.astype(np.int64), most + absent, rows)
        np.testing.assert_array_equal(inner, expected[:-1])
    present = ~np.isnan(column)
    np.testing.assert_array_equal(codes[present], np.searchsorted(inner, column[present], side="right"))
    assert (codes[~present] == 99).all()
    again = np.full(rows, 99, np.uint8)
    rebin.assign(block.rows, block.values, 0, block.start[1], cuts, again)
    np.testing.assert_array_equal(again, codes)


@pytest.mark.parametrize("sparse", [False, True])
def test_bins_follow_the_hessians_of_every_tree(sparse):
    table, gradient, hessian = make(0)
    data = Dataset(compress(table) if sparse else table, *table.shape)
    grower = GlobalGrower(data, Params(max_bin=16, max_depth=4), Workers(2))
    for weight in (hessian, np.where(table[:, 0] > 0, 1, 1e-3).astype(np.float32)):
        tree, leaf = grower.grow(gradient, weight, EVERY_COLUMN)
        cuts = grower._cuts.values[grower._cuts.start[0] : grower._cuts.start[1]]
        share = np.bincount(np.searchsorted(cuts, table[:, 0], side="right"), weight, 16) / weight.sum()
        assert np.abs(share - 1 / 16).max() < 2 * weight.max() / weight.sum()  # eq. 2.9
        fresh = GlobalGrower(data, Params(max_bin=16, max_depth=4), ONE).grow(gradient, weight, EVERY_COLUMN)
        same((tree, leaf), fresh)


def test_equal_hessians_propose_what_hist_does():
    table, gradient, _ = make(1)
    data, params = Dataset(table, *table.shape), Params(max_bin=32, max_depth=5)
    one = np.ones(len(table), np.float32)
    same(
        ApproxGrower(data, params, Workers(2)).grow(gradient, one, EVERY_COLUMN),
        HistGrower(data, params, ONE).grow(gradient, one, EVERY_COLUMN),
    )


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("proposal", ["global", "local"])
def test_any_number_of_threads_gives_the_same_tree(proposal, sparse):
    table, gradient, hessian = make(2, 40_000)
    data = Dataset(compress(table) if sparse else table, *table.shape)
    params = Params(max_bin=32, max_depth=4, proposal=proposal)
    trees = [ApproxGrower(data, params, Workers(n)).grow(gradient, hessian, EVERY_COLUMN) for n in (1, 2, 3, 4)]
    assert trees[0][0].size > 20
    for other in trees[1:]:
        same(trees[0], other)


def grow_shard(comm, table, gradient, hessian, params):
    edges = np.linspace(0, len(table), comm.size + 1).astype(int) ** 2 // len(table)  # of unequal sizes
    part = slice(edges[comm.rank], edges[comm.rank + 1])
    here = np.ascontiguousarray(table[part])
    grower = ApproxGrower(Dataset(here, *here.shape), params, ONE, comm)
    return grower.grow(gradient[part], hessian[part], EVERY_COLUMN)


@pytest.mark.parametrize("proposal", ["global", "local"])
@pytest.mark.parametrize("size", [2, 4])
def test_any_number_of_workers_gives_the_same_tree(size, proposal):
    table, gradient, hessian = make(3)
    params = Params(max_bin=24, max_depth=4, proposal=proposal)
    whole = ApproxGrower(Dataset(table, *table.shape), params, ONE).grow(gradient, hessian, EVERY_COLUMN)
    parts = launch(grow_shard, [(table, gradient, hessian, params)] * size, kind="thread")
    leaf = np.concatenate([part[1] for part in parts])
    for tree, _ in parts:
        same(whole, (tree, leaf))


def test_enough_local_candidates_are_exact():
    table, gradient, hessian = make(4, 250)
    data, params = Dataset(table, *table.shape), Params(max_depth=3, min_child_weight=0.1, proposal="local")
    hessian[:] = 1
    tree, leaf = ApproxGrower(data, params, ONE).grow(gradient, hessian, EVERY_COLUMN)
    exact, other = ExactGrower(data, params, ONE).grow(gradient, hessian, EVERY_COLUMN)
    np.testing.assert_array_equal(leaf, other)
    np.testing.assert_allclose(tree.gain, exact.gain, rtol=1e-4)


def best_gain(table, gradient, hessian, params):
    """The best split of a node at candidates by definition: values that pass a multiple of the present rows' share."""
    totals = np.array([gradient.sum(), hessian.sum()])
    best = -np.inf
    for column in table.T:
        missing = np.isnan(column)
        present = hessian[~missing].sum() / (1 + 1e-5)
        passed = 0
        for value in np.unique(column[~missing]):
            rank = np.floor(hessian[column <= value].sum() * params.max_bin / present)
            for default in (False, True) if rank > passed else ():
                left = (column <= value) | (missing & default)
                sums = np.array([gradient[left].sum(), hessian[left].sum()])
                sides = [sums, totals - sums, totals]
                if min(sides[0][1], sides[1][1]) >= max(params.min_child_weight, 1e-9):
                    scores = [max(abs(g) - params.reg_alpha, 0) ** 2 / (h + params.reg_lambda) for g, h in sides]
                    best = max(best, scores[0] + scores[1] - scores[2])
            passed = rank
    return best


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.2])
@pytest.mark.parametrize("candidates", [2, 3, 7, 20])
def test_local_splits_are_the_best_of_the_definition(candidates, alpha, sparse):
    table, gradient, hessian = make(candidates, 600)
    gradient[table[:, 0] > 1] = hessian[table[:, 0] > 1] = 0  # as of rows that are not sampled
    params = Params(max_bin=candidates, max_depth=4, proposal="local", reg_alpha=alpha, min_child_weight=2.0)
    data = Dataset(compress(table) if sparse else table, *table.shape)
    tree, leaf = ApproxGrower(data, params, Workers(2)).grow(gradient, hessian, EVERY_COLUMN)
    assert tree.leaves > 6
    below = {int(node): leaf == node for node in np.flatnonzero(tree.left < 0)}
    depth = np.zeros(tree.size, int)
    for node in np.flatnonzero(tree.left >= 0):
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    for node in reversed(range(tree.size)):
        if tree.left[node] >= 0:
            below[node] = below[int(tree.left[node])] | below[int(tree.right[node])]
        elif depth[node] == 4:
            continue
        rows = below[node]
        best = best_gain(table[rows], gradient[rows].astype(np.float64), hessian[rows].astype(np.float64), params)
        np.testing.assert_allclose(tree.gain[node], max(best, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("candidates", [2, 3, 5])
def test_missing_values_do_not_count_for_the_rank_of_local_candidates(candidates):
    """Every column lacks a share of its own, and all gain about as much: other candidates give another split."""
    params = Params(max_bin=candidates, max_depth=1, proposal="local", min_child_weight=0.0)
    for seed in range(12):
        random = np.random.default_rng(seed)
        table = random.normal(size=(300, 6)).astype(np.float32)
        table[random.random(table.shape) < np.linspace(0.1, 0.8, 6)] = np.nan
        gradient = (random.normal(size=300) + np.isnan(table).sum(axis=1) / 4 - 0.7).astype(np.float32)
        hessian = random.gamma(2.0, size=300).astype(np.float32)
        tree, _ = ApproxGrower(Dataset(table, *table.shape), params, ONE).grow(gradient, hessian, EVERY_COLUMN)
        best = best_gain(table, gradient.astype(np.float64), hessian.astype(np.float64), params)
        np.testing.assert_allclose(tree.gain[0], best, rtol=1e-4)


def test_local_candidates_are_quantiles_of_the_node():
    """With 4 candidates a node, every split leaves about a multiple of a quarter of the node's Hessians to the left."""
    random = np.random.default_rng(5)
    table = random.normal(size=(4000, 1)).astype(np.float32)
    gradient = np.sin(5 * table[:, 0]).astype(np.float32)
    hessian = random.random(4000).astype(np.float32)
    params = Params(max_bin=4, max_depth=3, proposal="local")
    tree, _ = ApproxGrower(Dataset(table, 4000, 1), params, ONE).grow(gradient, hessian, EVERY_COLUMN)
    inner = np.flatnonzero(tree.left >= 0)
    assert len(inner) > 3
    share = 4 * tree.cover[tree.left[inner]] / tree.cover[inner]
    assert np.abs(share - np.round(share)).max() < 0.02
    exact, _ = ExactGrower(Dataset(table, 4000, 1), params, ONE).grow(gradient, hessian, EVERY_COLUMN)
    share = 4 * exact.cover[exact.left[inner]] / exact.cover[inner]
    assert np.abs(share - np.round(share)).max() > 0.05


@pytest.mark.parametrize("proposal", ["global", "local"])
def test_categories_keep_their_bins(proposal):
    table, gradient, hessian = make(6)
    table[:, 1] = np.random.default_rng(6).integers(0, 7, len(table))
    gradient[:] = np.isin(table[:, 1], [1, 4, 5]) - 0.5
    data = Dataset(table, *table.shape, categories=(None, tuple("abcdefg"), None, None, None))
    params = Params(max_depth=1, max_bin=16, proposal=proposal)
    tree, leaf = ApproxGrower(data, params, ONE).grow(gradient, hessian, EVERY_COLUMN)
    assert tree.feature[0] == 1
    assert len(tree.categories(0)) in (3, 4)
    assert len(np.unique(gradient[leaf == 1])) == 1


def test_local_candidates_serve_the_best_leaf_first():
    table, gradient, hessian = make(7)
    data, params = Dataset(table, *table.shape), Params(max_bin=16, proposal="local", max_depth=0, max_leaves=12)
    tree, leaf = ApproxGrower(data, dataclasses.replace(params, grow_policy="lossguide"), Workers(2)).grow(
        gradient, hessian, EVERY_COLUMN
    )
    assert tree.leaves == 12 == len(np.unique(leaf))
    level, _ = ApproxGrower(data, params, ONE).grow(gradient, hessian, EVERY_COLUMN)
    assert tree.gain.sum() > level.gain.sum()


def test_the_grid_of_local_candidates_follows_the_number_of_features():
    for features, most, grid in ((2, 16, 1024), (2, 256, 2048), (300, 16, 436), (300, 256, 512)):
        random = np.random.default_rng(features)
        table = random.random((3000, features)).astype(np.float32)
        grower = LocalGrower(Dataset(table, *table.shape), Params(max_bin=most), Workers(2))
        assert (np.diff(grower.cuts.start) == grid).all()
