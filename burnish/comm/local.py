"""Workers on this machine, as threads or as processes: the embedded default, without torch or Ray."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
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


class WorkerThreads:
    """Worker threads that stay, each with a communicator: each order goes to all of them at once.

    After a worker has failed, every later order raises WorkerError.
    """

    def __init__(self, size: int, timeout: float = TIMEOUT) -> None:
        """``size`` threads, which the first order starts; they wait ``timeout`` seconds for one another."""
        self._hub = Hub(size, timeout)
        self._orders: list[SimpleQueue[Callable[[Comm], Any] | None]] = [SimpleQueue() for _ in range(size)]
        self._done: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._threads = [
            threading.Thread(target=_serve, args=(self._hub, rank, self._orders[rank], self._done), daemon=True,
                             name=f"worker-{rank}")
            for rank in range(size)
        ]  # fmt: skip

    def run(self, function: Callable[[Comm], Any]) -> list[Any]:
        """``function(comm)`` on all workers; the results by rank. Raises as :func:`launch`."""
        if self._hub.failure is not None:
            raise self._hub.failure
        for order, thread in zip(self._orders, self._threads, strict=True):
            order.put(function)
            if thread.ident is None:
                thread.start()
        results: dict[int, Any] = {}
        failures: list[tuple[int, BaseException]] = []
        interrupt: BaseException | None = None
        while len(results) + len(failures) < self._hub.size:
            try:
                rank, result, failure = self._done.get()
            except BaseException as stopped:  # an interrupt: the workers end at their next call
                self._hub.fail(WorkerError(-1, "the run was interrupted"))
                interrupt = stopped
                continue
            if failure is None:
                results[rank] = result
            else:
                failures.append((rank, failure))
        if interrupt is not None:
            raise interrupt
        if failures:
            rank, error = min(failures, key=lambda failure: isinstance(failure[1], WorkerError))
            if isinstance(error, BurnishError):
                raise error
            raise failure_of(rank, error) from error
        return [results[rank] for rank in range(self._hub.size)]

    def dismiss(self) -> None:
        """Lets the threads end after what they have to do."""
        for order in self._orders:
            order.put(None)

    def close(self) -> None:
        """Ends the threads, and waits for that."""
        self.dismiss()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()


def _serve(hub: Hub, rank: int, orders: SimpleQueue[Any], done: SimpleQueue[Any]) -> None:
    """Carries out the orders of one worker until there is None; its communicator is one for all."""
    transport = ThreadTransport(hub, rank)
    comm = MessageComm(transport)
    while (function := orders.get()) is not None:
        try:
            done.put((rank, function(comm), None))
        except BaseException as error:
            done.put((rank, None, error))  # before it ends the others' calls: the first error is the one to tell
            hub.fail(failure_of(rank, error))
        del function  # which may hold what is freed while this waits
    transport.close()


def _run_threads(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], timeout: float) -> list[Any]:
    workers = WorkerThreads(len(arguments), timeout)
    try:
        return workers.run(partial(_called, function, arguments))
    finally:
        workers.close()


def _called(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], comm: Comm) -> Any:
    result = function(comm, *arguments[comm.rank])
    comm.close()  # or a worker that still needs this one would wait
    return result
