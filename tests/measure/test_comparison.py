"""Two modules in turns, on a made-up clock."""

from collections.abc import Iterator
from itertools import cycle

import pytest

from burnish.measure import comparison
from burnish.measure.comparison import ROUNDS, TURNS, Comparison, time_in_turns


class Clock:
    """Time that passes only while a module runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Made:
    """A module that takes these seconds in turn, over and over."""

    inputs, has_clock = (), False

    def __init__(self, clock: Clock, seconds: Iterator[float]) -> None:
        self.clock, self.seconds = clock, seconds

    def __call__(self) -> None:
        self.clock.now += next(self.seconds)


class Replayed(Made):
    """A module that a GPU runs, whose calls take a second more on this clock."""

    has_clock = True

    def __call__(self) -> None:
        self.clock.now += 1.0

    def replays(self, calls: int) -> list[float]:
        return [next(self.seconds) for _ in range(calls)]


def compared(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> Comparison:
    """A module that takes 50 ms beside one that takes these seconds in turn."""
    clock = Clock()
    monkeypatch.setattr(comparison, "time", clock)
    made = [Made(clock, cycle(own)) for own in ([0.05], seconds)]
    return time_in_turns(*made, {})  # type: ignore[arg-type]


def test_a_clear_comparison_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, 0.04)
    assert found.second_wins and found.ratio == pytest.approx(0.8)
    assert [len(times) for times in found.times] == [ROUNDS, ROUNDS]


def test_what_does_not_decide_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(monkeypatch, 0.04, 0.06)
    assert not found.decides
    assert [len(times) for times in found.times] == [TURNS * ROUNDS, TURNS * ROUNDS]


def test_the_clock_of_a_gpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(comparison, "time", clock)
    made = [Replayed(clock, cycle([seconds])) for seconds in (50e-6, 40e-6)]
    found = time_in_turns(*made, {}, most_seconds=1e9)  # type: ignore[arg-type]
    assert found.second_wins and found.ratio == pytest.approx(0.8)
    assert found.times[1][0] == pytest.approx(40e-6)
