"""Metropolis walk over strategies, compiled: proposals simulated from checkpoints and only up to a known limit.

The Metropolis number is drawn before the simulation, so that the longest time that would be accepted is known: a
proposal whose loads or longest path exceed it is rejected without simulation, others as soon as that is certain.
Source: thesis-jia section 3.5; algorithms 1 and 2 (delta simulation), here by resuming.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from burnish.base.jit import njit
from burnish.parallel.simulate.core import (
    AFTER,
    BEFORE,
    IN,
    OUT,
    PARTS,
    WEIGHT,
    Known,
    ProblemArrays,
    SimulationScratch,
)
from burnish.parallel.simulate.events import drive
from burnish.parallel.simulate.loads import change_loads, copy_changed, loads
from burnish.parallel.simulate.paths import tails
from burnish.parallel.simulate.sharing import SOURCE, TARGET, Array, count
from burnish.parallel.simulate.state import (
    EXCEEDED,
    OVERFLOW,
    UNLIMITED,
    Checkpoints,
    SimulationArrays,
    SimulationState,
    begin,
    fill,
    gradients_of,
    inputs_of,
    load_checkpoint,
    split_of,
)

ACCEPTED, TRIED, SKIPPED, EVENTS = range(4)  # counters of a walk


class MoveLists(NamedTuple):
    """Moves of a walk: move m gives ``operations[pointer[m] : pointer[m + 1]]`` the same of their configurations, which
    are ``numbers[i]`` from ``first[i]`` on for operation i.
    """

    first: Array
    numbers: Array
    operations: Array
    pointer: Array


class WalkArrays(NamedTuple):
    """Arrays of a walk: what is known of the current strategy and of the proposed one; when each operation first ran,
    (operations,); counters.
    """

    known: Known
    changed: Known
    first: Array
    counters: Array


@njit(cache=True, counted=False)
def simulate(
    t: ProblemArrays,
    choice: Array,
    known: Known,
    tail: Array,
    limit: int,
    every: int,
    w: SimulationArrays,
) -> int:
    """A full simulation of a strategy, of which load and sums are ``known``. See :func:`events.drive`."""
    if not begin(t, choice, w.state, known.load, w.scratch.w):
        return OVERFLOW
    return drive(t, choice, w.state, known.sync, tail, limit, every, w.checkpoints, w.trace, w.scratch)


@njit(cache=True, inner=True)
def resume(
    t: ProblemArrays,
    old: Array,
    new: Array,
    ops: Array,
    s: SimulationState,
    load: Array,
    before: Array,
    ck: Checkpoints,
    z: int,
    room: SimulationScratch,
) -> bool:
    """The state of ``new`` at checkpoint z of ``old``, which was taken before anything that differs.

    ``load``, ``before``: all work of either. False if the heap is too small.
    """
    devices = t.kind.size
    load_checkpoint(s, ck, z)
    # What has been executed until the checkpoint is the same in both strategies: the difference of all work is that of
    # the work left.
    for r in range(load.size):
        s.left[r] += load[r] - before[r]
    for i in ops:
        # No task of a changed operation has received anything yet (`resume_point`): its counts begin anew.
        for k in range(t.configurations[new[i], PARTS]):
            s.waiting[2 * i * devices + k] = inputs_of(t, new, i, k, room.w)
            s.waiting[(2 * i + 1) * devices + k] = gradients_of(t, new, i, k, room.w)
            s.ready[2 * i * devices + k] = 0
            s.ready[(2 * i + 1) * devices + k] = 0
        # Weights and later micro-batches wait for every part of the operation: as many more as it has more parts.
        more = t.configurations[new[i], PARTS] - t.configurations[old[i], PARTS]
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            s.group_waiting[t.lists[q]] += more
        for q in range(t.pointer[AFTER, i], t.pointer[AFTER, i + 1]):
            j = t.lists[q]
            for k in range(0 if room.inside[j] else t.configurations[new[j], PARTS]):
                s.waiting[2 * j * devices + k] += more
        neighbours(t, old, new, i, s, room)
    # At the start the heap holds first tasks, whose parts may be others now.
    return z > 0 or fill(t, new, s)


@njit(cache=True, inner=True)
def neighbours(t: ProblemArrays, old: Array, new: Array, i: int, s: SimulationState, room: SimulationScratch) -> None:
    """Updates the dependency counts of neighbours' tasks, where the neighbour has not changed itself."""
    devices = t.kind.size
    for way in range(2):
        side = IN if way else OUT
        for q in range(t.pointer[side, i], t.pointer[side, i + 1]):
            e = t.lists[q]
            a, b = t.geometry.edges[e, SOURCE], t.geometry.edges[e, TARGET]
            j = a if way else b
            for k in range(0 if room.inside[j] else t.configurations[new[j], PARTS]):
                more = count(t.geometry, e, way == 1, split_of(t, new, a), split_of(t, new, b), k, room.w) - count(
                    t.geometry, e, way == 1, split_of(t, old, a), split_of(t, old, b), k, room.w
                )
                s.waiting[(2 * j + way) * devices + k] += more


