"""Worker on a board: answers frames, keeps uploads by their digests, and runs code in limited child processes.

Standard library alone; Burnish uploads it (:mod:`burnish.boards.bundle`).

A host asks one thing at a time. While a child works, a beat goes out now and then: a host can tell a long run from a
board that hangs. Requests, by ``op``:

ping                     {}
put key + payload        keeps bytes under their SHA-256
begin memory             a new child, with limits, in the place of the one before
end                      no child
others                   work for the child (:data:`WORK`), of at most ``seconds``; ``key``: the payload is what was put

Answers: {"ok": …}, {"missing": key}, or {"failure": kind, "detail": …}; ``beat`` frames before them.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import resource
import signal
import socket
import sys
import time
from collections import OrderedDict

from burnish.boards.frames import FrameError, Frames, Silence, gone
from burnish.boards.native import Native
from burnish.runtime.image import Image
from burnish.workers.limits import limit_memory, restrain

PROTOCOL = 1
BEAT = 0.5  # seconds between signs of life
MOST = 1 << 31  # bytes of one upload
KEPT = 1 << 28  # bytes of uploads, beside the last one
_FILES = 64  # descriptors that a child may have open
_NO_NETWORK = 0x10000000 | 0x40000000  # CLONE_NEWUSER | CLONE_NEWNET


def main(engine: type[Native] = Native) -> None:
    """The life of a worker: requests from standard input, answers on standard output, until the host goes."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what others print is no frame
    serve(Frames(0, answers), engine)


def serve(frames: Frames, engine: type[Native] = Native) -> None:
    """Answers what comes, until the other end goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host
    agent = Agent(frames, engine)
    try:
        frames.send({"hello": about(engine)})
        while True:
            header, payload = frames.receive(None, MOST)
            frames.send(*agent.answer(header, payload))
    except (EOFError, FrameError):
        pass
    finally:
        agent.end()


def about(engine: type[Native]) -> dict:
    """Board description for a host: protocol, system, Python, cores, and flags of the CPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = {"protocol": PROTOCOL, "system": sys.platform, "python": platform.python_version(), "cores": cores}
    return {**own, "flags": sorted(flags()), **engine.about()}


def flags() -> set:
    """The kernel's names of the instruction sets of this CPU; empty where the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(rest.split())
    return set()


class Agent:
    """Uploads and the child of now."""

    def __init__(self, frames: Frames, engine: type[Native]) -> None:
        self._frames, self._engine = frames, engine
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._child: tuple[int, Frames] | None = None

    def answer(self, header: dict, payload: bytes) -> tuple[dict, bytes]:
        """Response to a request."""
        op = header.get("op")
        if op == "ping":
            return {"ok": True}, b""
        if op == "put":
            return self._put(header["key"], payload), b""
        if op == "begin":
            self.end()
            self._begin(header)
            return {"ok": True}, b""
        if op == "end":
            self.end()
            return {"ok": True}, b""
        key = header.get("key")
        if key is not None:
            if key not in self._kept:
                return {"missing": key}, b""
            self._kept.move_to_end(key)
            payload = self._kept[key]
        if self._child is None:
            return {"failure": "error", "detail": f"'{op}' without a child; allowed: begin before"}, b""
        return self._work(header, payload)

    def end(self) -> int | None:
        """Kills the child, if there is one; its wait status."""
        if self._child is None:
            return None
        (pid, frames), self._child = self._child, None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        frames.close()
        return os.waitpid(pid, 0)[1]

    def _put(self, key: str, payload: bytes) -> dict:
        found = hashlib.sha256(payload).hexdigest()
        if found != key:
            return {"failure": "error", "detail": f"an upload with digest {found}; announced: {key}"}
        while self._kept and sum(map(len, self._kept.values())) + len(payload) > KEPT:
            self._kept.popitem(last=False)
        self._kept[key] = payload
        return {"ok": True}

    def _begin(self, header: dict) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                self._frames.close()
                confine(header)
                work(Frames(theirs.fileno(), theirs.fileno()), self._engine())
            finally:
                os._exit(1)
        theirs.close()
        number = ours.detach()
        self._child = pid, Frames(number, number)

    def _work(self, header: dict, payload: bytes) -> tuple[dict, bytes]:
        """Response of the child process, or how it ended."""
        assert self._child is not None
        _, child = self._child
        limit = float(header["seconds"])
        end = time.monotonic() + limit
        try:
            child.send(header, payload, limit)
            while True:
                try:
                    return child.receive(max(0.0, min(BEAT, end - time.monotonic())), MOST)
                except Silence:
                    if gone(self._frames.reader):
                        raise EOFError from None
                    if time.monotonic() >= end:
                        self.end()
                        return {"failure": "timeout", "detail": f"took longer than {limit:g} s"}, b""
                    self._frames.send({"beat": True})
        except (EOFError, FrameError, Silence):
            if gone(self._frames.reader):
                raise EOFError("the host has gone") from None
            status = self.end()
            return {"failure": "crashed", "detail": _ended(status or 0)}, b""


def confine(header: dict) -> None:
    """Limits of a child: memory, files, and no network where the system lets that be taken away."""
    restrain()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(_NO_NETWORK)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    limit_memory(header.get("memory"))


def work(frames: Frames, engine: Native) -> None:
    """The life of a child: one piece of work after the other, until it is killed."""
    while True:
        header, payload = frames.receive(None, MOST)
        try:
            reply, data = WORK[header["op"]](engine, header, payload)
        except MemoryError as error:
            reply, data = {"failure": "out of memory", "detail": f"{type(error).__name__}: {error}"}, b""
        except Exception as error:
            reply, data = {"failure": "error", "detail": f"{type(error).__name__}: {error}"}, b""
        frames.send(reply, data)


def _code(engine: Native, header: dict, payload: bytes) -> tuple[dict, bytes]:
    absolute = tuple((offset, target) for offset, target in header["absolute"])
    engine.code(header["name"], Image(header["machine"], payload, header["symbols"], absolute))
    return {"ok": True}, b""


def _buffer(engine: Native, header: dict, payload: bytes) -> tuple[dict, bytes]:
    data = payload if header["given"] else None
    engine.buffer(header["name"], header["nbytes"], data, header["writable"])
    return {"ok": True}, b""


def _write(engine: Native, header: dict, payload: bytes) -> tuple[dict, bytes]:
    engine.write(header["name"], header["offset"], payload)
    return {"ok": True}, b""


def _fill(engine: Native, header: dict, payload: bytes) -> tuple[dict, bytes]:
    for name in header["names"]:
        engine.fill(name)
    return {"ok": True}, payload


def _read(engine: Native, header: dict, payload: bytes) -> tuple[dict, bytes]:
    return {"ok": True}, b"".join(engine.read(*place) for place in header["places"]) + payload


def _call(engine: Native, header: dict, payload: bytes) -> tuple[dict, bytes]:
    return {"ok": True, "seconds": engine.call(header)}, payload


def _untouched(engine: Native, header: dict, payload: bytes) -> tuple[dict, bytes]:
    return {"ok": True, "untouched": engine.untouched()}, payload


WORK = {
    "code": _code, "buffer": _buffer, "write": _write, "fill": _fill, "read": _read, "call": _call,
    "untouched": _untouched,
}  # fmt: skip


def _ended(status: int) -> str:
    """Exit status of a process, for people."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"
