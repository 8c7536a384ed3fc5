"""Candidates to object code, in processes of their own; a build that fails is an outcome, not an error."""

from __future__ import annotations

import contextlib
import gc
import pickle
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing.connection import Connection, wait

from burnish.kernels.task import Choice, Task
from burnish.kernels.templates import template_called
from burnish.measure.forkserver import ForkServer, Worker
from burnish.pipeline.kernel import Kernel, compile_program, named, packing, task_key
from burnish.runtime.image import Image
from burnish.runtime.link import link
from burnish.schedule.prefix_cache import Steps
from burnish.schedule.schedule import Call, Schedule
from burnish.target import Target

PATIENCE = 4  # times the limit: seconds that may pass while a build computes less than that
STEPS = 1024  # programs between primitives that a worker remembers: those of some thirty candidates
YOUNG = 200_000  # objects, about those of a build: looking through them more often took a fifth of a build's time
_TIMED_OUT = signal.SIGPROF.name


@dataclass(frozen=True, eq=False)
class Trial:
    """One candidate to try: a task, the name of a template that matches it, and a choice for every knob of that."""

    task: Task
    template: str
    choice: Choice


@dataclass(frozen=True)
class Build:
    """What became of a trial: its kernel, linked, and its schedule's trace; or the ``error`` that there is none."""

    kernel: Kernel | None
    image: Image | None = None  # linked here because measuring, which nothing runs beside, would wait for it
    trace: Sequence[Call] = ()
    seconds: float = 0.0
    error: str = ""


@dataclass
class _Busy:
    number: int
    started: float = field(default_factory=time.monotonic)


class Builder:
    """Builds trials on ``workers`` processes of the server, each trial for at most ``limit`` seconds of processor time.

    What else the machine does so has no say in which candidates there are. One that waits for something, without
    computing, is given up after ``PATIENCE`` times as long.
    """

    def __init__(self, server: ForkServer, target: Target, workers: int, limit: float) -> None:
        self.target = target
        self.limit = limit
        self._server = server
        self._count = workers
        self._idle: list[Worker] = []
        self._packets: dict[int, tuple[Task, bytes]] = {}

    def build(self, trials: Sequence[Trial]) -> list[Build]:
        """What became of every trial, in their order. Raises WorkerError if there can be no workers."""
        results: list[Build | None] = [None] * len(trials)
        waiting = deque(range(len(trials)))
        busy: dict[Worker, _Busy] = {}
        try:
            while waiting or busy:
                while waiting and len(busy) < self._count:
                    number = waiting.popleft()
                    worker = self._idle.pop() if self._idle else self._server.start("build")
                    busy[worker] = _Busy(number)
                    self._order(worker, trials[number])
                for worker, result in self._answers(busy):
                    results[busy.pop(worker).number] = result
        except BaseException:  # an interrupt: the workers' lines hold answers that nobody wants any more
            for worker in {*busy, *self._idle}:
                worker.end()
            self._idle.clear()
            raise
        return [result for result in results if result is not None]

    def _order(self, worker: Worker, trial: Trial) -> None:
        with contextlib.suppress(OSError):  # it died while idle; its line tells so when it is read
            worker.line.send((self.packet(trial.task), self.target, trial.template, dict(trial.choice), self.limit))

    def packet(self, task: Task) -> bytes:
        """The task as bytes for workers, made once."""
        known = self._packets.get(id(task))
        if known is None or known[0] is not task:
            key = task_key(task, self.target)
            known = self._packets[id(task)] = (task, pickle.dumps(named(task, key)))
        return known[1]

    def _answers(self, busy: dict[Worker, _Busy]) -> list[tuple[Worker, Build]]:
        """Those of workers that have finished, died, or taken too long, as soon as there is one."""
        patience = PATIENCE * self.limit
        until = min(each.started for each in busy.values()) + patience
        ready = wait([worker.line for worker in busy], max(0.0, until - time.monotonic()))
        found = []
        for worker, each in busy.items():
            if worker.line in ready:
                try:
                    found.append((worker, worker.line.recv()))
                    self._idle.append(worker)
                except (EOFError, OSError):
                    how = worker.end()
                    if how.endswith(_TIMED_OUT):
                        how = f"took longer than {self.limit:g} s of processor time"
                    found.append((worker, Build(None, error=f"the compiler {how}")))
            elif time.monotonic() - each.started >= patience:
                worker.end()
                found.append((worker, Build(None, error=f"the compiler took longer than {patience:g} s")))
        return found


@lru_cache(maxsize=16)
def unpack(packet: bytes) -> Task:
    """The task in a packet: always the same object for the same packet, which caches by identity are grateful for."""
    return pickle.loads(packet)  # noqa: S301 - from the process that owns this one, through an inherited socket


def collect_rarely() -> None:
    """From now on this process seldom looks for garbage, and never among what it has already."""
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)


def work(line: Connection) -> None:
    """The life of a building worker."""
    collect_rarely()
    Schedule.steps = Steps(STEPS)
    while True:
        packet, target, template, choice, limit = line.recv()
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_PROF, limit)  # ends the process, in the midst of LLVM too
        try:
            result = build(unpack(packet), target, template, choice)
        except Exception as error:
            result = Build(None, error=f"{type(error).__name__}: {error}")
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        line.send(replace(result, seconds=time.perf_counter() - started))


def build(task: Task, target: Target, template: str, choice: Choice) -> Build:
    """Schedules, lowers, compiles and links. Raises ScheduleError, and what else a wrong schedule may lead to.

    Of choices that make no difference the code is the same, and where steps are remembered not compiled again.
    """
    made = template_called(template, target).on(task, target).apply(choice)
    packed = packing(made.trace, task)

    def compiled() -> tuple[Kernel, Image]:
        kernel = compile_program(made.program, target, packed, template, choice)
        return kernel, link({kernel.symbol: kernel.code})

    kernel, image = made.steps.after(made.program, target, compiled) if made.steps else compiled()
    return Build(replace(kernel, packing=packed, template=template, choice=choice), image, made.trace)
