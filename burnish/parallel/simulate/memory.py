"""Memory of a strategy, device by device: parameters with gradients and optimizer state, activations, received copies.

Activations are kept from the forward task to its own backward one, and so are the copies of inputs that came from other
devices, which gradients of parameters read; in a step all of them are alive when the backward pass begins. Results that
are recomputed are alive one segment at a time: operations that recompute and are connected by tensors (Chen et al.
2016). Buffers: the largest gradient of a result, and one bucket of the largest weight gradient for its sum. Of devices
that copy messages, whose programs are made and run, ``memory_programs.py`` counts the buffers of these. Of inference
there are parameters, and results and copies from where they are made to their last reader.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.parallel.simulate.core import PARTS, PLACE, SPLIT, ProblemArrays
from burnish.parallel.simulate.memory_programs import program_bytes
from burnish.parallel.simulate.sharing import SOURCE, TARGET, Array, partners
from burnish.parallel.simulate.taskgraph import Problem
from burnish.parallel.simulate.weight_sums import weight_pieces


def device_bytes(problem: Problem, choice: NDArray[np.int32], slots: int = 2) -> NDArray[np.float64]:
    """Bytes that every device needs in a step; ``slots``: arrays of optimizer state for each parameter.

    Each distinct piece of a parameter counts once on a device, however many tasks there read it. Of a sharded problem
    the replicas of a piece divide its gradient and optimizer state.
    """
    held = np.zeros(problem.machine.size)
    buffers = np.zeros((3, problem.machine.size))
    if not problem.trains:
        _parameters(problem, choice, held, buffers[0], 0)
        messages = program_bytes(problem, choice).messages if problem.machine.copied else 0.0
        return held + messages + _until_read(problem, choice)
    if problem.machine.copied:
        held += program_bytes(problem, choice, slots).total
    else:
        _parameters(problem, choice, held, buffers[1], 1 + slots)
        _activations(problem, choice, held, buffers[0])
    _segments(problem, choice, buffers[2])
    return held + buffers.sum(axis=0)


def static_bytes(problem: Problem, choice: NDArray[np.int32], slots: int = 2) -> NDArray[np.float64]:
    """Bytes of parameters, gradients, optimizer state and buffers, without results and copies."""
    held, nothing = np.zeros((2, problem.machine.size))
    buffers = np.zeros((2, problem.machine.size))
    _parameters(problem, choice, held, buffers[1], 1 + slots)
    _activations(problem, choice, nothing, buffers[0])
    return held + buffers.sum(axis=0)


def _parameters(
    problem: Problem, choice: NDArray[np.int32], held: NDArray[np.float64], bucket: NDArray[np.float64], states: int
) -> None:
    t = problem.tables
    pieces = np.zeros((problem.most_pieces, problem.machine.size), np.bool_)
    for g, nbytes in enumerate(problem.weights.nbytes):
        count = weight_pieces(t, g, choice, pieces)
        held_pieces = pieces[:count].astype(np.float64)
        own = held_pieces.sum(axis=0) * (nbytes / count)
        if problem.sharded:
            held_pieces /= np.maximum(held_pieces.sum(axis=1, keepdims=True), 1)
        held += own + states * held_pieces.sum(axis=0) * (nbytes / count)
        np.maximum(bucket, own, out=bucket)


def _until_read(problem: Problem, choice: NDArray[np.int32]) -> NDArray[np.float64]:
    """The most bytes of results and copies at once, operations in order, each until its last reader is done."""
    t, count = problem.tables, choice.size
    edges = t.geometry.edges[:, [SOURCE, TARGET]].tolist()
    made, freed = np.zeros((2, count, problem.machine.size))
    last = list(range(count))
    found, size = np.zeros((2, t.places.shape[1]), np.int64)
    w = np.zeros(40, np.int64)
    for e, (source, target) in enumerate(edges):
        last[source] = max(last[source], target)
        copied = np.zeros(problem.machine.size)
        add_received(t, e, choice[source], choice[target], copied, found, size, w)
        made[source] += copied
        freed[target] += copied
    results = {*problem.model.graph.outputs}
    for i, op in enumerate(problem.model.operations):
        split, place, parts = t.configurations[choice[i]]
        own = np.zeros(problem.machine.size)
        np.add.at(own, t.places[place, :parts], problem.output_bytes[split])
        made[i] += own
        if not results & {*op.outputs}:
            freed[last[i]] += own
    most: NDArray[np.float64] = (np.cumsum(made, axis=0) - np.cumsum(freed, axis=0) + freed).max(axis=0)
    return most


def _activations(
    problem: Problem, choice: NDArray[np.int32], held: NDArray[np.float64], largest: NDArray[np.float64]
) -> None:
    t = problem.tables
    for i in range(choice.size):
        c = choice[i]
        split, place, parts = t.configurations[c]
        devices = t.places[place, :parts]
        own = problem.output_bytes[split]
        if not problem.recomputes[split]:
            np.add.at(held, devices, own)
        np.maximum.at(largest, devices, own)
    found, size = np.zeros((2, t.places.shape[1]), np.int64)
    w = np.zeros(40, np.int64)
    for e, (source, target) in enumerate(t.geometry.edges[:, :2]):
        add_received(t, e, choice[source], choice[target], held, found, size, w)


def _segments(problem: Problem, choice: NDArray[np.int32], largest: NDArray[np.float64]) -> None:
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
    sums: dict[int, NDArray[np.float64]] = {}
    for i in np.flatnonzero(again).tolist():
        split, place, parts = t.configurations[choice[i]]
        own = sums.setdefault(root(i), np.zeros_like(largest))
        np.add.at(own, t.places[place, :parts], problem.output_bytes[split])
    for own in sums.values():
        np.maximum(largest, own, out=largest)


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
