"""A process for compiled models that may crash, hang or compute nonsense: nothing that they do reaches this one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import sqrt
from typing import Any, Self

from burnish.errors import WorkerError
from burnish.measure.accuracy import ROUNDINGS, tolerance
from burnish.measure.comparison import MOST_SECONDS, Comparison, compare_times
from burnish.measure.forkserver import Failure, ForkServer, Worker
from burnish.runtime.artifact import parts
from burnish.runtime.module import Module

LIMIT = 60.0  # seconds that one model may run, or load, without a sign of life
PROFILES, PROFILE_RUNS = 6, 4  # of each module whose kernels are timed


class Sandbox:
    """Runs compiled modules of this process on made-up inputs, in a worker process that has its own copies of them.

    Use it as a context. What a model does there, its process ends with, and another one starts for the next question.
    For one thread.
    """

    def __init__(self, limit: float = LIMIT) -> None:
        """``limit``: seconds that a model may take for a run."""
        self.limit = limit
        self._server = ForkServer("burnish.measure.worker")
        self._worker: Worker | None = None
        self._loaded: list[Module] = []  # in the worker of now

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def launch(self) -> None:
        """Lets the process begin beside this one, so that the first question need not wait for it."""
        with suppress(WorkerError):  # the first question will tell
            self._server.launch()

    def close(self) -> None:
        """Ends all processes."""
        self._end()
        self._server.close()

    def compare(
        self,
        first: Module,
        second: Module,
        dtypes: Iterable[str] = (),
        *,
        exact: bool = False,
        timed: bool = True,
        seconds: float = MOST_SECONDS,
    ) -> Comparison:
        """Whether two modules with the same inputs give the same answers and, if so and ``timed``, which is faster.

        ``dtypes``: of the values inside of them, which say how far a kernel may err (:func:`tolerance`); independent
        errors of n kernels add up to the square root of n times as much. ``seconds``: most of the timing, but for the
        few rounds that it takes.
        Outcomes but ``ok``: ``wrong`` (the answers differ), ``crashed``, ``timeout``, and ``unavailable``: this process
        can start no other.
        """
        types = {*dtypes, *(spec.dtype for spec in (*first.inputs, *first.outputs))}
        kernels = max(1, *(len(module.executable.calls) for module in (first, second)))
        allowed = tolerance(types, exact)
        order = {"allowed": allowed * sqrt(kernels), "rounding": allowed / ROUNDINGS, "timed": timed}
        order["seconds"] = seconds
        try:
            answer = self._ask({"compare": self._numbers([first, second]), **order})
        except Failure as failure:
            outcome, error, culprit = failure.args
            return Comparison(outcome=outcome, error=error, culprit=culprit)
        if "wrong" in answer:
            return Comparison(outcome="wrong", error=answer["wrong"])
        found = compare_times(*answer["times"]) if timed else Comparison()
        return replace(found, difference=answer["difference"])

    def profiles(self, modules: Sequence[Module], rounds: int, runs: int) -> list[list[list[tuple[str, float]]]]:
        """By round and module every kernel call: see :func:`burnish.measure.comparison.profiled`. Raises Failure."""
        order = {"profile": self._numbers(modules), "rounds": rounds, "runs": runs}
        return [[[(node, took) for node, took in calls] for calls in each] for each in self._ask(order, calls=runs + 1)]

    def kernel_seconds(self, modules: Sequence[Module]) -> list[list[float]]:
        """What every kernel call takes, by module: the least median of several rounds counts, so that a slow moment of
        the machine is no kernel's fault. Raises Failure.
        """
        return [
            [min(seconds for _, seconds in calls) for calls in zip(*rounds, strict=True)]
            for rounds in zip(*self.profiles(modules, PROFILES, PROFILE_RUNS), strict=True)
        ]

    def _numbers(self, modules: Sequence[Module]) -> list[int]:
        """The worker's numbers of modules, after it has loaded them. Raises Failure."""
        if self._worker is None:
            try:
                self._worker = self._server.start("models")
            except WorkerError as error:
                raise Failure("unavailable", str(error), None) from error
        for module in modules:
            if not any(module is known for known in self._loaded):
                self._load(module)
        return [next(n for n, known in enumerate(self._loaded) if known is module) for module in modules]

    def _load(self, module: Module) -> None:
        header, sections = parts(module.executable)
        sizes = {name: len(data) for name, data in sections.items()}
        order = {"load": header, "bytes": sizes, "threads": module.threads}
        try:
            self._ask(order, list(sections.values()))
        except Failure as failure:
            raise Failure("unavailable", f"a model cannot be loaded: {failure.args[1]}", None) from failure
        self._loaded.append(module)

    def _ask(self, order: dict[str, Any], sections: Sequence[memoryview] = (), calls: int = 1) -> Any:
        """The worker's answer to an order, which ``sections`` follow. ``calls``: of a model between signs of life.

        Raises Failure, whose third argument is the position among the order's models of that which ran, if known.
        """
        assert self._worker is not None
        line, running = self._worker.line, None
        try:
            line.send_bytes(json.dumps(order).encode())
            for rest in sections:
                while rest:
                    rest = rest[os.write(line.fileno(), rest) :]
            while line.poll(calls * self.limit):
                words = json.loads(line.recv_bytes())
                if "answer" in words:
                    return words["answer"]
                if "failed" in words:
                    self._end()
                    raise Failure("crashed", words["failed"], running)
                running = words["running"]
        except (EOFError, OSError):
            raise Failure("crashed", f"the process {self._end()}", running) from None
        except BaseException:  # an interrupt: an answer may come that nobody waits for
            self._end()
            raise
        self._end()
        raise Failure("timeout", f"a run took longer than {self.limit:g} s", running)

    def _end(self) -> str:
        """Ends the worker; how it ended."""
        self._loaded.clear()
        if self._worker is None:
            return "did not run"
        worker, self._worker = self._worker, None
        return worker.end()
