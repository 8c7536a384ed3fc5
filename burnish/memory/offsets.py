"""Offsets of many buffers: best fit on a coalescing free list, births and deaths in the order of time, or against it.

What a program with a heap would do, known before it runs: a buffer is put into the smallest free block that holds it
when it is born, and its block joins its free neighbours when it dies. Linear in the buffers but for the search of a
block, where the other planner compares each buffer with all that live beside it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from burnish.memory.lifetimes import Interval


class _Heap:
    """Free blocks of an arena that grows at its end."""

    def __init__(self) -> None:
        self.end = 0
        self._sizes: list[tuple[int, int]] = []  # (bytes, begin), sorted
        self._begins: dict[int, int] = {}  # begin -> bytes
        self._ends: dict[int, int] = {}  # end -> begin

    def take(self, nbytes: int) -> int:
        """The begin of ``nbytes``: in the smallest block that holds them, else at the end, from a free block there."""
        at = bisect_left(self._sizes, (nbytes, -1))
        if at < len(self._sizes):
            size, begin = self._sizes[at]
            self._remove(begin, size)
            if size > nbytes:
                self._insert(begin + nbytes, size - nbytes)
            return begin
        begin = self._ends.get(self.end, self.end)
        if begin < self.end:
            self._remove(begin, self.end - begin)
        self.end = begin + nbytes
        return begin

    def give_back(self, begin: int, nbytes: int) -> None:
        """Frees a block, and joins it with its free neighbours."""
        before = self._ends.get(begin)
        if before is not None:
            self._remove(before, begin - before)
            nbytes += begin - before
            begin = before
        after = self._begins.get(begin + nbytes)
        if after is not None:
            self._remove(begin + nbytes, after)
            nbytes += after
        self._insert(begin, nbytes)

    def _insert(self, begin: int, nbytes: int) -> None:
        insort(self._sizes, (nbytes, begin))
        self._begins[begin] = nbytes
        self._ends[begin + nbytes] = begin

    def _remove(self, begin: int, nbytes: int) -> None:
        del self._sizes[bisect_left(self._sizes, (nbytes, begin))]
        del self._begins[begin]
        del self._ends[begin + nbytes]


def best_fit(buffers: Sequence[Interval], alignment: int, backwards: bool = False) -> tuple[dict[str, int], int]:
    """Offsets, multiples of ``alignment``, and the bytes of the arena. ``backwards``: time runs from the last step on.

    Of buffers that are born at one step the larger is placed first, of equal ones that which lives longer.
    """
    events: list[tuple[int, int, int, int, int]] = []  # step, deaths before births, larger first, longer first, buffer
    for number, b in enumerate(buffers):
        if b.nbytes:
            born, dead = (-b.last, 1 - b.first) if backwards else (b.first, b.last + 1)
            events.append((born, 1, -b.nbytes, b.first - b.last, number))
            events.append((dead, 0, 0, 0, number))
    events.sort()
    heap, offsets = _Heap(), {b.name: 0 for b in buffers if not b.nbytes}
    size = 0
    for _, is_birth, _, _, number in events:
        b = buffers[number]
        nbytes = -(-b.nbytes // alignment) * alignment
        if is_birth:
            offsets[b.name] = heap.take(nbytes)
            size = max(size, offsets[b.name] + b.nbytes)
        else:
            heap.give_back(offsets[b.name], nbytes)
    return offsets, size
