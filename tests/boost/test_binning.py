"""Cuts and bins against definitions in plain NumPy."""

import itertools
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.binning import LAST_CUT, Cuts, column_cuts, integer_weights
from burnish.boost.data import Dataset, Sparse
from burnish.boost.growth.bins import DenseBins, SparseBins
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

numbers = st.lists(
    st.one_of(st.integers(-4, 4).map(float), st.just(float("nan")), st.floats(-(2.0**100), 2.0**100, width=32))
)


def plain_cuts(values: Any, weight: Any, max_bin: int) -> list[float]:
    """The definition of `column_cuts`, in exact arithmetic."""
    present = [(float(v), int(w)) for v, w in zip(values, weight, strict=True) if v == v and w > 0]
    if not present:
        return []
    max_bin = max(1, max_bin - (len([v for v in values if v == v]) < len(values)))
    distinct = sorted({v for v, _ in present})
    if len(distinct) <= max_bin:
        return [*distinct[1:], float(LAST_CUT)]
    total = sum(w for _, w in present)
    chosen: list[int] = []
    for k in range(1, max_bin):
        reached = (
            i for i, v in enumerate(distinct) if sum(w for u, w in present if u <= v) > Fraction(k * total, max_bin)
        )
        chosen.append(next(reached))
    cuts = set(chosen) | {i + 1 for i, j in itertools.pairwise(chosen) if i == j}
    return [*(distinct[i] for i in sorted(cuts) if 0 < i < len(distinct)), float(LAST_CUT)]


@settings(max_examples=60, deadline=None)
@given(numbers, st.integers(2, 9), st.randoms(use_true_random=False))
def test_cuts_are_quantiles(values: list[float], max_bin: int, random: Any) -> None:
    column = np.array(values, np.float32)
    expected = plain_cuts(column, np.ones(len(column)), max_bin)
    assert column_cuts(column.copy(), None, max_bin, len(column)).tolist() == expected
    weight = np.array([random.choice([0, 1, 3]) for _ in values], np.int64)
    found = column_cuts(column.copy(), weight, max_bin, len(column))
    if any(v == v and w > 0 for v, w in zip(column, weight, strict=True)):
        assert found.tolist() == plain_cuts(column, weight, max_bin)
        assert len(found) <= max_bin


def test_a_weight_is_so_many_rows() -> None:
    random = np.random.default_rng(0)
    table = random.standard_normal((400, 2)).astype(np.float32)
    weight = random.integers(0, 4, 400).astype(np.float32)
    repeated = np.repeat(table, weight.astype(int), axis=0)
    workers = Workers(2)
    once = Cuts.of(Dataset(table, 400, 2), 16, workers, weight / 2)
    assert np.array_equal(once.values, Cuts.of(Dataset(repeated, len(repeated), 2), 16, workers).values)


def test_a_frequent_value_has_a_bin_of_its_own() -> None:
    column = np.append(np.zeros(700), np.linspace(1, 2, 300)).astype(np.float32)
    cuts = column_cuts(column, None, 8, 1000)
    assert cuts[0] == 1.0


