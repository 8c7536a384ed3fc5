"""LibSVM text: round trips, and refusals that name file and line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnish.boost import readers
from burnish.errors import DataError
from tests.boost.readers.reading import NAN, check_chunks, dense, relaxed, same


@st.composite
def sparse_rows(draw: st.DrawFn) -> tuple[list[dict[int, float]], list[float], list[float] | None, list[int] | None]:
    rows = draw(
        st.lists(st.dictionaries(st.integers(0, 9), st.floats(-9, 9, width=32), max_size=5), min_size=1, max_size=12)
    )
    labels = draw(st.lists(st.integers(-2, 5).map(float), min_size=len(rows), max_size=len(rows)))
    weights = draw(st.none() | st.just([0.5 + row for row in range(len(rows))]))
    queries = draw(st.none() | st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    return rows, labels, weights, None if queries is None else np.cumsum(queries).tolist()


def libsvm_text(rows: Any, labels: Any, weights: Any, queries: Any, first: int, scramble: bool, comments: bool) -> str:
    lines = []
    for index, (row, label) in enumerate(zip(rows, labels, strict=True)):
        items = list(row.items())[:: -1 if scramble else 1]
        line = f"{label:g}" + (f":{weights[index]!r}" if weights else "")
        line += (f" qid:{queries[index]}" if queries else "") + "".join(f"  {c + first}:{v!r}" for c, v in items)
        lines.append(line + ("\t# a comment: 1:2" if comments else ""))
        lines += ["", "# only a comment"] if comments else []
    return "\n".join(lines) + "\n"


@given(sparse_rows(), st.booleans(), st.booleans(), st.sampled_from([0, 1]), st.integers(1, 5))
@relaxed
def test_libsvm_round_trip(
    block: int, tmp_path: Path, case: Any, scramble: bool, comments: bool, first: int, chunk: int
) -> None:
    rows, labels, weights, queries = case
    path = tmp_path / "data.libsvm"
    path.write_text(libsvm_text(rows, labels, weights, queries, first, scramble, comments))
    data = check_chunks(path, chunk, first_index=first)
    expected = np.full((len(rows), data.features), NAN, np.float32)
    for index, row in enumerate(rows):
        for column, value in row.items():
            expected[index, column] = value
    np.testing.assert_array_equal(dense(data), expected)
    np.testing.assert_array_equal(data.label, labels)
    np.testing.assert_array_equal(data.weight, weights)
    if queries:
        changes = np.flatnonzero(np.diff(queries)) + 1
        assert data.group_start.tolist() == [0, *changes.tolist(), len(rows)]


@pytest.mark.parametrize("text", ["+1:2 qid:3 2:5 1:2\r\n\n-1 qid:3 # 4:5\n", "1e1 1:.5\t3:-0 4:nan# c\n0 2:1\n2"])
def test_libsvm_tokens_one_by_one_are_what_pyarrow_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "data.svm"
    path.write_text(text, newline="")
    with monkeypatch.context() as patch:
        patch.delattr("burnish.boost.readers.libsvm._read_lines")
        data = readers.read(path)
    monkeypatch.setattr("burnish.boost.readers.libsvm._read_by_arrow", lambda text: None)
    same(readers.read(path), data)


def test_libsvm_weights_of_some_lines_after_blanks(tmp_path: Path) -> None:
    path = tmp_path / "data.svm"
    path.write_text(" 3:5 2:.5\n\n\t2 \t1:1\r\n# none\n4:0.5\n")
    data = check_chunks(path, 1, first_index=1)
    assert data.label.tolist() == [3, 2, 4]
    assert data.weight.tolist() == [5, 1, 0.5]
    np.testing.assert_array_equal(dense(data), [[NAN, 0.5], [1, NAN], [NAN, NAN]])


def test_libsvm_counts_from_the_smallest_feature(tmp_path: Path) -> None:
    path = tmp_path / "one.svm"
    path.write_text("1 3:5 1:2\n0 2:1\n")
    np.testing.assert_array_equal(dense(check_chunks(path, 1)), [[2, NAN, 5], [NAN, 1, NAN]])
    np.testing.assert_array_equal(dense(check_chunks(path, 1, first_index=0))[0], [NAN, 2, NAN, 5])
    assert readers.numbering(path) == (1, 3)
    assert check_chunks(path, 1, features=7).features == 7
    path.write_text("1 3:5\n0 0:1\n")
    assert readers.numbering(path) == (0, 4)
    np.testing.assert_array_equal(dense(check_chunks(path, 1)), [[NAN, NAN, NAN, 5], [1, NAN, NAN, NAN]])


def test_libsvm_agrees_with_scikit_learn(tmp_path: Path) -> None:
    import sklearn.datasets as datasets

    random = np.random.default_rng(0)
    x = random.standard_normal((300, 8)) * (random.random((300, 8)) < 0.5) * 10.0 ** random.integers(-20, 20, (300, 8))
    path = tmp_path / "data.svm"
    datasets.dump_svmlight_file(x, random.standard_normal(300), str(path), zero_based=False, comment="made")
    matrix, label = datasets.load_svmlight_file(str(path))
    data = readers.read(path, features=8)
    np.testing.assert_array_equal(np.nan_to_num(dense(data)), np.asarray(matrix.todense()).astype(np.float32))
    np.testing.assert_array_equal(data.label, label.astype(np.float32))


def test_a_stored_nan_is_absent_and_a_mark_too(tmp_path: Path) -> None:
    path = tmp_path / "data.svm"
    path.write_text("1 1:nan 2:-9 3:0\n")
    data = check_chunks(path, 1, missing=[-9])
    assert data.table.columns.tolist() == [2]
    assert data.table.values.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("1 1:2\nx 1:2\n", 2, "the label 'x' is not a number"),
        ("1 1:2\nnan 1:2\n", 2, "the label is 'nan'; allowed are finite"),
        ("1:-2 1:2\n", 1, "the weight is negative"),
        ("# c\n\n1:z 1:2\n", 3, "the weight 'z' is not a number"),
        ("1 1:2\n\n1 1:a\n", 3, "the value 'a' is not a number"),
        ("1 1:1e39\n", 1, "the value is '1e39'; allowed are finite"),
        ("1 1:2 3:\n", 1, "feature '3:' has no value"),
        ("1 1:2 3", 1, "feature '3' has no value"),
        ("1 a:2\n", 1, "'a:2' is no feature number"),
        ("1 2.5:2\n", 1, "'2.5:2' is no feature number"),
        ("1 -1:2\n", 1, "feature '-1:2' is out of range"),
        ("1 99999999999999:2\n", 1, "is out of range"),
        ("1 1:2 # x\n1 2:1 3:2 2:5\n", 2, "feature 2 occurs twice"),
        ("1 qid:a 1:2\n", 1, "'qid:a' is no query"),
        ("1 quid:1 1:2\n", 1, "'quid:1' is no query"),
        ("1 qid:1 1:2\n1 1:2\n", 1, "found 1 qid: in 2 rows"),
        ("1,2 1:2\n", 1, "the label '1,2' is not a number"),
        ("1 1:2\n1 :5 2:1\n", 2, "':5' is no feature number"),
        ("1 1:2\n1 0x3:1\n", 2, "'0x3:1' is no feature number"),
        ("1 1:2\n1 1:2:3\n", 2, "the value '2:3' is not a number"),
        ("1 1:2\n 1:z 3:4\n", 2, "the weight 'z' is not a number"),
    ],
)  # fmt: skip
def test_libsvm_refusals_name_file_and_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "bad.svm"
    path.write_text(text)
    for act in (readers.read, lambda path: list(readers.chunks(path, 10))):
        with pytest.raises(DataError) as error:
            act(path)
        assert str(error.value).startswith(f"{path}, line {line}")
        assert message in str(error.value)


def test_libsvm_numbering_that_was_given_is_kept_to(tmp_path: Path) -> None:
    path = tmp_path / "bad.svm"
    path.write_text("1 1:2\n1 0:2 5:1\n")
    with pytest.raises(DataError, match=r"line 2: feature '0:2' is numbered below the first, which is 1"):
        readers.read(path, first_index=1)
    for options in ({"features": 4}, {"features": 4, "first_index": 0}):
        with pytest.raises(DataError, match=r"line 2: feature '5:1' is more than"):
            readers.read(path, **options)
        with pytest.raises(DataError, match=r"line 2: feature '5:1' is more than"):
            list(readers.chunks(path, 1, **options))


junk = st.lists(st.sampled_from([*"0123456789.:-+eE#qidnaf \t\r\n\x00\xff,", "qid:", "1:2", "\n1 "])).map("".join)


@given(junk)
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "junk.svm"
    path.write_bytes(text.encode("latin-1"))
    try:
        data = readers.read(path)
    except DataError as error:
        assert str(path) in str(error) or "qid: found query" in str(error)
    else:
        assert data.rows == len(data.label) >= 1
        assert np.isfinite(data.table.values).all()
