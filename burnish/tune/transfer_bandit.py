"""Two-armed bandit of transfer learning: whose proposals to measure, those of a transferred model or of a local one."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

LEANING = 4.0  # share of a batch that a difference of 1 in rank correlation moves
STEADY = 0.5  # of the evidence of a batch, what the next leaves of it
EXPECTED = 0.35  # rank correlation of a model that was fitted on the first trials alone
LEAST = 0.15  # of a batch: a smaller share counts as none


class TransferBandit:
    """Bandit between a model that other kernels have taught and one of this kernel's own trials (thesis-chen §5.3).

    Both rank every batch before it is measured, so that no model is judged by trials that it was fitted on.
    ``share`` of the next batch, 0 … 1, is proposed by the transferred model: half where both rank equally well, more
    or less by the difference of their rank correlations (Kendall's τ), recent batches counting most. Before the local
    model has ranked anything, it is taken to reach `EXPECTED`.
    """

    def __init__(self) -> None:
        self._foreseen: dict[int, tuple[float, float]] = {}
        self._lead: float | None = None

    @property
    def begun(self) -> bool:
        """Whether anything is known of how the transferred model ranks this kernel's trials."""
        return self._lead is not None

    def begin(self, scores: NDArray, costs: Sequence[float]) -> None:
        """Takes what the model that others have taught says, (n,), of the n trials that were measured first."""
        self._lead = rank_correlation(np.asarray(scores, np.float64), np.asarray(costs, np.float64)) - EXPECTED

    @property
    def share(self) -> float:
        """The transferred model's share of the next batch."""
        if self._lead is None:
            return 0.5
        share = min(max(0.5 + LEANING * self._lead, 0.0), 1.0)
        return 0.0 if share < LEAST else 1.0 if share > 1.0 - LEAST else share

    def foresee(self, keys: Sequence[int], transferred: NDArray, local: NDArray) -> None:
        """Takes what each model says, (n,), of the n candidates that are measured next, by their keys."""
        self._foreseen = {k: (float(t), float(own)) for k, t, own in zip(keys, transferred, local, strict=True)}

    def observe(self, keys: Sequence[int], costs: Sequence[float]) -> None:
        """Compares what was said with the costs in seconds, (n,), infinite for failures."""
        rows = [(*self._foreseen.pop(k), c) for k, c in zip(keys, costs, strict=True) if k in self._foreseen]
        if len(rows) < 2:
            return
        transferred, local, cost = np.array(rows).T
        lead = rank_correlation(transferred, cost) - rank_correlation(local, cost)
        self._lead = lead if self._lead is None else STEADY * self._lead + (1.0 - STEADY) * lead


def rank_correlation(scores: NDArray[np.float64], costs: NDArray[np.float64]) -> float:
    """Kendall's τ between scores (higher is better) and costs, (n,) each: −1 … 1, 0 where nothing can be compared."""
    faster = costs[:, None] < costs[None, :]
    signs = np.sign(scores[:, None] - scores[None, :])[faster]
    found = float(signs.mean()) if len(signs) else 0.0
    return found if isfinite(found) else 0.0
