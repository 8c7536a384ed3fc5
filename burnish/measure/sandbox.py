"""Sandbox process for compiled models that may crash, hang or compute nonsense: nothing of it reaches this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import sqrt
from typing import Any, Self

import numpy as np

from burnish.errors import WorkerError
from burnish.machines.machine import Machine
from burnish.measure import worker
from burnish.measure.accuracy import ROUNDINGS, tolerance
from burnish.measure.comparison import MOST_SECONDS, Comparison, compare_times
from burnish.runtime.artifact import parts
from burnish.runtime.devices import device_maker
from burnish.runtime.module import Module
from burnish.workers import Failure, ForkServer, ResourceLimits, RestartingWorker
from burnish.workers.limits import MEMORY

LIMIT = 60.0  # seconds that one model may run, or load, without a sign of life
PROFILES, PROFILE_RUNS = 6, 4  # of each module whose kernels are timed


class Sandbox:
    """Runs compiled modules of this process on made-up inputs, in a worker process that has its own copies of them.

    Use it as a context. What a model does there, its process ends with, and another one starts for the next question.
    For one thread.
    """

    def __init__(self, limit: float = LIMIT, machine: Machine | None = None) -> None:
        """``limit``: seconds that a model may take for a run. ``machine``: what the modules are for, whose device runs
        them if it has one (None: the CPU, or what their architecture has).
        """
        self.limit = limit
        self._device = machine if machine is not None and device_maker(machine) is not None else None
        self._server = ForkServer("burnish.measure.worker")
        self._loaded: list[Module] = []  # in the worker of now
        self._worker = RestartingWorker(self._server.start, self._loaded.clear)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def launch(self) -> None:
        """Starts the process in the background, so that the first question need not wait for it."""
        with suppress(WorkerError):  # the first question will tell
            self._server.launch()

    def close(self) -> None:
        """Ends all processes."""
        self._worker.end()
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
        errors, most = (allowed * sqrt(kernels), allowed / ROUNDINGS), seconds if timed else None
        try:
            answer = self._ask(worker.compare_loaded, *self._numbers([first, second]), *errors, most)
        except Failure as failure:
            return Comparison(outcome=failure.kind, error=failure.detail, culprit=failure.progress)
        if "wrong" in answer:
            return Comparison(outcome="wrong", error=answer["wrong"])
        found = compare_times(*answer["times"]) if timed else Comparison()
        return replace(found, difference=answer["difference"])

    def profiles(self, modules: Sequence[Module], rounds: int, runs: int) -> list[list[list[tuple[str, float]]]]:
        """Kernel profiles by round and module: see :func:`burnish.measure.comparison.profiled`. Raises Failure."""
        return self._ask(worker.profile_loaded, self._numbers(modules), rounds, runs, calls=runs + 1)

    def kernel_seconds(self, modules: Sequence[Module]) -> list[list[float]]:
        """Seconds of every kernel call, by module: the least median of several rounds counts, so that a slow moment of
        the machine is no kernel's fault. Raises Failure.
        """
        return [
            [min(seconds for _, seconds in calls) for calls in zip(*rounds, strict=True)]
            for rounds in zip(*self.profiles(modules, PROFILES, PROFILE_RUNS), strict=True)
        ]

    def _numbers(self, modules: Sequence[Module]) -> list[int]:
        """The worker's numbers of modules, after it has loaded them. Raises Failure."""
        for module in modules:
            if not any(module is known for known in self._loaded):
                self._load(module)
        return [next(n for n, known in enumerate(self._loaded) if known is module) for module in modules]

    def _load(self, module: Module) -> None:
        header, sections = parts(module.executable)
        sizes = sum(len(data) for data in sections.values())
        memory = MEMORY + 2 * sizes + 2 * header["arena_bytes"] + module.threads * header["scratch_bytes"]
        arrays = {name: np.frombuffer(data, np.uint8) for name, data in sections.items()}
        try:
            self._ask(worker.load, header, arrays, module.threads, self._device, memory=memory)
        except Failure as failure:
            if failure.kind == "unavailable":
                raise
            raise Failure("unavailable", f"a model cannot be loaded: {failure.detail}") from failure
        self._loaded.append(module)

    def _ask(self, function: Callable[..., Any], *arguments: Any, calls: int = 1, memory: int = MEMORY) -> Any:
        """Result of a job. ``calls``: of a model between signs of life. Raises Failure, which carries the position
        among the job's models of the one that ran, if known.
        """
        # The driver of a GPU reserves hundreds of gigabytes of addresses.
        limits = ResourceLimits(calls * self.limit, memory=memory if self._device is None else None)
        try:
            return self._worker.call(function, *arguments, limits=limits)
        except WorkerError as error:
            raise Failure("unavailable", str(error)) from error
        except Failure as failure:
            if failure.kind == "error":  # such as a kernel that cannot be loaded: nothing is known of the others
                self._worker.end()
                raise Failure("crashed", failure.detail, failure.progress) from failure
            if failure.kind == "timeout":
                raise Failure("timeout", f"a run took longer than {self.limit:g} s", failure.progress) from failure
            raise Failure("crashed", f"the process {failure.detail}", failure.progress) from failure
