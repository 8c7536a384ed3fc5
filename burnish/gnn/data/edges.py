"""Loops over edges: buckets by vertex, transposition, duplicates, self loops, checks. All are O(V + E) without a sort.

An array of weights with no element stands for edges without weights.
"""

from burnish.base.jit import njit

kernel = njit(cache=True, nogil=True, error_model="numpy")


@kernel
def count_edges(keys, values, both, loops, counts):  # type: ignore[no-untyped-def]
    """Adds the edges of every key to ``counts[key + 1]``, counts (vertices + 1,).

    both: each edge also as (value, key), loops once. loops: whether edges from a vertex to itself are taken.
    """
    for e in range(keys.shape[0]):
        u, v = keys[e], values[e]
        if u == v and not loops:
            continue
        counts[u + 1] += 1
        if both and u != v:
            counts[v + 1] += 1


@njit(cache=True, inner=True, nogil=True, error_model="numpy")
def _write(at, source, weights, e, out, out_weights):  # type: ignore[no-untyped-def]
    """Writes an edge and its weight, number ``e`` of ``weights``, to place ``at`` of a row."""
    out[at] = source
    if weights.size:
        out_weights[at] = weights[e]


@kernel
def place_edges(keys, values, weights, both, loops, place, out, out_weights):  # type: ignore[no-untyped-def]
    """Writes the edges that ``count_edges`` counted, by key; ``place[key]``: where the next one goes."""
    for e in range(keys.shape[0]):
        u, v = keys[e], values[e]
        if u == v and not loops:
            continue
        _write(place[u], v, weights, e, out, out_weights)
        place[u] += 1
        if both and u != v:
            _write(place[v], u, weights, e, out, out_weights)
            place[v] += 1


@kernel
def transpose(offsets, sources, weights, out_offsets, out, out_weights):  # type: ignore[no-untyped-def]
    """Rows by source, (columns + 1,) zeros in; each ascending, since the rows of the input are visited in order."""
    for e in range(sources.shape[0]):
        out_offsets[sources[e] + 1] += 1
    for i in range(out_offsets.shape[0] - 1):
        out_offsets[i + 1] += out_offsets[i]
    place = out_offsets[:-1].copy()
    for v in range(offsets.shape[0] - 1):
        for e in range(offsets[v], offsets[v + 1]):
            u = sources[e]
            _write(place[u], v, weights, e, out, out_weights)
            place[u] += 1


@kernel
def transpose_permuted(  # type: ignore[no-untyped-def]
    offsets, sources, weights, new, old, out_offsets, out, out_weights
):
    """As ``transpose``, of the graph whose vertex ``old[i]`` is called i, so that ``new[old[i]] == i``."""
    for e in range(sources.shape[0]):
        out_offsets[new[sources[e]] + 1] += 1
    for i in range(out_offsets.shape[0] - 1):
        out_offsets[i + 1] += out_offsets[i]
    place = out_offsets[:-1].copy()
    for i in range(old.shape[0]):
        for e in range(offsets[old[i]], offsets[old[i] + 1]):
            u = new[sources[e]]
            _write(place[u], i, weights, e, out, out_weights)
            place[u] += 1


@kernel
def merge_duplicates(offsets, sources, weights, count, first):  # type: ignore[no-untyped-def]
    """Keeps one of equal neighbours, in place; returns the edges left. ``first``: row and source of the first repeat.

    count: the weight of what stays is the sum of those merged, else its own.
    """
    kept = 0
    first[0] = -1
    begin = offsets[0]
    for v in range(offsets.shape[0] - 1):
        end = offsets[v + 1]
        row = kept
        for e in range(begin, end):
            if kept > row and sources[e] == sources[kept - 1]:
                if first[0] < 0:
                    first[0] = v
                    first[1] = sources[e]
                if count:
                    weights[kept - 1] += weights[e]
                continue
            sources[kept] = sources[e]
            if weights.size:
                weights[kept] = weights[e]
            kept += 1
        begin = end
        offsets[v + 1] = kept
    return kept


@kernel
def count_self_loops(offsets, sources, has):  # type: ignore[no-untyped-def]
    """Edges from a vertex to itself; has (rows,): whether there is one."""
    found = 0
    for v in range(offsets.shape[0] - 1):
        has[v] = False
        for e in range(offsets[v], offsets[v + 1]):
            if sources[e] == v:
                has[v] = True
                found += 1
    return found


@kernel
def insert_self_loops(  # type: ignore[no-untyped-def]
    offsets, sources, weights, has, begin, own, out_offsets, out, out_weights
):
    """Copies the rows, which are those of the vertices from ``begin`` on; those not in ``has`` get a self loop each, of
    weight ``own`` (none: (0,)), in its place of the ascending row.
    """
    kept = 0
    for v in range(offsets.shape[0] - 1):
        missing, end = not has[v], offsets[v + 1]
        for e in range(offsets[v], end + 1):
            if missing and (e == end or sources[e] >= begin + v):
                _write(kept, begin + v, own, v, out, out_weights)
                kept += 1
                missing = False
            if e < end:
                _write(kept, sources[e], weights, e, out, out_weights)
                kept += 1
        out_offsets[v + 1] = kept


@kernel
def drop_self_loops(offsets, sources, weights, out_offsets, out, out_weights):  # type: ignore[no-untyped-def]
    """Copies the rows without edges from a vertex to itself."""
    kept = 0
    for v in range(offsets.shape[0] - 1):
        for e in range(offsets[v], offsets[v + 1]):
            if sources[e] != v:
                _write(kept, sources[e], weights, e, out, out_weights)
                kept += 1
        out_offsets[v + 1] = kept


@kernel
def first_fault(offsets, sources, columns):  # type: ignore[no-untyped-def]
    """Fault and its row: 0 nothing; 1 offsets decrease; 2 a source does not exist; 3 not ascending."""
    for v in range(offsets.shape[0] - 1):
        if offsets[v + 1] < offsets[v] or offsets[v] < 0 or offsets[v + 1] > sources.shape[0]:
            return 1, v
        last = -1
        ascending = True
        for e in range(offsets[v], offsets[v + 1]):
            u = sources[e]
            if u < 0 or u >= columns:
                return 2, v
            ascending &= u >= last
            last = u
        if not ascending:
            return 3, v
    return 0, 0


@kernel
def is_symmetric(offsets, sources, weights):  # type: ignore[no-untyped-def]
    """Whether every edge v → u has a reverse u → v, with the same weight, as often.

    Rows ascend, so the rows that name u come in the order of u's own neighbours: one cursor for each row.
    """
    place = offsets[:-1].copy()
    for v in range(offsets.shape[0] - 1):
        for e in range(offsets[v], offsets[v + 1]):
            u = sources[e]
            p = place[u]
            if p == offsets[u + 1] or sources[p] != v:
                return False
            if weights.size and weights[p] != weights[e]:
                return False
            place[u] = p + 1
    return True


@kernel
def first_outside(source, target, vertices):  # type: ignore[no-untyped-def]
    """The first edge with an end that does not exist, or -1."""
    for e in range(source.shape[0]):
        if source[e] < 0 or source[e] >= vertices or target[e] < 0 or target[e] >= vertices:
            return e
    return -1
