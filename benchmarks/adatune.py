"""AdaTune's figures: the cost and the variance of measuring (2, 3), and an ablation of its parts (9, 10, 11).

`breakdown`: the shares of time of AutoTVM's search. `variance`: for random candidates, the deviation between means of
5 to 250 runs, and the coefficient of variation of single runs. `ablation` (section 5.3), in equal time:

`XGB+SA+DE`: boosted trees, annealing and a fixed number of runs, as AutoTVM; then a random forest with expected
improvement (`RFEI`), contextual annealing (`CSA`) and adaptive measuring (`AE`), one after the other; and `XGB+SA+AE`,
which the paper does not have: the last of these parts alone.

The first makes `--trials` trials; the others as many as they can until its time has passed. Time is that of proposing,
building and measuring a search's own candidates. As in the paper (section 5.1), measuring is 500 runs of each
candidate, and of the adaptive searches two micro-batches of 50 or more, until the coefficient of variation is below
10 %. How good a candidate is in truth is measured apart, in one way for all. Spaces are those of `benchmarks.study`.

`after`: the best after 8, 16, … 96 trials over the first search's best at its end (figure 10), median of the seeds.
`needed`: seconds until a search is as good as the first one at its end; `faster`: how many times sooner that is than
the first one was, seed by seed; `by medians`: the same of the medians of the seeds, which are the curves of figure 11;
`measuring`: the share of the time that it takes.

`python -m benchmarks.adatune [LAYER ...] [--only SECTION] [--trials N] [--seeds N] [--json]`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.harness import check_names
from benchmarks.operators import operators
from benchmarks.oracle import Apart, Oracle
from benchmarks.provenance import stored
from benchmarks.study import MACHINE, SEARCH, Search, first_below, kernel, middle, search
from burnish.driver.tuned import BUILD_LIMIT
from burnish.tune.evaluate import Evaluator
from burnish.tune.evaluate.stopping import Adaptive, Fixed, Rule
from burnish.tune.records import machine
from burnish.tune.strategy import ADATUNE, TuningStrategy
from burnish.tune.validation import trial_of

SECTIONS = ("breakdown", "variance", "ablation")
COUNTS = (5, 10, 25, 50, 100, 250)  # of runs whose mean is taken
AFTER = (8, 16, 24, 32, 48, 64, 96)  # trials
REPEATS, MICRO_BATCH = 500, 50  # runs of a candidate, or as many batches of quick ones
RUN_LIMIT = 20.0  # seconds; of candidates that take 40 ms
MOST = 8  # times the first search's trials, that another may make in its time
FIXED = Fixed(REPEATS)
STOPPING = Adaptive(variation=0.1, least=2 * MICRO_BATCH, most=REPEATS, enough_seconds=inf)
FOREST = SEARCH.with_(model=ADATUNE.model, acquisition="ei", rule=FIXED)
FIRST = "XGB+SA+DE"
VARIANTS: Mapping[str, TuningStrategy] = {
    FIRST: SEARCH.with_(rule=FIXED), "RFEI+SA+DE": FOREST, "RFEI+CSA+DE": FOREST.with_(share="contextual"),
    "RFEI+CSA+AE": FOREST.with_(share="contextual", rule=STOPPING), "XGB+SA+AE": SEARCH.with_(rule=STOPPING),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A variant on a layer, medians over the seeds with the least and the most. `end`: its best over the first's.

    `by_medians`: how many times sooner the median of its seeds is as good as that of the first's at its end.
    """

    layer: str
    variant: str
    trials: float
    end: tuple[float, float, float]
    needed: tuple[float, float, float]
    faster: tuple[float, float, float]
    by_medians: float
    measuring: float
    after: dict[int, float]


@dataclass(frozen=True)
class Share:
    """Shares of a search's seconds."""

    layer: str
    seconds: float
    proposing: float
    building: float
    measuring: float


@dataclass(frozen=True)
class Spread:
    """Runs of candidates: `deviation` of a run from the mean of `count`, and of these means from each other, over the
    mean; medians of the candidates with the least and the most.
    """

    layer: str
    count: int
    deviation: tuple[float, float, float]
    of_means: tuple[float, float, float]


def breakdown(layer: str, evaluator: Evaluator, trials: int) -> Share:
    """Breakdown of the time of the first variant's search."""
    found = search(VARIANTS[FIRST], 0, trials, Apart(kernel(layer), evaluator, FIXED))
    rest = 1 - found.building - found.measuring
    return Share(layer, float(found.clock[-1]), rest, found.building, found.measuring)


