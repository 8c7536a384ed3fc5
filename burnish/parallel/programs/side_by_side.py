"""Kernels side by side in the program of a device: between its messages, and in no more memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from burnish.driver.assembly import live_values
from burnish.driver.concurrent import side_by_side
from burnish.driver.stages import Compilation, ConcurrentStages
from burnish.graph.fuse import Group
from burnish.loops.sizes import hinted
from burnish.memory.lifetimes import live_bytes
from burnish.memory.pieces import Place
from burnish.memory.share import plan as place
from burnish.parallel.programs.messages import Points

ROUNDS = 4  # tries to find kernels that leave the arena as it is


def arena_bytes(made: Compilation) -> int:
    """Bytes of the arena, of open sizes at their hints."""
    intervals, pairs, _ = live_values(made)
    return place([replace(i, nbytes=hinted(i.nbytes)) for i in intervals], pairs).arena_bytes


def message_points(made: Compilation) -> Points:
    """Message positions in a compilation: steps that write the outputs, and read the inputs, that callers give; of
    those side by side the last and the first.
    """
    graph = made.graph
    home = live_values(made)[2]
    written: dict[str, int] = {}
    read: dict[str, int] = {}
    number = 0  # among the calls
    for at, step in enumerate(made.steps):
        if isinstance(step, Group):
            continue
        first, last = made.spans.get(at, (at, at))
        for name in step.group.outputs:
            written[home.get(name, Place(name)).buffer] = number + last - at
        for name in step.group.inputs:
            read.setdefault(home.get(name, Place(name)).buffer, number + first - at)
        number += 1
    after = {state.output for state in graph.states.values()}
    outputs = [name for i, name in enumerate(graph.outputs) if i not in after]
    inputs = [name for name in graph.inputs if name not in graph.states]
    places = [home.get(name, Place(name)).buffer for name in outputs]
    return Points([written.get(place) for place in places], [read.get(name) for name in inputs])


def between_messages(made: Compilation) -> Compilation:
    """The compilation of a device's program, of steps one after another, with kernels side by side that no message has
    to come or go between, as far as they need no more memory: a plan's is known before these are.
    """
    points = message_points(made)
    calls = [number for number, step in enumerate(made.steps) if not isinstance(step, Group)]
    begins = {calls[at] for at in points.read if at is not None}
    begins |= {calls[at] + 1 for at in points.written if at is not None}
    room = 0
    for _ in range(ROUNDS):
        found = side_by_side(made, begins)
        if not found.concurrent:
            break
        room = room or arena_bytes(made)
        if arena_bytes(found) <= room:
            return found
        begins |= _joined_at_the_peak(made, found)
    return made


def _joined_at_the_peak(made: Compilation, found: Compilation) -> Collection[int]:
    """The numbers of the steps that were moved beside others, where then more bytes are live than ever in ``made``; or
    else where most are.
    """
    live, before = (
        live_bytes([replace(i, nbytes=hinted(i.nbytes)) for i in intervals], pairs)
        for intervals, pairs, _ in map(live_values, (found, made))
    )

    def most(group: ConcurrentStages) -> int:
        return max(live[group.first : group.last + 1], default=0)

    peak = max(before, default=0)
    over = [group for group in found.concurrent if most(group) > peak]
    over = over or [max(found.concurrent, key=most)]
    numbers = {id(step): number for number, step in enumerate(made.steps)}
    return {numbers[id(step)] for group in over for step in found.steps[group.first + 1 : group.last + 1]}
