"""Number of trials that tuning needs: Burnish's strategy against random search, in its own spaces; and its stop rule.

Two random searches are its measure. `random` draws from all candidates alike, and 2,000 of those are measured, or all
there are. `by way` draws a way to compute the kernel first (a template with an algorithm), then a candidate of it, as
`search.space.Union` does: ways with few candidates are soon exhausted. Of each way `--each` random candidates are
measured for it. Every seed draws those measured in another order. The strategy searches in two ways: `burnish`, as it
ships, from the templates' choices on and with the model that comes with Burnish, which was trained on other operators
(`benchmarks.gather` leaves those of the tables out); and `unprimed`, without either. Every search makes 64 trials, and
the first of `burnish` more. A candidate is measured once, whichever search asks for it first. Then the fastest are
measured anew, in turns, since the lowest of many times is lower than it should be: curves are by these times.

`after`: the best of a search's first 64 trials over the best that was found at all, measured in pairs.
`needed`: trials until a search is as good as a random one of equal seed after 1,000, within 1 %, about the
resolution; for both kinds of random search, and of these themselves. One that never is counts one trial more.
`stop rule`: what `tune/remaining_gain.py` expects of as many trials again, after 16 and 32 of `burnish`, of its longest
searches after 64, … too; and what they brought.

`python -m benchmarks.trials [OPERATOR ...] [--random N] [--each N] [--longest N] [--seeds N] [--json]`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import inf

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.gather import main_kernel
from benchmarks.harness import check_names
from benchmarks.layers import LAYERS
from benchmarks.operators import operators
from benchmarks.oracle import Oracle
from benchmarks.provenance import stored
from benchmarks.study import first_below, middle
from burnish.driver.tuned import BUILD_LIMIT
from burnish.machines.target import host
from burnish.tune.evaluate import Evaluator, KernelTrial
from burnish.tune.models.base import CostModel
from burnish.tune.pretrained import shipped
from burnish.tune.records import machine
from burnish.tune.remaining_gain import mixture_forecast
from burnish.tune.strategy import BURNISH, TuningStrategy
from burnish.tune.tasks import TuningTask
from burnish.tune.tuner import Tuner, defaults

SHORT = 64  # trials of a search
BAR, ALIKE = 1000, 1.01  # random trials whose best is to be reached, within this
WHOLE = 300  # candidates that are all measured
POOL = 64  # random candidates that are built together
STRATEGIES: Mapping[str, TuningStrategy] = {
    "burnish": BURNISH, "unprimed": BURNISH.with_(transfer=False, informed=False),
}  # fmt: skip
STOPS = (0.1, 0.05, 0.02, 0.01, 0.005, 0.0)  # expected gains between which forecasts are counted together


@dataclass(frozen=True)
class Sizes:
    """Sizes of the study: `random` candidates of all, `each` of every way; trials of the `longest` search; seeds."""

    random: int
    each: int
    longest: int
    seeds: int


@dataclass(frozen=True)
class Tried:
    """Measurements of one kernel: settled `seconds` by the key of a candidate, and the keys that searches tried in
    turn, by strategy and seed. `ways`: the number of candidates of each way to compute it. Those measured for random
    search: `drawn` from all, and `apart` from each way. `pairs`: of those that are a search's best after SHORT, the
    time over that of the best of all, measured in turns: ratio, and the ends of its interval.
    """

    layer: str
    ways: Sequence[int]
    seconds: Mapping[int, float]
    searches: Mapping[str, Sequence[Sequence[int]]]
    drawn: Sequence[int]
    apart: Sequence[Sequence[int]]
    pairs: Mapping[int, tuple[float, float, float]]

    def best(self, keys: Iterable[int]) -> int:
        """The fastest of candidates."""
        return min(keys, key=self.seconds.__getitem__)

    def curve(self, keys: Sequence[int]) -> NDArray[np.float64]:
        """The best so far after 1, 2, … of the candidates."""
        return np.minimum.accumulate([self.seconds[key] for key in keys])

    def random(self, seed: int) -> list[int]:
        """A random search of BAR trials, or of all there are, over all candidates."""
        order: list[int] = np.random.default_rng(seed).permutation(self.drawn).tolist()
        return order[:BAR]

    def by_way(self, seed: int) -> list[int]:
        """Random searches as `random`, way by way. What is measured of a large way is drawn repeatedly."""
        random = np.random.default_rng(seed)
        orders = [random.permutation(keys).tolist() for keys in self.apart]
        found: list[int] = []
        taken = [0] * len(orders)
        while len(found) < min(BAR, sum(self.ways)):
            way = int(random.integers(len(orders)))
            if taken[way] < self.ways[way]:
                found.append(orders[way][taken[way] % len(orders[way])])
                taken[way] += 1
        return found


def try_kernel(layer: str, task: TuningTask, evaluator: Evaluator, prior: CostModel, sizes: Sizes) -> Tried:
    """Measures one kernel's random candidates, and what the searches propose."""
    space, oracle = task.space.space, Oracle(task, evaluator)
    ways = [alternative.space.size for alternative in task.space.alternatives]
    drawn, apart = sample(0, space.size, sizes.random), []
    for first, size in zip(np.cumsum([0, *ways]).tolist(), ways, strict=False):
        apart.append(sample(first, size, sizes.each))
    keys = np.random.default_rng(0).permutation(list({key for own in (drawn, *apart) for key in own}))
    for start in range(0, len(keys), POOL):
        oracle.ask(space.at(keys[start : start + POOL]))
    searches: dict[str, list[list[int]]] = {name: [] for name in STRATEGIES}
    for seed, (name, strategy) in product(range(sizes.seeds), STRATEGIES.items()):
        tuner = Tuner(task.space, strategy, seed, prior)
        go_on(tuner, oracle, sizes.longest if (name, seed) == ("burnish", 0) else SHORT)
        searches[name].append(space.keys(tuner.points).tolist())
    oracle.settle(within=1.1, least=12, most=200, rounds=9)
    seconds = {key: oracle.scale * known.seconds for key, known in oracle.known.items()}
    tried = Tried(layer, ways, seconds, searches, drawn, apart, {})
    best = tried.best(tried.seconds)
    contenders = {tried.best(own[:SHORT]) for found in searches.values() for own in found} - {best}
    compared = {key: evaluator.compare(_trial(oracle, best), _trial(oracle, key)) for key in contenders}
    pairs = {key: (made.ratio, made.low, made.high) for key, made in compared.items()}
    return replace(tried, pairs={best: (1.0, 1.0, 1.0), **pairs})


