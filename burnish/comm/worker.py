"""A worker process: started by `burnish.comm.processes`, which tells it on an inherited socket what to run."""

import contextlib
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from burnish.comm.control import ValueReader, send_value
from burnish.comm.messages import MessageComm
from burnish.comm.plain import resolve
from burnish.comm.protocol import Comm
from burnish.comm.sockets import SocketTransport
from burnish.errors import ParameterError, WorkerError

Fail = Callable[[WorkerError], None]


def main(numbers: list[str]) -> None:
    """Runs one function between the sockets of the given file numbers: the supervisor's, then each other worker's."""
    control = socket.socket(fileno=int(numbers[0]))
    orders = ValueReader(-1, control).read()
    if not orders:
        return
    threading.Thread(target=_end_with_supervisor, args=(control,), daemon=True).start()
    order: dict[str, Any] = orders[0]
    rank, size = order["rank"], order["size"]
    others = [other for other in range(size) if other != rank]
    connections = {other: socket.socket(fileno=int(number)) for other, number in zip(others, numbers[1:], strict=True)}
    transport = SocketTransport(rank, size, connections, order["timeout"])

    def run(comm: Comm, *arguments: Any) -> Any:
        return resolve(order["function"])(comm, *arguments)

    told = answer(run, MessageComm(transport), order["arguments"], rank, transport.fail)
    for stream in (sys.stdout, sys.stderr):  # once it has the answer, the supervisor ends this process
        stream.flush()
    try:
        send_value(control, told, f"result of worker {rank}")
    except ParameterError as error:
        send_value(control, {"error": report(rank, error)}, "error")


def _end_with_supervisor(control: socket.socket) -> None:
    """Nothing more comes from the supervisor but the end of the line, if it dies; then nobody wants the answer."""
    with contextlib.suppress(OSError):
        if control.recv(1) == b"":
            os._exit(1)


def failure_of(rank: int, error: BaseException) -> WorkerError:
    """What ended a worker, as its peers are told."""
    if isinstance(error, WorkerError):
        return error
    return WorkerError(rank, f"worker {rank} failed: {type(error).__name__}: {error}")


def answer(function: Callable[..., Any], comm: Comm, arguments: Sequence[Any], rank: int, fail: Fail) -> dict[str, Any]:
    """What a supervisor is told: the result of a worker's function, or the error that ended it."""
    try:
        result = function(comm, *arguments)
        comm.close()
    except BaseException as error:
        fail(failure_of(rank, error))
        return {"error": report(rank, error)}
    return {"result": result}


def report(rank: int, error: BaseException) -> dict[str, Any]:
    """What ended a worker, as its supervisor is told."""
    return {
        "rank": error.rank if isinstance(error, WorkerError) else rank,
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }
