"""Compiled parts of the simulator: what tasks share, loads of devices and links, weight synchronization, path bounds.

A task is (direction, operation, part); its number ``(2 * operation + direction) * P + part``, direction 0 forward, 1
backward. Resources are the P devices, then the links. Times are whole nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.jit import njit

Array = NDArray[np.generic]


class Tables(NamedTuple):
    """A problem as arrays: what `burnish.parallel.taskgraph` makes, in the order of its sections there."""

    degrees: Array  # [splits, axes]
    levels: Array  # [splits, axes]
    forward: Array  # [splits, kinds of device] ns
    backward: Array
    kind: Array  # [devices]
    split: Array  # [configurations]
    place: Array  # [configurations]
    parts: Array  # [configurations]
    places: Array  # [places, devices]
    source: Array  # [edges]
    target: Array
    cls: Array
    drive: Array
    moved: Array
    nbytes: Array
    own: Array
    need: Array
    ahead: Array
    back: Array
    covered: Array
    out_pointer: Array
    out_edge: Array
    in_pointer: Array
    in_edge: Array
    before_pointer: Array  # forward tasks that wait for backward ones of other operations (order of micro-batches)
    before: Array
    after_pointer: Array
    after: Array
    weight_pointer: Array  # operation -> groups of weights
    weight: Array
    member_pointer: Array  # group -> operations, and which of their axes split it
    member: Array
    member_axes: Array
    weight_bytes: Array
    link: Array  # [devices, devices, 2] resources, -1 for none
    latency: Array  # [devices, devices] ns
    rate: Array  # [devices, devices] ns a byte
    link_latency: Array  # [resources] ns
    link_rate: Array
    node: Array  # [devices]
    overlapped: bool
    near: float  # ns a byte of linear synchronization within a node, and between nodes
    far: float


@njit(cache=True)
def shared(t: Tables, c: int, a: int, i: int, b: int, j: int) -> int:
    """Elements along an axis that part i of the producer (degree of level a) and j of the consumer (b) share."""
    low = max(t.own[c, a, i, 0], t.need[c, b, j, 0])
    high = min(t.own[c, a, i, 1], t.need[c, b, j, 1])
    return max(0, high - low)


@njit(cache=True)
def ranges(t: Tables, e: int, forwards: bool, di: int, dj: int, k: int, w: Array) -> int:
    """The parts of an edge's consumer that read of part k of its producer (``forwards``), or of the producer that part
    k reads of, as ranges along each axis: from ``w[5 + axis]`` to ``w[10 + axis]``.

    ``di``, ``dj``: the splits of producer and consumer. ``w[:5]``: part k by axes; ``w`` is room for 16 integers.
    Returns the elements shared along axes that no axis of the consumer moves; 0 for no parts.
    """
    mine = di if forwards else dj
    other = dj if forwards else di
    rest = k
    for x in range(4, -1, -1):
        degree = t.degrees[mine, x]
        if degree == 1:
            w[x] = 0
        else:
            w[x] = rest % degree
            rest //= degree
    base = 1
    for x in range(5):
        w[5 + x] = 0
        w[10 + x] = t.degrees[other, x]
        c = t.cls[e, x]
        if forwards:
            a = t.moved[e, x]
            if a >= 0:
                w[5 + x] = t.ahead[t.cls[e, a], t.levels[di, a], t.levels[dj, x], w[a], 0]
                w[10 + x] = t.ahead[t.cls[e, a], t.levels[di, a], t.levels[dj, x], w[a], 1]
            if c >= 0 and t.drive[e, x] < 0:
                base *= shared(t, c, t.levels[di, x], w[x], 0, 0)
        elif c >= 0:
            m = t.drive[e, x]
            level = t.levels[dj, m] if m >= 0 else 0
            place = w[m] if m >= 0 else 0
            w[5 + x] = t.back[c, t.levels[di, x], level, place, 0]
            w[10 + x] = t.back[c, t.levels[di, x], level, place, 1]
        if w[5 + x] >= w[10 + x]:
            return 0
    return base


@njit(cache=True)
def count(t: Tables, e: int, forwards: bool, ci: int, cj: int, k: int, w: Array) -> int:
    """Number of parts that :func:`partners` finds."""
    if ranges(t, e, forwards, t.split[ci], t.split[cj], k, w) == 0:
        return 0
    n = 1
    for x in range(5):
        n *= w[10 + x] - w[5 + x]
    return n


@njit(cache=True)
def partners(t: Tables, e: int, forwards: bool, ci: int, cj: int, k: int, found: Array, size: Array, w: Array) -> int:
    """Parts at the other end of an edge that share elements with part k: see :func:`ranges`.

    ``ci``, ``cj``: configurations of producer and consumer. Fills ``found`` and ``size`` (elements along split axes);
    returns their number.
    """
    di = t.split[ci]
    dj = t.split[cj]
    other = dj if forwards else di
    base = ranges(t, e, forwards, di, dj, k, w)
    if base == 0:
        return 0
    n = 0
    for k0 in range(w[5], w[10]):
        v0 = base * along(t, e, forwards, di, dj, 0, k0, w)
        for k1 in range(w[6], w[11]):
            v1 = v0 * along(t, e, forwards, di, dj, 1, k1, w)
            p1 = k0 * t.degrees[other, 1] + k1
            for k2 in range(w[7], w[12]):
                v2 = v1 * along(t, e, forwards, di, dj, 2, k2, w)
                p2 = p1 * t.degrees[other, 2] + k2
                for k3 in range(w[8], w[13]):
                    v3 = v2 * along(t, e, forwards, di, dj, 3, k3, w)
                    p3 = p2 * t.degrees[other, 3] + k3
                    for k4 in range(w[9], w[14]):
                        found[n] = p3 * t.degrees[other, 4] + k4
                        size[n] = v3 * along(t, e, forwards, di, dj, 4, k4, w)
                        n += 1
    return n


@njit(cache=True)
def along(t: Tables, e: int, forwards: bool, di: int, dj: int, x: int, k: int, w: Array) -> int:
    """Elements that part k of the other end shares along its axis x."""
    if forwards:
        a = t.moved[e, x]
        return 1 if a < 0 else shared(t, t.cls[e, a], t.levels[di, a], w[a], t.levels[dj, x], k)
    c = t.cls[e, x]
    if c < 0:
        return 1
    m = t.drive[e, x]
    if m < 0:
        return shared(t, c, t.levels[di, x], k, 0, 0)
    return shared(t, c, t.levels[di, x], k, t.levels[dj, m], w[m])


@njit(cache=True)
def transfer(t: Tables, x: int, y: int, nbytes: float) -> int:
    """Nanoseconds of a transfer between two devices, at least one."""
    return max(1, int(t.latency[x, y] + nbytes * t.rate[x, y]))


@njit(cache=True)
def volume(t: Tables, e: int, ci: int, cj: int, ki: int, kj: int) -> int:
    """Elements along split axes that part ki of an edge's producer and part kj of its consumer share."""
    di = t.split[ci]
    dj = t.split[cj]
    v = 1
    for x in range(4, -1, -1):
        k = ki % t.degrees[di, x]
        ki //= t.degrees[di, x]
        c = t.cls[e, x]
        if c >= 0:
            m = t.drive[e, x]
            if m < 0:
                v *= shared(t, c, t.levels[di, x], k, 0, 0)
            else:
                rest = kj
                for y in range(4, m, -1):
                    rest //= t.degrees[dj, y]
                v *= shared(t, c, t.levels[di, x], k, t.levels[dj, m], rest % t.degrees[dj, m])
    return v


