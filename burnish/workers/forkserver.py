"""Fork server: a process that has what workers need imported, and no threads, and forks workers from itself on request.

Neither this process nor threads of it could do a worker's job. LLVM's Python binding holds one lock, so threads would
compile in turns; and a process that holds torch's or BLAS's threads must not be forked. Workers start in milliseconds,
because what they need is imported before. They end with the server, however it ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import warnings
from typing import Any

from burnish.errors import WorkerError
from burnish.workers.limits import restrain
from burnish.workers.line import Allocate, MessageLine, ordinary
from burnish.workers.serving import serve
from burnish.workers.worker import STALL, Worker, start_python

_MAIN = "import sys; from burnish.workers.forkserver import main; main(int(sys.argv[1]), sys.argv[2])"
_MESSAGE = 4096  # bytes, more than any message between the server and its owner
_PATIENCE = 60.0  # seconds for the server to begin, or to answer
# Libraries that start threads when imported must not: the server forks.
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class ForkServer:
    """Starts workers. Use it as a context, or call ``close``: both end every worker. For one thread.

    ``preload`` names the module that is imported once for all workers. If it has a function ``prepare``, that is called
    then; the memory that it returns, if any, is where arrays go that arrive in workers.
    """

    def __init__(self, preload: str) -> None:
        self._preload = preload
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def launch(self) -> None:
        """Lets the server begin, and does not wait until it has. Raises WorkerError if it cannot be started."""
        if self._line is None:
            self._line = self._launch()

    def start(self) -> Worker:
        """A new worker. Raises WorkerError if the server cannot be started."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                try:
                    answer = self._ask({"fork": True}, theirs.fileno())
                except WorkerError:  # somebody killed it; its workers have ended with it
                    answer = self._ask({"fork": True}, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        pid = answer["pid"]
        return Worker(pid, MessageLine(ours, STALL), lambda: self._end(pid))

    def close(self) -> None:
        """Ends the server and its workers."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _end(self, pid: int) -> int | None:
        """Kills a worker; its exit code, or None if it has ended with its server."""
        try:
            return os.waitstatus_to_exitcode(self._ask({"end": pid})["status"])
        except WorkerError:
            return None

    def _ask(self, request: dict[str, Any], *files: int) -> dict[str, Any]:
        if "fork" in request:
            self.launch()
        if self._line is None:
            raise WorkerError(0, "workers: the server of worker processes is closed")
        try:
            socket.send_fds(self._line, [json.dumps(request).encode()], files)
            answer = self._line.recv(_MESSAGE)
        except OSError as error:
            self.close()
            raise WorkerError(0, f"workers: the server of worker processes is gone ({error})") from error
        if not answer:
            self.close()
            raise WorkerError(0, "workers: the server of worker processes ended; its error stands above")
        return json.loads(answer)

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PATIENCE)
        with theirs:
            try:
                number = theirs.fileno()  # in a session of its own: Ctrl-C is for the owner, who then ends its workers
                self._process = start_python(_MAIN, [number, self._preload], [number], _ONE_THREAD, new_session=True)
            except BaseException:
                ours.close()
                raise
        return ours


def main(number: int, preload: str) -> None:
    """The server's life: answers requests on the socket of this number until the owner closes its end."""
    module = importlib.import_module(preload)
    allocate = (module.prepare() if hasattr(module, "prepare") else None) or ordinary
    line = socket.socket(fileno=number)
    children: set[int] = set()
    gc.collect()
    gc.freeze()  # what is shared with the workers is not touched, hence not copied
    try:
        while True:
            text, files, _, _ = socket.recv_fds(line, _MESSAGE, 1)
            if not text:
                return
            request = json.loads(text)
            if "fork" in request:
                pid = _fork(files[0], line, allocate)
                children.add(pid)
                line.send(json.dumps({"pid": pid}).encode())
            else:
                pid = request["end"]
                if pid not in children:  # of a server before this one
                    line.send(json.dumps({"status": signal.SIGKILL}).encode())
                    continue
                children.discard(pid)
                line.send(json.dumps({"status": _kill(pid)}).encode())
    finally:
        line.close()
        for pid in children:
            _kill(pid)


def _kill(pid: int) -> int:
    """The wait status of a child; that of its own end if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def _fork(file: int, line: socket.socket, allocate: Allocate) -> int:
    server = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, should a library have started some
        pid = os.fork()
    if pid:
        os.close(file)
        return pid
    try:
        line.close()
        restrain()
        if os.getppid() != server:  # it has ended before this process could ask to end with it
            os._exit(1)
        serve(socket.socket(fileno=file), allocate)
        os._exit(0)
    finally:
        os._exit(1)
