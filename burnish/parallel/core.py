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


SOURCE, TARGET, CLASS, DRIVE, MOVED = 0, 1, 2, 7, 12  # columns of edges: operations, and five each by axis
LEVEL = 5  # column of splits: from here the levels of the degrees before it
SPLIT, PLACE, PARTS = range(3)  # columns of configurations
OWN, NEED = 0, 1
AHEAD, BACK = 0, 1
OUT, IN, BEFORE, AFTER, WEIGHT = range(5)  # lists of an operation: edges from it and to it, operations that its forward
# tasks wait for (backward ones of micro-batches), those that wait for it, groups of weights


class Geometry(NamedTuple):
    """Who shares what: see :class:`burnish.parallel.tables.EdgeTables`."""

    edges: Array  # [edges, 17]
    splits: Array  # [splits, 10]
    part: Array  # [classes, OWN or NEED, levels, parts, 2]
    reach: Array  # [classes, AHEAD or BACK, levels, levels, parts, 2]


class Tables(NamedTuple):
    """A problem as arrays, few of them: compiled functions hand them on by value."""

    geometry: Geometry
    time: Array  # [splits, forward or backward, kinds of device] ns
    kind: Array  # [devices]
    configurations: Array  # [configurations, 3]
    places: Array  # [places, devices]
    nbytes: Array  # [edges, 2] bytes an element of the split axes, forward and backward
    covered: Array  # [classes, levels, levels, 2]
    pointer: Array  # [5, operations + 1] into lists
    lists: Array
    member_pointer: Array  # group of weights -> rows of members
    members: Array  # [members, 3]: operation, and which of its axes split the weights
    weight_bytes: Array
    route: Array  # [devices, devices, 2] resources, -1 for none
    wire: Array  # [devices, devices, 2] ns, and ns a byte
    link: Array  # [resources, 2] ns, and ns a byte in a sum of gradients
    node: Array  # [devices]
    overlapped: bool
    near: float  # ns a byte of linear synchronization within a node, and between nodes
    far: float


@njit(cache=True)
def shared(t: Geometry, c: int, a: int, i: int, b: int, j: int) -> int:
    """Elements along an axis that part i of the producer (degree of level a) and j of the consumer (b) share."""
    low = max(t.part[c, OWN, a, i, 0], t.part[c, NEED, b, j, 0])
    high = min(t.part[c, OWN, a, i, 1], t.part[c, NEED, b, j, 1])
    return max(0, high - low)


@njit(cache=True)
def ranges(t: Geometry, e: int, forwards: bool, di: int, dj: int, k: int, w: Array) -> int:
    """The parts of an edge's consumer that read of part k of its producer (``forwards``), or of the producer that part
    k reads of, as ranges along each axis: from ``w[5 + axis]`` to ``w[10 + axis]``.

    ``di``, ``dj``: the splits of producer and consumer. ``w[:5]``: part k by axes; ``w`` is room for 16 integers.
    Returns the elements shared along axes that no axis of the consumer moves; 0 for no parts.
    """
    mine = di if forwards else dj
    other = dj if forwards else di
    rest = k
    for x in range(4, -1, -1):
        degree = t.splits[mine, x]
        if degree == 1:
            w[x] = 0
        else:
            w[x] = rest % degree
            rest //= degree
    base = 1
    for x in range(5):
        w[5 + x] = 0
        w[10 + x] = t.splits[other, x]
        c = t.edges[e, CLASS + x]
        if forwards:
            a = t.edges[e, MOVED + x]
            if a >= 0:
                w[5 + x] = t.reach[
                    t.edges[e, CLASS + a], AHEAD, t.splits[di, LEVEL + a], t.splits[dj, LEVEL + x], w[a], 0
                ]
                w[10 + x] = t.reach[
                    t.edges[e, CLASS + a], AHEAD, t.splits[di, LEVEL + a], t.splits[dj, LEVEL + x], w[a], 1
                ]
            if c >= 0 and t.edges[e, DRIVE + x] < 0:
                base *= shared(t, c, t.splits[di, LEVEL + x], w[x], 0, 0)
        elif c >= 0:
            m = t.edges[e, DRIVE + x]
            level = t.splits[dj, LEVEL + m] if m >= 0 else 0
            place = w[m] if m >= 0 else 0
            w[5 + x] = t.reach[c, BACK, t.splits[di, LEVEL + x], level, place, 0]
            w[10 + x] = t.reach[c, BACK, t.splits[di, LEVEL + x], level, place, 1]
        if w[5 + x] >= w[10 + x]:
            return 0
    return base


@njit(cache=True)
def count(t: Geometry, e: int, forwards: bool, di: int, dj: int, k: int, w: Array) -> int:
    """Number of parts that :func:`partners` finds."""
    if ranges(t, e, forwards, di, dj, k, w) == 0:
        return 0
    n = 1
    for x in range(5):
        n *= w[10 + x] - w[5 + x]
    return n


