"""Linear program of a bound: its rows, and the degrees that operations may take."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from burnish.parallel.simulate.core import PARTS, SPLIT
from burnish.parallel.simulate.taskgraph import Problem
from burnish.search.integer import LinearProgram

Floats = NDArray[np.float64]
MS = 1e-6  # a program in milliseconds is well scaled


class DegreeChoices:
    """The degrees that each operation may take, with the least times of a part over kinds of devices."""

    def __init__(self, problem: Problem) -> None:
        t, space = problem.tables, problem.space
        self.numbers: list[NDArray[np.int64]] = []
        self.parts: list[Floats] = []
        known: dict[int, tuple[NDArray[np.int64], Floats]] = {}
        for i in range(len(space.first)):
            first = int(space.first[i])
            if first not in known:
                own = np.arange(first, first + int(space.count[i]))
                numbers, at = np.unique(t.configurations[own, SPLIT], return_index=True)
                known[first] = numbers.astype(np.int64), t.configurations[own[at], PARTS].astype(np.float64)
            self.numbers.append(known[first][0])
            self.parts.append(known[first][1])
        used = np.unique(t.kind)
        self.forward = t.time[:, 0][:, used].min(axis=1).astype(np.float64)
        self.backward = t.time[:, 1][:, used].min(axis=1).astype(np.float64)

    def work(self, i: int) -> Floats:
        """Nanoseconds of all parts of an operation, by its degrees."""
        own = self.numbers[i]
        found: Floats = (self.forward[own] + self.backward[own]) * self.parts[i]
        return found


def at_least_after(program: LinearProgram, later: int, earlier: int | None, shares: list[int], times: Floats) -> None:
    """Adds the row that ``later`` is at least ``earlier`` and what the shares take."""
    terms = {later: 1.0, **{v: -float(t) * MS for v, t in zip(shares, times, strict=True)}}
    if earlier is not None:
        terms[earlier] = -1.0
    program.row(terms, 0.0)


def moments(program: LinearProgram, count: int) -> list[int]:
    """New variables of 0 or more milliseconds."""
    return program.variables(count, integer=False, upper=np.inf)
