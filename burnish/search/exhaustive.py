"""The walker for small spaces: score every point."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from burnish.search.space import Points
from burnish.search.walker import NOTHING, Score, Walker, best_distinct, evaluate

BLOCK = 8192  # rows scored at a time


class Exhaustive(Walker):
    """Exhaustive search: the best points by score out of all. Exact, and cheaper than 128 × 500 steps of annealing
    below 64,000 points.
    """

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        """The `count` best points by `score`, best first, that are not excluded; none of score -inf."""
        points, scores = np.empty((0, self.space.width), np.int32), np.empty(0)
        for start in range(0, self.space.size, BLOCK):
            block = self.space.enumerate(start, start + BLOCK)
            points = np.concatenate([points, block])
            scores = np.concatenate([scores, evaluate(score, block)])
            points, scores = best_distinct(self.space, points, scores, count, exclude)
        return points
