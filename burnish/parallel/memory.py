"""Memory of a strategy, device by device: parameters with gradients and optimizer state, activations, received copies.

Activations are kept from the forward task to its own backward one, and so are the copies of inputs that came from other
devices, which gradients of parameters read; in a step all of them are alive when the backward pass begins. Buffers:
the largest gradient of a result, and one bucket of the largest weight gradient for its sum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from burnish.parallel import core
from burnish.parallel.taskgraph import Problem


def device_bytes(problem: Problem, choice: NDArray[np.int32], slots: int = 2) -> NDArray[np.float64]:
    """Bytes that every device needs in a training step; ``slots``: arrays of optimizer state for each parameter.

    Each distinct piece of a parameter counts once on a device, however many tasks there read it. Of a sharded problem
    the replicas of a piece divide its gradient and optimizer state.
    """
    held = np.zeros(problem.machine.size)
    buffers = np.zeros((2, problem.machine.size))
    _parameters(problem, choice, held, buffers[1], 1 + slots)
    _activations(problem, choice, held, buffers[0])
    return held + buffers.sum(axis=0)


def _parameters(
    problem: Problem, choice: NDArray[np.int32], held: NDArray[np.float64], bucket: NDArray[np.float64], states: int
) -> None:
    t = problem.tables
    pieces = np.zeros((problem.most_pieces, problem.machine.size), np.bool_)
    for g, nbytes in enumerate(problem.weights.nbytes):
        count = core.weight_pieces(t, g, choice, pieces)
        held_pieces = pieces[:count].astype(np.float64)
        own = held_pieces.sum(axis=0) * (nbytes / count)
        if problem.sharded:
            held_pieces /= np.maximum(held_pieces.sum(axis=1, keepdims=True), 1)
        held += own + states * held_pieces.sum(axis=0) * (nbytes / count)
        np.maximum(bucket, own, out=bucket)


def _activations(
    problem: Problem, choice: NDArray[np.int32], held: NDArray[np.float64], largest: NDArray[np.float64]
) -> None:
    t = problem.tables
    for i in range(choice.size):
        c = choice[i]
        split, place, parts = t.configurations[c]
        devices = t.places[place, :parts]
        own = problem.output_bytes[split]
        np.add.at(held, devices, own)
        np.maximum.at(largest, devices, own)
    found, size = np.zeros((2, t.places.shape[1]), np.int64)
    w = np.zeros(40, np.int64)
    for e, (source, target) in enumerate(t.geometry.edges[:, :2]):
        core.add_received(t, e, choice[source], choice[target], held, found, size, w)
