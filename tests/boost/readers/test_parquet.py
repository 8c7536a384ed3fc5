"""Parquet files: round trips, roles, and refusals that name file and row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burnish.boost import readers
from burnish.boost.data import Dataset
from burnish.errors import DataError
from tests.boost.readers.reading import NAN, cells, check_chunks, relaxed, same, texts


@given(st.lists(st.tuples(cells, st.none() | texts, st.booleans()), min_size=1, max_size=20), st.integers(1, 7))
@relaxed
def test_parquet_round_trip(tmp_path: Path, rows: list[Any], chunk: int) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    numbers, column, flags = (list(part) for part in zip(*rows, strict=True))
    floats = [None if value is None else float(value) for value in numbers]
    table = arrow.table({"x": arrow.array(floats, arrow.float64()), "c": column, "flag": flags, "y": range(len(rows))})
    if all(value is None for value in column):
        table = table.drop_columns("c")
    path = tmp_path / "data.parquet"
    parquet.write_table(table, path, row_group_size=5)
    data = check_chunks(path, chunk, label="y")
    same(data, Dataset.of(table.drop_columns("y"), label=range(len(rows))))


def test_parquet_roles_and_refusals(tmp_path: Path) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    path = tmp_path / "data.parquet"
    table = arrow.table({"id": ["a", "b"], "q": [3, 4], "w": [1.0, 2.0], "k": [7, 5], "x": [1.5, -1], "y": [0, None]})
    parquet.write_table(table, path)
    options: dict[str, Any] = {"ignore": ["id"], "qid": "q", "weight": "w", "categorical": ["k"], "missing": [-1]}
    data = check_chunks(path, 1, **options)
    np.testing.assert_array_equal(data.table, [[1, 1.5, 0], [0, NAN, NAN]])
    assert data.categories == ((5, 7), None, None)
    assert data.group_start.tolist() == [0, 1, 2]
    assert data.weight.tolist() == [1, 2]
    with pytest.raises(DataError, match=r"data.parquet, in the rows after row 0: label: row 1 is nan"):
        readers.read(path, **options, label="y")
    with pytest.raises(DataError, match="label: found text"):
        readers.read(path, label="id")
    cut = path.read_bytes()[:-20]
    path.write_bytes(cut)
    with pytest.raises(DataError, match=r"data.parquet: not a whole Parquet file"):
        readers.read(path)


def test_columns_by_name_and_order(tmp_path: Path) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.table({"c": ["u", "v"], "y": [0, 1], "b": [3, 4], "a": [1, 2]}), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("c,y,b,a\nu,0,3,1\nv,1,4,2\n")
    for name in ("t.parquet", "t.csv"):
        path = tmp_path / name
        data = check_chunks(path, 1, columns=["a", "c"], categories=(None, ("v", "u")))
        assert data.table.tolist() == [[1, 1], [2, 0]]
        assert data.feature_names == ("a", "c")
        assert check_chunks(path, 1, columns=["b", "a"], label="y").label.tolist() == [0, 1]
        with pytest.raises(DataError, match=r"feature='z' is no column; allowed are c, y, b, a"):
            readers.read(path, columns=["a", "z"])
        with pytest.raises(DataError, match="the feature 'y' is a column that has another role"):
            readers.read(path, columns=["y"], label="y")
        assert readers.columns_of(path) == (("c", "y", "b", "a"), 4)
    (tmp_path / "t.svm").write_text("1 1:2\n")
    with pytest.raises(DataError, match="found libsvm, which has no columns"):
        readers.columns_of(tmp_path / "t.svm")
