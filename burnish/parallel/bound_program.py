"""Linear program of a bound: its variables and rows, and the degrees that operations may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from burnish.optional import require
from burnish.parallel.core import PARTS, SPLIT
from burnish.parallel.taskgraph import Problem
from burnish.search.integer import milp

Floats = NDArray[np.float64]
MS = 1e-6  # a program in milliseconds is well scaled


class Splits:
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


@dataclass
class Program:
    """Rows ``low <= sum(coefficient * variable) <= high`` over variables of 0 or more."""

    count: int = 0
    entries: list[tuple[int, int, float]] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    integral: list[int] = field(default_factory=list)

    def variables(self, count: int, integral: bool = False) -> list[int]:
        """Numbers of new variables."""
        first = self.count
        self.count += count
        self.integral += [int(integral)] * count
        return list(range(first, self.count))

    def row(self, terms: Mapping[int, float], low: float, high: float = np.inf) -> None:
        """A row."""
        self.entries += [(len(self.low), variable, x) for variable, x in terms.items()]
        self.low.append(low)
        self.high.append(high)

    def after(self, later: int, earlier: int | None, shares: list[int], times: Floats) -> None:
        """``later`` is at least ``earlier`` and what the shares take."""
        terms = {later: 1.0, **{v: -float(t) * MS for v, t in zip(shares, times, strict=True)}}
        if earlier is not None:
            terms[earlier] = -1.0
        self.row(terms, 0.0)

    def solve(self, variable: int, seconds: float, integer: bool) -> tuple[float, bool]:
        """The least value of a variable, or of an integer program a bound of it; whether it is the optimum."""
        optimize, sparse = require("scipy.optimize", "memory"), require("scipy.sparse", "memory")
        rows, columns, values = zip(*self.entries, strict=True)
        matrix = sparse.csr_matrix((values, (rows, columns)), shape=(len(self.low), self.count))
        cost = np.zeros(self.count)
        cost[variable] = 1.0
        answer = milp(
            cost, "memory", integrality=np.array(self.integral, np.uint8) if integer else None,
            constraints=optimize.LinearConstraint(matrix, self.low, self.high), bounds=optimize.Bounds(0, np.inf),
            options={"time_limit": seconds, "presolve": True},
        )  # fmt: skip
        if not integer:
            return (float(answer.fun), True) if answer.status == 0 else (0.0, False)
        return float(getattr(answer, "mip_dual_bound", None) or 0.0), answer.status == 0
