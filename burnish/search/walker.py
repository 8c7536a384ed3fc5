"""The protocol of all walkers, and what they are made of: scores, random unseen points, the best distinct of many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.search.space import Points, SearchSpace

Score = Callable[[Points], NDArray]  # points (n, width) -> scores (n,), higher is better, -inf: known to fail
NOTHING: frozenset[int] = frozenset()
ATTEMPTS = 8  # rounds of drawing before what is left of a small space is listed


class Walker(ABC):
    """Proposes points of a space to try next. Equal seeds and equal calls give equal points."""

    def __init__(self, space: SearchSpace, seed: int = 0) -> None:
        self.space = space
        self._rng = np.random.default_rng(seed)

    @abstractmethod
    def propose(self, score: Score, count: int, exclude: Set[int] = NOTHING) -> Points:
        """Distinct points, (≤ count, width), none whose key is in `exclude`; fewer only if the space has no more.

        Walkers that do not need `score` leave it uncalled.
        """

    def observe(self, points: Points, scores: NDArray) -> None:  # noqa: B027 - to learn nothing is a valid answer
        """Learns what measured points (n, width) are worth, (n,), higher is better, -inf for those that failed.

        Walkers that follow `score` alone learn nothing.
        """

    def dump(self) -> dict[str, Any]:
        """All that the next proposals depend on, as values that JSON holds."""
        return {"random": self._rng.bit_generator.state}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from the state of a walker of the same kind on the same space. ValueError if it does not fit."""
        self._rng.bit_generator.state = state["random"]


def evaluate(score: Score, points: Points) -> NDArray[np.float64]:
    """`score` of the points, (n,), with -inf for what is not a number. ValueError if there is not one per point."""
    scores = np.asarray(score(points), np.float64)
    if scores.shape != (len(points),):
        raise ValueError(f"score: shape {scores.shape} for {len(points)} points; it must be ({len(points)},)")
    return np.fmax(scores, -np.inf)


def stored_points(space: SearchSpace, rows: list[list[int]]) -> Points:
    """Points from a dumped state. ValueError if they are not of this space."""
    points = np.array(rows, np.int32).reshape(len(rows), -1)
    if len(rows) and not space.contains(points).all():
        raise ValueError(f"load: the state holds points that are not in {space!r}")
    return points.reshape(len(rows), space.width)


def _first_allowed(keys: NDArray, exclude: Set[int]) -> NDArray[np.int64]:
    """Places of the first occurrence of every key that is not excluded, ascending."""
    _, first = np.unique(keys, return_index=True)
    first.sort()
    if not exclude:
        return first
    return first[np.isin(keys[first], np.array(list(exclude), keys.dtype), invert=True)]


def best_distinct(
    space: SearchSpace, points: Points, scores: NDArray, count: int, exclude: Set[int] = NOTHING
) -> tuple[Points, NDArray]:
    """The best `count` distinct points whose keys are not excluded and scores not -inf, best first, with their scores.

    Of equal scores the earlier row comes first. Only as many rows are looked at as the answer needs.
    """
    order = np.argsort(-scores, kind="stable")[: int((scores > -np.inf).sum())]
    looked_at = 4 * count
    while True:
        head = order[:looked_at]
        picked = head[_first_allowed(space.keys(points[head]), exclude)][:count]
        if len(picked) == count or looked_at >= len(order):
            return points[picked], scores[picked]
        looked_at *= 4


def unseen(space: SearchSpace, rng: np.random.Generator, count: int, exclude: Set[int] = NOTHING) -> Points:
    """Random distinct points, (≤ count, width), whose keys are not excluded; fewer only if the space has no more."""
    points = np.empty((0, space.width), np.int32)
    attempts = 0
    while len(points) < count:
        if attempts == ATTEMPTS and space.size <= 4 * (count + len(exclude)) + 65536:
            every = space.enumerate(0, space.size)
            rest = every[_first_allowed(space.keys(every), exclude | set(space.keys(points).tolist()))]
            more = rng.permutation(len(rest))[: count - len(points)]
            return np.concatenate([points, rest[more]])
        drawn = np.concatenate([points, space.sample(rng, 2 * count)])
        points = drawn[_first_allowed(space.keys(drawn), exclude)][:count]
        attempts += 1
    return points


def filled(
    space: SearchSpace, rng: np.random.Generator, points: Points, count: int, exclude: Set[int] = NOTHING
) -> Points:
    """The points, (≤ count, width), and as many random untried ones after them as `count` lacks."""
    if len(points) == count:
        return points
    met = exclude | set(space.keys(points).tolist())
    return np.concatenate([points, unseen(space, rng, count - len(points), met)])
