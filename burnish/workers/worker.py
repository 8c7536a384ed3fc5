"""Owner's side of a worker: gives it a job, hears of its progress and outcome, and ends it at the limit of its time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing import connection
from typing import Any

from burnish.base.affinity import UNPINNED
from burnish.base.affinity import VARIABLE as AFFINITY
from burnish.errors import WorkerError
from burnish.workers.limits import ResourceLimits
from burnish.workers.line import MessageLine
from burnish.workers.outcome import JobOutcome, JobProgress
from burnish.workers.plain import reference

PATIENCE = 4  # times the limit of processor time: seconds that may pass while a job computes less than that
_MAIN = "import sys; from burnish.workers.serving import main; main(int(sys.argv[1]))"
STALL = 60.0  # seconds that a worker may take to begin, and a message from or to it may stand still
_TIMED_OUT = signal.SIGPROF.name
End = Callable[[], int | None]  # kills the process if it still runs; its exit code, -n for signal n, None if not known


class Worker:
    """Worker process that runs one job at a time, and the line to it. For one thread. Use it as a context, or ``end``
    it.
    """

    def __init__(self, pid: int, line: MessageLine, end: End) -> None:
        self.pid = pid
        self.line = line
        self.jobs = 0  # given so far
        self._end = end
        self._began = False
        self._ended = False
        self._code: int | None = None
        self._limits = ResourceLimits()
        self._limit_at: float | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def submit(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any] = (),
        limits: ResourceLimits | None = None,
        where: str = "",
    ) -> None:
        """Gives the job ``function(*arguments)``: its outcome comes by :func:`wait` or :meth:`outcome`.

        ``where`` names the job in errors. Raises ParameterError for a function that has no name in a module, and for
        arguments that are not plain (:mod:`burnish.workers.plain`).
        """
        limits = limits or ResourceLimits()
        name = where or f"job {function.__name__}"
        reference(function, f"{name}: function")
        order = {
            "function": function, "arguments": list(arguments), "where": f"{name}: result",
            "limits": [limits.memory, limits.processor_seconds],
        }  # fmt: skip
        self._limits = limits
        self.jobs += 1
        with suppress(OSError):  # it has died: its line says so when it is read
            self.line.send(order, f"{name}: arguments")
        self._wait_anew()

    def run(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any] = (),
        limits: ResourceLimits | None = None,
        where: str = "",
    ) -> JobOutcome:
        """The outcome of a job."""
        self.submit(function, arguments, limits, where)
        return self.outcome()

    def outcome(self, progress: Callable[[Any], None] = lambda _: None) -> JobOutcome:
        """The outcome of its job, once there is one; ``progress`` is given what the job tells until then."""
        while True:
            for _, event in wait([self]):
                if isinstance(event, JobOutcome):
                    return event
                progress(event.value)

    def end(self) -> int | None:
        """Kills the process if it still runs; its exit code, -n if signal n ended it, None if that is not known."""
        if not self._ended:
            self._code = self._end()
            self._ended = True
            self.line.close()
        return self._code

    def event(self) -> JobProgress | JobOutcome | None:
        """Event that has arrived on the worker's line; None if it is of no interest to others.

        After an outcome but ``ok`` and ``error`` the worker is ended.
        """
        try:
            message = self.line.receive()
        except (EOFError, OSError):
            return self.died()
        except (ValueError, LookupError, TypeError, AttributeError) as wrong:
            self.end()
            return JobOutcome("crashed", detail=f"sent what is no message ({type(wrong).__name__}: {wrong})")
        if "began" in message:
            self._began = True
            self._wait_anew()
            return None
        if "progress" in message:
            self._wait_anew()
            return JobProgress(message["progress"])
        if "result" in message:
            return JobOutcome("ok", message["result"])
        if "memory" in message:
            self.end()
            return JobOutcome("out of memory", detail=message["memory"])
        error = message["error"]
        return JobOutcome("error", detail=f"{error['type']}: {error['message']}", error=error)

    def died(self) -> JobOutcome:
        """The outcome of a job whose process has ended."""
        code = self.end()
        how = ended(code)
        if how.endswith(_TIMED_OUT):
            return JobOutcome(
                "timeout", detail=f"took longer than {self._limits.processor_seconds:g} s of processor time"
            )
        return JobOutcome("crashed", detail=how)

    def expired(self, now: float) -> JobOutcome | None:
        """The outcome of a job whose time is up, and whose worker is ended then; None before."""
        if self._limit_at is None or now < self._limit_at:
            return None
        self.end()
        words = f"took longer than {self._seconds:g} s" if self._began else f"did not begin within {STALL:g} s"
        return JobOutcome("timeout", detail=words)

    @property
    def limit_at(self) -> float | None:
        """When its time is up, as ``time.monotonic`` counts; None: never."""
        return self._limit_at

    @property
    def _seconds(self) -> float | None:
        limits = self._limits
        if limits.seconds is None and limits.processor_seconds is not None:
            return PATIENCE * limits.processor_seconds
        return limits.seconds

    def _wait_anew(self) -> None:
        seconds = self._seconds if self._began else STALL
        self._limit_at = None if seconds is None else time.monotonic() + seconds


def wait(workers: Iterable[Worker], timeout: float | None = None) -> list[tuple[Worker, JobProgress | JobOutcome]]:
    """Worker events, as soon as one arrives, the time limit of a job is up, or ``timeout`` seconds have passed.

    May be nothing even before that.
    """
    each = list(workers)
    now = time.monotonic()
    times = [worker.limit_at - now for worker in each if worker.limit_at is not None]
    least = min([*times, *([] if timeout is None else [timeout])], default=None)
    numbers = {worker.line.fileno(): worker for worker in each}
    woken = connection.wait([*numbers], None if least is None else max(0.0, least))
    ready = {numbers[number] for number in woken if isinstance(number, int)}
    found: list[tuple[Worker, JobProgress | JobOutcome]] = []
    for worker in each:
        if worker in ready:
            if (event := worker.event()) is not None:
                found.append((worker, event))
        elif (outcome := worker.expired(time.monotonic())) is not None:
            found.append((worker, outcome))
    return found


def ended(code: int | None) -> str:
    """Exit status of a process, for people: such as ``was killed by SIGSEGV``."""
    if code is None:
        return "ended with its server"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def spawn(files: Sequence[int] = ()) -> Worker:
    """A worker that is a new interpreter, with these file descriptors of this process under their own numbers.

    It ends with this process. Raises WorkerError if the system starts none.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = start_python(_MAIN, [theirs.fileno()], [theirs.fileno(), *files])
        except BaseException:
            ours.close()
            raise

    def end() -> int:
        process.kill()
        return process.wait()

    return Worker(process.pid, MessageLine(ours, STALL), end)


def start_python(
    code: str, arguments: Sequence[object], files: Sequence[int], environment: dict[str, str] | None = None,
    new_session: bool = False,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """A new interpreter that runs ``code`` with the import path of this one. Raises WorkerError if there can be none.

    ``environment``: variables that are different there. ``new_session``: Ctrl-C does not reach it. Its threads are not
    pinned: other workers' would be to the same cores.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise WorkerError(0, "workers: this process is no Python interpreter that could be started again")
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code, *map(str, arguments)], stdin=subprocess.DEVNULL, pass_fds=tuple(files),
            env={**os.environ, "PYTHONPATH": path, AFFINITY: UNPINNED, **(environment or {})},
            start_new_session=new_session,
        )  # fmt: skip
    except OSError as error:
        raise WorkerError(0, f"workers: the system starts no process ({error})") from error
