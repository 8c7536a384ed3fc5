"""Workers that talk through torch.distributed (gloo): the same collectives, on messages that gloo carries."""

import os
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from burnish.base.optional import require
from burnish.comm.frames import begin, head, payload
from burnish.comm.local import TIMEOUT
from burnish.comm.messages import ArrayMessage, MessageComm
from burnish.comm.processes import run_processes
from burnish.comm.protocol import Comm
from burnish.comm.worker import failure_of
from burnish.errors import WorkerError
from burnish.workers.plain import reference, resolve

_FIRST = 8192  # bytes of the first part of every message; what does not fit follows as a second part
_FAILURE = -2  # channel of the message that says: worker `tag` is the cause of a failure, described by the words


class TorchTransport:
    """One worker's end of a gloo process group (None: torch's default); see `burnish.comm.messages.Transport`.

    gloo knows of a death only where it waits for the dead; others hear of it from those, who say so as they fail.
    """

    def __init__(self, timeout: float = TIMEOUT, process_group: Any = None) -> None:
        self._torch = require("torch", "distributed")
        self._gloo = require("torch.distributed", "distributed")
        self._group = process_group
        self.rank: int = self._gloo.get_rank(process_group)
        self.size: int = self._gloo.get_world_size(process_group)
        self._timeout = timeout
        self._mail: dict[tuple[int, int, int], deque[ArrayMessage]] = defaultdict(deque)
        self._unwatched: deque[Callable[[], None]] = deque()  # messages under way for which no call waits

    def post(self, to: int, message: ArrayMessage) -> Callable[[], None]:
        """Begins to send. gloo delivers once the receiver asks: only collectives, which know that it does, wait."""
        if to == self.rank:
            self._mail[to, message.channel, message.tag].append(replace(message, array=message.array.copy()))
            return _nothing
        if not message.channel & 1:
            return self._send(to, message)
        self._unwatched.append(self._send(to, replace(message, array=message.array.copy())))
        return _nothing

    def take(self, source: int, channel: int, tag: int, what: str) -> ArrayMessage:
        """The next message of that channel and tag from `source`; others that come before it are kept."""
        key = (source, channel, tag)
        if source == self.rank and not self._mail.get(key):
            raise WorkerError(source, f"{what}: worker {source} waits for what it has not sent to itself")
        while not self._mail.get(key):
            message = self._receive(source, what)
            if message.channel == _FAILURE:
                raise WorkerError(message.tag, message.what)
            self._mail[source, message.channel, message.tag].append(message)
        message = self._mail[key].popleft()
        if not self._mail[key]:
            del self._mail[key]
        return message

    def close(self) -> None:
        """Waits until all messages have been taken, so that this worker may end."""
        while self._unwatched:
            self._unwatched.popleft()()

    def fail(self, error: WorkerError) -> None:
        """Tells the other workers what ended this one; a second is all it waits for them."""
        words = ArrayMessage(_FAILURE, error.rank, str(error), np.empty(0, np.uint8))
        self._timeout = min(self._timeout, 1.0)
        pending = []
        for rank in range(self.size):
            if rank != self.rank:
                try:
                    pending.append(self._send(rank, words))
                except WorkerError:
                    continue  # it is gone
        for done in pending:
            try:
                done()
            except WorkerError:
                self._timeout = 0.1

    def _send(self, to: int, message: ArrayMessage) -> Callable[[], None]:
        words, content = head(message), np.frombuffer(payload(message.array), np.uint8)
        first = np.zeros(_FIRST, np.uint8)
        first[: len(words)] = np.frombuffer(words, np.uint8)
        parts = [first]
        if len(words) + len(content) <= _FIRST:
            first[len(words) : len(words) + len(content)] = content
        else:
            parts.append(content)
        tensors = [self._torch.from_numpy(part) for part in parts]
        with _Named(to, message.what, self._timeout):
            works = [self._gloo.isend(tensor, group=self._group, group_dst=to) for tensor in tensors]

        def done() -> None:
            with _Named(to, message.what, self._timeout):
                for work in works:
                    work.wait(timedelta(seconds=self._timeout))
            tensors.clear()  # they had to live until here

        return done

    def _receive(self, source: int, what: str) -> ArrayMessage:
        first = np.empty(_FIRST, np.uint8)
        self._fill(first, source, what)
        begun = begin(memoryview(first.data), source)
        if begun is None:
            raise WorkerError(source, f"worker {source} sent bytes that are no frame")
        message, length = begun
        content = np.frombuffer(payload(message.array), np.uint8)
        if length + len(content) <= _FIRST:
            content[:] = first[length : length + len(content)]
        else:
            self._fill(content, source, what)
        return message

    def _fill(self, room: Any, source: int, what: str) -> None:
        with _Named(source, what, self._timeout):
            work = self._gloo.irecv(self._torch.from_numpy(room), group=self._group, group_src=source)
            work.wait(timedelta(seconds=self._timeout))


class _Named:
    """Turns gloo's errors, which give addresses, into ones that give ranks."""

    def __init__(self, rank: int, what: str, timeout: float) -> None:
        self._rank, self._what, self._timeout = rank, what, timeout

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError):
            if "imed out" in str(error):
                message = f"{self._what}: worker {self._rank} did not answer within {self._timeout:g} s"
            else:
                message = f"worker {self._rank} died: {str(error).splitlines()[0]}"
            raise WorkerError(self._rank, message) from error


def torch_comm(rank: int, size: int, init_method: str, timeout: float = TIMEOUT) -> Comm:
    """Joins a new gloo process group as torch's default one, and returns this worker's end of it.

    `init_method` is torch's: ``file:///path`` of a file that all workers reach and that is not there yet, or
    ``tcp://host:port``. gloo uses the loopback device unless GLOO_SOCKET_IFNAME names another: it authenticates nobody.
    """
    gloo = require("torch.distributed", "distributed")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    gloo.init_process_group(
        "gloo", init_method=init_method, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )
    return MessageComm(TorchTransport(timeout))


def launch_torch(
    function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], timeout: float = TIMEOUT
) -> list[Any]:
    """Launch as `burnish.comm.launch` with processes, which talk through gloo on the loopback device."""
    named = reference(function, "launch_torch: function")
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        return run_processes(_run_joined, [(named, store, timeout, list(given)) for given in arguments], timeout)


def _run_joined(comm: Comm, named: list[str], init_method: str, timeout: float, arguments: list[Any]) -> Any:
    return run_joined(comm.rank, comm.size, named, init_method, timeout, arguments)


def run_joined(
    rank: int, size: int, named: list[str], init_method: str, timeout: float, arguments: Sequence[Any]
) -> Any:
    """Worker entry point: joins the process group, and runs the function there."""
    joined = torch_comm(rank, size, init_method, timeout)
    assert isinstance(joined, MessageComm)
    gloo = require("torch.distributed", "distributed")
    try:
        result = resolve(named)(joined, *arguments)
        joined.close()
    except BaseException as error:
        joined.fail(failure_of(rank, error))
        raise
    gloo.destroy_process_group()
    return result


def _nothing() -> None:
    """There is nothing to wait for."""
