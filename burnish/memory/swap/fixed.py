"""Fixed order: the fewest moved bytes of one order of the steps, as an integer program.

Between two uses of a tensor it stays in fast memory or is loaded again: one binary for each gap. A row for each step
holds the gaps over it and what it needs below the capacity. A tensor that is written here and loaded anywhere is stored
once: one variable for each. As exact as Algorithm 3 of one order, and fast for a thousand steps.

Of two gaps one of which lies over the other, is no smaller and saves no more, the outer one is bridged only if the
inner one is: rows that say so keep the solver from plans that are as good as others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic

import numpy as np

from burnish.memory.swap.plan import SwapPlan, replay, write_out
from burnish.memory.swap.policies import least_recently_used
from burnish.memory.swap.problem import SwapProblem
from burnish.search.integer import LinearProgram

METHOD = "fixed order"
UNIT = 1e4  # the largest cost, and the room of a row, handed to the solver, whose tolerances are absolute
SECONDS = 60.0
# Variables: with more, tensors of some hundred bytes beside ones of megabytes keep the solver for minutes.
TO_THE_BYTE = 200
TOLERANCE = 1e-5  # of the moved bytes, where there are more
MOST_COMPARED = 3000  # gaps, of which each is compared with each


@dataclass(frozen=True)
class Gap:
    """The steps between two uses of a tensor, both exclusive."""

    tensor: str
    start: int
    end: int


def gaps(problem: SwapProblem) -> list[Gap]:
    """Every pair of consecutive uses: the step that writes a tensor, if one does, and those that read it."""
    found = []
    for name, readers in problem.readers.items():
        uses = [problem.producer[name], *readers] if name in problem.producer else readers
        found += [Gap(name, a, b) for a, b in pairwise(uses)]
    return found


def fixed(problem: SwapProblem, capacity: int, seconds: float = SECONDS) -> SwapPlan:
    """The plan of the fewest moved bytes in the order of the problem's steps.

    Where more than ``TO_THE_BYTE`` choices are open, the fewest to one part in 10⁵. After ``seconds`` the best plan
    so far is given, whose ``proven`` is False. Raises ParameterError for a capacity in
    which a step does not fit; MissingDependencyError without SciPy.
    """
    problem.require(capacity, METHOD)
    simple = least_recently_used(problem, capacity, drop_dead=True)
    every = gaps(problem)
    rows = crossings(problem, every, capacity)
    closed, proven = _Formulation(problem, every, rows).solve(seconds) if rows else (set[int](), True)
    if closed is None or (not proven and _moved(problem, every, closed) > simple.moved):
        return replace(simple, method=METHOD)
    kept: list[set[str]] = [set() for _ in problem.steps]
    stored: dict[str, bool] = {}
    for index, gap in enumerate(every):
        if index in closed:
            stored[gap.tensor] = gap.tensor in problem.producer
        else:
            for step in range(gap.start + 1, gap.end):
                kept[step].add(gap.tensor)
    actions = write_out(problem, range(len(problem.steps)), kept, stored)
    return replay(problem, capacity, actions, METHOD, proven)


def _moved(problem: SwapProblem, every: Sequence[Gap], closed: Collection[int]) -> int:
    """Bytes that are moved if the ``closed`` gaps are not bridged."""
    size, again = problem.nbytes, {every[i].tensor for i in closed}
    loads = sum(size[every[i].tensor] for i in closed)
    first = sum(size[name] for name, readers in problem.readers.items() if readers and name not in problem.producer)
    return loads + first + sum(size[name] for name in problem.producer if name in again or name in problem.results)


Row = tuple[frozenset[int], int]  # gaps over a step, and the bytes left for them


def crossings(problem: SwapProblem, every: Sequence[Gap], capacity: int) -> list[Row]:
    """Capacity constraints: for each step that cannot hold all gaps over it, these, and the bytes that the step leaves.

    Rows that one close to them implies are left out: going forwards tensors only come, going backwards they only leave.
    """
    over: list[set[int]] = [set() for _ in problem.steps]
    for index, gap in enumerate(every):
        for step in range(gap.start + 1, gap.end):
            over[step].add(index)
    kept: list[Row] = []
    for step, found in enumerate(over):
        room = capacity - problem.own_bytes(step)
        if sum(problem.nbytes[every[i].tensor] for i in found) <= room:
            continue
        while kept and kept[-1][0] <= found and kept[-1][1] >= room:
            kept.pop()
        if not kept or not (found <= kept[-1][0] and room >= kept[-1][1]):
            kept.append((frozenset(found), room))
    return kept


class _Formulation:
    """Which gaps are bridged: a binary for each that can be, and one for each tensor that may have to be stored."""

    def __init__(self, problem: SwapProblem, every: Sequence[Gap], rows: Sequence[Row]) -> None:
        self.problem, self.every, self.rows = problem, every, rows
        self.size = [problem.nbytes[gap.tensor] for gap in every]
        open_gaps = sorted({i for found, _ in rows for i in found})
        self.never = {i for found, room in rows for i in found if self.size[i] > room}
        self.columns = [i for i in open_gaps if i not in self.never]
        self.column = {i: k for k, i in enumerate(self.columns)}
        self.cost = [-float(self.size[i]) for i in self.columns]
        self.saving = [(-c, -c) for c in self.cost]  # bytes that bridging a gap saves, at least and at most
        self.pairs: list[tuple[int, int]] = []  # a gap, and the variable of the store that bridging it may save
        self._stores()
        stores = self.cost[len(self.columns) :]
        self.constant = _moved(problem, every, open_gaps) - sum(stores)  # bytes that are moved where no cost is

    def _stores(self) -> None:
        """Tensors that are stored unless all of their gaps are bridged."""
        problem = self.problem
        surely = {self.every[i].tensor for i in self.never} | problem.results
        unsure: dict[str, list[int]] = {}
        for i in self.columns:
            name = self.every[i].tensor
            if name in problem.producer and name not in surely:
                unsure.setdefault(name, []).append(i)
        for name, found in unsure.items():
            nbytes = float(problem.nbytes[name])
            for i in found:
                self.saving[self.column[i]] = (2 * nbytes if len(found) == 1 else nbytes, 2 * nbytes)
            if len(found) == 1:
                self.cost[self.column[found[0]]] *= 2
            else:
                self.pairs += [(i, len(self.cost)) for i in found]
                self.cost.append(nbytes)

    def solve(self, seconds: float) -> tuple[set[int] | None, bool]:
        """The gaps that are not bridged, or None if none were found in time; and whether that is proven to be best."""
        if not self.columns:
            return self.never, True
        end = monotonic() + seconds
        program = self._program()
        gap = TOLERANCE if len(program) > TO_THE_BYTE else 0.0
        while True:
            found = program.solve(end - monotonic(), gap=gap, largest=UNIT, constant=self.constant)
            if found.values is None:
                return None, False
            stay = {i for i, k in self.column.items() if found.values[k] > 0.5}
            broken = [over & stay for over, room in self.rows if self._bytes(over & stay) > room]
            if not broken:
                return {*self.columns, *self.never} - self._filled(stay), found.optimal
            for together in broken:  # more bytes than fit, within the solver's tolerance: not all of these at once
                program.row({self.column[i]: 1.0 for i in together}, high=len(together) - 1.0)

    def _program(self) -> LinearProgram:
        """All variables and rows."""
        program = LinearProgram()
        for cost in self.cost:
            program.variable(cost)
        for i, store in self.pairs:
            program.row({self.column[i]: 1.0, store: 1.0}, low=1.0)
        for over, room in self.rows:
            if room:
                program.row({self.column[i]: UNIT * self.size[i] / room for i in over if i in self.column}, high=UNIT)
        for inner, outer in self._nested():
            program.row({outer: 1.0, inner: -1.0}, high=0.0)
        return program

    def _nested(self) -> list[tuple[int, int]]:
        """Pairs of columns of which the first is bridged if the second is, without those that others imply.

        A plan that bridges the second alone could bridge the first in its place: it lies over fewer steps, is no
        larger, and saves no less. Of two that are alike in all the earlier is the first.
        """
        count = len(self.columns)
        if count > MOST_COMPARED:
            return []
        low, high = np.full(count, len(self.rows)), np.full(count, -1)
        for r, (over, _) in enumerate(self.rows):
            found = [self.column[i] for i in over if i in self.column]
            low[found] = np.minimum(low[found], r)
            high[found] = r
        size = np.array([self.size[i] for i in self.columns])
        least, most = np.array(self.saving).T
        inside = (low[:, None] >= low) & (high[:, None] <= high) & (size[:, None] <= size) & (least[:, None] >= most)
        inside &= ~(inside.T & np.tri(count, dtype=np.bool_))
        implied = (inside.astype(np.float32) @ inside.astype(np.float32)) > 0
        return [(int(a), int(b)) for a, b in np.argwhere(inside & ~implied)]

    def _filled(self, stay: set[int]) -> set[int]:
        """Greedily bridges further gaps in the room that is left, small ones first; returns all bridged ones."""
        left = [room - self._bytes(over & stay) for over, room in self.rows]
        rows_of: dict[int, list[int]] = {i: [] for i in self.columns if i not in stay}
        for r, (over, _) in enumerate(self.rows):
            for i in over & rows_of.keys():
                rows_of[i].append(r)
        result = {*stay}
        for i in sorted(rows_of, key=lambda i: self.size[i]):
            if all(left[r] >= self.size[i] for r in rows_of[i]):
                result.add(i)
                for r in rows_of[i]:
                    left[r] -= self.size[i]
        return result

    def _bytes(self, found: Collection[int]) -> int:
        return sum(self.size[i] for i in found)