def sample(first: int, size: int, count: int) -> list[int]:
    """Random keys, as many as asked for, of the `size` ones from `first` on; all if there are not many more."""
    chosen = np.random.default_rng(0).choice(size, count, replace=False) if size > max(WHOLE, count) else range(size)
    return [first + int(key) for key in chosen]


def go_on(tuner: Tuner, oracle: Oracle, trials: int) -> None:
    """Continues a search up to `trials`; the defaults come first and alone, as in a session."""
    batch = tuner.strategy.batch
    while len(tuner.costs) < trials and not tuner.exhausted:
        first = tuner.strategy.informed and not tuner.costs
        points = defaults(tuner.space) if first else tuner.propose(min(batch, trials - len(tuner.costs)))
        tuner.observe(points, [known.seconds for known in oracle.ask(points)])


def _trial(oracle: Oracle, key: int) -> KernelTrial:
    return oracle.trial(oracle.task.space.space.at(np.array([key]))[0])


@dataclass(frozen=True)
class Kernel:
    """Results on one kernel, by strategy: medians over the seeds, with the least and the most. `size`: its candidates,
    of which `measured` were measured; `best`: seconds. `needed`: by the random search that is to be equalled.
    """

    layer: str
    size: int
    measured: int
    best: float
    after: dict[str, tuple[float, float, float]]
    needed: dict[str, dict[str, tuple[float, float, float]]]


