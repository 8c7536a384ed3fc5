"""Memory of a strategy, device by device: parameters with gradients and optimizer state, activations, received copies.

Activations are kept from the forward task to its own backward one, and so are the copies of inputs that came from other
devices, which gradients of parameters read; in a step all of them are alive when the backward pass begins. Results that
are recomputed are alive one segment at a time: operations that recompute and are connected by tensors (Chen et al.
2016). Buffers: the largest gradient of a result, and one bucket of the largest weight gradient for its sum. Of
inference there are parameters, and results and copies from where they are made to their last reader.

Devices that copy messages run programs (``burnish.parallel.programs.program``), which have buffers of their own for all
messages that they send and receive, for the whole step; states; and an arena, where a result lives from its forward
task to its own backward one, an input that is put together of several pieces as long as what reads it, and what a task
has for itself, such as its parameters in the order in which its kernel reads them. What is estimated of these is from
15 % below to 25 % above what ``burnish.parallel.programs.ranks`` plans (`benchmarks.parallel_memory`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.parallel.model.redistribute import SMALL
from burnish.parallel.simulate.core import PARTS, PLACE, SPLIT, ProblemArrays
from burnish.parallel.simulate.sharing import SOURCE, TARGET, Array, partners
from burnish.parallel.simulate.taskgraph import Problem
from burnish.parallel.simulate.weight_sums import weight_pieces

Choice = NDArray[np.int32]
Floats = NDArray[np.float64]


class ProgramBytes(NamedTuple):
    """Bytes by device: states, buffers of messages, and results, gradients and what lies between them."""

    state: Floats
    messages: Floats
    arena: Floats

    @property
    def total(self) -> Floats:
        """All of them."""
        return self.state + self.messages + self.arena


def device_bytes(problem: Problem, choice: Choice, slots: int = 2) -> Floats:
    """Bytes that every device needs in a step; ``slots``: arrays of optimizer state for each parameter.

    Each distinct piece of a parameter counts once on a device, however many tasks there read it. Of a sharded problem
    the replicas of a piece divide its gradient and optimizer state.
    """
    results = _by_device(problem, choice, problem.output_bytes)
    if not problem.trains:
        messages = program_bytes(problem, choice).messages if problem.machine.copied else 0.0
        return _parameters(problem, choice, 0)[0] + messages + _until_read(problem, choice, results)
    segment = np.zeros(problem.machine.size)
    _segments(problem, choice, results, segment)
    if problem.machine.copied:
        return program_bytes(problem, choice, slots).total + segment
    kept = results[~problem.recomputes[problem.tables.configurations[choice, SPLIT]]].sum(axis=0)
    for e, source, target in _edges(problem):
        kept += _received(problem, choice, e, source, target)
    return static_bytes(problem, choice, slots) + kept + segment


def static_bytes(problem: Problem, choice: Choice, slots: int = 2) -> Floats:
    """Bytes of parameters, gradients, optimizer state and buffers, without results and copies."""
    held, bucket = _parameters(problem, choice, 1 + slots)
    return held + bucket + _by_device(problem, choice, problem.output_bytes, np.maximum).max(axis=0)


def program_bytes(problem: Problem, choice: Choice, slots: int = 2) -> ProgramBytes:
    """Bytes that every device's program needs; ``slots``: arrays of optimizer state for each parameter."""
    count, size = choice.size, problem.machine.size
    t = problem.tables
    state, messages = np.zeros((2, size))
    sums = np.zeros((count, size))  # in the arena up to the updates, by the operation whose backward task begins them
    for g, held, unit in _pieces(problem, choice):
        holders = held.sum(axis=1)
        last = int(t.members[t.member_pointer[g] : t.member_pointer[g + 1], 0].max())
        for n in np.unique(holders[holders > 0]):
            own = unit * held[holders == n].sum(axis=0)
            state += (1 + slots) * own
            sent, kept = _sums(int(n), unit) if problem.trains else (0.0, 0.0)
            messages += sent * own
            sums[last] += kept * own
    made = _by_device(problem, choice, np.where(problem.recomputes, 0, problem.output_bytes))
    freed, read = _by_device(problem, choice, problem.weight_bytes), np.zeros((count, size))
    found, shared = np.zeros((2, t.places.shape[1]), np.int64)
    w = np.zeros(40, np.int64)
    for e, source, target in _edges(problem):
        add_messages(t, e, choice[source], choice[target], messages, read[target], freed[target], found, shared, w)
    alive = np.cumsum(made + read, axis=0) + np.cumsum(sums[::-1], axis=0)[::-1]
    arena = (alive + made + freed).max(axis=0)
    return ProgramBytes(state, messages, arena)


def _pieces(problem: Problem, choice: Choice) -> Iterator[tuple[int, Floats, float]]:
    """Groups of weights: which devices hold each piece, 1 or 0 [pieces, devices], and the bytes of one."""
    pieces = np.zeros((problem.most_pieces, problem.machine.size), np.bool_)
    for g, nbytes in enumerate(problem.weights.nbytes):
        count = weight_pieces(problem.tables, g, choice, pieces)
        yield g, pieces[:count].astype(np.float64), nbytes / count


