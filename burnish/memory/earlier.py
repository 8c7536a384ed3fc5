"""Order of operations for less memory: what frees more bytes than it writes runs as soon as it can."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.memory.work import Work

CLOSURE = 8  # operations that are run early for the sake of one
LITTLE = 100  # what all small results together may be of what is live: one part in so many


def earlier(work: Work) -> list[int]:
    """An order in which each operation runs once: those that leave no more live than before run when they can.

    So do the few that only they wait for, if all together leave no more. What writes so little that it does not matter
    counts as nothing. Those of the backward pass must leave less, and what may be computed again, just before they need
    it in their own places, does not count. All others keep their places. Of this order and the given one that with
    fewer live bytes is taken; of equal ones the given one.
    """
    order = _Order(work).found()
    return order if work.live(order) < work.live(range(len(work))) else list(range(len(work)))


class _Order:
    """An order under construction."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.little = work.live(range(len(work))) // (LITTLE * max(1, len(work)))
        self.waiting = [{work.producer[v] for v in o.reads} | {*o.after} for o in work.operations]
        self.followers: list[list[int]] = [[] for _ in self.waiting]
        for n, needed in enumerate(self.waiting):
            for m in needed:
                self.followers[m].append(n)
        self.reads = [0] * len(work.nbytes)  # operations that have yet to read each value
        for o in work.operations:
            for v in dict.fromkeys(o.reads):
                self.reads[v] += 1
        self.done = [False] * len(work)
        self.order: list[int] = []

    def found(self) -> list[int]:
        """All operations."""
        for n in range(len(self.work)):
            touched = self._run(n)
            while touched:
                m = min(touched)
                touched.discard(m)
                together = self._together(m)
                if together and self._frees(together):
                    for k in together:
                        touched |= self._run(k)
        return self.order

    def _run(self, n: int) -> set[int]:
        """Runs an operation, and gives those for which it makes a difference."""
        if self.done[n]:
            return set()
        self.done[n] = True
        self.order.append(n)
        touched = {*self.followers[n]}
        for v in dict.fromkeys(self.work.operations[n].reads):
            self.reads[v] -= 1
            if self.reads[v] <= CLOSURE:
                touched.update(self.followers[self.work.producer[v]])
        return {m for m in touched if not self.done[m]}

    def _together(self, m: int) -> list[int]:
        """An operation with those it waits for, in order; none if these are many."""
        found: set[int] = set()
        pending = [m]
        while pending:
            n = pending.pop()
            if self.done[n] or n in found:
                continue
            found.add(n)
            if len(found) > CLOSURE:
                return []
            pending += self.waiting[n]
        return sorted(found)

    def _frees(self, together: Sequence[int]) -> bool:
        """Whether operations write no more than what only they have yet to read; of the backward pass, less."""
        operations = [self.work.operations[n] for n in together]
        written = sum(self.work.nbytes[v] for o in operations for v in o.writes)
        if written <= self.little:
            return True
        backward = together[-1] >= self.work.boundary
        again = self.work.repeatable if backward else frozenset[int]()
        readers: dict[int, int] = {}
        for o in operations:
            for v in dict.fromkeys(o.reads):
                readers[v] = readers.get(v, 0) + 1
        dying = (v for v, count in readers.items() if count == self.reads[v] and v not in self.work.keep)
        inside = {v for o in operations for v in o.writes}
        freed = sum(self.work.nbytes[v] for v in dying if v not in inside and self.work.producer[v] not in again)
        return written < freed if backward else written <= freed
