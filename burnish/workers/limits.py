"""Limits of a job, and of the process that runs it: seconds, seconds of a processor, address space."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from dataclasses import dataclass

MEMORY = 8 << 30  # bytes of address space that a job may take beyond what its process holds
_PARENT_DEATH = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class ResourceLimits:
    """Resource limits of a job; None: no limit.

    ``seconds``: until its outcome, or between two signs of life. ``processor_seconds``: of all its threads together,
    so that what else the machine does has no say. ``memory``: bytes of address space beyond what its process holds when
    it begins.
    """

    seconds: float | None = None
    processor_seconds: float | None = None
    memory: int | None = MEMORY


def restrain() -> None:
    """Settings of a process where crashes are expected: no core dumps, no words on the terminal, the first to go when
    memory ends, and gone with its parent, whatever it does.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    with contextlib.suppress(OSError, AttributeError):  # a system that is not Linux
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL, 0, 0, 0)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    os.close(silent)


def limit_memory(nbytes: int | None) -> None:
    """Address-space limit of this process: ``nbytes`` beyond what it holds now; None: no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = hard
    if nbytes is not None:
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                most = int(file.read().split()[0]) * resource.getpagesize() + nbytes
        except OSError:  # a system that does not tell
            return
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def limit_processor(seconds: float | None) -> None:
    """Processor-time limit: after ``seconds`` of it SIGPROF ends this process, in native code too; None: never."""
    signal.setitimer(signal.ITIMER_PROF, seconds or 0.0)
