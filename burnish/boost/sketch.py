"""Weighted quantile sketch (thesis-chen §2.6): summaries that merge and prune with proven bounds on their error.

D                  a multiset of points x with weights w > 0; ω(D) is their sum
r⁻(y), r⁺(y)       the weight of the points < y, of the points <= y          (eqs. 2.10, 2.11)
Q = (S, r̃⁻, r̃⁺, ω̃)  some points of D with bounds of their ranks                 (Definition 2.6.1)
Q is ε-approximate  r̃⁺(y) - r̃⁻(y) - ω̃(y) <= ε ω(D) at every y                   (Definition 2.6.3)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from burnish.base.jit import njit
from burnish.boost.blocks import sort_values
from burnish.errors import DataError, ParameterError

Points = NDArray[np.float32]
Ranks = NDArray[np.float64]


@dataclass(frozen=True)
class Summary:
    """A quantile summary of weighted data, Definition 2.6.1. The first and the last point are D's least and greatest.

    Ranks are float64, so that sums of integer weights below 2^53 are exact. The summary of no data has no points.
    """

    value: Points  # (points,), ascending
    below: Ranks  # (points,): r̃⁻, at most the weight of what is smaller than the point
    through: Ranks  # (points,): r̃⁺, at least the weight of what is not greater than the point
    weight: Ranks  # (points,): ω̃, at most the weight of what equals the point

    @staticmethod
    def of(values: ArrayLike, weights: ArrayLike | None = None) -> Summary:
        """The summary that holds every value, which is 0-approximate (eq. 2.24).

        NaN (missing) and values of weight zero are left out: they change no rank. Raises DataError if the weights are
        negative, not finite, or not one for each value.
        """
        points = np.ascontiguousarray(values, np.float32).ravel()
        mass = np.ones(len(points)) if weights is None else np.ascontiguousarray(weights, np.float64).ravel()
        if len(points) != len(mass):
            raise DataError(f"quantile summary: {len(points)} values have {len(mass)} weights")
        if not (np.isfinite(mass).all() and (mass >= 0).all()):
            raise DataError("quantile summary: weights must be finite and not negative")
        order, ascending = sort_values(points)
        return Summary.of_sorted(ascending, mass[order])

    @staticmethod
    def of_sorted(values: Points, weights: NDArray[np.float64]) -> Summary:
        """Summary, as by `of`, of ascending values without NaN, with weights that are already known to be sound."""
        return Summary(*_initial(values, weights))

    def __len__(self) -> int:
        return len(self.value)

    @property
    def total(self) -> float:
        """ω(D), the weight of all data."""
        return float(self.through[-1]) if len(self) else 0.0

    @property
    def error(self) -> float:
        """The least ε for which this is an ε-approximate summary, by Lemma 2.6.2."""
        if not len(self):
            return 0.0
        at_points = self.through - self.below - self.weight
        between = self.through[1:] - self.weight[1:] - self.below[:-1] - self.weight[:-1]
        return max(0.0, float(at_points.max()), float(between.max(initial=0.0))) / self.total

    def bounds(self, at: float) -> tuple[float, float, float]:
        """(r̃⁻, r̃⁺, ω̃) at any point: the extension of the functions to all of X, Definition 2.6.2."""
        index = int(np.searchsorted(self.value, np.float32(at)))
        if index == len(self):
            return self.total, self.total, 0.0
        if self.value[index] == at:
            return float(self.below[index]), float(self.through[index]), float(self.weight[index])
        if index == 0:
            return 0.0, 0.0, 0.0
        before = float(self.below[index - 1] + self.weight[index - 1])
        return before, float(self.through[index] - self.weight[index]), 0.0

    def merge(self, other: Summary) -> Summary:
        """The summary of both data sets, max(ε₁, ε₂)-approximate (eqs. 2.25 to 2.28, Theorem 2.6.1)."""
        if not len(self) or not len(other):
            return self if len(self) else other
        mine = (self.value, self.below, self.through, self.weight)
        return Summary(*_merge(*mine, other.value, other.below, other.through, other.weight))

    def prune(self, budget: int) -> Summary:
        """At most ``budget + 1`` points of this summary, (ε + 1/budget)-approximate (§2.6.4, Theorem 2.6.2)."""
        if budget < 1:
            raise ParameterError(f"prune: the budget is {budget}; it must be at least 1")
        if len(self) <= budget + 1:
            return self
        ranks = np.arange(budget + 1) / budget * self.total
        return self._at(_query(self.below, self.through, self.weight, ranks))

    def query(self, rank: float) -> float:
        """A point of the summary whose rank is near `rank`, Algorithm 4 (Lemma 2.6.4 says how near).

        Raises DataError if the summary is empty, ParameterError unless 0 <= rank <= total.
        """
        if not len(self):
            raise DataError("query: the summary has no points")
        if not 0 <= rank <= self.total:
            raise ParameterError(f"query: the rank is {rank}; it must lie in 0 … {self.total}")
        return float(self.value[_query(self.below, self.through, self.weight, np.array([float(rank)]))[0]])

    def candidates(self, bins: int) -> Points:
        """At most ``bins - 1`` distinct split points at equal steps of rank (eq. 2.9): a row goes left if x < point.

        If all values fit into the bins, every value but the least is a candidate.
        """
        if len(self) <= bins:
            return self.value[1:]
        ranks = np.arange(1, bins) / bins * self.total
        chosen = np.unique(_query(self.below, self.through, self.weight, ranks))
        return self.value[chosen[chosen > 0]]  # nothing is below the least value

    def to_array(self) -> NDArray[np.float64]:
        """The 4k numbers of the summary as one flat array, such as `Comm.all_gather_v` takes."""
        return np.concatenate([self.value.astype(np.float64), self.below, self.through, self.weight])

    @staticmethod
    def from_array(array: NDArray[np.float64]) -> Summary:
        """The summary whose `to_array` this is. Raises DataError if it cannot be one."""
        if array.ndim != 1 or len(array) % 4:
            raise DataError(f"quantile summary: an array of shape {array.shape} is not 4 numbers for each point")
        value, below, through, weight = (part.copy() for part in np.split(np.asarray(array, np.float64), 4))
        if not (np.isfinite(array).all() and (np.diff(value) > 0).all() and (below + weight <= through).all()):
            raise DataError("quantile summary: the array's points do not ascend, or its ranks are not bounds")
        return Summary(value.astype(np.float32), below, through, weight)

    def _at(self, points: NDArray[np.int64]) -> Summary:
        points = np.unique(points)
        return Summary(self.value[points], self.below[points], self.through[points], self.weight[points])


EMPTY = Summary(np.empty(0, np.float32), np.empty(0), np.empty(0), np.empty(0))


class Sketch:
    """The summary of a stream of blocks in little memory: blocks merge and are pruned in pairs, level by level.

    Level l holds the summary of 2^l blocks, pruned l + 1 times, so that after n blocks the error is at most
    ``(1 + ⌊log₂ n⌋) / budget`` (Theorems 2.6.1 and 2.6.2), in memory for ``budget · log₂ n`` points.
    """

    def __init__(self, budget: int) -> None:
        if budget < 1:
            raise ParameterError(f"Sketch: the budget is {budget}; it must be at least 1")
        self.budget = budget
        self._levels: list[Summary | None] = []

    def push(self, values: ArrayLike, weights: ArrayLike | None = None) -> None:
        """Adds a block of values and weights; errors as of `Summary.of`. Blocks of some 2^16 values are good."""
        self.add(Summary.of(values, weights))

    def add(self, block: Summary) -> None:
        """Adds a block that is a summary already."""
        carry = block.prune(self.budget)
        for level, there in enumerate(self._levels):
            if there is None:
                self._levels[level] = carry
                return
            carry = there.merge(carry).prune(self.budget)
            self._levels[level] = None
        self._levels.append(carry)

    @property
    def bound(self) -> float:
        """The bound of the error of `summary` by the two theorems."""
        return len(self._levels) / self.budget

    def summary(self) -> Summary:
        """The summary of everything so far, not pruned again."""
        return merge_all(level for level in self._levels if level is not None)


def merge_all(summaries: Iterable[Summary]) -> Summary:
    """One summary of all data sets; its error is the greatest of theirs (Theorem 2.6.1)."""
    merged = EMPTY
    for summary in summaries:
        merged = merged.merge(summary)
    return merged


@njit(cache=True, nogil=True)
def _initial(values, weights):  # type: ignore[no-untyped-def]
    """Distinct values of positive weight and their exact ranks, of values that ascend."""
    value, below, through, weight = _points(len(values))
    count, reached = 0, 0.0
    for j in range(len(values)):
        if weights[j] <= 0:
            continue
        if count == 0 or values[j] != value[count - 1]:
            value[count], below[count], weight[count] = values[j], reached, 0.0
            count += 1
        weight[count - 1] += weights[j]
        reached = below[count - 1] + weight[count - 1]  # so that r⁻ + ω = r⁺ holds in floating point too
        through[count - 1] = reached
    return value[:count].copy(), below[:count].copy(), through[:count].copy(), weight[:count].copy()


@njit(cache=True, nogil=True)
def _points(count):  # type: ignore[no-untyped-def]
    return np.empty(count, np.float32), np.empty(count), np.empty(count), np.empty(count)


@njit(cache=True, nogil=True)
def _merge(value1, below1, through1, weight1, value2, below2, through2, weight2):  # type: ignore[no-untyped-def]
    """Eqs. 2.26 to 2.28; at a point that only one side has, the other gives its extension (Definition 2.6.2)."""
    n1, n2 = len(value1), len(value2)
    value, below, through, weight = _points(n1 + n2)
    i, j, count = 0, 0, 0
    while i < n1 or j < n2:
        take1 = i < n1 and (j == n2 or value1[i] <= value2[j])
        take2 = j < n2 and (i == n1 or value2[j] <= value1[i])
        if take1:
            value[count], low, high, mass = value1[i], below1[i], through1[i], weight1[i]
            i += 1
        else:
            value[count], mass = value2[j], 0.0
            low = 0.0 if i == 0 else below1[i - 1] + weight1[i - 1]
            high = 0.0 if i == 0 else through1[n1 - 1] if i == n1 else through1[i] - weight1[i]
        if take2:
            low, high, mass = low + below2[j], high + through2[j], mass + weight2[j]
            j += 1
        elif j > 0:
            low += below2[j - 1] + weight2[j - 1]
            high += through2[n2 - 1] if j == n2 else through2[j] - weight2[j]
        below[count], through[count], weight[count] = low, high, mass
        count += 1
    return value[:count].copy(), below[:count].copy(), through[:count].copy(), weight[:count].copy()


@njit(cache=True, nogil=True)
def _query(below, through, weight, ranks):  # type: ignore[no-untyped-def]
    """Algorithm 4 for ranks that ascend: the index of the point that it returns for each."""
    last = len(below) - 1
    found = np.empty(len(ranks), np.int64)
    i = 0
    for q in range(len(ranks)):
        twice = 2.0 * ranks[q]
        if twice < below[0] + through[0]:
            found[q] = 0
        elif twice >= below[last] + through[last]:
            found[q] = last
        else:
            while below[i + 1] + through[i + 1] <= twice:
                i += 1
            nearer = below[i] + weight[i] + through[i + 1] - weight[i + 1]
            found[q] = i if twice < nearer else i + 1
    return found
