"""Batch timing of kernels: one alone, or two interleaved."""

from __future__ import annotations

import math
from typing import Any, Protocol

from burnish.pipeline.kernel import CompiledKernel
from burnish.runtime.image import Image
from burnish.tune.evaluate.stopping import LEAST_BATCH, Rule

_LONG = 2e-3  # seconds: a run this long needs no other before it to warm caches up, and is a batch


class Bench(Protocol):
    """Measurement device for a task's kernels: this CPU, another device of this machine, or a board.

    ``cold``: whether constants come from memory.
    """

    @property
    def cold(self) -> bool:
        """Whether constants come from memory in every timed run."""

    def load(self, kernel: CompiledKernel, image: Image | None) -> Any:
        """A kernel with its arguments; ``image``: None of one that its device loads.

        Raises OSError, MemoryError or an error of Burnish where that cannot be.
        """

    def check(self, loaded: Any) -> float:
        """Runs it once; the seconds. Raises WrongAnswer, and Faulty where a device stops it."""

    def seconds(self, loaded: Any, runs: int, cold: bool) -> float:
        """Seconds that ``runs`` runs take together."""

    def untouched(self, loaded: Any) -> bool:
        """Whether no byte next to its memory has changed."""


class BatchedKernel:
    """A kernel that is loaded and right, with as many runs in a batch as last ``batch_seconds``.

    ``usual``: seconds a run, of the faster of two. ``first``: those of a run before.
    """

    def __init__(self, bench: Bench, loaded: Any, first: float, batch_seconds: float) -> None:
        self._bench, self._loaded, self._batch_seconds = bench, loaded, batch_seconds
        self.usual = first
        if first < _LONG:
            self.usual = max(1e-9, min(bench.seconds(loaded, 1, bench.cold) for _ in range(2)))
        self._runs = max(1, math.ceil(batch_seconds / self.usual))

    def warm(self) -> None:
        """Brings back into the caches what another kernel has taken there."""
        if self.usual < _LONG:
            self._bench.seconds(self._loaded, 1, self._bench.cold)

    def batch(self) -> float:
        """Seconds a run, of a batch."""
        while (took := self._bench.seconds(self._loaded, self._runs, self._bench.cold)) < LEAST_BATCH:
            # what the number of runs was taken from was slowed by something
            self._runs = math.ceil(1.2 * self._runs * self._batch_seconds / max(took, 1e-9))
        return took / self._runs


def single(own: BatchedKernel, rule: Rule) -> tuple[list[float], str]:
    """The times of a kernel's batches (seconds a run), and why measuring ended."""
    times = [own.batch()]
    while not (stop := rule.stop(times)):
        times.append(own.batch())
    return times, stop


def interleaved(
    own: BatchedKernel, incumbent: BatchedKernel, rule: Rule, to_beat: float
) -> tuple[list[float], list[float], str]:
    """The times of two kernels' batches, turn by turn, and why that ended. The last of a turn begins the next.

    A kernel has lost that takes more than ``to_beat`` times as long as the incumbent.
    """
    times: dict[BatchedKernel, list[float]] = {own: [], incumbent: []}
    order, last = [incumbent, own], None
    while not (stop := rule.stop(times[own], [to_beat * each for each in times[incumbent]]) if times[own] else ""):
        for contender in order:
            if contender is not last:
                contender.warm()
            times[contender].append(contender.batch())
            last = contender
        order.reverse()
    return times[own], times[incumbent], stop


def early_reject(bench: Bench, loaded: Any, rule: Rule, first: float, incumbent: float) -> float:
    """The seconds of a run by which a kernel is far behind the incumbent's; 0 if it is not.

    The ``first`` run decides nothing alone: it has cold caches, and may have had to wake threads up, or wait for them.
    """
    if not rule.early_reject(first, incumbent):
        return 0.0
    least = min(first, bench.seconds(loaded, 1, bench.cold))
    return least if rule.early_reject(least, incumbent) else 0.0
