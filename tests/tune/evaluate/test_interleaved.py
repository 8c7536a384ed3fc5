"""Turns of two kernels, on a made-up bench: who runs when, for how long, and who need not run at all."""

from __future__ import annotations

from typing import Any

import pytest

from burnish.tune.evaluate.interleaved import BatchedKernel, early_reject, interleaved, single
from burnish.tune.evaluate.stopping import LEAST_BATCH, Adaptive, Fixed


class Made:
    """A bench whose kernels are their seconds a run; the first runs of all may be slow. Notes (kernel, runs)."""

    cold = False

    def __init__(self, slow: int = 0) -> None:
        self.slow = slow
        self.calls: list[tuple[float, int]] = []

    def seconds(self, loaded: Any, runs: int, cold: bool) -> float:
        self.calls.append((loaded, runs))
        self.slow -= 1
        return loaded * runs * (100 if self.slow >= 0 else 1)


def contender(bench: Made, seconds: float, batch: float = 100e-6) -> BatchedKernel:
    return BatchedKernel(bench, seconds, seconds, batch)  # type: ignore[arg-type]


def test_the_last_of_a_turn_begins_the_next_and_is_warm() -> None:
    bench = Made()
    own, incumbent = contender(bench, 10e-6), contender(bench, 20e-6)
    bench.calls.clear()
    times, others, stop = interleaved(own, incumbent, Fixed(3), 1.0)
    assert (times, others, stop) == ([10e-6] * 3, [20e-6] * 3, "enough")
    warm, cold = [(20e-6, 1), (10e-6, 1)], [(20e-6, 5), (10e-6, 10)]
    first = [warm[0], cold[0], warm[1], cold[1]]
    assert bench.calls == [*first, cold[1], warm[0], cold[0], cold[0], warm[1], cold[1]]


def test_long_runs_are_batches_by_themselves_and_need_no_warming() -> None:
    bench = Made()
    own, incumbent = contender(bench, 5e-3), contender(bench, 6e-3)
    assert not bench.calls
    interleaved(own, incumbent, Fixed(2), 1.0)
    assert bench.calls == [(6e-3, 1), (5e-3, 1), (5e-3, 1), (6e-3, 1)]


def test_a_batch_is_long_enough_even_if_its_length_was_guessed_in_a_slow_moment() -> None:
    bench = Made(slow=2)
    own = contender(bench, 1e-6)
    times, _ = single(own, Fixed(2))
    assert times == pytest.approx([1e-6] * 2)
    kernel, runs = bench.calls[-1]
    assert kernel * runs >= LEAST_BATCH
    assert len(bench.calls) == 2 + 1 + 2, "one batch was too short"


def test_who_is_slower_than_what_is_to_be_beaten_has_lost() -> None:
    bench = Made()
    own, incumbent = contender(bench, 9e-6), contender(bench, 10e-6)
    rule = Adaptive(least=3, most=9)
    assert interleaved(own, incumbent, rule, 1.0)[2] == "steady"
    assert interleaved(own, incumbent, rule, 0.8)[2] == "lost"


def test_one_slow_run_is_not_hopeless() -> None:
    rule = Adaptive()
    assert early_reject(Made(), 10e-6, rule, 100e-6, 10e-6) == 0.0  # type: ignore[arg-type]
    assert early_reject(Made(slow=1), 10e-6, rule, 1e-3, 10e-6) == 1e-3  # type: ignore[arg-type]
    assert early_reject(Made(), 50e-6, rule, 60e-6, 10e-6) == 50e-6  # type: ignore[arg-type]
    bench = Made()
    assert early_reject(bench, 10e-6, rule, 20e-6, 10e-6) == 0.0  # type: ignore[arg-type]
    assert early_reject(bench, 10e-6, Fixed(), 1.0, 10e-6) == 0.0  # type: ignore[arg-type]
    assert not bench.calls, "nothing was in doubt"
