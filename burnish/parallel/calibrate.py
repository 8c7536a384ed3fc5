"""Calibration: latency and bandwidth of links, and times of tasks, measured where the plan will run and kept.

Tasks are timed cold (64 MB are touched before each repetition) and with all workers busy at once: a hot loop on an idle
machine underestimates by 12 to 18 %. What runs a task is passed in; times are kept by operation, sizes and device.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from burnish.cache import ObjectCache, cache_key
from burnish.comm.protocol import Comm
from burnish.errors import PlanError
from burnish.parallel.costs import Costs, Floats, Work
from burnish.parallel.machine import Device, Link, Machine
from burnish.parallel.operations import Operation

MESSAGES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes
COLD_BYTES = 64 << 20
REPETITIONS = 7
Task = Callable[[], object]
Maker = Callable[[Operation, tuple[int, ...], bool], Task | None]
"""What makes a runnable task of an operation's part: its extents along the axes, forward or (True) backward."""


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """(latency, bandwidth) of the line ``latency + bytes / bandwidth`` with the least relative errors; latency >= 0."""
    b, t = np.array(sizes, np.float64), np.array(seconds, np.float64)
    rows = np.stack([1 / t, b / t], axis=1)
    latency, rate = np.linalg.lstsq(rows, np.ones(len(t)), rcond=None)[0]
    if latency < 0 or rate <= 0:
        latency, rate = 0.0, float(((b / t) ** 2).sum() / (b / t).sum()) ** -1
    return float(latency), 1.0 / float(rate)


def message_seconds(comm: Comm, x: int, y: int, nbytes: int, repetitions: int = REPETITIONS) -> float:
    """Of a message between two workers: half a round trip, the median; every worker makes the call."""
    data = np.zeros(nbytes, np.uint8)
    times = [0.0]
    for _ in range(repetitions):
        comm.barrier()
        begin = time.perf_counter()
        if comm.rank == x:
            comm.send(data, y)
            comm.recv(y)
        elif comm.rank == y:
            comm.recv(x)
            comm.send(data, x)
        times.append((time.perf_counter() - begin) / 2)
    mine = np.array([median(times[1:])])
    return float(comm.all_gather_v(mine)[x][0])


def all_reduce_seconds(comm: Comm, nbytes: int, repetitions: int = REPETITIONS) -> float:
    """Of a sum over all workers, the median of the slowest worker's."""
    data = np.zeros(nbytes // 4, np.float32)
    times = []
    for _ in range(repetitions):
        comm.barrier()
        begin = time.perf_counter()
        comm.all_reduce(data, out=data)
        times.append(time.perf_counter() - begin)
    return float(comm.all_reduce(np.array([median(times)]), "max")[0])


def calibrated(machine: Machine, comm: Comm, sizes: Sequence[int] = MESSAGES) -> Machine:
    """The machine with measured links; worker r stands for device r, and every worker makes the call.

    Raises PlanError where the numbers of workers and devices differ.
    """
    if comm.size != machine.size:
        raise PlanError(f"calibration of '{machine.name}': {comm.size} workers; allowed: {machine.size}, one a device")
    measured: dict[tuple[int, int], tuple[float, float]] = {}
    links: list[Link] = []
    for number, link in enumerate(machine.links):
        pairs = [
            (x, y) for x in link.sources for y in link.targets if x != y and number in machine.routes[x][y]
        ]  # fmt: skip
        for x, y in pairs[:4]:
            key = (min(x, y), max(x, y))
            if key not in measured:
                measured[key] = fit(sizes, [message_seconds(comm, *key, size) for size in sizes])
        found = [(measured[min(x, y), max(x, y)], len(machine.routes[x][y])) for x, y in pairs[:4]]
        if found:
            latency, bandwidth = median(f[0] / hops for f, hops in found), median(f[1] for f, _ in found)
            link = replace(link, latency=latency, bandwidth=bandwidth)
        links.append(link)
    return _with_sums(replace(machine, links=tuple(links)), comm, sizes[-1])


def _with_sums(machine: Machine, comm: Comm, nbytes: int) -> Machine:
    """The machine with the share of its links' bandwidth that an all-reduce of so many bytes reaches."""
    if machine.size < 2:
        return machine
    took = all_reduce_seconds(comm, nbytes)
    n = machine.size
    hops = [(x, (x + 1) % n) for x in range(n)]
    ideal = max(2 * (n - 1) / n * nbytes / machine.bandwidth(x, y) for x, y in hops)
    return replace(machine, all_reduce=float(min(1.0, max(ideal / took, 1e-3))))


# --- tasks ------------------------------------------------------------------------------------------------------------


def cold_seconds(task: Task, comm: Comm | None = None, repetitions: int = REPETITIONS) -> float:
    """Of a task with nothing of it in the caches and all workers at it: the median, the mean over workers."""
    other = np.zeros(COLD_BYTES // 8)
    task()
    times = []
    for _ in range(repetitions):
        other += 1.0
        if comm is not None:
            comm.barrier()
        begin = time.perf_counter()
        task()
        times.append(time.perf_counter() - begin)
    mine = median(times)
    return mine if comm is None else float(comm.all_reduce(np.array([mine]))[0] / comm.size)


class Measured:
    """Costs of measured tasks (``burnish.parallel.costs.Costs``): each once by operation, sizes and kind of device.

    ``make``: what makes a task runnable; None, or what it does not make, costs what ``fallback`` says. ``cache``: where
    times are kept, None for this object alone. With ``comm`` every worker asks for the same costs in the same order.
    """

    def __init__(
        self, fallback: Costs, make: Maker | None, cache: ObjectCache | None = None, comm: Comm | None = None
    ) -> None:
        self._fallback, self._make, self._cache, self._comm = fallback, make, cache, comm
        self._known: dict[str, float] = {}
        self.measured = 0

    def seconds(self, op: Operation, work: Work, device: Device) -> tuple[Floats, Floats]:
        """See :class:`burnish.parallel.costs.Costs`."""
        guessed = self._fallback.seconds(op, work, device)
        found: tuple[NDArray[np.float64], NDArray[np.float64]] = (guessed[0].copy(), guessed[1].copy())
        for column in range(work.sizes.shape[1]):
            sizes = tuple(int(n) for n in work.sizes[:, column])
            for way in range(2):
                took = self._time(op, sizes, bool(way), work.gradient, device)
                if took is not None:
                    found[way][column] = took
        return found

    def _time(
        self, op: Operation, sizes: tuple[int, ...], backward: bool, gradient: bool, device: Device
    ) -> float | None:
        key = cache_key("parallel task", device.kind, op.signature, repr(sizes), repr((backward, gradient)))
        if key not in self._known:
            stored = self._stored(key)
            if stored is None:
                task = self._make(op, sizes, backward) if self._make is not None else None
                if task is None:
                    return None
                stored = cold_seconds(task, self._comm)
                self.measured += 1
                if self._cache is not None:
                    self._cache.put(key, json.dumps(stored).encode())
            self._known[key] = stored
        return self._known[key]

    def _stored(self, key: str) -> float | None:
        """A time that is kept. All workers agree whether there is one: all measure if one does not have it."""
        data = self._cache.get(key) if self._cache is not None else None
        try:
            value = float(json.loads(data)) if data is not None else 0.0
        except ValueError:
            value = 0.0
        if self._comm is not None:
            value = float(self._comm.all_reduce(np.array([value]), "min")[0])
        return value if value > 0 else None
