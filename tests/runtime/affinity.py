"""Masks of cores that threads of a pool ask the system for, which is made up."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence

from burnish.machines.known import machine_for
from burnish.runtime.pool import ThreadPool

CALL = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 7)


def until_all_sleep(pool: ThreadPool) -> None:
    """Waits for all workers, at most 10 s."""
    deadline = time.monotonic() + 10
    while pool._pool.sleepers < pool.threads - 1 and time.monotonic() < deadline:
        time.sleep(0.002)


def masks_asked_for(
    pool: ThreadPool, cores: tuple[int, int], usable: int, wakes: Sequence[Callable[[], object]]
) -> list[int]:
    """Masks, in order, that threads ask for while ``wakes`` wake the workers, each once all sleep.

    ``cores``: those of the caller and of the workers, as the system has it. ``usable``: the mask of those that a thread
    may use. The pool, whose system calls stay made up, is of use to a process of its own.
    """
    kernel = machine_for(platform.machine()).system
    assert kernel is not None
    names = {number: name for name, number in kernel.calls.items()}
    caller, masks = threading.get_ident(), list[int]()
    libc = ctypes.CDLL(None)
    libc.syscall.restype, libc.syscall.argtypes = ctypes.c_long, [ctypes.c_long] * 7

    def system(number: int, *args: int) -> int:
        match names[number]:
            case "getcpu":
                ctypes.c_int32.from_address(args[0]).value = cores[threading.get_ident() != caller]
            case "sched_getaffinity":
                ctypes.c_int64.from_address(args[2]).value = usable
                return 8
            case "sched_setaffinity":
                masks.append(ctypes.c_int64.from_address(args[2]).value)
            case _:
                return int(libc.syscall(number, *args))
        return 0

    call = CALL(system)
    pool._pool.syscall = ctypes.cast(call, ctypes.c_void_p).value
    for wake in wakes:
        wake()
        until_all_sleep(pool)
    return masks


def check_in_child(check: Callable[[], bool]) -> None:
    """Fails unless ``check``, in a fork of this process, is true."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
