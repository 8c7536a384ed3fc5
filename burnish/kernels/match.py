"""Forms that templates match: what a task computes, by its index expressions and not by the names of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from burnish.kernels.task import KernelTask
from burnish.loops.contraction import Contraction, contraction, literal_factor
from burnish.loops.expr import Buffer, Const, Expr, Load, Reduce, Var
from burnish.loops.linear import to_linear
from burnish.loops.simplify import simplify
from burnish.loops.sizes import hinted
from burnish.loops.tensor import Tensor, expanded, stages
from burnish.loops.traverse import free_vars, loads


def only_reduction(task: KernelTask) -> Tensor | None:
    """The one stage that reduces, in a task of one output; None of others."""
    found = [t for t in task.stages() if isinstance(t.body, Reduce)]
    return found[0] if len(found) == 1 and len(task.outputs) == 1 else None


def parameters_of(stage: Tensor) -> list[Tensor]:
    """The parameters of a task that a stage reads, directly or through other stages."""
    return [t for t in stages((stage,)) if t.body is None]


def stride_along(buffer: Buffer, indices: Sequence[Expr], variable: str, ranges: Mapping[str, int]) -> int | None:
    """Elements that an access moves when a variable advances by one; None where its address is not linear in it."""
    flat: Expr = Const(0)
    step = 1
    for index, extent in zip(reversed(indices), reversed(buffer.shape), strict=True):
        flat = flat + index * step
        step *= extent
    terms, _ = to_linear(simplify(flat, ranges))
    total = 0
    for atom, c in terms.items():
        if atom == Var(variable):
            total += c
        elif variable in free_vars(atom):
            return None
    return total


def is_scattered_along(t: Tensor, d: int) -> bool:
    """Whether neighbours along a dimension of a stage are read from places further apart than the row-major stage's
    own, as behind a transpose.
    """
    if t.body is None:
        return False
    made = {stage.name: stage for stage in stages((t,)) if stage.body is not None and stage is not t}
    ranges = {v.name: extent for v, extent in zip(t.axes, t.shape, strict=True)}
    steps = (stride_along(x.buffer, x.indices, t.axes[d].name, ranges) for x in loads(expanded(t.body, made)))
    own = prod(map(hinted, t.shape[d + 1 :]))
    return any(step is not None and abs(step) > own for step in steps)


def _factors(found: Contraction | None, weight: Tensor) -> tuple[Load, Load] | None:
    """The loads of the data and of the weight that a contraction multiplies; None where it reads more."""
    pair = found.loads if found else None
    if pair is None or weight.name not in (pair[0].buffer.name, pair[1].buffer.name):
        return None
    return pair if pair[1].buffer.name == weight.name else (pair[1], pair[0])


class Convolution(NamedTuple):
    """Contraction over a window: the stage [N, O, OH, OW], its weight [O, D, KH, KW], and the load of its data."""

    conv: Tensor
    weight: Tensor
    data: Load

    @property
    def channels(self) -> int:
        """Input channels of all groups."""
        return self.data.buffer.shape[1]

    @property
    def in_rows(self) -> bool:
        """Whether neighbours of a row of the data are adjacent in memory, also behind a view."""
        made = next((t for t in self.conv.inputs if t.name == self.data.buffer.name), None)
        return made is None or not is_scattered_along(made, 3)

    @property
    def even_groups(self) -> int:
        """The number of equal groups of channels, each of which reads inputs of its own; 0 where they overlap."""
        outputs, depth = self.weight.shape[:2]
        groups = self.channels // depth
        if groups < 1 or outputs % groups or not isinstance(self.conv.body, Reduce):
            return 0
        oc, ic = self.conv.axes[1], self.conv.body.axes[0].var
        ranges = {oc.name: outputs, ic.name: depth}
        expected = simplify(oc // (outputs // groups) * depth + ic, ranges)
        return groups if simplify(self.data.indices[1], ranges) == expected else 0


def convolution(task: KernelTask, weight: Tensor | None) -> Convolution | None:
    """A convolution of float32 images, or words of bytes, with ``weight``, and only element-wise stages behind it.

    Its weight is indexed by the output channel and the reduction alone: by channel, row and column of the window.
    """
    conv = only_reduction(task)
    found = contraction(conv)
    if conv is None or weight is None or found is None or not found.in_lanes:
        return None
    factors = _factors(found, weight)
    if factors is None or conv is not task.anchor() or not len(conv.shape) == len(task.outputs[0].shape) == 4:
        return None
    data, taps = factors
    moved = taps.indices == (conv.axes[1], *(axis.var for axis in found.reduced))
    return Convolution(conv, weight, data) if moved and len(weight.shape) == len(data.indices) == 4 else None


class WeightGradient(NamedTuple):
    """Sum over images and positions: the stage [O, D, KH, KW], the loads [n, o, oh, ow] of an adjoint and of data.

    ``reduced``: which of n, oh, ow each reduction axis is, by the adjoint's dimension; others have one element.
    """

    sums: Tensor
    seed: Load
    data: Load
    reduced: tuple[int, ...]

    @property
    def dense(self) -> bool:
        """Whether each of the stage's second axis is a channel of the data of its own, for all outputs the same."""
        depth = self.data.indices[1]
        return depth == self.sums.axes[1] or (self.sums.shape[1] == 1 and depth == Const(0))

    @property
    def depthwise(self) -> bool:
        """Whether the adjoint and the data have the same channels, one for each element of the stage's first axis."""
        return self.data.indices[1] == self.sums.axes[0] and self.sums.shape[1] == 1


