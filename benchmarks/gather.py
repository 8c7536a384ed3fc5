"""Measurements for the model that ships: candidates of many operators, tried on this machine, added to records.

Of every operator of `benchmarks.operators` but those of the tables, by which tuners are judged, some candidates are
tried, near the default and at random, then some that a search proposes, and so again. Weights come from memory, as in a
model. Run it as often as you like: each run goes on where the last one ended, and ends by itself after `--seconds`.

`python -m benchmarks.gather RECORDS [--target T] [--seconds S] [--seed N]`, then `burnish records train RECORDS`
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import onnx

from benchmarks.layers import LAYERS
from benchmarks.operators import SQUARE, Make, operators
from burnish.driver.compilation import import_graph
from burnish.driver.tuned import BUILD_LIMIT
from burnish.graph.passes import optimize
from burnish.machines.target import Target, host, target
from burnish.runtime.pool import available_cores
from burnish.tune.evaluate import Evaluator
from burnish.tune.records import Record, RecordFile, machine
from burnish.tune.session import Session, Tune
from burnish.tune.strategy import BURNISH, RANDOM
from burnish.tune.tasks import TuningTask, tuning_tasks

OTHERS = tuple(name for name in operators() if name not in (*LAYERS, SQUARE.name))
NEAR = BURNISH.with_(name="near", initial=1 << 30, transfer=False)  # steps from the best so far, and random ones
ALONE = BURNISH.with_(transfer=False)
# In turn: strategies, and the number of trials at which each ends.
STAGES = ((NEAR, 16), (RANDOM, 24), (ALONE, 40), (RANDOM, 64), (ALONE, 96))


def main_kernel(make: Make, on: Target | None = None) -> TuningTask:
    """The kernel of an operator that has the most work, on this machine if no other is named."""
    graph = optimize(import_graph(onnx.load_from_string(make())), exact=False)
    return max(tuning_tasks(graph, on or host(), exact=False), key=lambda task: task.flops)


def tried(records: RecordFile, threads: int, cold: bool = True, on: Target | None = None) -> dict[str, list[Record]]:
    """Measured candidates of this machine, by kernel."""
    found: dict[str, list[Record]] = {}
    for each in records.all():
        if (each.target, each.threads, each.cold, each.won) == (machine(on or host()), threads, cold, False):
            found.setdefault(each.kernel, []).append(each)
    return found


def gather(path: Path, on: Target, seconds: float, seed: int) -> int:
    """Number of trials added within the seconds."""
    records, began, added = RecordFile(path), time.monotonic(), 0
    tasks: dict[str, TuningTask] = {}
    makes = operators()
    with Evaluator(on, cold=True, build_limit=BUILD_LIMIT) as evaluator:
        for strategy, trials in STAGES:
            for name in OTHERS:
                left = seconds - (time.monotonic() - began)
                if left <= 0:
                    return added
                task = tasks[name] = tasks.get(name) or main_kernel(makes[name], on)
                known = tried(records, evaluator.threads, on=on).get(task.key, ())
                missing = min(trials, task.space.size) - len(known)
                if missing > 0:
                    settings = Tune(left, missing, 0.0, seed=seed)
                    added += Session([task], records, evaluator, settings, strategy=strategy).run().trials
    return added


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--target", default="cpu", help="such as cpu,-amx (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    on = target(arguments.target)
    added = gather(arguments.records, on, arguments.seconds, arguments.seed)
    kernels = tried(RecordFile(arguments.records), available_cores(), on=on)
    print(f"{arguments.records}: {added} trials added; {sum(map(len, kernels.values()))} of {len(kernels)} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