def kernel(tried: Tried) -> Kernel:
    """Results of the searches on a kernel."""
    least = tried.seconds[tried.best(tried.seconds)]
    after = {n: middle([tried.pairs[tried.best(own[:SHORT])][0] for own in f]) for n, f in tried.searches.items()}
    seeds = range(max(map(len, tried.searches.values())))
    needed = {}
    for reference, draw in (("random", tried.random), ("by way", tried.by_way)):
        chance = [draw(seed) for seed in seeds]
        bars = [ALIKE * tried.curve(own)[-1] for own in chance]
        needed[reference] = {
            name: middle([reached(tried.curve(own), bar) for own, bar in zip(found, bars, strict=False)])
            for name, found in {**tried.searches, reference: chance}.items()
        }
    return Kernel(tried.layer, sum(tried.ways), len(tried.seconds), least, after, needed)


def reached(curve: NDArray[np.float64], bar: float) -> float:
    """After how many trials a curve comes to the bar."""
    return first_below(curve, bar, np.arange(1.0, len(curve) + 1))


@dataclass(frozen=True)
class Calibration:
    """Forecasts between `above` and `below`: how many, their mean, the mean of what came, and the shares of searches to
    which no more came than expected, and than `below`.
    """

    above: float
    below: float
    count: int
    expected: float
    came: float
    within: float
    under: float


def calibration(every: Sequence[Tried]) -> list[Calibration]:
    """Calibration of the stop rule: the gain it expects of as many trials again against their outcome, all searches."""
    pairs = []
    for tried in every:
        for own in tried.searches["burnish"]:
            curve, costs = tried.curve(own), [tried.seconds[key] for key in own]
            kinds = np.searchsorted(np.cumsum(tried.ways), own, side="right").tolist()
            for trials in (16, 32, 64, 128, 256):
                left = mixture_forecast(costs[:trials], kinds[:trials], tried.ways)
                if 2 * trials <= len(own) and left is not None:
                    pairs.append((left.gain(trials), 1.0 - curve[2 * trials - 1] / curve[trials - 1]))
    expected, came = np.array(pairs).reshape(-1, 2).T
    found = []
    for below, above in zip((inf, *STOPS), STOPS, strict=False):
        between = (expected >= above) & (expected < below)
        if between.any():
            means = [float(n[between].mean()) for n in (expected, came, came <= expected, came < below)]
            found.append(Calibration(above, below, int(between.sum()), means[0], means[1], means[2], means[3]))
    return found


def show(found: Sequence[Kernel], calibrated: Sequence[Calibration], seeds: int) -> None:
    """Two tables."""
    console = Console(width=None if sys.stdout.isatty() else 200)
    searches = [f"{name} after {SHORT}" for name in found[0].after]
    title = f"Trials; medians (least to most) of {seeds} seeds"
    table = Table("operator", "candidates", "measured", "best, µs", *searches, title=title)
    for each in found:
        after = ["{:.3f} ({:.3f} to {:.3f})".format(*own) for own in each.after.values()]
        table.add_row(each.layer, str(each.size), str(each.measured), f"{1e6 * each.best:.1f}", *after)
    console.print(table)
    for reference in found[0].needed:
        title = f"Trials to be as good as '{reference}' after {BAR}"
        table = Table("operator", *found[0].needed[reference], title=title)
        for each in found:
            table.add_row(
                each.layer, *("{:.0f} ({:.0f} to {:.0f})".format(*n) for n in each.needed[reference].values())
            )
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
    parser.add_argument("--random", type=int, default=2000, help="random candidates (default: %(default)s)")
    parser.add_argument("--each", type=int, default=120, help="and of each way (default: %(default)s)")
    parser.add_argument("--longest", type=int, default=256, help="trials of the longest search (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    every = operators()
    check_names(parser, arguments.operators, every)
    sizes = Sizes(arguments.random, arguments.each, arguments.longest, arguments.seeds)
    prior = shipped(host())
    with Evaluator(build_limit=BUILD_LIMIT) as evaluator:
        tried = [
            try_kernel(name, main_kernel(every[name]), evaluator, prior, sizes)
            for name in track(arguments.operators, "operators", disable=arguments.json, transient=True)
        ]
    found, calibrated = [kernel(each) for each in tried], calibration(tried)
    if arguments.json:
        settings = {"machine": machine(host()), **asdict(sizes)}
        rows = {"kernels": [asdict(each) for each in found], "stop rule": [asdict(each) for each in calibrated]}
        print(stored({**settings, **rows}))
    else:
        show(found, calibrated, arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
