"""A rank's job in a worker process: builds its communicator on inherited sockets, and runs the function on it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from burnish.comm.messages import MessageComm
from burnish.comm.shared import Rooms
from burnish.comm.sockets import SocketTransport
from burnish.errors import WorkerError


def run_rank(
    function: Callable[..., Any], arguments: Sequence[Any], rank: int, numbers: Sequence[int], timeout: float,
    rooms: Sequence[int],
) -> Any:  # fmt: skip
    """``function(comm, *arguments)``; ``numbers``: file descriptors of the sockets to the other ranks, in order;
    ``rooms``: those of all ranks' rooms.
    """
    size = len(numbers) + 1
    others = [other for other in range(size) if other != rank]
    connections = {other: socket.socket(fileno=number) for other, number in zip(others, numbers, strict=True)}
    transport = SocketTransport(rank, size, connections, timeout, Rooms(rank, rooms))
    comm = MessageComm(transport)
    try:
        result = function(comm, *arguments)
        comm.close()
    except BaseException as error:
        transport.fail(failure_of(rank, error))
        raise
    return result


def failure_of(rank: int, error: BaseException) -> WorkerError:
    """Worker failure, as its peers receive it."""
    if isinstance(error, WorkerError):
        return error
    return WorkerError(rank, f"worker {rank} failed: {type(error).__name__}: {error}")
