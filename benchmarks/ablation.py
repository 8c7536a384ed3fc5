"""What single parts of the tuner are worth: `transfer`, and `default`.

`transfer`: a search that knows measurements of C1 to C6 before its first trial (f = f_global + f_local, thesis-chen
eq. 5.4, figures 5.8 and 5.9), against the same search without: on C7, C8, C9, and on the product of two 1024 x 1024
matrices. Reported are the trials it needs to reach what the other has after N, with each representation:
`configuration` (knobs by name), `flattened` (the loop nest, context features), `relation` (context relation features),
`invariant` (these, and the steps away from the default), and `burnish`: what the tuner does, with a global model of
`invariant` features, and local trees that see the loops and knobs of this space beside.

By default the searches are replayed offline: candidates were measured once, by `benchmarks.gather --plan study` into
RECORDS, and the explorers walk that measured pool instead of the whole space. Both searches begin with the template's
default; the one without transfer goes on at random until it can fit a model. `--online` measures instead: whole
sessions on this machine in the whole space, with and without the records of C1 to C6 as their prior (representation
`invariant`).

`default`: what a model could choose without any measurement. Of every layer, the choice that a model prefers among the
template's own and those one step of one knob away, against the template's own, in turns; the model was trained on
RECORDS without those of that layer. A layer where it prefers the template's own is not measured.

`python -m benchmarks.ablation transfer RECORDS [--trials N] [--seeds N] [--online] [--json]`
`python -m benchmarks.ablation default RECORDS [--json]`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.gather import SOURCES, TARGETS, main_kernel, tried
from benchmarks.layers import LAYERS
from benchmarks.operators import operators
from benchmarks.study import first_below
from burnish.build import task_key
from burnish.runtime.pool import available_cores
from burnish.search.space import Points
from burnish.target import host
from burnish.tune.evaluate import Evaluator, Trial
from burnish.tune.features import Representation, extract, names, plausible
from burnish.tune.models.transfer import TransferModel
from burnish.tune.models.trees import TreeModel
from burnish.tune.prior import fitted, lessons, usable
from burnish.tune.records import Record, Records, machine
from burnish.tune.session import Session, Tune
from burnish.tune.space import Candidate, TuningSpace
from burnish.tune.tasks import TuningTask
from burnish.tune.tuner import defaults
from burnish.tuning import BUILD_LIMIT

REPRESENTATIONS = ("configuration", "flattened", "relation", "invariant", "burnish")
BATCH, INITIAL, RANDOM = 16, 16, 0.1  # trials at once; before the first fit without transfer; share at random
LONGEST = 64  # trials that are replayed
LEAST_POOL = 32


@dataclass(frozen=True)
class Pool:
    """Measured candidates of one operator: `features` [n, d] by representation, `seconds` [n], rows of the defaults."""

    name: str
    features: dict[str, NDArray[np.float32]]
    columns: tuple[str, ...]  # of the configuration
    seconds: NDArray[np.float64]
    first: list[int]


@dataclass(frozen=True)
class Result:
    """Trials that the search with transfer needs for what the one without has after `trials`, and after how many that
    one had it (`without`): one number a seed.

    `alone` and `transferred`: the best so far over the best of the pool, after 1, 2, … trials, medians over the seeds.
    """

    target: str
    representation: str
    trials: int
    needed: list[int]
    without: list[int]
    alone: list[float]
    transferred: list[float]

    @property
    def fewer(self) -> float:
        """How many times fewer trials it needs, by the medians."""
        return float(np.median(self.without) / np.median(self.needed))


def pool_of(name: str, task: TuningTask, records: Sequence[Record]) -> Pool:
    """The measured candidates of a kernel that this version's space has; the last measurement of each."""
    found: dict[tuple[int, ...], float] = {}
    keys = [task_key(alternative.task, alternative.target) for alternative in task.space.alternatives]
    for each in records:
        for alternative, key in zip(task.space.alternatives, keys, strict=True):
            if (alternative.template.name, key) == (each.template, each.key):
                try:
                    point = task.space.point(Candidate(alternative, each.choice))
                except ValueError:
                    continue
                found[tuple(point.tolist())] = each.ranked
    points, space = np.array(list(found), np.int32), task.space
    kinds: tuple[Representation, ...] = ("configuration", "flattened", "relation", "invariant", "both")
    features: dict[str, NDArray[np.float32]] = {kind: extract(space, kind, points) for kind in kinds}
    where = {tuple(p.tolist()): row for row, p in enumerate(points)}
    first = [where[tuple(p.tolist())] for p in defaults(space) if tuple(p.tolist()) in where]
    return Pool(name, features, names(space, "configuration"), np.array(list(found.values())), first)


