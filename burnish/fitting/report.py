"""Report of training: losses, evaluations, and the memory of a step over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

StopReason = Literal["steps", "epochs", "early stop", "interrupted", "callback"]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: after how many calls, the mean loss, metrics by name, and the rows that they are of.

    ``left_out``: rows that are not among them, as they fill no batch and the model is compiled for no other size.
    """

    call: int
    epoch: int
    loss: float
    metrics: Mapping[str, float]
    rows: int
    left_out: int = 0


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of training: calls and epochs done, batches in an epoch and calls in all (None: not known)."""

    call: int
    epoch: int
    batch: int
    batches: int | None
    calls: int | None
    loss: float
    seconds: float
    evaluation: Evaluation | None = None  # made after this call


@dataclass(frozen=True, eq=False)
class TrainingReport:
    """Training report. ``losses`` [calls], float64; ``seconds`` are those of this process alone.

    ``left_out``: rows that were to be trained on but fill no batch, over all epochs, where the model is compiled for no
    other size; ``calls_left``: calls whose accumulated gradients were not applied, as after an interruption.
    ``memory``: bytes by kind; ``live``: bytes of activations that are live at each kernel of a step, in order.
    """

    losses: np.ndarray
    evaluations: tuple[Evaluation, ...]
    calls: int
    updates: int
    epochs: int
    skipped: int
    seconds: float
    stop_reason: StopReason
    best: Evaluation | None
    checkpoint: Path | None
    memory: Mapping[str, int]
    live: tuple[int, ...]
    resumed: int = 0  # calls made before this process
    left_out: int = 0
    calls_left: int = 0

    def __repr__(self) -> str:
        last = f", last loss {self.losses[-1]:.6g}" if len(self.losses) else ""
        return f"TrainingReport({self.calls} calls, {self.epochs} epochs{last}, {self.stop_reason})"

    def as_json(self) -> dict[str, Any]:
        """The report as JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **plain, "losses": [_number(v) for v in self.losses.tolist()],
            "evaluations": [asdict(e) for e in self.evaluations], "best": self.best and asdict(self.best),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint), "memory": dict(self.memory),
            "live": list(self.live),
        }  # fmt: skip


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
