"""Event loop of the simulator: tasks in order of readiness on each device and link (thesis-jia algorithm 1).

Ties are broken by a structural key: what the task is, never when it was created. Every task takes a nanosecond or more,
so that no task becomes ready at the instant that is being processed. Both make the result a function of the strategy.
"""

from __future__ import annotations

from typing import NamedTuple

from burnish.jit import njit
from burnish.parallel.core import AFTER, BEFORE, IN, OUT, PARTS, PLACE, SPLIT, WEIGHT, Scratch, Tables, transfer
from burnish.parallel.sharing import SOURCE, TARGET, Array, count, partners

EXCEEDED, OVERFLOW = -1, -2  # results in place of a time: over the limit; the heap is too small
FORWARD, BACKWARD, ACTIVATION, GRADIENT, SYNCHRONIZATION = range(5)
UNLIMITED = 1 << 62
KIND, THING, PART = 50, 24, 12  # bits of a key: kind, operation or edge or group, part, other part (or link)


class State(NamedTuple):
    """Where a simulation stands: inputs that tasks wait for and when they are ready, of groups of weights likewise;
    when resources are free and the work that is left for them; ready tasks as a heap.
    """

    waiting: Array  # [2 * operations * devices]
    ready: Array
    group_waiting: Array  # [groups]
    group_ready: Array
    free: Array  # [resources]
    left: Array
    time: Array  # the heap: times and keys
    key: Array
    first: Array  # [operations]: the event at which the first forward task of each began
    scalars: Array  # entries of the heap; events so far; the latest end


class Checkpoints(NamedTuple):
    """Copies of states, every so many events; ``every`` 0: none. ``scalars[:, 0]`` -1: not taken."""

    waiting: Array
    ready: Array
    group_waiting: Array
    group_ready: Array
    free: Array
    left: Array
    time: Array
    key: Array
    scalars: Array


class Trace(NamedTuple):
    """Tasks in order: key, resource, start and end. Empty arrays: nothing is kept."""

    key: Array
    resource: Array
    start: Array
    end: Array


@njit(cache=True, inner=True)
def push(times: Array, keys: Array, scalars: Array, time: int, key: int) -> bool:
    """Adds an entry to the heap; False if it is full."""
    n = scalars[0]
    if n == times.size:
        return False
    i = n
    while i > 0:
        j = (i - 1) >> 1
        if times[j] > time or (times[j] == time and keys[j] > key):
            times[i] = times[j]
            keys[i] = keys[j]
            i = j
        else:
            break
    times[i] = time
    keys[i] = key
    scalars[0] = n + 1
    return True


@njit(cache=True, inner=True)
def pop(times: Array, keys: Array, scalars: Array) -> tuple[int, int]:
    """Takes the least entry of the heap."""
    time = times[0]
    key = keys[0]
    n = scalars[0] - 1
    scalars[0] = n
    t = times[n]
    k = keys[n]
    i = 0
    while True:
        c = 2 * i + 1
        if c >= n:
            break
        if c + 1 < n and (times[c + 1] < times[c] or (times[c + 1] == times[c] and keys[c + 1] < keys[c])):
            c += 1
        if times[c] < t or (times[c] == t and keys[c] < k):
            times[i] = times[c]
            keys[i] = keys[c]
            i = c
        else:
            break
    times[i] = t
    keys[i] = k
    return time, key


@njit(cache=True, inner=True)
def split_of(t: Tables, choice: Array, i: int) -> int:
    """The split of an operation's configuration."""
    return t.configurations[choice[i], SPLIT]


@njit(cache=True, inner=True)
def inputs_of(t: Tables, choice: Array, i: int, k: int, w: Array) -> int:
    """What the forward task of part k of operation i waits for."""
    n = 0
    own = split_of(t, choice, i)
    for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
        e = t.lists[q]
        n += count(t.geometry, e, False, split_of(t, choice, t.geometry.edges[e, SOURCE]), own, k, w)
    for q in range(t.pointer[BEFORE, i], t.pointer[BEFORE, i + 1]):
        n += t.configurations[choice[t.lists[q]], PARTS]
    return n


@njit(cache=True, inner=True)
def gradients_of(t: Tables, choice: Array, i: int, k: int, w: Array) -> int:
    """What the backward task of part k of operation i waits for: gradients, or its own forward task."""
    n = 0
    own = split_of(t, choice, i)
    for q in range(t.pointer[OUT, i], t.pointer[OUT, i + 1]):
        e = t.lists[q]
        n += count(t.geometry, e, True, own, split_of(t, choice, t.geometry.edges[e, TARGET]), k, w)
    return max(n, 1)