def shared(pools: Sequence[Pool], target: Pool, representation: str) -> tuple[list[NDArray], NDArray, NDArray]:
    """Features of pools and of the target in columns of equal meaning, and what the target's local model sees.

    Of configurations, columns of equal names mean the same.
    """
    if representation == "burnish":
        own = target.features["invariant"]
        return [p.features["invariant"] for p in pools], own, target.features["both"]
    if representation != "configuration":
        own = target.features[representation]
        return [p.features[representation] for p in pools], own, own
    columns = list(dict.fromkeys(name for p in (*pools, target) for name in p.columns))

    def aligned(p: Pool) -> NDArray[np.float32]:
        table = np.zeros((len(p.seconds), len(columns)), np.float32)
        table[:, [columns.index(name) for name in p.columns]] = p.features["configuration"]
        return table

    own = aligned(target)
    return [aligned(p) for p in pools], own, own


def replay(
    common: NDArray[np.float32], own: NDArray[np.float32], target: Pool, prior: TreeModel | None, seed: int
) -> NDArray[np.float64]:
    """The best seconds after 1, 2, … trials of one search over a measured pool, up to LONGEST.

    The prior reads ``common`` [n, d], local trees ``own`` [n, d], or both where there is a prior and they differ.
    """
    random, seconds, first = np.random.default_rng(seed), target.seconds, target.first
    local = TreeModel("rank", seed=seed, threads=1)  # so few rows
    model = TransferModel(prior, local, common.shape[1]) if prior else local
    features = own if prior is None or own is common else np.hstack([common, own])
    order, left = list(first), np.setdiff1d(np.arange(len(seconds)), first)
    while len(left) and len(order) < LONGEST:
        enough = len(order) >= INITIAL
        if enough:
            known = np.array(order)
            model.fit(features[known], seconds[known], np.zeros(len(known), np.int64))
        scores = model.predict(features[left]) if enough or prior else random.random(len(left))
        drawn = random.random(len(left))
        chance = min(len(left), int(RANDOM * BATCH + random.random()))
        best = np.argsort(-scores + 1e-9 * drawn, kind="stable")[: BATCH - chance]
        rest = np.setdiff1d(np.arange(len(left)), best)
        chosen = np.concatenate([best, random.permutation(rest)[:chance]])
        order += left[chosen].tolist()
        left = np.delete(left, chosen)
    return np.minimum.accumulate(seconds[np.array(order)])


def offline(path: Path, trials: int, seeds: int) -> list[Result]:
    """Every target by every representation."""
    every = operators()
    tasks = {name: main_kernel(every[name]) for name in (*SOURCES, *TARGETS)}
    known = tried(Records(path), available_cores())
    short = [name for name, task in tasks.items() if len(known.get(task.key, ())) < LEAST_POOL]
    if short:
        raise SystemExit(
            f"ablation: '{path}' has fewer than {LEAST_POOL} candidates of {', '.join(short)} by this version of the "
            f"compiler on this machine; run: python -m benchmarks.gather {path}"
        )
    return replayed({name: pool_of(name, task, known[task.key]) for name, task in tasks.items()}, trials, seeds)


def replayed(pools: Mapping[str, Pool], trials: int, seeds: int) -> list[Result]:
    """The searches on pools of the sources and the targets."""
    sources, results = [pools[name] for name in SOURCES], []
    groups = np.repeat(np.arange(len(sources)), [len(p.seconds) for p in sources])
    for target in (pools[name] for name in TARGETS):
        for representation in REPRESENTATIONS:
            tables, common, own = shared(sources, target, representation)
            prior = TreeModel("rank", rounds=80, learning_rate=0.15, max_depth=5, threads=1)
            prior.fit(np.concatenate(tables), np.concatenate([p.seconds for p in sources]), groups)
            search = partial(replay, common, own, target)
            alone, transferred = ([search(p, seed) for seed in range(seeds)] for p in (None, prior))
            results.append(result(target.name, representation, trials, alone, transferred, target.seconds.min()))
    return results


