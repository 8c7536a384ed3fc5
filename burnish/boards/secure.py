"""Authenticated connections over TCP: both ends prove that they have the key, then every frame carries a tag.

Both send a random number; the key of the connection is the HMAC of both under the shared key. What was recorded from
one connection is of no use in another. Frames are not encrypted: over other networks than the loopback device, use
SSH's port forwarding.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from pathlib import Path

from burnish.base.files import PRIVATE_FILE, open_regular, write_atomic
from burnish.boards.frames import FrameError, Frames, Silence, TagError
from burnish.errors import DeviceError, ParameterError

NONCE, LEAST_KEY = 32, 16  # bytes
PATIENCE = 20.0  # seconds for the other end to prove itself
_SERVER, _CLIENT = b"server", b"client"


def key_of(path: Path, make: bool = False) -> bytes:
    """The key in a file, which is written for its owner alone where there is none and ``make`` allows it.

    Raises ParameterError for a key that is too short or that others may read; OSError if it cannot be read.
    """
    if make and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, [secrets.token_hex(NONCE).encode() + b"\n"], PRIVATE_FILE)
    with open_regular(path) as file:
        mode = os.fstat(file.fileno()).st_mode
        key = file.read().strip()
    if mode & 0o077:
        raise ParameterError(f"key: '{path}' may be read by others; allowed: by its owner alone (chmod 600)")
    if len(key) < LEAST_KEY:
        raise ParameterError(f"key: '{path}' holds {len(key)} bytes; allowed: {LEAST_KEY} or more")
    return key


def serving(connection: socket.socket, key: bytes) -> Frames:
    """The server's end of a connection. Raises DeviceError for a client that does not have the key."""
    frames = Frames(connection.fileno(), connection.fileno())
    try:
        own, other = _exchange(frames)
        frames.authenticate(_session(key, own, other), _SERVER, _CLIENT)
        frames.send({"proof": "server"}, seconds=PATIENCE)
        header, _ = frames.receive(PATIENCE)
    except (FrameError, Silence, EOFError, ValueError) as error:
        raise DeviceError(f"devices: a client was refused: {error}") from None
    if header != {"proof": "client"}:
        raise DeviceError("devices: a client was refused: no proof of the key")
    return frames


def calling(connection: socket.socket, key: bytes, address: str) -> Frames:
    """The client's end. Raises DeviceError, naming the server, for one that does not have the key."""
    frames = Frames(connection.fileno(), connection.fileno())
    try:
        own, other = _exchange(frames)
        frames.authenticate(_session(key, other, own), _CLIENT, _SERVER)
        frames.receive(PATIENCE)
        frames.send({"proof": "client"}, seconds=PATIENCE)
    except TagError:
        raise DeviceError(f"devices: the pool at {address} has another key") from None
    except (FrameError, Silence, EOFError, ValueError) as error:
        raise DeviceError(f"devices: what answers at {address} is no device pool: {error}") from None
    return frames


def _exchange(frames: Frames) -> tuple[bytes, bytes]:
    """Our random number and theirs. Raises ValueError for what is none."""
    own = secrets.token_bytes(NONCE)
    frames.send({"nonce": own.hex()}, seconds=PATIENCE)
    header, _ = frames.receive(PATIENCE)
    other = bytes.fromhex(str(header.get("nonce", "")))
    if len(other) != NONCE or other == own:
        raise ValueError("no random number to begin with")
    return own, other


def _session(key: bytes, server: bytes, client: bytes) -> bytes:
    return hmac.digest(key, b"burnish device pool 1 " + server + client, "sha256")
