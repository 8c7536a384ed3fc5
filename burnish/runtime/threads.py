"""Threads for compiled loops that need no interpreter: the native pool that kernels run on, and one for Python."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from burnish.base.arguments import check_count
from burnish.errors import TargetError
from burnish.runtime.pool import MOST_THREADS, ThreadPool, available_cores, pool

T = TypeVar("T")
GRAIN = 1 << 14  # rows that are worth handing to a thread


class Workers:
    """Threads that share the parts of a loop, the calling one among them.

    ``each`` is for loops that numba compiled as regions (`base.regions`), ``call`` for functions that enter several:
    they run on the process's native pool, which kernels use as well, and cost a microsecond or so. ``run`` is for work
    that needs Python between its loops: NumPy's sorts and copies, blocks that are read from disk, lists of forms of
    trees. A fork leaves the child without threads, so they are made anew there. numba's own threading layers are not
    used: each of them breaks under fork or under concurrent callers.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads:
            check_count("threads", threads, 1)
        self.threads = threads or available_cores()
        self._native: ThreadPool | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def each(self, region: Any, extent: int, *arguments: Any, grain: int = 1) -> None:
        """Runs the iterations 0 … extent of a region's loop, which takes them as ``(*arguments, begin, end, thread)``.

        Threads take ranges of `grain` iterations or of several such; the assignment is not fixed. `thread`, below
        ``threads``, numbers scratch that belongs to the caller. In a region, and where another thread uses the pool,
        the calling thread does it all, as number 0.
        """
        region(self.region if extent > grain else _ALONE, extent, grain, *arguments)

    def call(self, function: Any, *arguments: Any) -> Any:
        """Calls a compiled function that enters regions (`base.regions.run_ranges`), with `region` before the rest."""
        return function(self.region, *arguments)

    @property
    def region(self) -> tuple[int, int]:
        """The addresses that a region is entered by: of ``burnish_parallel`` and of its pool; zeros for one thread."""
        if self.threads == 1:
            return _ALONE
        if self._native is None:
            self._native = _native(min(self.threads, max(MOST_THREADS, available_cores())))
            if self._native is None:
                return _ALONE
        self._native.start()
        return self._native.parallel, self._native.address

    def run(self, function: Callable[..., T], parts: Sequence[tuple[Any, ...]]) -> list[T]:
        """``[function(*part) for part in parts]``, with one part on each thread; the first error is raised."""
        if len(parts) == 1 or self.threads == 1:
            return [function(*part) for part in parts]
        if self._pool is None or self._process != os.getpid():
            self._pool = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="burnish-boost")
            self._process = os.getpid()
        others = [self._pool.submit(function, *part) for part in parts[1:]]
        try:
            first = function(*parts[0])
        finally:
            rest = [other.exception() for other in others]
        for error in rest:
            if error is not None:
                raise error
        return [first, *(other.result() for other in others)]

    def ranges(self, count: int, least: int = 1) -> list[tuple[int, int]]:
        """At most `threads` equal ranges that cover ``0 … count``; none is smaller than `least`, unless alone."""
        parts = max(1, min(self.threads, count // max(1, least)))
        edges = [count * part // parts for part in range(parts + 1)]
        return list(itertools.pairwise(edges))

    def over(self, items: Iterable[Any]) -> list[list[Any]]:
        """The items dealt out to the threads in turn; no empty hand."""
        items = list(items)
        return [items[part :: self.threads] for part in range(min(self.threads, len(items)))]


_ALONE = (0, 0)


@cache
def _native(threads: int) -> ThreadPool | None:
    """Thread pool of this size; None where the machine has no driver. LLVM, which makes it, is loaded when asked."""
    import llvmlite.binding as llvm

    from burnish.runtime.entry import driver_image

    try:
        return pool(driver_image(llvm.get_process_triple()), threads)
    except TargetError:
        return None
