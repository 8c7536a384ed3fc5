"""Ranks as worker processes of this machine: starts one for each, and watches until all have answered or one failed."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import burnish.errors
from burnish.comm.shared import make_rooms
from burnish.comm.worker import run_rank
from burnish.errors import BurnishError, WorkerError
from burnish.workers import JobOutcome, ResourceLimits, Worker, spawn, wait
from burnish.workers.plain import reference

_GRACE = 2.0  # seconds for the others to end by themselves once one has failed
_LIMITS = ResourceLimits(memory=None)  # of a rank: it is trusted, and runs for as long as it wants


def run_processes(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], timeout: float) -> list[Any]:
    """``function(comm, *arguments[rank])`` in a new process for each rank; the results by rank.

    Raises WorkerError, or the BurnishError that a worker raised; no process is left behind.
    """
    reference(function, "launch: function")
    workers, numbers, rooms = _start(len(arguments))
    try:
        for rank, (worker, given) in enumerate(zip(workers, arguments, strict=True)):
            order = (function, list(given), rank, numbers[rank], timeout, rooms)
            worker.submit(run_rank, order, _LIMITS, where=f"launch: worker {rank}")
        return _watch(workers)
    finally:
        for worker in workers:
            worker.end()


def _start(size: int) -> tuple[list[Worker], list[list[int]], list[int]]:
    """The workers, by rank the numbers of their sockets to every other one, and those of the rooms that all share."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for one in range(size):
        for other in range(one + 1, size):
            ends[one][other], ends[other][one] = socket.socketpair()
    numbers = [[ends[rank][other].fileno() for other in sorted(ends[rank])] for rank in range(size)]
    workers: list[Worker] = []
    rooms = make_rooms(size)
    try:
        for rank in range(size):
            workers.append(spawn([*numbers[rank], *rooms]))
    except BaseException:
        for worker in workers:
            worker.end()
        raise
    finally:
        for sockets in ends:
            for end in sockets.values():
                end.close()
        for room in rooms:
            os.close(room)
    return workers, numbers, rooms


def _watch(workers: Sequence[Worker]) -> list[Any]:
    """The results by rank, when every worker has answered. Raises what ended the first that failed, as far as known."""
    results: list[Any] = [None] * len(workers)
    failures: list[tuple[int, BurnishError]] = []  # least number: most likely the cause
    waiting = {worker: rank for rank, worker in enumerate(workers)}
    stop: float | None = None
    while waiting:
        left = None if stop is None else stop - time.monotonic()
        if left is not None and left <= 0:
            break
        for worker, event in wait(waiting, left):
            if not isinstance(event, JobOutcome):
                continue
            rank = waiting.pop(worker)
            results[rank] = event.value
            if event.error is not None:
                failures.append(failure(event.error, rank))
            elif event.kind != "ok":
                failures.append((0, WorkerError(rank, f"worker {rank} (process {worker.pid}) {event.detail}")))
        if failures and stop is None:
            stop = time.monotonic() + _GRACE
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]
    return results


def failure(description: Mapping[str, Any], rank: int) -> tuple[int, BurnishError]:
    """Reported error of a worker, as an error of this process; with a number, least for the likeliest cause."""
    kind = getattr(burnish.errors, description["type"], None)
    if description["type"] == "WorkerError":
        return 2, WorkerError(description["rank"], description["message"])
    if isinstance(kind, type) and issubclass(kind, BurnishError):
        return 1, kind(f"worker {rank}: {description['message']}")
    error = WorkerError(rank, f"worker {rank} failed: {description['type']}: {description['message']}")
    error.add_note(description["traceback"])
    return 1, error
