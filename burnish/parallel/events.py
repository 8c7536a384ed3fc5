"""Event loop of the simulator: tasks in order of readiness on each device and link (thesis-jia algorithm 1).

Ties are broken by a structural key: what the task is, never when it was created. Every task takes a nanosecond or more,
so that no task becomes ready at the instant that is being processed. Both make the result a function of the strategy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.jit import njit
from burnish.parallel.core import (
    AFTER,
    BEFORE,
    IN,
    OUT,
    PARTS,
    PLACE,
    SOURCE,
    SPLIT,
    TARGET,
    WEIGHT,
    Tables,
    count,
    partners,
    transfer,
    volume,
)

Array = NDArray[np.generic]
EXCEEDED, OVERFLOW = -1, -2  # results in place of a time: over the limit; the heap is too small
FORWARD, BACKWARD, ACTIVATION, GRADIENT, SYNCHRONIZATION = range(5)
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


@njit(cache=True)
def push(s: State, time: int, key: int) -> bool:
    """Adds an entry to the heap; False if it is full."""
    n = s.scalars[0]
    if n == s.time.size:
        return False
    i = n
    while i > 0:
        j = (i - 1) >> 1
        if s.time[j] > time or (s.time[j] == time and s.key[j] > key):
            s.time[i] = s.time[j]
            s.key[i] = s.key[j]
            i = j
        else:
            break
    s.time[i] = time
    s.key[i] = key
    s.scalars[0] = n + 1
    return True


@njit(cache=True)
def pop(s: State) -> tuple[int, int]:
    """Takes the least entry of the heap."""
    time = s.time[0]
    key = s.key[0]
    n = s.scalars[0] - 1
    s.scalars[0] = n
    t = s.time[n]
    k = s.key[n]
    i = 0
    while True:
        c = 2 * i + 1
        if c >= n:
            break
        if c + 1 < n and (s.time[c + 1] < s.time[c] or (s.time[c + 1] == s.time[c] and s.key[c + 1] < s.key[c])):
            c += 1
        if s.time[c] < t or (s.time[c] == t and s.key[c] < k):
            s.time[i] = s.time[c]
            s.key[i] = s.key[c]
            i = c
        else:
            break
    s.time[i] = t
    s.key[i] = k
    return time, key


@njit(cache=True)
def split_of(t: Tables, choice: Array, i: int) -> int:
    """The split of an operation's configuration."""
    return t.configurations[choice[i], SPLIT]


@njit(cache=True)
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


@njit(cache=True)
def gradients_of(t: Tables, choice: Array, i: int, k: int, w: Array) -> int:
    """What the backward task of part k of operation i waits for: gradients, or its own forward task."""
    n = 0
    own = split_of(t, choice, i)
    for q in range(t.pointer[OUT, i], t.pointer[OUT, i + 1]):
        e = t.lists[q]
        n += count(t.geometry, e, True, own, split_of(t, choice, t.geometry.edges[e, TARGET]), k, w)
    return max(n, 1)


@njit(cache=True)
def begin(t: Tables, choice: Array, s: State, load: Array, w: Array) -> bool:
    """The state before the first event; False if the heap is too small."""
    devices = t.kind.size
    s.ready[:] = 0
    s.free[:] = 0
    s.left[:] = load
    s.first[:] = -1
    s.group_waiting[:] = 0
    s.group_ready[:] = 0
    s.scalars[:] = 0
    for i in range(choice.size):
        c = choice[i]
        for k in range(t.configurations[c, PARTS]):
            s.waiting[2 * i * devices + k] = inputs_of(t, choice, i, k, w)
            s.waiting[(2 * i + 1) * devices + k] = gradients_of(t, choice, i, k, w)
            if s.waiting[2 * i * devices + k] == 0 and not push(s, 0, (i << THING) | (k << PART)):
                return False
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            s.group_waiting[t.lists[q]] += t.configurations[c, PARTS]
    return True


@njit(cache=True)
def arrive(s: State, z: int, end: int, key: int) -> bool:
    """One input of task z has come at ``end``; False if the heap is too small."""
    s.ready[z] = max(s.ready[z], end)
    s.waiting[z] -= 1
    return s.waiting[z] != 0 or push(s, s.ready[z], key)


@njit(cache=True)
def save(s: State, ck: Checkpoints, z: int) -> None:
    """Keeps a copy of the state as checkpoint z, unless its heap is too large for it."""
    n = s.scalars[0]
    if n > ck.time.shape[1]:
        ck.scalars[z, 0] = -1
        return
    ck.waiting[z] = s.waiting
    ck.ready[z] = s.ready
    ck.group_waiting[z] = s.group_waiting
    ck.group_ready[z] = s.group_ready
    ck.free[z] = s.free
    ck.left[z] = s.left
    ck.time[z, :n] = s.time[:n]
    ck.key[z, :n] = s.key[:n]
    ck.scalars[z] = s.scalars


@njit(cache=True)
def load_checkpoint(s: State, ck: Checkpoints, z: int) -> None:
    """Makes checkpoint z the state."""
    n = ck.scalars[z, 0]
    s.waiting[:] = ck.waiting[z]
    s.ready[:] = ck.ready[z]
    s.group_waiting[:] = ck.group_waiting[z]
    s.group_ready[:] = ck.group_ready[z]
    s.free[:] = ck.free[z]
    s.left[:] = ck.left[z]
    s.time[:n] = ck.time[z, :n]
    s.key[:n] = ck.key[z, :n]
    s.scalars[:] = ck.scalars[z]


