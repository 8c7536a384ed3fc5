"""Kernels side by side in the program of a device: between its messages."""

from __future__ import annotations

from burnish.driver.assembly import live_values
from burnish.driver.side_by_side import side_by_side_within
from burnish.driver.stages import Compilation
from burnish.graph.fuse import Group
from burnish.memory.pieces import Place
from burnish.parallel.programs.messages import Points


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
    return side_by_side_within(made, begins)
