"""Machine code run by children of a small process, which is forked before tests and what they import fill this one.

A fork copies the tables of all pages: 20 to 40 ms of processor time in a process that has collected the suite, 3 here.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import pickle
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from burnish.runtime.abi import Runtime
from burnish.runtime.fenced import Fenced
from burnish.runtime.image import Image, LoadedImage
from burnish.runtime.pool import pool


@dataclass(frozen=True)
class Run:
    """A call of ``entry`` of an image: the bytes of each buffer and what it begins with, by name, in order; ``values``
    follow as arguments. ``scratch``: bytes that each of the ``threads`` has; ``edge``: see :class:`Fenced`.
    """

    image: Image
    entry: str
    driver: Image
    buffers: Mapping[str, tuple[int, bytes | None]]
    values: tuple[int, ...]
    scratch: int
    threads: int
    edge: str

    def __call__(self) -> dict[str, tuple[bytes, bool]]:
        """Of each buffer the bytes that it ends with, and whether those around it are as they were."""
        fenced = {name: Fenced(size, self.edge).fill() for name, (size, _) in self.buffers.items()}
        for name, (_, given) in self.buffers.items():
            if given is not None:
                fenced[name].bytes.data[:] = given
        stride = -(-self.scratch // 64) * 64
        scratch = Fenced(stride * self.threads, self.edge).fill()
        args = (ctypes.c_void_p * (len(fenced) + len(self.values)))(*(f.address for f in fenced.values()), *self.values)
        loaded, workers = LoadedImage(self.image), pool(self.driver, self.threads)
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(loaded.address(self.entry))
        workers.start()
        runtime = Runtime(workers.parallel, workers.address, scratch.address, stride, self.threads, None)
        kernel(ctypes.addressof(args), ctypes.addressof(runtime))
        return {name: (f.bytes.tobytes(), f.untouched_around()) for name, f in fenced.items()}


class SmallProcess:
    """A process that runs each ``Run`` in a child of its own. It ends when this one does."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _serve(_alone(theirs))
            finally:
                os._exit(0)
        theirs.close()
        atexit.register(self.close)

    def run(self, what: Run) -> dict[str, tuple[bytes, bool]] | int:
        """What the run returns, or the status (``os.waitpid``) of a child that did not end well."""
        with self._lock:
            _send(self._line, what)
            found: dict[str, tuple[bytes, bool]] | int | None = _receive(self._line)
        assert found is not None, "the process that runs machine code has ended"
        return found

    def close(self) -> None:
        """Ends it; its processor time counts as this process's child's from then on."""
        self._line.close()
        if os.getpid() == self._owner:
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


def _alone(line: socket.socket) -> socket.socket:
    """The line, without all other files of the parent: who waits for their end would wait for this process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in (0, 1, 2, line.fileno()):
            with suppress(OSError):
                os.close(fd)
    return line


def _serve(line: socket.socket) -> None:
    while (what := _receive(line)) is not None:
        pool(what.driver, what.threads)  # code of the threads, once for all children
        child = os.fork()
        if child == 0:
            try:
                _send(line, what())
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if status:
            _send(line, status)


def _send(line: socket.socket, what: object) -> None:
    data = pickle.dumps(what, pickle.HIGHEST_PROTOCOL)
    line.sendall(len(data).to_bytes(8, "little") + data)


def _receive(line: socket.socket) -> Any:
    """The next object, or None at the end."""
    size = line.recv(8, socket.MSG_WAITALL)
    if len(size) < 8:
        return None
    data = bytearray(int.from_bytes(size, "little"))
    view = memoryview(data)
    while view:
        count = line.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return pickle.loads(data)  # noqa: S301 - from a process of our own
