"""NUMA placement: memory whose pages are first touched by the threads that read them, where these are pinned."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from burnish.runtime.buffers import address_of, allocate
from burnish.runtime.executable import Executable
from burnish.runtime.pages import HUGE_PAGE
from burnish.runtime.pool import ThreadPool

COPY_BODY = "burnish_copy_range"  # of a region that copies; drivers in files of older releases have none
PLACED_BYTES = HUGE_PAGE  # tensors from this size on are divided between the threads
_GRAIN = 4096  # bytes that one iteration copies: a page


def placed_params(executable: Executable, workers: object) -> Executable:
    """The executable with its parameters placed for a pool of threads; itself where it does not matter."""
    if not _is_uneven(workers):
        return executable
    slots = (slot for call in executable.calls for slot in call.args if slot.memory == "param")
    return replace(executable, params=copied(executable.params, ((s.offset, s.nbytes) for s in slots), workers))


def copied_state(executable: Executable, state: np.ndarray, workers: object) -> np.ndarray:
    """Copy of the values (uint8) of all states, placed for a pool of threads."""
    spans = zip(executable.state_offsets, (spec.nbytes for spec in executable.states), strict=False)
    return copied(state, spans, workers)


def copied(source: np.ndarray, spans: Iterable[tuple[int, int]], workers: object) -> np.ndarray:
    """Copy of bytes (uint8, one dimension) at a multiple of 64, by the calling thread, or by those that read it.

    ``spans``: offset and bytes of each tensor. Where the threads of ``workers`` are pinned to several NUMA nodes, each
    large tensor is a parallel region of its own: thread t of n copies its t-th part. Kernels divide their regions so,
    too: a thread finds the packed weights of the columns or channels that it computes on its own node; what
    every thread reads is spread over the nodes.
    """
    target = allocate(source.nbytes)
    done = 0
    if isinstance(workers, ThreadPool) and _is_uneven(workers):
        workers.start()
        for begin, nbytes in sorted(set(spans)):
            if nbytes >= PLACED_BYTES and begin >= done:
                target[done:begin] = source[done:begin]
                done = begin + nbytes
                _copy_in_parallel(target[begin:done], source[begin:done], workers)
    target[done:] = source[done:]
    return target


def _is_uneven(workers: object) -> bool:
    """Whether it matters which of the threads touches memory first: they are pinned to cores of several NUMA nodes."""
    return isinstance(workers, ThreadPool) and workers.nodes > 1 and COPY_BODY in workers.driver


def _copy_in_parallel(target: np.ndarray, source: np.ndarray, workers: ThreadPool) -> None:
    """Copies bytes in one parallel region."""
    arguments = (ctypes.c_int64 * 4)(address_of(target), address_of(source), target.nbytes, _GRAIN)
    region = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(workers.parallel)
    body = workers.driver.address(COPY_BODY)
    region(workers.address, body, ctypes.addressof(arguments), -(-target.nbytes // _GRAIN))
