"""How few trials tuning takes: Burnish's strategy beside random search, in Burnish's own spaces; and its stop rule.

Of each kernel so many random candidates are measured once; the order in which a random search comes by them is a random
permutation of them, another one for every seed. A space smaller than that is measured whole. The strategy searches in
two ways: `burnish`, as it ships, from the templates' choices on and with the model that comes with Burnish, which was
trained on some of these layers among others, on another machine; and `unprimed`, without either. Every search makes 64
trials and goes on, until it is as good as the best of the random candidates or has made 192; the first of `burnish`
goes on for longer. A candidate is measured once, whichever search asks for it first. Then the fastest are measured
anew, in turns, since the lowest of many times is lower than it should be: curves are by these times.

`after`: the best of a search's first 64 trials over the best that was found at all, measured in pairs.
`needed`: trials until a search is as good as random's best of 1,000 (of all, if there are fewer), within 1 %, about
what can be told apart; for `random` of its own order. A search that never is counts one trial more than it made.
`stop rule`: what `tune/gain.py` expects of as many trials again, after 16 and 32, of the longest searches after 64, …
too; and what they brought.

`python -m benchmarks.trials [OPERATOR ...] [--random N] [--longest N] [--seeds N] [--json]`
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.gather import main_kernel
from benchmarks.layers import LAYERS
from benchmarks.operators import operators
from benchmarks.oracle import Oracle
from benchmarks.study import middle
from burnish.runtime.comparison import Comparison
from burnish.search.walker import unseen
from burnish.target import host
from burnish.tune.evaluate import Evaluator, Trial
from burnish.tune.gain import forecast
from burnish.tune.models.base import CostModel
from burnish.tune.prior import load
from burnish.tune.records import machine
from burnish.tune.strategy import BURNISH, Strategy
from burnish.tune.tasks import TuningTask
from burnish.tune.tuner import Tuner, defaults
from burnish.tuning import BUILD_LIMIT

SHORT, LONG = 64, 192  # trials that are asked about; that a search makes at most
BAR = 1000  # random trials whose best is to be reached,
ALIKE = 1.01  # within this
STRATEGIES: Mapping[str, Strategy] = {
    "burnish": BURNISH, "unprimed": BURNISH.with_(transfer=False, informed=False),
}  # fmt: skip
STOPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.0)  # expected gains between which forecasts are counted together


@dataclass(frozen=True)
class Tried:
    """What was measured of one kernel: settled `seconds` by the key of a candidate, and the keys that searches tried in
    turn, by strategy and seed. `drawn`: those of the random candidates. `pairs`: of those that are a search's best
    after SHORT, the time over that of the best of all, measured in turns: ratio, and the ends of its interval."""

    layer: str
    size: int
    seconds: Mapping[int, float]
    searches: Mapping[str, Sequence[Sequence[int]]]
    drawn: Sequence[int]
    pairs: Mapping[int, tuple[float, float, float]]

    def best(self, keys: Sequence[int]) -> int:
        """The fastest of candidates."""
        return min(keys, key=self.seconds.__getitem__)

    def curve(self, keys: Sequence[int]) -> np.ndarray:
        """The best so far after 1, 2, … of the candidates."""
        return np.minimum.accumulate([self.seconds[key] for key in keys])


def try_kernel(
    layer: str, task: TuningTask, evaluator: Evaluator, prior: CostModel, drawn: int, longest: int, seeds: int
) -> Tried:
    """Measures one kernel's random candidates, and what the searches propose."""
    space, oracle = task.space.space, Oracle(task, evaluator, BURNISH.rule)
    points = unseen(space, np.random.default_rng(seeds), drawn)
    for first in range(0, len(points), BURNISH.batch):
        oracle.ask(points[first : first + BURNISH.batch])
    keys = space.keys(points).tolist()
    bar = min(oracle.known[key].seconds for key in keys)
    searches: dict[str, list[list[int]]] = {}
    for name, strategy in STRATEGIES.items():
        for seed in range(seeds):
            tuner = Tuner(task.space, strategy, seed, prior)
            go_on(tuner, oracle, SHORT, 0.0)
            go_on(tuner, oracle, LONG, bar)
            if name == "burnish" and seed == 0:
                go_on(tuner, oracle, longest, 0.0)
            searches.setdefault(name, []).append(space.keys(tuner.points).tolist())
    oracle.settle(within=1.1, most=40, rounds=9)
    tried = Tried(layer, task.space.size, {k: v.seconds for k, v in oracle.known.items()}, searches, keys, {})
    best = tried.best(list(tried.seconds))
    contenders = {tried.best(own[:SHORT]) for found in searches.values() for own in found} - {best}
    pairs = {key: _ends(evaluator.compare(_trial(oracle, best), _trial(oracle, key))) for key in contenders}
    return Tried(layer, tried.size, tried.seconds, searches, keys, {best: (1.0, 1.0, 1.0), **pairs})


def _trial(oracle: Oracle, key: int) -> Trial:
    return oracle.trial(oracle.task.space.space.at(np.array([key]))[0])


def _ends(found: Comparison) -> tuple[float, float, float]:
    return found.ratio, found.low, found.high


