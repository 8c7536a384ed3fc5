"""Column blocks: every present entry, sorted, from dense tables and compressed rows alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.boost.blocks import PADDING, column_block, sort_values
from burnish.boost.data import Dataset, Sparse
from burnish.runtime.threads import Workers

VALUES = st.sampled_from([np.nan, -np.inf, -1.5, -0.0, 0.0, 1e-40, 1.0, 2.0, 3e38, np.inf])


def compress(table):
    present = ~np.isnan(table)
    start = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return Sparse(start, np.nonzero(present)[1].astype(np.int32), table[present])


def check(block, table):
    assert len(block.rows) == len(block.values) == block.start[-1] + PADDING
    for feature in range(table.shape[1]):
        column = table[:, feature] + np.float32(0)
        order = np.argsort(column, kind="stable")[: np.count_nonzero(~np.isnan(column))]
        entries = slice(block.start[feature], block.start[feature + 1])
        np.testing.assert_array_equal(block.rows[entries], order)
        np.testing.assert_array_equal(block.values[entries], column[order])
        assert not np.signbit(block.values[entries][block.values[entries] == 0]).any()
        assert block.dense[feature] == (len(order) == len(table))
        assert block.constant[feature] == (len(set(column[order])) <= 1)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 30), st.integers(1, 11), st.integers(1, 3))
def test_dense_and_sparse_tables_give_the_same_block(data, rows, features, threads):
    table = np.array(data.draw(st.lists(VALUES, min_size=rows * features, max_size=rows * features)), np.float32)
    table = table.reshape(rows, features)
    workers = Workers(threads)
    check(column_block(Dataset(table, rows, features), workers), table)
    check(column_block(Dataset(compress(table), rows, features), workers), table)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_block_of_some_rows_numbers_them_from_its_first(sparse):
    table = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    data = Dataset(compress(table) if sparse else table, 50, 3)
    check(column_block(data, Workers(2), 20, 45), table[20:45])


def test_values_sort_without_missing_ones():
    order, ascending = sort_values(np.array([2, np.nan, -1, 2, -0.0], np.float32))
    np.testing.assert_array_equal(order, [2, 4, 0, 3])
    np.testing.assert_array_equal(ascending, [-1, 0, 2, 2])
