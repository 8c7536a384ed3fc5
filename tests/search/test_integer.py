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

from burnish.search.integer import milp


def test_a_program_is_solved() -> None:
    rows = optimize.LinearConstraint(np.array([[2.0, 2.0]]), -np.inf, 3.0)
    answer = milp(np.array([-1.0, -2.0]), "memory", integrality=[1, 1], constraints=rows, bounds=optimize.Bounds(0, 9))
    assert answer.x.tolist() == [0, 1]


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
