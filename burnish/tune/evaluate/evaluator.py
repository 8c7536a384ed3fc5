"""Candidates in, measurements out: the one door to building, checking and timing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from burnish.kernels.cpu import template_for
from burnish.kernels.task import Task
from burnish.runtime.comparison import Comparison
from burnish.runtime.pool import available_cores
from burnish.target import Target, host
from burnish.tune.evaluate.building import Build, Builder, Trial
from burnish.tune.evaluate.forkserver import ForkServer
from burnish.tune.evaluate.measurement import Measurement
from burnish.tune.evaluate.reference import Examples
from burnish.tune.evaluate.rules import Adaptive, Rule
from burnish.tune.evaluate.running import Runner


class Evaluator:
    """Tries candidates on this machine; whatever they do, this process lives on. Use it as a context; for one thread.

    Building and measuring take turns, a batch at a time: all workers build, then they wait while the kernels are
    measured one by one on a quiet machine. Building beside a measurement would disturb it by much more than the
    differences that a tuner looks for, on a machine whose cores both need.
    """

    def __init__(
        self,
        target: Target | None = None,
        *,
        workers: int | None = None,
        threads: int | None = None,
        rule: Rule | None = None,
        cold: bool = False,
        build_limit: float = 20.0,
        run_limit: float = 5.0,
    ) -> None:
        """``workers`` build at once, kernels run on ``threads`` (both by default: the cores of this process).

        ``rule`` says when enough has been measured. ``cold``: constants come from memory in every timed run. No build
        may take more than ``build_limit`` seconds of processor time, and no kernel, with its check, more than
        ``run_limit`` seconds.
        """
        self.target = target or host()
        self.threads = threads or available_cores()
        self.cold = cold
        self.rule = rule or Adaptive()
        self._server = ForkServer()
        self._builder = Builder(self._server, self.target, workers or available_cores(), build_limit)
        self._runner = Runner(self._server, self.target, self.threads, cold, run_limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes."""
        self._server.close()

    def default(self, task: Task) -> Trial:
        """The trial of what is compiled without tuning."""
        template = template_for(task, self.target)
        return Trial(task, template.name, template.space(task, self.target).default)

    def prepare(self, task: Task, examples: Examples | None = None) -> None:
        """Fixes the arrays that a task's kernels are tried on; without a call, random ones are drawn on first use.

        ``examples``: logical inputs by name, and the outputs that belong to them. Raises what the reference raises.
        """
        self._runner.prepare(self._builder.packet(task), examples)

    def build(self, trials: Sequence[Trial]) -> list[Build]:
        """Kernels, or why there are none, in the order of the trials."""
        return self._builder.build(trials)

    def measure(self, trial: Trial, build: Build, incumbent: float | None = None) -> Measurement:
        """What became of one trial that is built. ``incumbent``: the seconds to beat; a clear loser is soon let go."""
        if build.kernel is None or build.image is None:
            return Measurement((), "build failed", build.error, build.seconds)
        packet = self._builder.packet(trial.task)
        made = self._runner.measure(packet, build.kernel, build.image, self.rule, incumbent)
        return replace(made, build_seconds=build.seconds, trace=build.trace)

    def evaluate(self, trials: Sequence[Trial], incumbent: float | None = None) -> list[Measurement]:
        """What became of every trial. They all race against the incumbent, and against the best of themselves."""
        builds = self.build(trials)
        order = sorted(range(len(trials)), key=lambda i: id(trials[i].task))  # a task's arrays are made once
        results: dict[int, Measurement] = {}
        best = math.inf if incumbent is None else incumbent
        for i in order:
            results[i] = self.measure(trials[i], builds[i], best if best < math.inf else None)
            best = min(best, results[i].seconds)
        return [results[i] for i in range(len(trials))]

    def compare(self, first: Trial, second: Trial, rounds: int = 31, batch_seconds: float = 500e-6) -> Comparison:
        """Both measured alternately in one process; the tasks may differ, such as two algorithms for one operator.

        Replace the first by the second only if ``second_wins``.
        """
        one, two = self.build((first, second))
        return self.compare_built((first, one), (second, two), rounds, batch_seconds)

    def compare_built(
        self, first: tuple[Trial, Build], second: tuple[Trial, Build], rounds: int = 31, batch_seconds: float = 500e-6
    ) -> Comparison:
        """See :meth:`compare`; of trials that are built."""
        kernels = []
        for trial, build in (first, second):
            if build.kernel is None or build.image is None:
                return Comparison(outcome="build failed", error=build.error)
            kernels.append((self._builder.packet(trial.task), build.kernel, build.image))
        return self._runner.compare(kernels[0], kernels[1], rounds, batch_seconds)
