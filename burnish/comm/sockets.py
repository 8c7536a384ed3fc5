"""Workers that are processes of this machine, each connected to every other by a pair of sockets that it inherited.

Large arrays lie in memory that all workers share (``shared.py``); the sockets then say where.

No socket has an address, so that nobody else can connect. The kernel closes a dead process's sockets, and its peers
hear of that in whatever call they are, or in the next.
"""

import contextlib
import math
import select
import socket
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from burnish.comm.frames import FrameReader, head, payload
from burnish.comm.messages import ArrayMessage
from burnish.comm.shared import Rooms
from burnish.errors import WorkerError

_FAREWELL = -1  # channel of the frame that says: this worker makes no more calls
_FAILURE = -2  # channel of the frame that says: worker `tag` is the cause of a failure, described by the words
_FREED = -3  # channel of the frame that says: what lay at place `tag` of your room has been read
_NOTHING = np.empty(0, np.uint8)


class _Peer:
    """One other worker as seen from this one."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.rank = rank
        self.connection = connection
        self.reader = FrameReader(rank)
        self.out: deque[memoryview] = deque()
        self.posted = 0  # pieces of frames ever put in line
        self.sent = 0
        self.watched = select.POLLIN
        self.left = False


class SocketTransport:
    """One process's end; see `burnish.comm.messages.Transport`."""

    def __init__(
        self, rank: int, size: int, connections: Mapping[int, socket.socket], timeout: float, rooms: Rooms
    ) -> None:
        self.rank = rank
        self.size = size
        self._rooms = rooms
        self._timeout = timeout
        self._peers = {other: _Peer(other, connection) for other, connection in connections.items()}
        self._by_number = {peer.connection.fileno(): peer for peer in self._peers.values()}
        self._poll = select.poll()
        for number in self._by_number:
            self._poll.register(number, select.POLLIN)
        self._mail: dict[tuple[int, int, int], deque[ArrayMessage]] = defaultdict(deque)
        self._failure: WorkerError | None = None

    def post(self, to: int, message: ArrayMessage) -> Callable[[], None]:
        """Begins to send; what the socket does not take at once goes out during later calls."""
        if to == self.rank:
            self._mail[to, message.channel, message.tag].append(replace(message, array=message.array.copy()))
            return lambda: None
        peer = self._peers[to]
        self._check(peer)
        self._enqueue(peer, message)
        posted = peer.posted
        return lambda: self._flush(peer, posted, message.what)

    def take(self, source: int, channel: int, tag: int, what: str) -> ArrayMessage:
        """The next message of that channel and tag from `source`."""
        key = (source, channel, tag)
        deadline = time.monotonic() + self._timeout
        while not self._mail.get(key):
            self._check(self._peers.get(source))
            self._progress(deadline, source, what)
        message = self._mail[key].popleft()
        if not self._mail[key]:
            del self._mail[key]
        return message

    def close(self) -> None:
        """Says farewell to the other workers, and sends what is still in line."""
        self._leave(ArrayMessage(_FAREWELL, 0, "", _NOTHING))

    def fail(self, error: WorkerError) -> None:
        """Tells the other workers what ended this one; their calls raise it."""
        self._leave(ArrayMessage(_FAILURE, error.rank, str(error), _NOTHING))

    def _leave(self, last: ArrayMessage) -> None:
        for peer in self._peers.values():
            if not peer.left:
                self._enqueue(peer, last)
        for peer in self._peers.values():
            with contextlib.suppress(WorkerError):  # it is gone, or about to find out by itself
                self._flush(peer, peer.posted, "close", self._timeout if last.channel == _FAREWELL else 1.0)
        for peer in self._peers.values():
            peer.connection.close()
        self._peers = {}

    def _enqueue(self, peer: _Peer, message: ArrayMessage) -> None:
        place = self._rooms.place(message.array)
        if place is not None:
            message = replace(message, place=place)
        pieces = [memoryview(head(message)), payload(_NOTHING if place is not None else message.array)]
        waiting = bool(peer.out)
        peer.out.extend(piece for piece in pieces if len(piece))
        peer.posted = peer.sent + len(peer.out)
        if not waiting:
            self._write(peer)

    def _flush(self, peer: _Peer, posted: int, what: str, limit: float = math.inf) -> None:
        deadline = time.monotonic() + min(limit, self._timeout)
        while peer.sent < posted:
            self._check(peer)
            self._progress(deadline, peer.rank, what)

    def _check(self, peer: _Peer | None) -> None:
        if self._failure is not None:
            raise WorkerError(self._failure.rank, str(self._failure))
        if peer is not None and peer.left:
            raise WorkerError(peer.rank, f"worker {peer.rank} has left, and another call needs it")

    def _progress(self, deadline: float, awaited: int, what: str) -> None:
        """Waits until some socket can be read or, where something is in line, written; and does it."""
        ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready or time.monotonic() > deadline:
            raise WorkerError(awaited, f"{what}: worker {awaited} did not answer within {self._timeout:g} s")
        for number, events in ready:
            peer = self._by_number[number]
            if events & select.POLLOUT:
                self._write(peer)
            if events & ~select.POLLOUT:
                self._read(peer)

    def _write(self, peer: _Peer) -> None:
        try:
            while peer.out:
                count = peer.connection.sendmsg(list(peer.out)[:8])
                while peer.out and count >= len(peer.out[0]):
                    count -= len(peer.out.popleft())
                    peer.sent += 1
                if count:
                    peer.out[0] = peer.out[0][count:]
        except BlockingIOError:
            pass
        except OSError:
            peer.out.clear()  # the reading side finds out why: a farewell or a failure may still lie there
        events = select.POLLIN | (select.POLLOUT if peer.out else 0)
        if events != peer.watched:
            self._poll.modify(peer.connection.fileno(), events)
            peer.watched = events

    def _read(self, peer: _Peer) -> None:
        for _ in range(64):  # then the other peers' turn
            try:
                count = peer.connection.recv_into(peer.reader.room())
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if count == 0:
                self._poll.unregister(peer.connection.fileno())
                if not peer.left:
                    peer.left = True
                    self._failure = self._failure or WorkerError(peer.rank, f"worker {peer.rank} died")
                return
            for message in peer.reader.take(count):
                if message.channel == _FAREWELL:
                    peer.left = True
                elif message.channel == _FREED:
                    self._rooms.free(message.tag)
                elif message.channel == _FAILURE:
                    peer.left = True
                    self._failure = self._failure or WorkerError(message.tag, message.what)
                else:
                    self._mail[peer.rank, message.channel, message.tag].append(self._found(peer, message))

    def _found(self, peer: _Peer, message: ArrayMessage) -> ArrayMessage:
        """The message, its array seen where it lies if that is in the other worker's room."""
        if message.place is None:
            return message
        array = self._rooms.view(peer.rank, message.place, message.array)
        if array is None:
            raise WorkerError(peer.rank, f"worker {peer.rank} sent a place that is in no room: {message.place}")
        freed = ArrayMessage(_FREED, message.place, "", _NOTHING)
        return replace(message, array=array, release=lambda: None if peer.left else self._enqueue(peer, freed))
