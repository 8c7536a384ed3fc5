"""Paired timing of two programs that compute the same, in turns: which is faster, and how sure that is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.runtime.module import Module

ROUNDS, ROUND_SECONDS = 25, 0.02  # of the comparison of two modules,
TURNS = 3  # which ends after as many rounds again, or once more, where so many do not decide,
MOST_SECONDS, FEW = 60.0, 5  # or when it has taken so long, with these rounds at least
PROFILES, PROFILE_RUNS = 6, 4  # of each module whose kernels are timed
NARROW = 0.02  # the width of an interval that another comparison would not make say otherwise
_SAMPLES = 2000  # bootstrap samples: the ends of a 95 % interval then vary by less than the noise of times


@dataclass(frozen=True)
class Comparison:
    """Two kernels that took turns. ``ratio``: median over the rounds of the second's time over the first's.

    With 95 % confidence it lies between ``low`` and ``high``. ``times`` holds the two kernels' seconds a run, by round.
    If one of them could not be run, or answers differ, ``outcome`` and ``error`` tell so, and the ratio is NaN.
    ``culprit``: which of the two failed, 0 or 1, if that is known. ``difference``: the largest error of the second's
    answers by the first's, of their scale; NaN where they were not compared.
    """

    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    times: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    outcome: str = "ok"
    error: str = ""
    culprit: int | None = None
    difference: float = math.nan

    @property
    def second_wins(self) -> bool:
        """Whether the second kernel is faster with confidence; otherwise the first should stay."""
        return self.outcome == "ok" and self.high < 1.0

    @property
    def decides(self) -> bool:
        """Whether another comparison should say the same: the interval excludes 1, or is narrow."""
        return self.outcome == "ok" and (self.high < 1.0 or self.low > 1.0 or self.high - self.low <= NARROW)


def compare_times(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Comparison:
    """The comparison of paired times: the interval is the percentile bootstrap of the median ratio.

    Source: Efron, Tibshirani: An Introduction to the Bootstrap, chapter 13.
    """
    ratios = np.asarray(second, np.float64) / np.asarray(first, np.float64)
    rows = np.random.default_rng(seed).integers(0, len(ratios), (_SAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[rows], axis=1), (2.5, 97.5))
    return Comparison(float(np.median(ratios)), float(low), float(high), (tuple(first), tuple(second)))


def seconds_of_a_call(module: Module, feeds: Mapping[str, np.ndarray], calls: int = 1) -> float:
    """Wall-clock seconds of a call, the mean of several in a row; by a GPU's own clock where it runs all of them."""
    if module.has_clock:
        module(**feeds)
        return sum(module.replays(calls)) / calls
    began = time.perf_counter()
    for _ in range(calls):
        module(**feeds)
    return (time.perf_counter() - began) / calls


def time_in_turns(
    first: Module,
    second: Module,
    feeds: Mapping[str, np.ndarray],
    alive: Callable[[], None] = lambda: None,
    most_seconds: float = MOST_SECONDS,
    others: Mapping[str, np.ndarray] | None = None,
) -> Comparison:
    """Two modules with the same inputs, or the second with ``others``, timed in turns, each the first in every other
    round; by a GPU's own clock where it runs all of them.

    ``alive`` is called between their turns. It ends after ``most_seconds``, if `FEW` rounds are through.
    """

    def seconds(module: Module, calls: int) -> float:
        took = seconds_of_a_call(module, feeds if module is first or others is None else others, calls)
        alive()
        return took

    started = time.perf_counter()
    usual = min(seconds(module, 1) for module in (first, second, first, second))
    calls = max(1, round(min(ROUND_SECONDS, most_seconds / ROUNDS / 2) / max(usual, 1e-9)))
    times: tuple[list[float], list[float]] = ([], [])
    pairs = list(zip((first, second), times, strict=True))
    for number in range(1, TURNS * ROUNDS + 1):
        for module, mine in reversed(pairs) if number % 2 else pairs:
            mine.append(seconds(module, calls))
        late = number >= FEW and time.perf_counter() - started > most_seconds
        if (number % ROUNDS == 0 or late) and ((found := compare_times(*times)).decides or late):
            break
    return found


def profiled(
    modules: Sequence[Module], rounds: int, runs: int, feeds: Mapping[str, np.ndarray],
    alive: Callable[[], None] = lambda: None,
) -> list[list[list[tuple[str, float]]]]:  # fmt: skip
    """Kernel profile by round and module: for every call its nodes, and the median of its seconds in ``runs`` runs.

    Modules with the same inputs, in turns, and in the opposite order in every other round. ``alive`` is called between
    them.
    """
    found = []
    for number in range(rounds):
        order = list(modules) if number % 2 else list(reversed(modules))
        made = []
        for module in order:
            made.append([(row.node, 1e-6 * row.microseconds) for row in module.profile(repeat=runs, **feeds)])
            alive()
        found.append(made if number % 2 else made[::-1])
    return found
