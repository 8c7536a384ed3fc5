"""Paired measurement of candidates against an incumbent, so that the machine's changes of speed cancel out."""

from __future__ import annotations

from math import inf, isnan

from burnish.tune.evaluate.building import Build, KernelTrial
from burnish.tune.evaluate.evaluator import Evaluator
from burnish.tune.evaluate.measurement import Measurement

ROUNDS, BATCH_SECONDS = 9, 200e-6  # of the comparison of what seems to be the best
FAR = 1.25  # times the cost of the best: an incumbent that slow wastes time, and makes way for the best


class PairedMeasurer:
    """Paired measurement: every candidate takes turns with the same incumbent, and costs as many times as much as it
    takes longer.

    So the machine's changes of speed are in no cost. The incumbent is the first that works, until one is far faster;
    were it always the best so far, each that is taken for better by chance would make all later ones look better, too.
    ``seconds`` is the cost of the best, ``best`` that candidate. Times ``scale`` a cost is what a candidate takes: the
    incumbent's cost is then the least time that it was seen to take.
    """

    def __init__(
        self, evaluator: Evaluator, best: tuple[KernelTrial, Build] | None = None, seconds: float = inf
    ) -> None:
        self._evaluator = evaluator
        self.best = self._incumbent = best
        self.seconds = self._cost = seconds
        self._least = inf

    @property
    def scale(self) -> float:
        """Seconds that a candidate of cost 1 takes."""
        return self._least / self._cost if self._least < inf else 1.0

    def measure(self, trial: KernelTrial, build: Build) -> tuple[Measurement, float]:
        """Measurement of a candidate, and its cost in seconds, infinite if it failed.

        One that seems to be the best is measured once more, and the slower of both counts: the lowest of many noisy
        ratios is lower than it should be, and luck would be what a search finds.
        """
        if self._incumbent is None:
            made = self._evaluator.measure(trial, build)
            cost = made.seconds
        else:
            made = self._evaluator.measure(trial, build, self._incumbent, self.seconds / self._cost)
            cost = made.seconds if isnan(made.ratio) else self._cost * made.ratio
            if made.beside < self._least:
                self._least = made.beside
            if cost < self.seconds:
                cost = max(cost, self.compare(trial, build))
        if cost < self.seconds:
            self.best, self.seconds = (trial, build), cost
            if self._cost > FAR * cost:
                self._incumbent, self._cost, self._least = self.best, cost, min(made.times)
        return made, cost

    def compare(self, trial: KernelTrial, build: Build) -> float:
        """The cost of a candidate by many turns with the incumbent; infinite if it fails."""
        if self._incumbent is None:
            return inf
        found = self._evaluator.compare_built(self._incumbent, (trial, build), ROUNDS, BATCH_SECONDS)
        return self._cost * min(found.times[1]) / min(found.times[0]) if found.outcome == "ok" else inf
