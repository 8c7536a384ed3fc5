"""Paired measurement: candidates take turns in one process, so that drift of the machine cancels in their ratios."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median and the interval that contains the true median with 95 % confidence (order statistics, no model)."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """``seconds`` per call of every function; ``ratios``: each one's time over the first one's, from paired rounds.

    A function is faster than the first with confidence if ``ratios[name].high < 1``.
    """

    seconds: Mapping[str, Interval]
    ratios: Mapping[str, Interval]


def paired(functions: Mapping[str, Callable[[], object]], rounds: int = 21, min_time: float = 0.005) -> Paired:
    """Measures all functions in every round, in alternating order; a sample lasts at least ``min_time`` seconds.

    Every function is called at least once before it counts. Raises ValueError without functions or rounds.
    """
    if not functions or rounds < 1:
        raise ValueError(f"paired: {len(functions)} functions, {rounds} rounds, allowed: at least one of each")
    names = list(functions)
    samples: dict[str, list[float]] = {name: [] for name in names}
    with _no_garbage_collection():
        calls = {name: _calls_for(functions[name], min_time) for name in names}
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                samples[name].append(_seconds(functions[name], calls[name]) / calls[name])
    first = samples[names[0]]
    ratios = {
        name: interval([time / base for time, base in zip(samples[name], first, strict=True)]) for name in names[1:]
    }
    return Paired({name: interval(samples[name]) for name in names}, ratios)


def interval(values: Sequence[float]) -> Interval:
    """Median of ``values`` and its confidence interval; below six values the interval is their range."""
    ordered = sorted(values)
    n = len(ordered)
    # P(fewer than k of n values lie below the true median) is binomial: take the largest k that leaves 2.5 % outside.
    k, below = 0, 0.0
    while True:
        below += math.comb(n, k) / 2**n
        if below > (1 - _CONFIDENCE) / 2 or k >= (n - 1) // 2:
            break
        k += 1
    k = max(k - 1, 0)
    return Interval(statistics.median(ordered), ordered[k], ordered[n - 1 - k])


def _calls_for(function: Callable[[], object], min_time: float) -> int:
    """Number of calls that last at least ``min_time`` seconds; the trials warm caches and clocks up."""
    calls = 1
    while True:
        elapsed = _seconds(function, calls)
        if elapsed >= min_time:
            return calls
        calls = max(calls * 2, min(calls * 16, math.ceil(1.2 * calls * min_time / max(elapsed, 1e-9))))


def _seconds(function: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - start


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A time in which Python does not look for cycles of dead objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
