"""Timing of the accelerator: units run decoupled, each its instructions in order, and wait for each other by tokens.

Cycle-approximate. An instruction of the core takes ``pipeline`` cycles and one for each product or vector; a transfer
the DRAM's latency, and its bytes in whole bursts at the DRAM's rate, for which it waits while another unit moves data.
A unit begins an instruction when the one before has ended and the tokens it takes are there; it gives tokens at its
end. The fetching of instructions is taken to be hidden.
"""

from __future__ import annotations

import numpy as np

from burnish.base.jit import njit
from burnish.machines.vdla.units import (
    DEADLOCK,
    FIRST,
    KIND,
    OK,
    POP_PREV,
    PUSH_PREV,
    UNIT,
    UnitState,
    alu,
    gemm,
    load,
    store,
)

LATENCY, RATE, BURST, PIPELINE, DEPTH = range(5)  # of the array ``clocks``: see Config
BUSY, BYTES, PRODUCTS, VECTORS, END = 0, 3, 4, 5, 6  # of the array ``counts``; BUSY + unit


@njit(cache=True)
def _queue(unit: int, previous: bool, gives: bool) -> int:
    """The dependence queue between a unit and its neighbour: load > compute, compute > load, … store > compute."""
    pair = unit - 1 if previous else unit
    forwards = gives != previous
    return 2 * pair + (0 if forwards else 1)


@njit(cache=True)
def _transfer(row: np.ndarray, start: int, bus: int, clocks: np.ndarray, entry_bytes: np.ndarray) -> tuple[int, int]:
    """(cycle at which a transfer ends, bytes moved): rows that follow each other are one."""
    rows, columns, stride = row[FIRST + 3], row[FIRST + 4], row[FIRST + 5]
    if stride == columns:
        rows, columns = 1, rows * columns
    burst = clocks[BURST]
    moved = rows * ((columns * entry_bytes[row[FIRST]] + burst - 1) // burst) * burst
    return max(start + clocks[LATENCY], bus) + (moved + clocks[RATE] - 1) // clocks[RATE], moved


@njit(cache=True)
def _ready(row: np.ndarray, start: int, given: np.ndarray, taken: np.ndarray, times: np.ndarray, depth: int) -> int:
    """The cycle at which an instruction may begin whose unit is free at ``start``; -1 while tokens, or room for those
    that it gives, are missing.
    """
    unit = row[UNIT]
    for flag in range(2):
        if row[POP_PREV + flag]:
            q = _queue(unit, flag == 0, False)
            if taken[q] == given[q]:
                return -1
            start = max(start, times[q, taken[q]])
        if row[PUSH_PREV + flag]:
            q = _queue(unit, flag == 0, True)
            if given[q] - taken[q] >= depth:
                return -1
    return start


@njit(cache=True)
def _execute(
    s: UnitState, row: np.ndarray, number: int, begin: int, bus: int, clocks: np.ndarray, entry_bytes: np.ndarray,
    counts: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """(fault, the cycle at which it ends) of an instruction that begins now; notes what it does in ``counts``."""
    if row[KIND] <= 1:
        end, moved = _transfer(row, begin, bus, clocks, entry_bytes)
        counts[BYTES] += moved
        return (load(s, row, number, entry_bytes) if row[KIND] == 0 else store(s, row, number, entry_bytes)), end
    if row[KIND] > 3:
        return OK, begin + 1
    first = FIRST + 1 if row[KIND] == 2 else FIRST + 3
    work = (row[first + 1] - row[first]) * row[first + 2] * row[first + 3]
    counts[PRODUCTS if row[KIND] == 2 and not row[FIRST] else VECTORS] += work
    return (gemm(s, row, number) if row[KIND] == 2 else alu(s, row, number)), begin + clocks[PIPELINE] + work


@njit(cache=True)
def simulate(
    s: UnitState, table: np.ndarray, order: np.ndarray, length: np.ndarray, clocks: np.ndarray, entry_bytes: np.ndarray,
    counts: np.ndarray, spans: np.ndarray,
) -> tuple[int, int]:  # fmt: skip
    """Runs decoded instructions; (fault, the instruction at which it was found).

    ``table``: a row each. ``order`` [unit, position]: the instructions of each unit, ``length`` of them. ``counts``
    receives what was done, ``spans`` [instruction, 2] when each began and ended.
    """
    total = table.shape[0]
    given, taken = np.zeros(4, np.int64), np.zeros(4, np.int64)
    times, carried = np.zeros((4, total + 1), np.int64), np.zeros((4, total + 1, 3), np.int64)
    free, at, bus = np.zeros(3, np.int64), np.zeros(3, np.int64), np.int64(0)
    while True:
        chosen, begin, waiting = -1, np.int64(0), -1
        for unit in range(3):
            if at[unit] < length[unit]:
                i = order[unit, at[unit]]
                start = _ready(table[i], free[unit], given, taken, times, clocks[DEPTH])
                if start < 0:
                    waiting = i if waiting < 0 else min(waiting, i)
                elif chosen < 0 or start < begin:
                    chosen, begin = unit, start
        if chosen < 0:
            return (OK, 0) if waiting < 0 else (DEADLOCK, waiting)
        i, number = order[chosen, at[chosen]], at[chosen] + 1
        row = table[i]
        for flag in range(2):
            if row[POP_PREV + flag]:
                q = _queue(chosen, flag == 0, False)
                for unit in range(3):
                    s.known[chosen, unit] = max(s.known[chosen, unit], carried[q, taken[q], unit])
                taken[q] += 1
        fault, end = _execute(s, row, number, begin, bus, clocks, entry_bytes, counts)
        if fault:
            return fault, i
        if row[KIND] <= 1:
            bus = end
        for flag in range(2):
            if row[PUSH_PREV + flag]:
                q = _queue(chosen, flag == 0, True)
                times[q, given[q]] = end
                carried[q, given[q]] = s.known[chosen]
                carried[q, given[q], chosen] = number
                given[q] += 1
        spans[i, 0], spans[i, 1] = begin, end
        counts[BUSY + chosen] += end - begin
        counts[END] = max(counts[END], end)
        free[chosen] = end
        at[chosen] += 1
