"""The list of the papers' experiments is whole, names files and programs that there are, and is what INDEX.md says."""

from collections import Counter
from pathlib import Path

from benchmarks.evidence import EXPERIMENTS, PAPERS, RESULTS, STATUSES, index

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
