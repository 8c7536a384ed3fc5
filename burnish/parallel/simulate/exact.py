"""Optimal strategies of small problems by branch and bound: depth first over operations, each bound one of all below.

A partial strategy is cut off where the load of a device or a link, all work spread evenly, or a path of tasks with the
transfers between them takes as long as the best strategy known. None of these counts a wait for a device or link, so
none is above the time of any strategy that begins so; a simulated prefix would be (a task more can end a step earlier).
Source: thesis-jia section 3.7.5, which searches depth first and by A*.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.parallel.simulate import walk
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
    transfer,
)
from burnish.parallel.simulate.loads import add_compute, add_edge
from burnish.parallel.simulate.paths import is_covered, tails
from burnish.parallel.simulate.sharing import SOURCE, TARGET, partners
from burnish.parallel.simulate.simulate import Choice, Simulator
from burnish.parallel.simulate.state import OVERFLOW, SimulationArrays
from burnish.parallel.simulate.weight_sums import synchronization

Array = NDArray[np.generic]
_SLICE = 1 << 15  # partial strategies between two looks at the clock
_FAR = np.int64(1) << 60
DONE, AGAIN = 1, 0
NODES, LEAVES, BETTER, BEST, DEPTH = range(5)


@dataclass(frozen=True, eq=False)
class BestStrategy:
    """The best strategy and its nanoseconds; ``proven``: no other is faster. ``nodes``: partial strategies looked at,
    ``leaves``: whole ones that were simulated.
    """

    choice: Choice
    ns: int
    proven: bool
    nodes: int
    leaves: int
    seconds: float


def optimum(simulator: Simulator, known: Choice, seconds: float = 60.0) -> BestStrategy:
    """The fastest strategy of a space, or the best met within ``seconds``. ``known``: one to begin with, a good one."""
    begun = time.monotonic()
    search = _Search(simulator, np.ascontiguousarray(known, np.int32))
    while True:
        state = search.run()
        proven = state == DONE
        if proven or time.monotonic() - begun > seconds:
            break
    return BestStrategy(
        search.best, int(search.counters[BEST]), proven, int(search.counters[NODES]), int(search.counters[LEAVES]),
        time.monotonic() - begun,
    )  # fmt: skip


class PrefixBounds(NamedTuple):
    """Bounds of a search in ns; row i is of the first i operations. ``work``: least work of the operations from each
    on; ``rest``: least time between the forward and the backward task of each; ``load``: of resources; ``after``: of
    sums after the step; ``end``, ``up``: by part, the end of the forward task, and from the beginning of the backward
    task to the end of the step; ``head``, ``late``: by device, before its first task, and behind its last one;
    ``alone``: sums of gradients for weights of a single operation, by its configurations.
    """

    work: Array
    rest: Array
    load: Array
    after: Array
    end: Array
    up: Array
    head: Array
    late: Array
    alone: Array


class _Search:
    """The state of a search, which is run slice by slice."""

    def __init__(self, simulator: Simulator, known: Choice) -> None:
        problem, t = simulator.problem, simulator.t
        self.simulator, self.t = simulator, t
        count, devices, resources = len(problem.model.operations), problem.machine.size, problem.resources
        self.best = known.copy()
        self.choice = problem.space.first.astype(np.int32).copy()
        self.first = problem.space.first.astype(np.int64)
        self.numbers = problem.space.count.astype(np.int64)
        self.counters = np.zeros(5, np.int64)
        self.counters[BEST] = simulator.full(known)
        integers = np.int64
        width = max(t.places.shape[1], 1)
        groups = len(problem.weights.nbytes)
        sync, hop = np.zeros((groups, resources + 1), integers), np.zeros((len(problem.model.edges), 2), integers)
        self.known = Known(np.zeros(resources, integers), sync, hop, np.zeros((count, 2), integers))
        work, rest = _least(simulator)
        load, after = np.zeros((count + 1, resources), integers), np.zeros(count + 1, integers)
        end, up = np.zeros((2, count, width), integers)
        head, late = np.full((2, count + 1, devices), _FAR)
        self.bounds = PrefixBounds(work, rest, load, after, end, up, head, late, self._sums_alone())

    def _sums_alone(self) -> NDArray[np.int64]:
        """Gradient sums for weights of a single operation, as :func:`synchronization` gives them, by its
        configurations.
        """
        t = self.t
        sync = np.zeros_like(self.known.sync)
        found = np.zeros((len(sync), int(self.numbers.max()), sync.shape[1]), np.int64)
        for g in range(len(sync)):
            members = t.members[t.member_pointer[g] : t.member_pointer[g + 1], 0]
            if len(members) == 1:
                choice = self.choice.copy()
                for n in range(int(self.numbers[members[0]])):
                    choice[members[0]] = self.first[members[0]] + n
                    synchronization(t, g, choice, sync, self.simulator.room.holders)
                    found[g, n] = sync[g]
        return found

    def run(self) -> int:
        """A slice; DONE when nothing is left."""
        own = self.simulator
        while True:
            found = descend(
                self.t, self.first, self.numbers, self.choice, self.best, self.counters, self.bounds, self.known,
                own.arrays(own.no_checkpoints), _SLICE,
            )  # fmt: skip
            if found != OVERFLOW:
                return int(found)
            own.grow()


def _least(simulator: Simulator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The least work of operations from each on; the least time between forward and backward tasks of each."""
    t, space = simulator.t, simulator.problem.space
    count = len(space.first)
    used = np.unique(t.kind)
    forward, backward = t.time[:, 0][:, used].min(axis=1), t.time[:, 1][:, used].min(axis=1)
    work, rest = np.zeros(count + 1, np.int64), np.zeros(count, np.int64)
    ahead, back = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for i in reversed(range(count)):
        own = np.arange(space.first[i], space.first[i] + space.count[i])
        splits = t.configurations[own, SPLIT]
        work[i] = work[i + 1] + int(((forward[splits] + backward[splits]) * t.configurations[own, PARTS]).min())
        ahead[i], back[i] = int(forward[splits].min()), int(backward[splits].min())
    for i in reversed(range(count)):
        for q in range(t.pointer[OUT, i], t.pointer[OUT, i + 1]):
            e = int(t.lists[q])
            j = int(t.geometry.edges[e, TARGET])
            if _always(simulator, e):
                rest[i] = max(rest[i], ahead[j] + rest[j] + back[j])
    return work, rest


