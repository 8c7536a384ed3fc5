"""Fewer recomputations in the same memory: runs that only make again what could as well have stayed are taken out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from burnish.memory.work import Order, Work

ROUNDS = 8  # of taking out, after each of which liveness is found anew


def without_waste(work: Work, order: Order, limit: int) -> list[int]:
    """The order without repeated runs that nothing reads, and without those that memory has room to spare.

    A value that is not made again lives on from its earlier copy; it does where no more than ``limit`` bytes are live
    then. Runs that cost more seconds for the bytes and runs that this takes are tried first.
    """
    order = _read_runs(work, order)
    for _ in range(ROUNDS):
        removed = _spared(work, order, limit)
        if not removed:
            break
        order = _read_runs(work, [n for run, n in enumerate(order) if run not in removed])
    return order


def _read_runs(work: Work, order: Order) -> list[int]:
    """The order without runs whose results are written again before they are read."""
    needed = set(work.keep)
    read = {v for operation in work.operations for v in operation.reads}
    result = []
    for n in reversed(order):
        operation = work.operations[n]
        sized = [v for v in operation.writes if work.nbytes[v] and v in read]
        if operation.again and sized and not needed.intersection(sized):
            continue
        needed.difference_update(operation.writes)
        needed.update(operation.reads)
        result.append(n)
    return result[::-1]


def _spared(work: Work, order: Sequence[int], limit: int) -> set[int]:
    """The runs to take out, found on the liveness of the order as it is."""
    value, _, last, live = work.copies(order)
    born = np.concatenate([[0], np.cumsum([len(work.operations[n].writes) for n in order])])
    previous = np.full(len(value), -1, np.int64)
    latest: dict[int, int] = {}
    for copy, v in enumerate(value.tolist()):
        previous[copy] = latest.get(v, -1)
        latest[v] = copy
    candidates = []
    for run, n in enumerate(order):
        copies = [c for c in range(born[run], born[run + 1]) if last[c] > run]
        if copies and all(previous[c] >= 0 for c in copies):
            span = sum(work.rounded[value[c]] * (run - last[previous[c]]) for c in copies)
            candidates.append((-work.operations[n].seconds / max(float(span), 1.0), run, copies))
    home = np.arange(len(value))  # the copy that stands for another one that is not made
    end = last.copy()
    removed: set[int] = set()
    for _, run, copies in sorted(candidates):
        stretches = []
        for c in copies:
            source = _home(home, previous[c])
            stretches.append((source, int(end[source]) + 1, run, int(work.rounded[value[c]])))
        added = np.zeros(run - min(begin for _, begin, _, _ in stretches) + 1 if stretches else 0, np.int64)
        low = run + 1 - len(added)
        for _, begin, _, nbytes in stretches:
            added[max(0, begin - low) : run - low] += nbytes
        if len(added) > 0 and (live[low : run + 1] + added).max() > limit:
            continue
        live[low : run + 1] += added
        for c, (source, *_rest) in zip(copies, stretches, strict=True):
            home[c] = source
            end[source] = max(end[source], end[c])
        removed.add(run)
    return removed


def _home(home: np.ndarray, copy: int) -> int:
    while home[copy] != copy:
        copy = home[copy]
    return int(copy)