def test_integer_weights_are_exact_and_sum_without_overflow() -> None:
    weight = np.array([0, 0.5, 3, 1e-3, 7], np.float32)
    whole = integer_weights(weight)
    assert whole[0] == 0
    assert np.array_equal(whole[[1, 2, 4]] * 6, whole[2] * np.array([1, 6, 14]))
    large = integer_weights(np.full(4, 1e30, np.float32), rows=1 << 30)
    assert int(large[0]) * (1 << 30) * 65535 < 2**63


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("features", [1, 3, 40])
def test_bins_hold_the_values_between_their_cuts(features: int, threads: int) -> None:
    random = np.random.default_rng(features)
    rows = 9000
    table = random.standard_normal((rows, features)).astype(np.float32)
    table[:, ::3] = np.round(table[:, ::3])
    table[random.random(table.shape) < 0.05] = np.nan
    dataset, workers = Dataset(table, rows, features), Workers(threads)
    cuts = Cuts.of(dataset, 32, workers)
    assert np.array_equal(cuts.values, Cuts.of(dataset, 32, Workers(1)).values)
    bins = DenseBins.of(table, cuts, workers)
    lanes = bins.layout.lanes
    present = ~np.isnan(table)
    start = np.append(0, np.cumsum(present.sum(axis=1))).astype(np.int64)
    entries = Sparse(start, np.nonzero(present)[1].astype(np.int32), table[present])
    compressed = SparseBins.of(entries, features, cuts, workers)
    assert np.array_equal(Cuts.of(replace(dataset, table=entries), 32, workers).values, cuts.values)
    assert bins.layout.codes <= 32
    for position, feature in enumerate(bins.layout.feature):
        own = cuts.values[cuts.start[feature] : cuts.start[feature + 1]]
        expected = np.searchsorted(own, table[:, feature], side="right")
        expected[~present[:, feature]] = bins.layout.missing_code[position]
        assert np.array_equal(bins.columns[position], expected)
        assert np.array_equal(bins.rows[position // lanes, :, position % lanes], expected)
    for position, feature in enumerate(compressed.layout.feature):
        own = cuts.values[cuts.start[feature] : cuts.start[feature + 1]]
        part = slice(compressed.column_start[feature], compressed.column_start[feature + 1])
        rows_of = np.flatnonzero(present[:, feature])
        assert np.array_equal(compressed.column_rows[part], rows_of)
        expected = np.searchsorted(own, table[rows_of, feature], side="right")
        assert np.array_equal(compressed.column_bins[part], expected)
        first = compressed.layout.place[position]
        mine = entries.columns == feature
        assert np.array_equal(compressed.row_bins[mine], first + compressed.layout.lanes * expected)


def test_bins_of_extreme_values() -> None:
    table = np.array([[np.finfo(np.float32).max], [-np.finfo(np.float32).max], [0], [1e-45]], np.float32)
    cuts = Cuts.of(Dataset(table, 4, 1), 256, Workers(1))
    assert DenseBins.of(table, cuts, Workers(1)).columns[0].tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("max_bin", [2, 40, 256, 1000])
def test_bins_of_skewed_values(max_bin: int) -> None:
    """Where most cuts are in one bucket of the search, where there are few, and where none is."""
    random = np.random.default_rng(0)
    table = random.standard_normal((3000, 5)).astype(np.float32)
    table[:, 1] = np.exp(12 * table[:, 1])
    table[:, 2] = np.round(table[:, 2])
    table[:, 3] = 1e30 * (table[:, 3] > 2) + 1e-30 * table[:, 4]
    table[:, 4] = 1e-42 * np.round(table[:, 4])  # the smallest differences that there are
    cuts = Cuts.of(Dataset(table, *table.shape), max_bin, Workers(1))
    bins = DenseBins.of(table, cuts, Workers(2))
    assert sorted(bins.layout.feature) == [0, 1, 2, 3, 4]
    for position, feature in enumerate(bins.layout.feature):
        own = cuts.values[cuts.start[feature] : cuts.start[feature + 1]]
        assert np.array_equal(bins.columns[position], np.searchsorted(own, table[:, feature], side="right"))


def test_categories_are_bins() -> None:
    table = np.array([[2.0], [0.0], [5.0]], np.float32)
    cuts = Cuts.of(Dataset(table, 3, 1, categories=(tuple("abcdef"),)), 4, Workers(1))
    assert DenseBins.of(table, cuts, Workers(1)).columns[0].tolist() == [2, 0, 5]


@pytest.mark.parametrize("max_bin", [0, 1, 65_536])
def test_a_number_of_bins_out_of_range_is_refused(max_bin: int) -> None:
    with pytest.raises(ParameterError, match=f"max_bin: found {max_bin}"):
        Cuts.of(Dataset(np.zeros((1, 1), np.float32), 1, 1), max_bin, Workers(1))
