"""Measured candidates of one kernel, shared by all searches of a study: none is built or measured twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from burnish.search.space import Points
from burnish.tune.evaluate import Build, Evaluator, Measurement, Trial
from burnish.tune.evaluate.rules import Rule
from burnish.tune.tasks import TuningTask


@dataclass(frozen=True)
class Known:
    """What one candidate costs: `seconds` a run, infinite if it fails; and what trying it took."""

    seconds: float
    building: float
    measuring: float


class Oracle:
    """Costs of a kernel's candidates by a rule of measuring.

    Each batch that has anything new is measured between two measurements of the default, the faster of which then and
    at first tell how much faster or slower the machine has become; the times are freed of that. Candidates do not race,
    so that what one search has measured serves all.
    """

    def __init__(self, task: TuningTask, evaluator: Evaluator, rule: Rule) -> None:
        self.task = task
        self.known: dict[int, Known] = {}
        self._evaluator = evaluator
        self._rule = rule
        self._reference: float | None = None

    def ask(self, points: Points) -> list[Known]:
        """What is known of points (n, width), after measuring those that are new."""
        keys = self.task.space.space.keys(points).tolist()
        fresh = {key: row for row, key in enumerate(keys) if key not in self.known}
        if fresh:
            self._measure(list(fresh), points[list(fresh.values())])
        return [self.known[key] for key in keys]

    def settle(self, within: float, least: int, most: int, rounds: int) -> None:
        """Measures the fastest anew, in turns: those up to `within` times the least known time, `least` to `most`.

        The lowest of many times, each measured once, is lower than it should be. In each round every one is measured
        once; its time is then the median of what it takes over the round's geometric mean.
        """
        worked = [key for key, each in self.known.items() if each.seconds < inf]
        if not worked:
            return
        keys = sorted(worked, key=lambda key: self.known[key].seconds)[:most]
        before = np.array([self.known[key].seconds for key in keys])
        before = before[: max(least, int((before <= within * before[0]).sum()))]
        keys = keys[: len(before)]
        trials = [self.trial(point) for point in self.task.space.space.at(np.array(keys))]
        table = np.log(self._turns(trials, self._evaluator.build(trials), rounds))
        relative = np.median(table - table.mean(axis=0), axis=1)
        seconds = np.exp(relative - np.median(relative) + np.median(np.log(before)))
        for key, cost in zip(keys, seconds.tolist(), strict=True):
            self.known[key] = replace(self.known[key], seconds=cost)

    def trial(self, point: NDArray[np.int32]) -> Trial:
        """The candidate at a point (width)."""
        candidate = self.task.space.candidate(point)
        return Trial(candidate.alternative.task, candidate.alternative.template.name, candidate.choice)

    def _measure(self, keys: Sequence[int], points: Points) -> None:
        default = self.trial(self.task.space.point(self.task.space.default))
        trials = [default, *(self.trial(point) for point in points), default]
        began = time.perf_counter()
        builds = self._evaluator.build(trials[:-1])
        building = (time.perf_counter() - began) / len(builds)  # several build at once: a share of the batch's time
        first, *made, last = self._time(trials, [*builds, builds[0]])
        now = min(first[0].seconds, last[0].seconds)
        self._reference = self._reference or now
        for key, (found, took) in zip(keys, made, strict=True):
            self.known[key] = Known(found.seconds * self._reference / now, building, took)

    def _time(self, trials: Sequence[Trial], builds: Sequence[Build]) -> list[tuple[Measurement, float]]:
        """What became of every trial, and the seconds that measuring it took: of two rounds the faster time.

        What else a machine does makes times longer only, and comes in bursts that are longer than a measurement.
        """
        self._evaluator.rule = self._rule
        first, second = ([self._timed(*pair) for pair in zip(trials, builds, strict=True)] for _ in range(2))
        return [min(pair, key=lambda made: made[0].seconds) for pair in zip(first, second, strict=True)]

    def _timed(self, trial: Trial, build: Build) -> tuple[Measurement, float]:
        began = time.perf_counter()
        made = self._evaluator.measure(trial, build)
        return made, time.perf_counter() - began

    def _turns(self, trials: Sequence[Trial], builds: Sequence[Build], rounds: int) -> NDArray[np.float64]:
        """Seconds (trials, rounds) of kernels that take turns."""
        self._evaluator.rule = self._rule
        measure, pairs = self._evaluator.measure, list(zip(trials, builds, strict=True))
        return np.array([[measure(*pair).seconds for pair in pairs] for _ in range(rounds)]).T
