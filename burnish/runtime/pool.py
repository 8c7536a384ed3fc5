"""The thread pool's side in Python: creates the workers, and creates them anew in forked children."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

from burnish.base.affinity import MOST_CORES, VARIABLE, nodes_of, pinned_cores
from burnish.errors import ParameterError
from burnish.runtime.abi import PartStruct, PoolStruct
from burnish.runtime.buffers import address_of, allocate, round_up
from burnish.runtime.image import Image, LoadedImage

SPIN = 20_000  # pauses, about 0.5 to 1 ms: longer than the gaps inside a model, too short to be felt as load
MOST_THREADS = 64  # of a pool on a machine with fewer cores: more would only wait for each other
MASK_WORDS = MOST_CORES // 64  # of 64 bits: a set of cores
_libc = ctypes.CDLL(None)


class ThreadPool:
    """``threads`` threads that share parallel regions: the calling one and native workers that never see Python.

    ``address`` and ``parallel`` are what kernels find in ``struct Runtime``. Call ``start`` before native code that
    may use them. A pool lives as long as its process.

    ``cores``: one for each thread, to which workers are pinned; the first is left to the calling thread, which is not
    pinned. None are where it is empty.
    """

    def __init__(self, driver: LoadedImage, threads: int, cores: tuple[int, ...] = ()) -> None:
        self.driver = driver
        self.threads = threads
        self.cores = cores
        self._own = (ctypes.c_uint64 * MASK_WORDS)()  # the cores of workers, which the calling thread leaves
        for core in cores[1:]:
            self._own[core >> 6] |= 1 << (core & 63)
        _never_free(self._own)
        _never_free(driver)
        size = ctypes.sizeof(PoolStruct)
        memory = allocate(size + threads * ctypes.sizeof(PartStruct) + 64)
        _never_free(memory)
        self.address = round_up(address_of(memory), 128)
        self.parallel = driver.address("burnish_parallel")
        self._pool = PoolStruct.from_address(self.address)
        self._parts = (PartStruct * threads).from_address(self.address + size)
        self.reset()

    def reset(self) -> None:
        """The state in which no worker exists and no region runs, as at the beginning and in a forked child."""
        self._lock = threading.RLock()
        self._starting = False
        self._created = 0  # workers: the exception of a signal handler may come between two
        self.running = self.threads == 1
        ctypes.memset(self.address, 0, ctypes.sizeof(self._pool) + ctypes.sizeof(self._parts))
        self._pool.threads = self.threads
        # With more threads than cores, a spinning thread keeps from working the one that it waits for.
        self._pool.spin = SPIN if self.threads <= available_cores() else 0
        if sys.platform.startswith("linux"):
            self._pool.syscall = ctypes.cast(_libc.syscall, ctypes.c_void_p).value
        self._pool.pinned = ctypes.addressof(self._own) if self.cores else None

    def start(self) -> None:
        """Creates the workers of this process if it has none yet.

        A call out of a signal handler that interrupts this one returns at once: regions need no worker.
        """
        with self._lock:
            if self.running or self._starting:
                return
            self._starting = True
            # Signals are for Python's own threads, whose system calls they interrupt.
            try:
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                try:
                    self._create_workers()
                    self.running = True
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            finally:
                self._starting = False

    def _create_workers(self) -> None:
        entry = ctypes.c_void_p(self.driver.address("burnish_worker"))
        handle = ctypes.c_ulong()
        for index in range(self._created + 1, self.threads):
            worker = self._parts[index]
            worker.thread, worker.pool = index, self.address
            self._created = index  # before it is: two with one number would share scratch memory
            error = _libc.pthread_create(ctypes.byref(handle), None, entry, ctypes.byref(worker))
            if error:
                self._pool.threads, self._created = index, self.threads
                warnings.warn(
                    f"threads: the system allows only {index} of {self.threads} ({os.strerror(error)})",
                    RuntimeWarning, stacklevel=4,
                )  # fmt: skip
                return
            if self.cores:
                self._pin(handle, self.cores[index])
            _libc.pthread_detach(handle)

    def _pin(self, thread: ctypes.c_ulong, core: int) -> None:
        """Pins a worker to a core, unless this process, which may be a forked child, lost it."""
        mask = (ctypes.c_uint64 * MASK_WORDS)()
        mask[core >> 6] = 1 << (core & 63)
        lost = core not in os.sched_getaffinity(0)
        if lost or _libc.pthread_setaffinity_np(thread, ctypes.c_size_t(ctypes.sizeof(mask)), mask):
            warnings.warn(
                f"{VARIABLE}: the system does not give core {core} to a thread any more, which is not pinned",
                RuntimeWarning, stacklevel=5,
            )  # fmt: skip

    @cached_property
    def nodes(self) -> int:
        """NUMA nodes of the cores that its threads are pinned to; 1 where they are not."""
        return len(nodes_of(self.cores)) or 1


_pools: dict[tuple[str, int, tuple[int, ...]], ThreadPool] = {}
_drivers: dict[str, LoadedImage] = {}
_registry_lock = threading.RLock()


def pool(driver: Image, threads: int | None = None) -> ThreadPool:
    """The process's pool of ``threads`` threads (default: the cores this process may use).

    Its workers are pinned as :func:`burnish.base.affinity.pinned_cores` says. On other systems than Linux it has one
    thread: kernels then run serially. Raises ParameterError.
    """
    check_threads(threads)
    count = available_cores() if threads is None else int(threads)
    if not sys.platform.startswith("linux"):
        count = 1
    cores = pinned_cores(count)
    _watch_forks()
    with _registry_lock:
        key = (driver.digest, count, cores)
        if driver.digest not in _drivers:
            _drivers.setdefault(driver.digest, LoadedImage(driver))  # a handler that came between may have been faster
        if key not in _pools:
            return _pools.setdefault(key, ThreadPool(_drivers[driver.digest], count, cores))
        return _pools[key]


def check_threads(threads: Any) -> None:
    """Raises ParameterError for what is no number of threads that a pool may have, and for BURNISH_AFFINITY that cannot
    be. None: one for each core.
    """
    cores = available_cores()
    most = max(MOST_THREADS, cores)
    integer = hasattr(threads, "__index__") and not isinstance(threads, bool)
    if threads is not None and not (integer and 1 <= threads <= most):
        allowed = f"an integer from 1 to {most}, or None for one on each of {cores} cores"
        raise ParameterError(f"threads: found {threads!r}; allowed: {allowed}")
    pinned_cores(1)


def asked_threads(info: Mapping[str, Any]) -> int | None:
    """The threads that a model was compiled for, by what its artifact says, or as many cores as there are."""
    asked = info.get("threads")
    return min(asked, available_cores()) if isinstance(asked, int) and asked > 0 else None


def _never_free(value: object) -> None:
    """Workers use the code and memory of their pool until the process ends, after Python freed its objects."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def available_cores() -> int:
    """Cores that the scheduler may give to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """A child has the pools' memory but none of their workers, and no other thread that could hold a lock."""
    global _registry_lock
    _registry_lock = threading.RLock()
    for each in _pools.values():
        each.reset()
