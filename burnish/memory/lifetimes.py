"""Lifetimes: over which steps of a static execution order each buffer holds a value that is still needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from burnish.errors import VerificationError


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
class Step:
    """One kernel call: the tensors it reads and writes. ``alias``: its output *is* its first input's memory."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    alias: bool = False


def lifetimes(
    steps: Sequence[Step], nbytes: Mapping[str, int], keep: Collection[str] = ()
) -> tuple[list[Interval], dict[str, str]]:
    """Intervals of the buffers that the steps write, and for every such tensor the name of the buffer it lies in.

    A tensor written by an ``alias`` step lies in its input's buffer, whose life it prolongs. Tensors in ``keep`` (the
    results) live to the end. Tensors that no step writes (inputs, constants) get no interval, nor do their aliases.
    Raises VerificationError when a tensor is written twice, or read before the step that writes it.
    """
    written = {name for step in steps for name in step.writes}
    home: dict[str, str] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    outside: dict[str, str] = {}
    for index, step in enumerate(steps):
        for name in step.reads:
            if name in home:
                last[home[name]] = index
            elif name in written and name not in outside:
                raise VerificationError(f"step {index} reads '{name}' before it is written")
        for name in step.writes:
            if name in home or name in outside:
                raise VerificationError(f"step {index} writes '{name}', which an earlier step wrote")
            source = step.reads[0] if step.alias else name
            if step.alias and source not in home:
                outside[name] = source
                continue
            home[name] = home.get(source, name)
            first.setdefault(home[name], index)
            last[home[name]] = index
    for name in keep:
        if name in home:
            last[home[name]] = len(steps) - 1
    size = dict.fromkeys(first, 0)
    for name, buffer in home.items():
        size[buffer] = max(size[buffer], nbytes[name])
    return [Interval(b, size[b], first[b], last[b]) for b in first], home