def go_on(tuner: Tuner, oracle: Oracle, trials: int, bar: float) -> None:
    """Goes on to so many trials, or to be as good as the bar; the defaults come first and alone, as in a session."""
    batch = tuner.strategy.batch
    while len(tuner.costs) < trials and tuner.seconds > bar and not tuner.exhausted:
        first = tuner.strategy.informed and not tuner.costs
        points = defaults(tuner.space) if first else tuner.propose(min(batch, trials - len(tuner.costs)))
        if not len(points):
            return
        tuner.observe(points, [known.seconds for known in oracle.ask(points)])


@dataclass(frozen=True)
class Kernel:
    """Of one kernel, by strategy: medians over the seeds, with the least and the most. `measured`: its candidates."""

    layer: str
    size: int
    measured: int
    best: float
    after: dict[str, tuple[float, float, float]]
    needed: dict[str, tuple[float, float, float]]


def kernel(tried: Tried) -> Kernel:
    """What the searches on a kernel come to."""
    least = tried.seconds[tried.best(list(tried.seconds))]
    after = {n: middle([tried.pairs[tried.best(own[:SHORT])][0] for own in f]) for n, f in tried.searches.items()}
    needed: dict[str, list[float]] = {name: [] for name in (*tried.searches, "random")}
    for seed in range(len(next(iter(tried.searches.values())))):
        order = np.random.default_rng(seed).permutation(tried.drawn)[:BAR].tolist()
        bar = ALIKE * tried.seconds[tried.best(order)]
        for name, keys in {**{n: found[seed] for n, found in tried.searches.items()}, "random": order}.items():
            there = np.flatnonzero(tried.curve(keys) <= bar)
            needed[name].append(float(there[0] + 1 if len(there) else len(keys) + 1))
    middles = {name: middle(values) for name, values in needed.items()}
    return Kernel(tried.layer, tried.size, len(tried.seconds), least, after, middles)


@dataclass(frozen=True)
class Calibration:
    """Forecasts between `above` and `below`: how many, their mean, the mean of what came, and the shares of searches to
    which no more came than expected, and than `below`."""

    above: float
    below: float
    count: int
    expected: float
    came: float
    within: float
    under: float


def calibration(every: Sequence[Tried]) -> list[Calibration]:
    """What the stop rule says of as many trials again, beside what these brought, over all searches that made them."""
    pairs = []
    for tried in every:
        for own in (own for found in tried.searches.values() for own in found):
            costs, curve = [tried.seconds[key] for key in own], tried.curve(own)
            for trials in (16, 32, 64, 128, 256):
                expected = forecast(costs[:trials])
                fair = own is tried.searches["burnish"][0] or 2 * trials <= SHORT  # others ended for what they found
                if fair and 2 * trials <= len(costs) and expected is not None:
                    pairs.append((expected.gain(trials), 1.0 - curve[2 * trials - 1] / curve[trials - 1]))
    expected, came = np.array(pairs).reshape(-1, 2).T
    found = []
    for below, above in zip((inf, *STOPS), STOPS, strict=False):
        own = (expected >= above) & (expected < below)
        if own.any():
            numbers = (expected, came, came <= expected, came < below)
            found.append(Calibration(above, below, int(own.sum()), *(float(n[own].mean()) for n in numbers)))
    return found


def show(found: Sequence[Kernel], calibrated: Sequence[Calibration], seeds: int) -> None:
    """Two tables."""
    names = list(found[0].needed)
    searches = list(found[0].after)
    headings = [*(f"{name} after {SHORT}" for name in searches), *(f"{name} needs" for name in names)]
    title = f"Trials; medians (least to most) of {seeds} seeds"
    table = Table("operator", "candidates", "measured", "best, µs", *headings, title=title)
    for each in found:
        after = ["{:.3f} ({:.3f} to {:.3f})".format(*each.after[name]) for name in searches]
        needed = ["{:.0f} ({:.0f} to {:.0f})".format(*each.needed[name]) for name in names]
        table.add_row(each.layer, str(each.size), str(each.measured), f"{1e6 * each.best:.1f}", *after, *needed)
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    headings = ["expected gain", "forecasts", "mean", "came", "at most expected", "below the end"]
    table = Table(*headings, title="Stop rule")
    for row in calibrated:
        span = f"{row.above:.1%} to {row.below:.1%}" if row.below < inf else f"over {row.above:.0%}"
        table.add_row(
            span, str(row.count), f"{row.expected:.2%}", f"{row.came:.2%}", f"{row.within:.0%}", f"{row.under:.0%}"
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", default=[*LAYERS, "P1024"], help="default: %(default)s")
    parser.add_argument("--random", type=int, default=1600, help="random candidates (default: %(default)s)")
    parser.add_argument("--longest", type=int, default=400, help="trials of the longest search (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    every = operators()
    unknown = set(arguments.operators) - set(every)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(every)}")
    prior, sizes = load(), (arguments.random, arguments.longest, arguments.seeds)
    with Evaluator(build_limit=BUILD_LIMIT) as evaluator:
        tried = [
            try_kernel(name, main_kernel(every[name]), evaluator, prior, *sizes)
            for name in track(arguments.operators, "operators", disable=arguments.json, transient=True)
        ]
    found, calibrated = [kernel(each) for each in tried], calibration(tried)
    if arguments.json:
        settings = {"machine": machine(host()), **{k: vars(arguments)[k] for k in ("random", "longest", "seeds")}}
        rows = {"kernels": [asdict(each) for each in found], "stop rule": [asdict(each) for each in calibrated]}
        print(json.dumps({**settings, **rows}))
    else:
        show(found, calibrated, arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
