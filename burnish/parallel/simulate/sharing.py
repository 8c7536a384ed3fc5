"""Overlap of the partitions of two operations, compiled: ranges of parts along each axis, from tables of intervals."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from burnish.base.jit import njit

Array = NDArray[Any]

SOURCE, TARGET, CLASS, DRIVE, MOVED = 0, 1, 2, 7, 12  # columns of edges: operations, and five each by axis
LEVEL = 5  # column of splits: from here the levels of the degrees before it
OWN, NEED = 0, 1
AHEAD, BACK = 0, 1


class OverlapArrays(NamedTuple):
    """Overlap tables: see :class:`burnish.parallel.simulate.tables.EdgeTables`."""

    edges: Array  # [edges, 17]
    splits: Array  # [splits, 10]
    part: Array  # [classes, OWN or NEED, levels, parts, 2]
    reach: Array  # [classes, AHEAD or BACK, levels, levels, parts, 2]


@njit(cache=True, inner=True)
def shared(t: OverlapArrays, c: int, a: int, i: int, b: int, j: int) -> int:
    """Elements along an axis that part i of the producer (degree of level a) and j of the consumer (b) share."""
    low = max(t.part[c, OWN, a, i, 0], t.part[c, NEED, b, j, 0])
    high = min(t.part[c, OWN, a, i, 1], t.part[c, NEED, b, j, 1])
    return max(0, high - low)


@njit(cache=True, inner=True)
def ranges(t: OverlapArrays, e: int, forwards: bool, di: int, dj: int, k: int, w: Array) -> int:
    """The parts of an edge's consumer that read of part k of its producer (``forwards``), or of the producer that part
    k reads of, as ranges along each axis: from ``w[5 + axis]`` to ``w[10 + axis]``.

    ``di``, ``dj``: the splits of producer and consumer. ``w[:5]``: part k by axes; ``w`` is room for 16 integers.
    Returns the elements shared along axes that no axis of the consumer moves; 0 for no parts.
    """
    mine = di if forwards else dj
    other = dj if forwards else di
    # Part numbers are row-major over five axes; most degrees are 1, which spares the divisions.
    rest = k
    for x in range(4, -1, -1):
        degree = t.splits[mine, x]
        if degree == 1:
            w[x] = 0
        else:
            w[x] = rest % degree
            rest //= degree
    # Along each axis of the other end the partners are one interval, read from a table: an axis that the edge does not
    # restrict has all parts. The partners are the product of these intervals (`partners`).
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


@njit(cache=True, inner=True)
def count(t: OverlapArrays, e: int, forwards: bool, di: int, dj: int, k: int, w: Array) -> int:
    """Number of parts that :func:`partners` finds."""
    if ranges(t, e, forwards, di, dj, k, w) == 0:
        return 0
    n = 1
    for x in range(5):
        n *= w[10 + x] - w[5 + x]
    return n


@njit(cache=True, inner=True)
def partners(
    t: OverlapArrays, e: int, forwards: bool, di: int, dj: int, k: int, found: Array, size: Array, w: Array
) -> int:
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


@njit(cache=True, inner=True)
def along(t: OverlapArrays, e: int, forwards: bool, di: int, dj: int, x: int, k: int, w: Array) -> int:
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


@njit(cache=True, counted=False)
def volume(t: OverlapArrays, e: int, di: int, dj: int, ki: int, kj: int) -> int:
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
