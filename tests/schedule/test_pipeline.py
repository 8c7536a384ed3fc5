"""Pipelining: results stay the same for every number of stages; what cannot be fetched ahead is refused."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.errors import ScheduleError
from burnish.loops.interpret import run_program
from burnish.loops.program import Intrinsic, walk_stmt
from burnish.loops.tensor import compute, create_program, placeholder, reduce_axis
from burnish.loops.tensor import sum as reduce_sum
from burnish.loops.verify import verify
from burnish.schedule.nest import all_loops
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


def nested(rows: int, columns: int, parts: int) -> Schedule:
    """Rows, dealt out to parts, of columns, each of which reads a buffer of its own; and what begins and ends a row."""
    x, j = placeholder((rows, columns, 3), name="x"), reduce_axis(columns, "j")
    p = compute((rows, columns, 3), lambda i, j, k: x[i, j, k] * 2.0, "p")
    s = compute((rows, 3), lambda i, k: reduce_sum(p[i, j.var, 2 - k], j), "s")
    schedule = Schedule(create_program("kernel", [x], [compute((rows, 3), lambda i, k: s[i, k] + 1.0, "y")]))
    schedule.compute_at("s", "y.i")
    schedule.reorder("s.j", "s.k")
    schedule.compute_at("p", "s.j")
    schedule.stride("y.i", parts)
    return schedule


@pytest.mark.parametrize("behind", [None, 1])
@pytest.mark.parametrize("stages", [2, 5])
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (5, 1), (5, 2), (6, 3), (7, 5)])
def test_steps_go_on_over_a_loop_around(rows: int, parts: int, columns: int, stages: int, behind: int | None) -> None:
    """Also where copies of buffers outnumber the steps of an iteration, and where the last turn is not for all."""
    s = nested(rows, columns, parts)
    s.pipeline("s.j", stages, behind, "y.i.turn")
    verify(s.program)
    (filling,) = [loop for loop in all_loops(s.program.body) if loop.var == "s.j.fill"]
    assert filling.extent == stages - 1 and "y.i.turn" not in filling.variables
    x = np.random.default_rng(0).integers(0, 9, (rows, columns, 3)).astype(np.float32)
    np.testing.assert_array_equal(run_program(s.program, {"x": x})["y"], 2 * x.sum(1)[:, ::-1] + 1)


def test_the_condition_of_the_last_turn_is_that_of_what_is_fetched_for_it() -> None:
    s = nested(5, 3, 2)
    s.pipeline("s.j", 4, None, "y.i.turn")
    text = str(s.program)
    assert "if ((((y.i.turn * 2) + ((s.j // 3) * 2)) + y.i.part) < 3)" in text and text.count("if ") == 2


@pytest.mark.parametrize("over", ["y.i.turn", "y.i.part"])
def test_loops_around_whose_iterations_are_not_known_ahead_are_refused(over: str) -> None:
    s = nested(5, 3, 2)
    if over == "y.i.turn":  # the last turn, which has fewer rows, is the first
        s.reverse(over)
        with pytest.raises(ScheduleError, match=r"allowed: in the first iterations of 'y\.i\.turn', of all threads"):
            s.pipeline("s.j", 3, None, over)
    else:
        with pytest.raises(ScheduleError, match=r"loop 'y\.i\.turn' repeats loop 's\.j' within 'y\.i\.part'; allowed"):
            s.pipeline("s.j", 3, None, over)
    with pytest.raises(ScheduleError, match=r"pipeline: loop 's\.j' is not inside of 's\.k'"):
        s.pipeline("s.j", 3, None, "s.k")


def test_what_an_iteration_of_the_loop_around_computes_is_not_fetched_ahead() -> None:
    x, j = placeholder((4, 5, 3), name="x"), reduce_axis(5, "j")
    a = compute((4, 5, 3), lambda i, j, k: x[i, j, k] + 1.0, "a")
    p = compute((4, 5, 3), lambda i, j, k: a[i, j, k] * 2.0, "p")
    y = compute((4, 3), lambda i, k: reduce_sum(p[i, j.var, k], j), "y")
    s = Schedule(create_program("kernel", [x], [y]))
    s.reorder("y.j", "y.k")
    s.compute_at("p", "y.j")
    s.compute_at("a", "y.i")
    with pytest.raises(ScheduleError, match=r"loop 'y\.i' computes 'a', which an iteration ahead would have to know"):
        s.pipeline("y.j", 2, None, "y.i")
