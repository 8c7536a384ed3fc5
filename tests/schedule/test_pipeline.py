"""Pipelining: results stay the same for every number of stages; what cannot be fetched ahead is refused."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.errors import ScheduleError
from burnish.loops.interpret import run_program
from burnish.loops.program import Intrinsic, walk_stmt
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.loops.verify import verify
from burnish.schedule.schedule import Schedule


def staged(rows: int) -> Schedule:
    """Rows that are doubled into a buffer of each iteration, and read from it."""
    x = placeholder((rows, 4), name="x")
    p = compute((rows, 4), lambda i, j: x[i, j] * 2.0, "p")
    s = Schedule(create_program("kernel", [x], [compute((rows, 4), lambda i, j: p[i, 3 - j] + 1.0, "y")]))
    s.compute_at("p", "y.i")
    return s


@pytest.mark.parametrize("behind", [None, 1, 2])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_results_are_the_same(rows: int, stages: int, behind: int | None) -> None:
    if stages <= (behind or 0):
        return
    s = staged(rows)
    s.pipeline("y.i", stages, behind)
    verify(s.program)
    x = np.random.default_rng(0).random((rows, 4), np.float32)
    np.testing.assert_array_equal(run_program(s.program, {"x": x})["y"], 2 * x[:, ::-1] + 1)


def test_what_waits_says_for_which_copies() -> None:
    s = staged(8)
    s.pipeline("y.i", 4, 1)
    hints = [str(h) for h in walk_stmt(s.program.body) if isinstance(h, Intrinsic)]
    assert hints == [
        "commit_copies()",
        "wait_copies(p[(y.i % 4), 0, 0], but=2, publish=1)",
        "start_products(p[(y.i % 4), 0, 0], but=0)",
        "commit_products()",
        "wait_products(p[((y.i + 3) % 4), 0, 0], but=1)",
        "commit_copies()",
        "wait_products(but=0)",
    ]


@pytest.mark.parametrize(("stages", "behind"), [(1, None), (2, 2), (3, 0)])
def test_stages_of_which_none_is_ahead_are_refused(stages: int, behind: int | None) -> None:
    with pytest.raises(ScheduleError, match=rf"loop 'y.i': {stages} stages, {behind} behind; allowed: one ahead"):
        staged(8).pipeline("y.i", stages, behind)


def test_loops_that_fill_nothing_of_their_own_are_refused() -> None:
    x = placeholder((8, 4), name="x")
    s = Schedule(create_program("kernel", [x], [compute((8, 4), lambda i, j: x[i, j] * 2.0, "y")]))
    with pytest.raises(ScheduleError, match="does not begin by filling buffers of its own that the rest reads"):
        s.pipeline("y.i", 2)
    s = staged(8)
    s.unroll("y.i")
    with pytest.raises(ScheduleError, match=r"loop 'y\.i' is unroll, of 8 iterations; allowed"):
        s.pipeline("y.i", 2)
