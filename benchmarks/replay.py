"""Studies of tuners, replayed on measured tables (`benchmarks.tables`): no candidate is built or measured anew.

A stated scale-down of the papers' figures: spaces of 384 to 648 candidates, all of which a model scores before each
batch (a walk visits them all), searches of 64 trials in batches of 8.
`models`, `objective`, `diversity`, `epsilon`, `uncertainty`: the strategies of `benchmarks.study`, and TreeGRU's of the
first two (AutoTVM's figures 5.4 to 5.7, AdaTune's figure 4). `transfer`: with and without the tables of C1 to C6, by
each representation (figures 5.8, 5.9 b); what they reach alone is figure 5.9 a. `devices`: with the models that come
with Burnish, each trained on another kind of CPU, and with none (figure 5.9 d). `breakdown`: shares of a session's time
(AdaTune's figure 2). `adatune`: its parts in equal time (figures 6 a, 6 c, 10, 11).

`after`: the best so far over the best of the table. `needed`: trials until a search is as good as the reference of
equal seed at its end. Both: median of the seeds, and its 95 % interval by bootstrap. The clock of a session adds what
proposing takes here to what its candidates' building took and their measuring would, 500 runs of each, as AdaTune's.

`python -m benchmarks.replay [SECTION ...] [--tables FILE] [--kernels A,B] [--seeds N] [--trials N] [--json]`
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import adatune
from benchmarks.ablation import SOURCES, Known, prior
from benchmarks.evidence import RESULTS
from benchmarks.provenance import kind_of_machine, stored
from benchmarks.study import (
    ENSEMBLE,
    MACHINE,
    REFERENCE,
    SEARCH,
    SECTIONS,
    TIMES,
    Search,
    first_below,
    search,
    thinned,
)
from benchmarks.tables import BMM, RUNS, KernelTable, Replayed, load, small_kernel
from burnish.tune.evaluate.stopping import Adaptive, Fixed, Rule
from burnish.tune.features import Representation
from burnish.tune.models.base import CostModel
from burnish.tune.models.neural import TreeGRUModel
from burnish.tune.pretrained import SHIPPED
from burnish.tune.pretrained import load as load_model
from burnish.tune.records import machine
from burnish.tune.strategy import BURNISH, TREEGRU, TuningStrategy

BATCH = 8
STEPS = (8, 16, 32, 64)  # trials
TARGETS = ("C7", "C8", "C9")
REPRESENTATIONS: tuple[Representation, ...] = ("configuration", "flattened", "relation")
REPEATS = adatune.REPEATS  # runs of a candidate, for which RUNS stand
FIXED = Fixed(RUNS)
STOPPING = Adaptive(variation=0.1, least=RUNS // 5, most=RUNS, enough_seconds=inf)
MOMENTS = 24  # of a curve over the clock
GRU_STEPS, GRU_RATE = 40, 6e-3  # steps of Adam at each fit, for the few trials, and its learning rate
FEW_SEEDS = 3  # of TreeGRU, which takes a hundred times as long as trees


def _gru(objective: str) -> TuningStrategy:
    return TREEGRU.with_(
        model=lambda seed: TreeGRUModel(
            "identifier", objective, steps=GRU_STEPS, learning_rate=GRU_RATE, seed=seed, device="cpu"
        )
    )


@dataclass(frozen=True)
class Row:
    """A variant on a kernel: trials -> median of the seeds with its 95 % interval (``after``), and so ``needed``."""

    section: str
    kernel: str
    variant: str
    seeds: int
    after: dict[int, tuple[float, float, float]]
    needed: tuple[float, float, float]


def interval(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float, float]:
    """The median, and its 95 % interval of 2,000 bootstrap samples."""
    own = np.asarray(values, float)
    drawn = np.random.default_rng(0).integers(0, len(own), (2000, len(own)))
    low, high = np.percentile(np.median(own[drawn], axis=1), (2.5, 97.5))
    return float(np.median(own)), float(low), float(high)


def variants(section: str) -> dict[str, TuningStrategy]:
    """The strategies of a section of `benchmarks.study`, with batches of half the size, and TreeGRU's."""
    found = dict(SECTIONS[section])
    if section == "models":
        found["TreeGRU"] = _gru("rank")
    if section == "objective":
        found |= {f"TreeGRU, {objective}": _gru(objective) for objective in ("rank", "regression")}
    if section == "epsilon":
        found["contextual"] = ENSEMBLE.with_(share="contextual")
    return {name: _small(strategy, BATCH * TIMES.get(name, 1)) for name, strategy in found.items()}