@njit(cache=True)
def partners(t: Geometry, e: int, forwards: bool, di: int, dj: int, k: int, found: Array, size: Array, w: Array) -> int:
    """Parts at the other end of an edge that share elements with part k: see :func:`ranges`.

    Fills ``found`` and ``size`` (elements along split axes); returns their number.
    """
    other = dj if forwards else di
    base = ranges(t, e, forwards, di, dj, k, w)
    if base == 0:
        return 0
    n = 0
    for k0 in range(w[5], w[10]):
        v0 = base * along(t, e, forwards, di, dj, 0, k0, w)
        for k1 in range(w[6], w[11]):
            v1 = v0 * along(t, e, forwards, di, dj, 1, k1, w)
            p1 = k0 * t.splits[other, 1] + k1
            for k2 in range(w[7], w[12]):
                v2 = v1 * along(t, e, forwards, di, dj, 2, k2, w)
                p2 = p1 * t.splits[other, 2] + k2
                for k3 in range(w[8], w[13]):
                    v3 = v2 * along(t, e, forwards, di, dj, 3, k3, w)
                    p3 = p2 * t.splits[other, 3] + k3
                    for k4 in range(w[9], w[14]):
                        found[n] = p3 * t.splits[other, 4] + k4
                        size[n] = v3 * along(t, e, forwards, di, dj, 4, k4, w)
                        n += 1
    return n


@njit(cache=True)
def along(t: Geometry, e: int, forwards: bool, di: int, dj: int, x: int, k: int, w: Array) -> int:
    """Elements that part k of the other end shares along its axis x."""
    if forwards:
        a = t.edges[e, MOVED + x]
        return (
            1 if a < 0 else shared(t, t.edges[e, CLASS + a], t.splits[di, LEVEL + a], w[a], t.splits[dj, LEVEL + x], k)
        )
    c = t.edges[e, CLASS + x]
    if c < 0:
        return 1
    m = t.edges[e, DRIVE + x]
    if m < 0:
        return shared(t, c, t.splits[di, LEVEL + x], k, 0, 0)
    return shared(t, c, t.splits[di, LEVEL + x], k, t.splits[dj, LEVEL + m], w[m])


@njit(cache=True)
def transfer(t: Tables, x: int, y: int, nbytes: float) -> int:
    """Nanoseconds of a transfer between two devices, at least one."""
    return max(1, int(t.wire[x, y, 0] + nbytes * t.wire[x, y, 1]))


@njit(cache=True)
def volume(t: Geometry, e: int, di: int, dj: int, ki: int, kj: int) -> int:
    """Elements along split axes that part ki of an edge's producer and part kj of its consumer share."""
    v = 1
    for x in range(4, -1, -1):
        k = ki % t.splits[di, x]
        ki //= t.splits[di, x]
        c = t.edges[e, CLASS + x]
        if c >= 0:
            m = t.edges[e, DRIVE + x]
            if m < 0:
                v *= shared(t, c, t.splits[di, LEVEL + x], k, 0, 0)
            else:
                rest = kj
                for y in range(4, m, -1):
                    rest //= t.splits[dj, y]
                v *= shared(t, c, t.splits[di, LEVEL + x], k, t.splits[dj, LEVEL + m], rest % t.splits[dj, m])
    return v


# --- loads ------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def add_compute(t: Tables, c: int, sign: int, load: Array) -> None:
    """Adds the tasks of a configuration to the loads of devices."""
    d = t.configurations[c, SPLIT]
    for k in range(t.configurations[c, PARTS]):
        device = t.places[t.configurations[c, PLACE], k]
        load[device] += sign * (t.time[d, 0, t.kind[device]] + t.time[d, 1, t.kind[device]])


