"""Parallel simulated annealing over a score (AutoTVM §3.3); the contextual share of random points (AdaTune, eq. 3)."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.search.space import Points, SearchSpace
from burnish.search.walker import NOTHING, Score, Walker, best_distinct, evaluate, filled, stored_points, unseen

BLOCK = 512  # steps after which the points seen are reduced to the best


class Annealing(Walker):
    """Many Markov chains that walk at once; where they stand persists from call to call while the score is updated.

    `chains` and `steps` are 128 and 500 in AutoTVM, appendix A.3. The temperature falls linearly from the first to the
    second value of `temperature`, in units of the standard deviation of the scores of random points. So a walk does not
    depend on the scale of the score, which a ranking objective leaves undefined.
    """

    def __init__(
        self,
        space: SearchSpace,
        chains: int = 128,
        seed: int = 0,
        steps: int = 500,
        temperature: tuple[float, float] = (1.0, 0.0),
    ) -> None:
        super().__init__(space, seed)
        self.chains = chains
        self.steps = steps
        self.temperature = temperature
        self._states: Points | None = None  # (chains, width), where the chains stand; None before the first call

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        """The best points of one walk, best first; random ones after them where the walk met too few."""
        points, _ = self.explore(score, keep=count, exclude=exclude)
        return filled(self.space, self._rng, points, count, exclude)

    def explore(
        self, score: Score, steps: int | None = None, *, keep: int, exclude: Set[int] = NOTHING
    ) -> tuple[Points, NDArray]:
        """Walks all chains and gives the best distinct points seen, (≤ keep, width), and their scores, best first.

        `score` is called before the first step with a row for each chain, twice if they have stood somewhere, then once
        every two steps with three. Chains may pass through points that are excluded or score -inf; neither are among
        the points given.
        """
        steps = self.steps if steps is None else steps
        random_points = self.space.sample(self._rng, self.chains)
        random_scores = evaluate(score, random_points)
        states, current = random_points, random_scores
        if self._states is not None:
            states = self._states
            current = evaluate(score, states)
        points, scores = np.concatenate([random_points, states]), np.concatenate([random_scores, current])
        scale = np.linspace(*self.temperature, steps) * _spread(random_scores)
        for start in range(0, steps, BLOCK):
            states, current, seen, seen_scores = self._walk(score, states, current, scale[start : start + BLOCK])
            points, scores = np.concatenate([points, seen]), np.concatenate([scores, seen_scores])
            points, scores = best_distinct(self.space, points, scores, keep, exclude)
        self._states = states
        return best_distinct(self.space, points, scores, keep, exclude)

    def _walk(
        self, score: Score, states: Points, current: NDArray, scale: NDArray
    ) -> tuple[Points, NDArray, Points, NDArray]:
        """A step of all chains for each temperature: where they end, the scores there, all points met, their scores.

        A score has a price for each call beside that for each point. So two steps share one: scored with the first
        move is the second of a chain that makes the first, and of one that does not.
        """
        met, met_scores = [], []
        # Metropolis: a move by Δ is accepted with probability exp(Δ / temperature): if Δ > temperature · ln(uniform).
        least = np.log1p(-self._rng.random((len(scale), len(states)))) * scale[:, None]
        for step in range(0, len(scale), 2):
            moved = self.space.neighbours(self._rng, states)
            ahead = np.concatenate([moved, states]) if step + 1 < len(scale) else moved[:0]
            points = np.concatenate([moved, self.space.neighbours(self._rng, ahead)])
            scores = evaluate(score, points)
            met.append(points)
            met_scores.append(scores)
            accepted = _accepted(scores[: len(states)], current, least[step])
            states = np.where(accepted[:, None], moved, states)
            current = np.where(accepted, scores[: len(states)], current)
            if len(ahead):
                after = np.arange(len(states)) + np.where(accepted, 1, 2) * len(states)
                accepted = _accepted(scores[after], current, least[step + 1])
                states = np.where(accepted[:, None], points[after], states)
                current = np.where(accepted, scores[after], current)
        return states, current, np.concatenate(met), np.concatenate(met_scores)

    def dump(self) -> dict[str, Any]:
        """See `Walker.dump`."""
        return {**super().dump(), "states": None if self._states is None else self._states.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """See `Walker.load`."""
        states = None
        if state["states"] is not None:
            states = stored_points(self.space, state["states"])
            if len(states) != self.chains:
                raise ValueError(f"load: the state has {len(states)} chains; this walker has {self.chains}")
        super().load(state)
        self._states = states


def _accepted(scores: NDArray, current: NDArray, least: NDArray) -> NDArray[np.bool_]:
    """Acceptance mask of moves to these scores: those that lose nothing, and those that gain more than ``least``."""
    with np.errstate(invalid="ignore"):  # -inf minus -inf: accepted by the first comparison
        return (scores >= current) | (scores - current > least)


def _spread(scores: NDArray) -> float:
    """The standard deviation of the finite scores; 1 if they are all equal."""
    finite = scores[np.isfinite(scores)]
    return float(finite.std()) or 1.0 if len(finite) else 1.0


def contextual_share(deviations: NDArray, best: float) -> float:
    """The share of a batch that is chosen at random, ε_t = σ̄ / Perf(p*) (AdaTune, equation 3), at most 1.

    `deviations` (K,) are the model's standard deviations at random untried points, `best` is the best measured
    performance, in the same unit, higher is better. Where nothing was measured yet (`best` ≤ 0) everything is random.
    """
    if best <= 0:
        return 1.0
    return float(np.clip(np.mean(deviations) / best, 0.0, 1.0))


@dataclass(frozen=True)
class ContextualShare:
    """ε_t for every batch anew: `DiverseBatches` of `Annealing` with this share is contextual simulated annealing.

    `deviation` is the model's standard deviation at points (n, width), (n,); `best` gives the best measured performance
    so far; `plans` is K in AdaTune's Algorithm 1, line 6.
    """

    deviation: Callable[[Points], NDArray]
    best: Callable[[], float]
    plans: int = 256

    def __call__(self, space: SearchSpace, rng: np.random.Generator, exclude: Set[int]) -> float:
        """The share for the next batch."""
        plans = unseen(space, rng, self.plans, exclude)
        return contextual_share(self.deviation(plans), self.best()) if len(plans) else 0.0
