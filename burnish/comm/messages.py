"""Collectives made of messages between pairs of workers, for any transport that carries those.

A large all-reduce is a reduce-scatter and an all-gather: worker r adds up part r of all arrays in the order of the
ranks, and sends the sum to everyone. A small one sends whole arrays, for half the latency and the same sums.
"""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from burnish.comm.protocol import Array, checked, checked_group, checked_operation, checked_rank
from burnish.errors import ParameterError, WorkerError

_SMALL = 16384  # bytes up to which an all-reduce sends whole arrays
_NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class ArrayMessage:
    """An array on its way; ``what`` says in words which call it belongs to, so that the receiver can compare."""

    channel: int  # of which communicator, even; odd for messages that are no part of a collective
    tag: int  # number of the collective call, or the tag of the message
    what: str
    array: Array
    place: int | None = None  # where the array lies in its sender's room (`burnish.comm.shared`)
    release: Callable[[], None] | None = None  # the array is lent until this is called


class Transport(Protocol):
    """Carries messages between the workers of a world; reports a worker's death through every call."""

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""

    @property
    def size(self) -> int:
        """Number of workers."""

    def post(self, to: int, message: ArrayMessage) -> Callable[[], None]:
        """Begins to send; the function returned ends when the array may be changed."""

    def take(self, source: int, channel: int, tag: int, what: str) -> ArrayMessage:
        """The next message of that channel and tag from `source`."""

    def close(self) -> None:
        """Says farewell to the other workers."""

    def fail(self, error: WorkerError) -> None:
        """Tells the other workers what ended this one; their calls raise it."""


