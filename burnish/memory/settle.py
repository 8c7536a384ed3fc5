"""Orders in which what updates a state waits until all others have used the old one for the last time."""

from __future__ import annotations

from typing import Any

import numpy as np

from burnish.base.jit import njit


@njit(cache=True, nogil=True)
def settled(order: Any, read_starts: Any, reads: Any, producer: Any, after_starts: Any, after: Any) -> Any:
    """The order, with operations put off that others (``after``) may not run behind until these have run for the last
    time, and so what reads their results.

    ``reads`` and ``after`` of operation n begin at its place in ``read_starts`` and ``after_starts``; ``producer``: of
    each value the operation that writes it, -1 for none.
    """
    left = np.zeros(len(read_starts) - 1, np.int64)
    for n in order:
        left[n] += 1
    result = np.empty(len(order), np.int64)
    held = np.empty(len(order), np.int64)
    late = np.zeros(len(left), np.bool_)
    done = waiting = 0
    for n in order:
        if not _is_free(n, left, late, read_starts, reads, producer, after_starts, after):
            held[waiting] = n
            waiting += 1
            late[n] = True
            continue
        result[done] = n
        done += 1
        left[n] -= 1
        i = 0
        while i < waiting:
            m = held[i]
            if not _is_free(m, left, late, read_starts, reads, producer, after_starts, after):
                i += 1
                continue
            waiting -= 1
            for j in range(i, waiting):
                held[j] = held[j + 1]
            late[m] = False
            result[done] = m
            done += 1
            left[m] -= 1
            i = 0
    result[done:] = held[:waiting]
    return result


@njit(cache=True, nogil=True)
def _is_free(
    n: Any, left: Any, late: Any, read_starts: Any, reads: Any, producer: Any, after_starts: Any, after: Any
) -> Any:
    """Whether an operation may run: no other must come before it any more."""
    for i in range(after_starts[n], after_starts[n + 1]):
        if left[after[i]] > 0:
            return False
    for i in range(read_starts[n], read_starts[n + 1]):
        if producer[reads[i]] >= 0 and late[producer[reads[i]]]:
            return False
    return True