def variance(layer: str, evaluator: Evaluator, candidates: int) -> list[Spread]:
    """Variation of runs of random candidates."""
    task = kernel(layer)
    evaluator.rule = FIXED
    points = task.space.space.sample(np.random.default_rng(0), candidates)
    trials = [trial_of(task.space.candidate(point)) for point in points]
    times = [evaluator.measure(*pair).times for pair in zip(trials, evaluator.build(trials), strict=True)]
    runs = [np.array(each) for each in times if len(each) == REPEATS]
    rows = []
    for count in COUNTS:
        groups = [each[: len(each) // count * count].reshape(-1, count) for each in runs]
        deviation = [float(np.median(g.std(axis=1) / g.mean(axis=1))) for g in groups]
        of_means = [float(g.mean(axis=1).std() / g.mean()) if len(g) > 1 else 0.0 for g in groups]
        rows.append(Spread(layer, count, middle(deviation), middle(of_means)))
    return rows


def ablation(layer: str, evaluator: Evaluator, trials: int, seeds: int) -> list[Row]:
    """All variants on one layer."""
    task = kernel(layer)
    oracles: dict[Rule, Oracle] = {rule: Apart(task, evaluator, rule) for rule in (FIXED, STOPPING)}
    judge = Oracle(task, evaluator)
    found: dict[str, list[Search]] = {name: [] for name in VARIANTS}
    for seed in track(range(seeds), layer, console=Console(stderr=True), transient=True):
        first = search(VARIANTS[FIRST], seed, trials, oracles[FIXED], judge=judge)
        end = float(first.clock[-1])
        found[FIRST].append(first)
        for name, strategy in VARIANTS.items():
            if name != FIRST:
                oracle = oracles[strategy.rule]
                found[name].append(search(strategy, seed, MOST * trials, oracle, judge=judge, seconds=end))
    return [row(layer, name, own, found[FIRST]) for name, own in found.items()]


def row(layer: str, name: str, own: Sequence[Search], first: Sequence[Search]) -> Row:
    """Results of one variant's searches against those of the first one with equal seeds."""
    pairs = list(zip(own, first, strict=True))
    needed, before = (
        [first_below(pair[place].best, float(pair[1].best[-1]), pair[place].clock) for pair in pairs]
        for place in (0, 1)
    )
    end = [float(s.best[-1] / f.best[-1]) for s, f in pairs]
    faster = [b / n for b, n in zip(before, needed, strict=True)]
    count, measuring = (float(np.median(values)) for values in ([len(s.best) for s in own], [s.measuring for s in own]))
    reached, was = _medians(own, first)
    after = {
        n: float(np.median([s.best[n - 1] / f.best[-1] for s, f in pairs]))
        for n in AFTER
        if all(len(s.best) >= n for s in own)
    }
    return Row(layer, name, count, middle(end), middle(needed), middle(faster), was / reached, measuring, after)


def _medians(own: Sequence[Search], first: Sequence[Search]) -> tuple[float, float]:
    """Seconds after which the median of some searches, and that of the first, is as good as the first's at its end."""
    axis = np.unique(np.concatenate([search.clock for search in (*own, *first)]))
    curves = [np.median([until(search, axis) for search in searches], axis=0) for searches in (own, first)]
    reached, was = (first_below(curve, curves[1][-1], axis) for curve in curves)
    return reached, was


def until(found: Search, axis: NDArray[np.float64]) -> NDArray[np.float64]:
    """A search's best so far at each of some moments; infinite before its first trial has ended."""
    ended = np.searchsorted(found.clock, axis, side="right")
    return np.concatenate([[inf], found.best])[ended]


def show(rows: Sequence[Row], trials: int, seeds: int) -> None:
    title = f"AdaTune's parts in the time of {trials} trials of {FIRST}; medians (least to most) of {seeds} seeds"
    table = Table("layer", "variant", "trials", "end", "needed, s", "faster", "by medians", "measuring", title=title)
    for each in rows:
        cells = ["{:.2f} ({:.2f} to {:.2f})".format(*values) for values in (each.end, each.needed, each.faster)]
        cells += [f"{each.by_medians:.2f}", f"{each.measuring:.0%}"]
        table.add_row(each.layer, each.variant, f"{each.trials:.0f}", *cells)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def show_shares(rows: Sequence[Share]) -> None:
    table = Table("layer", "seconds", "proposing", "building", "measuring", title=f"Time of {FIRST}'s search")
    for each in rows:
        table.add_row(
            each.layer, f"{each.seconds:.1f}", *(f"{v:.0%}" for v in (each.proposing, each.building, each.measuring))
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def show_spreads(rows: Sequence[Spread]) -> None:
    table = Table("layer", "runs", "of a run", "of means", title="Deviation over the mean, median (least to most)")
    for each in rows:
        cells = ("{:.1%} ({:.1%} to {:.1%})".format(*values) for values in (each.deviation, each.of_means))
        table.add_row(each.layer, str(each.count), *cells)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=["C8", "C11"], help="default: %(default)s")
    parser.add_argument("--only", choices=SECTIONS, default="ablation", help="(default: %(default)s)")
    parser.add_argument(
        "--trials", type=int, default=96, help="of the first search, or candidates (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    check_names(parser, arguments.layers, operators())
    with Evaluator(MACHINE, build_limit=BUILD_LIMIT, run_limit=RUN_LIMIT) as evaluator:
        rows: list[Any] = []
        for layer in arguments.layers:
            if arguments.only == "breakdown":
                rows.append(breakdown(layer, evaluator, arguments.trials))
            elif arguments.only == "variance":
                rows += variance(layer, evaluator, arguments.trials)
            else:
                rows += ablation(layer, evaluator, arguments.trials, arguments.seeds)
    if arguments.json:
        settings = {"machine": machine(MACHINE), "trials": arguments.trials, "seeds": arguments.seeds}
        print(stored({**settings, "section": arguments.only, "rows": [asdict(each) for each in rows]}))
    elif arguments.only == "breakdown":
        show_shares(rows)
    elif arguments.only == "variance":
        show_spreads(rows)
    else:
        show(rows, arguments.trials, arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
