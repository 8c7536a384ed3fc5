"""Memory of programs of devices that copy messages, estimated from a strategy alone, before programs are made.

Such a program (``burnish.parallel.programs.program``) has buffers of its own for all messages that it sends and
receives, for the whole step; states; and an arena, where a result lives from its forward task to its own backward one,
an input that is put together of several pieces as long as what reads it, and what a task has for itself, such as its
parameters in the order in which its kernel reads them. ``burnish.parallel.programs.rank_memory`` makes the programs,
and knows: this estimate is from 15 % below to 25 % above that (`benchmarks.parallel_memory`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.parallel.model.redistribute import SMALL
from burnish.parallel.simulate.core import PARTS, PLACE, SPLIT, ProblemArrays
from burnish.parallel.simulate.sharing import SOURCE, TARGET, Array, partners
from burnish.parallel.simulate.taskgraph import Problem
from burnish.parallel.simulate.weight_sums import weight_pieces

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


def program_bytes(problem: Problem, choice: NDArray[np.int32], slots: int = 2) -> ProgramBytes:
    """Bytes that every device's program needs; ``slots``: arrays of optimizer state for each parameter."""
    count, size = choice.size, problem.machine.size
    t = problem.tables
    state, messages = np.zeros((2, size))
    sums = np.zeros((count, size))  # in the arena up to the updates, by the operation whose backward task begins them
    pieces = np.zeros((problem.most_pieces, size), np.bool_)
    for g, nbytes in enumerate(problem.weights.nbytes):
        number = weight_pieces(t, g, choice, pieces)
        held = pieces[:number].astype(np.float64)
        holders = held.sum(axis=1)
        unit = nbytes / number
        last = int(t.members[t.member_pointer[g] : t.member_pointer[g + 1], 0].max())
        for n in np.unique(holders[holders > 0]):
            own = unit * held[holders == n].sum(axis=0)
            state += (1 + slots) * own
            sent, kept = _sums(int(n), unit) if problem.trains else (0.0, 0.0)
            messages += sent * own
            sums[last] += kept * own
    made, read, freed = np.zeros((3, count, size))
    for i in range(count):
        split, place, parts = t.configurations[choice[i]]
        if not problem.recomputes[split]:
            np.add.at(made[i], t.places[place, :parts], problem.output_bytes[split])
        np.add.at(freed[i], t.places[place, :parts], problem.weight_bytes[split])
    found, shared = np.zeros((2, t.places.shape[1]), np.int64)
    w = np.zeros(40, np.int64)
    for e, (source, target) in enumerate(t.geometry.edges[:, [SOURCE, TARGET]].tolist()):
        add_messages(t, e, choice[source], choice[target], messages, read[target], freed[target], found, shared, w)
    alive = np.cumsum(made + read, axis=0) + np.cumsum(sums[::-1], axis=0)[::-1]
    arena = (alive + made + freed).max(axis=0)
    return ProgramBytes(state, messages, arena)


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
