"""Greedy recomputation: the step is simulated in memory of a given size, and what is cheapest to miss is evicted.

The heuristic of dynamic tensor rematerialization (Kirisame et al. 2021), at compile time: evicted is the value with the
least seconds to compute it again, with all that is missing then, for its bytes and the time that it is not needed.
That time is known here: until the next use, or as in the paper since the last one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from burnish.base.jit import njit
from burnish.memory.work import Work

NEXT_USE, STALENESS, BYTES = 0, 1, 2  # what a value's seconds are divided by, beside its bytes; the last: by these only
RULES = (NEXT_USE, STALENESS, BYTES)
MOST_SECONDS = 8.0  # of a step with recomputation, as a multiple of one without, before a simulation is given up
NOISE = 0.3  # standard deviation of the logarithm of random factors
NEAR = 48  # missing operands that are counted in the seconds of a value


def evict(work: Work, limit: int, rule: int = NEXT_USE, seed: int = 0) -> list[int] | None:
    """An order whose live bytes are at most ``limit``, as far as memory is shared in place as expected.

    ``seed``: of factors by which values count as a little dearer or cheaper to miss than they are; 0: none.
    None where the simulation finds none: an operation and its operands do not fit, or all time goes into repetition.
    """
    fixed = np.array([p < 0 or not work.operations[p].again for p in work.producer], np.bool_)
    keep = work.rounded == 0
    keep[list(work.keep)] = True
    work = _lasting(work, fixed)
    producer = np.array(work.producer, np.int64)
    factors = np.ones(len(work.nbytes))
    if seed:
        factors = np.exp(NOISE * np.random.default_rng(seed).standard_normal(len(work.nbytes)))
    order = _simulate(
        work.tables, work.rounded, work.costs, producer, keep, keep | fixed, _uses(work), factors, limit, rule
    )
    return None if len(order) == 0 else order.tolist()


def _lasting(work: Work, fixed: Any) -> Work:
    """The work in which what cannot be made again (``fixed``) is read as long as others may read it again: by the last
    operation that reads anything that may be made from it again.
    """
    last = [-1] * len(work.nbytes)
    for n in reversed(range(len(work))):
        operation = work.operations[n]
        until = max([n, *(last[v] for v in operation.writes)]) if operation.again else n
        for v in operation.reads:
            last[v] = max(last[v], until)
    more: dict[int, list[int]] = {}
    for v, n in enumerate(last):
        if n >= 0 and fixed[v] and v not in work.operations[n].reads:
            more.setdefault(n, []).append(v)
    operations = [replace(o, reads=(*o.reads, *more.get(n, ()))) for n, o in enumerate(work.operations)]
    return replace(work, operations=tuple(operations))


def _uses(work: Work) -> tuple[Any, Any]:
    """Uses of each value, the operations that read it, in order: where each one's begin, and all."""
    readers: list[list[int]] = [[] for _ in work.nbytes]
    for n, operation in enumerate(work.operations):
        for v in dict.fromkeys(operation.reads):
            readers[v].append(n)
    starts = np.zeros(len(readers) + 1, np.int64)
    np.cumsum([len(r) for r in readers], out=starts[1:])
    return starts, np.array([n for r in readers for n in r], np.int64)


@njit(cache=True, nogil=True)
def _missing_seconds(
    value: Any, read_starts: Any, reads: Any, costs: Any, producer: Any, present: Any, seen: Any, stamp: Any, stack: Any
) -> Any:
    """Seconds to compute a value, with the operands that are missing, of which some are looked at."""
    total = 0.0
    count = 1
    stack[0] = producer[value]
    seen[producer[value]] = stamp
    done = 0
    while done < count:
        n = stack[done]
        done += 1
        total += costs[n]
        for i in range(read_starts[n], read_starts[n + 1]):
            v = reads[i]
            if not present[v] and seen[producer[v]] != stamp and count < NEAR:
                seen[producer[v]] = stamp
                stack[count] = producer[v]
                count += 1
    return total


@njit(cache=True, nogil=True)
def _withdraw(value: Any, candidates: Any, where: Any, count: Any) -> Any:
    """Takes a value from the candidates for eviction, if it is one; returns how many are left."""
    if where[value] < 0:
        return count
    other = candidates[count - 1]
    candidates[where[value]] = other
    where[other] = where[value]
    where[value] = -1
    return count - 1


