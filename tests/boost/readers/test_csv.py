"""CSV text: round trips, headers and roles, and refusals that name file and line."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burnish.boost import readers
from burnish.boost.data import Dataset
from burnish.errors import DataError
from tests.boost.readers.reading import NAN, cells, check_chunks, relaxed, same, texts


@st.composite
def csv_case(draw: st.DrawFn) -> tuple[list[list[Any]], list[str | None], str]:
    width, height = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    numbers = [draw(st.lists(cells, min_size=width, max_size=width)) for _ in range(height)]
    column = draw(st.lists(st.none() | texts, min_size=height, max_size=height))
    return numbers, column, draw(st.sampled_from([",", ";", "\t", "|"]))


@given(csv_case(), st.booleans(), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.integers(1, 5))
@relaxed
def test_csv_round_trip(
    block: int, tmp_path: Path, case: Any, header: bool, quoted: bool, newline: str, chunk: int
) -> None:
    numbers, column, separator = case
    width = len(numbers[0])
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=separator, lineterminator=newline, quoting=quoting)
    names = [*(f"x {index}" for index in range(width)), "c,1", "y"]
    if header:
        writer.writerow(names)
    for index, row in enumerate(numbers):
        writer.writerow(["NA" if value is None else repr(value) for value in row] + [column[index] or "", index])
    path = tmp_path / "data.csv"
    path.write_text(text.getvalue(), newline="", encoding="utf-8")
    options: dict[str, Any] = {"separator": separator, "header": header}
    options |= {"label": "y", "categorical": ["c,1"]} if header else {"label": width + 1, "categorical": [width]}
    data = check_chunks(path, chunk, **options)
    expected = np.array([[NAN if value is None else value for value in row] for row in numbers]).astype(np.float32)
    np.testing.assert_array_equal(data.table[:, :width], expected)
    np.testing.assert_array_equal(data.label, np.arange(len(numbers)))
    values = data.categories[width]
    found = [None if np.isnan(code) else values[int(code)] for code in data.table[:, width]]
    assert found == [value or None for value in column]
    assert data.feature_names == (tuple(names[:-1]) if header else ())


def test_csv_agrees_with_pandas(tmp_path: Path) -> None:
    import pandas

    random = np.random.default_rng(0)
    frame = pandas.DataFrame(random.standard_normal((500, 5)) * 10.0 ** random.integers(-9, 9, (500, 5)))
    frame = frame.mask(random.random(frame.shape) < 0.1).rename(columns=lambda index: f"f{index}")
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    same(readers.read(path), Dataset.of(pandas.read_csv(path)))


@pytest.mark.parametrize(
    ("text", "expected", "names"),
    [
        ("a,b\n1,2\n", [[1, 2]], ("a", "b")),
        ("1,2\n3,4\n", [[1, 2], [3, 4]], ()),
        ("NA,2\n,4", [[NAN, 2], [NAN, 4]], ()),
        ("\ufeffa;b\r\n\r\n 1 ; 2.5 \r\n", [[1, 2.5]], ("a", "b")),
        ('"a ""x""","b"\n"1"," 2"\n', [[1, 2]], ('a "x"', "b")),
        ("\n\na\tb\n\t7\n", [[NAN, 7]], ("a", "b")),
        ("1,2,\n", [[1, 2, NAN]], ()),
        ('\t"a" , "b",c\n\t"1"\t, "2" ,\r\n', [[1, 2, NAN]], ("a", "b", "c")),
        ("a, b\n 1, NA\n ?\t,\t+2\n  \n", [[1, NAN], [NAN, 2]], ("a", "b")),
    ],
)
def test_csv_header_and_separator_are_found(tmp_path: Path, text: str, expected: Any, names: Any) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text, encoding="utf-8", newline="")
    data = check_chunks(path, 1)
    np.testing.assert_array_equal(data.table, expected)
    assert data.feature_names == names


def test_csv_roles_by_name_and_marks(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("id,q,w,colour,size,y\na1,u,1,red,-1,0\na2,u,2,blue,5,1\na3,v,0.5,none,x,1\n")
    options: dict[str, Any] = {"label": "y", "weight": "w", "qid": "q", "ignore": ["id"], "categorical": ["colour"]}
    data = check_chunks(path, 1, **options, missing=["x", "none", -1])
    np.testing.assert_array_equal(data.table, [[1, NAN], [0, 5], [NAN, NAN]])
    assert data.categories == (("blue", "red"), None)
    assert data.feature_names == ("colour", "size")
    np.testing.assert_array_equal(data.weight, [1, 2, 0.5])
    assert data.group_start.tolist() == [0, 2, 3]


def test_csv_categories_that_are_all_numbers_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n10,1\n9,x\n10,2\n")
    data = check_chunks(path, 1, categorical=["a", "b"])
    assert data.categories == ((9, 10), ("1", "2", "x"))
    assert data.table.tolist() == [[1, 0], [0, 2], [1, 1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"u, v",1\n"w\nx",2\n"say ""no""",3\n', ["u, v", "w\nx", 'say "no"']),
        ('" u",1\n v ,2\n"w "\t,3\n', [" u", "v", "w "]),  # blanks within quotes count, those around fields do not
        ('5" pipe,1\n6",2\nu,3\n', ['5" pipe', '6"', "u"]),
        ("a\rb,1\r\nv\r,2\n w,3", ["a\rb", "v", "w"]),
        ("New York, 1\nNA , 2\n ?,3\n", ["New York", None, None]),
    ],
)
def test_csv_texts_with_blanks_and_quotes(tmp_path: Path, text: str, expected: list[str | None]) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text, newline="")
    data = check_chunks(path, 1, header=False, separator=",", categorical=[0])
    values = data.categories[0]
    assert [None if np.isnan(code) else values[int(code)] for code in data.table[:, 0]] == expected
    assert data.table[:, 1].tolist() == [1, 2, 3]


