"""Memory pool of a GPU: memory of results that are gone, for results of the same size; asking the driver takes longer
than small kernels, and giving memory back to it waits for the whole GPU.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from burnish.runtime.buffers import round_up

GRANULE = 512  # bytes, of which sizes are multiples
KEPT_BYTES = 1 << 28  # of memory that nobody uses
DEFAULT_STREAM = 0  # the one that libraries use where they are not told another, also called 1
THREAD_STREAM = 2  # the default one of each thread
UNORDERED = -1  # in the place of a stream: nobody waits, or nobody knows which


@dataclass(frozen=True, eq=False)
class StreamOrder:
    """Stream order: a stream, by its handle, and the event behind the last work that was asked of it here."""

    handle: int
    event: Any


@dataclass
class MemoryUse:
    """Memory use: the streams that read and write some memory. ``orders``: those that calls of modules asked;
    ``others``: those that other libraries were given it for; ``captured``: whether a graph of somebody else holds it.
    """

    orders: frozenset[StreamOrder] = frozenset()
    others: frozenset[int] = frozenset()
    captured: bool = False

    def by(self, order: StreamOrder) -> None:
        """Adds the stream of a call."""
        if order not in self.orders:
            self.orders |= {order}

    def by_others(self, stream: int) -> None:
        """Adds a stream of another library; those of threads have one name."""
        self.others |= {UNORDERED if stream == THREAD_STREAM else stream}


class Asked(Protocol):
    """GPU as the pool needs it: a ``driver.Gpu``, of which one stream is asked now, and may be ``capturing``."""

    stream: int
    capturing: bool

    def allocate(self, nbytes: int) -> int:
        """New memory."""

    def free(self, *places: int) -> None:
        """Gives memory back to the driver."""

    def after(self, orders: Iterable[StreamOrder]) -> None:
        """Makes the stream wait for calls."""

    def follow(self, stream: int) -> None:
        """Makes the stream wait for another one."""


class MemoryPool:
    """Memory pool: blocks that nobody uses, each with what may still read it on the GPU.

    What a block was used for is waited for on the GPU, not here: by events of calls, and of other libraries on the
    default stream or that of the next call; a block that was elsewhere waits for the driver. Any thread uses it, also
    from finalizers: its lock is the last one that is taken.
    """

    def __init__(self, gpu: Asked) -> None:
        self._gpu, self._lock = gpu, threading.RLock()
        self._blocks: OrderedDict[int, tuple[int, MemoryUse]] = OrderedDict()  # size and use by address, oldest first
        self._sizes: dict[int, list[int]] = {}  # addresses by size
        self._bytes = 0

    def take(self, gpu: Asked, nbytes: int) -> tuple[int, int]:
        """Memory for the stream that ``gpu`` asks now: its address and size."""
        size = max(GRANULE, round_up(nbytes, GRANULE))
        found = None if gpu.capturing else self._found(size, {DEFAULT_STREAM, gpu.stream})  # a graph writes it any time
        if found is None:
            return gpu.allocate(size), size
        place, use = found
        gpu.after(use.orders)
        for stream in use.others:
            gpu.follow(stream)
        return place, size

    def _found(self, size: int, allowed: set[int]) -> tuple[int, MemoryUse] | None:
        """A block that no other streams of other libraries than the ``allowed`` ones may use."""
        with self._lock:
            for place in reversed(self._sizes.get(size, [])):
                use = self._blocks[place][1]
                if use.others <= allowed:
                    self._drop(place)
                    return place, use
        return None

    def give(self, place: int, size: int, use: MemoryUse) -> None:
        """Takes memory back."""
        if use.captured:
            return
        freed = []
        with self._lock:
            self._blocks[place] = size, use
            self._sizes.setdefault(size, []).append(place)
            self._bytes += size
            while self._bytes > KEPT_BYTES:
                oldest = next(iter(self._blocks))
                self._drop(oldest)
                freed.append(oldest)
        if freed:
            self._gpu.free(*freed)

    def clear(self) -> None:
        """Frees all blocks."""
        with self._lock:
            freed = [*self._blocks]
            for place in freed:
                self._drop(place)
        if freed:
            self._gpu.free(*freed)

    def _drop(self, place: int) -> None:
        size, _ = self._blocks.pop(place)
        left = self._sizes[size]
        left.remove(place)
        if not left:
            del self._sizes[size]
        self._bytes -= size
