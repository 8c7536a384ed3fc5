"""Rows: tasks that compute numbers of a row (sums, extremes and what follows from them) and elements of it.

Every stage is an expression over the variables ``ROW`` and ``ELEMENT``: the flat number of a row, and of an element in
it. Two stages that load the same element of an input then contain the same load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from burnish.kernels.cpu.generic import inline_cheap, row_maps
from burnish.kernels.gpu.forms import FusedAxes, Values
from burnish.kernels.task import KernelTask
from burnish.loops.bounds import bounds
from burnish.loops.contraction import is_sum_of_products
from burnish.loops.expr import Axis, Buffer, Expr, Load, Reduce, Var
from burnish.loops.layout import row_major
from burnish.loops.linear import to_linear
from burnish.loops.program import LoopProgram
from burnish.loops.simplify import simplify
from burnish.loops.tensor import Tensor, expanded
from burnish.loops.traverse import loads, substitute, transform
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

ROW, ELEMENT = Var("row"), Var("element")


@dataclass(frozen=True)
class RowStage:
    """One stage of a row. ``kind``: how it reduces the ``extent`` elements of ``value``; None: it has that many itself,
    or with ``extent`` 0 it is one number, computed from others.
    """

    buffer: Buffer
    value: Expr
    extent: int
    kind: str | None = None

    @property
    def number(self) -> bool:
        """Whether a row has one of it."""
        return self.kind is not None or self.extent == 0


@dataclass(frozen=True)
class RowForm:
    """``count`` rows, the stages of each, producers first, and where results are stored: an index of its buffer for
    each, by name. The last stage is a result.

    Values load from other stages at ``(ROW,)``, numbers, or ``(ROW, ELEMENT)``.
    """

    count: int
    stages: tuple[RowStage, ...]
    results: Mapping[str, tuple[Expr, ...]]

    def ranges(self, extent: int) -> dict[str, int]:
        """Extents of the variables in stages of ``extent`` elements."""
        return {ROW.name: self.count, ELEMENT.name: max(extent, 1)}

    @property
    def extents(self) -> list[int]:
        """The different numbers of elements that stages go through."""
        return list(dict.fromkeys(s.extent for s in self.stages if s.extent))

    def accesses(self, extent: int) -> list[Load]:
        """Memory accesses of stages of ``extent`` elements, at places that differ between elements."""
        names = {s.buffer.name for s in self.stages}
        found = [x for s in self.stages if s.extent == extent for x in loads(s.value) if x.buffer.name not in names]
        for s in self.stages:
            if s.extent == extent and not s.number and s.buffer.name in self.results:
                found.append(Load(s.buffer, self.results[s.buffer.name]))
        return [x for x in dict.fromkeys(found) if any(ELEMENT.name in i.variables for i in x.indices)]

    def shared_loads(self, extent: int) -> list[Load]:
        """Loads that several stages of ``extent`` elements share, of places that are certainly inside of a buffer."""
        mine = [set(loads(s.value)) for s in self.stages if s.extent == extent]
        ranges = self.ranges(extent)
        return [
            x
            for x in self.accesses(extent)
            if sum(x in own for own in mine) > 1
            and all(_within(i, n, ranges) for i, n in zip(x.indices, x.buffer.shape, strict=True))
        ]

    def is_run(self, access: Load, extent: int) -> bool:
        """Whether elements that follow each other are neighbours in memory."""
        flat: Expr = access.indices[0] * 0
        for index, n in zip(access.indices, access.buffer.shape, strict=True):
            flat = flat * n + index
        terms, _ = to_linear(simplify(flat, self.ranges(extent)))
        return terms.get(ELEMENT) == 1 and all(ELEMENT.name not in a.variables for a in terms if a != ELEMENT)


def _within(index: Expr, extent: int, ranges: Mapping[str, int]) -> bool:
    low, high = bounds(index, ranges)
    return not index.buffers and low >= 0 and high < extent


def rows_of(task: KernelTask, target: Target) -> RowForm | None:
    """The rows of a task whose outputs have the same shape, and whose every stage is numbers or elements of rows; None
    of others.
    """
    reduces = [t for t in task.stages() if isinstance(t.body, Reduce)]
    output = task.outputs[-1]
    if any(t.shape != output.shape for t in task.outputs) or not reduces or 0 in output.shape or task.dims:
        return None
    if any(layout != row_major(len(layout.parts)) for layout in task.layouts.values()):
        return None
    kept = inline_cheap(Schedule(task.program()), task, target)
    maps = row_maps(task, output, task.outputs)
    results = {t.name: t for t in task.outputs}
    stages = [t for t in task.stages() if t is not output and (t in kept or t.name in results)]
    stages.append(output)
    rows = [d for d in range(len(output.shape)) if all(d in maps.get(t.name, {}) for t in stages)]
    if isinstance(output.body, Reduce):
        rows = [d for d in rows if output.shape[d] > 1] or rows
    inlined = {t.name: t for t in task.stages() if t not in stages}
    made = _Rows(output, rows, {t.name: {maps[t.name][a]: a for a in rows} for t in stages}, inlined)
    found = [made.stage(t) for t in stages]
    if None in found:
        return None
    places = {name: made.place(t) for name, t in results.items()}
    return RowForm(made.count, tuple(s for s in found if s is not None), places)


class _Rows:
    """See :func:`rows_of`: ``dims`` are the dimensions of each stage that are rows, own -> the output's."""

    def __init__(
        self,
        output: Tensor,
        rows: Sequence[int],
        dims: Mapping[str, Mapping[int, int]],
        inlined: Mapping[str, Tensor],
    ) -> None:
        group = FusedAxes(tuple(Axis(output.axes[d], output.shape[d]) for d in rows))
        self.count, self.dims, self.inlined, self.output = group.extent, dims, inlined, output
        self.row: Values = group.at(ROW)
        self.known: dict[str, tuple[Tensor, bool, int]] = {}

    def inner(self, t: Tensor) -> FusedAxes:
        """The axes of a stage that are not rows."""
        rows = self.dims[t.name]
        return FusedAxes(
            tuple(Axis(v, n) for d, (v, n) in enumerate(zip(t.axes, t.shape, strict=True)) if d not in rows)
        )

    def place(self, t: Tensor) -> tuple[Expr, ...]:
        """Where an output's element of a row is."""
        own = {t.axes[d].name: self.row[self.output.axes[a].name] for d, a in self.dims[t.name].items()}
        own.update(self.inner(t).at(ELEMENT))
        return tuple(own[axis.name] for axis in t.axes)

    def stage(self, t: Tensor) -> RowStage | None:
        """A stage in the coordinates of rows; None where it is neither numbers nor elements."""
        inner, body = self.inner(t), t.body
        assert body is not None
        values = {t.axes[d].name: self.row[self.output.axes[a].name] for d, a in self.dims[t.name].items()}
        if isinstance(body, Reduce):
            if inner.extent > 1 or (is_sum_of_products(t) and len(self.dims) > 1):
                return None
            axes = FusedAxes(body.axes)
            values.update({**inner.at(ELEMENT * 0), **axes.at(ELEMENT)})
            extent, kind, element = axes.extent, body.kind, body.body
        else:
            extent, kind, element = (0 if inner.extent == 1 else inner.extent), None, body
            values.update(inner.at(ELEMENT))
        ranges = {ROW.name: self.count, ELEMENT.name: max(extent, 1)}
        value = self.value(substitute(expanded(element, self.inlined), values), extent, ranges)
        if value is None or (extent == 0 and ELEMENT.name in value.variables):
            return None
        self.known[t.name] = t, kind is not None or extent == 0, extent
        return RowStage(t.buffer, value, extent, kind)

    def value(self, e: Expr, extent: int, ranges: Mapping[str, int]) -> Expr | None:
        """An expression whose loads of stages are of numbers or elements of the row; None where others are loaded."""
        wrong = False

        def moved(part: Expr) -> Expr:
            nonlocal wrong
            if not isinstance(part, Load):
                return part
            if part.buffer.name not in self.known:
                return Load(part.buffer, tuple(simplify(i, ranges) for i in part.indices))
            t, number, elements = self.known[part.buffer.name]
            if number:
                return Load(Buffer(t.name, (self.count,), t.dtype), (ROW,))
            own = self.inner(t).at(ELEMENT)
            rows = self.dims[t.name]
            mine = [simplify(own[v.name], ranges) for d, v in enumerate(t.axes) if d not in rows]
            read = [simplify(i, ranges) for d, i in enumerate(part.indices) if d not in rows]
            wrong = wrong or elements != extent or mine != read
            return Load(Buffer(t.name, (self.count, elements), t.dtype), (ROW, ELEMENT))

        found = transform(e, moved)
        return None if wrong else found


def program_of(task: KernelTask, body: object) -> LoopProgram:
    """A program of the task's parameters."""
    return LoopProgram(task.name, tuple(t.buffer for t in (*task.inputs, *task.outputs)), body)  # type: ignore[arg-type]
