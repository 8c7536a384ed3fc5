"""A process that has the compiler imported and no threads, and forks workers from itself on request.

Neither this process nor threads of it could do a worker's job. LLVM's Python binding holds one lock, so threads would
compile in turns; and a process that holds torch's or BLAS's threads must not be forked. Workers start in milliseconds,
because what they need is imported before. They end with this process, however it ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from burnish.errors import WorkerError

Role = Callable[[Connection], None]  # what a worker does with its end of the line, until that closes

_MAIN = "import sys; from {} import main; main(int(sys.argv[1]))"
_MESSAGE = 4096  # bytes, more than any message between the server and its owner
_ROOM = 8 << 30  # bytes of address space that a worker may take beyond what it begins with
_PATIENCE = 60.0  # seconds for the server to begin, or to answer


class Failure(Exception):  # noqa: N818 - an outcome
    """A worker crashed or took too long; ``args`` are the outcome and what happened."""


class Worker:
    """A forked process and the line to it. ``line`` speaks Python objects; it is at its end when the process ends."""

    def __init__(self, server: ForkServer, pid: int, line: Connection) -> None:
        self._server = server
        self.pid = pid
        self.line = line

    def end(self) -> str:
        """Kills the process if it still runs; how it ended, for people: such as ``was killed by SIGSEGV``."""
        how = self._server.end(self.pid)
        self.line.close()
        return how


class ForkServer:
    """Starts workers by role. Use it as a context, or call ``close``: both end every worker. For one thread.

    ``module`` names the module whose ``main`` is the server: it imports what the roles need, and calls :func:`serve`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
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

    def start(self, role: str) -> Worker:
        """A new worker. Raises WorkerError if the server cannot be started."""
        ours, theirs = Pipe()
        try:
            with theirs:
                try:
                    answer = self._ask({"fork": role}, theirs.fileno())
                except WorkerError:  # somebody killed it; its workers have ended or will, when their lines close
                    answer = self._ask({"fork": role}, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        return Worker(self, answer["pid"], ours)

    def end(self, pid: int) -> str:
        """Kills a worker of this server; see ``Worker.end``."""
        try:
            code = os.waitstatus_to_exitcode(self._ask({"end": pid})["status"])
        except WorkerError:
            return "ended with its server"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

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

    def _ask(self, request: dict[str, Any], *files: int) -> dict[str, Any]:
        self.launch()
        assert self._line is not None
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
        if not sys.executable or getattr(sys, "frozen", False):
            raise WorkerError(0, "workers: this process is no Python interpreter that could be started again")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            # Libraries that start threads when imported must not: this process forks.
            **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        }
        ours.settimeout(_PATIENCE)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _MAIN.format(self._module), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment,
                    start_new_session=True,  # Ctrl-C is for the owner, who then ends its workers
                )  # fmt: skip
            except BaseException as error:
                ours.close()
                if isinstance(error, OSError):
                    raise WorkerError(0, f"workers: the system starts no process ({error})") from error
                raise
        return ours


def serve(number: int, roles: Mapping[str, Role]) -> None:
    """The server's life: answers requests on the socket of this number until the owner closes its end."""
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
                pid = _fork(roles[request["fork"]], files[0], line)
                children.add(pid)
                line.send(json.dumps({"pid": pid}).encode())
            else:
                pid = request["end"]
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


def _fork(role: Role, file: int, line: socket.socket) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, should a library have started some
        pid = os.fork()
    if pid:
        os.close(file)
        return pid
    try:
        line.close()
        _restrain()
        with contextlib.suppress(EOFError, OSError):  # the owner has gone
            role(Connection(file))
        os._exit(0)
    finally:
        os._exit(1)


def _restrain() -> None:
    """Crashes are expected here: no core dumps, no words on the terminal, no eating all of the machine's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[0])
    _limit_memory(pages * resource.getpagesize() + _ROOM)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if memory ends, this process shall end, and not its owner
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    os.close(silent)


def allow_more(nbytes: int) -> None:
    """Lets this worker take so much more memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        _limit_memory(soft + nbytes)


def _limit_memory(nbytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or hard > nbytes:
        resource.setrlimit(resource.RLIMIT_AS, (nbytes, hard))
