"""Batches that are good and differ: greedy submodular choice (AutoTVM §3.3, thesis equation 5.3) and ε-greedy."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.search.space import Points, SearchSpace
from burnish.search.walker import NOTHING, Score, Walker, evaluate, filled

Share = Callable[[SearchSpace, np.random.Generator, Set[int]], float]  # space, random numbers, excluded keys -> 0 … 1


def select(space: SearchSpace, points: Points, scores: NDArray, count: int, weight: float) -> NDArray[np.int64]:
    """Greedy submodular selection: rows, (min(count, n),), of candidates (n, width), in the order of the choice.

    Maximizes greedily the sum of the chosen scores plus `weight` times the number of different choices they cover: for
    every knob the number of its values that occur (equation 5.3 with α = `weight`, in the unit of the scores). Of equal
    gains the earlier row is taken. The function is submodular, so the greedy choice is within 1 - 1/e of the best for
    scores that are not negative.
    """
    numbers, places = np.unique(space.components(points), return_inverse=True)
    places = places.reshape(points.shape)
    new = weight * (numbers >= 0)  # what covering each of them still gains
    left = np.arange(len(points))
    chosen = np.empty(min(count, len(points)), np.int64)
    for place in range(len(chosen)):
        best = int(np.argmax(scores[left] + new[places[left]].sum(axis=1)))
        chosen[place] = left[best]
        new[places[left[best]]] = 0.0
        left = np.delete(left, best)
    return chosen


class DiverseBatches(Walker):
    """Batches out of another walker's proposals: diverse among its best, and a share of random points.

    `candidates` is λ, the proposals asked for per point that is wanted; `weight` is what one more covered value is
    worth in standard deviations of the candidates' scores; `share` is ε of ε-greedy, a constant (0.05 in AutoTVM) or a
    function such as `ContextualShare`. A share that is no whole number of points is rounded at random, right on
    average.
    """

    def __init__(
        self, walker: Walker, candidates: int = 4, weight: float = 1.0, share: float | Share = 0.05, seed: int = 0
    ) -> None:
        super().__init__(walker.space, seed)
        self._rng = np.random.default_rng([seed, 1])  # not the numbers of a walker of the same seed
        self.walker = walker
        self.candidates = candidates
        self.weight = weight
        self.share = share

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        """The chosen points in the order of their choice, then the random ones."""
        share = self.share if isinstance(self.share, int | float) else self.share(self.space, self._rng, exclude)
        greedy = count - int(share * count + self._rng.random())
        points = np.empty((0, self.space.width), np.int32)
        if greedy > 0:
            points = self.walker.propose(score, self.candidates * greedy, exclude)
            scores = evaluate(score, points)
            finite = scores[np.isfinite(scores)]
            spread = float(finite.std()) or 1.0 if len(finite) else 0.0  # of equal scores only what they cover counts
            points = points[select(self.space, points, scores, greedy, self.weight * spread)]
        return filled(self.space, self._rng, points, count, exclude)

    def observe(self, points: Points, scores: NDArray) -> None:
        """Tells the other walker."""
        self.walker.observe(points, scores)

    def dump(self) -> dict[str, Any]:
        """See `Walker.dump`."""
        return {**super().dump(), "walker": self.walker.dump()}

    def load(self, state: dict[str, Any]) -> None:
        """See `Walker.load`."""
        self.walker.load(state["walker"])
        super().load(state)
