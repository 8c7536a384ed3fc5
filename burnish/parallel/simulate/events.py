"""Event loop of the simulator: tasks in order of readiness on each device and link (thesis-jia algorithm 1).

Where devices copy messages, a sender does so at the end of the task that made them, and a receiver as a task that is
ready then.

Ties are broken by a structural key: what the task is, never when it was created. Every task takes a nanosecond or more,
so that no task becomes ready at the instant that is being processed. Both make the result a function of the strategy.
"""

from __future__ import annotations

from burnish.base.jit import njit
from burnish.parallel.simulate.core import (
    AFTER,
    IN,
    OUT,
    PARTS,
    PLACE,
    SPLIT,
    WEIGHT,
    ProblemArrays,
    SimulationScratch,
    copying,
    transfer,
)
from burnish.parallel.simulate.sharing import SOURCE, TARGET, Array, count, partners, volume
from burnish.parallel.simulate.state import (
    ACTIVATION,
    BACKWARD,
    EXCEEDED,
    FORWARD,
    GRADIENT,
    KIND,
    OVERFLOW,
    PART,
    PLACED_ACTIVATION,
    SYNCHRONIZATION,
    THING,
    UNLIMITED,
    Checkpoints,
    SimulationState,
    Trace,
    arrive,
    pop,
    push,
    save,
    split_of,
)


@njit(cache=True, inner=True)
def run(
    t: ProblemArrays,
    choice: Array,
    s: SimulationState,
    sync: Array,
    tail: Array,
    limit: int,
    trace: Trace,
    found: Array,
    size: Array,
    w: Array,
    until: int,
) -> int:
    """Event loop, to the end of the step or to ``until`` events; returns its time so far, EXCEEDED as soon as it is
    certainly over ``limit``.

    Certain: a resource's free time and the work left for it, or a task's end and the longest path from it.
    """
    # Invariant: what is in the heap waits for nothing but its resource, and all that it leads to is ready later than
    # it. So entries leave in the order of (time ready, key), `free` of a resource never falls, and each resource serves
    # in order of readiness (algorithm 1).
    while s.scalars[0] > 0 and s.scalars[1] < until:
        ready, key = pop(s.time, s.key, s.scalars)
        what = key >> KIND
        i = (key >> THING) & ((1 << (KIND - THING)) - 1)
        k = (key >> PART) & ((1 << PART) - 1)
        if what <= BACKWARD:
            c = choice[i]
            r = t.places[t.configurations[c, PLACE], k]
            time = t.time[t.configurations[c, SPLIT], what, t.kind[r]]
            end = max(ready, s.free[r]) + time
            s.free[r] = end
            s.left[r] -= time
            # Two lower bounds of what is left, both without waits: the resource's other work, and the longest path.
            if end + max(s.left[r], tail[i, what]) > limit:
                return EXCEEDED
            done(s, trace, key, r, end - time, end)
            if not finish(t, choice, s, sync, what, i, k, r, end, trace, found, size, w):
                return OVERFLOW
        elif what <= GRADIENT:
            if t.copied:
                # The sender's half is done (`finish`): each transfer is an entry of its own, with the receiver's part.
                p = key & ((1 << PART) - 1)
                answer = receive(t, choice, s, what, i, k, p, ready, tail, limit, trace, w)
            else:
                answer = send(t, choice, s, what, i, k, ready, tail, limit, trace, found, size, w)
            if answer < 0:
                return answer
        else:
            # A sum has an entry on every link that it uses, in place of parts: the links do not wait for each other.
            r = key & ((1 << (PART + PART)) - 1)
            time = sync[i, r]
            end = max(ready, s.free[r]) + time
            s.free[r] = end
            s.left[r] -= time
            if end + s.left[r] > limit:
                return EXCEEDED
            done(s, trace, key, r, end - time, end)
    return s.scalars[2]


@njit(cache=True, inner=True)
def done(s: SimulationState, trace: Trace, key: int, r: int, start: int, end: int) -> None:
    """Counts a task or transfer, and keeps it if there is a trace."""
    n = s.scalars[1]
    if trace.key.size:
        trace.key[n] = key
        trace.resource[n] = r
        trace.start[n] = start
        trace.end[n] = end
    s.scalars[1] = n + 1
    s.scalars[2] = max(s.scalars[2], end)


