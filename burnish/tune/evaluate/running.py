"""Parent side of kernel measurement: drives the worker process, and replaces it after a crash, hang or wrong answer."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from burnish.machines.target import Target
from burnish.measure.comparison import Comparison, compare_times
from burnish.pipeline.kernel import CompiledKernel
from burnish.runtime.devices import is_timed
from burnish.runtime.image import Image
from burnish.tune.evaluate import worker
from burnish.tune.evaluate.measurement import Measurement
from burnish.tune.evaluate.reference import Examples
from burnish.tune.evaluate.stopping import Rule
from burnish.workers import Failure, ForkServer, ResourceLimits, RestartingWorker
from burnish.workers.limits import MEMORY

_OPEN = 6  # tasks whose arrays are kept at once
Loadable = tuple[
    str, CompiledKernel, Image | None
]  # a task's packet, and the kernel to run (None: its device links it)
PREPARING = 300.0  # seconds that the reference of a task may take


class KernelRunner(Protocol):
    """Kernel runner: measures in a worker process of this machine, on its CPU or another device, or on boards."""

    def prepare(self, packet: str, examples: Examples | None = None) -> None:
        """Gets ready to measure kernels of a task, on given arrays or on random ones."""

    def measure(
        self, candidate: Loadable, rule: Rule, incumbent: Loadable | None = None, to_beat: float = 1.0
    ) -> Measurement:
        """Measurement of a kernel, interleaved with an incumbent if there is one."""

    def compare(self, first: Loadable, second: Loadable, rounds: int, batch_seconds: float) -> Comparison:
        """Paired measurement: the kernels take turns."""


class Runner:
    """Measures kernels one at a time in a worker of the server; nothing that a kernel does reaches this process.

    A worker that ran a kernel which crashed, hung, or computed or wrote something wrong is not used again.
    """

    def __init__(self, server: ForkServer, target: Target, threads: int, cold: bool, limit: float) -> None:
        self.target = target
        self.threads = threads
        self.cold = cold
        self.limit = limit
        # The driver of a GPU reserves hundreds of gigabytes of addresses.
        self._memory = None if is_timed(target.machine) else MEMORY
        self._opened: set[str] = set()  # in the worker of now
        self._worker = RestartingWorker(server.start, self._opened.clear)
        self._examples: OrderedDict[str, Examples] = OrderedDict()

    def measure(
        self, candidate: Loadable, rule: Rule, incumbent: Loadable | None = None, to_beat: float = 1.0
    ) -> Measurement:
        """Measurement of a kernel, interleaved with an incumbent if there is one. Raises what its task's reference
        raises.
        """
        for packet, *_ in (candidate,) if incumbent is None else (incumbent, candidate):
            self._open(packet)
        started = time.perf_counter()
        try:
            limit = self.limit if incumbent is None else 2 * self.limit
            made: Measurement = self._ask(limit, worker.run_loaded, *candidate, rule, incumbent, to_beat)
        except Failure as failure:
            return Measurement((), failure.kind, failure.detail, 0.0, time.perf_counter() - started)
        if made.outcome != "ok":
            self._worker.end()
        return replace(made, run_seconds=time.perf_counter() - started)

    def compare(self, first: Loadable, second: Loadable, rounds: int, batch_seconds: float) -> Comparison:
        """Paired measurement: the kernels take turns in one worker."""
        for packet, *_ in (first, second):
            self._open(packet)
        try:
            limit = self.limit * (2 + rounds)
            times = self._ask(limit, worker.compare_loaded, first, second, rounds, batch_seconds)
        except Failure as failure:
            return Comparison(outcome=failure.kind, error=failure.detail)
        if isinstance(times, str):
            self._worker.end()
            return Comparison(outcome="wrong", error=times)
        return compare_times(*times)

    def prepare(self, packet: str, examples: Examples | None = None) -> None:
        """Gets ready to measure kernels of a task, on given arrays or on random ones."""
        if examples is not None:
            self._examples[packet] = examples
        self._open(packet)

    def _open(self, packet: str) -> None:
        if packet not in self._opened:
            known = self._examples.get(packet)
            limits = ResourceLimits(PREPARING, memory=self._memory)
            try:
                made = self._worker.call(
                    worker.open_task, packet, self.target, self.threads, self.cold, known, limits=limits
                )
            except Failure as failure:
                what = failure.__cause__ or RuntimeError(f"tuning: the reference of a task: {failure.detail}")
                raise what from failure
            self._opened.add(packet)
            self._examples[packet] = made if known is None else known
        self._examples.move_to_end(packet)
        while len(self._examples) > _OPEN:
            oldest, _ = self._examples.popitem(last=False)
            if oldest in self._opened:
                self._opened.discard(oldest)
                self._ask(PREPARING, worker.close_task, oldest)

    def _ask(self, limit: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a job. Raises Failure if it takes longer than ``limit`` seconds or takes its worker with it:
        ``timeout`` or ``crashed``.
        """
        try:
            return self._worker.call(function, *arguments, limits=ResourceLimits(limit, memory=self._memory))
        except Failure as failure:
            self._worker.end()
            if failure.kind == "timeout":
                raise
            words = failure.detail if failure.kind == "error" else f"the process {failure.detail}"
            raise Failure("crashed", words, failure.progress) from failure
