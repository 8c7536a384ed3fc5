"""Timing on several workers at once: tasks with cold caches, and tasks that take turns; all workers make the calls.

Source of the cold, busy setting: a hot loop on an idle machine underestimates a task of a step by 12 to 18 % (measured
on two cores of a Zen server, which 64 MB between repetitions brings to 3 %).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from burnish.comm.protocol import Comm

COLD_BYTES = 64 << 20  # that are touched before each repetition: more than a core's share of the caches
REPETITIONS = 7
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
"""Of seconds: those that pass, or on a machine that others use as well, those that the calling thread computes."""
Task = Callable[[], object]


def seconds_of(
    task: Task,
    comm: Comm | None = None,
    repetitions: int = REPETITIONS,
    before: Task | None = None,
    clock: str = "wall",
) -> list[float]:
    """Seconds of each repetition of a task, on this worker; all begin it together, after each has done ``before``."""
    now, times = CLOCKS[clock], []
    for _ in range(repetitions):
        if before is not None:
            before()
        if comm is not None:
            comm.barrier()
        begin = now()
        task()
        times.append(now() - begin)
    return times


def cooler() -> Task:
    """Cache flush: a task that fills the caches with other data, to be done before each repetition."""
    other = np.zeros(COLD_BYTES // 8)

    def touch() -> None:
        np.add(other, 1.0, out=other)

    return touch


def cold_seconds(task: Task, comm: Comm | None = None, repetitions: int = REPETITIONS, clock: str = "wall") -> float:
    """Cold-cache seconds of a task with all workers at it: the median, the mean over workers."""
    task()
    mine = median(seconds_of(task, comm, repetitions, cooler(), clock))
    return mine if comm is None else float(comm.all_reduce(np.array([mine]))[0] / comm.size)


def seconds_in_turns(tasks: Sequence[Task], comm: Comm, rounds: int, clock: str = "wall") -> NDArray[np.float64]:
    """Median seconds of each task over ``rounds``, in which all of them take turns; that of the slowest worker.

    A round before these is not counted.
    """
    times = np.zeros((rounds, len(tasks)))
    for number in range(-1, rounds):
        for place, task in enumerate(tasks):
            times[max(number, 0), place] = seconds_of(task, comm, 1, clock=clock)[0]
    return np.asarray(np.median(comm.all_reduce(times, "max"), axis=0))
