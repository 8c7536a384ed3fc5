"""Categorical columns of every kind of table, and what becomes of categories that training has not seen."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.boost.categories import encode, merge
from burnish.boost.data import Dataset
from burnish.boost.inputs.factors import MOST_CATEGORIES, ascending, factor
from burnish.errors import DataError, ParameterError

NAN = math.nan


def test_numbers_are_in_order_of_the_values_and_keep_those_that_occur() -> None:
    data = Dataset.of(np.array([[30.0, 1], [10, 1], [NAN, 2], [20.5, 3]]), categorical=[0])
    assert data.categories == ((10, 20.5, 30), None)
    assert data.categorical.tolist() == [True, False]
    np.testing.assert_array_equal(data.table, [[2, 1], [0, 1], [NAN, 2], [1, 3]])


def test_large_whole_numbers_stay_apart() -> None:
    ids = np.array([[2**40], [2**40 + 1]])
    assert Dataset.of(ids, categorical=[0]).categories == ((2**40, 2**40 + 1),)


def test_a_missing_mark_is_no_category_and_removes_no_number() -> None:
    data = Dataset.of(np.array([[0, 0], [5, 1]]), categorical=[0], missing=0)
    assert data.categories == ((5,), None)
    np.testing.assert_array_equal(data.table, [[NAN, NAN], [0, 1]])


def test_objects_and_text() -> None:
    table = np.array([["red", 1], [None, 2], ["blue", 3]], object)
    data = Dataset.of(table, categorical=["colour"], feature_names=["colour", "size"])
    assert data.categories == (("blue", "red"), None)
    np.testing.assert_array_equal(data.table, [[1, 1], [NAN, 2], [0, 3]])
    with pytest.raises(DataError, match="row 0, feature 'colour' is 'red'; allowed are numbers, or the feature listed"):
        Dataset.of(table, feature_names=["colour", "size"])


def test_the_callers_array_stays_as_it_was() -> None:
    table = np.array([[7.0], [3.0]], np.float32)
    data = Dataset.of(table, categorical=[0])
    assert data.table.tolist() == [[1], [0]]
    assert table.tolist() == [[7], [3]]


TRAINED = (("a", "b", "c"), None)
NEW = np.array([["b", 1], ["z", 2], [None, 3], ["a", 4]], object)


@pytest.mark.parametrize(("policy", "number"), [("missing", NAN), ("other", 3)])
def test_unseen_categories_by_policy(policy: str, number: float) -> None:
    data = Dataset.of(NEW, categories=TRAINED, policy=policy)
    np.testing.assert_array_equal(data.table, [[1, 1], [number, 2], [NAN, 3], [0, 4]])
    assert data.categories == TRAINED
    assert data.policy == policy


def test_unseen_categories_are_an_error_by_row_and_value() -> None:
    with pytest.raises(
        DataError,
        match=r"feature 'c': row 1 is 'z', a category that training has not seen; .*'a', 'b'.* category_policy",
    ):
        Dataset.of(NEW, categories=TRAINED, feature_names=["c", "n"])


def test_categories_where_training_had_numbers_are_refused() -> None:
    import pandas

    with pytest.raises(DataError, match="feature 'n': found categories; allowed are numbers"):
        Dataset.of(pandas.DataFrame({"n": ["a", "b"]}), categories=(None,))


def test_categories_that_only_the_type_lists_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas
    import pyarrow

    kinds = pandas.CategoricalDtype(["d", "a", "c", "b"])
    part = pandas.DataFrame({"k": pandas.Series(["c", None, "a"], dtype=kinds), "x": [1.0, 2.0, 3.0]})
    arrow = pyarrow.table({"k": pyarrow.DictionaryArray.from_arrays([2, None, 1], ["d", "a", "c", "b"]), "x": part.x})
    for frame in (part, arrow):
        data = Dataset.of(frame, label=[0.0, 1.0, 2.0])
        assert data.categories == (("a", "b", "c", "d"), None)
        np.testing.assert_array_equal(data.table[:, 0], [2, NAN, 0])
        new = Dataset.of(part.assign(k="b"), categories=data.categories)
        assert new.table[:, 0].tolist() == [1, 1, 1]
    mixed = pandas.DataFrame({"k": pandas.Categorical(["a"], categories=["a", 1])})
    assert Dataset.of(mixed).categories == (("a",),)
    monkeypatch.setattr("burnish.boost.inputs.factors.MOST_LISTED", 3)
    assert Dataset.of(part).categories == (("a", "c"), None)


def test_text_and_numbers_do_not_mix() -> None:
    with pytest.raises(DataError, match="found the categories '1' and 1; allowed are text or numbers, not both"):
        Dataset.of(np.array([["1"], [1]], object), categorical=[0])


def test_too_many_categories_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_CATEGORIES == 2**24
    monkeypatch.setattr("burnish.boost.inputs.factors.MOST_CATEGORIES", 2)
    with pytest.raises(DataError, match="feature 0: found 3 categories; allowed are at most 2"):
        Dataset.of(np.array([[1], [2], [3]]), categorical=[0])


def test_sparse_columns_may_be_categorical() -> None:
    import scipy.sparse as sparse

    matrix = sparse.csr_matrix(np.array([[9.0, 0], [0, 1], [4, 2]]))
    data = Dataset.of(matrix, categorical=[0])
    assert data.categories == ((4, 9), None)
    assert data.table.values.tolist() == [1, 1, 0, 2]
    assert matrix.data.tolist() == [9, 1, 4, 2]
    unseen = Dataset.of(matrix, categories=((4,), None), policy="missing").table
    assert unseen.columns.tolist() == [1, 0, 1]
    assert unseen.start.tolist() == [0, 0, 1, 3]


@given(st.lists(st.one_of(st.none(), st.sampled_from("abcdefg")), min_size=1), st.sets(st.sampled_from("abcdefg")))
def test_encode_agrees_with_encoding_at_once(values: list[str | None], trained: set[str]) -> None:
    column = np.array([[value] for value in values], object)
    own = Dataset.of(column, categorical=[0])
    categories = (tuple(sorted(trained)),)
    for policy in ("missing", "other"):
        at_once = Dataset.of(column, categories=categories, policy=policy)
        again = encode(own, categories, policy)
        np.testing.assert_array_equal(again.table, at_once.table)
        assert again.categories == categories
        np.testing.assert_array_equal(encode(at_once, categories, policy).table, at_once.table)
    if {value for value in values if value is not None} <= trained:
        np.testing.assert_array_equal(encode(own, categories).table, at_once.table)
    else:
        with pytest.raises(DataError, match="training has not seen"):
            encode(own, categories)


def test_encode_leaves_what_agrees_and_the_original() -> None:
    own = Dataset.of(np.array([[5], [7]]), categorical=[0])
    assert encode(own, ((5, 7),)) is own
    assert encode(own, ((0, 7),), "other").table.tolist() == [[2], [1]]
    assert own.table.tolist() == [[0], [1]]
    other = encode(own, ((0, 7),), "other")
    assert np.isnan(encode(other, ((0, 7),), "missing").table[0, 0])


def test_encode_takes_plain_numbers_for_categories() -> None:
    plain = Dataset.of(np.array([[5.0, 1.5], [7, 2]]))
    np.testing.assert_array_equal(encode(plain, ((7,), None), "missing").table, [[NAN, 1.5], [0, 2]])


def test_encode_of_sparse_rows_drops_what_is_missing() -> None:
    import scipy.sparse as sparse

    own = Dataset.of(sparse.csr_matrix(np.array([[9.0, 0], [0, 1], [4, 2]])), categorical=[0])
    table = encode(own, ((4, 5), None), "missing").table
    assert table.start.tolist() == [0, 0, 1, 3]
    assert table.values.tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("categories", "policy", "error", "message"),
    [
        ((None,), "error", DataError, "feature 0: found categories"),
        (((1,), None), "error", DataError, "found 1 features; allowed is 2"),
        (((1,),), "none", ParameterError, "policy: found 'none'"),
    ],
)
def test_encode_refusals(categories: Any, policy: str, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        encode(Dataset.of(np.array([[1]]), categorical=[0]), categories, policy)


def test_merge_is_the_union_in_order() -> None:
    assert merge((("b",), None), (("a", "b"), None)) == (("a", "b"), None)
    assert merge((), ((1,),)) == merge(((1,),), ()) == ((1,),)
    assert merge((None, (2,)), ((1,), None)) == ((1,), (2,))
    with pytest.raises(DataError, match="feature 'f': found the categories 'a' and 1"):
        merge(((1,),), (("a",),), ["f"])
    with pytest.raises(DataError, match="found 1 and 2 features"):
        merge((None,), (None, None))


def test_pandas_columns_of_every_kind() -> None:
    import pandas

    frame = pandas.DataFrame(
        {
            "category": pandas.Categorical(["low", "high", None], categories=["low", "mid", "high"]),
            "text": pandas.Series(["x", None, "y"], dtype="string"),
            "object": np.array(["u", "v", None], object),
            "nullable": pandas.array([1, None, 3], dtype="Int64"),
            "real": pandas.array([0.5, None, 1.5], dtype="Float32"),
            "truth": pandas.array([True, None, False], dtype="boolean"),
            "flag": [True, False, True],
            "narrow": np.array([1, 2, 3], np.int8),
            "empty": np.array([None, None, None], object),
            "sparse": pandas.arrays.SparseArray([0.0, 1.0, 0.0]),
            "interval": pandas.cut([1, 2, 1], [0, 1, 2]),
        }
    )
    data = Dataset.of(frame)
    assert data.feature_names == tuple(frame.columns)
    expected = {
        "category": [1, 0, NAN], "text": [0, NAN, 1], "object": [0, 1, NAN], "nullable": [1, NAN, 3],
        "real": [0.5, NAN, 1.5], "truth": [1, NAN, 0], "flag": [1, 0, 1], "narrow": [1, 2, 3],
        "empty": [NAN] * 3, "sparse": [0, 1, 0], "interval": [0, 1, 0],
    }  # fmt: skip
    np.testing.assert_array_equal(data.table, np.array(list(expected.values())).T)
    assert data.categories[:3] == (("high", "low", "mid"), ("x", "y"), ("u", "v"))
    assert data.categories[-1] == ("(0, 1]", "(1, 2]")
    assert [index for index, values in enumerate(data.categories) if values is None] == list(range(3, 10))


def test_a_frame_of_one_dtype_and_given_names() -> None:
    import pandas

    frame = pandas.DataFrame(np.arange(6.0).reshape(3, 2), columns=["a", 1])
    data = Dataset.of(frame, label=pandas.Series([1, 2, 3], index=[5, 6, 7]), missing=4)
    np.testing.assert_array_equal(data.table, [[0, 1], [2, 3], [NAN, 5]])
    assert data.feature_names == ("a", "1")
    assert Dataset.of(frame, feature_names=["x", "y"]).feature_names == ("x", "y")
    assert Dataset.of(frame, categorical=["a"]).categories == ((0, 2, 4), None)
    assert Dataset.of(frame, label=pandas.array([1, 2, 3], dtype="Int64")).label.tolist() == [1, 2, 3]


def test_frame_refusals() -> None:
    import pandas

    with pytest.raises(DataError, match="column 'when' holds datetime64"):
        Dataset.of(pandas.DataFrame({"n": [1], "when": pandas.to_datetime(["2020-01-01"])}))
    with pytest.raises(DataError, match="two columns 'a'"):
        Dataset.of(pandas.DataFrame(np.zeros((1, 2)), columns=["a", "a"]))
    with pytest.raises(DataError, match="row 1, feature 'a' is inf"):
        Dataset.of(pandas.DataFrame({"a": [1.0, math.inf], "b": [1, 2]}))


def test_arrow_columns_of_every_kind() -> None:
    import pyarrow as arrow

    table = arrow.table(
        {
            "text": arrow.chunked_array([["b", None], ["a"]]),
            "coded": arrow.array(["y", "x", None]).dictionary_encode(),
            "whole": arrow.array([1, None, 3], arrow.int64()),
            "real": arrow.array([0.5, 1.5, None], arrow.float32()),
            "truth": arrow.array([True, False, None]),
            "none": arrow.nulls(3),
            "full": arrow.array([1, 2, 3], arrow.uint8()),
        }
    )
    expected = np.array([[1, NAN, 0], [1, 0, NAN], [1, NAN, 3], [0.5, 1.5, NAN], [1, 0, NAN], [NAN] * 3, [1, 2, 3]]).T
    for form in (table, table.combine_chunks().to_batches()[0]):
        data = Dataset.of(form)
        np.testing.assert_array_equal(data.table, expected)
        assert data.categories == (("a", "b"), ("x", "y"), None, None, None, None, None)
        assert data.feature_names == ("text", "coded", "whole", "real", "truth", "none", "full")
    with pytest.raises(DataError, match="column 'when' holds date32"):
        Dataset.of(arrow.table({"when": arrow.array([1], arrow.date32())}))


def test_factor_of_numbers_is_factor_of_objects() -> None:
    column = np.array([3.0, 1.0, NAN, 3.0])
    numbers, objects = factor(column), factor(column.astype(object))
    for one in (numbers, objects):
        assert [None if code < 0 else one.values[code] for code in one.codes] == [3, 1, None, 3]
    assert ascending(objects.values, "f") == (1, 3)
