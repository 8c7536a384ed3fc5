"""Sums whose terms go to positions that data choose, ``y[index[k], j] += x[k, j]``: the gradient of a gather.

First all of the output is zeroed, then terms are added in their order, vectors of the last axis at once. Threads share
axes that data do not choose, so that every element's sum is the same for any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from burnish.kernels.cpu.common import apply_layouts, parallel_over, single_output
from burnish.kernels.cpu.strides import strides
from burnish.kernels.match import only_reduction
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.onepoint import scattered_axes
from burnish.loops.tensor import Tensor
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

GRAIN = 1 << 12  # terms below which waking the threads costs more than it saves
MOST_VECTORS = 4  # of one iteration


class Scatter(NamedTuple):
    """The output, a reduction, and the axes of it whose positions data choose."""

    sums: Tensor
    axes: tuple[int, ...]


def _form(task: KernelTask, target: Target) -> Scatter | None:
    sums = only_reduction(task)
    axes = scattered_axes(sums) if sums is not None and sums in task.outputs else ()
    return Scatter(sums, axes) if sums is not None and axes else None


def _space(task: KernelTask, target: Target, found: Scatter) -> ScheduleSpace:
    return ScheduleSpace({"vectors": (1, 2, MOST_VECTORS)}, {"vectors": MOST_VECTORS})


def _apply(task: KernelTask, target: Target, found: Scatter, choice: Choice) -> Schedule:
    lanes, out = target.lanes, single_output(task)
    s = Schedule(task.program())
    s.compute_inline(*[t.name for t in task.stages() if t.name != out])
    apply_layouts(s, task, {})
    own, rank = s.loops(out), len(found.sums.shape)
    kept = [loop for d, loop in enumerate(own[:rank]) if d not in found.axes]
    for d in found.axes:
        s.scatter(own[d])
    terms = own[rank:]
    work = prod(s.extent(loop) for loop in (*kept, *terms))
    unit = _unit(s, out, kept)
    inner: list[str] = []
    if unit is not None:
        kept.remove(unit)
        inner, kept = _vectors(s, unit, kept, target, int(choice["vectors"]), work)
    s.reorder(*kept, *terms, *inner)
    if inner:
        s.vectorize(inner[-1])
    if kept and work >= GRAIN:
        parallel_over(s, kept)
    _zero(s, out, lanes, found.sums.buffer.size)
    return s


def _unit(s: Schedule, out: str, kept: Sequence[str]) -> str | None:
    """The loop along which elements of the output are neighbours, and so is all that is read, or the same."""
    for loop in reversed(kept):
        found = strides(s, out, loop)
        if s.extent(loop) > 1 and found.store == 1 and set(found.loads) <= {0, 1}:
            return loop
    return None


def _vectors(
    s: Schedule, unit: str, kept: list[str], target: Target, vectors: int, work: int
) -> tuple[list[str], list[str]]:
    """The loop along neighbours cut into vectors, (inside of the terms, around them): a part for each core around."""
    wide = min(target.lanes * vectors, s.extent(unit))
    if s.extent(unit) % wide and s.extent(unit) >= target.lanes:
        wide = target.lanes
    around = prod(s.extent(loop) for loop in kept)
    parts = -(-s.extent(unit) // wide)
    if around < target.cores and parts > 1 and work >= GRAIN:
        part, unit = s.split(unit, -(-parts // target.cores) * wide)
        kept = [*kept, part]
    return list(s.split(unit, wide)), kept


def _zero(s: Schedule, out: str, lanes: int, size: int) -> None:
    """The nest that zeroes the output, in vectors."""
    *outer, last = s.init_loops(out)
    if s.extent(last) >= lanes:
        over, lane = s.split(last, lanes)
        s.vectorize(lane)
        outer = outer or [over]
    if outer and size >= GRAIN:
        parallel_over(s, outer)


SCATTER = Template("scatter", _form, _space, _apply, None)
