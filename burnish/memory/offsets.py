"""Offsets of many buffers: best fit on a coalescing free list, and greedy placement, whose loops are compiled.

Best fit is what a program with a heap would do, known before it runs: a buffer is put into the smallest free block that
holds it when it is born, and its block joins its free neighbours when it dies. It may begin where most bytes are live,
which then lie without gaps, and go from there to both ends. Greedy placement (Pisarchyk and Lee 2020, section 5) takes
buffers by size, or in another order, each into a gap between those that live beside it: closer to the bound, and slower
where very many do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.memory.lifetimes import Interval

MOST_WORK = 200_000_000  # comparisons of greedy placements, about half a second
SORTING = 16  # comparisons that one neighbour costs when neighbours are put in order
PROMOTIONS = 32  # rounds in which what reaches the top of the arena is placed first
WIDTHS = 6  # of the ranges of steps by which neighbours are found, those tried; each is four times the one before
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lives:
    """Buffers with bytes as arrays: the first and last step at which each lives, bytes, and bytes rounded up."""

    names: tuple[str, ...]
    empty: tuple[str, ...]
    first: Ints
    last: Ints
    nbytes: Ints
    rounded: Ints

    @staticmethod
    def of(buffers: Sequence[Interval], alignment: int) -> Lives:
        """The lives of ``buffers``, whose places are multiples of ``alignment``."""
        sized = [b for b in buffers if b.nbytes]
        first, last, nbytes = (
            np.array([getattr(b, field) for b in sized], np.int64) for field in ("first", "last", "nbytes")
        )
        low = int(first.min()) if sized else 0
        names, empty = tuple(b.name for b in sized), tuple(b.name for b in buffers if not b.nbytes)
        return Lives(names, empty, first - low, last - low, nbytes, -(-nbytes // alignment) * alignment)

    @cached_property
    def peak(self) -> int:
        """The first step at which most bytes are live."""
        change = np.zeros(self.steps + 1, np.int64)
        np.add.at(change, self.first, self.rounded)
        np.add.at(change, self.last + 1, -self.rounded)
        return int(np.cumsum(change).argmax())

    @property
    def steps(self) -> int:
        """Steps from the first birth to the last death."""
        return int(self.last.max()) + 1 if self.names else 0

    def placed(self, offsets: Ints) -> tuple[dict[str, int], int]:
        """Offsets by name, and the bytes of the arena."""
        found = dict(zip(self.names, offsets.tolist(), strict=True))
        return found | dict.fromkeys(self.empty, 0), int((offsets + self.nbytes).max(initial=0))


_ORDERS: tuple[Callable[[Lives], tuple[Ints, ...]], ...] = (  # as NumPy's lexsort has keys: the last counts most
    lambda b: (b.first, -b.rounded),  # by size
    lambda b: (b.first, -b.rounded * (b.last - b.first + 1)),  # by bytes times steps
    lambda b: (-b.rounded, b.first - b.last),  # longest life first
    lambda b: (-b.rounded, b.first),  # in order of birth
    lambda b: (-b.rounded, -b.last),  # in reverse order of death
)


def place_many(buffers: Sequence[Interval], alignment: int, enough: int = 0) -> tuple[dict[str, int], int]:
    """Offsets, multiples of ``alignment``, and the bytes of the arena: the smallest found, or one of ``enough``."""
    lives = Lives.of(buffers, alignment)
    best: tuple[dict[str, int], int] | None = None
    for start in dict.fromkeys((0, max(0, lives.steps - 1), lives.peak)):
        found = best_fit(lives, start)
        if best is None or found[1] < best[1]:
            best = found
        if best[1] <= enough:
            return best
    assert best is not None
    return min(best, stacked(lives, enough) or best, key=lambda placed: placed[1])


def best_fit(lives: Lives, start: int = 0) -> tuple[dict[str, int], int]:
    """Offsets and the bytes of the arena by best fit: from step ``start`` on in time, and from there back.

    What lives at ``start`` lies without gaps, the first to die below. Of buffers that are born at one step the larger
    is placed first, of equal ones that which lives longer.
    """
    first, last, size = lives.first, lives.last, lives.rounded
    offsets = np.zeros(len(first), np.int64)
    alive = np.flatnonzero((first <= start) & (start <= last))
    alive = alive[np.lexsort((first[alive] - last[alive], -size[alive], last[alive]))]
    offsets[alive] = np.cumsum(size[alive]) - size[alive]
    least = end = int(size[alive].sum())
    for born, dead, rest in (
        (first, last, np.flatnonzero(first > start)), (-last, -first, np.flatnonzero(last < start))
    ):  # fmt: skip
        births = rest[np.lexsort((born[rest] - dead[rest], -size[rest], born[rest]))]
        deaths = np.concatenate([alive, rest])
        deaths = deaths[np.argsort(dead[deaths], kind="stable")]
        end = _sweep(births, deaths, born, dead, size, offsets, least, end)
    return lives.placed(offsets)


@njit(cache=True, nogil=True)
def _sweep(births: Any, deaths: Any, born: Any, dead: Any, size: Any, offsets: Any, least: Any, end: Any) -> Any:
    """Sets the offsets of ``births``; the end of the arena, which was ``end`` and is in use up to ``least``."""
    # Best fit with coalescing: free blocks are disjoint, ascending, and never touch, so that what could be one block is
    # one. All deaths before a birth are freed first, in the same order as in a run.
    begins = np.empty(len(deaths) + 2, np.int64)  # of the free blocks, ascending
    free = np.empty(len(deaths) + 2, np.int64)
    count = 0
    if end > least:
        begins[0], free[0], count = least, end - least, 1
    gone = 0
    for b in births:
        while gone < len(deaths) and dead[deaths[gone]] < born[b]:
            at, nbytes = offsets[deaths[gone]], size[deaths[gone]]
            gone += 1
            k = np.searchsorted(begins[:count], at)
            before = k > 0 and begins[k - 1] + free[k - 1] == at
            behind = k < count and at + nbytes == begins[k]
            if before:
                free[k - 1] += nbytes
                if behind:
                    free[k - 1] += free[k]
                    count -= 1
                    for i in range(k, count):
                        begins[i], free[i] = begins[i + 1], free[i + 1]
            elif behind:
                begins[k] = at
                free[k] += nbytes
            else:
                for i in range(count, k, -1):
                    begins[i], free[i] = begins[i - 1], free[i - 1]
                begins[k], free[k] = at, nbytes
                count += 1
        nbytes = size[b]
        chosen = -1
        for k in range(count):
            if free[k] >= nbytes and (chosen < 0 or free[k] < free[chosen]):
                chosen = k
        # Of blocks that suffice the smallest, of equal ones the lowest: large ones stay for large buffers.
        if chosen < 0:  # at the end, from a free block there
            if count > 0 and begins[count - 1] + free[count - 1] == end:
                count -= 1
                end = begins[count]
            offsets[b] = end
            end += nbytes
            continue
        offsets[b] = begins[chosen]
        begins[chosen] += nbytes
        free[chosen] -= nbytes
        if free[chosen] == 0:
            count -= 1
            for i in range(chosen, count):
                begins[i], free[i] = begins[i + 1], free[i + 1]
    return end


def stacked(lives: Lives, enough: int = 0) -> tuple[dict[str, int], int] | None:
    """The best offsets, and bytes of the arena, of greedy placement in several orders; by size is the first.

    Each buffer goes into the lowest gap, or the tightest. In further rounds what reaches the top is placed first. Ends
    at ``enough`` bytes, and after ``MOST_WORK`` comparisons; None if these do not suffice for one order.
    """
    width, work = _width(lives)
    tries = min(MOST_WORK // max(work, 1), 2 * len(_ORDERS) + PROMOTIONS)
    best = latest = None
    for number in range(tries):
        if best is None or number < 2 * len(_ORDERS):
            order = np.lexsort(_ORDERS[number // 2](lives))
        else:
            size, offsets, order = latest if latest is not None and number > 2 * len(_ORDERS) else best
            at_top = offsets + lives.nbytes == size
            order = np.concatenate([np.flatnonzero(at_top), order[~at_top[order]]])
        offsets = _stack(order, lives.first, lives.last, lives.rounded, width, number % 2 == 1)
        latest = int((offsets + lives.nbytes).max(initial=0)), offsets, order
        if best is None or latest[0] < best[0]:
            best = latest
        if best[0] <= enough:
            break
    return None if best is None else lives.placed(best[1])


def _width(lives: Lives) -> tuple[int, int]:
    """Steps of a range, such that fewest comparisons find the neighbours of all buffers; and about how many."""
    beside = np.searchsorted(np.sort(lives.first), lives.last, "right") - np.searchsorted(
        np.sort(lives.last), lives.first
    )
    least: tuple[int, int] | None = None
    for width in (4**i for i in range(WIDTHS)):
        change = np.zeros(lives.steps // width + 2, np.int64)
        np.add.at(change, lives.first // width, 1)
        np.add.at(change, lives.last // width + 1, -1)
        work = int((np.cumsum(change).astype(np.float64) ** 2).sum() / 2)
        if least is None or work < least[1]:
            least = width, work
    assert least is not None
    return least[0], least[1] + SORTING * int(beside.sum())


@njit(cache=True, nogil=True)
def _stack(order: Any, first: Any, last: Any, size: Any, width: Any, tightest: Any) -> Any:
    """Offsets, each buffer between those before it in ``order``: in the lowest gap, or the ``tightest``."""
    total = 0
    for b in order:
        total += last[b] // width - first[b] // width + 1
    heads = np.full(last.max() // width + 1, -1, np.int64)  # of lists of the placed buffers that live in a range
    following = np.empty(total, np.int64)
    member = np.empty(total, np.int64)
    used = 0
    offsets = np.zeros(len(order), np.int64)
    seen = np.full(len(order), -1, np.int64)
    begins = np.empty(len(order), np.int64)
    ends = np.empty(len(order), np.int64)
    for b in order:
        count = 0
        for k in range(first[b] // width, last[b] // width + 1):
            p = heads[k]
            while p >= 0:
                other = member[p]
                p = following[p]
                if seen[other] != b:
                    seen[other] = b
                    if first[other] <= last[b] and first[b] <= last[other]:
                        begins[count] = offsets[other]
                        ends[count] = offsets[other] + size[other]
                        count += 1
        end = 0
        chosen = -1
        smallest = 0
        for i in np.argsort(begins[:count]):
            gap = begins[i] - end
            if gap >= size[b] and (chosen < 0 or gap < smallest):
                smallest, chosen = gap, end
                if not tightest:
                    break
            end = max(end, ends[i])
        offsets[b] = end if chosen < 0 else chosen
        for k in range(first[b] // width, last[b] // width + 1):
            member[used], following[used] = b, heads[k]
            heads[k] = used
            used += 1
    return offsets
