"""The list of the papers' experiments is whole, names files and programs that there are, and is what INDEX.md says."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.evidence import EXPERIMENTS, JOBS, PAPERS, RESULTS, STATUSES, index

COUNTS = {
    "tvm": 11, "autotvm": 10, "adatune": 12, "taso": 8, "xgboost": 11, "mxnet": 3, "flexflow": 13, "roc": 8,
}  # fmt: skip


def test_every_experiment_of_the_papers_is_there_once() -> None:
    assert Counter(e.paper for e in EXPERIMENTS) == COUNTS and COUNTS.keys() == PAPERS.keys()
    assert len({(e.paper, e.figure) for e in EXPERIMENTS}) == 76


def test_what_rows_name_exists() -> None:
    programs = Path(RESULTS).parent
    for e in EXPERIMENTS:
        assert e.status in STATUSES and e.found and e.what
        assert not e.program or (programs / f"{e.program}.py").exists(), e
        assert all((RESULTS / name).exists() for name in e.results), e
        assert e.status != "reproduced" or (e.results and e.program), f"{e.figure}: reproduced by what is stored"


def test_the_index_is_written_from_the_list() -> None:
    assert (RESULTS / "INDEX.md").read_text(encoding="utf-8") == index(), "python -m benchmarks index"


def test_jobs_run_programs_that_there_are() -> None:
    for paper, words in JOBS.values():
        assert paper in PAPERS
        assert (Path(RESULTS).parents[1] / f"{words.split()[0].replace('.', '/')}.py").exists(), words


def test_a_run_goes_on_behind_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "JOBS", {"one": ("roc", "platform --json"), "two": ("roc", "no_module --json")})
    assert command.run([]) == 1
    (made,) = tmp_path.iterdir()  # what fails leaves nothing
    assert made.name.startswith("one-") and made.read_text()
    made.write_text("kept")
    assert command.run([]) == 1
    assert made.read_text() == "kept"
    assert command.run(["one"]) == 0
    assert made.read_text() != "kept"
