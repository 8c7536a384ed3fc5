"""The side of measuring that cannot be harmed: talks to the measuring worker, and starts another when that one dies."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from burnish.measure.comparison import Comparison, compare_times
from burnish.measure.forkserver import Failure, ForkServer, Worker
from burnish.pipeline.kernel import Kernel
from burnish.runtime.image import Image
from burnish.target import Target
from burnish.tune.evaluate.measurement import Measurement
from burnish.tune.evaluate.reference import Examples
from burnish.tune.evaluate.stopping import Rule

_OPEN = 6  # tasks whose arrays are kept at once
Loadable = tuple[bytes, Kernel, Image]  # a task's packet, and the kernel to run
_PREPARING = 300.0  # seconds that the reference of a task may take


class Runner:
    """Measures kernels one at a time in a worker of the server; nothing that a kernel does reaches this process.

    A worker that ran a kernel which crashed, hung, or computed or wrote something wrong is not used again.
    """

    def __init__(self, server: ForkServer, target: Target, threads: int, cold: bool, limit: float) -> None:
        self.target = target
        self.threads = threads
        self.cold = cold
        self.limit = limit
        self._server = server
        self._worker: Worker | None = None
        self._opened: set[bytes] = set()  # in the worker of now
        self._examples: OrderedDict[bytes, Examples] = OrderedDict()

    def measure(
        self, candidate: Loadable, rule: Rule, incumbent: Loadable | None = None, to_beat: float = 1.0
    ) -> Measurement:
        """What became of a kernel, in turns with an incumbent if there is one. Raises what its task's reference
        raises.
        """
        for packet, *_ in (candidate,) if incumbent is None else (incumbent, candidate):
            self._open(packet)
        started = time.perf_counter()
        try:
            limit = self.limit if incumbent is None else 2 * self.limit
            made: Measurement = self._ask(("run", *candidate, rule, incumbent, to_beat), limit)
        except Failure as failure:
            outcome, error = failure.args
            return Measurement((), outcome, error, 0.0, time.perf_counter() - started)
        if made.outcome != "ok":
            self.restart()
        return replace(made, run_seconds=time.perf_counter() - started)

    def compare(self, first: Loadable, second: Loadable, rounds: int, batch_seconds: float) -> Comparison:
        """Paired measurement: the kernels take turns in one worker."""
        for packet, *_ in (first, second):
            self._open(packet)
        try:
            times = self._ask(("compare", first, second, rounds, batch_seconds), self.limit * (2 + rounds))
        except Failure as failure:
            outcome, error = failure.args
            return Comparison(outcome=outcome, error=error)
        if isinstance(times, str):
            self.restart()
            return Comparison(outcome="wrong", error=times)
        return compare_times(*times)

    def prepare(self, packet: bytes, examples: Examples | None = None) -> None:
        """Gets ready to measure kernels of a task, on given arrays or on random ones."""
        if examples is not None:
            self._examples[packet] = examples
        self._open(packet)

    def restart(self) -> str:
        """Ends the worker; how it ended."""
        self._opened.clear()
        if self._worker is None:
            return "did not run"
        worker, self._worker = self._worker, None
        return worker.end()

    def _open(self, packet: bytes) -> None:
        if packet not in self._opened:
            order = ("open", packet, self.target, self.threads, self.cold, self._examples.get(packet))
            try:
                answer = self._ask(order, _PREPARING)
            except Failure as failure:
                raise RuntimeError(f"tuning: the reference of a task: {failure.args[1]}") from failure
            if isinstance(answer, Exception):
                raise answer
            self._opened.add(packet)
            self._examples[packet] = answer
        self._examples.move_to_end(packet)
        while len(self._examples) > _OPEN:
            oldest, _ = self._examples.popitem(last=False)
            if oldest in self._opened and self._worker is not None:
                self._opened.discard(oldest)
                self._worker.line.send(("close", oldest))

    def _ask(self, order: tuple[Any, ...], limit: float) -> Any:
        """The worker's answer. Raises Failure if it dies or takes longer than ``limit`` seconds."""
        if self._worker is None:
            self._worker = self._server.start("measure")
        line = self._worker.line
        try:
            line.send(order)
            if line.poll(limit):
                return line.recv()
        except (EOFError, OSError):
            raise Failure("crashed", f"the process {self.restart()}") from None
        except BaseException:  # an interrupt: an answer may come that nobody waits for
            self.restart()
            raise
        self.restart()
        raise Failure("timeout", f"took longer than {limit:g} s")
