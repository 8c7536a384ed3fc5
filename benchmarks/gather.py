"""Measurements to learn from: candidates of many operators, tried on this machine, added to a file of records.

Of every operator of `benchmarks.operators` some candidates are tried, near the default and at random, then some that a
search proposes; of those of the transfer study (`benchmarks.ablation`) more. Weights come from memory, as in a model.
Run it as often as you like: each run goes on where the last one ended, and ends by itself after so many seconds.

`python -m benchmarks.gather RECORDS [--seconds S] [--seed N]`, then `burnish records train RECORDS`
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import onnx

from benchmarks.operators import Make, operators
from burnish.compiler import import_graph
from burnish.graph.passes import optimize
from burnish.runtime.pool import available_cores
from burnish.target import host
from burnish.tune.evaluate import Evaluator
from burnish.tune.records import Record, Records, machine
from burnish.tune.session import Session, Tune
from burnish.tune.strategy import BURNISH, RANDOM
from burnish.tune.tasks import TuningTask, tuning_tasks
from burnish.tuning import BUILD_LIMIT

SOURCES = ("C1", "C2", "C3", "C4", "C5", "C6")  # of the transfer study,
TARGETS = ("C7", "C8", "C9", "P1024")  # and what is to be learned faster for knowing them
ALL, STUDY = None, (*SOURCES, *TARGETS)
NEAR = BURNISH.with_(name="near", initial=1 << 30, transfer=False)  # steps from the best so far, and random ones
ALONE = BURNISH.with_(transfer=False)
STAGES = ((STUDY, NEAR, 48), (TARGETS, ALONE, 80), (ALL, NEAR, 16), (ALL, RANDOM, 20), (ALL, ALONE, 36))
"""In turn: which operators, by which strategy, until each has so many trials."""


def main_kernel(make: Make) -> TuningTask:
    """The kernel of an operator that has the most work."""
    graph = optimize(import_graph(onnx.load_from_string(make())), exact=False)
    return max(tuning_tasks(graph, host(), exact=False), key=lambda task: task.flops)


def tried(records: Records, threads: int, cold: bool = True) -> dict[str, list[Record]]:
    """What was tried on this machine, by kernel."""
    found: dict[str, list[Record]] = {}
    for each in records.all():
        if (each.target, each.threads, each.cold, each.won) == (machine(host()), threads, cold, False):
            found.setdefault(each.kernel, []).append(each)
    return found


def gather(path: Path, seconds: float, seed: int) -> int:
    """Trials added in so many seconds."""
    records, began, added = Records(path), time.monotonic(), 0
    tasks: dict[str, TuningTask] = {}
    with Evaluator(cold=True, build_limit=BUILD_LIMIT) as evaluator:
        for chosen, strategy, trials in STAGES:
            for name, make in operators(seed).items():
                if chosen is not ALL and name not in chosen:
                    continue
                task = tasks[name] = tasks.get(name) or main_kernel(make)
                missing = min(trials, task.space.size) - len(tried(records, evaluator.threads).get(task.key, ()))
                left = seconds - (time.monotonic() - began)
                if left <= 0:
                    return added
                if missing > 0:
                    settings = Tune(left, missing, 0.0, seed=seed)
                    added += Session([task], records, evaluator, settings, strategy=strategy).run().trials
    return added


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    added = gather(arguments.records, arguments.seconds, arguments.seed)
    kernels = tried(Records(arguments.records), available_cores())
    print(f"{arguments.records}: {added} trials added; {sum(map(len, kernels.values()))} of {len(kernels)} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
