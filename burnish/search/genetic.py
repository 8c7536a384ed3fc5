"""Genetic walkers: on measured points alone (AutoTVM §6.1's baseline), and under a score."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.search.space import Points, SearchSpace
from burnish.search.walker import NOTHING, Score, Walker, best_distinct, evaluate, filled, stored_points

ATTEMPTS = 8  # rounds of breeding before untried points are drawn at random
PATIENCE = 5  # generations in a row without anything better, after which a population has settled


def breed(
    space: SearchSpace, rng: np.random.Generator, parents: Points, scores: NDArray, count: int, mutation: float
) -> Points:
    """Children, (count, width): parents by tournaments of two, uniform crossover, a move to a neighbour.

    Each of two moves happens with probability `mutation`. Only the order of `scores` (n,) matters.
    """
    rivals = rng.integers(len(parents), size=(2, 2, count))
    first, second = np.where(scores[rivals[0]] >= scores[rivals[1]], rivals[0], rivals[1])
    children = space.crossover(rng, parents[first], parents[second])
    for _ in range(2):
        moved = rng.random(count) < mutation
        children[moved] = space.neighbours(rng, children[moved])
    return children


class Genetic(Walker):
    """Breeds from the best `population` points of those measured; `score` is not used."""

    def __init__(self, space: SearchSpace, population: int = 64, mutation: float = 0.3, seed: int = 0) -> None:
        super().__init__(space, seed)
        self.population = population
        self.mutation = mutation
        self._parents = np.empty((0, space.width), np.int32)  # best first
        self._scores = np.empty(0)

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        """Untried children of the parents; random points before anything was measured, and where breeding stalls."""
        children = np.empty((0, self.space.width), np.int32)
        for _ in range(ATTEMPTS if len(self._parents) > 1 else 0):
            born = breed(self.space, self._rng, self._parents, self._scores, count, self.mutation)
            children = np.concatenate([children, born])
            children, _ = best_distinct(self.space, children, np.zeros(len(children)), count, exclude)
            if len(children) == count:
                break
        return filled(self.space, self._rng, children, count, exclude)

    def observe(self, points: Points, scores: NDArray) -> None:
        """Measured points (n, width) and what they are worth (n,); the best of all so far are the next parents."""
        points, scores = np.concatenate([self._parents, points]), np.concatenate([self._scores, scores])
        self._parents, self._scores = best_distinct(self.space, points, scores, self.population)

    def dump(self) -> dict[str, Any]:
        """See `Walker.dump`."""
        return {**super().dump(), "parents": self._parents.tolist(), "scores": self._scores.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """See `Walker.load`."""
        self._parents = stored_points(self.space, state["parents"])
        self._scores = np.array(state["scores"], np.float64)
        super().load(state)


class Evolution(Walker):
    """Evolves a population under `score`; the population persists from call to call while the score is updated.

    At most `generations` of them: it ends where `PATIENCE` of them add nothing to the best that are wanted.
    """

    def __init__(
        self, space: SearchSpace, population: int = 1024, generations: int = 32, mutation: float = 0.5, seed: int = 0
    ) -> None:
        super().__init__(space, seed)
        self.population = population
        self.generations = generations
        self.mutation = mutation
        self._parents = np.empty((0, space.width), np.int32)

    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        """The best points of all generations, best first; random ones after them where there are too few."""
        space, rng = self.space, self._rng
        fresh = space.sample(rng, max(self.population - len(self._parents), self.population // 4))
        parents = np.concatenate([self._parents, fresh])
        scores = evaluate(score, parents)
        seen, seen_scores = best_distinct(space, parents, scores, count, exclude)
        settled = 0
        for _ in range(self.generations):
            children = breed(space, rng, parents, scores, self.population, self.mutation)
            born = evaluate(score, children)
            before = seen_scores
            seen, seen_scores = best_distinct(
                space, np.concatenate([seen, children]), np.concatenate([seen_scores, born]), count, exclude
            )
            settled = settled + 1 if np.array_equal(before, seen_scores) else 0
            if settled == PATIENCE:
                break
            parents, scores = np.concatenate([parents, children]), np.concatenate([scores, born])
            best, best_scores = best_distinct(space, parents, scores, self.population)
            if len(best):  # none where everything scores -inf: the parents stay as they are
                parents, scores = best, best_scores
        self._parents = parents[: self.population]
        return filled(space, rng, seen, count, exclude)

    def dump(self) -> dict[str, Any]:
        """See `Walker.dump`."""
        return {**super().dump(), "parents": self._parents.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """See `Walker.load`."""
        self._parents = stored_points(self.space, state["parents"])
        super().load(state)