def weight_gradient(task: KernelTask) -> WeightGradient | None:
    """A float32 sum over images, rows and columns of an adjoint times data in its window, and an element-wise epilogue.

    Rows and columns of the data are affine in those of the adjoint and in those of the window, in one each.
    """
    sums = only_reduction(task)
    found = contraction(sums)
    if sums is None or found is None or sums is not task.anchor() or sums.dtype != "float32" or len(sums.shape) != 4:
        return None
    pair = found.loads or ()
    axes = {axis.var: number for number, axis in enumerate(found.reduced)}
    own = (x for x in pair if len(x.indices) == 4 and x.indices[1] == sums.axes[0] and _at_positions(x, axes))
    seed = next(own, None)
    if not pair or seed is None:
        return None
    data = pair[1] if pair[0] is seed else pair[0]
    if len(data.indices) != 4 or data.indices[0] != seed.indices[0] or data.buffer.name == seed.buffer.name:
        return None
    pairs = zip(data.indices[2:], seed.indices[2:], sums.axes[2:], strict=True)
    moved = all(free_vars(i) <= free_vars(position) | {k.name} for i, position, k in pairs)
    reduced = tuple(next(d for d in (0, 2, 3) if seed.indices[d] == axis.var) for axis in found.reduced)
    return WeightGradient(sums, seed, data, reduced) if moved and {0, 2} & {*reduced} else None


def _at_positions(load: Load, axes: Mapping[Var, int]) -> bool:
    """Whether image, row and column of a load are reduction axes, each of them once, or the only ones there are."""
    places = [load.indices[d] for d in (0, 2, 3)]
    used = [i for i in places if isinstance(i, Var) and i in axes]
    single = all(i in used or (i == Const(0) and n == 1) for i, n in
                 zip(places, (load.buffer.shape[d] for d in (0, 2, 3)), strict=True))  # fmt: skip
    return single and len(set(used)) == len(used) == len(axes)


def is_phased(anchor: Tensor, weight: Tensor) -> bool:
    """Whether each phase of a position is convolved with taps of its own: [N, O, SH, SW, QH, QW], [O, SH, SW, D, …]."""
    found = contraction(anchor)
    factors = _factors(found, weight)
    if found is None or factors is None or len(anchor.shape) != 6 or len(weight.shape) != 6:
        return False
    return factors[1].indices == (*anchor.axes[1:4], *(axis.var for axis in found.reduced))


def is_pixel(anchor: Tensor, weight: Tensor) -> bool:
    """Whether one pixel is multiplied with a whole window, each element of which gives a position of the output."""
    found = contraction(anchor)
    factors = _factors(found, weight)
    if found is None or factors is None or len(anchor.shape) != 4 or len(weight.shape) != 4:
        return False
    data, taps = factors
    single = len(found.reduced) == 1 and all(isinstance(i, Const) for i in data.indices[2:])
    return single and all(v.name in free_vars(i) for v, i in zip(anchor.axes[2:], taps.indices[2:], strict=True))


def is_pooling(stage: Tensor) -> bool:
    """Whether a stage [N, C, OH, OW] reduces a window of its own channel that moves with both positions."""
    body = stage.body
    if not isinstance(body, Reduce) or len(body.axes) != 2 or len(stage.shape) != 4 or len(stage.inputs) != 1:
        return False
    n, c, oh, ow = stage.axes
    moves = {oh.name, ow.name} <= free_vars(body.body)
    return moves and all(x.indices[:2] == (n, c) for x in loads(body.body))


def is_over_neighbours(stage: Tensor) -> bool:
    """Whether a stage [N, C, H, W] reduces a window of channels at its own position."""
    body = stage.body
    if not isinstance(body, Reduce) or len(body.axes) != 1 or len(stage.shape) != 4 or len(stage.inputs) != 1:
        return False
    n, c, h, w = stage.axes
    window = {c.name, body.axes[0].var.name}
    reads = [x.indices for x in loads(body.body)]
    return all((i[0], *i[2:]) == (n, h, w) and window <= free_vars(i[1]) for i in reads if len(i) == 4) and bool(reads)


def mapped_from(t: Tensor | None) -> Tensor | None:
    """The tensor that ``t`` multiplies by a matrix of literals; None where it does something else."""
    return t.inputs[0] if t is not None and literal_factor(t) is not None and len(t.inputs) == 1 else None


def mapped_to(task: KernelTask, t: Tensor | None) -> Tensor | None:
    """The only stage that reads ``t``, if it multiplies it by a matrix of literals."""
    readers = [u for u in task.stages() if t is not None and t in u.inputs]
    return readers[0] if len(readers) == 1 and mapped_from(readers[0]) is t else None
