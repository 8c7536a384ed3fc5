"""Projection of regions to many threads: the pool's rule, and the share of a matrix unit."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.threads import makespan, steps_of


@pytest.mark.parametrize(
    ("chunks", "threads", "time"),
    [([1.0] * 16, 16, 1.0), ([1.0] * 17, 16, 2.0), ([4.0, 1.0, 1.0, 1.0], 2, 4.0), ([1.0] * 5, 16, 1.0)],
)
def test_idle_threads_take_the_chunks_of_others(chunks: list[float], threads: int, time: float) -> None:
    assert makespan(chunks, threads) == time


def test_a_log_is_read_without_what_the_clock_takes() -> None:
    """A step of a serial microsecond, with one region of two chunks; each look at the clock takes ten nanoseconds."""
    log = np.array([-2, 5000, -1, 2, 5510, 6520, 8530, -2, 9040])
    ((serial, regions),) = steps_of(log, 10.0)
    assert regions == [[1.0, 2.0]]
    assert serial == pytest.approx(1.0)
