"""Random models against oracles: `python -m tools.fuzz --count 5000 --seed 0 [--jobs 2] [--pages] [--open]`.

With ``--backward``: gradients of random networks of PyTorch, beside PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from burnish.frontend.onnx.model import TRANSLATORS
from tools.fuzz.failures import kind_of, shrink_all
from tools.fuzz.families import FAMILIES
from tools.fuzz.run import LIMIT, Job, Row, run
from tools.fuzz.trial import FAILURES, ways


def jobs(args: argparse.Namespace, ends: float) -> Iterator[Job]:
    """Jobs of all seeds until time is up."""
    seeds = [args.replay] if args.replay is not None else range(args.seed, args.seed + args.count)
    for seed in seeds:
        if time.monotonic() > ends:
            return
        yield Job(seed, tuple(ways(seed, args.pages, args.open)), args.only, args.pages)


def report(rows: list[Row]) -> str:
    """Outcomes by number of trials, and refusals by reason."""
    counts = Counter(row.result.outcome for row in rows)
    lines = [f"{len(rows)} trials of {len({row.job.seed for row in rows})} models: " + ", ".join(
        f"{count} {outcome}" for outcome, count in counts.most_common())]  # fmt: skip
    for outcome in ("refused", "apart", "no oracle", "unclear", "generator"):
        reasons = Counter(row.result.detail.partition(": ")[2][:110] for row in rows if row.result.outcome == outcome)
        lines += [f"  {outcome} {count}x: {reason}" for reason, count in reasons.most_common(6)]
    drawn = {op for row in rows for op, _ in row.operators}
    never = sorted(TRANSLATORS.keys() - drawn)
    words = f"{', '.join(never[:20])}{', …' * (len(never) > 20)}" if never else "none"
    lines.append(f"operators: {len(drawn)} of the {len(TRANSLATORS)} supported; not drawn: {words}")
    return "\n".join(lines)


def coverage(rows: list[Row]) -> dict[str, dict[str, int]]:
    """Operator -> dtype -> nodes of models that were right."""
    table: dict[str, Counter[str]] = {}
    seen = set()
    for row in rows:
        if row.result.outcome in ("right", "apart") and row.job.seed not in seen:
            seen.add(row.job.seed)
            for op, dtype in row.operators:
                table.setdefault(op, Counter())[dtype] += 1
    return {op: dict(table[op].most_common()) for op in sorted(table)}


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 if any trial failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="models")
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that a stage of a trial may take")
    parser.add_argument("--pages", action="store_true", help="run between forbidden pages")
    parser.add_argument("--open", action="store_true", help="leave the first extents of inputs open")
    parser.add_argument("--backward", action="store_true", help="random backward passes beside PyTorch instead")
    parser.add_argument("--only", choices=sorted(FAMILIES), help="mostly operators of one family")
    parser.add_argument("--replay", type=int, help="the model of this seed alone")
    parser.add_argument("--json", type=Path, help="write all outcomes and the coverage to a file")
    parser.add_argument("--shrink", type=Path, help="write the smallest model of each kind of failure to a folder")
    args = parser.parse_args(arguments)
    if args.backward:
        from tools.fuzz import backward  # which needs torch

        seeds = [args.replay] if args.replay is not None else range(args.seed, args.seed + args.count)
        return backward.run(seeds, partial(print, flush=True))
    rows: list[Row] = []
    ends = time.monotonic() + 60 * args.minutes
    flags = " --pages" * args.pages + " --open" * args.open + (f" --only {args.only}" if args.only else "")
    with tempfile.TemporaryDirectory() as folder:
        for row in run(jobs(args, ends), args.jobs, Path(folder), args.limit):
            rows.append(row)
            if row.result.outcome in (*FAILURES, "generator", "unclear") or args.replay is not None:
                print(f"seed {row.job.seed} ({row.way}) {row.result.outcome}: {row.result.detail}", flush=True)
                print(f"    python -m tools.fuzz --replay {row.job.seed}{flags}", flush=True)
            if len(rows) % 500 == 0:
                print(report(rows).partition("\n")[0], flush=True)
        print(report(rows))
        if args.shrink:
            failing = [row for row in rows if row.result.outcome in FAILURES]
            for line in shrink_all(failing, args.shrink, Path(folder), args.limit):
                print(line, flush=True)
    if args.json:
        table = [
            {"seed": r.job.seed, "way": str(r.way), "theme": r.theme, **asdict(r.result), "kind": kind_of(r)}
            for r in rows
        ]
        args.json.write_text(json.dumps({"rows": table, "coverage": coverage(rows)}, indent=1))
    return int(any(row.result.outcome in FAILURES for row in rows))


if __name__ == "__main__":
    sys.exit(main())
