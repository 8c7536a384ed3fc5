"""Fixed order: the fewest moved bytes of one order of the steps, as an integer program.

Between two uses of a tensor it stays in fast memory or is loaded again: one binary for each gap. A row for each step
holds the gaps over it and what it needs below the capacity. A tensor that is written here and loaded anywhere is stored
once: one binary for each. As exact as Algorithm 3 of one order, and fast for a thousand steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from burnish.memory.swap.plan import SwapPlan, replay, write_out
from burnish.memory.swap.policies import least_recently_used
from burnish.memory.swap.problem import SwapProblem
from burnish.optional import require

METHOD = "fixed order"
SECONDS = 60.0
UNIT = 1e4  # the largest cost, and the room of a row, handed to the solver, whose tolerances are absolute
TO_THE_BYTE = (
    200  # variables: above, tensors of some hundred bytes beside ones of megabytes keep the solver for minutes
)
TOLERANCE = 1e-5  # of the moved bytes, above


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
    every = gaps(problem)
    rows = crossings(problem, every, capacity)
    open_gaps = sorted({i for found, _ in rows for i in found})
    stays = dict.fromkeys(range(len(every)), True)
    closed, proven = _solve(problem, every, open_gaps, rows, seconds)
    if closed is None:
        return replace(least_recently_used(problem, capacity, drop_dead=True), method=METHOD)
    stays.update(dict.fromkeys(closed, False))
    kept: list[set[str]] = [set() for _ in problem.steps]
    stored: dict[str, bool] = {}
    for gap, stay in zip(every, stays.values(), strict=True):
        if not stay:
            stored[gap.tensor] = gap.tensor in problem.producer
        else:
            for step in range(gap.start + 1, gap.end):
                kept[step].add(gap.tensor)
    actions = write_out(problem, range(len(problem.steps)), kept, stored)
    return replay(problem, capacity, actions, METHOD, proven)


Row = tuple[frozenset[int], int]  # gaps over a step, and the bytes left for them


def crossings(problem: SwapProblem, every: list[Gap], capacity: int) -> list[Row]:
    """For each step that cannot hold all gaps over it: these, and the bytes beside what the step needs.

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


def _solve(
    problem: SwapProblem, every: list[Gap], open_gaps: list[int], rows: list[Row], seconds: float
) -> tuple[list[int] | None, bool]:
    """The gaps that are not bridged, or None if nothing was found in time; and whether that is proven to be best."""
    if not rows:
        return [], True
    size = [problem.nbytes[gap.tensor] for gap in every]
    never = {i for found, room in rows for i in found if size[i] > room}
    column = {i: k for k, i in enumerate(i for i in open_gaps if i not in never)}
    saved = {every[i].tensor for i in never} | problem.results | (problem.nbytes.keys() - problem.producer.keys())
    unsure: dict[str, list[int]] = {}  # tensors that are stored unless all of these gaps are bridged
    for i in column:
        if every[i].tensor not in saved:
            unsure.setdefault(every[i].tensor, []).append(i)
    cost = [-float(size[i]) for i in column]
    pairs = []
    for name, found in unsure.items():
        if len(found) == 1:
            cost[column[found[0]]] *= 2
        else:
            pairs += [(i, len(cost)) for i in found]
            cost.append(float(problem.nbytes[name]))
    entries = Rows(len(cost))
    for i, store in pairs:
        entries.at_most({column[i]: -1.0, store: -1.0}, -1.0)
    for over, room in rows:
        if room:
            entries.at_most({column[i]: UNIT * size[i] / room for i in over if i in column}, UNIT)
    if not cost:  # no gap fits
        return open_gaps, True
    while True:
        values, proven = solve(np.array(cost), entries, seconds)
        if values is None:
            return None, False
        stay = {i for i, k in column.items() if values[k]}
        broken = [found & stay for found, room in rows if sum(size[i] for i in found & stay) > room]
        if not broken:
            return [i for i in open_gaps if i not in stay], proven
        for together in broken:  # more bytes than fit, by less than the solver's tolerance: not all of these at once
            entries.at_most({column[i]: 1.0 for i in together}, len(together) - 1.0)


class Rows:
    """Rows of an integer program, each ``sum(coefficient * variable) <= bound``, for ``count`` variables."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.bounds: list[float] = []

    def at_most(self, coefficients: dict[int, float], bound: float) -> None:
        """Adds a row."""
        self.rows += [len(self.bounds)] * len(coefficients)
        self.columns += coefficients.keys()
        self.values += coefficients.values()
        self.bounds.append(bound)

    def constraint(self) -> Any:
        """The rows for SciPy."""
        optimize, sparse = require("scipy.optimize", "memory"), require("scipy.sparse", "memory")
        shape = len(self.bounds), self.count
        matrix = sparse.csr_array((self.values, (self.rows, self.columns)), shape=shape)
        return optimize.LinearConstraint(matrix, -np.inf, self.bounds)


def load_solver() -> None:
    """Imports the solver: its some tens of megabytes are in main memory before what is left for tensors is measured.

    Raises MissingDependencyError.
    """
    require("scipy.optimize", "memory")
    require("scipy.sparse", "memory")


def solve(
    cost: np.ndarray, rows: Rows, seconds: float, integral: np.ndarray | None = None
) -> tuple[np.ndarray | None, bool]:
    """Values of binaries (where ``integral`` is 1) of least cost, None if none were found; and whether it is proven."""
    optimize = require("scipy.optimize", "memory")
    largest = float(np.abs(cost).max(initial=0.0)) or 1.0
    found = optimize.milp(
        cost * (UNIT / largest),
        constraints=rows.constraint(),
        bounds=optimize.Bounds(0, 1),
        integrality=np.ones(len(cost)) if integral is None else integral,
        options={"time_limit": seconds, "mip_rel_gap": TOLERANCE if len(cost) > TO_THE_BYTE else 0.0},
    )
    return (None, False) if found.x is None else (np.round(found.x), found.status == 0)
