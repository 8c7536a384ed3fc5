"""Liveness of an order in which operations may run again: which copies there are, and how many bytes at each run."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnish.base.jit import njit


@njit(cache=True, nogil=True)
def copies_of(order: Any, tables: Any, nbytes: Any, keep: Any) -> tuple[Any, Any, Any, Any]:
    """Live ranges of copies: value, run that writes, last run that reads; and the bytes that are live at each run.

    ``tables``: those of ``Work``. What a run writes in place of an operand that dies there is counted once.
    """
    read_starts, reads, write_starts, writes, place_starts, places = tables
    count = 0
    for number in order:
        count += write_starts[number + 1] - write_starts[number]
    value = np.empty(count, np.int64)
    first = np.empty(count, np.int64)
    last = np.empty(count, np.int64)
    latest = np.full(len(nbytes), -1, np.int64)
    born = 0
    # A read extends the latest copy of its value: the order decides which one, where an operation runs again.
    for run, number in enumerate(order):
        for i in range(read_starts[number], read_starts[number + 1]):
            last[latest[reads[i]]] = run
        for i in range(write_starts[number], write_starts[number + 1]):
            value[born] = writes[i]
            first[born] = run
            last[born] = run
            latest[writes[i]] = born
            born += 1
    for v in range(len(nbytes)):
        if keep[v] and latest[v] >= 0:
            last[latest[v]] = len(order) - 1
    # Sums of births and deaths give the live bytes of all runs in one pass, without a set of live copies.
    change = np.zeros(len(order) + 1, np.int64)
    for c in range(count):
        change[first[c]] += nbytes[value[c]]
        change[last[c] + 1] -= nbytes[value[c]]
    live = np.empty(len(order), np.int64)
    total = 0
    for run in range(len(order)):
        total += change[run]
        live[run] = total
    # The same pass again, now that the last reads are known: an operand that dies in a run is one whose last read is
    # that run. Only the first result can take a place, so one operand at most counts.
    latest[:] = -1
    born = 0
    for run, number in enumerate(order):
        if write_starts[number] < write_starts[number + 1]:
            size = nbytes[writes[write_starts[number]]]
            for i in range(place_starts[number], place_starts[number + 1]):
                c = latest[places[i]]
                if c >= 0 and last[c] == run and first[c] < run and nbytes[places[i]] >= size:
                    live[run] -= size
                    break
        for i in range(write_starts[number], write_starts[number + 1]):
            latest[writes[i]] = born
            born += 1
    return value, first, last, live
