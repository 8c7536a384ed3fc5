"""Collective steps at run time: begun where they stand, on a thread of their own if other steps come before their wait.

Messages need no thread: while no collective is under way, they are posted at once, and waited for where that is said.
All workers of a communicator begin the same collectives in the same order. What a collective reads is copied when it
begins, and its result is written when it is waited for, so that the steps between find memory as if it were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as ended
from functools import partial
from typing import Any

import numpy as np

from burnish.comm.protocol import OPERATIONS, Comm
from burnish.errors import ArtifactError
from burnish.runtime.steps import MESSAGES, Collective, Step, Wait, array_at

Array = np.ndarray[Any, Any]
Result = Callable[[], Array | None]  # waits, and gives what is to be written


class Collectives:
    """The collectives of one module, made with the worker ``comm``."""

    def __init__(self, steps: tuple[Step, ...], comm: Comm | None) -> None:
        """Raises ArtifactError, naming the node, for a collective that these workers cannot make."""
        self._comm = comm
        self._thread: ThreadPoolExecutor | None = None
        self._begun: dict[int, tuple[Future[Result], Array | None]] = {}
        self._posted: dict[int, tuple[Result, Array | None]] = {}
        for step in steps:
            if isinstance(step, Collective):
                _check(step, comm)

    def step(self, number: int, steps: tuple[Step, ...], addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        """Makes step ``number``, a collective with operands at ``addresses``, or the wait for one."""
        step = steps[number]
        if isinstance(step, Wait):
            self.wait(step.step)
        elif isinstance(step, Collective):
            given = iter([array_at(a, spec, sizes) for a, spec in zip(addresses, step.specs, strict=True)])
            source, target = (None if slot is None else next(given) for slot in (step.source, step.target))
            following = steps[number + 1]
            if isinstance(following, Wait) and following.step == number:
                self.run(step, source, target)
            else:
                self.begin(number, step, source, target)

    def run(self, step: Collective, source: Array | None, target: Array | None) -> None:
        """Makes a collective at once: its result is there when this returns. Raises WorkerError."""
        if self._begun:  # one thread uses the communicator at a time
            self.begin(-1, step, source, target)
            self.wait(-1)
            return
        assert self._comm is not None
        _write(target, _start(self._comm, step, source, target)())

    def begin(self, number: int, step: Collective, source: Array | None, target: Array | None) -> None:
        """Begins the collective of step ``number``; see :meth:`wait`."""
        assert self._comm is not None
        own = source.copy() if source is not None and _is_copied(step) else source
        if step.operation in MESSAGES and not self._begun:
            self._posted[number] = _start(self._comm, step, own, target), target
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "burnish-collectives")
        self._begun[number] = self._thread.submit(partial(_start, self._comm, step, own, target)), target

    def wait(self, number: int) -> None:
        """Ends when the collective of step ``number`` has written its result. Raises WorkerError."""
        if number in self._posted:
            result, target = self._posted.pop(number)
            if self._begun:  # one thread uses the communicator at a time
                assert self._thread is not None
                _write(target, self._thread.submit(result).result())
            else:
                _write(target, result())
        elif number in self._begun:
            assert self._thread is not None
            begun, target = self._begun.pop(number)
            _write(target, self._thread.submit(begun.result()).result())

    def abandon(self) -> None:
        """Lets what was begun in a call that failed come to its end, and forgets it."""
        self._posted.clear()
        if self._begun:
            ended([begun for begun, _ in self._begun.values()])
            self._begun.clear()


def copied_bytes(steps: Sequence[Step]) -> int:
    """The most bytes of what messages are sent from that are copies at once."""
    copies: dict[int, int] = {}
    most = 0
    for number, step in enumerate(steps):
        if isinstance(step, Wait):
            copies.pop(step.step, None)
        elif isinstance(step, Collective) and step.operation == "send" and _is_copied(step):
            copies[number] = step.spec.nbytes
            most = max(most, sum(copies.values()))
    return most


def _is_copied(step: Collective) -> bool:
    """Whether what a collective reads is copied: not an output, which is written once in a call."""
    return step.source is not None and step.source.memory != "output"


def _write(target: Array | None, result: Array | None) -> None:
    if target is not None and result is not None and result is not target:
        np.copyto(target, result.reshape(target.shape))


def _start(comm: Comm, step: Collective, source: Array | None, target: Array | None) -> Result:
    """Begins a collective: messages are under way at once, and come to ``target`` when they are waited for; the others
    end before this returns.
    """
    if step.operation == "send":
        assert source is not None
        return comm.isend(source, step.peer, step.tag).wait
    if step.operation == "recv":
        return comm.irecv(step.peer, step.tag, target).wait
    found = _made(comm, step, source)
    return lambda: found


def _made(comm: Comm, step: Collective, source: Array | None) -> Array:
    if step.operation == "broadcast":
        return comm.broadcast(source if comm.rank == step.peer else None, step.peer)
    assert source is not None
    if step.operation == "all_reduce":
        return comm.all_reduce(source, step.reduce)
    if step.operation == "all_gather":
        return np.concatenate(comm.all_gather_v(source))
    parts = comm.all_to_all_v(np.split(source, comm.size))
    if step.operation == "all_to_all":
        return np.concatenate(parts)
    total = parts[0].copy()  # in the order of ranks, as all_reduce
    for part in parts[1:]:
        OPERATIONS[step.reduce](total, part, out=total)
    return total


def _check(step: Collective, comm: Comm | None) -> None:
    """Raises ArtifactError where there are no workers, or not as many as the types of a collective say."""
    node = f"node '{step.node}' is a collective ({step.operation})"
    if comm is None:
        raise ArtifactError(f"{node}; allowed: with comm=, a worker")
    if step.peer >= comm.size:
        raise ArtifactError(f"{node} with worker {step.peer}; allowed: 0 to {comm.size - 1}")
    workers = step.workers
    if workers is not None and workers != comm.size:
        raise ArtifactError(f"{node} of {workers} workers; allowed: {comm.size}, as many as there are")
    if step.operation == "all_to_all" and step.spec.shape[0] % comm.size:
        raise ArtifactError(f"{node} of {step.spec}; allowed: a first extent that is a multiple of {comm.size} workers")
