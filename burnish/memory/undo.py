"""Fewer recomputations in the same memory: runs that only make again what could as well have stayed are taken out."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnish.base.jit import njit
from burnish.memory.work import Ints, Order, Work

ROUNDS = 8  # of taking out, after each of which liveness is found anew


def without_waste(work: Work, order: Order, limit: int) -> list[int]:
    """The order without repeated runs that nothing reads, and without those that memory has room to spare.

    A value that is not made again lives on from its earlier copy; it does where no more than ``limit`` bytes are live
    then. Runs that cost more seconds for the bytes and runs that this takes are tried first.
    """
    found = _read_runs(work, np.asarray(order, np.int64))
    for _ in range(ROUNDS):
        spared = _spared(work, found, limit)
        if not spared.any():
            break
        found = _read_runs(work, found[~spared])
    return [int(n) for n in found]


def _read_runs(work: Work, order: Ints) -> Ints:
    """The order without runs whose results are written again before they are read."""
    read_starts, reads, write_starts, writes, *_ = work.tables
    kept = np.zeros(len(work.nbytes), np.bool_)
    kept[list(work.keep)] = True
    sized = work.rounded > 0
    ever = np.zeros(len(work.nbytes), np.bool_)
    ever[reads] = True
    again = np.array([o.again for o in work.operations], np.bool_)
    return order[_needed(order, read_starts, reads, write_starts, writes, sized & ever, again, kept)]


@njit(cache=True, nogil=True)
def _needed(
    order: Any, read_starts: Any, reads: Any, write_starts: Any, writes: Any, counted: Any, again: Any, needed: Any
) -> Any:
    """Mask of runs that must stay: of operations that run once, or with a ``counted`` result read before its next run.

    ``needed``: the values that are needed at the end; changed.
    """
    stays = np.ones(len(order), np.bool_)
    # Backwards, so that what is taken out needs no operands: runs that only served it go in the same pass.
    for run in range(len(order) - 1, -1, -1):
        n = order[run]
        some, wanted = False, False
        for i in range(write_starts[n], write_starts[n + 1]):
            if counted[writes[i]]:
                some = True
                wanted |= needed[writes[i]]
        if again[n] and some and not wanted:
            stays[run] = False
            continue
        for i in range(write_starts[n], write_starts[n + 1]):
            needed[writes[i]] = False
        for i in range(read_starts[n], read_starts[n + 1]):
            needed[reads[i]] = True
    return stays


def _spared(work: Work, order: Ints, limit: int) -> Any:
    """Mask of runs to take out, found on the liveness of the order as it is."""
    value, _, last, live = work.copies(order)
    _, _, write_starts, _, *_ = work.tables
    born = np.zeros(len(order) + 1, np.int64)
    np.cumsum(write_starts[order + 1] - write_starts[order], out=born[1:])
    sizes = work.rounded[value]
    previous = _previous(value, len(work.nbytes))
    worth = _worth(born, last, previous, sizes, work.costs[order])
    candidates = np.flatnonzero(worth > 0)
    candidates = candidates[np.lexsort((candidates, -worth[candidates]))]
    return _taken_out(candidates, born, last, previous, sizes, live, limit)


@njit(cache=True, nogil=True)
def _previous(value: Any, values: Any) -> Any:
    """Previous copy of the same value, for each copy; -1 for none."""
    previous = np.empty(len(value), np.int64)
    latest = np.full(values, -1, np.int64)
    for copy in range(len(value)):
        previous[copy] = latest[value[copy]]
        latest[value[copy]] = copy
    return previous


@njit(cache=True, nogil=True)
def _worth(born: Any, last: Any, previous: Any, sizes: Any, seconds: Any) -> Any:
    """Worth of removing each run: seconds per byte and run for which values would have to stay; 0 for a needed one."""
    worth = np.zeros(len(seconds))
    for run in range(len(seconds)):
        span, some, all_before = 0.0, False, True
        for c in range(born[run], born[run + 1]):
            if last[c] > run:
                some = True
                if previous[c] < 0:
                    all_before = False
                else:
                    span += float(sizes[c]) * (run - last[previous[c]])
        if some and all_before:
            worth[run] = max(seconds[run], 1e-300) / max(span, 1.0)
    return worth


@njit(cache=True, nogil=True)
def _taken_out(candidates: Any, born: Any, last: Any, previous: Any, sizes: Any, live: Any, limit: Any) -> Any:
    """Mask of runs that are taken out, in the order of ``candidates``; ``live`` is changed."""
    # Merged copies of a value form a forest, as in union-find: ``home`` leads to the copy that is made, whose ``end``
    # is the last read of all of them. Live bytes are updated on the way, so that each run is judged by what is left.
    home = np.arange(len(last))  # the copy that stands for another one that is not made
    end = last.copy()
    removed = np.zeros(len(born) - 1, np.bool_)
    for run in candidates:
        low = run + 1
        for c in range(born[run], born[run + 1]):
            if last[c] > run:
                source = previous[c]
                while home[source] != source:
                    source = home[source]
                home[previous[c]] = source
                low = min(low, end[source] + 1)
        # Without the run its values live on from the ends of their earlier copies, and what is live must stay within
        # the limit up to the run. Copies that reach further than that are in ``live`` already.
        fits = True
        for at in range(low, run + 1):
            total = live[at]
            for c in range(born[run], born[run + 1]):
                if last[c] > run and end[home[previous[c]]] < at < run:
                    total += sizes[c]
            if total > limit:
                fits = False
                break
        if not fits:
            continue
        for c in range(born[run], born[run + 1]):
            if last[c] > run:
                source = home[previous[c]]
                for at in range(end[source] + 1, run):
                    live[at] += sizes[c]
                home[c] = source
        for c in range(born[run], born[run + 1]):
            if last[c] > run:
                end[home[c]] = max(end[home[c]], end[c])
        removed[run] = True
    return removed
