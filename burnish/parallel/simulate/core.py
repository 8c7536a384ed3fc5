"""A problem as arrays for the compiled simulator.

A task is (direction, operation, part); its number ``(2 * operation + direction) * P + part``, direction 0 forward, 1
backward. Resources are the P devices, then the links. Times are whole nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

from burnish.base.jit import njit
from burnish.parallel.simulate.sharing import Array, OverlapArrays

SPLIT, PLACE, PARTS = range(3)  # columns of configurations
OUT, IN, BEFORE, AFTER, WEIGHT = range(5)  # lists of an operation: edges from it and to it, operations that its forward
# tasks wait for (backward ones of micro-batches), those that wait for it, groups of weights


class ProblemArrays(NamedTuple):
    """A problem as arrays, few of them: compiled functions hand them on by value."""

    geometry: OverlapArrays
    time: Array  # [splits, forward or backward, kinds of device] ns
    kind: Array  # [devices]
    configurations: Array  # [configurations, 3]
    places: Array  # [places, devices]
    nbytes: Array  # [edges, 2] bytes an element of the split axes, forward and backward
    covered: Array  # [classes, levels, levels, 2]
    pointer: Array  # [5, operations + 1] into lists
    lists: Array
    member_pointer: Array  # group of weights -> rows of members
    members: Array  # [members, 3]: operation, and which of its axes split the weights
    weight_bytes: Array
    route: Array  # [devices, devices, 2] resources, -1 for none: links, or where ``copied`` the two devices
    wire: Array  # [devices, devices, 2] ns, and ns a byte
    link: Array  # [resources, 2] ns, and ns a byte in a sum of gradients
    node: Array  # [devices]
    overlapped: bool
    near: float  # ns a byte of linear synchronization within a node, and between nodes
    far: float
    copied: bool  # transfers occupy their two devices, one after the other, instead of links
    result: Array  # [splits] bytes that a part of an operation makes


@njit(cache=True, inner=True)
def transfer(t: ProblemArrays, x: int, y: int, nbytes: float) -> int:
    """Nanoseconds of a transfer between two devices on what it occupies, at least one; none where nothing is sent, as
    of a gradient that there is not.
    """
    return max(1, int(t.wire[x, y, 0] + nbytes * t.wire[x, y, 1])) if nbytes > 0 else 0


@njit(cache=True, inner=True)
def copying(t: ProblemArrays, x: int, y: int, nbytes: float, packed: bool) -> int:
    """Nanoseconds that a device takes for its end of a message that it copies; ``packed``: it also takes what it sends
    out of a larger tensor, or puts what it receives into one.
    """
    return transfer(t, x, y, nbytes) + (int(nbytes * t.wire[x, y, 1]) if packed else 0)


class SimulationScratch(NamedTuple):
    """Room that compiled functions work in: partners and what is shared with them, parts by axes, holders of pieces of
    weights, groups and operations met, work by resource.
    """

    found: Array  # [most parts]
    size: Array
    w: Array  # [16]
    holders: Array  # [pieces, devices]
    touched: Array  # [groups]
    inside: Array  # [operations]
    sums: Array  # [resources]


class Known(NamedTuple):
    """Static lower-bound tables of a strategy, in ns, without simulation: work by resource; gradient sums of each group
    of weights, by resource and after the step; edge latency, forward and backward, from the end of a task to the
    arrival of the last of what it sends; critical path after each operation, forward and backward.
    """

    load: Array  # [resources]
    sync: Array  # [groups, resources + 1]
    hop: Array  # [edges, 2]
    tail: Array  # [operations, 2]
