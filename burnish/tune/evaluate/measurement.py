"""Measurement of a candidate: outcome, times, and the ratio to an incumbent."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from burnish.schedule.schedule import Call

OUTCOMES = ("ok", "wrong", "crashed", "timeout", "build failed")


@dataclass(frozen=True)
class Measurement:
    """``times``: seconds a run, of every timed batch; none unless the ``outcome``, one of OUTCOMES, is ``ok``.

    ``error`` says what happened otherwise. ``build_seconds`` and ``run_seconds`` are what building, and loading,
    checking and measuring took. ``stop`` is why measuring ended: ``steady``, ``enough`` or ``lost`` (then the times are
    few, but enough to know that the incumbent is faster). ``beside``: the least time of the incumbent that took turns;
    NaN without one. ``trace`` is that of the schedule.
    """

    times: tuple[float, ...] = ()
    outcome: str = "ok"
    error: str = ""
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    stop: str = ""
    beside: float = math.nan
    trace: Sequence[Call] = ()

    @property
    def seconds(self) -> float:
        """The median of the times; infinite without times."""
        return statistics.median(self.times) if self.times else math.inf

    @property
    def ratio(self) -> float:
        """The least of the times over the incumbent's; NaN without an incumbent, infinite without times.

        What else a machine does makes times longer only: the least ones tell most of the kernels.
        """
        return min(self.times, default=math.inf) / self.beside
