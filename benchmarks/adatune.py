"""AdaTune's ablation (section 5.3, figures 9 and 11): what each of its parts brings, in equal time.

`XGB+SA+DE`: boosted trees, annealing and a fixed number of runs, as AutoTVM; then a random forest with expected
improvement (`RFEI`), contextual annealing (`CSA`) and adaptive measuring (`AE`), one after the other; and `XGB+SA+AE`,
which the paper does not have: the last of these parts alone.

The first makes so many trials; the others as many as they can until its time has passed. Time is that of proposing,
building and measuring a search's own candidates. As in the paper (section 5.1), measuring is 500 runs of each
candidate, and of the adaptive searches two micro-batches of 50 or more, until the coefficient of variation is below
10 %. How good a candidate is in truth is measured apart, in one way for all. Spaces are those of `benchmarks.study`.

`needed`: seconds until a search is as good as the first one at its end; `faster`: how many times sooner that is than
the first one was, seed by seed; `by medians`: the same of the medians of the seeds, which are the curves of figure 11;
`measuring`: the share of the time that it takes.

`python -m benchmarks.adatune [LAYER ...] [--trials N] [--seeds N] [--json]`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf

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
    """What one variant's searches come to, beside the first one's of equal seeds."""
    pairs = list(zip(own, first, strict=True))
    needed, before = (
        [first_below(pair[place].best, float(pair[1].best[-1]), pair[place].clock) for pair in pairs]
        for place in (0, 1)
    )
    end = [float(s.best[-1] / f.best[-1]) for s, f in pairs]
    faster = [b / n for b, n in zip(before, needed, strict=True)]
    count, measuring = (float(np.median(values)) for values in ([len(s.best) for s in own], [s.measuring for s in own]))
    reached, was = _medians(own, first)
    return Row(layer, name, count, middle(end), middle(needed), middle(faster), was / reached, measuring)


def _medians(own: Sequence[Search], first: Sequence[Search]) -> tuple[float, float]:
    """Seconds after which the median of some searches, and that of the first, is as good as the first's at its end."""
    axis = np.unique(np.concatenate([search.clock for search in (*own, *first)]))
    curves = [np.median([_until(search, axis) for search in searches], axis=0) for searches in (own, first)]
    reached, was = (first_below(curve, curves[1][-1], axis) for curve in curves)
    return reached, was


def _until(found: Search, axis: NDArray[np.float64]) -> NDArray[np.float64]:
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", default=["C8", "C11"], help="default: %(default)s")
    parser.add_argument("--trials", type=int, default=96, help="of the first search (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    check_names(parser, arguments.layers, operators())
    rows: list[Row] = []
    with Evaluator(MACHINE, build_limit=BUILD_LIMIT, run_limit=RUN_LIMIT) as evaluator:
        for layer in arguments.layers:
            rows += ablation(layer, evaluator, arguments.trials, arguments.seeds)
    if arguments.json:
        settings = {"machine": machine(MACHINE), "trials": arguments.trials, "seeds": arguments.seeds}
        print(stored({**settings, "rows": [asdict(each) for each in rows]}))
    else:
        show(rows, arguments.trials, arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
