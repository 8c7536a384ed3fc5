"""HTTP server of an application: uvicorn, with a time for heads of requests, and a drain that loses no request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from burnish.serve.app import InferenceApp
from burnish.serve.options import ServeOptions

MOST_HEAD = 1 << 16  # bytes of a request's first line and headers
KEEP_ALIVE = 75  # seconds that a connection without a request stays open
LINGER = 0.25  # seconds that connections without a request stay open in a drain: one may be on its way


class TimedProtocol(HttpToolsProtocol):
    """Connection that ends where the head of a request takes longer than ``read_seconds``, or is too long.

    A body whose length is announced, up to ``whole_bytes``, reaches the application in one piece.
    """

    read_seconds, whole_bytes = 30.0, 0
    _parts: list[bytes] | None = None  # of a body that comes
    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """As of its base."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """As of its base."""
        super().data_received(data)
        if self._deadline is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD and not self.transport.is_closing():
                self.send_400_response(f"Found a head of more than {MOST_HEAD} bytes.")

    def on_message_begin(self) -> None:
        """As of its base."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """As of its base."""
        self._heard()
        super().on_headers_complete()
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        self._parts = [] if length.isdigit() and int(length) <= self.whole_bytes else None

    def on_body(self, body: bytes) -> None:
        """As of its base."""
        if self._parts is None:
            super().on_body(body)
        elif not self.cycle.response_complete:  # refused meanwhile
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """As of its base."""
        if self._parts:
            self.cycle.body = b"".join(self._parts)
        self._parts = None
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """As of its base."""
        self._heard()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._deadline is None:
            self._head_bytes = 0
            self._deadline = self.loop.call_later(self.read_seconds, self._give_up)

    def _heard(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        self.transport.close()


class DrainingServer(uvicorn.Server):
    """Server that ends by a drain: it answers what it has accepted, each answer closing its connection, and no more."""

    def __init__(self, app: InferenceApp, listener: socket.socket, options: ServeOptions) -> None:
        limits = {"read_seconds": options.read_seconds, "whole_bytes": options.body_bytes}
        protocol = type("Protocol", (TimedProtocol,), limits)
        super().__init__(
            uvicorn.Config(
                app, http=protocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
                loop="asyncio", timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=max(1, round(options.drain_seconds)),
            )
        )  # fmt: skip
        self._app, self._listener = app, listener

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As of its base, after connections that are open or wait to be accepted have had their answers."""
        self._app.draining = True
        await self._accept_rest()
        loop = asyncio.get_running_loop()
        end = loop.time() + LINGER
        while self.server_state.connections and loop.time() < end:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    async def _accept_rest(self) -> None:
        """Accepts the connections that the system has made already, and no more."""
        accepted = []
        with suppress(OSError):  # none is left
            while True:
                accepted.append(self._listener.accept()[0])
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for each in accepted:
            each.setblocking(False)
            await loop.connect_accepted_socket(self._protocol, each)

    def _protocol(self) -> Any:
        config: Any = self.config
        return config.http_protocol_class(config=config, server_state=self.server_state, app_state={})

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: who runs the server handles signals."""
        yield
