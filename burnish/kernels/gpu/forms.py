"""Forms that GPU templates schedule: the stages that stay, and sums of products as tiles of a matrix product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from burnish.kernels.task import KernelTask
from burnish.loops.contraction import Contraction, contraction
from burnish.loops.expr import FLOATS, Axis, Cast, Const, Expr, Load, Reduce, Select, Var, all_of, select
from burnish.loops.simplify import simplify
from burnish.loops.tensor import Tensor, expanded
from burnish.loops.traverse import loads, substitute

Values = dict[str, Expr]
MOST_FILLING = (
    1.1  # times the blocks of the depth that would hold all of it, because each value of its outer axes ends one
)


@dataclass(frozen=True)
class FusedAxes:
    """Several axes as one: the last moves fastest."""

    axes: tuple[Axis, ...]

    @property
    def extent(self) -> int:
        """Iterations of all axes together."""
        return prod(a.extent for a in self.axes)

    def at(self, index: Expr) -> Values:
        """The values of the axes where all together are at ``index``."""
        found: Values = {}
        step, rest = self.extent, [a for a in self.axes if a.extent > 1]
        found.update({a.var.name: Const(0) for a in self.axes if a.extent == 1})
        for number, axis in enumerate(rest):
            step //= axis.extent
            value = index // step if step > 1 else index
            found[axis.var.name] = value % axis.extent if number else value
        return found


@dataclass(frozen=True)
class Depth:
    """The reduction in blocks of ``block``: of the axis ``inner`` for every value of the ``outer`` ones."""

    outer: FusedAxes
    inner: FusedAxes
    block: int

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.outer.extent * self._parts

    @property
    def _parts(self) -> int:
        return -(-self.inner.extent // self.block)

    def at(self, block: Expr, inside: Expr) -> tuple[Values, Expr | None]:
        """The values of the axes at a place in a block, and when there are such; None: always."""
        parts = self._parts
        own = (block % parts if self.outer.extent > 1 else block) * self.block + inside
        cond = own < self.inner.extent if self.inner.extent % self.block else None
        return {**self.outer.at(block // parts), **self.inner.at(own)}, cond


@dataclass(frozen=True)
class ContractionForm:
    """A sum of products over the axes of a task's output: ``batch`` ones that both factors have, ``rows`` of the left
    one and ``columns`` of the right one, of which the output's last axis is one.

    ``left`` and ``right`` are over these and the ``reduced`` axes. ``value`` is the output's element, in which
    ``sum_`` stands for the sum.
    """

    anchor: Tensor
    output: Tensor
    batch: FusedAxes
    rows: FusedAxes
    columns: FusedAxes
    reduced: tuple[Axis, ...]
    left: Expr
    right: Expr
    value: Expr
    sum_: Load

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, rows, columns, depth."""
        depth = prod(a.extent for a in self.reduced)
        return self.batch.extent, self.rows.extent, self.columns.extent, depth

    @property
    def _last_is_nearest(self) -> bool:
        """Whether both factors have neighbours along the last of the reduced axes next to each other."""
        return bool(self.reduced) and all(
            _nearest(f, self.reduced) is self.reduced[-1] for f in (self.left, self.right)
        )

    @property
    def is_plain(self) -> bool:
        """Whether rows and columns are an axis each, so that no index of the output is a quotient or a remainder."""
        return all(sum(a.extent > 1 for a in group.axes) <= 1 for group in (self.rows, self.columns))

    @property
    def stores_runs(self) -> bool:
        """Whether neighbouring columns are neighbours in the output."""
        wide = [v for v, n in zip(self.output.axes, self.output.shape, strict=True) if n > 1]
        return bool(self.columns.axes) and self.columns.axes[-1].var == wide[-1]

    def depth(self, block: int, unit: int = 0) -> Depth:
        """The reduction in blocks: of its longest axis, where that fills one, so that others need no division. Of all
        axes together where neighbours in memory are too few to fill blocks. ``unit``: blocks may be shorter, multiples
        of it, so that as many hold less beyond the end.
        """
        found = self._whole_blocks(block)
        extent = found.inner.extent
        if not unit or extent % block == 0:
            return found
        each = -(-extent // -(-extent // block))
        return replace(found, block=-(-each // unit) * unit)

    def _whole_blocks(self, block: int) -> Depth:
        """As :meth:`depth`, of blocks that are all as long."""
        longest = max(self.reduced, key=lambda a: a.extent, default=None)
        if self._last_is_nearest and longest is not None:
            longest = self.reduced[-1]
            whole, parts = prod(a.extent for a in self.reduced), prod(a.extent for a in self.reduced[:-1])
            if parts * -(-longest.extent // block) > MOST_FILLING * -(-whole // block):
                longest = None
        if longest is None or longest.extent < block or len(self.reduced) == 1:
            return Depth(FusedAxes(()), FusedAxes(self.reduced), block)
        return Depth(FusedAxes(tuple(a for a in self.reduced if a is not longest)), FusedAxes((longest,)), block)


def product(task: KernelTask) -> ContractionForm | None:
    """The sum of products that a task of one output is, with element-wise stages around it; None of others."""
    anchor = task.anchor()
    found = contraction(anchor)
    if anchor is None or found is None or found.words or len(task.outputs) != 1:
        return None
    output = task.outputs[0]
    others = {t.name: t for t in task.stages() if t is not anchor}
    if any(isinstance(t.body, Reduce) for t in others.values()) or not output.shape or prod(output.shape) == 0:
        return None
    ranges = {v.name: n for v, n in zip(output.axes, output.shape, strict=True)}
    if output is anchor:
        index: tuple[Expr, ...] = tuple(anchor.axes)
        sum_ = Load(anchor.buffer, index)
        value: Expr = sum_
    else:
        assert output.body is not None
        value = expanded(output.body, others)
        read = {x for x in loads(value) if x.buffer.name == anchor.name}
        if len(read) != 1:
            return None
        sum_ = read.pop()
        index = tuple(simplify(i, ranges) for i in sum_.indices)
        if any(i.buffers for i in index):
            return None
    return _classified(output, found, index, value, sum_, others, ranges)


def _classified(
    output: Tensor,
    found: Contraction,
    index: tuple[Expr, ...],
    value: Expr,
    sum_: Load,
    others: Mapping[str, Tensor],
    ranges: Mapping[str, int],
) -> ContractionForm:
    """See :func:`product`: the axes of the output by which factor has them."""
    anchor = found.stage
    reduced = tuple(Axis(Var(f"{anchor.name}/{a.var.name}"), a.extent) for a in found.reduced)
    at: Values = {v.name: i for v, i in zip(anchor.axes, index, strict=True)}
    at.update({a.var.name: own.var for a, own in zip(found.reduced, reduced, strict=True)})
    known = {**ranges, **{a.var.name: a.extent for a in reduced}}
    left, right = (simplify(expanded(substitute(expanded(f, others), at), others), known) for f in found.factors)
    for factor in (left, right):
        if _nearest(factor, reduced) is not None:
            steps = {a.var.name: _step(factor, a.var.name) for a in reduced}
            reduced = tuple(sorted(reduced, key=lambda a: -steps[a.var.name]))
            break
    axes = [Axis(v, n) for v, n in zip(output.axes, output.shape, strict=True)]
    wide = [a for a in axes if a.extent > 1]
    if wide and wide[-1].var.name in left.variables and wide[-1].var.name not in right.variables:
        left, right = right, left
    only_left = tuple(a for a in wide if a.var.name in left.variables - right.variables)
    only_right = tuple(a for a in wide if a.var.name in right.variables - left.variables)
    batch = tuple(a for a in axes if a not in only_left and a not in only_right)
    only_right = _by_memory(only_right, right)
    return ContractionForm(
        anchor, output, FusedAxes(batch), FusedAxes(only_left), FusedAxes(only_right), reduced, left, right, value, sum_
    )


def _by_memory(axes: tuple[Axis, ...], factor: Expr) -> tuple[Axis, ...]:
    """Columns in the order in which their factor holds them, where neighbours of it are not the output's: those of the
    gradient of a weight are taps, but those of its image channels.
    """
    nearest = _nearest(factor, axes)
    if nearest is None or nearest is axes[-1]:
        return axes
    return tuple(sorted(axes, key=lambda a: -_step(factor, a.var.name)))


def narrow(e: Expr) -> Expr:
    """A factor as it is stored: without the conversion to the type of the sums, also where it is zero elsewhere."""
    if isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == 0:
        value = narrow(e.a)
        return e if value is e.a else Select(e.cond, value, Const(0 if value.dtype not in FLOATS else 0.0, value.dtype))
    return e.value if isinstance(e, Cast) and e.value.dtype != "bool" else e


def padded(e: Expr, *conds: Expr | None) -> Expr:
    """``e`` where all conditions hold, elsewhere zero."""
    from_ = [c for c in conds if c is not None]
    return select(all_of(*from_), e, Const(0 if e.dtype not in FLOATS else 0.0, e.dtype)) if from_ else e


def moves_fastest(e: Expr, groups: Sequence[FusedAxes | Depth]) -> int:
    """The number of the group in steps of which the factor's loads are nearest in memory."""
    best, nearest = 0, 1 << 62
    for number, group in enumerate(groups):
        axes = group.axes if isinstance(group, FusedAxes) else (*group.outer.axes, *group.inner.axes)
        for axis in axes:
            step = _step(e, axis.var.name)
            if axis.extent > 1 and 0 < step < nearest:
                best, nearest = number, step
    return best


def _nearest(factor: Expr, axes: Sequence[Axis]) -> Axis | None:
    """The axis that alone is the last index of what a factor loads; None where there is no such."""
    found = loads(factor)
    if len(found) != 1 or not found[0].indices:
        return None
    return next((a for a in axes if found[0].indices[-1] == a.var), None)


def _step(e: Expr, name: str) -> int:
    """Elements between what a factor loads for neighbouring values of a variable; 0 where it does not move."""
    for load in loads(e):
        step = 1
        for index, extent in zip(reversed(load.indices), reversed(load.buffer.shape), strict=True):
            if name in index.variables:
                return step
            step *= extent
    return 0


def parts(task: KernelTask, kept: Sequence[Tensor]) -> Iterator[KernelTask]:
    """A task as several, each of which computes one of the stages ``kept`` from earlier ones."""
    names = {t.name for t in kept}
    done: dict[str, Tensor] = {}

    def cut(t: Tensor, made: dict[str, Tensor]) -> Tensor:
        if t.body is None or (t.name in names and made):
            return t if t.body is None else done.setdefault(t.name, Tensor(t.buffer))
        if t.name not in made:
            made[t.name] = t  # it is begun: what it reads is cut off
            made[t.name] = Tensor(t.buffer, t.axes, t.body, tuple(cut(i, made) for i in t.inputs))
        return made[t.name]

    for t in kept:
        own = cut(t, {})
        inputs = tuple(dict.fromkeys(_placeholders(own)))
        yield KernelTask(f"{task.name}_{t.name}", inputs, (own,), "", {}, task.constants)


def _placeholders(t: Tensor) -> Iterator[Tensor]:
    for i in t.inputs:
        if i.body is None:
            yield i
        else:
            yield from _placeholders(i)
