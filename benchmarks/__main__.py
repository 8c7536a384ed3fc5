"""The benchmarks: `python -m benchmarks list | index`.

`list`: each experiment of the papers, what stands for it, and whether the program that measured its results was changed
since; `index` writes all but the last to `benchmarks/results/INDEX.md`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.evidence import EXPERIMENTS, PAPERS, RESULTS, index

PRODUCT = Path(__file__).parents[1] / "burnish"
ROOMS = {  # what the experiments of a paper are about
    "tvm": ("kernels", "graph", "lower", "codegen"), "autotvm": ("tune", "search"), "adatune": ("tune", "search"),
    "taso": ("rewrite",), "xgboost": ("boost",), "mxnet": ("memory", "train"), "flexflow": ("parallel",),
    "roc": ("gnn",),
}  # fmt: skip


def _changed(*paths: Path) -> int:
    """When git last saw a change of the files, in seconds; 0 where it does not tell."""
    command = ["git", "log", "-1", "--format=%ct", "--", *map(str, paths)]
    done = subprocess.run(command, cwd=RESULTS, capture_output=True, text=True, check=False)
    return int(done.stdout.strip() or 0)


def main() -> int:
    """The command's exit status."""
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
