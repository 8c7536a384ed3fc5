"""Client of a device pool elsewhere: leases boards from its server, as a pool of this process does."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Self

from burnish.boards.board import PROMPT, SILENCE, Header, receive
from burnish.boards.frames import FrameError, Frames, Silence
from burnish.boards.lost import DeviceLost
from burnish.boards.secure import PATIENCE, calling
from burnish.errors import DeviceError, ParameterError

_ROOM = 1 << 20  # bytes of an answer that is no board's
_FOR_EVER = 10.0**9  # seconds


class RemotePool:
    """The pool that is served at ``address`` (``host:port``), for any number of threads: each lease has a connection of
    its own.
    """

    def __init__(self, address: str, key: bytes, silence: float = SILENCE) -> None:
        """Raises ParameterError for what is no address."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ParameterError(f"devices: found the address {address!r}; allowed: host:port")
        self.address, self._place, self._key, self._silence = address, (host, int(port)), key, silence

    def lease(self, kind: str, owner: str, priority: int = 0) -> RemoteLease:
        """As :meth:`burnish.boards.pool.DevicePool.lease`."""
        connection, frames = self._connect()
        lease = RemoteLease(self.address, connection, frames, self._silence)
        try:
            lease.begin({"op": "lease", "kind": kind, "owner": owner, "priority": priority})
        except BaseException:
            lease.release()
            raise
        return lease

    def status(self) -> Header:
        """``devices``: as of a pool; ``used``: seconds of devices by owner. Raises DeviceError."""
        connection, frames = self._connect()
        with connection:
            try:
                frames.send({"op": "status"}, seconds=PATIENCE)
                return receive(frames, PATIENCE, PATIENCE, 0)[0]
            except (EOFError, Silence, FrameError) as error:
                raise DeviceError(f"devices: the pool at {self.address}: {error}") from None

    def _connect(self) -> tuple[socket.socket, Frames]:
        """Raises DeviceError where no pool is, or one with another key."""
        try:
            connection = socket.create_connection(self._place, PATIENCE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            raise DeviceError(f"devices: no pool answers at {self.address}: {error}") from None
        try:
            return connection, calling(connection, self._key, self.address)
        except BaseException:
            connection.close()
            raise


class RemoteLease:
    """Lease of a remote board. Use it as a context, or ``release`` it."""

    def __init__(self, address: str, connection: socket.socket, frames: Frames, silence: float) -> None:
        self._address, self._connection, self._frames, self._silence = address, connection, frames, silence
        self.about: Header = {}
        self.name = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def begin(self, request: Header) -> None:
        """Waits until there is a board. Raises DeviceError."""
        try:
            reply, _ = self._exchange(request, b"", _FOR_EVER, 0)
        except DeviceLost as lost:
            raise DeviceError(f"devices: {lost}") from None
        self.name, self.about = str(reply["leased"]), dict(reply["about"])

    def ask(
        self, header: Header, payload: bytes | memoryview = b"", seconds: float = PROMPT, most: int = 0
    ) -> tuple[Header, bytes]:
        """As of :class:`~burnish.boards.board.Wire`."""
        request = {"op": "ask", "header": header, "seconds": seconds, "most": most}
        try:
            reply, data = self._exchange(request, payload, seconds + 2 * self._silence, most)
        except DeviceError as error:  # which would be taken for a kernel's
            raise DeviceLost(str(error)) from None
        answer: Any = reply.get("reply")
        if not isinstance(answer, dict):
            raise DeviceLost(f"the pool at {self._address} sent what is no answer")
        return answer, data

    def lose(self, reason: str) -> None:
        """As of a lease of this process; nothing is raised where the pool has gone."""
        with suppress(DeviceLost, DeviceError):
            self._exchange({"op": "lose", "why": reason}, b"", PROMPT, 0)

    def release(self) -> None:
        """Gives the board back: the server does so when the connection ends."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._frames.forget()
        self._connection.close()

    def _exchange(
        self, request: Header, payload: bytes | memoryview, seconds: float, most: int
    ) -> tuple[Header, bytes]:
        try:
            self._frames.send(request, payload, self._silence)
            reply, data = receive(self._frames, seconds, self._silence, max(most, _ROOM))
        except (EOFError, Silence, FrameError) as error:
            self.release()
            raise DeviceLost(f"the pool at {self._address}: {error}") from None
        if "lost" in reply:
            raise DeviceLost(str(reply["lost"]))
        if "error" in reply:
            raise DeviceError(str(reply["error"]))
        return reply, data
