"""The published studies of tuners, repeated: strategies that differ in one part, on one kernel, in equal trials.

`models`: boosted trees, TreeGRU, genetic and random search (AutoTVM, figure 5.4 of thesis-chen), and Burnish's own;
"x2" have two trials for each of the others'.
`objective`: ranking or regression (figure 5.5). `diversity`: how much a batch must cover (figure 5.6), chosen from 32
candidates for each place, and from two.
`uncertainty`: the mean, expected improvement or an upper bound by an ensemble of five (figure 5.7).
`epsilon`: the share of a batch that is chosen at random (AdaTune, figure 4), and one by its context (equation 3 there).

The space is that of `kernels/cpu/tiled.py`, which follows from any definition and is as large as those of the published
systems; templates of Burnish know more, and leave less to find. All searches begin at random. A candidate is measured
once, whichever search of whichever section asks for it first, so that equal candidates have equal costs. Reported is
the best so far over the best that any search on the layer has found, median and range of the seeds; and the trials that
a search needs to be as good as `random` at its end.

`python -m benchmarks.study SECTION[,SECTION ...]|all [LAYER ...] [--trials N] [--seeds N] [--json]`
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import inf

import numpy as np
import onnx
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.harness import check_names
from benchmarks.operators import operators
from benchmarks.oracle import Oracle
from benchmarks.provenance import stored
from burnish.driver.compilation import import_graph
from burnish.driver.tuned import BUILD_LIMIT
from burnish.graph.passes import optimize
from burnish.kernels.cpu.tiled_nests import TILED
from burnish.machines.target import target
from burnish.tune.evaluate import Evaluator
from burnish.tune.models.base import CostModel
from burnish.tune.models.trees import TreeModel
from burnish.tune.records import machine
from burnish.tune.space import Alternative, TuningSpace
from burnish.tune.strategy import (
    AUTOTVM,
    AUTOTVM_EI,
    AUTOTVM_UCB,
    BURNISH,
    GENETIC,
    RANDOM,
    TREEGRU,
    TuningStrategy,
)
from burnish.tune.tasks import TuningTask, tuning_tasks
from burnish.tune.tuner import Tuner

# A model learns as often in 160 trials as the published ones in 640, by batches of a quarter of their size.
SEARCH = AUTOTVM.with_(batch=16, initial=16, informed=False)
CHANCE = RANDOM.with_(batch=16, informed=False)
MACHINE = target("cpu,-amx")  # where all convolutions and products are sums of float32 products
EVOLVED = GENETIC.with_(batch=16, informed=False)
ENSEMBLE = SEARCH.with_(model=AUTOTVM_EI.model)
TIMES = {"random x2": 2, "genetic x2": 2}  # trials for each one of the other variants


SECTIONS: Mapping[str, Mapping[str, TuningStrategy]] = {
    "models": {
        "burnish": BURNISH.with_(transfer=False, informed=False), "trees": SEARCH,
        "TreeGRU": TREEGRU.with_(batch=16, initial=16, informed=False),
        "genetic": EVOLVED, "genetic x2": EVOLVED.with_(batch=32), "random x2": CHANCE.with_(batch=32),
        "random": CHANCE,
    },
    "objective": {
        "rank": SEARCH, "regression": SEARCH.with_(model=lambda seed: TreeModel("regression", seed=seed)),
        "random": CHANCE,
    },
    "diversity": {
        **{f"diversity {d:g}": SEARCH.with_(diversity=d) for d in (0.0, 0.25, 1.0, 4.0)},
        "diversity 1, of two": SEARCH.with_(candidates=2),
        "random": CHANCE,
    },
    "epsilon": {
        **{f"epsilon {share:g}": SEARCH.with_(share=share) for share in (0.01, 0.05, 0.2, 0.5)},
        "contextual": SEARCH.with_(share="contextual"), "random": CHANCE,
    },
    "uncertainty": {
        "mean": ENSEMBLE,
        **{each.acquisition: ENSEMBLE.with_(acquisition=each.acquisition) for each in (AUTOTVM_EI, AUTOTVM_UCB)},
        "random": CHANCE,
    },
}  # fmt: skip
REFERENCE = "random"


def kernel(layer: str) -> TuningTask:
    """The kernel of a layer that has the most work, by its definition and in the space that follows from it."""
    return most_work(onnx.load_from_string(operators()[layer]()))


def most_work(model: onnx.ModelProto) -> TuningTask:
    """The kernel of a model that has the most work, by its definition and in the space that follows from it."""
    graph = optimize(import_graph(model), exact=True)
    most = max(tuning_tasks(graph, MACHINE, exact=True), key=lambda task: task.flops)
    task = most.space.default.alternative.task
    return replace(most, space=TuningSpace([Alternative("tiled", task, TILED, TILED.on(task, MACHINE).space, MACHINE)]))


@dataclass(frozen=True)
class Search:
    """One search: after 1, 2, … trials the best candidate's `best` seconds, and what has passed of the `clock`.

    `measuring`, `building`: the shares of the clock's seconds that these took; proposing took the rest.
    """

    best: NDArray[np.float64]
    clock: NDArray[np.float64]
    measuring: float
    building: float


def search(
    strategy: TuningStrategy,
    seed: int,
    trials: int,
    oracle: Oracle,
    *,
    judge: Oracle | None = None,
    prior: CostModel | None = None,
    seconds: float = inf,
    timer: Callable[[], float] = time.perf_counter,
) -> Search:
    """Search by one strategy: at most `trials` trials, no batch of which begins after `seconds` of its clock.

    `judge` says what the best ones cost, if another should than says what candidates cost. `timer` times proposing.
    """
    tuner = Tuner(oracle.task.space, strategy, seed, prior)
    best: list[float] = []
    clock: list[float] = []
    passed, measuring, building, least, judged = 0.0, 0.0, 0.0, inf, inf
    while len(best) < trials and passed < seconds and not tuner.exhausted:
        began = timer()
        points = tuner.propose(min(strategy.batch, trials - len(best)))
        if not len(points):
            break
        proposing = (timer() - began) / len(points)
        found = oracle.ask(points)
        began = timer()
        tuner.observe(points, [known.seconds for known in found])
        proposing += (timer() - began) / len(points)
        for point, known in zip(points, found, strict=True):
            passed += proposing + known.building + known.measuring
            measuring += known.measuring
            building += known.building
            if known.seconds < least:
                least = known.seconds
                judged = min(judged, (judge or oracle).ask(point[None])[0].seconds)
            best.append(judged)
            clock.append(passed)
    return Search(np.array(best), np.array(clock), measuring / passed, building / passed)


def thinned(found: Search, times: int) -> Search:
    """Search that measures several candidates for each trial counted (the baselines "x2" of figure 5.4)."""
    return replace(found, best=found.best[times - 1 :: times], clock=found.clock[times - 1 :: times])


@dataclass(frozen=True)
class Row:
    """A variant of a section on a layer: medians over the seeds, with the least and the most.

    `after`: trials -> best so far over the best of the study. `needed`: trials to be as good as random at its end, one
    more than there were if it never is. `seconds`: of proposing, building and measuring.
    """

    section: str
    layer: str
    variant: str
    after: dict[int, tuple[float, float, float]]
    needed: tuple[float, float, float]
    seconds: float


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and most."""
    return float(np.median(values)), float(min(values)), float(max(values))


