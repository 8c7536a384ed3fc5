import numpy as np
import pytest
from hypothesis import given, settings

from burnish.boost.data import Dataset, Sparse
from burnish.boost.model import Model
from burnish.boost.predictor import add_tree, predict_leaf, predict_margin
from burnish.errors import DataError, ParameterError
from burnish.runtime.threads import Workers
from tests.boost.trees import models_and_tables, naive_leaf, naive_margin, random_model, random_table


def sparse(table: np.ndarray) -> Sparse:
    """The entries of a table that are not missing."""
    present = ~np.isnan(table)
    start = np.concatenate([[0], np.cumsum(present.sum(1))]).astype(np.int64)
    return Sparse(start, np.nonzero(present)[1].astype(np.int32), table[present])


@settings(max_examples=150, deadline=None)
@given(models_and_tables())
def test_margins_equal_the_naive_walk_bit_for_bit(case: tuple[Model, np.ndarray]) -> None:
    model, table = case
    expected = naive_margin(model, table)
    assert np.array_equal(predict_margin(model, table), expected)
    assert np.array_equal(predict_margin(model, sparse(table)), expected)
    assert np.array_equal(model.predict_margin(Dataset(table, *table.shape)), expected)


@settings(max_examples=50, deadline=None)
@given(models_and_tables())
def test_leaves_equal_the_naive_walk(case: tuple[Model, np.ndarray]) -> None:
    model, table = case
    expected = np.array([[naive_leaf(tree, row) for tree in model.trees] for row in table], np.int32)
    found = predict_leaf(model, table)
    assert found.shape == (len(table), len(model.trees))
    assert np.array_equal(found, expected.reshape(found.shape))
    assert np.array_equal(predict_leaf(model, sparse(table)), found)


@pytest.mark.parametrize("features", [3, 16, 100])
def test_threads_and_batches_do_not_matter(features: int) -> None:
    rng = np.random.default_rng(features)
    model = random_model(rng, 5, features, 6, 2)
    for missing in (0.0, 0.3):
        table = random_table(rng, 3000, features, missing=missing)
        whole = predict_margin(model, table, Workers(1))
        assert np.array_equal(predict_margin(model, table, Workers(3)), whole)
        assert np.array_equal(predict_margin(model, table[:37]), whole[:, :37])
        assert np.array_equal(whole[:, ::97], naive_margin(model, table[::97]))


def test_one_tree_is_added_in_place() -> None:
    rng = np.random.default_rng(0)
    model = random_model(rng, 3, 6, 9)
    table = random_table(rng, 700, 6)
    for data in (table, sparse(table), Dataset(table, *table.shape)):
        margin = np.full((1, 700), model.base_score[0])
        for tree in model.trees:
            add_tree(tree, data, margin[0], Workers(2))
        assert np.array_equal(margin, predict_margin(model, table))


def test_rounds_and_base_margins() -> None:
    rng = np.random.default_rng(0)
    model = random_model(rng, 4, 5, 4, 2)
    table = random_table(rng, 40, 5)
    part = Model(model.trees[2:6], 5, 2, model.base_score)
    assert np.array_equal(predict_margin(model, table, rounds=(1, 3)), naive_margin(part, table))
    assert predict_leaf(model, table, rounds=(1, 3)).shape == (40, 4)
    margin = rng.normal(size=(40, 2)).astype(np.float32)
    data = Dataset(table, *table.shape, base_margin=margin)
    assert np.array_equal(predict_margin(model, data), predict_margin(model, table, base_margin=margin))
    assert np.array_equal(predict_margin(model, table, rounds=(0, 0), base_margin=margin), margin.T)
    with pytest.raises(DataError, match=r"base_margin has shape \[40, 1\]"):
        predict_margin(model, table, base_margin=margin[:, 0])
    with pytest.raises(ParameterError, match="rounds is 2 … 5"):
        predict_margin(model, table, rounds=(2, 5))


def test_other_tables_are_refused_or_converted() -> None:
    rng = np.random.default_rng(0)
    model = random_model(rng, 2, 3, 3)
    table = random_table(rng, 50, 3)
    expected = predict_margin(model, table)
    frozen = table.copy()
    frozen.flags.writeable = False
    for same in (table.astype(np.float64), np.asfortranarray(table), frozen):
        assert np.array_equal(predict_margin(model, same), expected)
    with pytest.raises(DataError, match="4 features, the model has 3"):
        predict_margin(model, np.zeros((2, 4), np.float32))
    with pytest.raises(DataError, match="allowed: float32"):
        predict_margin(model, np.array([["a", "b", "c"]]))
    with pytest.raises(DataError, match="column 3"):
        predict_margin(model, sparse(np.zeros((1, 4), np.float32)))


def test_rare_columns_of_wide_tables() -> None:
    rng = np.random.default_rng(0)
    model = random_model(rng, 2, 900, 3)  # few of whose columns lie together: no transposition
    table = random_table(rng, 100, 900)
    assert np.array_equal(predict_margin(model, table), naive_margin(model, table))
    assert np.array_equal(predict_margin(model, sparse(table)), naive_margin(model, table))
