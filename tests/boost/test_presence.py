"""Columns of one value: sums over present rows against their definition, and trees against the scan of columns."""

import dataclasses

import numpy as np
import pytest

from burnish.boost.blocks import column_block
from burnish.boost.data import Dataset, Sparse
from burnish.boost.exact import ExactGrower
from burnish.boost.growth import onehot as presence
from burnish.boost.growth.onehot import PresenceSums
from burnish.boost.growth.scan_state import RowRecords
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN, HashedColumns
from burnish.runtime.threads import Workers


def make(rows, features, others=0):
    """A sparse table of columns of one value each, the last `others` of many, and statistics that depend on it."""
    random = np.random.default_rng(rows)
    present = random.random((rows, features)) < random.random(features) ** 2
    present[:, 1] = False  # an empty column
    values = np.broadcast_to(random.normal(size=features), present.shape).astype(np.float32)
    values[:, features - others :] = random.normal(size=(rows, others)).round(1)
    start = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    table = Sparse(start, np.nonzero(present)[1].astype(np.int32), values[present])
    gradient = (present @ random.normal(size=features) + random.normal(size=rows)).astype(np.float32)
    return Dataset(table, rows, features), present, gradient, random.random(rows).astype(np.float32)


def equal(first, second):
    for field in dataclasses.fields(first[0]):
        np.testing.assert_array_equal(getattr(first[0], field.name), getattr(second[0], field.name))
    np.testing.assert_array_equal(first[1], second[1])


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_are_those_of_the_present_rows(monkeypatch, others, threads):
    monkeypatch.setattr(presence, "_SHARE", 10)  # so that threads share out the rows of a node
    data, present, gradient, hessian = make(60_000, 12, others)
    workers = Workers(threads)
    records = RowRecords(data.rows, workers)
    records.load(gradient, hessian)
    sums = PresenceSums(data, column_block(data, workers), workers)
    wide = (x.astype(np.float64) / unit for x, unit in zip((gradient, hessian), records.units, strict=True))
    whole = dict(zip("gh", map(np.rint, wide), strict=True))
    position = np.zeros(data.rows, np.int32)
    for level, nodes in enumerate([[(0, -1)], [(1, 0), (2, 0)], [(3, 1), (4, 1), (6, 2)], [(7, 4), (9, 6), (10, 6)]]):
        if level:
            parents = sorted({parent for _, parent in nodes})
            for k, parent in enumerate(parents):
                rows = np.flatnonzero(position == parent)
                left = min(number for number, p in nodes if p == parent)
                left -= 1 - left % 2
                position[rows] = left + (np.arange(len(rows)) % (3 + k) > 0)
        own, minus = sums.build(nodes, 11, position, records.words)
        assert (minus >= 0).any() == (level > 0)
        for (number, _), slot, other in zip(nodes, own, minus, strict=True):
            found = sums._pool[slot] - (sums._pool[other] if other >= 0 else 0)
            sums._pool[slot] = found  # as a search leaves it
            here = position == number
            expected = [[whole[name][here & present[:, f]].sum() for name in "gh"] for f in sums.features]
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"reg_alpha": 0.3, "max_delta_step": 0.4}, {"monotone_constraints": (1, 0, -1, 1, -1, 1)},
     {"min_child_weight": 40.0}, {"max_leaves": 9}, {"colsample_bylevel": 0.5}, {"colsample_bynode": 0.4}],
)  # fmt: skip
def test_trees_are_those_of_a_scan_of_the_columns(monkeypatch, others, options):
    data, _, gradient, hessian = make(3000, 20, others)
    params = Params(max_depth=6, **options)
    columns = HashedColumns(params, 20, 0) if any("sample" in name for name in options) else EVERY_COLUMN
    grower = ExactGrower(data, params, Workers(2))
    found = grower.grow(gradient, hessian, columns)
    assert found[0].leaves > 8
    equal(found, grower.grow(gradient, hessian, columns))  # whatever the buffers hold
    with monkeypatch.context() as patched:
        patched.setattr(presence, "_MOST_SUMS", 3 * 20)  # sums at the root and its children, then scans
        equal(found, ExactGrower(data, params, Workers(2)).grow(gradient, hessian, columns))
    monkeypatch.setattr(presence, "_CELLS", 0)
    equal(found, ExactGrower(data, params, Workers(2)).grow(gradient, hessian, columns))


def test_deep_trees_of_few_rows_are_scanned():
    data, _, gradient, hessian = make(300, 50)
    sums = PresenceSums(data, column_block(data, Workers(1)), Workers(1))
    assert sums.worthwhile(1)
    assert not sums.worthwhile(300 * 50)
    tree, leaf = ExactGrower(data, Params(max_depth=0, min_child_weight=0), Workers(1)).grow(
        gradient, hessian, EVERY_COLUMN
    )
    assert tree.leaves > 50
    weight = np.bincount(leaf, gradient, tree.size) / (np.bincount(leaf, hessian, tree.size) + 1)
    np.testing.assert_allclose(tree.value[leaf], -0.3 * weight[leaf], rtol=1e-4, atol=1e-6)
