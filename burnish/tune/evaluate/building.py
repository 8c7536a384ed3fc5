"""Parallel compilation of candidates in worker processes; a build that fails is an outcome, not an error."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache

from burnish.base.garbage import collect_rarely
from burnish.codegen.gridcode import GridCode
from burnish.kernels.task import Choice, KernelTask
from burnish.kernels.templates import template_called
from burnish.machines.target import Target
from burnish.pipeline.kernel import CompiledKernel, compile_program, named, packing, task_key
from burnish.runtime.image import Image
from burnish.runtime.link import link
from burnish.schedule.prefix_cache import Steps
from burnish.schedule.schedule import Call, Schedule
from burnish.tune.features.assembled import assembled
from burnish.workers import ForkServer, Job, JobOutcome, ResourceLimits, WorkerPool
from burnish.workers.plain import decode, encode

STEPS = 1024  # programs between primitives that a worker remembers: those of some thirty candidates


@dataclass(frozen=True, eq=False)
class KernelTrial:
    """Trial of one candidate: a task, the name of a template that matches it, and a choice for every knob of that."""

    task: KernelTask
    template: str
    choice: Choice


@dataclass(frozen=True)
class Build:
    """Build result of a trial: its kernel, linked, and its schedule's trace; or the ``error`` that there is none.

    ``assembled``: of a kernel for a grid of threads, what its assembler reports (``tune/features/assembled.py``).
    """

    kernel: CompiledKernel | None
    image: Image | None = None  # linked here because measuring, which nothing runs beside, would wait for it
    trace: Sequence[Call] = ()
    seconds: float = 0.0
    error: str = ""
    assembled: Mapping[str, float] = field(default_factory=dict)


class TrialBuilder:
    """Builds trials on ``workers`` processes of the server, each trial for at most ``limit`` seconds of processor time.

    What else the machine does so has no say in which candidates there are. One that waits for something, without
    computing, is given up after :data:`burnish.workers.worker.PATIENCE` times as long.
    """

    def __init__(self, server: ForkServer, target: Target, workers: int, limit: float) -> None:
        self.target = target
        self.limit = limit
        self._pool = WorkerPool(server.start, workers)
        self._packets: dict[int, tuple[KernelTask, str]] = {}

    def build(self, trials: Sequence[KernelTrial]) -> list[Build]:
        """Parallel build of trials; results in their order. Raises WorkerError if there can be no workers."""
        results: list[Build | None] = [None] * len(trials)
        jobs = (self._job(number, trial) for number, trial in enumerate(trials))
        with closing(self._pool.run(lambda: next(jobs, None))) as events:
            for job, event in events:
                if isinstance(event, JobOutcome):
                    results[job.tag] = _outcome(event)
        return [result for result in results if result is not None]

    def _job(self, number: int, trial: KernelTrial) -> Job:
        arguments = (self.packet(trial.task), self.target, trial.template, dict(trial.choice))
        return Job(build_packet, arguments, ResourceLimits(processor_seconds=self.limit), number)

    def packet(self, task: KernelTask) -> str:
        """The task as text for workers, made once."""
        known = self._packets.get(id(task))
        if known is None or known[0] is not task:
            text, arrays = encode(named(task, task_key(task, self.target)), "tuning: task")
            assert not arrays, "a definition holds no arrays"
            known = self._packets[id(task)] = (task, text)
        return known[1]


def _outcome(found: JobOutcome) -> Build:
    if found.kind == "ok":
        return found.value
    words = found.detail if found.kind in ("error", "out of memory") else f"the compiler {found.detail}"
    return Build(None, error=words)


@lru_cache(maxsize=16)
def unpack(packet: str) -> KernelTask:
    """The task in a packet: always the same object for the same packet, which caches by identity are grateful for."""
    return decode(packet, [])


@cache
def _begin() -> None:
    """Once in a worker."""
    collect_rarely()
    Schedule.steps = Steps(STEPS)


def build_packet(packet: str, target: Target, template: str, choice: Choice) -> Build:
    """A worker's job: see :func:`build`; what that raises is the error of the build."""
    _begin()
    started = time.perf_counter()
    try:
        result = build(unpack(packet), target, template, choice)
    except Exception as error:
        result = Build(None, error=f"{type(error).__name__}: {error}")
    return replace(result, seconds=time.perf_counter() - started)


def build(task: KernelTask, target: Target, template: str, choice: Choice) -> Build:
    """Schedules, lowers, compiles and links. Raises ScheduleError, and what else a wrong schedule may lead to; also for
    a kernel for a grid of threads that does not fit their registers.

    Of choices that make no difference the code is the same, and where steps are remembered not compiled again.
    """
    made = template_called(template, target).on(task, target).apply(choice)
    packed = packing(made.trace, task)

    def compiled() -> tuple[CompiledKernel, Image | None, Mapping[str, float]]:
        kernel = compile_program(made.program, target, packed, template, choice)
        if target.machine.dialect.grid is not None:  # its device loads it
            return kernel, None, assembled(GridCode.unpacked(kernel.code))
        return kernel, link({kernel.symbol: kernel.code}), {}

    kernel, image, found = made.steps.after(made.program, target, compiled) if made.steps else compiled()
    own = replace(kernel, packing=packed, template=template, choice=choice)
    return Build(own, image, made.trace, assembled=found)
