"""Metropolis walk over strategies, compiled: proposals simulated from checkpoints and only up to a known limit.

The Metropolis number is drawn before the simulation, so that the longest time that would be accepted is known: a
proposal whose loads or longest path exceed it is rejected without simulation, others as soon as that is certain.
Source: thesis-jia section 3.5; algorithms 1 and 2 (delta simulation), here by resuming.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from burnish.jit import njit
from burnish.parallel.core import (
    AFTER,
    BEFORE,
    IN,
    OUT,
    PARTS,
    SOURCE,
    TARGET,
    WEIGHT,
    Tables,
    add_compute,
    add_edge,
    count,
    loads,
    synchronization,
    tails,
)
from burnish.parallel.events import (
    EXCEEDED,
    OVERFLOW,
    Checkpoints,
    State,
    Trace,
    begin,
    gradients_of,
    inputs_of,
    load_checkpoint,
    run,
    split_of,
)

Array = NDArray[np.generic]
UNLIMITED = 1 << 62
ACCEPTED, TRIED, SKIPPED, EVENTS = range(4)  # counters of a walk


@njit(cache=True)
def simulate(
    t: Tables, choice: Array, s: State, load: Array, sync: Array, tail: Array, limit: int, every: int, ck: Checkpoints,
    trace: Trace, found: Array, size: Array, w: Array,
) -> int:  # fmt: skip
    """A full simulation; ``load``, ``sync`` and ``tail`` are the strategy's. See :func:`run`."""
    for z in range(ck.scalars.shape[0] if every > 0 else 0):
        ck.scalars[z, 0] = -1
    if not begin(t, choice, s, load, w):
        return OVERFLOW
    return run(t, choice, s, sync, tail, limit, every, ck, trace, found, size, w)


@njit(cache=True)
def change_loads(
    t: Tables, old: Array, new: Array, ops: Array, inside: Array, load: Array, sync: Array, found: Array, size: Array,
    w: Array, holders: Array, touched: Array,
) -> None:  # fmt: skip
    """Updates ``load`` and ``sync`` of ``old`` to those of ``new``, which differs in ``ops`` (marked ``inside``)."""
    for i in ops:
        add_compute(t, old[i], -1, load)
        add_compute(t, new[i], 1, load)
        for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
            e = t.lists[q]
            p = t.geometry.edges[e, SOURCE]
            add_edge(t, e, old[p], old[i], -1, load, found, size, w)
            add_edge(t, e, new[p], new[i], 1, load, found, size, w)
        for q in range(t.pointer[OUT, i], t.pointer[OUT, i + 1]):
            e = t.lists[q]
            j = t.geometry.edges[e, TARGET]
            if not inside[j]:
                add_edge(t, e, old[i], old[j], -1, load, found, size, w)
                add_edge(t, e, new[i], new[j], 1, load, found, size, w)
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            g = t.lists[q]
            if not touched[g]:
                touched[g] = True
                for r in range(load.size):
                    load[r] -= sync[g, r]
                synchronization(t, g, new, sync[g], holders)
                for r in range(load.size):
                    load[r] += sync[g, r]
    for i in ops:
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            touched[t.lists[q]] = False


@njit(cache=True)
def resume(
    t: Tables, old: Array, new: Array, ops: Array, inside: Array, s: State, load: Array, before: Array,
    ck: Checkpoints, z: int, w: Array,
) -> None:  # fmt: skip
    """The state of ``new`` at checkpoint z of ``old``, which was taken before anything that differs.

    ``load``, ``before``: all work of either.
    """
    devices = t.kind.size
    load_checkpoint(s, ck, z)
    for r in range(load.size):
        s.left[r] += load[r] - before[r]
    for i in ops:
        for k in range(t.configurations[new[i], PARTS]):
            s.waiting[2 * i * devices + k] = inputs_of(t, new, i, k, w)
            s.waiting[(2 * i + 1) * devices + k] = gradients_of(t, new, i, k, w)
            s.ready[2 * i * devices + k] = 0
            s.ready[(2 * i + 1) * devices + k] = 0
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            s.group_waiting[t.lists[q]] += t.configurations[new[i], PARTS] - t.configurations[old[i], PARTS]
        for q in range(t.pointer[AFTER, i], t.pointer[AFTER, i + 1]):
            j = t.lists[q]
            for k in range(0 if inside[j] else t.configurations[new[j], PARTS]):
                s.waiting[2 * j * devices + k] += t.configurations[new[i], PARTS] - t.configurations[old[i], PARTS]
        for q in range(t.pointer[OUT, i], t.pointer[OUT, i + 1]):
            e = t.lists[q]
            j = t.geometry.edges[e, TARGET]
            for k in range(0 if inside[j] else t.configurations[new[j], PARTS]):
                more = count(t.geometry, e, False, split_of(t, new, i), split_of(t, new, j), k, w) - count(
                    t.geometry, e, False, split_of(t, old, i), split_of(t, old, j), k, w
                )
                s.waiting[2 * j * devices + k] += more
        for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
            e = t.lists[q]
            j = t.geometry.edges[e, SOURCE]
            for k in range(0 if inside[j] else t.configurations[new[j], PARTS]):
                more = count(t.geometry, e, True, split_of(t, new, j), split_of(t, new, i), k, w) - count(
                    t.geometry, e, True, split_of(t, old, j), split_of(t, old, i), k, w
                )
                s.waiting[(2 * j + 1) * devices + k] += more


