"""``python -m tests.conformance``: the standard's backend tests, counted by outcome, and refusals by reason."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.conformance.cases import OUTCOMES, Outcome, standard_cases
from tests.conformance.processes import run_cases


def main() -> int:
    """Runs the cases asked for; the exit code is 1 if one is wrong, crashes or hangs."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("names", nargs="*", help="names of tests, or regular expressions found in them; none: all")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of one test")
    parser.add_argument("--verbose", action="store_true", help="print every test that is not right")
    parser.add_argument("--definitions", action="store_true", help="evaluate definitions, without compiled kernels")
    parser.add_argument("--known", action="store_true", help="give values that must be known as constants")
    arguments = parser.parse_args()
    names = [n for n in standard_cases() if not arguments.names or any(re.search(p, n) for p in arguments.names)]
    how = {"definitions": arguments.definitions, "known": arguments.known}
    outcomes = []
    for outcome in run_cases(names, arguments.jobs, arguments.seconds, **how):
        outcomes.append(outcome)
        print(f"\r{len(outcomes)} of {len(names)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    report(outcomes, arguments.verbose)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1), encoding="utf-8")
    return int(any(o.kind not in ("right", "refused") for o in outcomes))


def report(outcomes: list[Outcome], verbose: bool) -> None:
    """Prints counts, refusals by reason, and what is neither right nor refused."""
    counts = Counter(o.kind for o in outcomes)
    print(", ".join(f"{counts[kind]} {kind}" for kind in OUTCOMES), f"of {len(outcomes)}")
    reasons = Counter(summary(o.reason) for o in outcomes if o.kind == "refused")
    for reason, count in reasons.most_common():
        print(f"{count:5d}  {reason}")
    for o in sorted(outcomes, key=lambda o: o.name):
        if o.kind in ("wrong", "crash", "hang") or (verbose and o.kind == "refused"):
            print(f"{o.kind}: {o.name}: {o.reason[:300]}")


def summary(reason: str) -> str:
    """A refusal without the names and numbers that only one case has."""
    reason = re.sub(r"^node '[^']*' ", "node ", reason.split("\n")[0])
    if "operators that are not supported" in reason:
        reason = re.sub(r" \((?:[^()]|\([^()]*\))*\)", "", reason)
    return re.sub(r"'[^']*', computed at run time", "a value, computed at run time", reason)[:160]


if __name__ == "__main__":
    raise SystemExit(main())
