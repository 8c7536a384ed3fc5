"""Workers on this machine, as threads or as processes: the embedded default, without torch or Ray."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from burnish.comm.messages import MessageComm
from burnish.comm.processes import run_processes
from burnish.comm.protocol import Comm
from burnish.comm.threads import Hub, ThreadTransport
from burnish.comm.worker import failure_of
from burnish.errors import BurnishError, ParameterError, WorkerError

TIMEOUT = 300.0  # seconds that a call waits for another worker, unless told otherwise

KINDS = ("thread", "process")


def launch(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], kind: str = "thread", timeout: float = TIMEOUT
) -> list[Any]:
    """``function(comm, *arguments[rank])`` on one worker for each element of `arguments`; the results by rank.

    `kind` is "thread", or "process": new interpreters, to which the function goes by name and the arguments and
    results as plain values (`burnish.workers.plain`). A worker that dies or fails ends the calls of all others. Raises
    the BurnishError that a worker raised, or WorkerError with the rank of the worker to blame.
    """
    if kind not in KINDS:
        raise ParameterError(f"launch: kind {kind!r}, allowed: {', '.join(KINDS)}")
    if not arguments:
        raise ParameterError("launch: no arguments, allowed: a tuple for each of at least one worker")
    if not timeout > 0:
        raise ParameterError(f"launch: timeout {timeout}, allowed: seconds above 0")
    return (run_processes if kind == "process" else _run_threads)(function, arguments, timeout)


def thread_comms(size: int, timeout: float = TIMEOUT) -> list[Comm]:
    """Communicators for `size` threads of this process, one for each."""
    hub = Hub(size, timeout)
    return [MessageComm(ThreadTransport(hub, rank)) for rank in range(size)]


def _run_threads(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], timeout: float) -> list[Any]:
    hub = Hub(len(arguments), timeout)
    results: list[Any] = [None] * hub.size
    failures: list[tuple[int, BaseException]] = []

    def work(rank: int) -> None:
        transport = ThreadTransport(hub, rank)
        try:
            results[rank] = function(MessageComm(transport), *arguments[rank])
            transport.close()
        except BaseException as error:
            failures.append((rank, error))
            hub.fail(failure_of(rank, error))

    threads = [threading.Thread(target=work, args=(rank,), name=f"worker-{rank}") for rank in range(hub.size)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt: the workers end at their next call
        hub.fail(WorkerError(-1, "the run was interrupted"))
        for thread in threads:
            thread.join()
        raise
    if failures:
        rank, error = min(failures, key=lambda failure: isinstance(failure[1], WorkerError))
        if isinstance(error, BurnishError):
            raise error
        raise failure_of(rank, error) from error
    return results
