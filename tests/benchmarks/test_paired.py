import gc
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import paired as timing
from benchmarks.paired import Interval, Paired, interval, paired


class Clock:
    """A clock that only the measured functions advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def function(self, name: str, *seconds: float) -> Callable[[], None]:
        """Lasts the given times in turn."""
        times = itertools.cycle(seconds)

        def call() -> None:
            self.calls.append(name)
            self.now += next(times)

        return call


@pytest.fixture
def clock(monkeypatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(timing, "time", fake)
    return fake


def test_rounds_alternate(clock) -> None:
    result = paired({"a": clock.function("a", 1.0), "b": clock.function("b", 2.0)}, rounds=4, min_time=0)
    assert "".join(clock.calls) == "ab" + "abbaabba"
    assert result == Paired(
        {"a": Interval(1.0, 1.0, 1.0), "b": Interval(2.0, 2.0, 2.0)}, {"b": Interval(2.0, 2.0, 2.0)}
    )


def test_fast_functions_are_called_often_enough(clock) -> None:
    result = paired({"fast": clock.function("f", 2**-20), "slow": clock.function("s", 1.0)}, rounds=3, min_time=2**-7)
    assert result.seconds["fast"] == Interval(2**-20, 2**-20, 2**-20)
    samples = "".join(clock.calls).split("s")
    assert all(len(sample) >= 2**13 for sample in samples if sample)
    assert clock.calls.count("s") == 4


def test_ratios_pair_the_samples_of_a_round(clock) -> None:
    # Both functions slow down together, as on a machine whose clock drifts: the ratio stays exact.
    drift = [1.0, 1.0, 2.0, 4.0, 8.0]
    functions = {"a": clock.function("a", *drift), "b": clock.function("b", *(3 * d for d in drift))}
    result = paired(functions, rounds=4, min_time=0)
    assert result.ratios["b"] == Interval(3.0, 3.0, 3.0)
    assert (result.seconds["a"].low, result.seconds["a"].high) == (1.0, 8.0)


def test_garbage_collection_is_off_while_measuring_and_on_again_after() -> None:
    seen = []
    paired({"f": lambda: seen.append(gc.isenabled())}, rounds=2, min_time=0)
    assert seen == [False] * 3 and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        paired({"f": lambda: 1 // 0}, rounds=1)
    assert gc.isenabled()


@pytest.mark.parametrize(("n", "k"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (21, 5), (51, 18)])
def test_the_interval_is_the_exact_binomial_one(n, k) -> None:
    found = interval(list(range(n))[::-1])
    assert (found.low, found.high) == (k, n - 1 - k)
    assert found.median == (n - 1) / 2
    outside = 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    assert outside <= 0.05 or k == 0


def test_the_interval_covers_the_true_median() -> None:
    rng = np.random.default_rng(1)
    intervals = [interval(rng.lognormal(size=21).tolist()) for _ in range(2000)]
    assert 0.95 <= np.mean([i.low <= 1 <= i.high for i in intervals]) <= 0.99


@pytest.mark.parametrize("arguments", [({}, 3), ({"f": int}, 0)])
def test_nothing_to_measure_is_refused(arguments) -> None:
    with pytest.raises(ValueError, match=r"paired: .* allowed: at least one of each"):
        paired(*arguments)
