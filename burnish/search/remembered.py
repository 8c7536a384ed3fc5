"""Score cache of walkers, and a hash table of distinct points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.search.space import Points, SearchSpace
from burnish.search.walker import Score, evaluate

CALL = 256  # points that are scored in the time that a call takes for each alternative, by features of loop nests
_ROOM = 1024  # distinct points that there is room for at first


class Remembered:
    """Score cache: each point is scored once.

    A call of it costs about as much as ``CALL`` points, for each alternative that it is asked about. When the calls for
    one have cost as much as all its points would, the rest of these are scored at once: that is at most twice what
    would have been best.
    """

    def __init__(self, space: SearchSpace, score: Score) -> None:
        self._space, self._score = space, score
        self._met = Distinct(space.width)
        self._scores = np.empty(0)  # of the points met, in that order
        self._calls = [0] * len(space.counts)

    def __call__(self, points: Points) -> NDArray[np.float64]:
        """As `evaluate`."""
        places = self._met.places(points)
        new = self._met.points[len(self._scores) :]
        if len(new):
            for number in np.unique(self._space.alternatives(new)).tolist():
                self._calls[number] += 1
                if self._calls[number] * CALL >= self._space.counts[number]:
                    self._met.places(self._all(number))
            new = self._met.points[len(self._scores) :]
            self._scores = np.concatenate([self._scores, evaluate(self._score, new)])
        return self._scores[places]

    def _all(self, number: int) -> Points:
        first = sum(self._space.counts[:number])
        return self._space.enumerate(first, first + self._space.counts[number])


class Distinct:
    """Distinct points in the order in which they were first met."""

    def __init__(self, width: int) -> None:
        self._count = 0
        self._points = np.empty((_ROOM, width), np.int32)
        self._table = np.full(2 * _ROOM, -1)  # open addressing: of a hash the place of its point, -1: none

    @property
    def points(self) -> Points:
        """The points met, (distinct, width)."""
        return self._points[: self._count]

    def places(self, points: Points) -> NDArray[np.int64]:
        """The place (n,) of each point (n, width) among those met, of which it is one from now on."""
        if self._count + len(points) > len(self._points):
            met = self.points
            room = 1 << (2 * (self._count + len(points))).bit_length()
            self._points, self._table = np.empty((room, met.shape[1]), np.int32), np.full(2 * room, -1)
            self._count = _place(met, self._points, self._table, 0, np.empty(len(met), np.int64))
        found = np.empty(len(points), np.int64)
        self._count = _place(points, self._points, self._table, self._count, found)
        return found


@njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)
def _place(points, met, table, count, found):  # type: ignore[no-untyped-def]
    """Fills ``found``; new points go behind the first ``count`` of ``met``, which has room. How many there are then."""
    last = np.uint64(len(table) - 1)  # the length is a power of two
    for i in range(len(points)):
        # Multiplications spread differences to high bits, shifts bring them back to the low ones, which choose the
        # slot.
        mixed = np.uint64(0)
        for c in range(points.shape[1]):
            mixed = (mixed ^ np.uint64(points[i, c])) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(32)
        slot = mixed & last
        while True:
            place = table[slot]
            if place < 0:
                for c in range(points.shape[1]):
                    met[count, c] = points[i, c]
                table[slot] = place = count
                count += 1
                break
            same = True
            for c in range(points.shape[1]):
                same &= met[place, c] == points[i, c]
            if same:
                break
            # Linear probing: at most half of the table is in use (`places`), so an empty slot is near.
            slot = (slot + np.uint64(1)) & last
        found[i] = place
    return count
