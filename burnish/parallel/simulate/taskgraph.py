"""Task graph of a step of training or inference, kept implicit: the problem that the simulator reads (thesis-jia 3.4).

Tasks are the parts of operations, forward and backward; a tensor that two parts share on different devices is a
communication task on the links between them; sums of weight gradients are communication tasks as well. Of inference
backward tasks, gradients and their sums take no time and no bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm

import numpy as np
from numpy.typing import NDArray

from burnish.errors import PlanError
from burnish.parallel.model.costs import Costs, work
from burnish.parallel.model.machine import Processor
from burnish.parallel.model.operations import MAX_AXES
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.simulate.core import ProblemArrays
from burnish.parallel.simulate.sharing import Array, OverlapArrays
from burnish.parallel.simulate.tables import edge_tables, weight_tables

NANO = 1e9
SYNCHRONIZATIONS = ("overlapped", "after")
MAX_PARTS = 4096


class Problem:
    """Strategies of a model on a machine as numbers that are simulated.

    ``synchronization``: ``overlapped``, ring all-reduces that start with the last gradient of their weights; or
    ``after``, what the published simulator does: after the step, one after the other, linear in replicas. ``sparse``:
    gradients of rows that an index picks (embeddings) are summed as rows, else as whole tables. ``sharded``: replicas
    share gradients and optimizer state among them (ZeRO, stage 2): memory alone, as a scattered sum and the gathering
    of updated parameters send what a ring all-reduce does. ``order``: pairs of operations (a, b): no forward task of b
    before the backward ones of a. ``trains``: whether there is a way back; without, a step is one of inference.
    """

    def __init__(
        self,
        space: StrategySpace,
        costs: Costs,
        synchronization: str = "overlapped",
        sparse: bool = False,
        sharded: bool = False,
        order: Iterable[tuple[int, int]] = (),
        trains: bool = True,
    ) -> None:
        if synchronization not in SYNCHRONIZATIONS:
            raise PlanError(f"synchronization '{synchronization}'; allowed: {', '.join(SYNCHRONIZATIONS)}")
        if space.machine.size > MAX_PARTS:
            raise PlanError(f"machine '{space.machine.name}': {space.machine.size} devices; allowed: {MAX_PARTS}")
        self.space, self.model, self.machine = space, space.model, space.machine
        self.synchronization, self.sparse, self.sharded, self.costs = synchronization, sparse, sharded, costs
        self.weights, self.trains = weight_tables(self.model), trains
        self._kinds: list[Processor] = []
        self.tables = self._tables(costs, list(order))

    def _tables(self, costs: Costs, order: Sequence[tuple[int, int]]) -> ProblemArrays:
        edges = self.model.edges
        count = len(self.model.operations)
        ends = np.array([[e.producer, e.consumer] for e in edges], np.int64).reshape(-1, 2)
        shared = edge_tables(self.model, self.space.levels)
        splits, time, kind = self._splits(costs)
        configurations, places = self._configurations()
        geometry = OverlapArrays(np.hstack([ends, shared.axes]), splits, shared.part, shared.reach)
        member = self.weights.members[:, 0]
        summed = self.weights.sparse if self.sparse else self.weights.nbytes
        back = np.array([1.0, 1.0 if self.trains else 0.0])
        group = np.repeat(np.arange(len(self.weights.nbytes)), np.diff(self.weights.pointer))
        numbered = list(enumerate(ends.tolist()))
        lists = _lists(
            [
                [(a, e) for e, (a, _) in numbered],
                [(b, e) for e, (_, b) in numbered],
                [(b, a) for a, b in order],
                list(order),
                list(zip(member.tolist(), group.tolist(), strict=True)),
            ],
            count,
        )
        return ProblemArrays(
            geometry,
            time,
            kind,
            configurations,
            places,
            shared.nbytes * back,
            shared.covered,
            lists[0],
            lists[1],
            self.weights.pointer,
            self.weights.members,
            summed * back[1],
            *_links(self),
            self.output_bytes,
        )

    def _splits(self, costs: Costs) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Distinct degrees of each class with their levels, what tasks of them cost, and the kinds of devices."""
        kinds = {
            (d.kind, d.flops, d.bandwidth, d.launch, d.units): d for d in reversed(self.machine.devices)
        }  # fmt: skip
        self._kinds = list(kinds.values())
        numbers = {key: n for n, key in enumerate(kinds)}
        devices = self.machine.devices
        kind = np.array([numbers[d.kind, d.flops, d.bandwidth, d.launch, d.units] for d in devices], np.int64)
        level = {degree: n for n, degree in enumerate(self.space.levels)}
        degrees: list[tuple[int, ...]] = []
        times: list[list[NDArray[np.float64]]] = [[], []]
        self.split_of: list[int] = [0] * self.space.size
        written, held, recomputes = [], [], []
        for members in self.space.classes:
            op, first = self.model.operations[members[0]], int(self.space.first[members[0]])
            chosen = [self.space.configuration(first + n) for n in range(int(self.space.count[members[0]]))]
            distinct = {key: n for n, key in enumerate(dict.fromkeys((c.degrees, c.recompute) for c in chosen))}
            for n, c in enumerate(chosen):
                self.split_of[first + n] = len(degrees) + distinct[c.degrees, c.recompute]
            again = np.array([recompute for _, recompute in distinct])
            made = {name for other in self.model.operations for name in other.outputs}
            part = work(op, [own for own, _ in distinct], gradient=any(name in made for name in op.inputs))
            seconds = [costs.seconds(op, part, device) for device in self._kinds]
            times[0].append(np.stack([ahead for ahead, _ in seconds], axis=1))
            times[1].append(np.stack([back + again * ahead for ahead, back in seconds], axis=1))
            written.append(part.written)
            recomputes.append(again)
            held.append(part.parameters)
            degrees += [(*d, *([1] * (MAX_AXES - len(d)))) for d, _ in distinct]
        self.output_bytes, self.weight_bytes = np.concatenate(written), np.concatenate(held)
        self.recomputes = np.concatenate(recomputes)
        table = np.array(degrees, np.int64)
        levels = np.vectorize(level.__getitem__, otypes=[np.int64])(table)
        seconds_of = np.stack([np.concatenate(t) for t in times], axis=1)
        whole = np.maximum(1, np.rint(seconds_of * NANO)).astype(np.int64)
        if not self.trains:
            whole[:, 1] = 0
        return np.hstack([table, levels]), whole, kind

    def _configurations(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Split, place and number of parts of every configuration; the places."""
        numbers: dict[tuple[int, ...], int] = {}
        place, parts = [], []
        for n in range(self.space.size):
            devices = self.space.configuration(n).devices
            place.append(numbers.setdefault(devices, len(numbers)))
            parts.append(len(devices))
        table = np.zeros((len(numbers), max(max(parts), self.machine.size)), np.int64)
        for devices, n in numbers.items():
            table[n, : len(devices)] = devices
        return np.stack([np.array(self.split_of), np.array(place), np.array(parts)], axis=1).astype(np.int64), table

    @property
    def most_pieces(self) -> int:
        """The most pieces that configurations cut one group of weights into."""
        each = lcm(*self.space.levels)
        return each * each if (self.weights.members[:, 2] >= 0).any() else each

    @property
    def log10_size(self) -> float:
        """Decimal logarithm of the number of strategies."""
        return self.space.log10_size

    @property
    def resources(self) -> int:
        """Devices and links."""
        return self.machine.size + len(self.machine.links)


def _lists(pairs: Sequence[Sequence[tuple[int, int]]], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lists of numbers by operation: for each list of (operation, number) a row of pointers, and all numbers."""
    pointers = np.zeros((len(pairs), count + 1), np.int64)
    numbers: list[int] = []
    for row, kind in zip(pointers, pairs, strict=True):
        found: list[list[int]] = [[] for _ in range(count)]
        for operation, number in kind:
            found[operation].append(number)
        row[:] = len(numbers) + np.cumsum([0, *map(len, found)])
        numbers += [number for those in found for number in those]
    return pointers, np.array(numbers, np.int64)


def _links(problem: Problem) -> tuple[Array, Array, Array, Array, bool, float, float, bool]:
    """Routes and times of every pair of devices, of every link; nodes; how weights are synchronized; whether devices
    copy messages, of whose time each of two has one half.
    """
    machine = problem.machine
    size = machine.size
    route = np.full((size, size, 2), -1, np.int64)
    wire = np.zeros((size, size, 2))
    share = 0.5 if machine.copied else 1.0
    link = np.zeros((size + len(machine.links), 2))
    for number, one in enumerate(machine.links, size):
        link[number] = one.latency * NANO, NANO / (one.bandwidth * machine.all_reduce)
    for x in range(size):
        for y in range(size):
            for side, number in enumerate(machine.routes[x][y]):
                route[x, y, side] = size + number
            if x != y:
                wire[x, y] = share * machine.latency(x, y) * NANO, share * NANO / machine.bandwidth(x, y)
            if x != y and machine.copied:
                route[x, y] = x, y
                link[x] = wire[x, y] / (1.0, machine.all_reduce)
    node = np.array([d.node for d in machine.devices], np.int32)
    same = (node[:, None] == node[None, :]) & ~np.eye(size, dtype=bool)
    far = node[:, None] != node[None, :]
    slowest = [float(wire[where, 1].max()) / share if where.any() else 0.0 for where in (same, far)]
    overlapped = problem.synchronization == "overlapped"
    return route, wire, link, node, overlapped, slowest[0], slowest[1], machine.copied
