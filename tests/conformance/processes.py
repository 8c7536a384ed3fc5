"""Each case in a forked process of its own, several at a time, with a time limit: a crash or a hang harms nobody."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from burnish.driver.compilation import compile_kernels  # noqa: F401 - imported here, so that no process must
from tests.conformance.cases import Outcome, check, standard_cases


@dataclass
class _Running:
    name: str
    pid: int
    deadline: float
    data: bytearray = field(default_factory=bytearray)


def run_cases(names: Sequence[str], jobs: int = 2, seconds: float = 60.0, **how: bool) -> Iterator[Outcome]:
    """The outcomes of the cases, in the order in which they end; ``seconds`` is the limit of one.

    ``how`` goes to ``check``.
    """
    standard_cases()
    waiting = list(reversed(names))
    selector = selectors.DefaultSelector()
    running = 0
    while waiting or running:
        while waiting and running < jobs:
            _start(selector, waiting.pop(), seconds, how)
            running += 1
        for key, _ in selector.select(timeout=0.2):
            job: _Running = key.data
            piece = os.read(key.fd, 1 << 16)
            job.data += piece
            if not piece:
                yield _finish(selector, key.fd, job)
                running -= 1
        for key in list(selector.get_map().values()):
            if time.monotonic() > key.data.deadline:
                os.kill(key.data.pid, signal.SIGKILL)
                yield _finish(selector, key.fd, key.data, Outcome(key.data.name, "hang", f"over {seconds:g} s"))
                running -= 1


def _start(selector: selectors.BaseSelector, name: str, seconds: float, how: Mapping[str, bool]) -> None:
    sys.stdout.flush()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(name, write, how)
    os.close(write)
    selector.register(read, selectors.EVENT_READ, _Running(name, pid, time.monotonic() + seconds))


def _child(name: str, write: int, how: Mapping[str, bool]) -> None:
    """Runs one case and ends the process."""
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    try:
        outcome = check(standard_cases()[name], **how)
    except BaseException as error:  # anything but a refusal is our fault
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        outcome = Outcome(name, "crash", f"{type(error).__name__} at {place}: {error}")
    with os.fdopen(write, "wb") as pipe:
        pipe.write(json.dumps(asdict(outcome)).encode())
    os._exit(0)


def _finish(selector: selectors.BaseSelector, fd: int, job: _Running, outcome: Outcome | None = None) -> Outcome:
    selector.unregister(fd)
    os.close(fd)
    _, status = os.waitpid(job.pid, 0)
    if outcome is not None:
        return outcome
    if not job.data:
        return Outcome(job.name, "crash", f"the process ended with status {status}")
    return Outcome(**json.loads(job.data))