class MessageComm:
    """A communicator over a transport; see `burnish.comm.protocol.Comm`."""

    def __init__(self, transport: Transport, ranks: Sequence[int] | None = None, channel: int = 0) -> None:
        self._transport = transport
        self._ranks = tuple(range(transport.size)) if ranks is None else tuple(ranks)
        self._rank = self._ranks.index(transport.rank)
        self._channel = channel
        self._calls = 0
        self._groups = 0

    @property
    def rank(self) -> int:
        """Number of this worker, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._ranks)

    def all_reduce(self, array: Array, op: str = "sum", out: Array | None = None) -> Array:
        """The element-wise sum, maximum or minimum of all workers' arrays; see the protocol."""
        reduce = checked_operation(op)
        array = checked(array, "all_reduce")
        if out is None:
            out = np.empty_like(array)
        elif out.shape != array.shape or out.dtype != array.dtype or not out.flags.c_contiguous:
            raise ParameterError(
                f"all_reduce: out is {out.dtype} {out.shape}, allowed: contiguous {array.dtype} {array.shape}"
            )
        what = f"all_reduce {op} {array.dtype} {array.shape}"
        parts: Sequence[Array]
        if array.nbytes <= _SMALL or self.size == 1:
            parts = self._exchange(what, [array] * self.size)
            out[...] = _added_up(reduce, parts)
            return out
        flat, result = array.reshape(-1), out.reshape(-1)
        edges = [flat.size * rank // self.size for rank in range(self.size + 1)]
        ranges = [slice(*edge) for edge in itertools.pairwise(edges)]
        parts = self._exchange(what, [flat[chosen] for chosen in ranges])
        total = _added_up(reduce, parts)
        places = [result[chosen] for chosen in ranges]
        places[self.rank][...] = total
        self._exchange(what, [total] * self.size, places)
        return out

    def all_gather_v(self, array: Array) -> list[Array]:
        """The arrays of all workers by rank; see the protocol."""
        array = checked(array, "all_gather_v")
        parts = self._exchange(f"all_gather_v {array.dtype}", [array] * self.size)
        parts[self.rank] = array.copy()
        return parts

    def all_to_all_v(self, arrays: Sequence[Array]) -> list[Array]:
        """Sends ``arrays[r]`` to worker r; see the protocol."""
        if len(arrays) != self.size:
            raise ParameterError(f"all_to_all_v: {len(arrays)} arrays, allowed: one for each of {self.size} workers")
        parts = self._exchange("all_to_all_v", [checked(array, "all_to_all_v") for array in arrays])
        parts[self.rank] = parts[self.rank].copy()
        return parts

    def broadcast(self, array: Array | None, root: int = 0) -> Array:
        """The array of worker `root`; see the protocol."""
        checked_rank(root, self.size, "broadcast")
        what, tag = f"broadcast from {root}", self._next()
        if self.rank != root:
            return self._take(root, self._channel, tag, what)
        if array is None:
            raise ParameterError(f"broadcast: worker {root} is the root and gave no array")
        array = checked(array, "broadcast")
        others = [rank for rank in range(self.size) if rank != root]
        for done in [self._post(rank, ArrayMessage(self._channel, tag, what, array)) for rank in others]:
            done()
        return array.copy()

    def barrier(self) -> None:
        """Ends once every worker has called it."""
        self._exchange("barrier", [_NOTHING] * self.size)

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Sends an array to one worker; it may be changed afterwards."""
        self.isend(array, to, tag).wait()

    def recv(self, source: int, tag: int = 0) -> Array:
        """The next array that `source` sends with this tag."""
        return self.irecv(source, tag).wait()

    def isend(self, array: Array, to: int, tag: int = 0) -> "_Sending":
        """Begins to send; the array must not change before the request's `wait` has returned."""
        checked_rank(to, self.size, "send")
        return _Sending(self._post(to, ArrayMessage(self._channel | 1, tag, "send", checked(array, "send"))))

    def irecv(self, source: int, tag: int = 0, out: Array | None = None) -> "_Receiving":
        """Begins to receive; the request's `wait` returns the array, written to `out` if that is given."""
        checked_rank(source, self.size, "recv")
        return _Receiving(lambda: self._take(source, self._channel | 1, tag, "send", out))

    def group(self, ranks: Sequence[int]) -> "MessageComm | None":
        """A communicator of some of the workers; see the protocol."""
        chosen = checked_group(ranks, self.size)
        self._groups += 1
        name = f"{self._channel} {self._groups} {chosen}".encode()
        channel = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 2 << 1
        if self.rank not in chosen:
            return None
        return MessageComm(self._transport, [self._ranks[rank] for rank in chosen], channel)

    def close(self) -> None:
        """Takes leave of the other workers; a group leaves with the communicator that it was made from."""
        if self._channel == 0:
            self._transport.close()

    def fail(self, error: WorkerError) -> None:
        """Takes leave because of an error, which the other workers' calls raise."""
        self._transport.fail(error)

    def _next(self) -> int:
        self._calls += 1
        return self._calls

    def _post(self, to: int, message: ArrayMessage) -> Callable[[], None]:
        return self._transport.post(self._ranks[to], message)

    def _take(self, source: int, channel: int, tag: int, what: str, out: Array | None = None) -> Array:
        """The array of the next message, in ``out`` if that is given; nobody else's memory."""
        message = self._transport.take(self._ranks[source], channel, tag, what)
        if message.what != what:
            other = self._ranks[source]
            raise WorkerError(
                other, f"worker {other} called [{message.what}] where worker {self._transport.rank} called [{what}]"
            )
        array = message.array
        if out is not None:
            np.copyto(out, array.reshape(out.shape))
        if message.release is not None:
            array = array.copy() if out is None else array
            message.release()
        return array if out is None else out

    def _exchange(self, what: str, arrays: Sequence[Array], outs: Sequence[Array] | None = None) -> list[Array]:
        """Sends ``arrays[r]`` to worker r, and returns what came from each, in ``outs[r]`` if they are given; this
        worker's own is not copied.
        """
        tag = self._next()
        turns = [(self.rank + step) % self.size for step in range(1, self.size)]  # not all at worker 0 first
        sent = [self._post(rank, ArrayMessage(self._channel, tag, what, arrays[rank])) for rank in turns]
        parts = [arrays[self.rank]] * self.size
        for rank in turns:
            parts[rank] = self._take(rank, self._channel, tag, what, None if outs is None else outs[rank])
        for done in sent:
            done()
        return parts


def _added_up(reduce: np.ufunc, parts: Sequence[Array]) -> Array:
    """The parts reduced in their order; a new array unless there is only one."""
    if len(parts) == 1:
        return parts[0]
    total = np.asarray(reduce(parts[0], parts[1]))
    for part in parts[2:]:
        reduce(total, part, out=total)
    return total


@dataclass(frozen=True)
class _Sending:
    done: Callable[[], None]

    def wait(self) -> None:
        """Ends when the message is sent."""
        self.done()


@dataclass(frozen=True)
class _Receiving:
    take: Callable[[], Array]

    def wait(self) -> Array:
        """The array, once it has arrived."""
        return self.take()
