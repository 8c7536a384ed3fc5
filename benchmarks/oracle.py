"""Measured candidates of one kernel, shared by all searches of a study: none is built or measured twice."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

from burnish.search.space import Points
from burnish.tune.evaluate import Evaluator, Trial
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

    Each batch that has anything new is measured beside the default, whose time then and at first tell how much faster
    or slower the machine has become; the times are freed of that. Candidates do not race, so that what one search has
    measured serves all.
    """

    def __init__(self, task: TuningTask, evaluator: Evaluator, rule: Rule) -> None:
        self.task = task
        self.measured = 0
        self._evaluator = evaluator
        self._rule = rule
        self._known: dict[int, Known] = {}
        self._reference: float | None = None

    def ask(self, points: Points) -> list[Known]:
        """What is known of points (n, width), after measuring those that are new."""
        keys = self.task.space.space.keys(points).tolist()
        fresh = {key: row for row, key in enumerate(keys) if key not in self._known}
        if fresh:
            self._measure(list(fresh), points[list(fresh.values())])
        return [self._known[key] for key in keys]

    def _measure(self, keys: list[int], points: Points) -> None:
        candidates = [self.task.space.default, *(self.task.space.candidate(point) for point in points)]
        trials = [Trial(c.alternative.task, c.alternative.template.name, c.choice) for c in candidates]
        evaluator = self._evaluator
        began = time.perf_counter()
        builds = evaluator.build(trials)
        building = (time.perf_counter() - began) / len(trials)  # several build at once: a share of the batch's time
        evaluator.rule = self._rule
        drift = 1.0
        for place, (trial, build) in enumerate(zip(trials, builds, strict=True)):
            began = time.perf_counter()
            made = evaluator.measure(trial, build)
            took = time.perf_counter() - began
            if place == 0:
                self._reference = self._reference or made.seconds
                drift = made.seconds / self._reference
                continue
            seconds = made.seconds / drift if made.outcome == "ok" else inf
            self._known[keys[place - 1]] = Known(seconds, building, took)
            self.measured += 1