def first_below(curve: NDArray[np.float64], bar: float, axis: NDArray[np.float64]) -> float:
    """First position on the axis at which a falling curve reaches the bar."""
    there = np.flatnonzero(curve <= bar)
    return float(axis[there[0]]) if len(there) else float(axis[-1]) * (1 + 1 / len(axis))


def study(sections: Sequence[str], layer: str, evaluator: Evaluator, trials: int, seeds: int) -> list[Row]:
    """All variants of the sections on one layer; the order of a section's turns from seed to seed.

    A search that several sections have is done once.
    """
    oracle = Oracle(kernel(layer), evaluator)
    done: dict[tuple[TuningStrategy, int], Search] = {}
    for seed, section in product(range(seeds), sections):
        variants = list(SECTIONS[section].items())
        for name, strategy in variants[seed % len(variants) :] + variants[: seed % len(variants)]:
            if (strategy, seed) not in done:
                times = TIMES.get(name, 1)
                done[strategy, seed] = thinned(search(strategy, seed, times * trials, oracle), times)
    least = min(float(own.best[-1]) for own in done.values())
    rows = []
    for section in sections:
        own = {name: [done[strategy, seed] for seed in range(seeds)] for name, strategy in SECTIONS[section].items()}
        rows += [row(section, layer, name, found, own[REFERENCE], least) for name, found in own.items()]
    return rows


def row(section: str, layer: str, name: str, own: Sequence[Search], reference: Sequence[Search], least: float) -> Row:
    """Results of one variant's searches against those of the reference with equal seeds."""
    end = min(len(s.best) for s in own)
    steps = [*(n for n in (16, 32, 64, 128, 256, 512, 1024) if n < end), end]
    after = {n: middle([float(s.best[n - 1]) / least for s in own]) for n in steps}
    needed = [
        first_below(s.best, float(r.best[-1]), np.arange(1.0, len(s.best) + 1))
        for s, r in zip(own, reference, strict=True)
    ]
    return Row(section, layer, name, after, middle(needed), float(np.median([s.clock[-1] for s in own])))


def show(section: str, rows: Sequence[Row], trials: int, seeds: int) -> None:
    steps = sorted({n for row in rows for n in row.after})
    title = f"{section}: {trials} trials, {seeds} seeds; best so far over the best of all, medians (least to most)"
    headings = [*(f"after {n}" for n in steps), "needs, trials", "s in all"]
    table = Table("layer", "variant", *headings, title=title)
    for row in rows:
        cells = ["{:.2f} ({:.2f} to {:.2f})".format(*row.after[n]) if n in row.after else "" for n in steps]
        needed = "{:.3g} ({:.3g} to {:.3g})".format(*row.needed)
        table.add_row(row.layer, row.variant, *cells, needed, f"{row.seconds:.1f}")
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", metavar="SECTIONS", help=f"all, or some of {','.join(SECTIONS)}")
    parser.add_argument("layers", nargs="*", default=["C2", "C7", "C9", "M1"], help="default: %(default)s")
    parser.add_argument("--trials", type=int, default=160)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    check_names(parser, arguments.layers, operators())
    sections = list(SECTIONS) if arguments.sections == "all" else arguments.sections.split(",")
    if set(sections) - set(SECTIONS):
        parser.error(f"sections: found {arguments.sections!r}; allowed: all, or some of {','.join(SECTIONS)}")
    rows: list[Row] = []
    with Evaluator(MACHINE, build_limit=BUILD_LIMIT) as evaluator:
        for layer in track(arguments.layers, "layers", disable=arguments.json, transient=True):
            rows += study(sections, layer, evaluator, arguments.trials, arguments.seeds)
    if arguments.json:
        settings = {"machine": machine(MACHINE), "trials": arguments.trials, "seeds": arguments.seeds}
        print(stored({**settings, "rows": [asdict(row) for row in rows]}))
        return 0
    for section in sections:
        show(section, [row for row in rows if row.section == section], arguments.trials, arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