@njit(cache=True)
def add_edge(t: Tables, e: int, ci: int, cj: int, sign: int, load: Array, found: Array, size: Array, w: Array) -> float:
    """Adds the transfers of an edge, forward and backward, to the loads of links; returns their bytes."""
    total = 0.0
    di = t.configurations[ci, SPLIT]
    dj = t.configurations[cj, SPLIT]
    for k in range(t.configurations[ci, PARTS]):
        x = t.places[t.configurations[ci, PLACE], k]
        for n in range(partners(t.geometry, e, True, di, dj, k, found, size, w)):
            y = t.places[t.configurations[cj, PLACE], found[n]]
            if x == y:
                continue
            there = transfer(t, x, y, size[n] * t.nbytes[e, 0])
            again = transfer(t, y, x, size[n] * t.nbytes[e, 1])
            total += size[n] * (t.nbytes[e, 0] + t.nbytes[e, 1])
            for end in range(2):
                if t.route[x, y, end] >= 0:
                    load[t.route[x, y, end]] += sign * there
                if t.route[y, x, end] >= 0:
                    load[t.route[y, x, end]] += sign * again
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
        d = t.configurations[choice[t.members[q, 0]], SPLIT]
        if t.members[q, 1] >= 0:
            fine_a = lcm(fine_a, t.geometry.splits[d, t.members[q, 1]])
        if t.members[q, 2] >= 0:
            fine_b = lcm(fine_b, t.geometry.splits[d, t.members[q, 2]])
    n = fine_a * fine_b
    holders[:n] = False
    first = t.member_pointer[g]
    for q in range(first, t.member_pointer[g + 1]):
        c = choice[t.members[q, 0]]
        same = False
        for p in range(first, q):
            if choice[t.members[p, 0]] == c and t.members[p, 1] == t.members[q, 1]:
                same = t.members[p, 2] == t.members[q, 2]
                break
        if same:
            continue
        d = t.configurations[c, SPLIT]
        da = t.geometry.splits[d, t.members[q, 1]] if t.members[q, 1] >= 0 else 1
        db = t.geometry.splits[d, t.members[q, 2]] if t.members[q, 2] >= 0 else 1
        for k in range(t.configurations[c, PARTS]):
            device = t.places[t.configurations[c, PLACE], k]
            rest = k
            ka = 0
            kb = 0
            for x in range(4, -1, -1):
                r = rest % t.geometry.splits[d, x]
                rest //= t.geometry.splits[d, x]
                if x == t.members[q, 1]:
                    ka = r
                if x == t.members[q, 2]:
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
            link = t.route[x, y, end]
            if link >= 0:
                row[link] += max(1, int(2 * (n - 1) * (t.link[link, 0] + nbytes / n * t.link[link, 1])))
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
    for e in range(t.geometry.edges.shape[0]):
        moved += add_edge(
            t, e, choice[t.geometry.edges[e, SOURCE]], choice[t.geometry.edges[e, TARGET]], 1, load, found, size, w
        )
    for g in range(sync.shape[0]):
        summed += synchronization(t, g, choice, sync[g], holders)
        load += sync[g, : load.size]
    return moved, summed


# --- bounds -----------------------------------------------------------------------------------------------------------


@njit(cache=True)
def is_covered(t: Tables, e: int, di: int, dj: int, side: int) -> bool:
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


@njit(cache=True)
def tails(t: Tables, choice: Array, sync: Array, tail: Array) -> int:
    """Least nanoseconds that pass between the end of a task of each operation and that of the step: ``tail`` [n, 2].

    Longest paths without contention or transfers; returns that of the whole step.
    """
    n = choice.size
    kinds = t.time.shape[2]
    for i in range(n):
        tail[i, 1] = 0
    for i in range(n):
        di = t.configurations[choice[i], SPLIT]
        own = t.time[di, 1, 0]
        for x in range(1, kinds):
            own = min(own, t.time[di, 1, x])
        for q in range(t.pointer[WEIGHT, i], t.pointer[WEIGHT, i + 1]):
            g = t.lists[q]
            for link in range(sync.shape[1] - 1):
                tail[i, 1] = max(tail[i, 1], sync[g, link])
        for q in range(t.pointer[IN, i], t.pointer[IN, i + 1]):
            e = t.lists[q]
            p = t.geometry.edges[e, SOURCE]
            if is_covered(t, e, t.configurations[choice[p], SPLIT], di, 1):
                dp = t.configurations[choice[p], SPLIT]
                step = t.time[dp, 1, 0]
                for x in range(1, kinds):
                    step = min(step, t.time[dp, 1, x])
                tail[i, 1] = max(tail[i, 1], step + tail[p, 1])
    most = 0
    for i in range(n - 1, -1, -1):
        di = t.configurations[choice[i], SPLIT]
        own = t.time[di, 1, 0]
        for x in range(1, kinds):
            own = min(own, t.time[di, 1, x])
        tail[i, 0] = own + tail[i, 1]
        for q in range(t.pointer[OUT, i], t.pointer[OUT, i + 1]):
            e = t.lists[q]
            j = t.geometry.edges[e, TARGET]
            dj = t.configurations[choice[j], SPLIT]
            if is_covered(t, e, di, dj, 0):
                step = t.time[dj, 0, 0]
                for x in range(1, kinds):
                    step = min(step, t.time[dj, 0, x])
                tail[i, 0] = max(tail[i, 0], step + tail[j, 0])
        first = t.time[di, 0, 0]
        for x in range(1, kinds):
            first = min(first, t.time[di, 0, x])
        most = max(most, first + tail[i, 0])
    return most


# --- memory -----------------------------------------------------------------------------------------------------------


@njit(cache=True)
def add_received(t: Tables, e: int, ci: int, cj: int, held: Array, found: Array, size: Array, w: Array) -> None:
    """Adds the bytes that devices of an edge's consumer receive from others: of each producer's part the largest piece.

    Tasks on one device share what they receive.
    """
    largest = np.zeros(t.kind.size, np.int64)
    di = t.configurations[ci, SPLIT]
    dj = t.configurations[cj, SPLIT]
    for k in range(t.configurations[ci, PARTS]):
        x = t.places[t.configurations[ci, PLACE], k]
        largest[:] = 0
        for n in range(partners(t.geometry, e, True, di, dj, k, found, size, w)):
            y = t.places[t.configurations[cj, PLACE], found[n]]
            if x != y:
                largest[y] = max(largest[y], size[n])
        for y in range(t.kind.size):
            held[y] += largest[y] * t.nbytes[e, 0]
