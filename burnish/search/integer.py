"""Mixed integer linear programming by HiGHS (SciPy), with the solver's logging kept off stdout."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.base.optional import require

STDOUT, STDERR = 1, 2

_lock = threading.Lock()
_solving: list[int] = []  # one duplicate of stdout's descriptor for each solve under way


@dataclass(frozen=True, eq=False)
class Solution:
    """Solution of an integer program, in the units of its costs.

    ``values``: of the variables, None if none were found in time. ``cost``: theirs, with the constant; infinite
    without values. ``bound``: no solution costs less. ``optimal``: proven to be the best; ``infeasible``: proven that
    there is none.
    """

    values: np.ndarray | None
    cost: float
    bound: float
    optimal: bool
    infeasible: bool


class LinearProgram:
    """Mixed integer linear program: least sum of costs, subject to rows ``low <= sum(coefficient * variable) <= high``.

    Variables are numbered as they come, and are 0 or more. ``extra``: the package extra that installs SciPy. Rows may
    be added after a solution (cutting planes).
    """

    def __init__(self, extra: str = "memory") -> None:
        self.extra = extra
        self.costs: list[float] = []
        self._upper: list[float] = []
        self._integer: list[bool] = []
        self._entries: tuple[list[int], list[int], list[float]] = [], [], []  # rows, variables, coefficients
        self._low: list[float] = []
        self._high: list[float] = []

    def __len__(self) -> int:
        """The number of variables."""
        return len(self.costs)

    def variable(self, cost: float = 0.0, *, integer: bool = True, upper: float = 1.0) -> int:
        """A new variable from 0 to ``upper``, by default binary."""
        self.costs.append(cost)
        self._integer.append(integer)
        self._upper.append(upper)
        return len(self.costs) - 1

    def variables(self, count: int, *, integer: bool = True, upper: float = 1.0) -> list[int]:
        """New variables that cost nothing."""
        return [self.variable(integer=integer, upper=upper) for _ in range(count)]

    def row(self, terms: Mapping[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        """Adds a row; ``terms``: variable -> coefficient."""
        rows, variables, coefficients = self._entries
        rows += [len(self._low)] * len(terms)
        variables += terms.keys()
        coefficients += terms.values()
        self._low.append(low)
        self._high.append(high)

    def solve(
        self, seconds: float, *, gap: float = 1e-6, largest: float = 1.0, constant: float = 0.0, relaxed: bool = False
    ) -> Solution:
        """The best solution that is found in ``seconds``.

        ``gap``: how far from the best it may be, as a part of the cost, to which ``constant`` is added. ``largest``:
        what the solver sees of the largest cost; its tolerances are absolute. ``relaxed``: without integrality. Raises
        MissingDependencyError.
        """
        optimize, sparse = require("scipy.optimize", self.extra), require("scipy.sparse", self.extra)
        scale = largest / (max(map(abs, self.costs), default=0.0) or 1.0)
        # One variable more, which is 1, bears the constant: a gap is relative to what the solver minimizes.
        cost = np.array([*self.costs, constant]) * scale
        fixed = np.zeros(len(cost))
        fixed[-1] = 1.0
        rows, variables, coefficients = self._entries
        matrix = sparse.csr_array((coefficients, (rows, variables)), shape=(len(self._low), len(cost)))
        found = milp(
            cost, self.extra, constraints=optimize.LinearConstraint(matrix, self._low, self._high),
            bounds=optimize.Bounds(fixed, np.array([*self._upper, 1.0])),
            integrality=np.array([not relaxed and i for i in (*self._integer, False)], np.uint8),
            options={"time_limit": max(seconds, 0.0), "mip_rel_gap": gap},
        )  # fmt: skip
        best = np.inf if found.x is None else float(found.fun)
        dual = getattr(found, "mip_dual_bound", None)
        bound = best if found.status == 0 and dual is None else -np.inf if dual is None else float(dual)
        values = None if found.x is None else found.x[:-1]
        return Solution(values, best / scale, bound / scale, found.status == 0, found.status == 2)


def load_solver(extra: str = "memory") -> None:
    """Imports the solver, before what its some tens of megabytes leave of main memory is measured.

    Raises MissingDependencyError.
    """
    require("scipy.optimize", extra)
    require("scipy.sparse", extra)


def milp(cost: Any, extra: str, **given: Any) -> Any:
    """Mixed integer linear program: ``scipy.optimize.milp(cost, **given)`` and its result.

    ``extra``: the package extra that installs SciPy. HiGHS logs to standard output on some programs even with
    logging off, which would corrupt a command's JSON; stdout is redirected to stderr for the whole process while it
    solves. Raises MissingDependencyError.
    """
    optimize = require("scipy.optimize", extra)
    with _standard_output_is_standard_error():
        return optimize.milp(cost, **given)


@contextmanager
def _standard_output_is_standard_error() -> Iterator[None]:
    with _lock:
        kept = _solving[0] if _solving else _redirected()
        _solving.append(kept)
    try:
        yield
    finally:
        with _lock:
            _solving.remove(kept)
            if not _solving and kept >= 0:
                ctypes.CDLL(None).fflush(None)  # what C's own buffer still holds
                os.dup2(kept, STDOUT)
                os.close(kept)


def _redirected() -> int:
    """Redirects stdout to stderr; a duplicate of stdout's descriptor, or -1 where stdout is closed."""
    try:
        sys.stdout.flush()
        kept = os.dup(STDOUT)
    except (AttributeError, OSError, ValueError):
        return -1
    try:
        os.dup2(STDERR, STDOUT)
    except OSError:
        os.close(kept)
        return -1
    return kept
