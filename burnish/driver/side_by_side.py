"""Kernels side by side in no more memory than one after another: for plans of memory made before."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from burnish.driver.assembly import live_values
from burnish.driver.concurrent import side_by_side
from burnish.driver.stages import Compilation, ConcurrentStages
from burnish.loops.sizes import hinted
from burnish.memory.lifetimes import live_bytes
from burnish.memory.share import plan as place

ROUNDS = 6  # tries to find kernels that leave the arena as it is


def arena_bytes(made: Compilation) -> int:
    """Bytes of the arena, of open sizes at their hints."""
    intervals, pairs, _ = live_values(made)
    return place([replace(i, nbytes=hinted(i.nbytes)) for i in intervals], pairs).arena_bytes


def side_by_side_within(made: Compilation, begins: Collection[int] = ()) -> Compilation:
    """The compilation, of steps one after another, with kernels side by side as far as its arena does not grow.

    ``begins``: as of :func:`burnish.driver.concurrent.side_by_side`.
    """
    room = 0
    for _ in range(ROUNDS):
        found = side_by_side(made, begins)
        if not found.concurrent:
            break
        room = room or arena_bytes(made)
        if arena_bytes(found) <= room:
            return found
        begins = {*begins, *_joined_at_the_peak(made, found)}
    return made


def _joined_at_the_peak(made: Compilation, found: Compilation) -> Collection[int]:
    """Step numbers of the kernels that join others where more bytes are live than at the peak of ``made``; or else of a
    quarter of these places, where most are.
    """
    live, before = (
        live_bytes([replace(i, nbytes=hinted(i.nbytes)) for i in intervals], pairs)
        for intervals, pairs, _ in map(live_values, (found, made))
    )

    def most(group: ConcurrentStages) -> int:
        return max(live[group.first : group.last + 1], default=0)

    peak = max(before, default=0)
    over = [group for group in found.concurrent if most(group) > peak]
    over = over or sorted(found.concurrent, key=most)[3 * len(found.concurrent) // 4 :]
    numbers = {id(step): number for number, step in enumerate(made.steps)}
    return {numbers[id(step)] for group in over for step in found.steps[group.first + 1 : group.last + 1]}
