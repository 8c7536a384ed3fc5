"""Loop nests out of applied schedules: what cost models see of the candidates of a small space.

Every choice of the space is applied once, when the first nest is asked for; the trace then says which axes of the main
stage each of its loops moves, and how far. It takes 1 to 36 ms a choice, where a template's own description of its
nests takes 0.1 to 4 microseconds (``python -m benchmarks.nests``): for a space of thousands of choices, of which a
search looks at thousands a second, a template has a description of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from burnish.errors import ScheduleError
from burnish.kernels.nest import (
    ANNOTATIONS,
    Arrangement,
    CandidateNests,
    Knobs,
    LoopKind,
    NestLevel,
    main_stage,
    statement,
)
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.loops.expr import Reduce
from burnish.loops.layout import layout
from burnish.loops.program import For, Store
from burnish.loops.sizes import hinted
from burnish.loops.tensor import Tensor
from burnish.schedule.loops import fused_name, split_names
from burnish.schedule.nest import sites
from burnish.schedule.schedule import Call, Schedule

MOST_CHOICES = 80  # of a space whose schedules are all made: some tenths of a second


@dataclass(frozen=True)
class AxisLoop:
    """One axis in a loop: ``extent`` iterations, each of which advances ``axis`` by ``step``."""

    axis: int
    extent: int
    step: int = 1


@dataclass
class _Loops:
    """The parts of every loop by its name, outermost first, as the calls of a trace change them."""

    parts: dict[str, list[AxisLoop]] = field(default_factory=dict)

    @staticmethod
    def of(task: KernelTask, stage: Tensor) -> _Loops:
        """Loops of the naive program: stages of the main stage's shape have its axes."""
        naive, found = Schedule(task.program()), _Loops()
        for t in task.stages():
            if t.shape == stage.shape:
                for axis, loop in enumerate(naive.loops(t.name)):
                    spatial = axis < len(stage.shape)
                    if spatial or t is stage:
                        found.parts[loop] = [AxisLoop(axis, naive.extent(loop))]
        return found

    def follow(self, call: Call) -> None:
        """Does to the parts what a call does to the loops."""
        match call:
            case "split", [loop, factor, *rest] if loop in self.parts:
                names, parts = (*rest, None, None)[:2]
                outer, inner = names or split_names(loop)
                cut = self.parts.pop(loop)
                length = -(-prod(part.extent for part in cut) // parts) if factor is None else factor
                self.parts[outer], self.parts[inner] = _cut(cut, length)
            case "fuse", [outer, inner, *names] if outer in self.parts and inner in self.parts:
                name = names[0] if names else fused_name(outer, inner)
                self.parts[name] = [*self.parts.pop(outer), *self.parts.pop(inner)]
            case "balance", [loop, parts, _] if loop in self.parts:  # of about as many rows each
                (whole,) = self.parts[loop]
                self.parts[f"{loop}.part"], self.parts[loop] = _cut([whole], -(-whole.extent // parts))
            case "cache_write", [buffer, scope, *names]:
                new = names[0] if names else f"{buffer}.{scope}"
                own = [loop for loop in self.parts if loop.startswith(f"{buffer}.")]
                renamed = {new + loop.removeprefix(buffer): self.parts[loop] for loop in own}
                self.parts |= renamed  # the copy keeps the names of the stage's axes


def _cut(parts: Sequence[AxisLoop], factor: int) -> tuple[list[AxisLoop], list[AxisLoop]]:
    """The outer and inner halves of a loop over one axis."""
    (part,) = parts
    outer = AxisLoop(part.axis, -(-part.extent // factor), part.step * factor)
    return [outer], [AxisLoop(part.axis, min(factor, part.extent), part.step)]


@dataclass(frozen=True)
class ScheduledLoops:
    """The loops around the main statement of one schedule, and the layouts of its parameters."""

    levels: tuple[tuple[AxisLoop, int], ...]  # each with the number of its annotation
    layouts: Mapping[str, str]


def loops_of(made: Schedule, task: KernelTask, stage: Tensor) -> ScheduledLoops:
    """Loops around the statement of ``stage``, and layouts, from the trace and the program of a schedule."""
    loops, layouts = _Loops.of(task, stage), {}
    for call in made.trace:
        loops.follow(call)
        if call[0] == "transform_layout":
            layouts[call[1][0]] = str(call[1][1])
    reduces = isinstance(stage.body, Reduce)
    stores = [s for s in sites(made.program.body) if isinstance(s.stmt, Store) and bool(s.stmt.reduce) is reduces]
    stores = [s for s in stores if loops.parts.keys() >= {*s.loops}] or stores  # not what joins pieces of long rows
    *_, main = [s for s in stores if isinstance(s.stmt, Store) and s.stmt.buffer.name.startswith(stage.name)] or stores
    levels: list[tuple[AxisLoop, int]] = []
    for loop in (s for s in main.path if isinstance(s, For)):
        own, kind = loops.parts[loop.var], ANNOTATIONS.index(loop.kind)
        if len(own) == 1:  # computed inside of others it has less to do, and padded more
            own = [AxisLoop(own[0].axis, hinted(loop.extent), own[0].step)]
        elif prod(part.extent for part in own) != loop.extent:
            raise ScheduleError(f"loop '{loop.var}': its trace says {own}; it has {loop.extent} iterations")
        levels += [(part, kind) for part in own]
    return ScheduledLoops(tuple(levels), layouts)


class ScheduledNests:
    """The nests of candidates, from their schedules: ``apply`` makes that of a choice."""

    def __init__(self, task: KernelTask, space: ScheduleSpace, apply: Callable[[Choice], Schedule]) -> None:
        """Raises ScheduleError for a space that is too large."""
        if space.size > MOST_CHOICES:
            raise ScheduleError(
                f"nests: found a space of {space.size} choices; allowed: {MOST_CHOICES}, or a description"
            )
        stage = main_stage(task)
        self._knobs, self._domain = [*space.knobs], statement(task, stage)

        def candidate(choice: Choice) -> ScheduledLoops | None:
            with suppress(ScheduleError):
                return loops_of(apply(choice), task, stage)
            return None

        plain = ScheduledLoops(
            tuple((AxisLoop(a, extent), LoopKind.SERIAL) for a, extent in enumerate(self._domain.extents)), {}
        )
        usual = candidate(space.default) or plain
        self._numbers: dict[tuple[object, ...], int] = {}
        found: list[ScheduledLoops] = []
        for values in product(*space.knobs.values()):
            self._numbers[values] = len(found)
            # What cannot be scheduled looks like the default, and fails when it is built.
            found.append(candidate(dict(zip(self._knobs, values, strict=True))) or usual)
        shapes = {a.buffer.name: a.buffer.shape for a in self._domain.accesses}
        self._arrangements = {n: Arrangement.of(layout(t), shapes[n]) for n, t in usual.layouts.items() if n in shapes}
        self._axes, self._tables = _stacked(found)

    def __call__(self, knobs: Knobs, count: int) -> CandidateNests:
        """The nests of candidates, as a template's own description gives them."""
        columns = [knobs[knob].tolist() for knob in self._knobs]
        rows = np.array([self._numbers[values] for values in zip(*columns, strict=True)] if columns else [0] * count)
        levels = [
            NestLevel(axis, *(table[k, rows] for table in self._tables))  # extent, step, annotation
            for k, axis in enumerate(self._axes)
        ]
        return self._domain.nest(levels, count, self._arrangements)


def _stacked(found: Sequence[ScheduledLoops]) -> tuple[tuple[int, ...], tuple[np.ndarray, ...]]:
    """(the axis of each level, extents, steps and annotations [levels, candidates]); candidates whose loops go over
    other axes have levels of their own, which the others have with one iteration.
    """
    orders = list(dict.fromkeys(tuple(part.axis for part, _ in c.levels) for c in found))
    begins = np.cumsum([0, *(len(order) for order in orders)])
    extent, step = (np.ones((begins[-1], len(found)), np.int64) for _ in range(2))
    annotation = np.zeros((begins[-1], len(found)), np.int64)
    for column, candidate in enumerate(found):
        first = begins[orders.index(tuple(part.axis for part, _ in candidate.levels))]
        for row, (part, kind) in enumerate(candidate.levels, first):
            extent[row, column], step[row, column], annotation[row, column] = part.extent, part.step, kind
    kept = (extent > 1).any(axis=1)
    axes = np.array([axis for order in orders for axis in order])[kept]
    return tuple(axes.tolist()), (extent[kept], step[kept], annotation[kept])
