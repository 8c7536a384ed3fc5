"""Recomputation of results to keep a strategy within the memory of devices: which operations drop theirs.

Of every n operations in order one keeps its results, the others are computed again in the backward pass, segment by
segment (Chen et al. 2016): the fewest that fit are taken; then those that take longest for the bytes that they free
keep theirs, as many as fit.
"""

from __future__ import annotations

import numpy as np

from burnish.parallel.simulate.core import PARTS, SPLIT
from burnish.parallel.simulate.simulate import Choice, Simulator

SEGMENTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # operations from one that keeps its results to the next


def within_memory(simulator: Simulator, choice: Choice, slots: int = 2) -> Choice:
    """The strategy with results recomputed so that it fits, as little as found; if it never fits, the nearest to that.

    The space must have been made with ``recompute``.
    """
    space = simulator.problem.space
    number = choice - space.first
    plain = (space.first + number % space.plain).astype(np.int32)
    if simulator.fits(plain, slots):
        return plain
    tried = [_every(simulator, plain, step) for step in SEGMENTS if step <= 2 * len(plain)]
    for dropped in tried:
        if simulator.fits(_with(simulator, plain, dropped), slots):
            return _with(simulator, plain, _fewest(simulator, plain, dropped, slots))
    return min((_with(simulator, plain, d) for d in tried), key=lambda c: float(simulator.memory(c, slots).max()))


def _every(simulator: Simulator, plain: Choice, step: int) -> list[int]:
    """All operations but one in ``step``, those that free least for their time first."""
    problem, t = simulator.problem, simulator.t
    split = t.configurations[plain, SPLIT]
    freed = problem.output_bytes[split] * t.configurations[plain, PARTS]
    taken = t.time[split, 0].min(axis=1) * t.configurations[plain, PARTS]
    dropped = [i for i in range(len(plain)) if i % step]
    return sorted(dropped, key=lambda i: (float(freed[i] / taken[i]), i))


def _fewest(simulator: Simulator, plain: Choice, dropped: list[int], slots: int) -> list[int]:
    """The shortest rest of a list that still fits, by bisection."""
    low, high = 0, len(dropped)  # all from ``low`` on fit, all from ``high`` on do not
    while high - low > 1:
        middle = (low + high) // 2
        if simulator.fits(_with(simulator, plain, dropped[middle:]), slots):
            low = middle
        else:
            high = middle
    return dropped[low:]


def _with(simulator: Simulator, plain: Choice, dropped: list[int]) -> Choice:
    choice = plain.copy()
    choice[dropped] += simulator.problem.space.plain[dropped]
    return choice
