"""Threads for kernels that release the interpreter's lock: equal ranges of rows, one for each thread."""

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from burnish.base.arguments import check_count

T = TypeVar("T")


class Workers:
    """Runs a function on several parts of the data at once; the calling thread takes the first part.

    A fork leaves the child without the threads, so they are made anew when the process changes. numba's own threading
    layers are not used: each of them breaks under fork or under concurrent callers.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads:
            check_count("threads", threads, 1)
        self.threads = threads or len(os.sched_getaffinity(0))
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

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
