"""Fixed order: the fewest moved bytes of one order of the steps, as an integer program.

Between two uses of a tensor it stays in fast memory or is loaded again: one binary for each gap. A row for each step
holds the gaps over it and what it needs below the capacity. A tensor that is written here and loaded anywhere is stored
once: one binary for each. As exact as Algorithm 3 of one order, and fast for a thousand steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from burnish.errors import ParameterError
from burnish.memory.swap.plan import SwapPlan, replay, write_out
from burnish.memory.swap.problem import SwapProblem
from burnish.optional import require

SECONDS = 60.0
COST_UNIT = 1e4  # the largest cost handed to the solver, whose tolerances are absolute


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

    After ``seconds`` the best plan so far is given, whose ``proven`` is False. Raises ParameterError for a capacity in
    which a step does not fit, or if no plan was found in time; MissingDependencyError without SciPy.
    """
    problem.require(capacity, "fixed order")
    every = gaps(problem)
    rows = crossings(problem, every, capacity)
    saved = [name for name in problem.producer if problem.readers[name] and name not in problem.results]
    stays, proven = _solve(problem, every, saved, rows, seconds)
    kept: list[set[str]] = [set() for _ in problem.steps]
    stored: dict[str, bool] = {}
    for gap, stay in zip(every, stays, strict=True):
        if not stay:
            stored[gap.tensor] = gap.tensor in problem.producer
        else:
            for step in range(gap.start + 1, gap.end):
                kept[step].add(gap.tensor)
    actions = write_out(problem, range(len(problem.steps)), kept, stored)
    return replay(problem, capacity, actions, "fixed order", proven)


Row = tuple[list[int], int]  # gaps over a step, and the bytes left for them


def crossings(problem: SwapProblem, every: list[Gap], capacity: int) -> list[Row]:
    """For each step that cannot hold all gaps over it: these, and the bytes beside what the step needs.

    Rows that another one implies are left out.
    """
    over: list[list[int]] = [[] for _ in problem.steps]
    for index, gap in enumerate(every):
        for step in range(gap.start + 1, gap.end):
            over[step].append(index)
    least: dict[tuple[int, ...], int] = {}
    for step, found in enumerate(over):
        room = capacity - problem.own_bytes(step)
        if sum(problem.nbytes[every[i].tensor] for i in found) > room:
            least[tuple(found)] = min(room, least.get(tuple(found), room))
    return [(list(found), room) for found, room in least.items()]


def _solve(
    problem: SwapProblem, every: list[Gap], saved: list[str], rows: list[Row], seconds: float
) -> tuple[list[bool], bool]:
    """Whether each gap is bridged, and whether that is proven to be best."""
    if not rows:
        return [True] * len(every), True
    size = [problem.nbytes[gap.tensor] for gap in every]
    store = {name: len(every) + i for i, name in enumerate(saved)}
    cost = np.array([-float(s) for s in size] + [float(problem.nbytes[name]) for name in saved])
    entries = Rows(len(cost))
    for found, room in rows:
        entries.at_most({i: size[i] / room for i in found if size[i] <= room} if room else {}, 1.0)
    upper = np.ones(len(cost))
    for found, room in rows:
        upper[[i for i in found if size[i] > room]] = 0
    for i, gap in enumerate(every):
        if gap.tensor in store:
            entries.at_most({i: -1.0, store[gap.tensor]: -1.0}, -1.0)
    while True:
        values, proven = solve(cost, entries, upper, seconds, "fixed order")
        stays = [bool(v) for v in values[: len(every)]]
        broken = [
            [i for i in found if stays[i]] for found, room in rows if sum(size[i] for i in found if stays[i]) > room
        ]
        if not broken:
            return stays, proven
        for found in broken:  # more bytes than fit, by less than the solver's tolerance: not all of these together
            entries.at_most(dict.fromkeys(found, 1.0), len(found) - 1.0)


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


def solve(
    cost: np.ndarray, rows: Rows, upper: np.ndarray, seconds: float, method: str, integral: np.ndarray | None = None
) -> tuple[np.ndarray, bool]:
    """Values of binaries (where ``integral`` is 1) of least cost, and whether that is proven.

    Raises ParameterError if none was found in ``seconds``.
    """
    optimize = require("scipy.optimize", "memory")
    largest = float(np.abs(cost).max()) or 1.0
    found = optimize.milp(
        cost * (COST_UNIT / largest),
        constraints=rows.constraint(),
        bounds=optimize.Bounds(0, upper),
        integrality=np.ones(len(cost)) if integral is None else integral,
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise ParameterError(f"{method}: seconds: no plan was found in {seconds} s; allowed: more, or a greedy plan")
    return np.round(found.x), found.status == 0
