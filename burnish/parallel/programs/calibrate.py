"""Calibration: latency and bandwidth of links, and costs of tasks, measured where the plan will run and kept.

Parts of operations are timed by what has compiled them (``burnish.parallel.programs.calibration``); here is what they
cost in the simulator. Times are kept by operation (its type, shapes and attributes), sizes of the part, and kind of
device.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from burnish.base.cache import ObjectCache, cache_key
from burnish.comm.protocol import Comm
from burnish.errors import PlanError
from burnish.measure.together import Task, cooler, seconds_of
from burnish.parallel.model.costs import Costs, Floats, TaskWork
from burnish.parallel.model.costs import work as work_of
from burnish.parallel.model.machine import DeviceCluster, MachineLink, Processor
from burnish.parallel.model.operations import Operation, OperationGraph
from burnish.parallel.programs.parts import OperationPart

MESSAGES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes
Line = tuple[float, float]
"""Latency in seconds and bandwidth in bytes a second: ``latency + bytes / bandwidth``."""


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> Line:
    """The line with the least relative errors; its latency is not negative."""
    b, t = np.array(sizes, np.float64), np.array(seconds, np.float64)
    rows = np.stack([1 / t, b / t], axis=1)
    latency, rate = np.linalg.lstsq(rows, np.ones(len(t)), rcond=None)[0]
    if latency < 0 or rate <= 0:
        latency, rate = 0.0, float(((b / t) ** 2).sum() / (b / t).sum()) ** -1
    return float(latency), 1.0 / float(rate)


# --- links ------------------------------------------------------------------------------------------------------------


def message_seconds(comm: Comm, x: int, y: int, nbytes: int, clock: str = "wall") -> float:
    """Message time between two workers, of both ends together, in seconds: the median; every worker makes the call.

    Caches are cold, and what has come is where it is read, as in a step. By the wall clock half a round trip; of a
    round trip's work, a worker's own part is what both ends take of one message.
    """
    data, place = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)

    def round_trip() -> None:
        if comm.rank == x:
            comm.send(data, y)
            comm.irecv(y, out=place).wait()
        elif comm.rank == y:
            comm.irecv(x, out=place).wait()
            comm.send(data, x)

    took = median(seconds_of(round_trip, comm, before=cooler(), clock=clock))
    mine = took / 2 if clock == "wall" else took
    return float(comm.all_gather_v(np.array([mine]))[x][0])


def sum_seconds(comm: Comm, nbytes: int, clock: str = "wall") -> float:
    """Gradient sum time over all workers, in seconds: the median of the slowest worker's; as programs make them
    (``burnish.parallel.model.redistribute``): two workers send each other theirs, and the update reads what has come.
    """
    data, place = np.zeros(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)

    def exchanged() -> None:
        under_way = comm.isend(data, 1 - comm.rank)
        comm.irecv(1 - comm.rank, out=place).wait()
        np.max(place)
        under_way.wait()

    task: Task = exchanged if comm.size == 2 else lambda: comm.all_reduce(data, out=data)
    mine = median(seconds_of(task, comm, before=cooler(), clock=clock))
    return float(comm.all_reduce(np.array([mine]), "max")[0])


def calibrated(
    machine: DeviceCluster, comm: Comm, sizes: Sequence[int] = MESSAGES, clock: str = "wall"
) -> DeviceCluster:
    """The machine with measured links; worker r stands for device r, and every worker makes the call.

    ``clock``: see :data:`burnish.measure.together.CLOCKS`.

    Raises PlanError where the numbers of workers and devices differ.
    """
    if comm.size != machine.size:
        raise PlanError(f"calibration of '{machine.name}': {comm.size} workers; allowed: {machine.size}, one a device")
    measured: dict[tuple[int, int], Line] = {}
    links: list[MachineLink] = []
    for number, link in enumerate(machine.links):
        pairs = [
            (x, y) for x in link.sources for y in link.targets if x != y and number in machine.routes[x][y]
        ]  # fmt: skip
        for x, y in pairs[:4]:
            key = (min(x, y), max(x, y))
            if key not in measured:
                measured[key] = fit(sizes, [message_seconds(comm, *key, size, clock) for size in sizes])
        found = [(measured[min(x, y), max(x, y)], len(machine.routes[x][y])) for x, y in pairs[:4]]
        if found:
            latency, bandwidth = median(f[0] / hops for f, hops in found), median(f[1] for f, _ in found)
            link = replace(link, latency=latency, bandwidth=bandwidth)
        links.append(link)
    return _with_sums(replace(machine, links=tuple(links)), comm, sizes[-1], clock)


def _with_sums(machine: DeviceCluster, comm: Comm, nbytes: int, clock: str) -> DeviceCluster:
    """Machine with the measured share of its links' bandwidth that an all-reduce of ``nbytes`` reaches."""
    if machine.size < 2:
        return machine
    took = sum_seconds(comm, nbytes, clock)
    n = machine.size
    hops = [(x, (x + 1) % n) for x in range(n)]
    ideal = max(2 * (n - 1) / n * nbytes / machine.bandwidth(x, y) for x, y in hops)
    return replace(machine, all_reduce=float(min(1.0, max(ideal / took, 1e-3))))


# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimedPart:
    """Key of a measured time: kind of device, operation by its signature, extents of the part, and which task."""

    kind: str
    signature: str
    sizes: tuple[int, ...]
    backward: bool
    gradient: bool

    @staticmethod
    def of(part: OperationPart, device: Processor) -> TimedPart:
        """Key of a part on a device."""
        return TimedPart(device.kind, part.op.signature, part.sizes, part.backward, part.gradient)


class Times:
    """Measured seconds by what they are of, kept in a cache. ``edition``: what makes kept times void, such as the
    version of the compiler.
    """

    def __init__(self, cache: ObjectCache | None = None, edition: str = "") -> None:
        self._cache, self._edition = cache, edition
        self._known: dict[str, float] = {}

    def get(self, what: object) -> float | None:
        """Seconds that are known, or None."""
        key = self._key(what)
        if key not in self._known and self._cache is not None:
            data = self._cache.get(key)
            try:
                stored = None if data is None else float(json.loads(data))
            except (ValueError, TypeError):
                stored = None
            if stored is not None and 0 <= stored < float("inf"):
                self._known[key] = stored
        return self._known.get(key)

    def put(self, what: object, seconds: float) -> None:
        """Keeps what was measured."""
        self._known[self._key(what)] = seconds
        if self._cache is not None:
            self._cache.put(self._key(what), json.dumps(seconds).encode())

    def _key(self, what: object) -> str:
        return cache_key("parallel task", self._edition, repr(what))


@dataclass(frozen=True, eq=False)
class MeasuredCosts:
    """Costs of measured tasks (``burnish.parallel.model.costs.Costs``).

    What was not measured costs what ``fallback`` says, times how much longer than that the whole operation of its name
    takes, where that was measured: so do micro-batches.

    ``update``: of a parameter's bytes, which come on top of the backward task of an operation that reads it; of several
    operations that share it, and of micro-batches, each takes its part. ``missing``: timings that were asked for and
    are not known.
    """

    fallback: Costs
    times: Times
    model: OperationGraph
    update: Line = (0.0, float("inf"))
    missing: dict[TimedPart, None] = field(default_factory=dict)
    _longer: dict[tuple[str, str, bool], tuple[float, float]] = field(default_factory=dict)

    def seconds(self, op: Operation, work: TaskWork, device: Processor) -> tuple[Floats, Floats]:
        """See :class:`burnish.parallel.model.costs.Costs`."""
        guessed = self.fallback.seconds(op, work, device)
        found: tuple[NDArray[np.float64], NDArray[np.float64]] = (guessed[0].copy(), guessed[1].copy())
        for column in range(work.sizes.shape[1]):
            sizes = tuple(int(n) for n in work.sizes[:, column])
            for way in range(2):
                what = TimedPart(device.kind, op.signature, sizes, bool(way), work.gradient)
                took = self.times.get(what)
                if took is None:
                    self.missing[what] = None
                    found[way][column] *= self._correction(op.whole_name or op.name, work.gradient, device)[way]
                else:
                    found[way][column] = took
        if op.parameters:
            readers = op.micro_batches * max(len(self.model.readers[name]) for name in op.parameters)
            found[1][:] += (len(op.parameters) * self.update[0] + work.parameters / self.update[1]) / readers
        return found

    def _correction(self, name: str, gradient: bool, device: Processor) -> tuple[float, float]:
        """Measured over estimated seconds of an unsplit operation, forward and backward; 1 where not measured."""
        key = (name, device.kind, gradient)
        if key not in self._longer:
            number, ratios = self.model.index.get(name), [1.0, 1.0]
            if number is not None:
                whole = self.model.operations[number]
                own = work_of(whole, [[1] * len(whole.axes)], gradient)
                guessed = self.fallback.seconds(whole, own, device)
                for way in range(2):
                    sizes = tuple(int(n) for n in own.sizes[:, 0])
                    took = self.times.get(TimedPart(device.kind, whole.signature, sizes, bool(way), gradient))
                    if took is not None and guessed[way][0] > 0:
                        ratios[way] = took / float(guessed[way][0])
            self._longer[key] = (ratios[0], ratios[1])
        return self._longer[key]