def result(
    target: str, representation: str, trials: int, alone: Sequence[NDArray], transferred: Sequence[NDArray], best: float
) -> Result:
    """What pairs of searches of equal seeds come to. One that never gets there needs one trial more than it made."""
    pairs = list(zip(alone, transferred, strict=True))
    needed, without = (
        [int(first_below(own[place], own[0][:trials][-1], np.arange(1.0, len(own[place]) + 1))) for own in pairs]
        for place in (1, 0)
    )
    length = min(len(curve) for curve in (*alone, *transferred))
    medians = ([float(v / best) for v in np.median([c[:length] for c in own], axis=0)] for own in (alone, transferred))
    return Result(target, representation, trials, needed, without, *medians)


def online(path: Path, trials: int, seeds: int) -> list[Result]:
    """Whole sessions, in turns with and without the records of the sources."""
    every, results = operators(), []
    tasks = {name: main_kernel(every[name]) for name in (*SOURCES, *TARGETS)}
    keys = {tasks[name].key for name in SOURCES}
    known = usable(r for r in Records(path).all() if r.kernel in keys and r.target == machine(host()))
    prior = fitted(lessons(known))
    with Evaluator(cold=True, build_limit=BUILD_LIMIT) as evaluator:
        for name in TARGETS:
            curves: tuple[list[NDArray], list[NDArray]] = ([], [])
            for seed in range(seeds):
                for given, own in zip((None, prior), curves, strict=True):
                    own.append(_session(tasks[name], evaluator, given, trials, seed))
            best = min(float(curve[-1]) for own in curves for curve in own)
            results.append(result(name, "invariant, online", trials, *curves, best))
    return results


def _session(
    task: TuningTask, evaluator: Evaluator, prior: TreeModel | None, trials: int, seed: int
) -> NDArray[np.float64]:
    with tempfile.TemporaryDirectory() as folder:
        settings = Tune(None, trials, 0.0, "burnish", seed)
        made = Session([task], Records(Path(folder) / "records.jsonl"), evaluator, settings, prior=prior).run()
    return np.minimum.accumulate(np.array(made.kernels[0].tuner.costs))


@dataclass(frozen=True)
class Choice:
    """What a model prefers to a template's default, by how much, and the times of that over the default's, in turns."""

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
    """What a model of the other kernels chooses for every layer, where that is not the default."""
    every, found = operators(), []
    records = [r for r in Records(path).all() if r.target == machine(host())]
    with Evaluator(cold=True, build_limit=BUILD_LIMIT) as evaluator:
        for name in (*LAYERS, "P1024"):
            task = main_kernel(every[name])
            model = fitted(lessons(usable(records, besides={task.key})))
            points = steps(task.space)
            scores = model.predict(extract(task.space, "invariant", points))
            best = int(np.argmax(scores))
            if best == 0:
                continue
            chosen, default = task.space.candidate(points[best]), task.space.default
            one, two = (Trial(c.alternative.task, c.alternative.template.name, c.choice) for c in (default, chosen))
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
    trials = results[0].trials
    title = f"Trials with transfer for what {trials} reach without; medians (least to most) of {seeds} seeds"
    steps = [n for n in (8, 16, 32, 64) if n <= min(len(each.alone) for each in results)]
    headings = [f"{kind} {n}" for n in steps for kind in ("alone", "with")]
    table = Table("target", "representation", "without", "needs", "fewer", *headings, title=title)
    for each in results:
        curves = [f"{curve[n - 1]:.3f}" for n in steps for curve in (each.alone, each.transferred)]
        needs = [f"{np.median(n):.0f} ({min(n)} to {max(n)})" for n in (each.without, each.needed)]
        table.add_row(each.target, each.representation, *needs, f"{each.fewer:.1f}×", *curves)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=("transfer", "default"))
    parser.add_argument("records", type=Path)
    parser.add_argument("--trials", type=int, default=48, help="of the search without transfer")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--online", action="store_true", help="measure; takes minutes for each target and seed")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    if arguments.section == "default":
        chosen = unmeasured(arguments.records)
        if arguments.json:
            print(json.dumps({"machine": machine(host()), "choices": [asdict(each) for each in chosen]}))
        else:
            show_choices(chosen)
        return 0
    study = online if arguments.online else offline
    results = study(arguments.records, arguments.trials, arguments.seeds)
    if arguments.json:
        rows = [{**asdict(each), "fewer": each.fewer} for each in results]
        print(json.dumps({"machine": machine(host()), "seeds": arguments.seeds, "results": rows}))
    else:
        show(results, arguments.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
