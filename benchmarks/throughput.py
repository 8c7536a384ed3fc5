"""How fast the tuner goes: candidates a second as a session tries them, where their time goes, and one proposal.

`python -m benchmarks.tune throughput [LAYER ...] [--trials N] [--json]`
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from burnish.build import named, task_key
from burnish.codegen.llvm import emit
from burnish.codegen.objects import compile_ir
from burnish.errors import ScheduleError
from burnish.kernels.cpu import template_called
from burnish.lower.pipeline import lower
from burnish.runtime.comparison import Comparison
from burnish.runtime.link import link
from burnish.target import Target, host
from burnish.tune.evaluate import Build, Evaluator, Measurement, Trial
from burnish.tune.records import Records
from burnish.tune.session import Session, Tune
from burnish.tune.strategy import AUTOTVM
from burnish.tune.tasks import TuningTask
from burnish.tune.tuner import Tuner
from burnish.tuning import BUILD_LIMIT

SAMPLE = 24  # candidates of a session that are built once more, stage by stage
PROPOSED = 32  # candidates of the batch whose proposal is timed
STAGES = ("schedule", "lower", "emit", "LLVM", "link")


@dataclass(frozen=True)
class Throughput:
    """`candidates` that were compiled, checked and measured, and those that `failed`, in `seconds` of a session.

    `shares`: of the seconds, by what the session waited for. `stages`: CPU milliseconds of building one candidate.
    `proposal`: seconds in which AutoTVM's annealing (128 chains, 500 steps) proposes 32 candidates by a fitted model.
    """

    layer: str
    candidates: int
    failed: int
    seconds: float
    shares: dict[str, float]
    stages: dict[str, float]
    proposal: float

    @property
    def rate(self) -> float:
        """Candidates a second."""
        return self.candidates / self.seconds


class Timed(Evaluator):
    """An evaluator that adds up the seconds of its work, and keeps the trials that were built."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.built: list[Trial] = []

    def build(self, trials: Sequence[Trial]) -> list[Build]:
        self.built += trials
        return self._timed("building", super().build, trials)

    def measure(self, trial: Trial, build: Build, incumbent: float | None = None) -> Measurement:
        return self._timed("checking and measuring", super().measure, trial, build, incumbent)

    def compare_built(
        self, first: tuple[Trial, Build], second: tuple[Trial, Build], rounds: int = 31, batch_seconds: float = 500e-6
    ) -> Comparison:
        return self._timed("comparing the best", super().compare_built, first, second, rounds, batch_seconds)

    def _timed(self, name: str, function: Callable[..., Any], *args: object) -> Any:
        began = time.perf_counter()
        try:
            return function(*args)
        finally:
            self.spent[name] += time.perf_counter() - began


class _Clock:
    """Adds up the seconds that a function takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.seconds, self._function = 0.0, function

    def __call__(self, *args: object) -> Any:
        began = time.perf_counter()
        try:
            return self._function(*args)
        finally:
            self.seconds += time.perf_counter() - began


def throughput(layer: str, task: TuningTask, trials: int) -> Throughput:
    """One session from nothing; before it, worker processes are started and the reference is computed."""
    with tempfile.TemporaryDirectory() as folder, Timed(build_limit=BUILD_LIMIT) as evaluator:
        evaluator.evaluate([evaluator.default(a.task) for a in task.space.alternatives])
        evaluator.spent.clear()
        evaluator.built.clear()
        settings = Tune(seconds=None, trials=trials, least_gain=0.0)
        session = Session([task], Records(Path(folder) / "records.jsonl"), evaluator, settings)
        tuner = session.kernels[0].tuner
        proposing = _Clock(tuner.propose)
        setattr(tuner, "propose", proposing)  # noqa: B010 - a method
        seconds = session.run().seconds
    spent = {"proposing": proposing.seconds, **evaluator.spent}
    spent["the rest"] = seconds - sum(spent.values())
    failed = int(np.isinf(tuner.costs).sum())
    shares = {name: took / seconds for name, took in spent.items()}
    sample = evaluator.built[:: max(1, len(evaluator.built) // SAMPLE)]
    return Throughput(
        layer, len(tuner.costs) - failed, failed, seconds, shares, stages(sample, host()), proposal(task, tuner)
    )


def stages(trials: Sequence[Trial], target: Target) -> dict[str, float]:
    """CPU milliseconds of each stage of building a candidate, the mean of those that can be built."""
    ended: list[list[float]] = []
    for trial in trials:
        task = named(trial.task, task_key(trial.task, target))
        marks = [time.process_time()]
        try:
            program = template_called(trial.template).apply(task, target, trial.choice).program
            marks.append(time.process_time())
            program = lower(program)
            marks.append(time.process_time())
            code = emit(program, native_bfloat16=target.has("avx512bf16"))
        except ScheduleError:
            continue
        marks.append(time.process_time())
        binary = compile_ir(code.text, target)
        marks.append(time.process_time())
        link({program.name: binary})
        ended.append([*marks, time.process_time()])
    means = np.diff(np.array(ended), axis=1).mean(axis=0) * 1e3
    return dict(zip(STAGES, means.tolist(), strict=True))


def proposal(task: TuningTask, known: Tuner) -> float:
    """Seconds of a proposal by AutoTVM's strategy that knows what a session has found; the second one's."""
    tuner = Tuner(task.space, AUTOTVM.with_(initial=1))
    tuner.observe(known.points, known.costs)
    tuner.propose(PROPOSED)
    began = time.perf_counter()
    tuner.propose(PROPOSED)
    return time.perf_counter() - began


def show(found: Sequence[Throughput]) -> None:
    """A table of sessions."""
    spent = list(dict.fromkeys(name for each in found for name in each.shares))
    columns = ("layer", "candidates/s", "failed", *spent, *(f"{s} ms" for s in STAGES), "proposal s")
    table = Table(*columns, title="Throughput of the tuner")
    for each in found:
        shares = [f"{each.shares.get(name, 0.0):.0%}" for name in spent]
        own = [f"{each.stages[s]:.1f}" for s in STAGES]
        table.add_row(each.layer, f"{each.rate:.1f}", str(each.failed), *shares, *own, f"{each.proposal:.2f}")
    Console(width=None if sys.stdout.isatty() else 180).print(table)