# --- loads ------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def add_compute(t: Tables, c: int, sign: int, load: Array) -> None:
    """Adds the tasks of a configuration to the loads of devices."""
    d = t.split[c]
    for k in range(t.parts[c]):
        device = t.places[t.place[c], k]
        load[device] += sign * (t.forward[d, t.kind[device]] + t.backward[d, t.kind[device]])


@njit(cache=True)
def add_edge(t: Tables, e: int, ci: int, cj: int, sign: int, load: Array, found: Array, size: Array, w: Array) -> float:
    """Adds the transfers of an edge, forward and backward, to the loads of links; returns their bytes."""
    total = 0.0
    for k in range(t.parts[ci]):
        x = t.places[t.place[ci], k]
        for n in range(partners(t, e, True, ci, cj, k, found, size, w)):
            y = t.places[t.place[cj], found[n]]
            if x == y:
                continue
            there = transfer(t, x, y, size[n] * t.nbytes[e, 0])
            again = transfer(t, y, x, size[n] * t.nbytes[e, 1])
            total += size[n] * (t.nbytes[e, 0] + t.nbytes[e, 1])
            for end in range(2):
                if t.link[x, y, end] >= 0:
                    load[t.link[x, y, end]] += sign * there
                if t.link[y, x, end] >= 0:
                    load[t.link[y, x, end]] += sign * again
    return total