def _always(simulator: Simulator, e: int) -> bool:
    """Whether every part of an edge's producer has a reader, for all degrees."""
    t, space = simulator.t, simulator.problem.space
    ends = (int(t.geometry.edges[e, SOURCE]), int(t.geometry.edges[e, TARGET]))
    splits = [np.unique(t.configurations[space.first[i] : space.first[i] + space.count[i], SPLIT]) for i in ends]
    return all(bool(is_covered(t, e, int(a), int(b), 0)) for a in splits[0] for b in splits[1])


@njit(cache=True, counted=False)
def descend(
    t: ProblemArrays,
    first: Array,
    numbers: Array,
    choice: Array,
    best: Array,
    counters: Array,
    bounds: PrefixBounds,
    known: Known,
    w: SimulationArrays,
    limit: int,
) -> int:
    """Looks at ``limit`` partial strategies more; DONE when there are none, AGAIN else, or OVERFLOW of the heap.

    ``counters[DEPTH]`` is the operation that is decided next, ``choice`` what is tried for it and those before.
    """
    count = choice.size
    i = counters[DEPTH]
    looked = 0
    # Depth first. Invariant: row j of load, after, head, late (j <= i) and of end, up (j < i) belongs to the prefix
    # choice[:j]. `may_be_better` derives row i + 1 from row i, so backing up undoes nothing: rows are overwritten.
    while i >= 0:
        if choice[i] >= first[i] + numbers[i]:
            # Every configuration of operation i was tried below this prefix: the next one of the operation before.
            choice[i] = first[i]
            i -= 1
            if i >= 0:
                choice[i] += 1
            continue
        if looked == limit:
            # `choice`, the depth and the rows are the whole state: the next call goes on from here.
            counters[DEPTH] = i
            return AGAIN
        looked += 1
        counters[NODES] += 1
        if not may_be_better(t, first, choice, i, counters[BEST], bounds, known.sync, w.scratch):
            choice[i] += 1
            continue
        if i < count - 1:
            i += 1
            continue
        # A whole strategy within all bounds. It is simulated only as far as it can beat the best: sums after the step
        # are no part of a simulation, hence `added`.
        counters[LEAVES] += 1
        added = bounds.after[count]
        for r in range(known.load.size):
            known.load[r] = bounds.load[count, r]
        tails(t, choice, known.sync, known.hop, known.tail)
        result = walk.simulate(t, choice, known, known.tail, counters[BEST] - 1 - added, 0, w)
        # The same leaf is tried again with a larger heap: choice[i] has not been counted up.
        if result == OVERFLOW:
            counters[DEPTH] = i
            return OVERFLOW
        if result >= 0 and result + added < counters[BEST]:
            counters[BEST] = result + added
            counters[BETTER] += 1
            for j in range(count):
                best[j] = choice[j]
        choice[i] += 1
    counters[DEPTH] = -1
    return DONE