@pytest.mark.parametrize("text", ["a,b,c\n1,,x y\n2.5,NA,\n-3e5,7,NA\n", 'a,b,c\r\n"1",2,"x\n""y"\r\n\r\n3,4,é\r\n'])
def test_csv_fields_one_by_one_are_what_pyarrow_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text, newline="", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.delattr("burnish.boost.readers.csv._read_fields")
        data = readers.read(path, categorical=["c"], missing=[7])
    monkeypatch.setattr("burnish.boost.readers.csv._read_by_arrow", lambda text, layout: None)
    same(readers.read(path, categorical=["c"], missing=[7]), data)


def test_csv_is_encoded_by_the_categories_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b,c\n10,u,0.5\n7,v,1\n")
    options: dict[str, Any] = {"categories": ((9, 10), ("u",), None)}
    data = check_chunks(path, 1, **options, policy="other")
    assert data.table.tolist() == [[1, 0, 0.5], [2, 1, 1]]
    assert (data.categories, data.policy) == (options["categories"], "other")
    with pytest.raises(DataError, match="feature 'a': row 1 is 7, a category that training has not seen"):
        readers.read(path, **options)
    with pytest.raises(DataError, match="found 3 features; allowed is 1"):
        readers.read(path, categories=(None,))


@pytest.mark.parametrize(
    ("text", "options", "place", "message"),
    [
        ("a,b\n1,2\n3\n", {}, "line 3", "1 fields; allowed is 2"),
        ("a,b\n1,2\n\n3,4,5\n", {}, "line 4", "3 fields; allowed is 2"),
        ("a,b\n1,2\n3,x y\n", {}, "line 3", "column 'b' is 'x y', which is not a number; list the column"),
        ("1,2\n3,4x\n", {}, "line 2", "column 1 is '4x'"),
        ("a,b\n1,inf\n", {}, "line 2", "column 'b' is 'inf'; allowed are finite"),
        ("a,b\n1,1e39\n", {}, "line 2", "column 'b' is '1e39'; allowed are finite"),
        ("a,b\n1,2\n3,\n", {"label": "b"}, "line 3", "the label is missing"),
        ("a,b\n1,2\n3,nan\n", {"label": "b"}, "line 3", "the label is missing"),
        ("a,b\n1,2\n3,k\n", {"label": "b"}, "line 3", "the label is 'k', which is not a number"),
        ("a,b\n1,2\n3,-4\n", {"weight": "b"}, "line 3", "the weight is negative"),
        ("a,b\n1,2\n3,\n", {"qid": "b"}, "line 3", "the query is missing"),
        ('a,b\n1,"2\n3,4\n', {}, "line 2", "a quoted field does not end"),
        ('a,b\n1,"2"3\n', {}, "line 2", "a quoted field goes on after its closing quote"),
        ('a,b\n"1\n",x\n', {}, "line 3", "column 'b' is 'x'"),
        ("a,a\n1,2\n", {}, "line 1", "two columns 'a'"),
        ("a,b\n1,2\n", {"label": "c"}, "", "label='c' is no column; allowed are a, b"),
        ("1,2\n1,2\n", {"label": "c"}, "", "label='c' is no column; there are no names"),
        ("a,b\n1,2\n", {"label": 2}, "", "label=2 is no column; allowed are 0 to 1"),
        ("a,b\n1,2\n", {"label": "a", "weight": "a"}, "", "another role"),
        ("a\n1\n", {"label": "a"}, "", "found no column for features"),
        ("", {}, "", "the file is empty"),
        ("a,b\n", {}, "", "found no rows"),
        ("a,b\n1,2\n", {"separator": "x"}, "", "separator='x'"),
    ],
)  # fmt: skip
def test_csv_refusals_name_file_and_line(tmp_path: Path, text: str, options: Any, place: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        readers.read(path, **options)
    assert str(error.value).startswith(f"{path}, {place}" if place else str(path))
    assert message in str(error.value)


junk = st.lists(st.sampled_from([*'0123456789.-+eE"\t\r\n\x00\xff,; aN', ",,", '""', "\n1,2"])).map("".join)


@given(junk, st.sampled_from([None, True, False]))
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused(tmp_path: Path, text: str, header: bool | None) -> None:
    path = tmp_path / "junk.csv"
    path.write_bytes(text.encode("latin-1"))
    try:
        data = readers.read(path, header=header)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert data.table.shape == (data.rows, data.features)
        assert not np.isinf(data.table).any()