@njit(cache=True)
def run(
    t: Tables, choice: Array, s: State, sync: Array, tail: Array, limit: int, every: int, ck: Checkpoints,
    trace: Trace, found: Array, size: Array, w: Array,
) -> int:  # fmt: skip
    """Simulates to the end of the step; returns its time, EXCEEDED as soon as it is certainly over ``limit``.

    Certain: a resource's free time and the work left for it, or a task's end and the longest path from it.
    """
    devices = t.kind.size
    while s.scalars[0] > 0:
        if every > 0 and s.scalars[1] % every == 0 and s.scalars[1] // every < ck.scalars.shape[0]:
            save(s, ck, s.scalars[1] // every)
        ready, key = pop(s)
        what = key >> KIND
        i = (key >> THING) & ((1 << (KIND - THING)) - 1)
        k = (key >> PART) & ((1 << PART) - 1)
        if what <= BACKWARD:
            c = choice[i]
            d = t.configurations[c, SPLIT]
            r = t.places[t.configurations[c, PLACE], k]
            time = t.time[d, what, t.kind[r]]
            end = max(ready, s.free[r]) + time
            s.free[r] = end
            s.left[r] -= time
            if end + max(s.left[r], tail[i, what]) > limit:
                return EXCEEDED
            fits = finish(t, choice, s, sync, what, i, k, r, end, found, size, w)
        elif what <= GRADIENT:
            end, r, time = send(t, choice, s, what, i, k, key & ((1 << PART) - 1), ready, tail, limit)
            if end < 0:
                return EXCEEDED
            fits = end > 0
        else:
            r = devices + (key & ((1 << (PART + PART)) - 1))
            time = sync[i, r]
            end = max(ready, s.free[r]) + time
            s.free[r] = end
            s.left[r] -= time
            if end + s.left[r] > limit:
                return EXCEEDED
            fits = True
        if not fits:
            return OVERFLOW
        if trace.key.size:
            trace.key[s.scalars[1]] = key
            trace.resource[s.scalars[1]] = r
            trace.start[s.scalars[1]] = end - time
            trace.end[s.scalars[1]] = end
        s.scalars[1] += 1
        s.scalars[2] = max(s.scalars[2], end)
    return s.scalars[2]


@njit(cache=True)
def finish(
    t: Tables, choice: Array, s: State, sync: Array, what: int, i: int, k: int, device: int, end: int, found: Array,
    size: Array, w: Array,
) -> bool:  # fmt: skip
    """Hands the result of a task on to those that wait for it; False if the heap is too small."""
    devices = t.kind.size
    ahead = what == FORWARD
    own = split_of(t, choice, i)
    if ahead:
        if s.first[i] < 0:
            s.first[i] = s.scalars[1]
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
        for n in range(partners(t.geometry, e, ahead, a, b, k, found, size, w)):
            p = found[n]
            if t.places[at, p] == device:
                ok = arrive(s, (2 * j + what) * devices + p, end, (what << KIND) | (j << THING) | (p << PART))
            else:
                ok = push(s, end, ((ACTIVATION + what) << KIND) | (e << THING) | (k << PART) | p)
            if not ok:
                return False
    return True


@njit(cache=True)
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
                    s, s.group_ready[g], (SYNCHRONIZATION << KIND) | (g << THING) | (r - devices)
                ):
                    return False
    for q in range(t.pointer[AFTER, i], t.pointer[AFTER, i + 1]):
        j = t.lists[q]
        for p in range(t.configurations[choice[j], PARTS]):
            if not arrive(s, 2 * j * devices + p, end, (j << THING) | (p << PART)):
                return False
    return True


@njit(cache=True)
def send(
    t: Tables, choice: Array, s: State, what: int, e: int, k: int, p: int, ready: int, tail: Array, limit: int
) -> tuple[int, int, int]:
    """A transfer on its route: its end (0: the heap is too small, EXCEEDED: over the limit), link and time."""
    devices = t.kind.size
    ahead = what == ACTIVATION
    i, j = (
        (t.geometry.edges[e, SOURCE], t.geometry.edges[e, TARGET])
        if ahead
        else (t.geometry.edges[e, TARGET], t.geometry.edges[e, SOURCE])
    )
    x = t.places[t.configurations[choice[i], PLACE], k]
    c = choice[j]
    y = t.places[t.configurations[c, PLACE], p]
    d = t.configurations[c, SPLIT]
    own = split_of(t, choice, i)
    elements = volume(t.geometry, e, own, d, k, p) if ahead else volume(t.geometry, e, d, own, p, k)
    time = transfer(t, x, y, elements * t.nbytes[e, what - ACTIVATION])
    start = ready
    for side in range(2):
        if t.route[x, y, side] >= 0:
            start = max(start, s.free[t.route[x, y, side]])
    end = start + time
    step = t.time[d, what - ACTIVATION, t.kind[y]]
    over = end + step + tail[j, what - ACTIVATION] > limit
    for side in range(2):
        link = t.route[x, y, side]
        if link >= 0:
            s.free[link] = end
            s.left[link] -= time
            over = over or end + s.left[link] > limit
    if over:
        return EXCEEDED, 0, 0
    key = ((what - ACTIVATION) << KIND) | (j << THING) | (p << PART)
    r = t.route[x, y, 0] if t.route[x, y, 0] >= 0 else t.route[x, y, 1]
    return (end if arrive(s, (2 * j + what - ACTIVATION) * devices + p, end, key) else 0), r, time
