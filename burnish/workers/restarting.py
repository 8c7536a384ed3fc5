"""Stateful worker process, restarted after a job has ended it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from burnish.workers.limits import ResourceLimits
from burnish.workers.outcome import Failure
from burnish.workers.worker import Worker


class RestartingWorker:
    """Runs jobs one at a time. For one thread; ``end`` it at last, or close the server that its workers come from.

    ``start`` gives a new worker when there is none. ``lost`` is called when one has ended, with all that it held.
    """

    def __init__(self, start: Callable[[], Worker], lost: Callable[[], None]) -> None:
        self._start = start
        self._lost = lost
        self._worker: Worker | None = None

    @property
    def pid(self) -> int | None:
        """The process of now, if there is one."""
        return None if self._worker is None else self._worker.pid

    def call(self, function: Callable[..., Any], *arguments: Any, limits: ResourceLimits | None = None) -> Any:
        """Result of a job. Raises Failure, with the last progress, if there is none; WorkerError without workers."""
        if self._worker is None:
            self._worker = self._start()
        last_sign: Any = None

        def hear(value: Any) -> None:
            nonlocal last_sign
            last_sign = value

        try:
            self._worker.submit(function, arguments, limits)
            outcome = self._worker.outcome(hear)
        except BaseException:  # an interrupt: an outcome may come that nobody waits for
            self.end()
            raise
        if outcome.kind not in ("ok", "error"):
            self._worker = None
            self._lost()
        if outcome.kind != "ok":
            raise Failure(outcome.kind, outcome.detail, last_sign) from outcome.known_error()
        return outcome.value

    def end(self) -> None:
        """Ends the worker; the next job begins in another."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.end()
            self._lost()
