"""Data from every accepted kind of table: the same numbers, the same missing values, refusals that name the place."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from burnish.boost import GBTRegressor, Model, predict, train
from burnish.boost.data import Dataset, Sparse
from burnish.errors import DataError, ParameterError

NAN = math.nan
TABLE = np.array([[1.0, NAN, 3.0], [4.0, 5.0, NAN]], np.float32)


def dense(table: Any, features: int) -> np.ndarray:
    """A table with NaN where a sparse one has no entry."""
    if not isinstance(table, Sparse):
        return np.asarray(table)
    rows = len(table.start) - 1
    full = np.full((rows, features), NAN, np.float32)
    full[np.repeat(np.arange(rows), np.diff(table.start)), table.columns] = table.values
    return full


def test_float32_in_c_order_is_not_copied() -> None:
    data = Dataset.of(TABLE)
    assert data.table is TABLE
    assert (data.rows, data.features, data.categories, data.feature_names) == (2, 3, (), ())
    assert Dataset.of(TABLE, missing=-999).table is TABLE  # nothing to mark


tables = hnp.arrays(
    st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, np.uint64, np.bool_]),
    st.tuples(st.integers(0, 40), st.integers(1, 5)),
)


@given(tables, st.sampled_from(["C", "F", "strided", "list", "swapped"]))
@settings(max_examples=150, deadline=None)
def test_any_numeric_dtype_and_order_gives_the_same_numbers(table: np.ndarray, layout: str) -> None:
    with np.errstate(over="ignore"):
        table = np.where(np.isinf(table.astype(np.float32)), table.dtype.type(0), table)
        expected = table.astype(np.float32)
    forms = {
        "C": lambda: table,
        "F": lambda: np.asfortranarray(table),
        "strided": lambda: np.repeat(np.repeat(table, 2, axis=0), 3, axis=1)[::2, ::3],
        "list": lambda: table.tolist() if len(table) else table,
        "swapped": lambda: table.astype(table.dtype.newbyteorder()),
    }
    data = Dataset.of(forms[layout]())
    assert isinstance(data.table, np.ndarray)
    assert data.table.dtype == np.float32
    assert data.table.flags.c_contiguous
    np.testing.assert_array_equal(data.table, expected)


def test_blocks_of_a_long_table_join() -> None:
    table = np.random.default_rng(0).random((70_001, 3))
    np.testing.assert_array_equal(Dataset.of(np.asfortranarray(table)).table, table.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_a_given_value_is_missing_and_the_array_stays_as_it_was(dtype: type) -> None:
    table = np.array([[1, -9], [0, 2]], dtype)
    before = table.copy()
    np.testing.assert_array_equal(Dataset.of(table, missing=-9).table, np.array([[1, NAN], [0, 2]], np.float32))
    np.testing.assert_array_equal(table, before)


def test_infinity_may_be_what_is_missing() -> None:
    np.testing.assert_array_equal(Dataset.of([[math.inf, 1.0]], missing=math.inf).table, [[NAN, 1]])


@pytest.mark.parametrize("bad", [math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_infinite_features_are_refused_by_row_and_column(bad: float, dtype: type, order: Any) -> None:
    table = np.zeros((50_000, 3), dtype, order=order)
    table[41_234, 2] = bad
    with pytest.raises(DataError, match=rf"row 41234, feature 2 is {bad}"):
        Dataset.of(table)
    with pytest.raises(DataError, match=rf"row 41234, feature 'age' is {bad}"):
        Dataset.of(table, feature_names=["a", "b", "age"])


def test_numbers_beyond_float32_are_refused() -> None:
    with pytest.raises(DataError, match=r"row 1, feature 0 is 1e\+39; allowed is at most 3.4e\+38"):
        Dataset.of([[1.0], [1e39]])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), r"found shape \(3,\); allowed are two dimensions"),
        (np.zeros((2, 0)), "1 or more features"),
        (np.zeros((2, 2), complex), "complex128"),
        ([[1, 2], [3]], "rows of different lengths"),
        (np.array([["a"]]), "row 0, feature 0 is 'a'"),
        (np.array([["2020-01-01"]], "datetime64[D]"), "datetime64"),
        (np.array([[1.0], [{}]], object), r"row 1, feature 0 is \{\}"),
    ],
)
def test_tables_that_are_none_are_refused(x: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset.of(x)


def test_objects_that_are_numbers_are_numbers() -> None:
    table = Dataset.of(np.array([[1, None], [True, "2.5"]], object)).table
    np.testing.assert_array_equal(table, [[1, NAN], [1, 2.5]])


def test_labels_weights_and_margins() -> None:
    data = Dataset.of(TABLE, [[0], [1]], weight=[1, 2.5], base_margin=[0.5, 1])
    np.testing.assert_array_equal(data.label, [0, 1])
    np.testing.assert_array_equal(data.weight, [1, 2.5])
    np.testing.assert_array_equal(data.base_margin, [[0.5], [1]])
    assert {part.dtype for part in (data.label, data.weight, data.base_margin)} == {np.dtype(np.float32)}
    assert Dataset.of(TABLE, base_margin=np.zeros((2, 4))).base_margin.shape == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label": [1, NAN]}, "label: row 1 is nan"),
        ({"label": [math.inf, 1]}, "label: row 0 is inf"),
        ({"label": [1e39, 1]}, r"label: row 0 is 1e\+39; allowed are at most"),
        ({"label": [1, 2, 3]}, r"label: found shape \(3,\); allowed is \(2,\)"),
        ({"label": ["a", "b"]}, "label: found <U1 values; allowed are real numbers"),
        ({"label": np.array([1, None], object)}, "label: row 1 is nan"),
        ({"weight": [1, -1]}, "weight: row 1 is -1"),
        ({"weight": [NAN, 1]}, "weight: row 0 is nan"),
        ({"weight": [1]}, r"weight: found shape \(1,\)"),
        ({"base_margin": [[1, 2], [3, NAN]]}, "base_margin: row 1 is nan"),
        ({"base_margin": [1, 2, 3]}, "base_margin: found shape"),
        ({"group": [1, 2]}, "group: the sizes add up to 3; allowed is 2"),
        ({"group": [2.5]}, "group: found a size of 2.5"),
        ({"group": [3, -1]}, "group: found a size of -1"),
        ({"group": [2, 0]}, "group: found a size of 0"),
        ({"group": [2], "qid": [0, 0]}, "group and qid: found both"),
        ({"qid": [1]}, r"qid: found shape \(1,\)"),
        ({"qid": [1, NAN]}, "qid: row 1 has none"),
        ({"feature_names": ["a", "b"]}, "feature_names: found 2 names; allowed is 3"),
        ({"feature_names": ["a", "b", "a"]}, "'a' twice"),
        ({"categorical": [3]}, "categorical: found 3; allowed are 0 to 2"),
        ({"categorical": ["a"]}, "categorical: found 'a'"),
        ({"categories": (None, None)}, "found 3 features; allowed is 2"),
    ],
)
def test_what_does_not_fit_the_rows_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset.of(TABLE, **arguments)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ParameterError, match="policy: found 'ignore'; allowed are error, missing, other"):
        Dataset.of(TABLE, policy="ignore")


def test_queries_by_size_or_by_row() -> None:
    x = np.zeros((5, 1), np.float32)
    by_size = Dataset.of(x, group=[2, 3], weight=[0.5, 2])
    by_row = Dataset.of(x, qid=[7, 7, 1, 1, 1])
    assert by_size.group_start.tolist() == by_row.group_start.tolist() == [0, 2, 5]
    assert by_size.weight.tolist() == [0.5, 0.5, 2, 2, 2]
    assert Dataset.of(x, qid=np.array(list("aabbc"), object)).group_start.tolist() == [0, 2, 4, 5]


def test_queries_whose_rows_are_apart_are_refused() -> None:
    with pytest.raises(DataError, match="found query 7 again in row 3"):
        Dataset.of(np.zeros((4, 1), np.float32), qid=[7, 7, 1, 7])


def test_no_rows_are_a_table_too() -> None:
    data = Dataset.of(np.zeros((0, 2)), label=[], qid=[])
    assert (data.rows, data.features, data.group_start.tolist()) == (0, 2, [0])


def test_sparse_rows_are_shared_when_their_dtypes_fit() -> None:
    import scipy.sparse as sparse

    matrix = sparse.csr_matrix(np.array([[0, 1, 2], [0, 0, 0], [3, 0, 4]], np.float32))
    table = Dataset.of(matrix).table
    assert np.shares_memory(table.values, matrix.data)
    assert np.shares_memory(table.columns, matrix.indices)
    assert table.start.tolist() == [0, 2, 2, 4]
    assert table.start.dtype == np.int64


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(0, 12), st.integers(1, 6)), elements=st.integers(-3, 3)),
    st.sampled_from(["csr", "csc", "coo", "lil", "dok"]),
    st.sampled_from([NAN, 2.0]),
)
@settings(deadline=None)
def test_sparse_equals_dense_with_its_zeros_missing(table: np.ndarray, form: str, missing: float) -> None:
    import scipy.sparse as sparse

    matrix = sparse.csr_matrix(table).asformat(form)
    if form == "csr":
        matrix.data = np.where(matrix.data == 3, NAN, matrix.data)
    expected = np.where((table == 0) | (table == missing) | ((table == 3) & (form == "csr")), NAN, table)
    data = Dataset.of(matrix, missing=missing)
    np.testing.assert_array_equal(dense(data.table, data.features), expected)
    assert not np.isnan(data.table.values).any()


def test_stored_zeros_stay_unless_they_are_missing() -> None:
    import scipy.sparse as sparse

    matrix = sparse.csr_matrix((np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2])))
    np.testing.assert_array_equal(dense(Dataset.of(matrix).table, 2), [[0, 1]])
    np.testing.assert_array_equal(dense(Dataset.of(matrix, missing=0).table, 2), [[NAN, 1]])


def test_unsorted_and_repeated_entries_are_put_in_order_and_added() -> None:
    import scipy.sparse as sparse

    columns = np.array([2, 0, 2, 1, 0], np.int32)
    matrix = sparse.csr_matrix((np.arange(1.0, 6.0), columns, np.array([0, 3, 5])), shape=(2, 3))
    table = Dataset.of(matrix).table
    assert table.columns.tolist() == [0, 2, 0, 1]
    assert table.values.tolist() == [2, 4, 5, 4]
    assert matrix.indices.tolist() == [2, 0, 2, 1, 0]  # the caller's matrix is as it was
    entries = sparse.coo_matrix((np.ones(2), (np.array([1, 1]), np.array([0, 0]))), shape=(2, 1))
    assert Dataset.of(entries).table.values.tolist() == [2]


def test_sparse_refusals() -> None:
    import scipy.sparse as sparse

    matrix = sparse.csr_matrix(np.array([[1.0, 0.0], [0.0, 1.0]]))
    matrix.data[1] = math.inf
    with pytest.raises(DataError, match="row 1, feature 1 is inf"):
        Dataset.of(matrix)
    matrix.data[1] = 1e39
    with pytest.raises(DataError, match="row 1, feature 1 is 1e"):
        Dataset.of(matrix)
    with pytest.raises(DataError, match="complex"):
        Dataset.of(matrix.astype(complex))
    matrix.indices[1] = 7
    with pytest.raises(DataError, match="sparse entry in column 7; allowed are 0 to 1"):
        Dataset.of(matrix)


@pytest.mark.parametrize("listed", [[b"a"], [1.0], [None], [True, False, False], np.array([True, False, False])])
def test_categorical_lists_numbers_and_names(listed: Any) -> None:
    with pytest.raises(DataError, match=r"categorical: found .*; allowed are numbers and names of features"):
        Dataset.of(np.zeros((4, 3)), categorical=listed)
    assert Dataset.of(np.zeros((4, 3)), categorical=np.array([2])).categorical.tolist() == [False, False, True]


def test_none_marks_nothing_as_missing() -> None:
    assert np.isnan(Dataset.of([[0.0], [np.nan]], missing=None).table).tolist() == [[False], [True]]  # type: ignore[arg-type]


SECONDS = 1_700_000_000


def epochs(kind: str) -> tuple[Any, Any]:
    """Rows of a small number and of seconds since 1970, and what `Dataset.of` calls the latter."""
    table = np.stack([np.arange(50), SECONDS + np.arange(50)], axis=1)
    if kind == "frame":
        return pd.DataFrame(table, columns=["small", "seconds"]), "seconds"
    if kind == "sparse":
        return sparse.csr_matrix(table), "feature 1"
    return table.astype(kind), "feature 1"


@pytest.mark.parametrize("kind", ["int64", "uint32", "float64", "frame", "sparse"])
def test_whole_numbers_that_float32_rounds_are_told(kind: str) -> None:
    x, name = epochs(kind)
    with pytest.warns(UserWarning, match=f"whole numbers of {name} .17000000.* are rounded") as caught:
        Dataset.of(x)
    assert len(caught) == 1 and "small" not in str(caught[0].message)


@pytest.mark.parametrize("kind", ["int64", "float64", "frame", "sparse"])
def test_numbers_that_are_not_rounded_are_not_told(kind: str, recwarn: pytest.WarningsRecorder) -> None:
    x, _ = epochs(kind)
    Dataset.of(x, categorical=[1])  # as categories, they are told apart
    exact = np.array([[1 << 30, -(1 << 24)], [3 << 24, 16777215]])
    Dataset.of(exact)
    Dataset.of(np.array([[1e9 + 0.5, 1e30]]))  # neither is a count
    Dataset.of(np.array([[SECONDS + 1, 2], [SECONDS + 1, 3]]), missing=SECONDS + 1)
    assert not [str(w.message) for w in recwarn if "rounded" in str(w.message)]


@pytest.mark.parametrize("infinite", ["missing", "largest"])
def test_infinite_values_on_request(infinite: str, tmp_path: Any) -> None:
    import pandas
    import scipy.sparse

    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    x[::7, 0], x[3::7, 1] = np.inf, -np.inf
    same = x.copy()
    label = np.where(np.isinf(x[:, 0]), 5.0, x[:, 1].clip(-3, 3))
    plain = np.where(np.isinf(x), np.nan if infinite == "missing" else np.sign(x) * np.finfo(np.float32).max, x)
    expected = train({}, Dataset.of(plain, label=label), 5)
    for table in (x, x.astype(np.float64), pandas.DataFrame({"a": x[:, 0], "b": x[:, 1].astype(float)})):
        data = Dataset.of(table, label=label, infinite=infinite)
        np.testing.assert_array_equal(data.table, plain)
        model = train({}, data, 5)
        np.testing.assert_array_equal(predict(model, table), predict(expected, plain))
        model.save(tmp_path / "m.json")
        np.testing.assert_array_equal(predict(Model.load(tmp_path / "m.json"), table), predict(expected, plain))
    np.testing.assert_array_equal(x, same)
    sparse = Dataset.of(scipy.sparse.csr_matrix(x), infinite=infinite).table
    assert len(sparse.values) == np.count_nonzero(np.isfinite(x) if infinite == "missing" else x)
    one = GBTRegressor(n_estimators=5, learning_rate=0.3, max_depth=6, infinite=infinite).fit(x, label)
    np.testing.assert_array_equal(one.predict(x), predict(expected, plain))
    with pytest.raises(ParameterError, match="infinite: found 'keep'; allowed are error, missing, largest"):
        Dataset.of(x, infinite="keep")