@njit(cache=True, inner=True)
def may_be_better(
    t: ProblemArrays,
    first: Array,
    choice: Array,
    i: int,
    best: int,
    bounds: PrefixBounds,
    sync: Array,
    room: SimulationScratch,
) -> bool:
    """Whether a strategy that begins with ``choice[: i + 1]`` may take less than ``best``; decides operation i."""
    load, after, end, up = bounds.load, bounds.after, bounds.end, bounds.up
    head, late = bounds.head, bounds.late
    c = choice[i]
    devices = t.kind.size
    # Bound 1, loads: what each resource has to do for the operations decided so far; it can only grow.
    own = load[i + 1]
    for r in range(own.size):
        own[r] = load[i, r]
    after[i + 1] = after[i]
    add_compute(t, c, 1, own)
    for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
        e = t.lists[q]
        add_edge(t, e, choice[t.geometry.edges[e, SOURCE]], c, 1, own, room)
    behind = 0
    for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
        g = t.lists[q]
        last = t.members[t.member_pointer[g], 0]
        for m in range(t.member_pointer[g], t.member_pointer[g + 1]):
            last = max(last, t.members[m, 0])
        if last != i:
            continue  # what its sums take is known once all that read the weights are decided
        if t.member_pointer[g + 1] - t.member_pointer[g] == 1:
            for r in range(sync.shape[1]):
                sync[g, r] = bounds.alone[g, c - first[i], r]
        else:
            synchronization(t, g, choice, sync, room.holders)
        after[i + 1] += sync[g, own.size]
        for r in range(own.size):
            own[r] += sync[g, r]
            behind = max(behind, sync[g, r])
    # Sums after the step add to any time of the step itself.
    bound = best - after[i + 1]
    total = 0
    for r in range(own.size):
        if own[r] >= bound:
            return False
        if r < devices:
            total += own[r]
    # The operations that follow do at least their least work, at best spread evenly over all devices.
    if (total + bounds.work[i + 1]) // devices >= bound:
        return False
    # Bound 2, paths without any wait: `end` is the earliest end of a part's forward task, `up` the least time from the
    # beginning of its backward task to the end of the step. `rest` lies between them, in operations not yet decided.
    # Operations are in topological order, so all producers have theirs.
    d = t.configurations[c, SPLIT]
    for x in range(devices):
        head[i + 1, x] = head[i, x]
        late[i + 1, x] = late[i, x]
    for k in range(t.configurations[c, PARTS]):
        x = t.places[t.configurations[c, PLACE], k]
        ready = 0
        # Sums of the weights' gradients begin after the last backward task, this one at the earliest.
        back = behind
        for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
            e = t.lists[q]
            p = t.geometry.edges[e, SOURCE]
            other = t.configurations[choice[p], SPLIT]
            for n in range(partners(t.geometry, e, False, other, d, k, room.found, room.size, room.w)):
                y = t.places[t.configurations[choice[p], PLACE], room.found[n]]
                there = 0
                again = 0
                if x != y:
                    there = transfer(t, y, x, room.size[n] * t.nbytes[e, 0])
                    again = transfer(t, x, y, room.size[n] * t.nbytes[e, 1])
                ready = max(ready, end[p, room.found[n]] + there)
                back = max(back, up[p, room.found[n]] + again)
        end[i, k] = ready + t.time[d, 0, t.kind[x]]
        up[i, k] = back + t.time[d, 1, t.kind[x]]
        if end[i, k] + bounds.rest[i] + up[i, k] >= bound:
            return False
        # Bound 3: no task of device x begins before `head`, and at least `late` follows its last one.
        head[i + 1, x] = min(head[i + 1, x], ready)
        late[i + 1, x] = min(late[i + 1, x], back)
    if t.copied:
        return True  # devices also copy before their first task and after their last one
    worst = 0  # what a device does fits between its first task and what follows its last one
    for x in range(devices):
        if own[x] > 0:
            worst = max(worst, head[i + 1, x] + own[x] + late[i + 1, x])
    return worst < bound
