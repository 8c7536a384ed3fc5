"""Throughput of the tuner: candidates a second in a session, the breakdown of their time, and one proposal.

`python -m benchmarks.tune throughput [LAYER ...] [--trials N] [--json]`
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from burnish.base.garbage import collect_rarely
from burnish.codegen.llvm import emit
from burnish.codegen.objects import optimize, parse, target_machine
from burnish.driver.tuned import BUILD_LIMIT
from burnish.errors import ScheduleError
from burnish.kernels.templates import template_called
from burnish.lower.pipeline import lower
from burnish.machines.target import Target, host
from burnish.measure.comparison import Comparison
from burnish.pipeline.kernel import CompiledKernel, named, packing, task_key
from burnish.runtime.link import link
from burnish.runtime.pool import available_cores
from burnish.tune.evaluate import Build, Evaluator, KernelTrial, Measurement
from burnish.tune.evaluate.harness import KernelHarness
from burnish.tune.evaluate.interleaved import BatchedKernel, single
from burnish.tune.records import RecordFile
from burnish.tune.session import Session, Tune
from burnish.tune.strategy import AUTOTVM, BURNISH
from burnish.tune.tasks import TuningTask
from burnish.tune.tuner import Tuner

ASKED_RATE, ASKED_PROPOSAL = 60.0, 0.5  # candidates a second on two cores; seconds
SAMPLE = 12  # candidates of each template that are tried once more, stage by stage
PROPOSED = 32  # candidates of the batch whose proposal is timed
BUILDING = ("schedule", "lower", "emit", "parse", "passes", "code generation", "link")
MEASURING = ("load", "check", "time")


@dataclass(frozen=True)
class Throughput:
    """`candidates` that were compiled, checked and measured, and those that `failed`, in `seconds` of a session.

    `spent`: those seconds by what the session waited for. `stages`: of each alternative how many candidates were
    proposed, and the milliseconds that one takes in each stage: of processor time to build it, of wall time to measure
    it. `proposal`: seconds in which AutoTVM's annealing (128 chains, 500 steps) proposes 32 candidates by a fitted
    model.
    """

    layer: str
    candidates: int
    failed: int
    seconds: float
    spent: dict[str, float]
    stages: dict[str, tuple[int, dict[str, float]]]
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
        self.built: list[KernelTrial] = []

    def build(self, trials: Sequence[KernelTrial]) -> list[Build]:
        self.built += trials
        return self._timed("building", super().build, trials)

    def measure(
        self, trial: KernelTrial, build: Build, rival: tuple[KernelTrial, Build] | None = None, to_beat: float = 1.0
    ) -> Measurement:
        return self._timed("checking and measuring", super().measure, trial, build, rival, to_beat)

    def compare_built(
        self,
        first: tuple[KernelTrial, Build],
        second: tuple[KernelTrial, Build],
        rounds: int = 31,
        batch_seconds: float = 500e-6,
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
        settings = Tune(seconds=None, trials=trials, min_gain=0.0)
        session = Session([task], RecordFile(Path(folder) / "records.jsonl"), evaluator, settings)
        tuner = session.kernels[0].tuner
        proposing = _Clock(tuner.propose)
        setattr(tuner, "propose", proposing)  # noqa: B010 - a method
        seconds = session.run().seconds
    spent = {"proposing": proposing.seconds, **evaluator.spent}
    spent["the rest"] = seconds - sum(spent.values())
    failed = int(np.isinf(tuner.costs).sum())
    return Throughput(
        layer, len(tuner.costs) - failed, failed, seconds, spent, stages(task, evaluator.built), proposal(task, tuner)
    )


def stages(task: TuningTask, built: Sequence[KernelTrial]) -> dict[str, tuple[int, dict[str, float]]]:
    """See `Throughput`; means over a sample of the candidates that can be built."""
    found = {}
    collect_rarely()
    for alternative in task.space.alternatives:
        own = [t for t in built if t.task is alternative.task and t.template == alternative.template.name]
        bench = KernelHarness(named(alternative.task, task_key(alternative.task, host())), host(), available_cores())
        ended = []
        for trial in own[:: max(1, len(own) // SAMPLE)]:
            with suppress(ScheduleError):
                ended.append(_stages(bench, trial, host()))
        if ended:
            means = np.mean(ended, axis=0) * 1e3
            found[alternative.label] = len(own), dict(zip(BUILDING + MEASURING, means.tolist(), strict=True))
    return found


def _stages(bench: KernelHarness, trial: KernelTrial, target: Target) -> list[float]:
    """Seconds of each stage for one candidate. Raises ScheduleError if it cannot be built."""
    marks = [time.process_time()]
    made = template_called(trial.template, target).on(bench.task, target).apply(trial.choice)
    marks.append(time.process_time())
    program = lower(made.program)
    marks.append(time.process_time())
    code = emit(program, target)
    marks.append(time.process_time())
    machine = target_machine(target)
    module = parse(code.text, machine)
    marks.append(time.process_time())
    optimize(module, machine)
    marks.append(time.process_time())
    binary = machine.emit_object(module)
    marks.append(time.process_time())
    image = link({program.name: binary})
    marks.append(time.process_time())
    packed = packing(made.trace, bench.task)
    kernel = CompiledKernel(program.name, binary, code.scratch_bytes, packed, trial.template, trial.choice)
    walls = [time.perf_counter()]
    loaded = bench.load(kernel, image)
    walls.append(time.perf_counter())
    first = bench.check(loaded)
    walls.append(time.perf_counter())
    single(BatchedKernel(bench, loaded, first, BURNISH.rule.batch_seconds), BURNISH.rule)
    walls.append(time.perf_counter())
    return [*np.diff(marks), *np.diff(walls)]


def proposal(task: TuningTask, known: Tuner) -> float:
    """Seconds of a proposal by AutoTVM's strategy that knows what a session has found; the second one's."""
    tuner = Tuner(task.space, AUTOTVM.with_(initial=1))
    tuner.observe(known.points, known.costs)
    tuner.propose(PROPOSED)
    began = time.perf_counter()
    tuner.propose(PROPOSED)
    return time.perf_counter() - began


def show(found: Sequence[Throughput]) -> None:
    """Prints the rates required and reached, then the breakdown of time by session and by alternative."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    bars = Table("layer", "candidates/s", "asked", "failed", "proposal s", "asked", title="Throughput of the tuner")
    for each in found:
        rate, proposed = f"{each.rate:.1f}", f"{each.proposal:.2f}"
        bars.add_row(each.layer, rate, f"≥ {ASKED_RATE:g}", str(each.failed), proposed, f"≤ {ASKED_PROPOSAL:g}")
    console.print(bars)
    names = list(dict.fromkeys(name for each in found for name in each.spent))
    waits = Table("layer", *names, title="Wall time of a session, ms a candidate")
    for each in found:
        tried = each.candidates + each.failed
        waits.add_row(each.layer, *(f"{1e3 * each.spent.get(name, 0.0) / tried:.1f}" for name in names))
    console.print(waits)
    own = Table("layer", "by", "tried", *BUILDING, "built", *MEASURING, title="One candidate, ms")
    for each in found:
        for label, (tried, took) in each.stages.items():
            built = sum(took[name] for name in BUILDING)
            cells = [*(took[name] for name in BUILDING), built, *(took[name] for name in MEASURING)]
            own.add_row(each.layer, label, str(tried), *(f"{ms:.1f}" for ms in cells))
    console.print(own)