@njit(cache=True)
def resume_point(t: Tables, ops: Array, inside: Array, first: Array, every: int, ck: Checkpoints) -> int:
    """The last checkpoint before anything that these operations change; 0 if there is none but the start."""
    least = UNLIMITED
    for i in ops:
        if t.pointer[IN, i] == t.pointer[IN, i + 1] and t.pointer[BEFORE, i] == t.pointer[BEFORE, i + 1]:
            return 0
        for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
            least = min(least, first[t.geometry.edges[t.lists[q], SOURCE]])
        for q in range(t.pointer[BEFORE, i], t.pointer[BEFORE, i + 1]):
            least = min(least, first[t.lists[q]])
    z = min(ck.scalars.shape[0] - 1, least // every)
    while z > 0 and ck.scalars[z, 0] < 0:
        z -= 1
    return z


@njit(cache=True)
def propose(
    t: Tables, old: Array, new: Array, ops: Array, inside: Array, s: State, first: Array, load: Array, load2: Array,
    sync2: Array, tail2: Array, limit: int, every: int, ck: Checkpoints, none: Checkpoints, trace: Trace, found: Array,
    size: Array, w: Array, holders: Array, touched: Array, counters: Array, stop: bool,
) -> int:  # fmt: skip
    """The time of ``new``, which is ``old`` but for ``ops``; EXCEEDED over ``limit``.

    ``load2`` and ``sync2`` come in as the old strategy's and leave as the new one's; ``every`` 0: without resuming;
    ``stop``: whether the limit is used before the simulation has ended.
    """
    last = sync2.shape[1] - 1
    change_loads(t, old, new, ops, inside, load2, sync2, found, size, w, holders, touched)
    after = 0
    for g in range(sync2.shape[0]):
        after += sync2[g, last]
    bound = limit - after if stop else UNLIMITED
    if stop:
        for r in range(load2.size):
            if load2[r] > bound:
                counters[SKIPPED] += 1
                return EXCEEDED
        if tails(t, new, sync2, tail2) > bound:
            counters[SKIPPED] += 1
            return EXCEEDED
    else:
        tail2[:] = 0
    z = resume_point(t, ops, inside, first, every, ck) if every > 0 else 0
    if z > 0:
        resume(t, old, new, ops, inside, s, load2, load, ck, z, w)
        began = s.scalars[1]
        time = run(t, new, s, sync2, tail2, bound, 0, none, trace, found, size, w)
    else:
        began = 0
        time = simulate(t, new, s, load2, sync2, tail2, bound, 0, none, trace, found, size, w)
    counters[EVENTS] += s.scalars[1] - began
    if time < 0:
        return time
    return time + after if time + after <= limit else EXCEEDED


@njit(cache=True)
def metropolis(
    t: Tables, choice: Array, first_number: Array, numbers: Array, moves: Array, move_pointer: Array, proposals: int,
    temperature: float, seed: int, stop: bool, s: State, load: Array, sync: Array, tail: Array, load2: Array,
    sync2: Array, tail2: Array, every: int, ck: Checkpoints, none: Checkpoints, trace: Trace, found: Array, size: Array,
    w: Array, holders: Array, touched: Array, inside: Array, counters: Array, best: Array,
) -> tuple[int, int]:  # fmt: skip
    """Proposals at one temperature, from ``choice``, which becomes the last accepted strategy, ``best`` the best.

    A time T is accepted with probability exp((now - T) / (temperature * now)). Returns the times of both; OVERFLOW
    where the heap is too small (nothing is lost: ``choice`` and ``best`` hold the walk so far).
    """
    np.random.seed(seed)
    loads(t, choice, load, sync, found, size, w, holders)
    tails(t, choice, sync, tail)
    now = simulate(t, choice, s, load, sync, tail, UNLIMITED, every, ck, trace, found, size, w)
    if now < 0:
        return now, now
    first = s.first.copy()
    for g in range(sync.shape[0]):
        now += sync[g, sync.shape[1] - 1]
    least = now
    best[:] = choice
    new = choice.copy()
    load2[:] = load
    sync2[:] = sync
    for _ in range(proposals):
        u = np.random.random()
        move = np.random.randint(0, move_pointer.size - 1)
        ops = moves[move_pointer[move] : move_pointer[move + 1]]
        number = np.random.randint(0, numbers[ops[0]])
        different = False
        for i in ops:
            new[i] = first_number[i] + number
            different = different or new[i] != choice[i]
        counters[TRIED] += 1
        if not different:
            continue
        limit = np.int64(now * (1.0 - temperature * np.log(max(u, 1e-300))))
        for i in ops:
            inside[i] = True
        time = propose(
            t, choice, new, ops, inside, s, first, load, load2, sync2, tail2, limit, every, ck, none, trace, found,
            size, w, holders, touched, counters, stop,
        )  # fmt: skip
        for i in ops:
            inside[i] = False
        if time == OVERFLOW:
            return OVERFLOW, least
        if time >= 0 and time <= limit:
            counters[ACCEPTED] += 1
            now = time
            for i in ops:
                choice[i] = new[i]
            load[:] = load2
            sync[:] = sync2
            if every > 0:
                tail2[:] = 0
                simulate(t, choice, s, load, sync, tail2, UNLIMITED, every, ck, trace, found, size, w)
                first[:] = s.first
            if now < least:
                least = now
                best[:] = choice
        else:
            for i in ops:
                new[i] = choice[i]
            load2[:] = load
            restore(t, ops, sync, sync2)
    return now, least


@njit(cache=True)
def restore(t: Tables, ops: Array, sync: Array, sync2: Array) -> None:
    """Makes the synchronization of the operations' weights that of the current strategy again."""
    for i in ops:
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            sync2[t.lists[q]] = sync[t.lists[q]]
