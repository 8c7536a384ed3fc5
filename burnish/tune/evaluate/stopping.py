"""Stopping rules of a measurement: a fixed number of batches, or as soon as enough is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_BATCH = 60e-6  # seconds: a shorter batch understates how fast a kernel is

_CONFIDENCE = statistics.NormalDist().inv_cdf(0.95)
_USUAL_NOISE = 0.05  # standard deviation of a batch over its mean, expected before anything is measured
_EARLY_REJECT = 3.0  # times the incumbent's time
_WEIGHT = 4  # batches that this expectation counts for


@dataclass(frozen=True)
class Adaptive:
    """AdaTune's adaptive evaluator (section 4.1), with a race against an incumbent.

    A batch is as many runs as last ``batch_seconds``. After each, the rates of all batches so far, i/Time(i), are
    looked at; when their coefficient of variation is below ``variation``, after ``most`` batches, or when runs of
    ``enough_seconds`` have been seen, measuring ends. Beside an incumbent, whose batches are taken in turns, the ratios
    of both take the place of times, and measuring also ends when the candidate has lost: in no turn was it as fast, and
    the lower confidence bound of the mean ratio (95 %, one-sided) is above 1. No turns are taken by a candidate that
    takes three times as long. (The paper has variation 0.1 and does not race.)
    """

    variation: float = 0.02
    least: int = 3
    most: int = 20
    batch_seconds: float = 100e-6
    enough_seconds: float = 30e-3

    def __post_init__(self) -> None:
        _check(self.least, self.most, self.batch_seconds)

    def stop(self, times: Sequence[float], incumbents: Sequence[float] = ()) -> str:
        """Stop reason after these batch times (seconds a run): ``lost``, ``steady``, ``enough``, or "" to go on.

        ``incumbents``: those of the incumbent, if there is one, turn by turn.
        """
        seen = [own / other for own, other in zip(times, incumbents, strict=True)] if incumbents else times
        if incumbents and len(seen) > 1 and min(seen) > 1.0 and lower_bound(seen) > 1.0:
            return "lost"
        if len(seen) >= self.least and rate_variation(seen) < self.variation:
            return "steady"
        seconds = sum(times) + sum(incumbents)
        long = len(seen) >= self.least and seconds >= self.enough_seconds  # a long batch is one run
        return "enough" if long or len(seen) >= self.most else ""

    def early_reject(self, seconds: float, incumbent: float) -> bool:
        """Early rejection: whether a candidate of ``seconds`` need not be interleaved with an ``incumbent`` of that
        time.
        """
        return seconds > _EARLY_REJECT * incumbent


@dataclass(frozen=True)
class Fixed:
    """Fixed number of batches, ``repeats``, independent of the times measured (as AutoTVM)."""

    repeats: int = 10
    batch_seconds: float = 100e-6

    def __post_init__(self) -> None:
        _check(self.repeats, self.repeats, self.batch_seconds)

    def stop(self, times: Sequence[float], incumbents: Sequence[float] = ()) -> str:
        """``enough`` after the last batch, else ""."""
        return "enough" if len(times) >= self.repeats else ""

    def early_reject(self, seconds: float, incumbent: float) -> bool:
        """Never: all are measured alike."""
        return False


Rule = Adaptive | Fixed


def rate_variation(times: Sequence[float]) -> float:
    """The coefficient of variation of the rates i/Time(i), i = 1…n, where Time(i) is the sum of the first i times."""
    total, rates = 0.0, []
    for i, seconds in enumerate(times, 1):
        total += seconds
        rates.append(i / total)
    mean = math.fsum(rates) / len(rates)
    return math.sqrt(math.fsum((rate - mean) ** 2 for rate in rates) / len(rates)) / mean


def lower_bound(times: Sequence[float]) -> float:
    """A bound that the mean time is above with 95 % confidence; a few times suffice.

    Student's bound, whose variance is the measured one joined with that of usual noise at the weight of four batches.
    """
    n = len(times)
    mean = math.fsum(times) / n
    spread = math.fsum((t - mean) ** 2 for t in times)
    freedom = _WEIGHT + n - 1
    variance = (_WEIGHT * (_USUAL_NOISE * mean) ** 2 + spread) / freedom
    return mean - _student(freedom) * math.sqrt(variance / n)


def _student(freedom: int) -> float:
    """The 95 % quantile of Student's distribution (Cornish-Fisher expansion; within 1 % from 4 degrees on)."""
    z = _CONFIDENCE
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _check(least: int, most: int, batch_seconds: float) -> None:
    if not 1 <= least <= most:
        raise ValueError(f"measuring {least} to {most} batches, allowed: at least one, and not fewer than the least")
    if batch_seconds < LEAST_BATCH:
        raise ValueError(f"batches of {batch_seconds:g} s, allowed: {LEAST_BATCH:g} s or more")