@njit(cache=True, inner=True)
def begin(t: Tables, choice: Array, s: State, load: Array, w: Array) -> bool:
    """The state before the first event; False if the heap is too small."""
    devices = t.kind.size
    s.ready[:] = 0
    s.free[:] = 0
    for r in range(load.size):
        s.left[r] = load[r]
    s.first[:] = -1
    s.group_waiting[:] = 0
    s.group_ready[:] = 0
    s.scalars[:] = 0
    for i in range(choice.size):
        for k in range(t.configurations[choice[i], PARTS]):
            s.waiting[2 * i * devices + k] = inputs_of(t, choice, i, k, w)
            s.waiting[(2 * i + 1) * devices + k] = gradients_of(t, choice, i, k, w)
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            s.group_waiting[t.lists[q]] += t.configurations[choice[i], PARTS]
    return fill(t, choice, s)


@njit(cache=True, inner=True)
def fill(t: Tables, choice: Array, s: State) -> bool:
    """Makes the heap that of the first forward tasks, which wait for nothing; False if it is too small."""
    devices = t.kind.size
    s.scalars[0] = 0
    for i in range(choice.size):
        for k in range(t.configurations[choice[i], PARTS]):
            if s.waiting[2 * i * devices + k] == 0 and not push(
                s.time, s.key, s.scalars, 0, (i << THING) | (k << PART)
            ):
                return False
    return True


@njit(cache=True, inner=True)
def arrive(s: State, z: int, end: int, key: int) -> bool:
    """One input of task z has come at ``end``; False if the heap is too small."""
    s.ready[z] = max(s.ready[z], end)
    s.waiting[z] -= 1
    return s.waiting[z] != 0 or push(s.time, s.key, s.scalars, s.ready[z], key)


@njit(cache=True, inner=True)
def save(s: State, ck: Checkpoints, z: int) -> None:
    """Keeps a copy of the state as checkpoint z, unless its heap is too large for it."""
    n = s.scalars[0]
    if n > ck.time.shape[1]:
        ck.scalars[z, 0] = -1
        return
    for i in range(s.waiting.size):
        ck.waiting[z, i] = s.waiting[i]
        ck.ready[z, i] = s.ready[i]
    for i in range(s.group_waiting.size):
        ck.group_waiting[z, i] = s.group_waiting[i]
        ck.group_ready[z, i] = s.group_ready[i]
    for i in range(s.free.size):
        ck.free[z, i] = s.free[i]
        ck.left[z, i] = s.left[i]
    for i in range(n):
        ck.time[z, i] = s.time[i]
        ck.key[z, i] = s.key[i]
    for i in range(s.scalars.size):
        ck.scalars[z, i] = s.scalars[i]


@njit(cache=True, inner=True)
def load_checkpoint(s: State, ck: Checkpoints, z: int) -> None:
    """Makes checkpoint z the state."""
    for i in range(s.waiting.size):
        s.waiting[i] = ck.waiting[z, i]
        s.ready[i] = ck.ready[z, i]
    for i in range(s.group_waiting.size):
        s.group_waiting[i] = ck.group_waiting[z, i]
        s.group_ready[i] = ck.group_ready[z, i]
    for i in range(s.free.size):
        s.free[i] = ck.free[z, i]
        s.left[i] = ck.left[z, i]
    for i in range(ck.scalars[z, 0]):
        s.time[i] = ck.time[z, i]
        s.key[i] = ck.key[z, i]
    for i in range(s.scalars.size):
        s.scalars[i] = ck.scalars[z, i]


