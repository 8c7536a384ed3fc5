"""Sums of weight gradients over the devices that hold replicas, compiled: a ring that overlaps, or after the step."""

from __future__ import annotations

from burnish.base.jit import njit
from burnish.parallel.simulate.core import PARTS, PLACE, SPLIT, ProblemArrays
from burnish.parallel.simulate.sharing import Array


@njit(cache=True, inner=True)
def lcm(a: int, b: int) -> int:
    """Least common multiple."""
    x = a
    y = b
    while y:
        x, y = y, x % y
    return a // x * b


@njit(cache=True, counted=False)
def weight_pieces(t: ProblemArrays, g: int, choice: Array, holders: Array) -> int:
    """Marks which devices hold each piece of a group of weights: ``holders`` [pieces, devices]; returns the number."""
    fine_a = 1
    fine_b = 1
    for q in range(t.member_pointer[g], t.member_pointer[g + 1]):
        d = t.configurations[choice[t.members[q, 0]], SPLIT]
        if t.members[q, 1] >= 0:
            fine_a = lcm(fine_a, t.geometry.splits[d, t.members[q, 1]])
        if t.members[q, 2] >= 0:
            fine_b = lcm(fine_b, t.geometry.splits[d, t.members[q, 2]])
    # Pieces are the common refinement of all members' splits: each part of a member is a rectangle of whole pieces.
    n = fine_a * fine_b
    for p in range(n):
        for device in range(t.kind.size):
            holders[p, device] = False
    first = t.member_pointer[g]
    for q in range(first, t.member_pointer[g + 1]):
        c = choice[t.members[q, 0]]
        # Steps of a layer mostly have one configuration: their marks are the same.
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
            # Part k by axes, row-major: only the axes that split the weights say which pieces it holds.
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


@njit(cache=True, counted=False)
def synchronization(t: ProblemArrays, g: int, choice: Array, sync: Array, holders: Array) -> float:
    """Nanoseconds on every link that summing a group's gradients takes, into ``sync[g]``; at its end: after the step.

    Overlapped: an all-reduce in a ring over each piece's devices. Else the published simulator's: (replicas in a node
    - 1) and (nodes - 1) times the bytes, one piece after the other. Returns the bytes that are sent.
    """
    for r in range(sync.shape[1]):
        sync[g, r] = 0
    pieces = weight_pieces(t, g, choice, holders)
    size = t.weight_bytes[g] / pieces
    devices = t.kind.size
    total = 0.0
    for p in range(pieces):
        first = -1
        for d in range(devices - 1, -1, -1):
            if holders[p, d]:
                first = d
        if first < 0:
            continue  # summed with an earlier piece of the same holders, whose marks are gone
        # Pieces with the same holders are one all-reduce: one latency, all their bytes.
        nbytes = size
        for q in range(p + 1, pieces):
            equal = True
            for d in range(devices):
                if holders[p, d] != holders[q, d]:
                    equal = False
                    break
            if equal:
                nbytes += size
                for d in range(devices):
                    holders[q, d] = False
        total += all_reduce(t, holders, p, nbytes, sync, g)
    return total


@njit(cache=True, inner=True)
def all_reduce(t: ProblemArrays, holders: Array, p: int, nbytes: float, sync: Array, g: int) -> float:
    """Adds one all-reduce over the devices that hold piece p to ``sync[g]``; returns the bytes that are sent."""
    devices = t.kind.size
    n = 0
    first = -1
    nodes = 0
    most = 0
    inside = 0
    last_node = -1
    for d in range(devices):
        if holders[p, d]:
            n += 1
            if first < 0:
                first = d
            if t.node[d] != last_node:
                nodes += 1
                inside = 0
                last_node = t.node[d]
            inside += 1
            most = max(most, inside)
    if n < 2 or nbytes <= 0:
        return 0.0
    if not t.overlapped:
        sync[g, sync.shape[1] - 1] += max(1, int(nbytes * ((most - 1) * t.near + (nodes - 1) * t.far)))
        return 2.0 * (n - 1) * nbytes
    # A ring through the holders in order of devices: every link of it carries 2 (n - 1) / n of the bytes.
    x = first
    while True:
        y = x + 1
        while y < devices and not holders[p, y]:
            y += 1
        if y == devices:
            y = first
        for end in range(2):
            link = t.route[x, y, end]
            if link >= 0:
                sync[g, link] += max(1, int(2 * (n - 1) * (t.link[link, 0] + nbytes / n * t.link[link, 1])))
        if y == first:
            break
        x = y
    return 2.0 * (n - 1) * nbytes
