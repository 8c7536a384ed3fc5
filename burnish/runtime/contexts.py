"""Contexts of a compiled model: what each of the calls that run at the same time has for itself.

A context is a module of the same code and parameters with its own tables of arguments; as many are made as calls have
met, up to the number of cores, or some more where they are small: further calls wait for the first that is free.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from time import monotonic
from typing import Any
from weakref import WeakSet

from burnish.errors import ArtifactError, ClosedError
from burnish.runtime.pool import available_cores
from burnish.runtime.runner import CpuRunner

MANY, MANY_BYTES = 8, 1 << 28  # contexts where there are fewer cores, and bytes that they work in together at most
PATIENCE = 0.005  # seconds that calls may wait while later ones find a context sooner; these wait then, too


class Contexts:
    """The contexts of a module, each with a lock, ``_lock``, that the call in it holds.

    ``most``: how many there may be. ``waiting``: since when calls wait; who has released a lock and finds some says so
    by ``released``.
    """

    def __init__(self, first: Any, make: Callable[[], Any] | None, nbytes: int = 0) -> None:
        """``first``: the module itself; ``make``: gives another context, None where calls take turns in the first.
        ``nbytes``: of memory that a call works in.
        """
        most = max(available_cores(), min(MANY, MANY_BYTES // max(nbytes, 1)))
        self.first, self._make = first, make
        self._all = [first]
        self._made, self.most = 1, 1 if make is None else most
        self._last = first
        self.reset()

    def reset(self) -> None:
        """As in a forked child, in which no other thread waits."""
        self.waiting: list[float] = []
        self._closing = False
        self._changed = threading.Condition()

    def take(self) -> Any:
        """A context that is free, or the first that becomes so; its lock is held."""
        last = self._last  # another thread may change it
        if not self.waiting and last._lock.acquire(False):
            return last
        behind = self._overdue()
        if not behind and (found := self._free() or self._another()) is not None:
            return found
        since = monotonic()
        with self._changed:
            self.waiting.append(since)  # before it looks again: who releases a lock after that finds it
            try:
                if behind:
                    self._changed.wait(PATIENCE)
                while not self._closing:
                    if (found := self._free()) is not None:
                        return found
                    self._changed.wait()
                raise ClosedError(f"{type(self.first).__name__}: it is closed; allowed: calls before close()")
            except BaseException:
                self._changed.notify()  # another in its place
                raise
            finally:
                self.waiting.remove(since)

    def released(self) -> None:
        """Wakes a call that waits."""
        with self._changed:
            self._changed.notify()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Calls that wait raise ClosedError, as later ones that would; if the block raises, they may run again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        try:
            yield
        except BaseException:
            self._closing = False
            raise

    def close(self) -> None:
        """Closes all but the first, after the calls in them."""
        with self._changed:
            self.most = 0
        for context in self._all[1:]:
            context.close()

    def _overdue(self) -> bool:
        """Whether a call waits for long."""
        try:
            return monotonic() - self.waiting[0] > PATIENCE
        except IndexError:
            return False

    def _free(self) -> Any:
        for context in self._all:
            if context._lock.acquire(False):
                self._last = context
                return context
        return None

    def _another(self) -> Any:
        """A new context, its lock held; None where there are enough, or no memory for more."""
        with self._changed:
            if self._made >= self.most or self._make is None:
                return None
            self._made += 1
        try:
            made = self._make()
        except (ArtifactError, MemoryError):
            self.most = self._made - 1
            return None
        made._lock.acquire()
        self._all.append(made)
        self._last = made
        return made


_contexts: WeakSet[Any] = WeakSet()


def watch_forks(context: Any) -> None:
    """Makes forked children find the context as if it had been called by the forking thread alone."""
    _watch_forks()
    _contexts.add(context)


def unwatch_forks(context: Any) -> None:
    """Ends what ``watch_forks`` began."""
    _contexts.discard(context)


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """Fork handler of the child: no other thread is left to release a lock; the forking one, in a handler, can."""
    for context in _contexts:
        if isinstance(context._runner, CpuRunner):
            context._runner.reseed()
        context._contexts.reset()
        if context._caller != threading.get_ident():
            context._lock, context._caller = threading.RLock(), 0
