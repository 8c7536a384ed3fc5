"""Pool of workers: jobs go to whichever is free; a worker that a job took with it is replaced for the next."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from burnish.workers.limits import ResourceLimits
from burnish.workers.outcome import JobOutcome, JobProgress
from burnish.workers.worker import Worker, wait


@dataclass(frozen=True, eq=False)
class Job:
    """``function(*arguments)`` within limits; see :meth:`burnish.workers.Worker.submit`. ``tag``: what its owner knows
    it by.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    limits: ResourceLimits | None = None
    tag: Any = None


class WorkerPool:
    """At most ``count`` workers of ``start``, each for at most ``life`` jobs (None: any number). For one thread.

    Workers stay for later runs. Use it as a context, or call ``close``: both end them.
    """

    def __init__(self, start: Callable[[], Worker], count: int, life: int | None = None) -> None:
        self._start = start
        self._count = count
        self._life = life
        self._idle: list[Worker] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers."""
        while self._idle:
            self._idle.pop().end()

    def run(self, next_job: Callable[[], Job | None]) -> Generator[tuple[Job, JobProgress | JobOutcome]]:
        """Job events as they come: progress, and the outcome of every job.

        ``next_job`` is asked whenever a worker is free; after None it is asked again when another outcome was taken.
        Jobs under way are cancelled, and their workers ended, by an exception and when the generator is closed. Raises
        WorkerError if there can be no workers.
        """
        busy: dict[Worker, Job] = {}
        try:
            while True:
                while len(busy) < self._count and (job := next_job()) is not None:
                    worker = self._idle.pop() if self._idle else self._start()
                    busy[worker] = job
                    worker.submit(job.function, job.arguments, job.limits)
                if not busy:
                    return
                for worker, event in wait(busy):
                    job = busy[worker]
                    if isinstance(event, JobOutcome):
                        del busy[worker]
                        self._release(worker, event)
                    yield job, event
        finally:
            for worker in busy:
                worker.end()

    def _release(self, worker: Worker, outcome: JobOutcome) -> None:
        if outcome.kind in ("ok", "error"):
            if self._life is not None and worker.jobs >= self._life:
                worker.end()
            else:
                self._idle.append(worker)
