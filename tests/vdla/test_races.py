"""What the simulator's units note of accesses, against its definition: every access of another unit that may matter."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.machines.vdla.units import (
    ACC,
    FIRST,
    OK,
    OUT_OF_RANGE,
    READ_RACE,
    UNIT,
    UNWRITTEN,
    WRITE_RACE,
    UnitState,
    positions,
    reads,
    store,
    writes,
)  # fmt: skip

ENTRIES = 3


def state() -> UnitState:
    """Three entries of each of four memories, that nobody has touched."""
    return UnitState(
        np.zeros((ENTRIES, 3), np.int64), np.zeros((ENTRIES, 4, 4), np.int8), np.zeros((ENTRIES, 4), np.int8),
        np.zeros((ENTRIES, 4), np.int32), np.zeros(64, np.uint8), np.full((4, ENTRIES, 2), -1, np.int64),
        np.zeros((4, ENTRIES, 3), np.int64), np.zeros((3, 3), np.int64), np.full(4, ENTRIES, np.int64),
        np.array([11, 11]), np.zeros(2, np.int64),
    )  # fmt: skip


class Definition:
    """All accesses of one memory so far: who, its instruction's number, which entry, and whether it writes."""

    def __init__(self) -> None:
        self.accesses: list[tuple[int, int, int, bool]] = []

    def access(self, known: np.ndarray, entry: int, unit: int, number: int, read: bool, write: bool) -> int:
        if not 0 <= entry < ENTRIES:
            return OUT_OF_RANGE
        here = [a for a in self.accesses if a[2] == entry]
        unordered = [a for a in here if a[0] != unit and known[unit, a[0]] < a[1]]
        written = [a for a in here if a[3]]
        if read and not written:
            return UNWRITTEN
        if read and written[-1] in unordered:
            return READ_RACE
        if write and (any(not a[3] for a in unordered) or (written and written[-1] in unordered)):
            return WRITE_RACE
        self.accesses += [(unit, number, entry, False)] * read + [(unit, number, entry, True)] * write
        return OK


@pytest.mark.parametrize("seed", range(40))
def test_accesses_that_no_token_orders_are_faults(seed: int) -> None:
    """Reads, writes and both, through all three functions, until the first fault; tokens come and go."""
    rng = np.random.default_rng(seed)
    s, definition = state(), Definition()
    numbers = [0, 0, 0]
    found = wanted = OK
    while found == wanted == OK and sum(numbers) < 60:
        unit = int(rng.integers(3))
        numbers[unit] += 1
        for other in range(3):  # a token from another unit, more often than not
            if rng.random() < 0.8:
                s.known[unit, other] = numbers[other]
        entry, number = int(rng.integers(ENTRIES + (rng.random() < 0.05))), numbers[unit]
        kind = rng.choice(["read", "write", "positions"])
        read, write = (bool(rng.integers(2)), True) if kind == "positions" else (kind == "read", kind == "write")
        if sum(numbers) <= ENTRIES:
            entry, kind, read, write = sum(numbers) - 1, "write", False, True
        wanted = definition.access(s.known, entry, unit, number, read, write)
        if kind == "positions":
            found = positions(s, ACC, entry, 1, 1, 0, 0, unit, number, read, write)
        else:
            found = (reads if kind == "read" else writes)(s, ACC, entry, unit, number)
    assert found == wanted
    if wanted:
        assert s.fault.tolist() == [ACC, entry]


@pytest.mark.parametrize("call", ["writes", "positions"])
@pytest.mark.parametrize(("known", "fault"), [(4, WRITE_RACE), (5, OK)])
def test_a_write_waits_for_reads_of_other_units(call: str, known: int, fault: int) -> None:
    """Unit 0 writes, unit 1 reads with its instruction 5, and unit 0 writes again."""
    s = state()
    s.known[1, 0], s.known[0, 1] = 1, known
    assert writes(s, ACC, 2, 0, 1) == OK
    assert reads(s, ACC, 2, 1, 5) == OK
    again = writes(s, ACC, 2, 0, 2) if call == "writes" else positions(s, ACC, 2, 1, 1, 0, 0, 0, 2, False, True)
    assert again == fault


@pytest.mark.parametrize(("known", "fault"), [(2, READ_RACE), (3, OK)])
def test_a_store_waits_for_who_has_written(known: int, fault: int) -> None:
    s = state()
    row = np.zeros(FIRST + 10, np.int64)
    row[UNIT] = 2
    row[FIRST : FIRST + 6] = ACC, 0, 0, 1, 2, 2
    for entry, number in ((0, 1), (1, 3)):
        assert writes(s, ACC, entry, 1, number) == OK
    s.known[2, 1] = known
    assert store(s, row, 1, np.array([4, 16, 4, 16, 4])) == fault
    assert fault == OK or s.fault.tolist() == [ACC, 1]
