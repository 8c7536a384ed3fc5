"""The benchmarks: `python -m benchmarks list | index | plots | run [NAME …]`.

`list`: each experiment of the papers, what stands for it, and whether the program that measured its results was changed
since; `index` writes all but the last to `benchmarks/results/INDEX.md`; `plots` draws stored results. `run` measures
what has no result of this kind of machine that is newer than its code, or the NAMEs in any case, one after the other:
each is stored when it ends, so that a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.evidence import EXPERIMENTS, JOBS, PAPERS, RESULTS, index
from benchmarks.plots import draw
from benchmarks.provenance import kind_of_machine

PRODUCT = Path(__file__).parents[1] / "burnish"
ROOMS = {  # what the experiments of a paper are about
    "tvm": ("kernels", "graph", "lower", "codegen"), "autotvm": ("tune", "search"), "adatune": ("tune", "search"),
    "taso": ("rewrite",), "xgboost": ("boost",), "mxnet": ("memory", "train"), "flexflow": ("parallel",),
    "roc": ("gnn",),
}  # fmt: skip


def _changed(*paths: Path) -> int:
    """Time of the last commit that changed the files, in seconds since 1970; 0 where git does not know."""
    command = ["git", "log", "-1", "--format=%ct", "--", *map(str, paths)]
    done = subprocess.run(command, cwd=RESULTS, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or 0)


def _stale(paper: str, path: Path) -> bool:
    """Whether a stored result is not there, or older than the code of its paper; one that git does not have is new."""
    made = _changed(path)
    return not path.exists() or 0 < made < _changed(*(PRODUCT / room for room in ROOMS[paper]))


def run(names: Sequence[str]) -> int:
    """Measures and stores; the number of programs that failed. What one prints is on the terminal, or is its result."""
    failed = 0
    for stem, (paper, command) in JOBS.items():
        path = RESULTS / f"{stem}-{kind_of_machine()}.json"
        if stem not in names if names else not _stale(paper, path):
            continue
        print(f"{stem}: python -m {command}", flush=True)
        words = [sys.executable, "-m", *shlex.split(command)]
        part = path.with_suffix(".part")
        if "--json" in words:  # prints its result
            with part.open("w", encoding="utf-8") as file:
                status = subprocess.run(words, cwd=PRODUCT.parent, stdout=file, check=False).returncode
        else:
            status = subprocess.run([*words, "--json", str(part)], cwd=PRODUCT.parent, check=False).returncode
        if part.exists() and part.stat().st_size:  # a bar that is missed is a result too
            part.replace(path)
        else:
            part.unlink(missing_ok=True)
        failed += status != 0
    return failed


def main() -> int:
    """The command's exit status."""
    if sys.argv[1:2] == ["run"]:
        if unknown := set(sys.argv[2:]) - set(JOBS):
            print(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(JOBS)}")
            return 2
        return int(run(sys.argv[2:]) > 0)
    if sys.argv[1:] == ["plots"]:
        print(*draw(RESULTS), sep="\n")
        return 0
    if sys.argv[1:] == ["index"]:
        (RESULTS / "INDEX.md").write_text(index(), encoding="utf-8")
        return 0
    if sys.argv[1:] != ["list"]:
        print(__doc__)
        return 2
    rooms = {paper: _changed(*(PRODUCT / room for room in names)) for paper, names in ROOMS.items()}
    table = Table("paper", "experiment", "status", "program", "stored", "found")
    for e in EXPERIMENTS:
        made = max((_changed(RESULTS / name) for name in e.results), default=0)
        days = (rooms[e.paper] - made) // 86400
        age = "" if not made else "new" if days <= 0 else f"stale: code {days} days newer"
        table.add_row(PAPERS[e.paper].partition(" (")[0], e.figure, e.status, e.program, age, e.found)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
