"""Two modules in turns, on a made-up clock."""

from collections.abc import Iterator

import numpy as np
import pytest

from burnish.runtime import comparison
from burnish.runtime.comparison import ROUNDS, TURNS, compare_modules


class Clock:
    """Time that passes only while a module runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Made:
    """A module that takes these seconds in turn, over and over."""

    inputs = ()

    def __init__(self, clock: Clock, seconds: Iterator[float]) -> None:
        self.clock, self.seconds = clock, seconds

    def __call__(self) -> None:
        self.clock.now += next(self.seconds)


def noisy(mean: float, spread: float, seed: int) -> Iterator[float]:
    random = np.random.default_rng(seed)
    while True:
        yield mean * float(np.exp(spread * random.normal()))


@pytest.mark.parametrize(("spread", "rounds"), [(0.0, ROUNDS), (0.2, TURNS * ROUNDS)])
def test_what_does_not_decide_goes_on(monkeypatch: pytest.MonkeyPatch, spread: float, rounds: int) -> None:
    clock = Clock()
    monkeypatch.setattr(comparison, "time", clock)
    made = [Made(clock, noisy(0.05, spread, seed)) for seed in range(2)]
    found = compare_modules(*made)  # type: ignore[arg-type]
    assert [len(times) for times in found.times] == [rounds, rounds]
    assert found.decides == (spread == 0)


def test_the_faster_module_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(comparison, "time", clock)
    made = [Made(clock, noisy(mean, 0.01, seed)) for seed, mean in enumerate((0.05, 0.04))]
    found = compare_modules(*made)  # type: ignore[arg-type]
    assert found.second_wins and abs(found.ratio - 0.8) < 0.02
