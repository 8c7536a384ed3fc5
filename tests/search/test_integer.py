"""Programs for HiGHS: their answers, and that nothing the solver prints reaches standard output."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from burnish.search.integer import LinearProgram, milp


def knapsack() -> LinearProgram:
    """Two binaries of which one fits; the second is worth more."""
    program = LinearProgram()
    first, second = program.variable(-1e6), program.variable(-2e6)
    program.row({first: 2.0, second: 2.0}, high=3.0)
    return program


def test_a_program_is_solved() -> None:
    answer = knapsack().solve(10.0)
    assert answer.values is not None and answer.values.tolist() == [0, 1]
    assert answer.cost == pytest.approx(-2e6) and answer.bound == pytest.approx(-2e6)
    assert answer.optimal and not answer.infeasible


def test_without_integrality_it_is_a_linear_program() -> None:
    assert knapsack().solve(10.0, relaxed=True).cost == pytest.approx(-2.5e6)


def test_rows_may_come_after_a_solution() -> None:
    program = knapsack()
    program.solve(10.0)
    program.row({1: 1.0}, high=0.0)
    assert program.solve(10.0).cost == pytest.approx(-1e6)
    program.row({0: 1.0}, low=2.0)
    answer = program.solve(10.0)
    assert answer.values is None and answer.infeasible and answer.cost == np.inf


def test_continuous_variables_have_bounds_of_their_own() -> None:
    program = LinearProgram()
    x, y = program.variable(1.0, integer=False, upper=np.inf), program.variable(-1.0, integer=False, upper=2.5)
    program.row({x: 1.0, y: -2.0}, low=0.0)
    program.row({y: 1.0}, low=1.0)
    answer = program.solve(10.0, largest=1e4, constant=7.0)
    assert answer.values is not None and answer.values.tolist() == pytest.approx([2, 1])
    assert answer.cost == pytest.approx(8.0)  # with the constant


def test_what_the_solver_prints_goes_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    together = Barrier(2)

    def chatty(cost: Any) -> Any:
        together.wait(30)  # two programs are solved at once
        os.write(1, b"written\n")
        ctypes.CDLL(None).puts(b"kept in C's buffer")
        together.wait(30)
        return cost

    monkeypatch.setattr(optimize, "milp", chatty)
    print("before", end=" ")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda cost: milp(cost, "memory"), (1, 2))) == [1, 2]
    print("after")
    out, err = capfd.readouterr()
    assert out == "before after\n"
    assert err.count("written") == err.count("kept in C's buffer") == 2


def test_standard_output_may_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "milp", lambda cost: cost)
    monkeypatch.setattr("os.dup", _closed)
    assert milp(3, "memory") == 3


def _closed(number: int) -> int:
    raise OSError(9, "Bad file descriptor")
