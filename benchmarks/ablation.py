"""Transfer learning, an ablation: the value of measurements of other kernels, `transfer`, and `default`.

`transfer`: a search that knows tried candidates of C1 to C6 before its first trial (f = f_global + f_local, thesis-chen
eq. 5.4, figures 5.8 and 5.9), against the same search without: on C7, C8, C9, and on the product of two 1024 x 1024
matrices, in the space and by the strategy of `benchmarks.study`, AutoTVM's. Neither begins with a template's default:
the one without transfer begins at random, the one with it with the best of random points by what is known. Known of C1
to C6 is what such a search tries on them. Reported are the trials it needs for what the other has after its last, seed
by seed, and by the medians of the seeds (the curves of figure 5.8) for what that has after 16, 32, … trials, with each
representation: `configuration` (knobs by name), `flattened` (the loop nest, context features), `relation` (context
relation features), `sequence` (loop nests, which a context-encoded TreeGRU reads: figure 5.3 d). Candidates are
measured once, whichever search asks for them first.

`default`: what a model could choose without any measurement. Of every layer, the choice that a model prefers among the
template's own and those one step of one knob away, against the template's own, in turns; the model was trained on
records (see `benchmarks.gather`) without those of that layer. A layer where it prefers the template's own is not
measured.

`python -m benchmarks.ablation transfer [TARGET ...] [--trials N] [--known N] [--seeds N] [--json]`
`python -m benchmarks.ablation default RECORDS [--json]`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

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
from benchmarks.study import MACHINE, SEARCH, first_below, kernel, search
from burnish.driver.tuned import BUILD_LIMIT
from burnish.machines.target import host
from burnish.search.space import Points
from burnish.tune.evaluate import Evaluator, KernelTrial
from burnish.tune.features import Representation, extract, names, plausible
from burnish.tune.models.base import CostModel
from burnish.tune.models.trees import TreeModel
from burnish.tune.pretrained import fit_nests, fitted, training_records, training_set
from burnish.tune.records import RecordFile, machine
from burnish.tune.space import Candidate, TuningSpace

SOURCES = ("C1", "C2", "C3", "C4", "C5", "C6")
TARGETS = ("C7", "C8", "C9", "P1024")
Transferred = Representation | Literal["sequence"]
REPRESENTATIONS: tuple[Transferred, ...] = ("configuration", "flattened", "relation", "sequence")


@dataclass(frozen=True)
class Known:
    """Candidates of a source: points [n, width] of its space, and what they cost, seconds [n]."""

    space: TuningSpace
    points: Points
    seconds: NDArray[np.float64]


@dataclass(frozen=True)
class Result:
    """Trials that the search with transfer needs for what the one without has after its last, and after how many that
    one had it (`without`): one number a seed.

    `alone` and `transferred`: the best so far over the best that was found, after 1, 2, … trials, medians of the seeds.
    """

    target: str
    representation: str
    needed: list[int]
    without: list[int]
    alone: list[float]
    transferred: list[float]

    @property
    def fewer(self) -> float:
        """Ratio of the medians of trials needed, without transfer over with it."""
        return float(np.median(self.without) / np.median(self.needed))

    def equal(self, trials: int) -> int:
        """Median number of trials with transfer that reach the result of the search without."""
        curve = np.array(self.transferred)
        return int(first_below(curve, self.alone[trials - 1], np.arange(1.0, len(curve) + 1)))


def sources(evaluator: Evaluator, trials: int) -> list[Known]:
    """Candidates that a search of `trials` trials measures on each source."""
    found = []
    for name in track(SOURCES, "sources", transient=True):
        oracle = Oracle(kernel(name), evaluator)
        search(SEARCH, 0, trials, oracle)
        space = oracle.task.space
        points = space.space.at(np.array(list(oracle.known)))
        found.append(Known(space, points, np.array([each.seconds for each in oracle.known.values()])))
    return found


def prior(known: Sequence[Known], representation: Transferred, target: TuningSpace) -> CostModel:
    """The model that orders the candidates of all sources best, by the columns that a target's candidates have.

    Columns of equal names mean the same; one that a source lacks is 0.
    """
    if representation == "sequence":
        model = fit_nests([(each.space, each.points, each.seconds.tolist()) for each in known])
        assert model is not None, "sources have candidates enough"
        return model
    columns = names(target, representation)
    tables = []
    for each in known:
        own = extract(each.space, representation, each.points)
        at = {name: column for column, name in enumerate(names(each.space, representation))}
        tables.append(np.stack([own[:, at[n]] if n in at else np.zeros(len(own), np.float32) for n in columns], axis=1))
    trees = TreeModel("rank", rounds=80, learning_rate=0.15, max_depth=5)
    seconds = np.concatenate([each.seconds for each in known])
    trees.fit(np.concatenate(tables), seconds, np.repeat(np.arange(len(known)), [len(each.points) for each in known]))
    return trees


def transfer(target: str, known: Sequence[Known], evaluator: Evaluator, trials: int, seeds: int) -> list[Result]:
    """Searches with and without the sources' candidates, by every representation, on one target."""
    oracle = Oracle(kernel(target), evaluator)
    curves: dict[Transferred, tuple[list[NDArray], list[NDArray]]] = {r: ([], []) for r in REPRESENTATIONS}
    for seed in range(seeds):
        for representation, (alone, transferred) in curves.items():
            own = SEARCH.representation if representation == "sequence" else representation
            strategy = SEARCH.with_(representation=own, common=representation)
            model = prior(known, representation, oracle.task.space)
            alone.append(search(strategy, seed, trials, oracle).best)
            transferred.append(search(strategy.with_(transfer=True), seed, trials, oracle, prior=model).best)
    best = min(each.seconds for each in oracle.known.values())
    return [result(target, representation, *pair, best) for representation, pair in curves.items()]