@njit(cache=True, nogil=True)
def _simulate(
    tables: Any, nbytes: Any, costs: Any, producer: Any, keep: Any, fixed: Any, used_by: Any, factors: Any, limit: Any,
    rule: Any,
) -> Any:  # fmt: skip
    """The order of runs; empty where there is none. ``tables``: of :class:`Work`; ``used_by``: of :func:`_uses`."""
    read_starts, reads, write_starts, writes, place_starts, places = tables
    use_starts, uses = used_by
    count = len(costs)
    failed = np.empty(0, np.int64)
    # Seconds before each operation of a step without recomputation: they measure how far away a next use is.
    begin = np.zeros(count + 1)
    for n in range(count):
        begin[n + 1] = begin[n] + costs[n]
    most = begin[count] * MOST_SECONDS
    capacity = 64 + int(count * 16)
    order = np.empty(capacity, np.int64)
    present = np.zeros(len(nbytes), np.bool_)
    held = np.zeros(len(nbytes), np.int64)  # runs under way that need a value
    touched = np.zeros(len(nbytes))
    next_use = use_starts[:-1].copy()
    candidates = np.empty(len(nbytes), np.int64)  # values that are present and may be evicted
    where = np.full(len(nbytes), -1, np.int64)
    candidate_count = 0
    seen = np.full(count, -1, np.int64)
    stamp = 0
    queue = np.empty(NEAR + 1, np.int64)
    stack = np.empty(count + 1, np.int64)
    at = np.empty(count + 1, np.int64)
    runs = 0
    used = 0
    clock = 0.0
    for step in range(count):
        # Depth first: at the bottom is the step's own operation, above it are those that compute missing operands
        # again. An operand is held from when it is looked at until its reader has run, so that room made for one
        # operand never evicts another.
        depth = 0
        stack[0] = step
        at[0] = read_starts[step]
        while depth >= 0:
            n = stack[depth]
            if at[depth] < read_starts[n + 1]:
                v = reads[at[depth]]
                at[depth] += 1
                held[v] += 1
                touched[v] = clock
                if not present[v]:
                    depth += 1
                    stack[depth] = producer[v]
                    at[depth] = read_starts[producer[v]]
                continue
            # All operands are present: the results need room. The first may take an operand's place if no other run
            # under way and no later step reads it: uses up to this step are over, or counted in ``held``.
            need = 0
            for i in range(write_starts[n], write_starts[n + 1]):
                need += nbytes[writes[i]]
            if write_starts[n] < write_starts[n + 1]:
                for i in range(place_starts[n], place_starts[n + 1]):
                    v = places[i]
                    p = next_use[v]
                    while p < use_starts[v + 1] and uses[p] <= step:
                        p += 1
                    size = nbytes[writes[write_starts[n]]]
                    if held[v] == 1 and p == use_starts[v + 1] and not keep[v] and nbytes[v] >= size:
                        need -= size
                        break
            while used + need > limit:
                # Scores are computed anew for each eviction: what is missing has changed, and with it what others cost.
                # They are the paper's cost / (bytes x staleness), or by the time to the next use in its place.
                chosen = -1
                least = np.inf
                for c in range(candidate_count):
                    v = candidates[c]
                    if held[v] > 0:
                        continue
                    p = next_use[v]
                    # Unlike above the step's own use is still to come. Steps ascend, so the pointer only moves forward.
                    while p < use_starts[v + 1] and uses[p] < step:
                        p += 1
                    next_use[v] = p
                    if p == use_starts[v + 1]:  # nothing else needs it
                        chosen = v
                        break
                    stamp += 1
                    seconds = _missing_seconds(v, read_starts, reads, costs, producer, present, seen, stamp, queue)
                    score = factors[v] * seconds / nbytes[v]
                    if rule == NEXT_USE:
                        score /= max(begin[uses[p]] - begin[step], 1e-12)
                    elif rule == STALENESS:
                        score /= max(clock - touched[v], 1e-12)
                    if score < least:
                        least = score
                        chosen = v
                if chosen < 0:
                    # All that is left is held or fixed: this run and those under way do not fit.
                    return failed
                # The last candidate moves into the gap: constant time, and the order of candidates decides ties only.
                present[chosen] = False
                used -= nbytes[chosen]
                candidate_count -= 1
                other = candidates[candidate_count]
                candidates[where[chosen]] = other
                where[other] = where[chosen]
                where[chosen] = -1
            for i in range(write_starts[n], write_starts[n + 1]):
                v = writes[i]
                # A repeated operation brings all its results back that anything reads, not only the one it runs for:
                # they take no seconds more, and may be evicted at once.
                wanted = held[v] > 0 or keep[v] or n == step
                if not present[v] and (wanted or use_starts[v] < use_starts[v + 1]):
                    present[v] = True
                    used += nbytes[v]
                    touched[v] = clock
                    if not fixed[v] and nbytes[v] > 0:
                        where[v] = candidate_count
                        candidates[candidate_count] = v
                        candidate_count += 1
            if runs == capacity:
                return failed
            order[runs] = n
            runs += 1
            clock += costs[n]
            # Below the memory that suffices, evictions undo each other, and repetition grows without bound.
            if clock > most:
                return failed
            for i in range(read_starts[n], read_starts[n + 1]):
                held[reads[i]] -= 1
            depth -= 1
        # What this step was the last to need is gone.
        for i in range(read_starts[step], read_starts[step + 1]):
            v = reads[i]
            if present[v] and not keep[v] and uses[use_starts[v + 1] - 1] <= step:
                present[v] = False
                used -= nbytes[v]
                candidate_count = _withdraw(v, candidates, where, candidate_count)
        for i in range(write_starts[step], write_starts[step + 1]):
            v = writes[i]
            if present[v] and not keep[v] and use_starts[v] == use_starts[v + 1]:
                present[v] = False
                used -= nbytes[v]
                candidate_count = _withdraw(v, candidates, where, candidate_count)
    return order[:runs]
