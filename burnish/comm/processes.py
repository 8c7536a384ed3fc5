"""Starts worker processes, gives each its function and arguments, and watches until all have answered or one died."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import burnish.errors
from burnish.comm.control import ValueReader, send_value
from burnish.comm.plain import reference
from burnish.errors import BurnishError, WorkerError

_MAIN = "import sys; from burnish.comm.worker import main; main(sys.argv[1:])"
_GRACE = 2.0  # seconds for the others to end by themselves once one has failed


@dataclass
class _Child:
    rank: int
    process: subprocess.Popen[bytes]
    control: socket.socket
    answer: dict[str, Any] | None = None
    ended: bool = False

    def death(self) -> WorkerError:
        """What is known of a process that closed its line without an answer."""
        try:
            code = self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            return WorkerError(self.rank, f"worker {self.rank} (process {self.process.pid}) closed its line")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return WorkerError(self.rank, f"worker {self.rank} (process {self.process.pid}) {how}")


def run_processes(function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], timeout: float) -> list[Any]:
    """``function(comm, *arguments[rank])`` in a new process for each rank; the results by rank.

    Raises WorkerError, or the BurnishError that a worker raised; no process is left behind.
    """
    named = reference(function, "launch: function")
    children = _start(len(arguments))
    try:
        for child, given in zip(children, arguments, strict=True):
            order = {
                "rank": child.rank, "size": len(children), "timeout": timeout, "function": named,
                "arguments": list(given),
            }  # fmt: skip
            child.control.settimeout(timeout)
            with contextlib.suppress(OSError):  # it has died: the watch finds out how
                send_value(child.control, order, f"launch: arguments of worker {child.rank}")
            child.control.setblocking(False)
        _watch(children)
        return [child.answer["result"] for child in children if child.answer is not None]
    finally:
        for child in children:
            child.control.close()
            child.process.kill()
        for child in children:
            child.process.wait()


def _start(size: int) -> list[_Child]:
    """The processes, each with a socket to this one and one to every other worker."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for one in range(size):
        for other in range(one + 1, size):
            ends[one][other], ends[other][one] = socket.socketpair()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    children: list[_Child] = []
    try:
        for rank in range(size):
            ours, theirs = socket.socketpair()
            with theirs:
                numbers = [theirs.fileno(), *(ends[rank][other].fileno() for other in sorted(ends[rank]))]
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _MAIN, *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=numbers,
                    env=environment,
                )
            children.append(_Child(rank, process, ours))
    except BaseException:
        for child in children:
            child.control.close()
            child.process.kill()
            child.process.wait()
        raise
    finally:
        for sockets in ends:
            for end in sockets.values():
                end.close()
    return children


def _watch(children: Sequence[_Child]) -> None:
    """Ends when every worker has answered. Raises what ended the first that failed, as far as can be known."""
    failures: list[tuple[int, BurnishError]] = []  # least number: most likely the cause
    stop: float | None = None
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.control, selectors.EVENT_READ, (child, ValueReader(child.rank, child.control)))
        while selector.get_map():
            ready = selector.select(None if stop is None else max(0.0, stop - time.monotonic()))
            if not ready and stop is not None:
                break
            for key, _ in ready:
                child, reader = key.data
                values = reader.read()
                if values == []:
                    continue
                selector.unregister(child.control)
                child.answer = values[0] if values else None
                if child.answer is None:
                    failures.append((0, child.death()))
                elif "error" in child.answer:
                    failures.append(failure(child.answer["error"], child.rank))
            if failures and stop is None:
                stop = time.monotonic() + _GRACE
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]


def failure(told: dict[str, Any], rank: int) -> tuple[int, BurnishError]:
    """The error that a worker told of, as an error of this process; with a number, least for the likeliest cause."""
    kind = getattr(burnish.errors, told["type"], None)
    if told["type"] == "WorkerError":
        return 2, WorkerError(told["rank"], told["message"])
    if isinstance(kind, type) and issubclass(kind, BurnishError):
        return 1, kind(f"worker {rank}: {told['message']}")
    error = WorkerError(rank, f"worker {rank} failed: {told['type']}: {told['message']}")
    error.add_note(told["traceback"])
    return 1, error
