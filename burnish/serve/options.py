"""Options of a server of models: where it listens, who may ask, limits, batches."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from burnish.base.arguments import check_count, check_number
from burnish.base.sizes import parse_budget
from burnish.errors import ParameterError
from burnish.runtime.pool import available_cores


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server: where it listens, whom it answers, and what it refuses.

    ``host``: the address to listen on; others than the loopback reach a network, and need a token. ``port``: 0 for one
    that is free. ``token``: what requests must show as "Authorization: Bearer TOKEN", except probes of health.
    ``max_batch``: the most rows of requests that are joined into one call, 1 to join none. ``max_wait_ms``:
    milliseconds that a request may wait for others to join it. ``max_body``: the longest body of a request, such as
    64MB. ``max_elements``: the largest tensor of a request. ``max_queue``: requests of a model that may wait; those
    beyond get status 503. ``calls``: calls that run at the same time, of all models, by default one for each core.
    ``read_seconds``: how long a request may take to arrive. ``drain_seconds``: how long accepted requests may take
    after SIGTERM.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    max_batch: int = 1
    max_wait_ms: float = 2.0
    max_body: str = "64MB"
    max_elements: int = 1 << 26
    max_queue: int = 1024
    calls: int | None = None
    read_seconds: float = 30.0
    drain_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Raises ParameterError for what cannot be, and for an address of a network without a token."""
        for name, least in (("port", 0), ("max_batch", 1), ("max_elements", 1), ("max_queue", 1)):
            check_count(name, getattr(self, name), least)
        check_number("port", self.port, 0, 65535)
        if self.calls is not None:
            check_count("calls", self.calls, 1)
        for name in ("max_wait_ms", "read_seconds", "drain_seconds"):
            check_number(name, getattr(self, name), 0)
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ParameterError("token: found one with other characters, or none; allowed: printable ASCII")
        _ = self.body_bytes
        if self.token is None and not is_loopback(self.host):
            allowed = "with a token, or an address of the loopback, such as 127.0.0.1"
            raise ParameterError(f"host: found {self.host!r} without a token; allowed: {allowed}")

    @property
    def body_bytes(self) -> int:
        """The longest body. Raises ParameterError."""
        return parse_budget("max_body", self.max_body)

    @property
    def threads(self) -> int:
        """Calls that run at the same time."""
        return self.calls or available_cores()


def is_loopback(host: str) -> bool:
    """Whether nobody outside of this machine reaches a host's addresses, as far as they are known."""
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(host) and all(ipaddress.ip_address(str(each).partition("%")[0]).is_loopback for each in found)
