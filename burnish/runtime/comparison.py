"""Two programs that compute the same, timed in turns: which is faster, and how sure that is."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from burnish.runtime.module import Module
from burnish.runtime.samples import random_inputs

ROUNDS, ROUND_SECONDS = 25, 0.02  # of the comparison of two modules,
TURNS = 3  # which ends after as many rounds again, or once more, where so many do not decide
PROFILES, PROFILE_RUNS = 6, 4  # of each module whose kernels are timed
NARROW = 0.02  # the width of an interval that another comparison would not make say otherwise
_SAMPLES = 2000  # bootstrap samples: the ends of a 95 % interval then vary by less than the noise of times


@dataclass(frozen=True)
class Comparison:
    """Two kernels that took turns. ``ratio``: median over the rounds of the second's time over the first's.

    With 95 % confidence it lies between ``low`` and ``high``. ``times`` holds the two kernels' seconds a run, by round.
    If one of them could not be run, ``outcome`` and ``error`` tell so, and the ratio is NaN.
    """

    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    times: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    outcome: str = "ok"
    error: str = ""

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


def compare_modules(first: Module, second: Module) -> Comparison:
    """Two modules with the same inputs, timed in turns on random ones, each the first in every other round."""
    feeds = random_inputs(first.inputs, seed=0)

    def seconds(module: Module, calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            module(**feeds)
        return (time.perf_counter() - began) / calls

    usual = min(seconds(module, 2) for module in (first, second, first, second))
    calls = max(1, round(ROUND_SECONDS / usual))
    times: tuple[list[float], list[float]] = ([], [])
    pairs = list(zip((first, second), times, strict=True))
    for number in range(TURNS * ROUNDS):
        for module, mine in pairs if number % 2 else reversed(pairs):
            mine.append(seconds(module, calls))
        if (number + 1) % ROUNDS == 0 and (found := compare_times(*times)).decides:
            break
    return found


def kernel_seconds(modules: Sequence[Module]) -> list[list[float]]:
    """What every kernel call takes, by module. Modules with the same inputs, profiled in turns on random ones: the
    least median counts, so that a slow moment of the machine is no kernel's fault.
    """
    return [
        [min(seconds for _, seconds in calls) for calls in zip(*profiled, strict=True)]
        for profiled in zip(*profiles(modules, PROFILES, PROFILE_RUNS), strict=True)
    ]


def profiles(modules: Sequence[Module], rounds: int, runs: int) -> list[list[list[tuple[str, float]]]]:
    """By round and module every kernel call: its nodes, and the median of its seconds in so many runs.

    Modules with the same inputs, in turns on random ones, and in the opposite order in every other round.
    """
    feeds = random_inputs(modules[0].inputs, seed=0)
    found = []
    for number in range(rounds):
        order = list(modules) if number % 2 else list(reversed(modules))
        made = [[(r.node, 1e-6 * r.microseconds) for r in m.profile(repeat=runs, **feeds)] for m in order]
        found.append(made if number % 2 else made[::-1])
    return found
