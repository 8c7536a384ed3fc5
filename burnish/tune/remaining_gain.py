"""Expected remaining gain of a search, forecast by extreme-value theory: by it tuning time is allocated and stopped.

The lowest costs a search has drawn lately follow, in the logarithm, a generalized Pareto distribution (peaks over a
threshold: Pickands 1975). It is fitted by probability-weighted moments (Hosking and Wallis 1987), and says how far the
lowest of so many further draws should lie below the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

RECENT = 0.5  # the share of the trials, the last ones, that stand for those to come
LEAST = 16  # trials of them, if there are so many
TAIL = 0.4  # the share of those that make up the tail
SHAPES = (-3.0, 0.2)  # of tails that are believed: from one that piles up at its end to a heavy one
# Before it is seen, a tail is believed to have this scale and shape, weighed as so many of its draws.
PRIOR_SCALE, SCALE_DRAWS = 0.08, 0.5
PRIOR_SHAPE, SHAPE_DRAWS = -0.5, 2.0
FIRST_SCALE = 0.1  # of a kind of which one candidate was tried, its template's choice: how far its best lies below
FIRST_SHARE = 0.3  # of its other candidates, the share that is faster than that one
# Draws of a young search are mostly neighbours of what templates choose, and say little of those a model will propose:
# the next of n + 1 draws is the lowest so often at least (of the 1 / (n + 1) for draws alike), on such a scale.
YOUNG = 24  # draws
RECORD, RECORD_SCALE = 0.3, 0.08
LATER = 0.3  # of an older one, which has gone down already: what is left of the chance by its tail
WORTHLESS = 1e-5  # a draw that is expected to save less is not made for its own sake
ENDED = 0.5  # the (negative) shape from which the end of a tail, and not its mean, says how long it is
_POINTS = 256


@dataclass(frozen=True)
class Forecast:
    """Tail distribution of a search: a draw undercuts the best by t in log cost with probability ``at_best * S(t)``.

    ``S`` is the survival function of the generalized Pareto distribution of this ``scale`` and ``shape``.
    """

    at_best: float
    scale: float
    shape: float

    def gain(self, draws: int) -> float:
        """Expected gain of ``draws`` more draws: the share of the best cost that they save, from 0 to 1."""
        if self.scale <= 0 or draws <= 0 or self.at_best <= 0:
            return 0.0
        end = -self.scale / self.shape if self.shape < 0 else 30 * self.scale
        depths = np.linspace(0.0, end, _POINTS)
        undercut = -np.expm1(draws * np.log1p(-self.at_best * _survival(depths, self.scale, self.shape)))
        # The mean of 1 - exp(-t) over the deepest draw is the integral of exp(-t) P(deeper than t).
        return float(min(1.0, np.trapezoid(np.exp(-depths) * undercut, depths)))


@dataclass(frozen=True)
class Mixture:
    """Draws of several kinds: of each its tail, the share of the draws that it has, and how many are left of it."""

    parts: tuple[tuple[Forecast, float, int], ...]

    def gain(self, draws: int) -> float:
        """As :meth:`Forecast.gain`; kinds save independently of each other."""
        kept = 1.0
        for tail, share, left in self.parts:
            kept *= 1.0 - tail.gain(min(round(share * draws), left))
        return 1.0 - kept


def _survival(depths: np.ndarray, scale: float, shape: float) -> np.ndarray:
    if abs(shape) < 1e-6:
        return np.exp(-depths / scale)
    return np.maximum(1.0 + shape * depths / scale, 0.0) ** (-1.0 / shape)


def mixture_forecast(costs: Sequence[float], kinds: Sequence[int], sizes: Sequence[int]) -> Mixture | None:
    """The tails of ``costs`` by kind (which algorithm and template); ``sizes``: the candidates that each kind has.

    A kind that leads by far says nothing about how far another may go, and one that was tried whole gains no more. What
    a search draws at first and later is not alike: neither are their tails. None before two candidates succeeded of a
    kind that has more.
    """
    every, kind = np.asarray(costs, dtype=float), np.asarray(kinds)
    recent = kind[-max(LEAST, round(RECENT * len(every))) :]
    left = [size - int((kind == number).sum()) for number, size in enumerate(sizes)]
    total = sum(int((recent == number).sum()) for number, more in enumerate(left) if more > 0)
    parts = []
    for number, more in enumerate(left):
        share = int((recent == number).sum()) / max(1, total)
        own = every[kind == number]
        tail = forecast(own.tolist(), float(every.min())) if more > 0 and share else None
        if tail is not None:
            parts.append((_searched(tail, len(own), own.min() == every.min()), share, more))
    return Mixture(tuple(parts)) if parts or not any(left) else None


def _searched(tail: Forecast, draws: int, leads: bool) -> Forecast:
    """The tail of ``draws`` that a search has made, which are not alike; ``leads``: the best of all is one of them."""
    if draws > YOUNG:
        return replace(tail, at_best=LATER * tail.at_best)
    if not leads:
        return tail
    return replace(tail, at_best=max(tail.at_best, RECORD / (draws + 1)), scale=max(tail.scale, RECORD_SCALE))


def allocate_draws(costs: Sequence[float], kinds: Sequence[int], sizes: Sequence[int], count: int) -> list[int]:
    """Allocation of at most ``count`` further draws to kinds: one by one, where the next should save most.

    As :func:`mixture_forecast`; a kind of which less than two candidates succeeded has an exponential tail below the
    first. What no kind is expected to gain from is not allotted.
    """
    every, kind = np.asarray(costs, dtype=float), np.asarray(kinds)
    draws = [0] * len(sizes)
    best = float(every.min(initial=inf))
    if best == inf:
        return draws
    gains = []
    for number, size in enumerate(sizes):
        own = every[kind == number]
        tail = forecast(own.tolist(), best) or _unseen(float(own.min(initial=inf)), best)
        most = min(count, size - len(own))
        gains.append(np.diff([tail.gain(n) for n in range(most + 1)]))
    for _ in range(count):
        left = [own[n] if n < len(own) else 0.0 for own, n in zip(gains, draws, strict=True)]
        number = int(np.argmax(left))
        if left[number] < WORTHLESS:
            break
        draws[number] += 1
    return draws


def _unseen(first: float, best: float) -> Forecast:
    """The tail of a kind of which only one candidate was tried."""
    return Forecast(FIRST_SHARE * (best / first) ** (1.0 / FIRST_SCALE), FIRST_SCALE, 0.0)


def forecast(costs: Sequence[float], best: float = inf) -> Forecast | None:
    """The tail behind ``costs``, those of all trials in order (inf: it failed); None before two of them succeeded.

    ``best``: what further draws have to undercut, where that is less than all of the costs.
    """
    every = np.asarray(costs, dtype=float)
    recent = every[-max(LEAST, round(RECENT * len(every))) :]
    if np.isfinite(recent).sum() < 2:
        recent = every
    good = np.sort(np.log(recent[np.isfinite(recent)]))
    if len(good) < 2:
        return None
    lowest = np.log(min(costs))
    count = max(1, min(len(good) - 1, round(TAIL * len(good))))
    threshold = good[count]
    scale, shape = _fit(threshold - good[:count])
    depth = max(0.0, threshold - lowest)
    if shape < 0:  # the end of the tail lies as far beyond the best as it should beyond the lowest of so many draws
        end = depth * (1.0 + count**shape)
        trust = min(1.0, -shape / ENDED)
        scale = max((1.0 - trust) * scale - trust * shape * end, -shape * end)
    share = (count + 0.5) / (len(recent) + 1)
    depth = max(0.0, threshold - min(lowest, np.log(best)))
    reached = float(_survival(np.array([depth]), scale, shape)[0])
    return Forecast(share * reached, max(0.0, scale + shape * depth), shape)


def _fit(excesses: np.ndarray) -> tuple[float, float]:
    """(scale, shape) of a generalized Pareto distribution by probability-weighted moments, drawn towards the prior."""
    ordered = np.sort(excesses)
    n = len(ordered)
    mean = (ordered.sum() + SCALE_DRAWS * PRIOR_SCALE) / (n + SCALE_DRAWS)
    weighted = float((ordered * np.arange(n - 1, -1, -1)).mean()) / max(1, n - 1)
    own = 2.0 - mean / max(mean - 2 * weighted, 1e-3 * mean)
    shape = (n * float(np.clip(own, *SHAPES)) + SHAPE_DRAWS * PRIOR_SHAPE) / (n + SHAPE_DRAWS)
    return float(mean * (1.0 - shape)), shape
