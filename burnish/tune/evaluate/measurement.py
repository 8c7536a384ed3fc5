"""What is known of a candidate after it was tried."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from burnish.schedule.schedule import Call

OUTCOMES = ("ok", "wrong", "crashed", "timeout", "build failed")

_SAMPLES = 2000  # bootstrap samples: the ends of a 95 % interval then vary by less than the noise of times


@dataclass(frozen=True)
class Measurement:
    """``times``: seconds a run, of every timed batch; none unless the ``outcome``, one of OUTCOMES, is ``ok``.

    ``error`` says what happened otherwise. ``build_seconds`` and ``run_seconds`` are what building, and loading,
    checking and measuring took. ``stop`` is why measuring ended: ``steady``, ``enough`` or ``lost`` (then the times are
    few, but enough to know that the incumbent is faster). ``trace`` is that of the schedule.
    """

    times: tuple[float, ...] = ()
    outcome: str = "ok"
    error: str = ""
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    stop: str = ""
    trace: Sequence[Call] = ()

    @property
    def seconds(self) -> float:
        """The median of the times; infinite without times."""
        return statistics.median(self.times) if self.times else math.inf


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


def compare_times(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Comparison:
    """The comparison of paired times: the interval is the percentile bootstrap of the median ratio.

    Source: Efron, Tibshirani: An Introduction to the Bootstrap, chapter 13.
    """
    ratios = np.asarray(second, np.float64) / np.asarray(first, np.float64)
    rows = np.random.default_rng(seed).integers(0, len(ratios), (_SAMPLES, len(ratios)))
    low, high = np.percentile(np.median(ratios[rows], axis=1), (2.5, 97.5))
    return Comparison(float(np.median(ratios)), float(low), float(high), (tuple(first), tuple(second)))
