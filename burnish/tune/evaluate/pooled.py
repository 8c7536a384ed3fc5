"""Kernel measurement on boards of a device pool: each trial on a leased board; one whose board goes is tried again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from burnish.boards.job import BoardJob
from burnish.boards.leasing import Devices, on_board
from burnish.errors import BurnishError
from burnish.machines.target import Target
from burnish.measure.comparison import Comparison, compare_times
from burnish.tune.evaluate import worker
from burnish.tune.evaluate.building import unpack
from burnish.tune.evaluate.expected import WrongAnswer
from burnish.tune.evaluate.interleaved import BatchedKernel
from burnish.tune.evaluate.measurement import Measurement
from burnish.tune.evaluate.reference import Examples
from burnish.tune.evaluate.remote import RemoteHarness, TaskArrays
from burnish.tune.evaluate.running import PREPARING, Loadable
from burnish.tune.evaluate.stopping import Rule
from burnish.workers import Failure, ForkServer, ResourceLimits, RestartingWorker

_KEPT = 6  # tasks whose arrays are kept at once
T = TypeVar("T")


class PoolRunner:
    """Kernel runner on leased boards, as :class:`~burnish.tune.evaluate.running.Runner`. ``lost``: why boards went that
    had a trial, which then was tried on another.
    """

    def __init__(
        self, server: ForkServer, target: Target, threads: int, cold: bool, limit: float, devices: Devices
    ) -> None:
        """``limit``: seconds of a call on a board."""
        self.lost: list[str] = []
        self._target, self._threads, self._cold, self._limit = target, threads, cold, limit
        self._devices = devices
        self._worker = RestartingWorker(server.start, lambda: None)
        self._arrays: OrderedDict[str, TaskArrays] = OrderedDict()

    def prepare(self, packet: str, examples: Examples | None = None) -> None:
        """Gets ready to measure kernels of a task, on given arrays or on random ones. Raises what its reference
        raises.
        """
        if examples is not None:
            self._arrays[packet] = TaskArrays(unpack(packet), examples)
        elif packet not in self._arrays:
            try:
                made = self._worker.call(worker.examples_of, packet, limits=ResourceLimits(PREPARING))
            except Failure as failure:
                what = failure.__cause__ or RuntimeError(f"tuning: the reference of a task: {failure.detail}")
                raise what from failure
            self._arrays[packet] = TaskArrays(unpack(packet), made)
        self._arrays.move_to_end(packet)
        while len(self._arrays) > _KEPT:
            self._arrays.popitem(last=False)

    def measure(
        self, candidate: Loadable, rule: Rule, incumbent: Loadable | None = None, to_beat: float = 1.0
    ) -> Measurement:
        """Measurement of a kernel, interleaved with an incumbent if there is one."""
        for packet, *_ in (candidate,) if incumbent is None else (incumbent, candidate):
            self.prepare(packet)
        started = time.perf_counter()
        try:
            made = self._measured(candidate, rule, incumbent, to_beat)
        except Failure as failure:
            outcome = "timeout" if failure.kind == "timeout" else "crashed"
            made = Measurement((), outcome, _words(failure))
        return replace(made, run_seconds=time.perf_counter() - started)

    def compare(self, first: Loadable, second: Loadable, rounds: int, batch_seconds: float) -> Comparison:
        """Paired measurement: the kernels take turns on one board."""
        for packet, *_ in (first, second):
            self.prepare(packet)

        def turns(job: BoardJob, about: Mapping[str, Any]) -> tuple[list[float], list[float]] | str:
            benches = self._benches(job, about, first[0], second[0])
            one, other = ((benches[packet], kernel, image) for packet, kernel, image in (first, second))
            return worker.compare(one, other, rounds, batch_seconds)

        try:
            times = self._on_board(turns)
        except Failure as failure:
            return Comparison(outcome="timeout" if failure.kind == "timeout" else "crashed", error=_words(failure))
        return Comparison(outcome="wrong", error=times) if isinstance(times, str) else compare_times(*times)

    def _measured(self, candidate: Loadable, rule: Rule, incumbent: Loadable | None, to_beat: float) -> Measurement:
        """Raises Failure of the candidate; an incumbent that fails on a board takes no turns there."""
        packet, kernel, image = candidate
        ready = False

        def trial(job: BoardJob, about: Mapping[str, Any]) -> Measurement:
            nonlocal ready
            ready = False
            benches = self._benches(job, about, packet, *([incumbent[0]] if incumbent else []))
            other: BatchedKernel | None = None
            if incumbent is not None:
                with suppress(WrongAnswer, BurnishError, OSError, MemoryError):
                    other = worker.measure(benches[incumbent[0]], *incumbent[1:], rule.batch_seconds)
            ready = True
            return worker.run(benches[packet], kernel, image, rule, other, to_beat)

        try:
            return self._on_board(trial)
        except Failure:
            if ready or incumbent is None:
                raise
            return self._measured(candidate, rule, None, to_beat)

    def _benches(self, job: BoardJob, about: Mapping[str, Any], *packets: str) -> dict[str, RemoteHarness]:
        return {
            packet: RemoteHarness(
                job, self._arrays[packet], self._target, self._threads, self._cold, f"task {number}", about
            )
            for number, packet in enumerate(dict.fromkeys(packets))
        }

    def _on_board(self, work: Callable[[BoardJob, Mapping[str, Any]], T]) -> T:
        return on_board(self._devices, work, self._limit, self.lost.append)


def _words(failure: Failure) -> str:
    """Failure message of a kernel run, for people."""
    own = failure.kind in ("error", "out of memory", "timeout") or failure.detail[:1].isdigit()
    return failure.detail if own else f"the process {failure.detail}"
