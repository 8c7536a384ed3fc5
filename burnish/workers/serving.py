"""Worker's side: takes jobs from its line, runs them in turn within their limits, tells what became of each."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import traceback
from typing import Any

from burnish.errors import ParameterError, WorkerError
from burnish.workers.limits import limit_memory, limit_processor
from burnish.workers.line import Allocate, MessageLine, ordinary
from burnish.workers.plain import Array, decode

_line: MessageLine | None = None  # of this process, if it is a worker


def tell(value: Any = None) -> None:
    """A sign of life of the job that runs: its time begins anew. In a process that is no worker nothing happens."""
    if _line is not None:
        _line.send({"progress": value}, "tell: value")


def serve(end: socket.socket, allocate: Allocate = ordinary) -> None:
    """The life of a worker: jobs from this socket, until the owner closes its end.

    ``allocate``: memory for arrays that arrive; they do not count to the memory of a job.
    """
    global _line

    def with_room(nbytes: int) -> Array:
        limit_memory(None)
        return allocate(nbytes)

    _line = MessageLine(end, None, with_room)
    with contextlib.suppress(EOFError, OSError):  # the owner has gone
        _line.send({"began": True}, "begin")
        while True:
            text, arrays = _line.receive_encoded()
            reply = run(text, arrays)
            for stream in (sys.stdout, sys.stderr):  # the owner may end this process once it has the outcome
                stream.flush()
            try:
                _line.send(reply, reply.pop("where", "error"))
            except ParameterError as error:
                _line.send({"error": report(error)}, "error")
            del text, arrays, reply  # not for as long as the next job takes to come


def run(text: str, arrays: list[Array]) -> dict[str, Any]:
    """Job report to its owner: its ``result``, the ``error`` that it raised, or ``memory``, that it ran out of it."""
    try:
        order = decode(text, arrays)
        memory, processor_seconds = order["limits"]
        limit_memory(memory)
        limit_processor(processor_seconds)
        return {"result": order["function"](*order["arguments"]), "where": order["where"]}
    except MemoryError as error:
        return {"memory": f"{type(error).__name__}: {error}"}
    except BaseException as error:
        return {"error": report(error)}
    finally:
        limit_processor(None)


def report(error: BaseException) -> dict[str, Any]:
    """An error as plain values; see :class:`burnish.workers.JobOutcome`."""
    return {
        "rank": error.rank if isinstance(error, WorkerError) else None,
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def main(number: int) -> None:
    """The main function of a worker that is an interpreter of its own; ``number``: the file descriptor of its line."""
    end = socket.socket(fileno=number)
    threading.Thread(target=_end_with_owner, args=(number,), daemon=True).start()
    serve(end)


def _end_with_owner(number: int) -> None:
    """Ends this process when the owner has gone, in the midst of a job too: nobody wants its outcome."""
    hung_up = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
    poll = select.poll()
    poll.register(number, hung_up)
    poll.poll()
    os._exit(1)