@njit(cache=True, inner=True)
def resume_point(t: ProblemArrays, ops: Array, first: Array, every: int, ck: Checkpoints) -> int:
    """The last checkpoint before anything that these operations change; 0, the start, if there is no other."""
    # A changed operation first matters when something is sent to it: at the first forward task of any of its producers.
    # One without producers matters from the start.
    least = UNLIMITED
    for i in ops:
        if t.pointer[IN, i] == t.pointer[IN, i + 1] and t.pointer[BEFORE, i] == t.pointer[BEFORE, i + 1]:
            return 0
        for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
            least = min(least, first[t.geometry.edges[t.lists[q], SOURCE]])
        for q in range(t.pointer[BEFORE, i], t.pointer[BEFORE, i + 1]):
            least = min(least, first[t.lists[q]])
    z = min(ck.scalars.shape[0] - 1, least // every)
    # A checkpoint may be missing (its heap was too large), or taken a few events late.
    while z > 0 and (ck.scalars[z, 0] < 0 or ck.scalars[z, 1] > least):
        z -= 1
    return z


@njit(cache=True, counted=False)
def propose(
    t: ProblemArrays,
    old: Array,
    new: Array,
    ops: Array,
    limit: int,
    every: int,
    stop: bool,
    own: WalkArrays,
    w: SimulationArrays,
) -> int:
    """The time of ``new``, which is ``old`` but for ``ops``; EXCEEDED over ``limit``.

    ``own.changed`` comes in as what is known of the old strategy and leaves as that of the new one; ``every`` 0:
    without resuming; ``stop``: whether the limit is used before the simulation has ended.
    """
    s, ck, room = w.state, w.checkpoints, w.scratch
    known, changed, counters = own.known, own.changed, own.counters
    change_loads(t, old, new, ops, changed, room)
    after = 0
    for g in range(changed.sync.shape[0]):
        after += changed.sync[g, changed.sync.shape[1] - 1]
    # Three tests against the limit, each dearer than the one before: loads (work of the change alone), longest path
    # (all edges), and the simulation itself, which also stops at it.
    bound = limit - after if stop else UNLIMITED
    if stop:
        for r in range(changed.load.size):
            if changed.load[r] > bound:
                counters[SKIPPED] += 1
                return EXCEEDED
        if tails(t, new, changed.sync, changed.hop, changed.tail) > bound:
            counters[SKIPPED] += 1
            return EXCEEDED
    else:
        # Without a limit nothing stops the simulation, and its longest paths are not needed.
        changed.tail[:] = 0
    began = 0
    if every > 0 and ck.scalars[0, 0] >= 0:
        z = resume_point(t, ops, own.first, every, ck)
        fits = resume(t, old, new, ops, s, changed.load, known.load, ck, z, room)
        began = s.scalars[1]
    else:
        fits = begin(t, new, s, changed.load, room.w)
    if not fits:
        return OVERFLOW
    time = drive(t, new, s, changed.sync, changed.tail, bound, 0, ck, w.trace, room)
    counters[EVENTS] += s.scalars[1] - began
    if time < 0:
        return time
    return time + after if time + after <= limit else EXCEEDED


@njit(cache=True, inner=True)
def put(to: Array, values: Array) -> None:
    """Copies values, (n,). An assignment of arrays would compile the text of an error of shapes."""
    for i in range(values.size):
        to[i] = values[i]


@njit(cache=True, inner=True)
def put_known(to: Known, known: Known) -> None:
    """Copies what is known of a strategy, but for its tail."""
    put(to.load, known.load)
    for g in range(known.sync.shape[0]):
        put(to.sync[g], known.sync[g])
    for g in range(known.hop.shape[0]):
        put(to.hop[g], known.hop[g])


@njit(cache=True, counted=False)
def metropolis(
    t: ProblemArrays,
    choice: Array,
    moves: MoveLists,
    proposals: int,
    temperature: float,
    seed: int,
    every: int,
    stop: bool,
    best: Array,
    new: Array,
    own: WalkArrays,
    w: SimulationArrays,
) -> tuple[Any, Any]:
    """Proposals at one temperature, from ``choice``, which becomes the last accepted strategy, ``best`` the best.

    A time T is accepted with probability exp((now - T) / (temperature * now)). Returns the times of both, at least
    one proposal later; OVERFLOW where the heap is too small (nothing is lost: ``choice`` and ``best`` hold the walk so
    far). ``new``: the same as ``choice``.
    """
    known, changed, counters, room = own.known, own.changed, own.counters, w.scratch
    np.random.seed(seed)
    loads(t, choice, known, room)
    put_known(changed, known)
    now = least = np.int64(UNLIMITED)
    put(best, choice)
    moved = True  # whether the current strategy has not been simulated with checkpoints
    # Invariant between proposals: new == choice, and `changed` equals `known` but for its tail. A proposal touches rows
    # of `ops` alone, so copying these back or forth accepts or rejects it in time that does not grow with the model.
    for _ in range(proposals):
        # Checkpoints are those of the current strategy: new ones are taken once it has changed, not at each proposal.
        if moved and (every > 0 or now == UNLIMITED):
            known.tail[:] = 0
            time = simulate(t, choice, known, known.tail, UNLIMITED, every, w)
            if time < 0:
                return time, least
            for g in range(known.sync.shape[0]):
                time += known.sync[g, known.sync.shape[1] - 1]
            now, moved = time, False
            put(own.first, w.state.first)
            if now < least:
                least = now
                put(best, choice)
        # All three numbers are drawn before anything is simulated: a seed gives the same walk with and without stopping
        # or resuming.
        u = np.random.random()
        move = np.random.randint(0, moves.pointer.size - 1)
        ops = moves.operations[moves.pointer[move] : moves.pointer[move + 1]]
        number = np.random.randint(0, moves.numbers[ops[0]])
        different = False
        for i in ops:
            new[i] = moves.first[i] + number
            different = different or new[i] != choice[i]
        counters[TRIED] += 1
        if not different:
            continue
        # The Metropolis rule u <= exp((now - T) / (temperature * now)), solved for the time T.
        limit = np.int64(now * (1.0 - temperature * np.log(max(u, 1e-300))))
        for i in ops:
            room.inside[i] = True
        time = propose(t, choice, new, ops, limit, every, stop, own, w)
        for i in ops:
            room.inside[i] = False
        if time == OVERFLOW:
            return OVERFLOW, least
        if time >= 0 and time <= limit:
            counters[ACCEPTED] += 1
            now = time
            for i in ops:
                choice[i] = new[i]
            copy_changed(t, ops, changed, known)
            moved = True
            if now < least:
                least = now
                put(best, choice)
        else:
            for i in ops:
                new[i] = choice[i]
            copy_changed(t, ops, known, changed)
    return now, least
