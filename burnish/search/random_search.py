"""Walkers that need no score: random points, and all points in order."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from burnish.search.space import Points
from burnish.search.walker import NOTHING, Score, Walker, unseen

BLOCK = 4096  # rows listed at a time


class RandomSearch(Walker):
    """Random points that were not tried: the baseline that every other walker has to beat (AutoTVM §6.1)."""

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        """See `Walker.propose`."""
        return unseen(self.space, self._rng, count, exclude)


class GridSearch(Walker):
    """Grid search: all points in the order of `enumerate`, each once."""

    _next = 0

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        """The next points, (≤ count, width), that are not excluded."""
        found = [np.empty((0, self.space.width), np.int32)]
        wanted = count
        while wanted and self._next < self.space.size:
            block = self.space.enumerate(self._next, self._next + max(BLOCK, wanted))
            allowed = [row for row, key in enumerate(self.space.keys(block).tolist()) if key not in exclude][:wanted]
            # What stands behind the last point that is taken is looked at again by the next call.
            self._next += allowed[-1] + 1 if len(allowed) == wanted else len(block)
            found.append(block[allowed])
            wanted -= len(allowed)
        return np.concatenate(found)

    def dump(self) -> dict[str, Any]:
        """See `Walker.dump`."""
        return {**super().dump(), "next": self._next}

    def load(self, state: dict[str, Any]) -> None:
        """See `Walker.load`."""
        super().load(state)
        self._next = state["next"]
