"""Integer programs for HiGHS: rows of binaries, costs and constants in any unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.optional import require
from burnish.search.integer import milp

UNIT = 1e4  # the largest cost, and the room of a row, handed to the solver, whose tolerances are absolute


def load_solver() -> None:
    """Imports the solver: its some tens of megabytes are in main memory before what is left for tensors is measured.

    Raises MissingDependencyError.
    """
    require("scipy.optimize", "memory")
    require("scipy.sparse", "memory")


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
        """The rows for SciPy, and one variable more that is in none of them."""
        optimize, sparse = require("scipy.optimize", "memory"), require("scipy.sparse", "memory")
        shape = len(self.bounds), self.count + 1
        matrix = sparse.csr_array((self.values, (self.rows, self.columns)), shape=shape)
        return optimize.LinearConstraint(matrix, -np.inf, self.bounds)


@dataclass(frozen=True, eq=False)
class Answer:
    """Values of variables, None if none were found in time; and whether it is proven that none cost less."""

    values: np.ndarray | None
    proven: bool


def solve(
    cost: np.ndarray, rows: Rows, seconds: float, integral: np.ndarray, gap: float, constant: float = 0.0
) -> Answer:
    """Values from 0 to 1 of least ``cost``, whole numbers where ``integral`` is 1.

    ``gap``: how far from the least it may be, as a part of the cost, to which ``constant`` is added.
    """
    optimize = require("scipy.optimize", "memory")
    scale = UNIT / (float(np.abs(cost).max(initial=0.0)) or 1.0)
    one = np.zeros(len(cost) + 1)  # the last variable, which stands for the constant, is 1
    one[-1] = 1.0
    found = milp(
        np.append(cost, constant) * scale, "memory", constraints=rows.constraint(), bounds=optimize.Bounds(one, 1),
        integrality=np.append(integral, 0), options={"time_limit": max(seconds, 0.0), "mip_rel_gap": gap},
    )  # fmt: skip
    return Answer(None if found.x is None else found.x[:-1], found.status == 0)
