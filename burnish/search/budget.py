"""Search budget, progress events, and the report with the reason why a search stopped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from burnish.errors import ParameterError

Candidate = TypeVar("Candidate")

StopReason = Literal["trials", "seconds", "exhausted", "interrupted"]


@dataclass(frozen=True)
class Budget:
    """Search budget: at most ``trials`` and ``seconds``; None is no limit. `clock` gives seconds, never going back."""

    trials: int | None = None
    seconds: float | None = None
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise ParameterError(f"Budget: trials={self.trials}; it must be at least 1, or None for no limit")
        if self.seconds is not None and not self.seconds > 0:
            raise ParameterError(f"Budget: seconds={self.seconds}; it must be above 0, or None for no limit")


@dataclass(frozen=True)
class SearchTrial:
    """One entry of a history: the trial's number from 1, the seconds after the start, its cost (inf: it failed)."""

    number: int
    seconds: float
    cost: float


@dataclass(frozen=True)
class Event:
    """Progress after a trial: `best` is the least cost so far, `seconds_left` an estimate (None without any limit)."""

    trial: SearchTrial
    best: float
    trials_left: int | None
    seconds_left: float | None


@dataclass(frozen=True)
class SearchReport(Generic[Candidate]):
    """Search result: `best` is None and `cost` is inf if no trial succeeded."""

    best: Candidate | None
    cost: float
    trials: int
    seconds: float
    stop_reason: StopReason
    history: tuple[SearchTrial, ...]


class Tally(Generic[Candidate]):
    """Counts a search's trials against its budget from the moment it is made, and keeps the best.

    `stop_reason` is None while the search may go on; `progress` is called after every trial.
    """

    def __init__(self, budget: Budget, progress: Callable[[Event], None] | None = None) -> None:
        self.budget = budget
        self.best: Candidate | None = None
        self.cost = math.inf
        self._progress = progress
        self._start = budget.clock()
        self._history: list[SearchTrial] = []
        self._stopped: StopReason | None = None

    @property
    def trials(self) -> int:
        """Trials recorded."""
        return len(self._history)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self.budget.clock() - self._start

    @property
    def trials_left(self) -> int | None:
        """Trials that the budget still allows; None without a limit."""
        return None if self.budget.trials is None else max(0, self.budget.trials - self.trials)

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the budget still allows; None without a limit."""
        return None if self.budget.seconds is None else max(0.0, self.budget.seconds - self.seconds)

    @property
    def stop_reason(self) -> StopReason | None:
        """Reason to stop the search now; None if it may go on."""
        if self._stopped is None and self.trials_left == 0:
            self._stopped = "trials"
        if self._stopped is None and self.seconds_left == 0:
            self._stopped = "seconds"
        return self._stopped

    def batch(self, count: int) -> int:
        """Size of the next batch of trials, at most `count`: 0 when the search has to stop."""
        if self.stop_reason is not None:
            return 0
        return count if self.trials_left is None else min(count, self.trials_left)

    def record(self, candidate: Candidate, cost: float) -> None:
        """Counts one trial; `cost` is inf if it failed. ValueError if it is not a number."""
        if math.isnan(cost):
            raise ValueError(f"record: cost {cost} of {candidate}; a failed trial costs inf")
        trial = SearchTrial(self.trials + 1, self.seconds, cost)
        self._history.append(trial)
        if cost < self.cost:
            self.best, self.cost = candidate, cost
        if self._progress is not None:
            self._progress(Event(trial, self.cost, self.trials_left, self._estimate(trial.seconds)))

    def _estimate(self, elapsed: float) -> float | None:
        """Seconds left by the clock or at the mean pace of the trials, whichever ends the search first."""
        left = [] if self.seconds_left is None else [self.seconds_left]
        if self.trials_left is not None:
            left.append(self.trials_left * elapsed / self.trials)
        return min(left, default=None)

    def stop(self, reason: StopReason) -> None:
        """Ends the search for a reason that the budget does not know; the first reason stays."""
        self._stopped = self.stop_reason or reason

    def report(self) -> SearchReport[Candidate]:
        """The report of a search that has stopped. ValueError while it may go on."""
        if self.stop_reason is None:
            raise ValueError("report: the search may still go on; call stop(reason) first")
        return SearchReport(self.best, self.cost, self.trials, self.seconds, self.stop_reason, tuple(self._history))
