"""The tuner: what strategies find in equal numbers of trials, how many trials a second, and whole models after tuning.

`layers`: the main kernel of single layers, by each strategy and seed on the same machine in turn. Reported are the best
time after 16, 32, 64, … trials relative to the best of the same search at its end, failed trials, and trials a
second. Times within a search are free of the machine's drift as far as the search can take it out (`tune/session.py`);
"best / default" is measured in turns at the end of each search.

`models`: whole models tuned for `--tuning-seconds`, then against their untuned selves, onnxruntime and OpenVINO.

`throughput`: candidates compiled, checked and measured a second, by stage, and the seconds of one proposal.

`python -m benchmarks.tune layers [LAYER ...] [--trials N] [--strategies A,B] [--seeds N] [--json]`
`python -m benchmarks.tune models [MODEL ...] [--tuning-seconds S] [--json]`
`python -m benchmarks.tune throughput [LAYER ...] [--trials N] [--json]`
"""

import argparse
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import harness, layers, models, throughput
from benchmarks.gather import main_kernel
from benchmarks.operators import operators
from benchmarks.provenance import stored
from burnish.driver.compilation import import_graph
from burnish.driver.tuned import BUILD_LIMIT, tune_model
from burnish.machines.target import host
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error
from burnish.tune.evaluate import Evaluator
from burnish.tune.records import RecordFile
from burnish.tune.session import Session, Tune
from burnish.tune.tasks import TuningTask

STRATEGIES = ("burnish", "random", "genetic")


@dataclass(frozen=True)
class Search:
    """One search: `best` after 1, 2, … trials in seconds, by its own measurements; `final`: of its best candidate over
    that of the default, in turns (1 if the default is its best).
    """

    layer: str
    strategy: str
    seed: int
    best: tuple[float, ...]
    failed: int
    trials_per_second: float
    final: float
    candidate: str

    def after(self, trials: int) -> float:
        """Best time after a number of trials over the best of the search."""
        return self.best[min(trials, len(self.best)) - 1] / self.best[-1]


def search(layer: str, task: TuningTask, strategy: str, seed: int, trials: int, evaluator: Evaluator) -> Search:
    """One search from nothing."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Tune(seconds=None, trials=trials, min_gain=0.0, strategy=strategy, seed=seed)
        outcome = Session([task], RecordFile(Path(folder) / "records.jsonl"), evaluator, settings).run()
    (kernel,) = outcome.kernels
    costs = np.array(kernel.tuner.costs)
    final = kernel.confirmed.ratio if kernel.confirmed else 1.0
    best = tuple(np.minimum.accumulate(costs).tolist())
    rate = kernel.tried / kernel.spent
    return Search(layer, strategy, seed, best, int(np.isinf(costs).sum()), rate, final, str(kernel.tuner.best))


def search_layers(
    names: Sequence[str], strategies: Sequence[str], seeds: int, trials: int, quiet: bool
) -> list[Search]:
    """Every layer by every strategy from every seed; the strategies take turns."""
    found = []
    with Evaluator(build_limit=BUILD_LIMIT) as evaluator:
        for name in track(names, "layers", disable=quiet, transient=True):
            task = main_kernel(operators()[name])
            for seed in range(seeds):
                found += [search(name, task, strategy, seed, trials, evaluator) for strategy in strategies]
    return found


def show_searches(found: Sequence[Search], trials: int) -> None:
    """A row for each layer and strategy: medians over the seeds."""
    steps = [n for n in (16, 32, 64, 128, 256, 512, 1024) if n <= trials]
    columns = ("layer", "strategy", *(f"after {n}" for n in steps), "best / default", "failed", "trials/s")
    table = Table(*columns, title="Tuning")
    for key in dict.fromkeys((s.layer, s.strategy) for s in found):
        own = [s for s in found if (s.layer, s.strategy) == key]
        curve = [f"{np.median([s.after(n) for s in own]):.3f}" for n in steps]
        final = f"{np.median([s.final for s in own]):.3f}"
        failed, rate = np.median([s.failed for s in own]), np.median([s.trials_per_second for s in own])
        table.add_row(*key, *curve, final, f"{failed:.0f}", f"{rate:.1f}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def measure_model(name: str, threads: int, tuning_seconds: float, seconds: float) -> harness.Row:
    """A model after tuning from nothing, against the peers. The note has the time over that of the untuned model."""
    path = models.build(name)
    inputs = models.inputs(name, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        graph, settings = import_graph(str(path)), Tune(seconds=tuning_seconds, min_gain=0.002)
        tuned = tune_model(graph, settings, Path(folder) / "records.jsonl", target=host(), threads=threads)
    runs = {peer: peers.prepare(peer, path, threads) for peer in harness.PEERS}
    runs = {"burnish": peers.compiled(tuned.module), **runs}
    error = scaled_error(runs["burnish"](inputs), runs[harness.ORACLE](inputs))
    row = harness.compare(name, "tuned", {c: partial(run, inputs) for c, run in runs.items()}, seconds, error)
    gain, done = tuned.gain, tuned.outcome
    kept = "kept" if gain.second_wins else "untuned kept"
    note = f"{gain.ratio:.3f} of untuned ({gain.low:.3f} to {gain.high:.3f}), {kept}; "
    return replace(row, note=note + f"{done.trials} trials in {done.seconds:.0f} s, {done.stop_reason}")


def show_throughput(names: Sequence[str], trials: int, as_json: bool) -> int:
    """One session for each layer."""
    found = [throughput.throughput(name, main_kernel(operators()[name]), trials) for name in names]
    if as_json:
        cpu = platform.processor() or platform.machine()
        sessions = [{**asdict(each), "candidates_per_second": each.rate} for each in found]
        print(stored({"cpu": cpu, "trials": trials, "sessions": sessions}))
    else:
        throughput.show(found)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", nargs="?", choices=("layers", "models", "throughput"), default="layers")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tuning-seconds", type=float, default=180.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    if arguments.section == "models":
        names = harness.chosen(arguments, parser, models.names())
        rows = [measure_model(n, arguments.threads, arguments.tuning_seconds, arguments.seconds) for n in names]
        return harness.show("Tuned models", rows, arguments.json, unit="ms")
    if arguments.section == "throughput":
        arguments.names = arguments.names or ["C2"]
        names = harness.chosen(arguments, parser, list(layers.LAYERS))
        return show_throughput(names, arguments.trials, arguments.json)
    names = harness.chosen(arguments, parser, list(layers.LAYERS))
    strategies = arguments.strategies.split(",")
    found = search_layers(names, strategies, arguments.seeds, arguments.trials, arguments.json)
    if arguments.json:
        cpu = platform.processor() or platform.machine()
        print(stored({"cpu": cpu, "trials": arguments.trials, "searches": [asdict(s) for s in found]}))
    else:
        show_searches(found, arguments.trials)
    return 0


if __name__ == "__main__":
    sys.exit(main())
