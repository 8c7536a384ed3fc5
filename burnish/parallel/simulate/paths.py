"""Longest paths of tasks and transfers, compiled: what is left of a step after a task of each operation, at least."""

from __future__ import annotations

from burnish.base.jit import njit
from burnish.parallel.simulate.core import (
    IN,
    OUT,
    PARTS,
    PLACE,
    SPLIT,
    WEIGHT,
    ProblemArrays,
    SimulationScratch,
    transfer,
)
from burnish.parallel.simulate.sharing import CLASS, DRIVE, LEVEL, SOURCE, TARGET, Array, partners


@njit(cache=True, counted=False)
def is_covered(t: ProblemArrays, e: int, di: int, dj: int, side: int) -> bool:
    """Whether every part of an edge's producer (side 0) or consumer (1) shares elements with one of the other."""
    for x in range(5):
        c = t.geometry.edges[e, CLASS + x]
        if c >= 0:
            m = t.geometry.edges[e, DRIVE + x]
            if not t.covered[
                c, t.geometry.splits[di, LEVEL + x], t.geometry.splits[dj, LEVEL + m] if m >= 0 else 0, side
            ]:
                return False
    return True


@njit(cache=True, inner=True)
def find_hops(t: ProblemArrays, e: int, ci: int, cj: int, hop: Array, room: SimulationScratch) -> None:
    """Edge latency, at least, into ``hop[e]``, forward and backward: from the end of a task to the arrival of the last
    of what it sends; its transfers on one link follow each other.
    """
    for way in range(2):
        mine, other = (ci, cj) if way == 0 else (cj, ci)
        least = -1
        # The least over the producer's parts: `tails` holds for a task of any part, also one that sends nothing far.
        for k in range(t.configurations[mine, PARTS]):
            x = t.places[t.configurations[mine, PLACE], k]
            n = partners(
                t.geometry, e, way == 0, t.configurations[ci, SPLIT], t.configurations[cj, SPLIT], k, room.found,
                room.size, room.w,
            )  # fmt: skip
            most = 0
            for m in range(n):
                y = t.places[t.configurations[other, PLACE], room.found[m]]
                if x != y:
                    time = transfer(t, x, y, room.size[m] * t.nbytes[e, way])
                    for end in range(2):
                        link = t.route[x, y, end]
                        if link >= 0:
                            room.sums[link] += time
                            most = max(most, room.sums[link])
            # `sums` is zeroed where it was used, not as a whole: links are many, those of one part few.
            for m in range(n):
                y = t.places[t.configurations[other, PLACE], room.found[m]]
                for end in range(2):
                    if x != y and t.route[x, y, end] >= 0:
                        room.sums[t.route[x, y, end]] = 0
            least = most if least < 0 else min(least, most)
            if least == 0:
                break
        hop[e, way] = least


@njit(cache=True, inner=True)
def shortest(t: ProblemArrays, choice: Array, i: int, way: int) -> int:
    """Nanoseconds of a forward or backward task of an operation, on the kind of device that is fastest."""
    d = t.configurations[choice[i], SPLIT]
    least = t.time[d, way, 0]
    for x in range(1, t.time.shape[2]):
        least = min(least, t.time[d, way, x])
    return least


@njit(cache=True, counted=False)
def tails(t: ProblemArrays, choice: Array, sync: Array, hop: Array, tail: Array) -> int:
    """Least nanoseconds that pass between the end of a task of each operation and that of the step: ``tail`` [n, 2].

    Longest paths of tasks and of what they send (:func:`find_hops`), without contention; returns the whole step's.
    """
    # Operations are in topological order. Backward tails first, from the inputs on: after the backward task of i come
    # the backward tasks of its producers. Then forward tails from the outputs on, which end in the operation's own
    # backward task. An edge counts only where every part has a partner, since the tail must hold for each part.
    n = choice.size
    for i in range(n):
        di = t.configurations[choice[i], SPLIT]
        least = 0
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            for link in range(sync.shape[1] - 1):
                least = max(least, sync[t.lists[q], link])
        for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
            e = t.lists[q]
            p = t.geometry.edges[e, SOURCE]
            if is_covered(t, e, t.configurations[choice[p], SPLIT], di, 1):
                least = max(least, hop[e, 1] + shortest(t, choice, p, 1) + tail[p, 1])
        tail[i, 1] = least
    most = 0
    for i in range(n - 1, -1, -1):
        di = t.configurations[choice[i], SPLIT]
        least = shortest(t, choice, i, 1) + tail[i, 1]
        for q in range(t.pointer[OUT, i], t.pointer[OUT, i + 1]):
            e = t.lists[q]
            j = t.geometry.edges[e, TARGET]
            if is_covered(t, e, di, t.configurations[choice[j], SPLIT], 0):
                least = max(least, hop[e, 0] + shortest(t, choice, j, 0) + tail[j, 0])
        tail[i, 0] = least
        most = max(most, shortest(t, choice, i, 0) + least)
    return most
