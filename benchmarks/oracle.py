"""Measured candidates of one kernel, shared by all searches of a study: none is built or measured twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from burnish.search.space import Points
from burnish.tune.evaluate import Build, Evaluator, KernelTrial, Measurement, PairedMeasurer
from burnish.tune.evaluate.stopping import Rule
from burnish.tune.strategy import BURNISH
from burnish.tune.tasks import TuningTask
from burnish.tune.validation import trial_of


@dataclass(frozen=True)
class Known:
    """Measured cost of one candidate: `seconds` a run, infinite if it fails; and what trying it took."""

    seconds: float
    building: float
    measuring: float


class Oracle:
    """Costs of a kernel's candidates, each measured in turns with the same one, as in a session."""

    def __init__(self, task: TuningTask, evaluator: Evaluator, rule: Rule = BURNISH.rule) -> None:
        self.task = task
        self.known: dict[int, Known] = {}
        self._evaluator, self._rule = evaluator, rule
        self._race = PairedMeasurer(evaluator)

    def ask(self, points: Points) -> list[Known]:
        """Measurements of points (n, width); new points are measured first."""
        keys = self.task.space.space.keys(points).tolist()
        fresh = {key: row for row, key in enumerate(keys) if key not in self.known}
        if fresh:
            self._evaluator.rule = self._rule
            self._measure(list(fresh), [self.trial(point) for point in points[list(fresh.values())]])
        return [self.known[key] for key in keys]

    def settle(self, within: float, least: int, most: int, rounds: int) -> None:
        """Compares the fastest anew, once a round: those up to `within` times the least cost, `least` to `most`.

        The lowest of many times, each measured once, is lower than it should be.
        """
        keys = sorted((key for key, each in self.known.items() if each.seconds < inf), key=self._seconds)[:most]
        bar = within * self._race.seconds
        keys = [key for place, key in enumerate(keys) if place < least or self._seconds(key) <= bar]
        trials = [self.trial(point) for point in self.task.space.space.at(np.array(keys))]
        pairs = list(zip(trials, self._evaluator.build(trials), strict=True))
        costs = np.median([[self._race.compare(*pair) for pair in pairs] for _ in range(rounds)], axis=0)
        for key, cost in zip(keys, costs.tolist(), strict=True):
            self.known[key] = replace(self.known[key], seconds=cost)

    @property
    def scale(self) -> float:
        """Seconds that a candidate of cost 1 takes; see `Race`."""
        return self._race.scale

    def trial(self, point: NDArray[np.int32]) -> KernelTrial:
        """The candidate at a point (width)."""
        return trial_of(self.task.space.candidate(point))

    def _seconds(self, key: int) -> float:
        return self.known[key].seconds

    def _built(self, trials: Sequence[KernelTrial]) -> tuple[list[Build], float]:
        """The trials, built, and the seconds of each: several build at once, so that it is a share of the batch's."""
        began = time.perf_counter()
        builds = self._evaluator.build(trials)
        return builds, (time.perf_counter() - began) / len(builds)

    def _measure(self, keys: Sequence[int], trials: Sequence[KernelTrial]) -> None:
        builds, building = self._built(trials)
        for key, trial, build in zip(keys, trials, builds, strict=True):
            began = time.perf_counter()
            _, cost = self._race.measure(trial, build)
            self.known[key] = Known(cost, building, time.perf_counter() - began)


class Apart(Oracle):
    """Costs by a rule that measures every candidate on its own, as the published systems do.

    Each batch that has anything new is measured between two measurements of the default, the faster of which then and
    at first tell how much faster or slower the machine has become; the times are freed of that.
    """

    _reference: float | None = None

    def _measure(self, keys: Sequence[int], trials: Sequence[KernelTrial]) -> None:
        default = self.trial(self.task.space.point(self.task.space.default))
        trials = [default, *trials]
        builds, building = self._built(trials)
        first, *made, last = self._time([*trials, default], [*builds, builds[0]])
        now = min(first[0].seconds, last[0].seconds)
        self._reference = self._reference or now
        for key, (found, took) in zip(keys, made, strict=True):
            self.known[key] = Known(found.seconds * self._reference / now, building, took)

    def _time(self, trials: Sequence[KernelTrial], builds: Sequence[Build]) -> list[tuple[Measurement, float]]:
        """Outcome of every trial, and the seconds that measuring it took: of two rounds the faster time.

        What else a machine does makes times longer only, and comes in bursts that are longer than a measurement.
        """
        first, second = ([self._timed(*pair) for pair in zip(trials, builds, strict=True)] for _ in range(2))
        return [min(pair, key=lambda made: made[0].seconds) for pair in zip(first, second, strict=True)]

    def _timed(self, trial: KernelTrial, build: Build) -> tuple[Measurement, float]:
        began = time.perf_counter()
        made = self._evaluator.measure(trial, build)
        return made, time.perf_counter() - began
