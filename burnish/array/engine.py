"""Dependency engine: runs operations on threads in an order that their read and write tags allow.

Every resource (an array, a random generator, temporary space) is a tag. An operation names those that it reads and
those that it writes; mutations are writes like any other. What it leaves is what serial execution would leave: an
operation runs after the last one that writes what it reads or writes, and after those that read what it writes.
Source: Chen, thesis §3.1.3.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from weakref import WeakSet

from burnish.errors import EngineError
from burnish.runtime.pool import available_cores

MOST_PENDING = 512  # operations that are pushed and not done; a further push first works


class Resource:
    """Dependency tag that operations read and write. ``writer``: the last operation to write it, until it is done."""

    __slots__ = ("error", "name", "readers", "writer")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.writer: EngineOperation | None = None
        self.readers: list[EngineOperation] = []  # unfinished, pushed since the last writer
        self.error: EngineError | None = None  # why it holds no value

    def __repr__(self) -> str:
        return f"Resource({self.name!r})"


class EngineOperation:
    """A pushed operation. ``before`` holds the unfinished ones that it waits for, ``after`` those that wait for it."""

    __slots__ = ("after", "before", "name", "reads", "run", "thread", "writes")

    def __init__(
        self, run: Callable[[], Any], reads: tuple[Resource, ...], writes: tuple[Resource, ...], name: str
    ) -> None:
        self.run, self.reads, self.writes, self.name = run, reads, writes, name
        self.before: set[EngineOperation] = set()
        self.after: list[EngineOperation] = []
        self.thread = 0  # that runs it


class Engine:
    """Executes operations in an order that their tags allow, on the threads that push and wait and on workers.

    A short operation whose resources are at rest runs where it is pushed, and so does what it waits for if no worker is
    at that. A long one is kept until somebody waits for it, or another one is ready too: then there are two that are
    independent, and workers take part. Methods may be called from several threads, and from operations.
    """

    def __init__(self, threads: int | None = None) -> None:
        """``threads`` (default: one a core) run operations at the same time: that which waits, and workers."""
        self.threads = available_cores() if threads is None else threads
        if self.threads < 1:
            raise EngineError(f"engine: threads: found {threads}; allowed: 1 or more")
        self.pending = 0  # operations that are pushed and not done
        self._ready: deque[EngineOperation] = deque()
        self._running: set[EngineOperation] = set()
        self._workers: list[threading.Thread] = []
        self._failures: list[EngineError] = []  # since the last wait_all
        self._closed = False
        self._forking = 0  # the thread that is about to
        self._new_locks()
        _watch_forks()
        _engines.add(self)

    def push(
        self,
        run: Callable[[], Any],
        reads: Iterable[Resource] = (),
        writes: Iterable[Resource] = (),
        *,
        name: str = "operation",
        long: bool = True,
    ) -> None:
        """Executes ``run()`` now or later, in an order equivalent to serial execution.

        A resource that it changes in part, or reads and then writes, is in both. ``long``: worth another thread, some
        100 µs. What ``run`` raises is kept for who waits for what it writes; operations that read that do not run.
        """
        op = EngineOperation(run, tuple(reads), tuple(writes), name)
        with self._lock:
            self._await_fork()
            if self._closed or not (long or self.pending):
                self._settle(op, self._execute(op))
                return
            self._enter(op)
            alone = not self._running
        if op.before and alone:
            self._work_for(op)  # nobody else is at what it waits for, which would only pile up
        if not long:
            self._take(op)
        if self.pending > MOST_PENDING:
            self._work_until(lambda: self.pending <= MOST_PENDING // 2)

    def wait(self, *resources: Resource) -> None:
        """Returns when the values of ``resources`` are there, working on what they wait for meanwhile.

        Raises EngineError, naming the operation, where one failed that they depend on.
        """
        for resource in resources:
            if resource.writer is not None:
                self._finish(resource.writer)
            if resource.error is not None:
                self._failures = [e for e in self._failures if e is not resource.error]
                raise resource.error

    def help(self, resources: Iterable[Resource]) -> None:
        """Runs the operations that write ``resources``, and what they wait for, as far as no thread is at work."""
        for resource in resources:
            op = resource.writer
            if op is not None and not self._running:
                self._work_for(op)
                self._take(op)

    def wait_all(self) -> None:
        """Returns when all that was pushed is done.

        Raises EngineError for the first operation that failed and that nobody has heard of.
        """
        self._work_until(lambda: not self.pending)
        if self._failures:
            failures, self._failures = self._failures, []
            raise failures[0]

    def close(self) -> None:
        """Finishes all operations and ends the workers. Later operations run where they are pushed."""
        self._work_until(lambda: not self.pending)
        with self._lock:
            self._closed = True
            workers, self._workers = self._workers, []
            self._work.notify_all()
        for worker in workers:
            worker.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Engine({self.threads} threads, {self.pending} operations pending)"

    # --- the order -----------------------------------------------------------------------------------------------

    def _enter(self, op: EngineOperation) -> None:
        """Places an operation behind those that it must follow. Holds the lock."""
        for resource in op.reads:
            if resource.writer is not None:
                op.before.add(resource.writer)
            resource.readers.append(op)
        for resource in op.writes:
            if resource.writer is not None:
                op.before.add(resource.writer)
            op.before.update(resource.readers)
            resource.writer, resource.readers = op, []
        op.before.discard(op)
        for other in op.before:
            other.after.append(op)
        self.pending += 1
        if not op.before:
            self._make_ready(op)

    def _make_ready(self, op: EngineOperation) -> None:
        """Lets others take an operation; wakes workers if there is more to do than one thread does. Holds the lock."""
        self._ready.append(op)
        spare = len(self._ready) + len(self._running) - 1
        if spare > 0 and not self._forking:
            self._hire(spare)
            self._work.notify(min(spare, len(self._ready)))

    def _leave(self, op: EngineOperation, error: EngineError | None) -> None:
        """Ends an operation, and makes ready what waited for it alone. Holds the lock."""
        self._running.discard(op)
        for resource in op.reads:
            if op in resource.readers:
                resource.readers.remove(op)
        self._settle(op, error)
        for resource in op.writes:
            if resource.writer is op:
                resource.writer = None
        self.pending -= 1
        for other in op.after:
            other.before.discard(op)
            if not other.before:
                self._make_ready(other)
        self._done.notify_all()

    def _settle(self, op: EngineOperation, error: EngineError | None) -> None:
        for resource in op.writes:
            resource.error = error
        if error is not None and not any(error is resource.error for resource in op.reads):
            self._failures.append(error)

    # --- execution -----------------------------------------------------------------------------------------------

    def _execute(self, op: EngineOperation) -> EngineError | None:
        """Runs an operation unless what it reads has failed; returns its error, or theirs."""
        for resource in op.reads:
            if resource.error is not None:
                return resource.error
        try:
            op.run()
        except Exception as error:
            failure = EngineError(f"operation '{op.name}' failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure
        return None

    def _take(self, op: EngineOperation) -> bool:
        """Runs an operation here if it is ready and nobody else has taken it."""
        with self._lock:
            self._await_fork()
            if op not in self._ready:
                return False
            self._ready.remove(op)
            self._begin(op)
        self._run(op)
        return True

    def _begin(self, op: EngineOperation) -> None:
        self._running.add(op)
        op.thread = threading.get_ident()

    def _run(self, op: EngineOperation) -> None:
        error: EngineError | None = EngineError(f"operation '{op.name}' was interrupted")
        try:
            error = self._execute(op)
        finally:
            with self._lock:
                self._leave(op, error)

    def _finish(self, op: EngineOperation) -> None:
        """Returns when an operation is done."""
        while True:
            with self._lock:
                self._await_fork()
                if not self._unfinished(op):
                    return
                found = self._runnable(op)
                if found is None:
                    self._done.wait()
                    continue
                self._ready.remove(found)
                self._begin(found)
            self._run(found)

    def _work_for(self, op: EngineOperation) -> None:
        """Runs what an operation waits for, as far as nobody else does."""
        while op.before:
            with self._lock:
                self._await_fork()
                found = self._runnable(op) if op.before else None
                if found is None:
                    return
                self._ready.remove(found)
                self._begin(found)
            self._run(found)

    def _work_until(self, enough: Callable[[], bool]) -> None:
        """Works on all that there is until it is enough."""
        while True:
            with self._lock:
                self._await_fork()
                if enough():
                    return
                if not self._ready:
                    self._refuse_own(self._running)
                    self._done.wait()
                    continue
                op = self._ready.popleft()
                self._begin(op)
            self._run(op)

    def _unfinished(self, op: EngineOperation) -> bool:
        return op in self._running or op in self._ready or bool(op.before)

    def _runnable(self, op: EngineOperation) -> EngineOperation | None:
        """A ready operation that this one waits for, or itself. Holds the lock.

        Raises EngineError if it waits for the one that the calling thread is running.
        """
        ready, seen, stack = set(self._ready), {op}, [op]
        found = None
        while stack:
            at = stack.pop()
            if at in ready and found is None:
                found = at
            fresh = at.before - seen
            seen |= fresh
            stack += fresh
        self._refuse_own(seen & self._running)
        return found

    def _refuse_own(self, running: Iterable[EngineOperation]) -> None:
        me = threading.get_ident()
        for op in running:
            if op.thread == me:
                raise EngineError(
                    f"operation '{op.name}' waits for itself; allowed: to wait for what was pushed before"
                )

    # --- workers -------------------------------------------------------------------------------------------------

    def _hire(self, wanted: int) -> None:
        """Starts workers that are wanted and allowed. Holds the lock."""
        while len(self._workers) < min(wanted, self.threads - 1) and not self._closed:
            name = f"burnish engine {len(self._workers) + 1}"
            worker = threading.Thread(target=self._work_on, name=name, daemon=True)
            self._workers.append(worker)
            worker.start()

    def _work_on(self) -> None:
        """A worker: takes ready operations until the engine is closed."""
        while True:
            with self._lock:
                while self._forking or not self._ready:
                    if self._closed:
                        return
                    self._work.wait()
                op = self._ready.popleft()
                self._begin(op)
            self._run(op)

    def _new_locks(self) -> None:
        self._lock = threading.RLock()
        self._work, self._done = threading.Condition(self._lock), threading.Condition(self._lock)

    # --- forks ---------------------------------------------------------------------------------------------------

    def _before_fork(self) -> None:
        """Lets running operations end and no other begin, so that none is half done in the child."""
        me = threading.get_ident()
        self._lock.acquire()
        self._await_fork()
        self._forking = me
        while any(op.thread != me for op in self._running):
            self._done.wait()

    def _await_fork(self) -> None:
        """Returns when no other thread is about to fork. Holds the lock."""
        while self._forking not in (0, threading.get_ident()):
            self._done.wait()

    def _after_fork(self, child: bool) -> None:
        self._forking = 0
        if child:  # without the workers of its parent; what is ready, those that wait do
            self._workers = []
            self._new_locks()
        else:
            self._work.notify_all()
            self._done.notify_all()
            self._lock.release()


_engines: WeakSet[Engine] = WeakSet()
_held: list[Engine] = []  # by the fork that is going on


def _before() -> None:
    _held[:] = list(_engines)
    for engine in _held:
        engine._before_fork()


def _after(child: bool) -> None:
    for engine in reversed(_held):
        engine._after_fork(child)
    _held.clear()


@cache
def _watch_forks() -> None:
    os.register_at_fork(
        before=_before, after_in_parent=lambda: _after(child=False), after_in_child=lambda: _after(child=True)
    )
    atexit.register(_at_exit)


def _at_exit() -> None:
    for engine in list(_engines):
        engine.close()
