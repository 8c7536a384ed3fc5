"""BURNISH_DUMP: the text of every form and the seconds of every pass, and nothing without it."""

from pathlib import Path

import numpy as np
import pytest

import burnish as bn
from burnish.base import dump
from burnish.errors import ParameterError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.lower.pipeline import PASSES


def matmul_relu() -> Graph:
    """One matrix product with a constant, and what is fused with it."""
    g = GraphBuilder()
    weight = np.random.default_rng(0).standard_normal((32, 48), dtype=np.float32)
    return g.build(g.add("relu", g.add("matmul", g.input("x", (16, 32), "float32"), g.constant(weight))))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(dump.VARIABLE, str(tmp_path / "dump"))
    return tmp_path / "dump"


def numbered(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.is_file() and file.name != dump.TABLE)


def test_every_pass_leaves_its_form(folder: Path) -> None:
    graph = matmul_relu()
    bn.compile(graph, rewrite=False)
    names = [name.split("-", 1)[1] for name in numbered(folder)]
    assert names[:3] == ["graph.txt", "import.txt", "fold.txt"]
    assert names[-2:] == ["arrange.txt", "memory.txt"]
    own = next(file for file in folder.iterdir() if file.name.endswith("own_outputs.txt"))
    assert own.read_text() == str(optimize(graph)).rstrip("\n") + "\n"
    (kernel,) = (folder / "kernels").iterdir()
    stages = [name.split("-", 1)[1].split(".")[0] for name in numbered(kernel)]
    assert stages == ["task", "schedule", *(p.__name__ for p in PASSES), "emit", "compile_ir"]
    assert f"@{kernel.name}(" in next(kernel.glob("*-emit.ll")).read_text()


def test_the_table_tells_the_seconds_of_every_pass(folder: Path) -> None:
    bn.compile(matmul_relu(), rewrite=False)
    rows = [line.split("\t") for line in (folder / dump.TABLE).read_text().splitlines()]
    assert all(len(row) == 4 and float(row[3]) >= 0 for row in rows)
    assert sum(float(row[3]) for row in rows if row[2] == "compile_ir") > 0
    files = len(numbered(folder)) + sum(len(numbered(k)) for k in (folder / "kernels").iterdir())
    assert len(rows) == files


def test_kernels_that_the_cache_holds_are_made_again(folder: Path, tmp_path: Path) -> None:
    for _ in range(2):
        bn.compile(matmul_relu(), rewrite=False, cache_dir=tmp_path / "cache")
    assert [p.name for p in (folder / "2" / "kernels").iterdir()] == [p.name for p in (folder / "kernels").iterdir()]


def test_nothing_is_written_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dump.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    bn.compile(matmul_relu(), rewrite=False, cache_dir=tmp_path / "cache")
    assert [p.name for p in tmp_path.iterdir()] == ["cache"]
    assert not dump.active()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(dump.VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ParameterError, match=r"BURNISH_DUMP: found .*file.*allowed: a folder"):
        bn.compile(matmul_relu(), rewrite=False)
    assert not dump.active()