def study(section: str, table: KernelTable, trials: int, seeds: int) -> list[Row]:
    """All variants of a section on one kernel."""
    oracle, found = Replayed(table), dict[str, list[Search]]()
    for name, strategy in variants(section).items():
        times, count = TIMES.get(name, 1), min(seeds, FEW_SEEDS) if "TreeGRU" in name else seeds
        found[name] = [thinned(search(strategy, k, times * trials, oracle), times) for k in range(count)]
    return [row(section, table, name, own, found[REFERENCE]) for name, own in found.items()]


def row(section: str, table: KernelTable, name: str, own: Sequence[Search], reference: Sequence[Search]) -> Row:
    """Best costs and trials of searches, against the reference's of equal seeds."""
    least = min(table.seconds)
    steps = [n for n in STEPS if n <= min(len(s.best) for s in own)]
    after = {n: interval([s.best[n - 1] / least for s in own]) for n in steps}
    needed = [
        first_below(s.best, float(r.best[-1]), np.arange(1.0, len(s.best) + 1))
        for s, r in zip(own, reference, strict=False)
    ]
    return Row(section, table.kernel, name, len(own), after, interval(needed))


def transfer(tables: Mapping[str, KernelTable], target: str, trials: int, seeds: int) -> list[Row]:
    """With and without the sources' tables that there are, by each representation, whose reference is itself alone."""
    oracle, rows = Replayed(tables[target]), list[Row]()
    known = [_known(tables[name]) for name in SOURCES if name in tables]
    for representation in REPRESENTATIONS:
        strategy = _small(SEARCH.with_(representation=representation, common=representation))
        model = prior(known, representation, oracle.task.space)
        alone = [search(strategy, seed, trials, oracle) for seed in range(seeds)]
        own = [search(strategy.with_(transfer=True), seed, trials, oracle, prior=model) for seed in range(seeds)]
        for name, found in ((f"{representation} alone", alone), (f"{representation}, transferred", own)):
            rows.append(row("transfer", tables[target], name, found, alone))
    return rows


def devices(table: KernelTable, trials: int, seeds: int) -> list[Row]:
    """With each model that comes with Burnish, by the kind of CPU whose records it was trained on, and with none."""
    oracle, found = Replayed(table), dict[str, list[Search]]()
    priors: dict[str, CostModel | None] = {"none": None, **{kind: load_model(path) for kind, path in SHIPPED.items()}}
    for name, model in priors.items():
        strategy = _small(SEARCH.with_(transfer=model is not None, common="invariant"))
        found[name] = [search(strategy, seed, trials, oracle, prior=model) for seed in range(seeds)]
    return [row("devices", table, name, own, found["none"]) for name, own in found.items()]


def _small(strategy: TuningStrategy, batch: int = BATCH) -> TuningStrategy:
    """The strategy for a small space: its model, if it has one, scores all candidates, as a walk would in the end."""
    walker = BURNISH.walker if strategy.model else strategy.walker
    return strategy.with_(batch=batch, initial=BATCH, first=None, informed=False, walker=walker)


def _known(table: KernelTable) -> Known:
    space = small_kernel(table.kernel, table.knobs).space
    return Known(space, space.space.at(np.arange(space.size)), np.array(table.seconds))


def breakdown(table: KernelTable, trials: int) -> adatune.Share:
    """Where the time of a session of boosted trees goes, of 500 runs of each candidate."""
    found = search(_small(SEARCH), 0, trials, Replayed(table, runs=REPEATS), timer=time.process_time)
    rest = 1 - found.building - found.measuring
    return adatune.Share(table.kernel, float(found.clock[-1]), rest, found.building, found.measuring)


