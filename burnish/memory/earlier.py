"""Order of operations for less memory: what frees more bytes than it writes runs as soon as it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from burnish.memory.work import Work


def earlier(work: Work, after: Mapping[int, Sequence[int]] | None = None) -> list[int]:
    """An order in which each operation runs once: those that leave no more live than before run when they can.

    All others keep their places. ``after``: operations that must wait for others beside those that they read from, as
    what updates a state waits for what reads the old one. Of this order and the given one that with fewer live bytes
    is taken; of equal ones the given one.
    """
    waiting = [{work.producer[v] for v in o.reads} | {*(after or {}).get(n, ())} for n, o in enumerate(work.operations)]
    followers: list[list[int]] = [[] for _ in waiting]
    for n, needed in enumerate(waiting):
        for m in needed:
            followers[m].append(n)
    left = [len(needed) for needed in waiting]
    reads = [0] * len(work.nbytes)
    for o in work.operations:
        for v in dict.fromkeys(o.reads):
            reads[v] += 1
    ready = [n for n, count in enumerate(left) if count == 0]
    order: list[int] = []
    done = [False] * len(work)

    def frees(n: int) -> bool:
        operation = work.operations[n]
        dying = (v for v in dict.fromkeys(operation.reads) if reads[v] == 1 and v not in work.keep)
        return sum(work.nbytes[v] for v in operation.writes) <= sum(work.nbytes[v] for v in dying)

    def run(n: int) -> list[int]:
        order.append(n)
        done[n] = True
        touched = []
        for v in dict.fromkeys(work.operations[n].reads):
            reads[v] -= 1
            if reads[v] == 1:
                touched += [m for m in followers[work.producer[v]] if not done[m] and left[m] == 0]
        for m in followers[n]:
            left[m] -= 1
            if left[m] == 0:
                heappush(ready, m)
                touched.append(m)
        return touched

    while ready:
        n = heappop(ready)
        if done[n]:
            continue
        touched = run(n)
        while touched:
            m = min(touched)
            touched.remove(m)
            if not done[m] and left[m] == 0 and frees(m):
                touched += run(m)
    return order if work.live(order) < work.live(range(len(work))) else list(range(len(work)))