def result(
    target: str, representation: str, alone: Sequence[NDArray], transferred: Sequence[NDArray], best: float
) -> Result:
    """Result of pairs of searches of equal seeds. One that never gets there needs one trial more than it made."""
    pairs = list(zip(alone, transferred, strict=True))
    needed, without = (
        [int(first_below(own[place], own[0][-1], np.arange(1.0, len(own[place]) + 1))) for own in pairs]
        for place in (1, 0)
    )
    medians = ([float(v / best) for v in np.median(own, axis=0)] for own in (alone, transferred))
    return Result(target, representation, needed, without, *medians)


@dataclass(frozen=True)
class Choice:
    """Choice of a cost model against a template's default: the predicted gain, and times over the default's."""

    layer: str
    default: str
    chosen: str
    margin: float
    ratio: float
    low: float
    high: float


def steps(space: TuningSpace) -> Points:
    """The default, then the candidates one step of one knob away from it, by the same template."""
    default = space.default
    found = [space.point(default)]
    for knob, values in default.alternative.space.knobs.items():
        at = list(values).index(default.choice[knob])
        for place in (at - 1, at + 1):
            if 0 <= place < len(values):
                choice = {**default.choice, knob: values[place]}
                found.append(space.point(Candidate(default.alternative, choice)))
    points = np.stack(found)
    keep = plausible(space, points)
    keep[0] = True
    return points[keep]


def unmeasured(path: Path) -> list[Choice]:
    """Choices by a model of the other kernels for every layer, where they are not the defaults."""
    every, found = operators(), []
    records = [r for r in RecordFile(path).all() if r.target == machine(host())]
    with Evaluator(cold=True, build_limit=BUILD_LIMIT) as evaluator:
        for name in (*LAYERS, "P1024"):
            task = main_kernel(every[name])
            model = fitted(training_set(training_records(records, besides={task.key})))
            points = steps(task.space)
            scores = model.predict(extract(task.space, "invariant", points))
            best = int(np.argmax(scores))
            if best == 0:
                continue
            chosen, default = task.space.candidate(points[best]), task.space.default
            one, two = (
                KernelTrial(c.alternative.task, c.alternative.template.name, c.choice) for c in (default, chosen)
            )
            made = evaluator.compare(one, two)
            margin = float(scores[best] - scores[0])
            found.append(Choice(name, str(default), str(chosen), margin, made.ratio, made.low, made.high))
    return found


def show_choices(found: Sequence[Choice]) -> None:
    table = Table("layer", "preferred by", "time / default's", "interval", "choice", title="Chosen without measuring")
    for each in found:
        interval = f"{each.low:.3f} to {each.high:.3f}"
        table.add_row(each.layer, f"{each.margin:.2f}", f"{each.ratio:.3f}", interval, each.chosen)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def show(results: Sequence[Result], seeds: int) -> None:
    trials = len(results[0].alone)
    title = f"Trials with transfer for what {trials} reach without; medians (least to most) of {seeds} seeds"
    steps = [n for n in (16, 32, 64, 128, 256) if n <= trials]
    headings = [f"as good as {n} alone (best with, alone)" for n in steps]
    table = Table("target", "representation", "without", "needs", "fewer", *headings, title=title)
    for each in results:
        needs = [f"{np.median(n):.0f} ({min(n)} to {max(n)})" for n in (each.without, each.needed)]
        equal = [f"{each.equal(n)} ({each.transferred[n - 1]:.2f}, {each.alone[n - 1]:.2f})" for n in steps]
        table.add_row(each.target, each.representation, *needs, f"{each.fewer:.1f}×", *equal)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = parser.add_subparsers(dest="section", required=True)
    study = sections.add_parser("transfer", help="searches with and without what is known of C1 to C6")
    study.add_argument("targets", nargs="*", default=TARGETS, help="default: all of %(default)s")
    study.add_argument("--trials", type=int, default=96, help="of a search (default: %(default)s)")
    study.add_argument("--known", type=int, default=256, help="candidates of each source (default: %(default)s)")
    study.add_argument("--seeds", type=int, default=5)
    choosing = sections.add_parser("default", help="what a model would choose without measuring")
    choosing.add_argument("records", type=Path)
    for each in (study, choosing):
        each.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    if arguments.section == "default":
        chosen = unmeasured(arguments.records)
        if arguments.json:
            print(stored({"machine": machine(host()), "choices": [asdict(each) for each in chosen]}))
        else:
            show_choices(chosen)
        return 0
    check_names(parser, arguments.targets, operators())
    results = []
    with Evaluator(MACHINE, build_limit=BUILD_LIMIT) as evaluator:
        known = sources(evaluator, arguments.known)
        for target in arguments.targets:
            results += transfer(target, known, evaluator, arguments.trials, arguments.seeds)
    if arguments.json:
        settings = {"machine": machine(MACHINE), **{k: vars(arguments)[k] for k in ("trials", "known", "seeds")}}
        print(stored({**settings, "results": [{**asdict(each), "fewer": each.fewer} for each in results]}))
    else:
        show(results, arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
