"""Progress of the tuning of one kernel: its candidates, the best so far, and what more trials may save."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from burnish.measure.comparison import Comparison
from burnish.tune.evaluate import PairedMeasurer
from burnish.tune.space import Candidate
from burnish.tune.tasks import TuningTask
from burnish.tune.tuner import Tuner

UNKNOWN_GAIN = 0.1  # expected of one more batch before a kernel's trials say anything


@dataclass
class KernelProgress:
    """Tuning state of one kernel.

    ``race``: that of its candidates, once there are any; the best of earlier sessions leads it at first. ``tried``:
    trials of this session, and ``spent`` the seconds they took. ``confirmed``: how the best of the finals compares with
    the default; ``winner``: that best one if it is surely faster.
    """

    task: TuningTask
    tuner: Tuner
    race: PairedMeasurer | None = None
    tried: int = 0
    spent: float = 0.0
    confirmed: Comparison | None = None
    winner: Candidate | None = None

    @property
    def seconds(self) -> float:
        """The least time of a call so far."""
        return self.tuner.seconds * self._scale

    @property
    def default(self) -> float:
        """The time of a call of what is compiled untuned; infinite until it was measured."""
        point = self.task.space.point(self.task.space.default)
        at = np.flatnonzero((self.tuner.points == point).all(axis=1))
        return self.tuner.costs[int(at[0])] * self._scale if len(at) else inf

    @property
    def _scale(self) -> float:
        return self.race.scale if self.race else 1.0

    @property
    def total(self) -> float:
        """Seconds of the model's time that go to this kernel."""
        return self.task.calls * self.seconds

    def saving(self, trials: int) -> float:
        """Expected saving of ``trials`` more trials, in seconds of the model's time."""
        if not isfinite(self.seconds) or self.tuner.exhausted:
            return 0.0
        expected = self.tuner.forecast()
        return self.total * (expected.gain(trials) if expected else UNKNOWN_GAIN)

    def pace(self, usual: float) -> float:
        """Seconds a trial takes, by its own trials or else what is ``usual``."""
        return self.spent / self.tried if self.tried else usual
