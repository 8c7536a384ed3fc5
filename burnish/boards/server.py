"""Pool's server: leases its boards to tuners in other processes, over authenticated connections.

A client asks one thing at a time, and waits for the answer; each connection has at most one lease, which ends with it.
While it waits for a board, or a board works, beats go out.

lease kind owner priority     {"leased": name, "about": …}
ask header most seconds       what the board says: {"reply": header}, with its payload; {"lost": why}
lose why                      {"ok": true}; the board is closed: what it answered was none
release                       {"ok": true}
status                        {"devices": …, "used": …}

What cannot be done is answered with {"error": why}.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from burnish.boards.agent import BEAT, MOST
from burnish.boards.board import Header
from burnish.boards.frames import FrameError, Frames, Silence, gone
from burnish.boards.lost import DeviceLost
from burnish.boards.pool import DevicePool, Lease
from burnish.boards.secure import serving
from burnish.errors import DeviceError

LOOPBACK = "127.0.0.1"
STALL = 60.0  # seconds that a message may stand still
LONGEST = 3600.0  # seconds that a client may give a call on a board


class PoolServer:
    """Serves a pool on a TCP port. ``address`` is where; ``refused`` is called with why a client was. Use it as a
    context, or ``close`` it; the pool is its owner's.
    """

    def __init__(
        self,
        pool: DevicePool,
        key: bytes,
        host: str = LOOPBACK,
        port: int = 0,
        refused: Callable[[str], None] = lambda why: None,
    ) -> None:
        """``port`` 0: any that is free. Raises OSError where the system gives none."""
        self._pool, self._key, self._refused = pool, key, refused
        self._socket = socket.create_server((host, port))
        self.address = f"{host}:{self._socket.getsockname()[1]}"
        self._connections: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes no more clients, and ends the connections of those that there are."""
        for each in (self._socket, *self._connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = _Client(self._pool, serving(connection, self._key))
        except (DeviceError, OSError) as error:
            self._refused(str(error))
        else:
            try:
                client.serve()
            except FrameError as error:
                self._refused(f"devices: a client sent what is no request: {error}")
            except (EOFError, Silence, OSError):
                pass
            finally:
                client.end()
        finally:
            self._connections.discard(connection)
            connection.close()


class _Client:
    """One connection and its lease."""

    def __init__(self, pool: DevicePool, frames: Frames) -> None:
        self._pool, self._frames = pool, frames
        self._lease: Lease | None = None

    def serve(self) -> None:
        """Answers until the client goes. Raises EOFError, FrameError, Silence."""
        while True:
            request, payload = self._frames.receive(None, MOST)
            try:
                reply, data = self._answer(request, payload)
            except DeviceLost as lost:
                self.end()
                reply, data = {"lost": str(lost)}, b""
            except DeviceError as error:
                reply, data = {"error": str(error)}, b""
            except (LookupError, TypeError, ValueError) as error:
                reply, data = {"error": f"devices: a request that is none ({type(error).__name__}: {error})"}, b""
            self._frames.send(reply, data, STALL)

    def end(self) -> None:
        """Gives the lease back, if there is one."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            lease.release()

    def _answer(self, request: Header, payload: bytes) -> tuple[Header, bytes]:
        op = request["op"]
        if op == "status":
            return {"devices": self._pool.status(), "used": self._pool.used()}, b""
        if op == "release":
            self.end()
            return {"ok": True}, b""
        if op == "lose":
            if self._lease is not None:
                self._pool.lose(self._lease, str(request["why"]))
            return {"ok": True}, b""
        if op == "lease":
            self.end()
            owner, priority = str(request["owner"]), int(request["priority"])
            self._lease = self._pool.lease(str(request["kind"]), owner, priority, wanted=self._beat)
            return {"leased": self._lease.device.name, "about": self._lease.about}, b""
        if op != "ask" or self._lease is None:
            raise DeviceError(f"devices: found '{op}'; allowed: lease, then ask, release; status")
        return self._asked(self._lease, request, payload)

    def _asked(self, lease: Lease, request: Header, payload: bytes) -> tuple[Header, bytes]:
        """Board's response, awaited in a thread while this one sends heartbeats."""
        seconds, most = min(LONGEST, float(request["seconds"])), min(MOST, int(request["most"]))
        found: list[Any] = []

        def ask() -> None:
            try:
                found.append(lease.ask(dict(request["header"]), payload, seconds, most))
            except BaseException as error:
                found.append(error)

        worker = threading.Thread(target=ask, daemon=True)
        worker.start()
        while worker.is_alive():
            worker.join(BEAT)
            if worker.is_alive() and not self._beat():
                raise EOFError("the client has gone")
        if isinstance(found[0], BaseException):
            raise found[0]
        reply, data = found[0]
        return {"reply": reply}, data

    def _beat(self) -> bool:
        """A sign of life for the client; whether that still is there."""
        if gone(self._frames.reader):
            return False
        try:
            self._frames.send({"beat": True}, seconds=STALL)
        except (EOFError, Silence):
            return False
        return True