@njit(cache=True)
def lcm(a: int, b: int) -> int:
    """Least common multiple."""
    x = a
    y = b
    while y:
        x, y = y, x % y
    return a // x * b


@njit(cache=True)
def weight_pieces(t: Tables, g: int, choice: Array, holders: Array) -> int:
    """Marks which devices hold each piece of a group of weights: ``holders`` [pieces, devices]; returns the number."""
    fine_a = 1
    fine_b = 1
    for q in range(t.member_pointer[g], t.member_pointer[g + 1]):
        d = t.split[choice[t.member[q]]]
        if t.member_axes[q, 0] >= 0:
            fine_a = lcm(fine_a, t.degrees[d, t.member_axes[q, 0]])
        if t.member_axes[q, 1] >= 0:
            fine_b = lcm(fine_b, t.degrees[d, t.member_axes[q, 1]])
    n = fine_a * fine_b
    holders[:n] = False
    first = t.member_pointer[g]
    for q in range(first, t.member_pointer[g + 1]):
        c = choice[t.member[q]]
        same = False
        for p in range(first, q):
            if choice[t.member[p]] == c and t.member_axes[p, 0] == t.member_axes[q, 0]:
                same = t.member_axes[p, 1] == t.member_axes[q, 1]
                break
        if same:
            continue
        d = t.split[c]
        da = t.degrees[d, t.member_axes[q, 0]] if t.member_axes[q, 0] >= 0 else 1
        db = t.degrees[d, t.member_axes[q, 1]] if t.member_axes[q, 1] >= 0 else 1
        for k in range(t.parts[c]):
            device = t.places[t.place[c], k]
            rest = k
            ka = 0
            kb = 0
            for x in range(4, -1, -1):
                r = rest % t.degrees[d, x]
                rest //= t.degrees[d, x]
                if x == t.member_axes[q, 0]:
                    ka = r
                if x == t.member_axes[q, 1]:
                    kb = r
            for pa in range(ka * fine_a // da, (ka + 1) * fine_a // da):
                for pb in range(kb * fine_b // db, (kb + 1) * fine_b // db):
                    holders[pa * fine_b + pb, device] = True
    return n


@njit(cache=True)
def synchronization(t: Tables, g: int, choice: Array, row: Array, holders: Array) -> float:
    """Nanoseconds on every link that summing a group's gradients takes, into ``row``; the last entry: after the step.

    Overlapped: an all-reduce in a ring over each piece's devices. Else the published simulator's: (replicas in a node
    - 1) and (nodes - 1) times the bytes, one piece after the other. Returns the bytes that are sent.
    """
    row[:] = 0
    pieces = weight_pieces(t, g, choice, holders)
    size = t.weight_bytes[g] / pieces
    devices = t.kind.size
    done = np.zeros(pieces, np.bool_)
    total = 0.0
    for p in range(pieces):
        if done[p]:
            continue
        nbytes = 0.0
        for q in range(p, pieces):
            if not done[q]:
                equal = True
                for d in range(devices):
                    if holders[p, d] != holders[q, d]:
                        equal = False
                        break
                if equal:
                    done[q] = True
                    nbytes += size
        total += all_reduce(t, holders[p], nbytes, row)
    return total


@njit(cache=True)
def all_reduce(t: Tables, holds: Array, nbytes: float, row: Array) -> float:
    """Adds one all-reduce over the devices that hold a piece to ``row``; returns the bytes that are sent."""
    devices = t.kind.size
    n = 0
    first = -1
    nodes = 0
    most = 0
    inside = 0
    last_node = -1
    for d in range(devices):
        if holds[d]:
            n += 1
            if first < 0:
                first = d
            if t.node[d] != last_node:
                nodes += 1
                inside = 0
                last_node = t.node[d]
            inside += 1
            most = max(most, inside)
    if n < 2:
        return 0.0
    if not t.overlapped:
        row[row.size - 1] += max(1, int(nbytes * ((most - 1) * t.near + (nodes - 1) * t.far)))
        return 2.0 * (n - 1) * nbytes
    x = first
    while True:
        y = x + 1
        while y < devices and not holds[y]:
            y += 1
        if y == devices:
            y = first
        for end in range(2):
            link = t.link[x, y, end]
            if link >= 0:
                row[link] += max(1, int(2 * (n - 1) * (t.link_latency[link] + nbytes / n * t.link_rate[link])))
        if y == first:
            break
        x = y
    return 2.0 * (n - 1) * nbytes


@njit(cache=True)
def loads(
    t: Tables, choice: Array, load: Array, sync: Array, found: Array, size: Array, w: Array, holders: Array
) -> tuple[float, float]:
    """Work of every resource and the synchronization of every group; returns bytes transferred and synchronized."""
    load[:] = 0
    moved = 0.0
    summed = 0.0
    for i in range(choice.size):
        add_compute(t, choice[i], 1, load)
    for e in range(t.source.size):
        moved += add_edge(t, e, choice[t.source[e]], choice[t.target[e]], 1, load, found, size, w)
    for g in range(sync.shape[0]):
        summed += synchronization(t, g, choice, sync[g], holders)
        load += sync[g, : load.size]
    return moved, summed


# --- bounds -----------------------------------------------------------------------------------------------------------


@njit(cache=True)
def is_covered(t: Tables, e: int, di: int, dj: int, side: int) -> bool:
    """Whether every part of an edge's producer (side 0) or consumer (1) shares elements with one of the other."""
    for x in range(5):
        c = t.cls[e, x]
        if c >= 0:
            m = t.drive[e, x]
            if not t.covered[c, t.levels[di, x], t.levels[dj, m] if m >= 0 else 0, side]:
                return False
    return True


@njit(cache=True)
def tails(t: Tables, choice: Array, sync: Array, tail: Array) -> int:
    """Least nanoseconds that pass between the end of a task of each operation and that of the step: ``tail`` [n, 2].

    Longest paths without contention or transfers; returns that of the whole step.
    """
    n = choice.size
    kinds = t.forward.shape[1]
    for i in range(n):
        tail[i, 1] = 0
    for i in range(n):
        di = t.split[choice[i]]
        own = t.backward[di, 0]
        for x in range(1, kinds):
            own = min(own, t.backward[di, x])
        for q in range(t.weight_pointer[i], t.weight_pointer[i + 1]):
            g = t.weight[q]
            for link in range(sync.shape[1] - 1):
                tail[i, 1] = max(tail[i, 1], sync[g, link])
        for q in range(t.in_pointer[i], t.in_pointer[i + 1]):
            e = t.in_edge[q]
            p = t.source[e]
            if is_covered(t, e, t.split[choice[p]], di, 1):
                dp = t.split[choice[p]]
                step = t.backward[dp, 0]
                for x in range(1, kinds):
                    step = min(step, t.backward[dp, x])
                tail[i, 1] = max(tail[i, 1], step + tail[p, 1])
    most = 0
    for i in range(n - 1, -1, -1):
        di = t.split[choice[i]]
        own = t.backward[di, 0]
        for x in range(1, kinds):
            own = min(own, t.backward[di, x])
        tail[i, 0] = own + tail[i, 1]
        for q in range(t.out_pointer[i], t.out_pointer[i + 1]):
            e = t.out_edge[q]
            j = t.target[e]
            dj = t.split[choice[j]]
            if is_covered(t, e, di, dj, 0):
                step = t.forward[dj, 0]
                for x in range(1, kinds):
                    step = min(step, t.forward[dj, x])
                tail[i, 0] = max(tail[i, 0], step + tail[j, 0])
        first = t.forward[di, 0]
        for x in range(1, kinds):
            first = min(first, t.forward[di, x])
        most = max(most, first + tail[i, 0])
    return most


# --- memory -----------------------------------------------------------------------------------------------------------


@njit(cache=True)
def add_received(t: Tables, e: int, ci: int, cj: int, held: Array, found: Array, size: Array, w: Array) -> None:
    """Adds the bytes that devices of an edge's consumer receive from others: of each producer's part the largest piece.

    Tasks on one device share what they receive.
    """
    largest = np.zeros(t.kind.size, np.int64)
    for k in range(t.parts[ci]):
        x = t.places[t.place[ci], k]
        largest[:] = 0
        for n in range(partners(t, e, True, ci, cj, k, found, size, w)):
            y = t.places[t.place[cj], found[n]]
            if x != y:
                largest[y] = max(largest[y], size[n])
        for y in range(t.kind.size):
            held[y] += largest[y] * t.nbytes[e, 0]