def _parameters(problem: Problem, choice: Choice, states: int) -> tuple[Floats, Floats]:
    """Bytes of parameters and their states by device, and of the largest one."""
    total, bucket = np.zeros((2, problem.machine.size))
    for _, held, unit in _pieces(problem, choice):
        own = held.sum(axis=0) * unit
        if problem.sharded:
            held /= np.maximum(held.sum(axis=1, keepdims=True), 1)
        total += own + states * held.sum(axis=0) * unit
        np.maximum(bucket, own, out=bucket)
    return total, bucket


def _edges(problem: Problem) -> Iterator[tuple[int, int, int]]:
    """Number, producer and consumer of each edge."""
    for e, (source, target) in enumerate(problem.tables.geometry.edges[:, [SOURCE, TARGET]].tolist()):
        yield e, source, target


def _by_device(problem: Problem, choice: Choice, nbytes: NDArray[Any], join: np.ufunc = np.add) -> Floats:
    """Bytes of each operation's parts on each device, which it has of a split: [operations, devices]."""
    t = problem.tables
    found = np.zeros((choice.size, problem.machine.size))
    for i in range(choice.size):
        split, place, parts = t.configurations[choice[i]]
        join.at(found[i], t.places[place, :parts], nbytes[split])
    return found


def _received(problem: Problem, choice: Choice, e: int, source: int, target: int) -> Floats:
    """Bytes by device that the consumer of an edge receives from others."""
    t = problem.tables
    copied = np.zeros(problem.machine.size)
    found, size = np.zeros((2, t.places.shape[1]), np.int64)
    add_received(t, e, choice[source], choice[target], copied, found, size, np.zeros(40, np.int64))
    return copied


def _until_read(problem: Problem, choice: Choice, results: Floats) -> Floats:
    """The most bytes of results and copies at once, operations in order, each until its last reader is done."""
    made, freed = results.copy(), np.zeros_like(results)
    last = list(range(choice.size))
    for e, source, target in _edges(problem):
        last[source] = max(last[source], target)
        copied = _received(problem, choice, e, source, target)
        made[source] += copied
        freed[target] += copied
    wanted = {*problem.model.graph.outputs}
    for i, op in enumerate(problem.model.operations):
        if not wanted & {*op.outputs}:
            freed[last[i]] += results[i]
    most: Floats = (np.cumsum(made, axis=0) - np.cumsum(freed, axis=0) + freed).max(axis=0)
    return most


def _segments(problem: Problem, choice: NDArray[np.int32], results: Floats, largest: Floats) -> None:
    """The most bytes that the recomputed results of one segment take, by device."""
    t = problem.tables
    again = problem.recomputes[t.configurations[choice, SPLIT]]
    if not again.any():
        return
    segment = list(range(choice.size))

    def root(i: int) -> int:
        while segment[i] != i:
            i = segment[i]
        return i

    for source, target in t.geometry.edges[:, [SOURCE, TARGET]].tolist():
        if again[source] and again[target]:
            segment[root(target)] = root(source)
    sums: dict[int, Floats] = {}
    for i in np.flatnonzero(again).tolist():
        sums[root(i)] = sums.get(root(i), 0.0) + results[i]
    for own in sums.values():
        np.maximum(largest, own, out=largest)


def _sums(n: int, nbytes: float) -> tuple[float, float]:
    """Gradient copies where n devices have terms: how often its bytes are in messages, and in the arena: see
    :mod:`burnish.parallel.model.redistribute`.
    """
    if n == 1:
        return 0.0, 0.0
    if n == 2 or nbytes <= SMALL:
        return float(n), 0.0
    return 3.0 * (n - 1) / n + 1.0 / n, 1.0


@njit(cache=True)
def add_received(t: ProblemArrays, e: int, ci: int, cj: int, held: Array, found: Array, size: Array, w: Array) -> None:
    """Adds the bytes that devices of an edge's consumer receive from others: of each producer's part the largest piece.

    Tasks on one device share what they receive.
    """
    largest = np.zeros(t.kind.size, np.int64)
    di = t.configurations[ci, SPLIT]
    dj = t.configurations[cj, SPLIT]
    for k in range(t.configurations[ci, PARTS]):
        x = t.places[t.configurations[ci, PLACE], k]
        largest[:] = 0
        for n in range(partners(t.geometry, e, True, di, dj, k, found, size, w)):
            y = t.places[t.configurations[cj, PLACE], found[n]]
            if x != y:
                largest[y] = max(largest[y], size[n])
        for y in range(t.kind.size):
            held[y] += largest[y] * t.nbytes[e, 0]


@njit(cache=True)
def add_messages(
    t: ProblemArrays, e: int, ci: int, cj: int, messages: Array, read: Array, freed: Array, found: Array,
    size: Array, w: Array,
) -> None:  # fmt: skip
    """Adds what an edge takes by device: buffers of messages there and back, inputs that are put together of pieces,
    and their gradients.
    """
    di = t.configurations[ci, SPLIT]
    dj = t.configurations[cj, SPLIT]
    for p in range(t.configurations[cj, PARTS]):
        y = t.places[t.configurations[cj, PLACE], p]
        count = partners(t.geometry, e, False, di, dj, p, found, size, w)
        whole = 0.0
        for n in range(count):
            x = t.places[t.configurations[ci, PLACE], found[n]]
            piece = size[n] * t.nbytes[e, 0]
            whole += piece
            if x != y:
                messages[x] += piece
                messages[y] += piece
                if t.nbytes[e, 1] > 0:
                    messages[x] += piece
                    messages[y] += piece
        if count > 1:
            read[y] += whole
        freed[y] += whole
