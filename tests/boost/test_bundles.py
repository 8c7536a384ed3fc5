"""Bundles of exclusive sparse columns: what shares a column, and trees that do not tell."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import burnish.boost.grower as grower_module
from burnish.boost.data import Dataset, Sparse
from burnish.boost.grower import HistGrower
from burnish.boost.growth.bins import DenseBins, SparseBins
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN, HashedColumns
from burnish.runtime.threads import Workers
from tests.boost.growing import dense, equal, route


def fields(rows: int, sizes: tuple[int, ...], numbers: int = 1, missing: float = 0.1, seed: int = 0) -> Dataset:
    """One-hot columns of fields of so many categories, some of them absent, then columns of numbers."""
    random = np.random.default_rng(seed)
    table = np.full((rows, sum(sizes) + numbers), np.nan, np.float32)
    first = 0
    for size in sizes:
        code = (random.random(rows) ** 2 * size).astype(int)
        here = np.flatnonzero(random.random(rows) >= missing)
        table[here, first + code[here]] = random.integers(1, 4, len(here))  # not of one bin
        first += size
    table[:, first:] = random.standard_normal((rows, numbers))
    present = ~np.isnan(table)
    start = np.append(0, np.cumsum(present.sum(axis=1))).astype(np.int64)
    return Dataset(Sparse(start, np.nonzero(present)[1].astype(np.int32), table[present]), rows, table.shape[1])


def statistics(rows: int, outlier: bool = False) -> tuple[Any, Any]:
    random = np.random.default_rng(7)
    gradient, hessian = random.standard_normal(rows).astype(np.float32), random.random(rows).astype(np.float32)
    gradient[3] *= 1e6 if outlier else 1
    return gradient, hessian


def test_a_column_for_each_field() -> None:
    dataset = fields(4000, (5, 30, 12), numbers=2)
    bins = HistGrower(dataset, Params(), Workers(2)).bins
    assert isinstance(bins, DenseBins)
    assert len(bins.columns) == 5
    assert bins.layout.bundle is not None
    columns, base, count = bins.layout.bundle
    table = dense(dataset)
    cuts = HistGrower(dataset, Params(), Workers(1)).cuts
    for position, feature in enumerate(bins.layout.feature.tolist()):
        own = cuts.values[cuts.start[feature] : cuts.start[feature + 1]]
        code = bins.columns[columns[position]].astype(int) - base[position]
        code[(code < 0) | (code >= count[position])] = -1
        expected = np.searchsorted(own, table[:, feature], side="right")
        expected[np.isnan(table[:, feature])] = -1
        assert np.array_equal(code, expected)


def test_a_row_with_two_entries_keeps_columns_apart() -> None:
    dataset = fields(4000, (5, 30, 12), numbers=2)
    table = dense(dataset)
    table[17, 0:2] = 1.0
    present = ~np.isnan(table)
    start = np.append(0, np.cumsum(present.sum(axis=1))).astype(np.int64)
    entries = Sparse(start, np.nonzero(present)[1].astype(np.int32), table[present])
    bins = HistGrower(replace(dataset, table=entries), Params(), Workers(2)).bins
    assert isinstance(bins, DenseBins)
    assert bins.layout.bundle is not None
    columns = dict(zip(bins.layout.feature.tolist(), bins.layout.bundle[0].tolist(), strict=True))
    assert columns[0] != columns[1]


@pytest.mark.parametrize("numbers", [0, 17])
def test_tables_that_need_many_columns_stay_rows_of_entries(numbers: int) -> None:
    sizes = (3,) if numbers else (2,) * 20
    bins = HistGrower(fields(600, sizes, numbers), Params(), Workers(2)).bins
    assert isinstance(bins, SparseBins)


@pytest.mark.parametrize(
    "params",
    [
        Params(max_depth=7),
        Params(max_depth=0, max_leaves=40, grow_policy="lossguide"),
        Params(max_depth=5, reg_alpha=0.3, gamma=0.1),
        Params(max_depth=4, monotone_constraints=(1,) * 48, min_child_weight=0),
        Params(max_depth=5, colsample_bylevel=0.5),
    ],
    ids=["depth", "leaves", "L1", "monotone", "columns"],
)
@pytest.mark.parametrize("outlier", [False, True], ids=["packed", "pairs"])
def test_trees_are_those_of_the_columns_apart(params: Params, outlier: bool, monkeypatch: Any) -> None:
    dataset, (gradient, hessian) = fields(3000, (5, 30, 12)), statistics(3000, outlier)
    columns = HashedColumns(params, 48, 0) if params.colsample_bylevel < 1 else EVERY_COLUMN
    growers = [HistGrower(dataset, params, Workers(threads)) for threads in (1, 2, 3)]
    monkeypatch.setattr(grower_module, "bundled", lambda bins, workers: None)
    apart = HistGrower(dataset, params, Workers(1))
    assert isinstance(apart.bins, SparseBins)
    expected, leaves = apart.grow(gradient, hessian, columns)
    assert expected.size > 12
    monkeypatch.setattr(grower_module, "_FEW_ROWS", 0)
    growers.append(HistGrower(dataset, params, Workers(2)))
    for grower in growers:
        tree, leaf = grower.grow(gradient, hessian, columns)
        assert equal(tree, expected)
        assert np.array_equal(leaf, leaves)
        assert np.array_equal(leaf, route(tree, dense(dataset)))
