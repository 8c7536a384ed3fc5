"""The forms of the scan that the figures compare do the same work, on the data that the figures name."""

import numpy as np
import pytest

from benchmarks.boosting import scans
from benchmarks.boosting.datasets import one_hot
from burnish.boost.blocks import column_block
from burnish.boost.data import Dataset
from burnish.boost.threads import Workers


def make(rows):
    random = np.random.default_rng(0)
    table = random.normal(size=(rows, 1)).astype(np.float32)
    words = (random.integers(-1000, 1000, rows) << 40) | (random.integers(0, 2**23, rows) << 16)
    return table, words | random.integers(0, 5, rows), column_block(Dataset(table, rows, 1), Workers(1))


@pytest.mark.parametrize("rows", [1, 64, 200])
def test_all_forms_leave_the_same_state(rows):
    _, words, block = make(rows)
    states = []
    for form in scans.FORMS.values():
        state, rule = scans.state_of(words, 5)
        before = state.copy()
        form(block.rows, block.values, 0, rows, words, state, rule, np.zeros((6, 2)))
        assert not np.array_equal(before, state, equal_nan=True)
        states.append(state)
    np.testing.assert_array_equal(states[0], states[1])
    np.testing.assert_array_equal(states[0], states[2])


def test_block_histogram_is_the_sum_by_bin_and_node():
    table, words, block = make(300)
    cuts = np.array([-1, 0, 0.5], np.float32)
    sums = np.zeros((4, 5, 2), np.int64)
    scans.block_histogram(block.rows, block.values, 0, 300, words, cuts, sums)
    expected = np.zeros_like(sums)
    bins = np.searchsorted(cuts, table[:, 0], side="right")
    np.add.at(expected, (bins, words & 0xFFFF, 0), words >> 40)
    np.add.at(expected, (bins, words & 0xFFFF, 1), (words << 24) >> 40)
    np.testing.assert_array_equal(sums, expected)


def test_one_hot_rows_have_an_entry_in_each_field():
    table = one_hot(500)
    each = np.diff(table.start)
    assert (each == each[0]).all()
    assert 0.009 < each[0] / 4227 < 0.011
    columns = table.columns.reshape(500, -1)
    assert (np.diff(columns, axis=1) > 0).all()
    assert columns.min() >= 0
    assert columns.max() < 4227
    assert 0.2 < table.label.mean() < 0.8
    np.testing.assert_array_equal(one_hot(500).columns, table.columns)
