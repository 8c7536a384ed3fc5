"""State of a simulation, compiled: ready tasks as a heap, what tasks wait for, free resources; copies of it, traces."""

from __future__ import annotations

from typing import NamedTuple

from burnish.base.jit import njit
from burnish.parallel.simulate.core import BEFORE, IN, OUT, PARTS, SPLIT, WEIGHT, ProblemArrays, SimulationScratch
from burnish.parallel.simulate.sharing import SOURCE, TARGET, Array, count

EXCEEDED, OVERFLOW = -1, -2  # results in place of a time: over the limit; the heap is too small
FORWARD, BACKWARD, ACTIVATION, GRADIENT, SYNCHRONIZATION, PLACED_ACTIVATION, PLACED_GRADIENT = range(7)
# the last two: a sender's half of transfers that devices copy
UNLIMITED = 1 << 62
KIND, THING, PART = 50, 24, 12  # bits of a key: kind, operation or edge or group, part, other part (or resource)


class SimulationState(NamedTuple):
    """Simulation state: inputs that tasks wait for and when they are ready, of groups of weights likewise; when
    resources are free and the work that is left for them; ready tasks as a heap.
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
    """Checkpoints: copies of states, one every ``every`` events (0: none). ``scalars[:, 0]`` -1: not taken."""

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


class SimulationArrays(NamedTuple):
    """Arrays of a simulation: its state, the checkpoints and the trace that it keeps, and scratch."""

    state: SimulationState
    checkpoints: Checkpoints
    trace: Trace
    scratch: SimulationScratch


@njit(cache=True, inner=True)
def push(times: Array, keys: Array, scalars: Array, time: int, key: int) -> bool:
    """Adds an entry to the heap; False if it is full."""
    n = scalars[0]
    if n == times.size:
        return False
    i = n
    # Equal times are ordered by key, which says what the task is: the order of insertion has no influence.
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
def arrive(s: SimulationState, z: int, end: int, key: int) -> bool:
    """One input of task z has come at ``end``; False if the heap is too small."""
    s.ready[z] = max(s.ready[z], end)
    s.waiting[z] -= 1
    return s.waiting[z] != 0 or push(s.time, s.key, s.scalars, s.ready[z], key)


@njit(cache=True, inner=True)
def save(s: SimulationState, ck: Checkpoints, z: int) -> None:
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
def load_checkpoint(s: SimulationState, ck: Checkpoints, z: int) -> None:
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
def split_of(t: ProblemArrays, choice: Array, i: int) -> int:
    """The split of an operation's configuration."""
    return t.configurations[choice[i], SPLIT]


@njit(cache=True, inner=True)
def inputs_of(t: ProblemArrays, choice: Array, i: int, k: int, w: Array) -> int:
    """Dependency count of the forward task of part k of operation i."""
    n = 0
    own = split_of(t, choice, i)
    for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
        e = t.lists[q]
        n += count(t.geometry, e, False, split_of(t, choice, t.geometry.edges[e, SOURCE]), own, k, w)
    for q in range(t.pointer[BEFORE, i], t.pointer[BEFORE, i + 1]):
        n += t.configurations[choice[t.lists[q]], PARTS]
    return n


@njit(cache=True, inner=True)
def gradients_of(t: ProblemArrays, choice: Array, i: int, k: int, w: Array) -> int:
    """Dependency count of the backward task of part k of operation i: gradients, or its own forward task."""
    n = 0
    own = split_of(t, choice, i)
    for q in range(t.pointer[OUT, i], t.pointer[OUT, i + 1]):
        e = t.lists[q]
        n += count(t.geometry, e, True, own, split_of(t, choice, t.geometry.edges[e, TARGET]), k, w)
    return max(n, 1)


@njit(cache=True, inner=True)
def begin(t: ProblemArrays, choice: Array, s: SimulationState, load: Array, w: Array) -> bool:
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
def fill(t: ProblemArrays, choice: Array, s: SimulationState) -> bool:
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
