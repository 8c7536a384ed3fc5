"""Workers that are threads of this process: messages are copies in each other's mailboxes."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace

from burnish.comm.messages import ArrayMessage
from burnish.errors import WorkerError


class Hub:
    """Shared state of the threads: a mailbox for each, and which of them failed or left."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size = size
        self.timeout = timeout
        self.changed = [threading.Condition() for _ in range(size)]
        self.mail: list[dict[tuple[int, int, int], deque[ArrayMessage]]] = [defaultdict(deque) for _ in range(size)]
        self.failure: WorkerError | None = None
        self.left: set[int] = set()

    def fail(self, error: WorkerError) -> None:
        """Ends every pending and later call with the first error reported."""
        self.failure = self.failure or error
        self._wake()

    def leave(self, rank: int) -> None:
        """A worker makes no more calls."""
        self.left.add(rank)
        self._wake()

    def _wake(self) -> None:
        for changed in self.changed:
            with changed:
                changed.notify_all()


class ThreadTransport:
    """One thread's end; see `burnish.comm.messages.Transport`."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub = hub
        self.rank = rank
        self.size = hub.size

    def post(self, to: int, message: ArrayMessage) -> Callable[[], None]:
        """Puts a copy into the mailbox of `to`."""
        self._check(to if to in self._hub.left else None)
        copy = replace(message, array=message.array.copy())
        with self._hub.changed[to]:
            self._hub.mail[to][self.rank, message.channel, message.tag].append(copy)
            self._hub.changed[to].notify_all()
        return _nothing

    def take(self, source: int, channel: int, tag: int, what: str) -> ArrayMessage:
        """The next message of that channel and tag from `source`."""
        hub, key = self._hub, (source, channel, tag)
        deadline = time.monotonic() + hub.timeout
        with hub.changed[self.rank]:
            box = hub.mail[self.rank]
            while not box.get(key):
                self._check(source if source in hub.left else None)
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise WorkerError(source, f"{what}: worker {source} did not answer within {hub.timeout:g} s")
                hub.changed[self.rank].wait(remaining)
            message = box[key].popleft()
            if not box[key]:
                del box[key]
            return message

    def close(self) -> None:
        """Says farewell to the other workers."""
        self._hub.leave(self.rank)

    def fail(self, error: WorkerError) -> None:
        """Tells the other workers what ended this one; their calls raise it."""
        self._hub.fail(error)

    def _check(self, gone: int | None) -> None:
        if self._hub.failure is not None:
            raise WorkerError(self._hub.failure.rank, str(self._hub.failure))
        if gone is not None:
            raise WorkerError(gone, f"worker {gone} has left, and another call needs it")


def _nothing() -> None:
    """The mailbox holds a copy: there is nothing to wait for."""
