"""Lifetimes: over which steps of a static execution order each buffer holds a value that is still needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from burnish.errors import VerificationError
from burnish.loops.sizes import at_least
from burnish.memory.pieces import Place, resolve


@dataclass(frozen=True, slots=True)
class Interval:
    """A buffer of ``nbytes`` that is live from step ``first`` to step ``last``, both inclusive."""

    name: str
    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Interval) -> bool:
        """Whether both are live at some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class LifetimeStep:
    """One kernel call: the tensors it reads and writes. ``alias``: no call; its output *is* its first input's memory,
    from byte ``offset`` on.

    A step that only joins pieces is an alias too: its output is there as soon as its inputs are.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    alias: bool = False
    offset: int = 0


def live_bytes(buffers: Sequence[Interval], in_place: Collection[tuple[str, str]] = ()) -> tuple[int, ...]:
    """The bytes that are live at each step, up to the last one at which any are.

    ``in_place``: pairs (dying, born) that share the memory of the first at the step that they have in common.
    """
    born = {name for _, name in in_place}
    ends = max((b.last for b in buffers), default=-1)
    found = [0] * (ends + 2)
    for b in buffers:
        found[b.first + (b.name in born)] += b.nbytes
        found[b.last + 1] -= b.nbytes
    return tuple(accumulate(found))[:-1]


def joint_lifetime(buffer: Interval, spans: Mapping[int, tuple[int, int]]) -> Interval:
    """The buffer with the lifetime that it has where some steps are at the same time. ``spans``: of each of these the
    first and the last of them.
    """
    first, last = spans.get(buffer.first, (buffer.first,))[0], spans.get(buffer.last, (buffer.last,))[-1]
    return Interval(buffer.name, buffer.nbytes, first, last)


def lifetimes(
    steps: Sequence[LifetimeStep],
    nbytes: Mapping[str, int],
    keep: Collection[str] = (),
    pieces: Mapping[str, Place] | None = None,
) -> tuple[list[Interval], dict[str, Place]]:
    """Intervals of the buffers that the steps write, and for every tensor that a step writes its place.

    A tensor written by an ``alias`` step lies in its input's buffer, whose life it prolongs. A tensor in ``pieces``
    lies where that says in the buffer of its container, which lives from the first write of a piece. Tensors in
    ``keep`` (the results) live to the end. Tensors that no step writes (inputs, constants) get no interval, nor do
    their aliases.
    Raises VerificationError when a tensor is written twice, or read before the step that writes it.
    """
    pieces = pieces or {}
    containers = {place.buffer for place in pieces.values()}
    written = {name for step in steps for name in step.writes}
    home: dict[str, Place] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        for name in step.reads:
            if name in written and name not in home:
                raise VerificationError(f"step {index} reads '{name}' before it is written")
            if home.get(name, Place(name)).buffer in first:
                last[home.get(name, Place(name)).buffer] = index
        for name in step.writes:
            if name in home:
                raise VerificationError(f"step {index} writes '{name}', which an earlier step wrote")
            if step.alias and name not in containers:
                source = home.get(step.reads[0], Place(step.reads[0]))
                home[name] = Place(source.buffer, source.offset + step.offset)
            else:
                home[name] = resolve(name, pieces)
                first.setdefault(home[name].buffer, index)
            if home[name].buffer in first:
                last[home[name].buffer] = index
    for name in keep:
        if name in home and home[name].buffer in first:
            last[home[name].buffer] = len(steps) - 1
    size = {buffer: nbytes[buffer] for buffer in first}
    for name, place in home.items():
        if place.buffer in size:
            end = place.offset + nbytes[name]
            size[place.buffer] = size[place.buffer] if at_least(size[place.buffer], end) else end
    return [Interval(b, size[b], first[b], last[b]) for b in first], home