@njit(cache=True, inner=True)
def finish(
    t: ProblemArrays,
    choice: Array,
    s: SimulationState,
    sync: Array,
    what: int,
    i: int,
    k: int,
    device: int,
    end: int,
    trace: Trace,
    found: Array,
    size: Array,
    w: Array,
) -> bool:
    """Hands the result of a task on to those that wait for it; False if the heap is too small.

    What other devices wait for of one tensor is one entry of the heap: its transfers follow each other in the order of
    keys, and nothing that they lead to is ready before them.
    """
    devices = t.kind.size
    ahead = what == FORWARD
    own = split_of(t, choice, i)
    sent = end
    if ahead:
        if s.first[i] < 0:
            s.first[i] = s.scalars[1] - 1
        # Where nobody reads the result, the backward task waits for its own forward task alone: `gradients_of`.
        first, last = t.pointer[OUT, i], t.pointer[OUT, i + 1]
        if first == last and not arrive(s, (2 * i + 1) * devices + k, end, (1 << KIND) | (i << THING) | (k << PART)):
            return False
    else:
        first, last = t.pointer[IN, i], t.pointer[IN, i + 1]
        if not summed(t, choice, s, sync, i, end):
            return False
    for q in range(first, last):
        e = t.lists[q]
        j = t.geometry.edges[e, TARGET] if ahead else t.geometry.edges[e, SOURCE]
        other = split_of(t, choice, j)
        a, b = (own, other) if ahead else (other, own)
        at = t.configurations[choice[j], PLACE]
        remote = False
        several = partners(t.geometry, e, ahead, a, b, k, found, size, w)
        for n in range(several):
            p = found[n]
            y = t.places[at, p]
            if y != device and t.copied:
                # The device copies right after the task, before all else that is ready there: these halves need no
                # entry in the heap, but each takes the device's time.
                nbytes = size[n] * t.nbytes[e, what]
                time = copying(t, device, y, nbytes, nbytes < t.result[own] if ahead else several > 1)
                pair = (e << THING) | (k << PART) | p
                done(s, trace, ((PLACED_ACTIVATION + what) << KIND) | pair, device, sent, sent + time)
                sent += time
                s.free[device] = sent
                s.left[device] -= time
                if not push(s.time, s.key, s.scalars, sent, ((ACTIVATION + what) << KIND) | pair):
                    return False
            elif y != device:
                remote = True
            elif not arrive(s, (2 * j + what) * devices + p, end, (what << KIND) | (j << THING) | (p << PART)):
                return False
        if remote and not push(
            s.time, s.key, s.scalars, end, ((ACTIVATION + what) << KIND) | (e << THING) | (k << PART)
        ):
            return False
    return True


@njit(cache=True, inner=True)
def summed(t: ProblemArrays, choice: Array, s: SimulationState, sync: Array, i: int, end: int) -> bool:
    """After a backward task: synchronization of weights whose gradients are complete, and the next micro-batches."""
    devices = t.kind.size
    for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
        g = t.lists[q]
        s.group_waiting[g] -= 1
        s.group_ready[g] = max(s.group_ready[g], end)
        if s.group_waiting[g] == 0:
            for r in range(sync.shape[1] - 1):
                key = (SYNCHRONIZATION << KIND) | (g << THING) | r
                if sync[g, r] > 0 and not push(s.time, s.key, s.scalars, s.group_ready[g], key):
                    return False
    # The same operation of the next micro-batches begins after all parts of this backward task.
    for q in range(t.pointer[AFTER, i], t.pointer[AFTER, i + 1]):
        j = t.lists[q]
        for p in range(t.configurations[choice[j], PARTS]):
            if not arrive(s, 2 * j * devices + p, end, (j << THING) | (p << PART)):
                return False
    return True


@njit(cache=True, inner=True)
def moved(t: ProblemArrays, choice: Array, what: int, e: int, k: int) -> tuple[bool, int, int, int, int, int]:
    """A transfer of part k: whether it is forward, 0 or 1 for that, its reader, both splits, and part k's device."""
    ahead = what == ACTIVATION
    i = t.geometry.edges[e, SOURCE] if ahead else t.geometry.edges[e, TARGET]
    j = t.geometry.edges[e, TARGET] if ahead else t.geometry.edges[e, SOURCE]
    x = t.places[t.configurations[choice[i], PLACE], k]
    return ahead, what - ACTIVATION, j, split_of(t, choice, i), split_of(t, choice, j), x


