"""Tree boosting against xgboost and lightgbm: time to train and to predict, quality, memory, and the papers' figures.

`python -m benchmarks.boost [SECTION ...] [--quick] [--json]`

Ratios are burnish / the faster peer, of medians measured alternately in this process; below 1 is faster. The peers are
in the extra `boost-bench`.
"""

import argparse
import importlib
import os
import platform
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.provenance import stored

SECTIONS = (
    "first", "hist", "airline", "exact", "convergence", "ranking", "tuner", "prediction", "external", "distributed",
    "blocks", "summary", "budget",
)  # fmt: skip
COLUMNS = ("ours", "peers", "ratio", "asked", "note")


def shown(value: Any) -> str:
    """One cell: numbers in three digits, peers side by side."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(found)}" for name, found in value.items())
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="small data: whether it runs, not how fast")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(SECTIONS)}")
    report = {}
    for section in arguments.sections or SECTIONS:
        rows = importlib.import_module(f"benchmarks.boosting.{section}").measure(quick=arguments.quick)
        report[section] = rows
        if not arguments.json:
            table = Table("", *COLUMNS, title=section)
            for row in rows:
                table.add_row(str(row["name"]), *(shown(row.get(column)) for column in COLUMNS))
            Console(width=None if sys.stdout.isatty() else 150).print(table)
    if arguments.json:
        machine = {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0))}
        print(stored({**machine, "sections": report}, indent=2, default=float))
    return 0


if __name__ == "__main__":
    sys.exit(main())
