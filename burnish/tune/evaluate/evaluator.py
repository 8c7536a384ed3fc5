"""Evaluator of candidates: builds, checks and times them, and returns measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from burnish.boards.leasing import Devices
from burnish.kernels.task import KernelTask
from burnish.kernels.templates import first_match
from burnish.machines.target import Target, host
from burnish.measure.comparison import Comparison
from burnish.runtime.devices import usual_threads
from burnish.runtime.pool import available_cores
from burnish.tune.evaluate.building import Build, KernelTrial, TrialBuilder
from burnish.tune.evaluate.measurement import Measurement
from burnish.tune.evaluate.pooled import PoolRunner
from burnish.tune.evaluate.reference import Examples
from burnish.tune.evaluate.running import KernelRunner, Loadable, Runner
from burnish.tune.evaluate.stopping import Adaptive, Rule
from burnish.workers import ForkServer


class Evaluator:
    """Build and measurement of candidates in worker processes, so that this process survives their crashes: on this
    machine, its CPU or the device that runs the target's code, or on boards.

    Use it as a context; for one thread.

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
        devices: Devices | None = None,
    ) -> None:
        """``workers`` build at once, kernels run on ``threads`` (both by default: the cores of this process; one thread
        where another device runs the target's code).

        ``rule`` says when enough has been measured. ``cold``: constants come from memory in every timed run. No build
        may take more than ``build_limit`` seconds of processor time, and no kernel, with its check, more than
        ``run_limit`` seconds. ``devices``: boards that kernels are measured on, on one thread by default, instead of
        this machine.
        """
        self.target = target or host()
        self.threads = threads or (1 if devices is not None else usual_threads(self.target))
        self.cold = cold
        self.rule = rule or Adaptive()
        self._server = ForkServer("burnish.tune.evaluate.worker")
        self._builder = TrialBuilder(self._server, self.target, workers or available_cores(), build_limit)
        setting = (self._server, self.target, self.threads, cold, run_limit)
        self._runner: KernelRunner = Runner(*setting) if devices is None else PoolRunner(*setting, devices)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes."""
        self._server.close()

    def default(self, task: KernelTask) -> KernelTrial:
        """The trial of what is compiled without tuning."""
        match = first_match(task, self.target)
        return KernelTrial(task, match.name, match.space.default)

    def prepare(self, task: KernelTask, examples: Examples | None = None) -> None:
        """Fixes the arrays that a task's kernels are tried on; without a call, random ones are drawn on first use.

        ``examples``: logical inputs by name, and the outputs that belong to them. Raises what the reference raises.
        """
        self._runner.prepare(self._builder.packet(task), examples)

    def build(self, trials: Sequence[KernelTrial]) -> list[Build]:
        """Kernels, or why there are none, in the order of the trials."""
        return self._builder.build(trials)

    def measure(
        self, trial: KernelTrial, build: Build, incumbent: tuple[KernelTrial, Build] | None = None, to_beat: float = 1.0
    ) -> Measurement:
        """Measurement of one built trial.

        ``incumbent``: a right kernel of the same operator to take turns with, so that the machine's changes of speed,
        which come and go within milliseconds, hit both: their ratio is known several times better than either time. One
        that clearly takes more than ``to_beat`` times as long is soon let go.
        """
        candidate = self._loadable(trial, build)
        if candidate is None:
            return Measurement((), "build failed", build.error, build.seconds)
        made = self._runner.measure(candidate, self.rule, self._loadable(*incumbent) if incumbent else None, to_beat)
        return replace(made, build_seconds=build.seconds, trace=build.trace)

    def evaluate(self, trials: Sequence[KernelTrial]) -> list[Measurement]:
        """Measurements of trials, each on its own."""
        return [self.measure(trial, build) for trial, build in zip(trials, self.build(trials), strict=True)]

    def compare(
        self, first: KernelTrial, second: KernelTrial, rounds: int = 31, batch_seconds: float = 500e-6
    ) -> Comparison:
        """Both measured alternately in one process; the tasks may differ, such as two algorithms for one operator.

        Replace the first by the second only if ``second_wins``.
        """
        one, two = self.build((first, second))
        return self.compare_built((first, one), (second, two), rounds, batch_seconds)

    def compare_built(
        self,
        first: tuple[KernelTrial, Build],
        second: tuple[KernelTrial, Build],
        rounds: int = 31,
        batch_seconds: float = 500e-6,
    ) -> Comparison:
        """See :meth:`compare`; of trials that are built."""
        one, other = self._loadable(*first), self._loadable(*second)
        if one is None or other is None:
            return Comparison(outcome="build failed", error=first[1].error or second[1].error)
        return self._runner.compare(one, other, rounds, batch_seconds)

    def _loadable(self, trial: KernelTrial, build: Build) -> Loadable | None:
        """Packet, kernel and image that the measuring worker loads; None if the trial could not be built."""
        if build.kernel is None:
            return None
        return self._builder.packet(trial.task), build.kernel, build.image
