"""Files and folders, compressed or not; formats; queries that stay whole."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from burnish.boost import readers
from burnish.boost.data import Sparse
from burnish.errors import DataError, ParameterError
from tests.boost.readers.reading import check_chunks, same


def write_csv(path: Path) -> None:
    path.write_text("a,y\n" + "".join(f"{row},{row % 2}\n" for row in range(50)))


def write_libsvm(path: Path) -> None:
    path.write_text("".join(f"{row % 2} qid:{row // 7} 1:{row}\n" for row in range(50)))


@pytest.mark.parametrize("write", [write_csv, write_libsvm])
@pytest.mark.parametrize("threads", [1, 3])
def test_compressed_files_and_folders(block: int, tmp_path: Path, write: Callable[[Path], None], threads: int) -> None:
    name = "data.csv" if write is write_csv else "data.svm"
    options: dict[str, Any] = {"threads": threads} | ({"label": "y"} if write is write_csv else {})
    write(tmp_path / name)
    plain = check_chunks(tmp_path / name, 9, **options)
    packed = tmp_path / "packed" / f"{name}.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    same(check_chunks(packed, 9, **options), plain)
    (packed.parent / "_SUCCESS").touch()
    same(check_chunks(packed.parent, 9, **options), plain)
    if write is write_csv:
        write(packed.parent / "more.csv")
        assert check_chunks(packed.parent, 9, **options).table.ravel().tolist() == [*range(50), *range(50)]
    packed.write_bytes(gzip.compress((tmp_path / name).read_bytes())[:-30])
    with pytest.raises(DataError, match=rf"{name}.gz, line \d+ or after: the compressed file is damaged or cut off"):
        readers.read(packed, **options)


def test_queries_are_not_cut(block: int, tmp_path: Path) -> None:
    path = tmp_path / "data.svm"
    path.write_text("".join(f"1 qid:{query} 1:1\n" for query in [5, 5, 5, 5, 2, 2, 9, 8, 8, 8]))
    parts = list(readers.chunks(path, 3))
    assert [np.diff(part.group_start).tolist() for part in parts] == [[4], [2, 1], [3]]
    path.write_text("".join(f"1 qid:{query} 1:1\n" for query in [5, 5, 2, 2, 5, 5]))
    with pytest.raises(DataError, match="qid: found query 5 again"):
        list(readers.chunks(path, 2))
    with pytest.raises(DataError, match="qid: found query 5 again"):
        readers.read(path)


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.svm"
    path.write_text("# nothing\n\n")
    with pytest.raises(DataError, match="found no rows"):
        readers.read(path)
    with pytest.raises(DataError, match="found no rows"):
        list(readers.chunks(path, 2))


def test_the_format_of_other_suffixes_is_seen(tmp_path: Path) -> None:
    for name, text in {"a.train": "1 1:2 3:4\n", "b.data": "1,2\n3,4\n", "c.dat": "a;b\n1;2\n"}.items():
        (tmp_path / name).write_text(text)
    assert isinstance(readers.read(tmp_path / "a.train").table, Sparse)
    assert readers.read(tmp_path / "b.data").rows == 2
    assert readers.read(tmp_path / "c.dat").feature_names == ("a", "b")
    assert readers.read(tmp_path / "b.data", format="csv").rows == 2


def test_paths_and_options_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        readers.read(tmp_path / "none.csv")
    with pytest.raises(DataError, match="found no file"):
        readers.read(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.svm").write_text("1 1:2\n")
    with pytest.raises(DataError, match=r"b.svm: found libsvm beside csv \(a.csv\)"):
        readers.read(tmp_path)
    (tmp_path / "b.svm").unlink()
    (tmp_path / "b.csv").write_text("a,c\n1,2\n")
    with pytest.raises(DataError, match=r"b.csv: its columns differ from those of a.csv"):
        readers.read(tmp_path)
    for options, message in (
        ({"format": "arff"}, "format: found 'arff'"),
        ({"policy": "no"}, "policy: found 'no'"),
        ({"first_index": 2}, "first_index: found 2"),
        ({"features": 0}, "features: found 0"),
    ):
        with pytest.raises(ParameterError, match=message):
            readers.read(tmp_path / "a.csv", **options)
    with pytest.raises(ParameterError, match="chunk_rows: found 0"):
        list(readers.chunks(tmp_path / "a.csv", 0))


def test_a_binary_file_is_refused_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.ones((3, 2)))
    with pytest.raises(DataError, match=r"rows.npz: found a binary file; allowed: text \(CSV, LibSVM\)"):
        readers.read(tmp_path / "rows.npz", label="y")