def parts(table: KernelTable, trials: int, seeds: int) -> tuple[list[adatune.Row], list[dict[str, Any]]]:
    """AdaTune's parts in the time of the first one's trials, and their curves over the clock."""
    judge = Replayed(table)
    rules: dict[Rule, Rule] = {adatune.FIXED: FIXED, adatune.STOPPING: STOPPING}
    oracles = {rule: Replayed(table, rule, REPEATS) for rule in rules.values()}
    found: dict[str, list[Search]] = {name: [] for name in adatune.VARIANTS}
    for seed in range(seeds):
        end = inf
        for name, strategy in adatune.VARIANTS.items():
            count = trials if name == adatune.FIRST else len(table.seconds)
            oracle = oracles[rules[strategy.rule]]
            made = search(_small(strategy), seed, count, oracle, judge=judge, seconds=end, timer=time.process_time)
            end = float(made.clock[-1]) if name == adatune.FIRST else end
            found[name].append(made)
    first = found[adatune.FIRST]
    rows = [adatune.row(table.kernel, name, own, first) for name, own in found.items()]
    return rows, [{"kernel": table.kernel, "variant": name, **curve(own, first, table)} for name, own in found.items()]


def curve(own: Sequence[Search], first: Sequence[Search], table: KernelTable) -> dict[str, Any]:
    """The best over the table's best at moments of the clock, median and interval; the last is the first one's end."""
    end = float(np.median([s.clock[-1] for s in first]))
    axis = np.linspace(end / MOMENTS, end, MOMENTS)
    values = np.stack([adatune.until(each, axis) for each in own]) / min(table.seconds)
    points = [
        (round(float(at), 2), *interval(column))
        for at, column in zip(axis, values.T, strict=True)
        if np.isfinite(column).all()
    ]
    return {"seconds, median, low, high": points}


def show(report: Mapping[str, Any]) -> None:
    """The rows, as tables."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    for section, rows in report["sections"].items():
        table = Table(title=section)
        columns = list(rows[0])
        for column in columns:
            table.add_column(column)
        for each in rows:
            table.add_row(*(_cell(each[column]) for column in columns))
        console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_cell(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(_cell(each) for each in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def run(section: str, tables: Mapping[str, KernelTable], names: Sequence[str], trials: int, seeds: int) -> Any:
    """The rows of a section, for the kernels of those names that it is for."""
    every = [tables[name] for name in names if name in tables]
    one: Callable[[KernelTable], list[Any]]
    if section == "transfer":
        one = lambda table: transfer(tables, table.kernel, trials, seeds)  # noqa: E731
        every = [table for table in every if table.kernel not in SOURCES]
    elif section == "devices":
        one = lambda table: devices(table, trials, seeds)  # noqa: E731
    elif section == "breakdown":
        one = lambda table: [breakdown(table, trials)]  # noqa: E731
    else:
        one = lambda table: study(section, table, trials, seeds)  # noqa: E731
    rows = [each for table in track(every, section, console=Console(stderr=True)) for each in one(table)]
    return [asdict(each) for each in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"default: all of {' '.join(ALL)}")
    parser.add_argument("--tables", type=Path, default=RESULTS / f"tables-{kind_of_machine()}.json")
    parser.add_argument("--kernels", default="", help="default: all of the file that a section is for")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    given = parser.parse_args()
    if unknown := set(given.sections) - set(ALL):
        parser.error(f"sections: found {sorted(unknown)}; allowed: {', '.join(ALL)}")
    tables = load(given.tables)
    if not tables:
        parser.error(f"tables: found none in {given.tables}; python -m benchmarks.tables measures them")
    report: dict[str, Any] = {}
    for section in given.sections or ALL:
        names = given.kernels.split(",") if given.kernels else list(DEFAULTS.get(section, tables))
        if section == "adatune":
            made = [parts(tables[name], given.trials, given.seeds) for name in names if tables[name].times]
            report["adatune"] = [asdict(each) for rows, _ in made for each in rows]
            report["adatune curves"] = [each for _, curves in made for each in curves]
        else:
            report[section] = run(section, tables, names, given.trials, given.seeds)
    settings = {
        "machine": machine(MACHINE),
        "tables": given.tables.name,
        "kernels": [*tables],
        "trials": given.trials,
        "seeds": given.seeds,
    }
    found = {**settings, "sections": report}
    if given.json:
        print(stored(found))
    else:
        show(found)
    return 0


ALL = ("models", "objective", "diversity", "epsilon", "uncertainty", "transfer", "devices", "breakdown", "adatune")
SHOWN = ("C2", "C9")  # the paper shows some layers too
DEFAULTS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("objective", "diversity", "uncertainty"), SHOWN), "epsilon": ("C8", "C9"),
    "transfer": (*TARGETS, BMM), "devices": TARGETS, "adatune": ("C8", BMM),
}  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(main())