@njit(cache=True, inner=True)
def run(
    t: Tables, choice: Array, s: State, sync: Array, tail: Array, limit: int, trace: Trace, found: Array, size: Array,
    w: Array, until: int,
) -> int:  # fmt: skip
    """Simulates to the end of the step, or until so many events; returns its time so far, EXCEEDED as soon as it is
    certainly over ``limit``.

    Certain: a resource's free time and the work left for it, or a task's end and the longest path from it.
    """
    devices = t.kind.size
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
            if end + max(s.left[r], tail[i, what]) > limit:
                return EXCEEDED
            done(s, trace, key, r, end - time, end)
            if not finish(t, choice, s, sync, what, i, k, r, end, found, size, w):
                return OVERFLOW
        elif what <= GRADIENT:
            answer = send(t, choice, s, what, i, k, ready, tail, limit, trace, found, size, w)
            if answer < 0:
                return answer
        else:
            r = devices + (key & ((1 << (PART + PART)) - 1))
            time = sync[i, r]
            end = max(ready, s.free[r]) + time
            s.free[r] = end
            s.left[r] -= time
            if end + s.left[r] > limit:
                return EXCEEDED
            done(s, trace, key, r, end - time, end)
    return s.scalars[2]


@njit(cache=True, inner=True)
def done(s: State, trace: Trace, key: int, r: int, start: int, end: int) -> None:
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
    t: Tables, choice: Array, s: State, sync: Array, what: int, i: int, k: int, device: int, end: int, found: Array,
    size: Array, w: Array,
) -> bool:  # fmt: skip
    """Hands the result of a task on to those that wait for it; False if the heap is too small.

    What other devices wait for of one tensor is one entry of the heap: its transfers follow each other in the order of
    keys, and nothing that they lead to is ready before them.
    """
    devices = t.kind.size
    ahead = what == FORWARD
    own = split_of(t, choice, i)
    if ahead:
        if s.first[i] < 0:
            s.first[i] = s.scalars[1] - 1
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
        for n in range(partners(t.geometry, e, ahead, a, b, k, found, size, w)):
            p = found[n]
            if t.places[at, p] != device:
                remote = True
            elif not arrive(s, (2 * j + what) * devices + p, end, (what << KIND) | (j << THING) | (p << PART)):
                return False
        if remote and not push(
            s.time, s.key, s.scalars, end, ((ACTIVATION + what) << KIND) | (e << THING) | (k << PART)
        ):
            return False
    return True


@njit(cache=True, inner=True)
def summed(t: Tables, choice: Array, s: State, sync: Array, i: int, end: int) -> bool:
    """After a backward task: synchronization of weights whose gradients are complete, and the next micro-batches."""
    devices = t.kind.size
    for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
        g = t.lists[q]
        s.group_waiting[g] -= 1
        s.group_ready[g] = max(s.group_ready[g], end)
        if s.group_waiting[g] == 0:
            for r in range(devices, sync.shape[1] - 1):
                if sync[g, r] > 0 and not push(
                    s.time, s.key, s.scalars, s.group_ready[g],
                    (SYNCHRONIZATION << KIND) | (g << THING) | (r - devices),
                ):  # fmt: skip
                    return False
    for q in range(t.pointer[AFTER, i], t.pointer[AFTER, i + 1]):
        j = t.lists[q]
        for p in range(t.configurations[choice[j], PARTS]):
            if not arrive(s, 2 * j * devices + p, end, (j << THING) | (p << PART)):
                return False
    return True


@njit(cache=True, inner=True)
def send(
    t: Tables, choice: Array, s: State, what: int, e: int, k: int, ready: int, tail: Array, limit: int, trace: Trace,
    found: Array, size: Array, w: Array,
) -> int:  # fmt: skip
    """The transfers of part k's share of a tensor, on their routes; EXCEEDED, OVERFLOW (the heap is too small) or 0."""
    devices = t.kind.size
    ahead = what == ACTIVATION
    way = what - ACTIVATION
    i = t.geometry.edges[e, SOURCE] if ahead else t.geometry.edges[e, TARGET]
    j = t.geometry.edges[e, TARGET] if ahead else t.geometry.edges[e, SOURCE]
    own = split_of(t, choice, i)
    d = split_of(t, choice, j)
    x = t.places[t.configurations[choice[i], PLACE], k]
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
        start = ready
        if one >= 0:
            start = max(start, s.free[one])
        if two >= 0:
            start = max(start, s.free[two])
        end = start + time
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
def drive(
    t: Tables, choice: Array, s: State, sync: Array, tail: Array, limit: int, every: int, ck: Checkpoints, trace: Trace,
    room: Scratch,
) -> int:  # fmt: skip
    """Simulates to the end of the step: see :func:`run`. With ``every`` a checkpoint about every so many events."""
    for z in range(ck.scalars.shape[0] if every > 0 else 0):
        ck.scalars[z, 0] = -1
    time = 0
    while s.scalars[0] > 0:
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
