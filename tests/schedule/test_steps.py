"""Remembered steps: schedules that begin alike share programs, and come out as they do without."""

from collections.abc import Iterator

import pytest

from burnish.loops.expr import Buffer
from burnish.loops.program import LoopProgram, Seq
from burnish.loops.tensor import compute, create_program, placeholder
from burnish.schedule.prefix_cache import Steps
from burnish.schedule.schedule import Schedule


@pytest.fixture
def steps() -> Iterator[Steps]:
    Schedule.steps = Steps(8)
    yield Schedule.steps
    Schedule.steps = None


def empty(name: str) -> LoopProgram:
    return LoopProgram(name, (Buffer("x", (1,)),), Seq(()))


def test_a_step_from_the_same_program_is_taken_once() -> None:
    program, made = empty("p"), []
    steps = Steps(2)
    for _ in range(2):
        assert steps.after(program, "step", lambda: made.append(1) or len(made)) == 1
    assert steps.after(empty("p"), "step", lambda: 2) == 2  # an equal program is another


def test_the_longest_unused_step_is_forgotten() -> None:
    program, steps = empty("p"), Steps(2)
    for step in ("a", "b", "a", "c"):
        steps.after(program, step, lambda step=step: step)
    assert steps.after(program, "a", lambda: "again") == "a"
    assert steps.after(program, "b", lambda: "again") == "again"


def test_schedules_that_begin_alike_share_programs(steps: Steps) -> None:
    x = placeholder((64,), name="x")
    program = create_program("p", [x], [compute((64,), lambda i: x[i] * 2.0, name="y")])

    def scheduled(factor: int) -> Schedule:
        s = Schedule(program)
        (loop,) = s.loops("y")
        outer, _ = s.split(loop, 16)
        s.split(outer, factor)
        return s

    first, second, other = scheduled(2), scheduled(2), scheduled(4)
    assert first.program is second.program
    assert first.trace == second.trace != other.trace
    Schedule.steps = None
    assert str(scheduled(4).program) == str(other.program)
