"""Random search, a walker that needs no score."""

from __future__ import annotations

from collections.abc import Set

from burnish.search.space import Points
from burnish.search.walker import NOTHING, Score, Walker, unseen


class RandomSearch(Walker):
    """Random points that were not tried: the baseline that every other walker has to beat (AutoTVM §6.1)."""

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        """See `Walker.propose`."""
        return unseen(self.space, self._rng, count, exclude)
