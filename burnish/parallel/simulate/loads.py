"""Loads of devices and links by a strategy, compiled: anew, and after a change of some operations."""

from __future__ import annotations

from burnish.base.jit import njit
from burnish.parallel.simulate.core import (
    IN,
    OUT,
    PARTS,
    PLACE,
    SPLIT,
    WEIGHT,
    Known,
    ProblemArrays,
    SimulationScratch,
    copying,
    transfer,
)
from burnish.parallel.simulate.paths import find_hops
from burnish.parallel.simulate.sharing import SOURCE, TARGET, Array, count, partners
from burnish.parallel.simulate.weight_sums import synchronization


@njit(cache=True, inner=True)
def add_compute(t: ProblemArrays, c: int, sign: int, load: Array) -> None:
    """Adds the tasks of a configuration to the loads of devices."""
    d = t.configurations[c, SPLIT]
    for k in range(t.configurations[c, PARTS]):
        device = t.places[t.configurations[c, PLACE], k]
        load[device] += sign * (t.time[d, 0, t.kind[device]] + t.time[d, 1, t.kind[device]])


@njit(cache=True, inner=True)
def add_copies(
    t: ProblemArrays,
    e: int,
    di: int,
    dj: int,
    n: int,
    mine: int,
    x: int,
    y: int,
    sign: int,
    load: Array,
    room: SimulationScratch,
) -> None:
    """Adds the copy time of a transfer at both ends, forward and backward, where devices copy: the n-th of ``mine``
    that a part of the producer has for parts of the consumer. See ``events.finish`` and ``events.receive``.
    """
    theirs = count(t.geometry, e, False, di, dj, room.found[n], room.w)
    there = room.size[n] * t.nbytes[e, 0]
    again = room.size[n] * t.nbytes[e, 1]
    load[x] += sign * (copying(t, x, y, there, there < t.result[di]) + copying(t, y, x, again, mine > 1))
    load[y] += sign * (copying(t, x, y, there, theirs > 1) + copying(t, y, x, again, theirs > 1))


@njit(cache=True, inner=True)
def add_edge(t: ProblemArrays, e: int, ci: int, cj: int, sign: int, load: Array, room: SimulationScratch) -> float:
    """Adds the transfers of an edge, forward and backward, to the loads of links; returns their bytes."""
    elements = 0
    di = t.configurations[ci, SPLIT]
    dj = t.configurations[cj, SPLIT]
    for k in range(t.configurations[ci, PARTS]):
        x = t.places[t.configurations[ci, PLACE], k]
        several = partners(t.geometry, e, True, di, dj, k, room.found, room.size, room.w)
        for n in range(several):
            y = t.places[t.configurations[cj, PLACE], room.found[n]]
            if x == y:
                continue
            elements += room.size[n]
            if t.copied:
                add_copies(t, e, di, dj, n, several, x, y, sign, load, room)
                continue
            there = sign * transfer(t, x, y, room.size[n] * t.nbytes[e, 0])
            again = sign * transfer(t, y, x, room.size[n] * t.nbytes[e, 1])
            for end in range(2):
                if t.route[x, y, end] >= 0:
                    load[t.route[x, y, end]] += there
                if t.route[y, x, end] >= 0:
                    load[t.route[y, x, end]] += again
    return elements * (t.nbytes[e, 0] + t.nbytes[e, 1])


@njit(cache=True, counted=False)
def loads(t: ProblemArrays, choice: Array, known: Known, room: SimulationScratch) -> tuple[float, float]:
    """Finds loads, synchronization and hops of a strategy; returns bytes transferred and synchronized."""
    load = known.load
    load[:] = 0
    moved = 0.0
    summed = 0.0
    for i in range(choice.size):
        add_compute(t, choice[i], 1, load)
    for e in range(t.geometry.edges.shape[0]):
        a = choice[t.geometry.edges[e, SOURCE]]
        b = choice[t.geometry.edges[e, TARGET]]
        moved += add_edge(t, e, a, b, 1, load, room)
        find_hops(t, e, a, b, known.hop, room)
    for g in range(known.sync.shape[0]):
        summed += synchronization(t, g, choice, known.sync, room.holders)
        for r in range(load.size):
            load[r] += known.sync[g, r]
    return moved, summed


@njit(cache=True, inner=True)
def change_loads(t: ProblemArrays, old: Array, new: Array, ops: Array, known: Known, room: SimulationScratch) -> None:
    """Updates what is known of ``old`` to that of ``new``, which differs in ``ops`` (marked ``room.inside``); not the
    longest paths.
    """
    load = known.load
    for i in ops:
        add_compute(t, old[i], -1, load)
        add_compute(t, new[i], 1, load)
        for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
            e = t.lists[q]
            p = t.geometry.edges[e, SOURCE]
            add_edge(t, e, old[p], old[i], -1, load, room)
            add_edge(t, e, new[p], new[i], 1, load, room)
            find_hops(t, e, new[p], new[i], known.hop, room)
        for q in range(t.pointer[OUT, i], t.pointer[OUT, i + 1]):
            e = t.lists[q]
            j = t.geometry.edges[e, TARGET]
            # An edge between two changed operations is counted at its consumer's inputs.
            if not room.inside[j]:
                add_edge(t, e, old[i], old[j], -1, load, room)
                add_edge(t, e, new[i], new[j], 1, load, room)
                find_hops(t, e, new[i], new[j], known.hop, room)
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            g = t.lists[q]
            # A group that several changed operations share is summed anew once.
            if not room.touched[g]:
                room.touched[g] = True
                for r in range(load.size):
                    load[r] -= known.sync[g, r]
                synchronization(t, g, new, known.sync, room.holders)
                for r in range(load.size):
                    load[r] += known.sync[g, r]
    for i in ops:
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            room.touched[t.lists[q]] = False


@njit(cache=True, inner=True)
def copy_changed(t: ProblemArrays, ops: Array, source: Known, target: Known) -> None:
    """Copies what :func:`change_loads` changes from one to the other."""
    for r in range(source.load.size):
        target.load[r] = source.load[r]
    for i in ops:
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            for r in range(source.sync.shape[1]):
                target.sync[t.lists[q], r] = source.sync[t.lists[q], r]
        for side in (IN, OUT):
            for q in range(t.pointer[side, i], t.pointer[side, i + 1]):
                for way in range(2):
                    target.hop[t.lists[q], way] = source.hop[t.lists[q], way]