@njit(cache=True, inner=True)
def send(
    t: ProblemArrays,
    choice: Array,
    s: SimulationState,
    what: int,
    e: int,
    k: int,
    ready: int,
    tail: Array,
    limit: int,
    trace: Trace,
    found: Array,
    size: Array,
    w: Array,
) -> int:
    """The transfers of part k's share of a tensor, on their routes; EXCEEDED, OVERFLOW (the heap is too small) or 0."""
    devices = t.kind.size
    ahead, way, j, own, d, x = moved(t, choice, what, e, k)
    at = t.configurations[choice[j], PLACE]
    nbytes = t.nbytes[e, way]
    a, b = (own, d) if ahead else (d, own)
    for n in range(partners(t.geometry, e, ahead, a, b, k, found, size, w)):
        p = found[n]
        y = t.places[at, p]
        if x == y:
            continue
        time = transfer(t, x, y, size[n] * nbytes)
        one = t.route[x, y, 0]
        two = t.route[x, y, 1]
        # A transfer holds both links of its route for all of its time, so it begins when both are free.
        start = ready
        if one >= 0:
            start = max(start, s.free[one])
        if two >= 0:
            start = max(start, s.free[two])
        end = start + time
        # The reader's task, and the longest path after it, follow the arrival.
        if end + t.time[d, way, t.kind[y]] + tail[j, way] > limit:
            return EXCEEDED
        for link in (one, two):
            if link >= 0:
                s.free[link] = end
                s.left[link] -= time
                if end + s.left[link] > limit:
                    return EXCEEDED
        done(s, trace, (what << KIND) | (e << THING) | (k << PART) | p, one if one >= 0 else two, start, end)
        if not arrive(s, (2 * j + way) * devices + p, end, (way << KIND) | (j << THING) | (p << PART)):
            return OVERFLOW
    return 0


@njit(cache=True, inner=True)
def receive(
    t: ProblemArrays,
    choice: Array,
    s: SimulationState,
    what: int,
    e: int,
    k: int,
    p: int,
    ready: int,
    tail: Array,
    limit: int,
    trace: Trace,
    w: Array,
) -> int:
    """The receiver's half of a copied transfer, to part p; EXCEEDED, OVERFLOW (the heap is too small) or 0."""
    ahead, way, j, own, d, x = moved(t, choice, what, e, k)
    y = t.places[t.configurations[choice[j], PLACE], p]
    elements = volume(t.geometry, e, own, d, k, p) if ahead else volume(t.geometry, e, d, own, p, k)
    several = count(t.geometry, e, False, own, d, p, w) if ahead else count(t.geometry, e, True, d, own, p, w)
    time = copying(t, x, y, elements * t.nbytes[e, way], several > 1)
    start = max(ready, s.free[y])
    end = start + time
    s.free[y] = end
    s.left[y] -= time
    if end + max(s.left[y], t.time[d, way, t.kind[y]] + tail[j, way]) > limit:
        return EXCEEDED
    done(s, trace, (what << KIND) | (e << THING) | (k << PART) | p, y, start, end)
    if not arrive(s, (2 * j + way) * t.kind.size + p, end, (way << KIND) | (j << THING) | (p << PART)):
        return OVERFLOW
    return 0


@njit(cache=True, inner=True)
def drive(
    t: ProblemArrays,
    choice: Array,
    s: SimulationState,
    sync: Array,
    tail: Array,
    limit: int,
    every: int,
    ck: Checkpoints,
    trace: Trace,
    room: SimulationScratch,
) -> int:
    """Event loop to the end of the step: see :func:`run`. With ``every``, a checkpoint about every ``every`` events."""
    # Checkpoints of an earlier strategy are void.
    for z in range(ck.scalars.shape[0] if every > 0 else 0):
        ck.scalars[z, 0] = -1
    time = 0
    while s.scalars[0] > 0:
        # States are copied between events only. A step of more events than expected has no checkpoints at its end,
        # where resuming saves least.
        until = UNLIMITED
        if every > 0:
            z = s.scalars[1] // every
            if z < ck.scalars.shape[0]:
                save(s, ck, z)
            if z + 1 < ck.scalars.shape[0]:
                until = (z + 1) * every
        time = run(t, choice, s, sync, tail, limit, trace, room.found, room.size, room.w, until)
        if time < 0:
            return time
    return time
