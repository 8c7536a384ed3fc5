"""Gradient of attention as a form: two products of the same shape, of whose elements weights are made, and sums of rows
by these weights.

``sum_j f(exp(e_ij - l_i), p_ij) * x_j``, ``e`` being any expression of an element of the first product, and ``p`` the
second one: for queries, x are keys; for keys and values, which go through all rows that see them, queries and adjoints.
It is found by the stages' expressions, whatever operators they come from.

Source: Dao 2023 (FlashAttention-2), algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from burnish.kernels.gpu.attention_form import AttentionAxes, widened
from burnish.kernels.gpu.forms import FusedAxes, Values, narrow
from burnish.kernels.task import KernelTask
from burnish.loops.contraction import is_sum_of_products
from burnish.loops.expr import Axis, Binary, Buffer, Call, Const, Expr, Load, Reduce, Var, math
from burnish.loops.layout import row_major
from burnish.loops.reduction import factors_of
from burnish.loops.simplify import simplify
from burnish.loops.tensor import Tensor, expanded
from burnish.loops.traverse import loads, rebuild, substitute, walk


@dataclass(frozen=True)
class WeightedSum:
    """One output: ``result`` is its element, in which ``sums`` stands for the sum over keys of ``weight`` times the
    right factor of the product number ``source``. ``batch``, ``rows`` and ``columns`` are the output's own axes.
    """

    output: Tensor
    batch: FusedAxes
    rows: FusedAxes
    columns: FusedAxes
    weight: Expr
    source: int
    result: Expr
    sums: Load


@dataclass(frozen=True)
class PairProduct:
    """A product of what a block has, ``left`` [batch, rows, depth], and what it goes through, ``right`` [batch, keys,
    depth], for which ``element`` stands.
    """

    element: Load
    left: Expr
    right: Expr
    depth: FusedAxes


@dataclass(frozen=True)
class AttentionGradient(AttentionAxes):
    """``keys`` is the innermost axis of what a block goes through, for every value of the axes ``outer``.

    ``power`` stands in weights for ``exp(score - below)``. ``numbers``: what is read of each row, or of each key.
    """

    outer: FusedAxes
    products: tuple[PairProduct, PairProduct]
    power: Load
    below: Load
    sums: tuple[WeightedSum, ...]
    numbers: tuple[Load, ...]


def attention_gradient(task: KernelTask) -> AttentionGradient | None:
    """The gradient of attention that a task is; None of others."""
    stages = task.stages()
    reducing = [t for t in stages if isinstance(t.body, Reduce)]
    if len(reducing) != 2 + len(task.outputs) or task.dims or any(0 in t.shape for t in task.outputs):
        return None
    if any(layout != row_major(len(layout.parts)) for layout in task.layouts.values()):
        return None
    if not all(is_sum_of_products(t) for t in reducing):
        return None
    return _Finder(task.outputs, reducing, {t.name: t for t in stages if not isinstance(t.body, Reduce)}).found()


def with_parts(e: Expr, parts: Mapping[Expr, Expr]) -> Expr:
    """An expression with others in the place of some of its parts, the outermost first."""
    return parts[e] if e in parts else rebuild(e, lambda inner: with_parts(inner, parts))


@dataclass(frozen=True)
class _Part:
    """One output's sum, over its own axes: its element, the sum in it, its factors, and which axes have them."""

    output: Tensor
    result: Expr
    sums: Load
    weight: Expr
    factor: Expr
    batch: tuple[Axis, ...]
    rows: Axis
    columns: tuple[Axis, ...]


class _Finder:
    """See :func:`attention_gradient`."""

    def __init__(self, outputs: tuple[Tensor, ...], reducing: list[Tensor], inlined: Mapping[str, Tensor]) -> None:
        self.outputs, self.inlined = outputs, inlined
        self.reducing = {t.name: t for t in reducing}
        self.ranges = {v.name: n for t in outputs for v, n in zip(t.axes, t.shape, strict=True)}
        self.keys: tuple[Axis, ...] = ()

    def found(self) -> AttentionGradient | None:
        """All of it, or None."""
        parts = [self._part(t) for t in self.outputs]
        if None in parts:
            return None
        first, *others = (part for part in parts if part is not None)
        same = [first, *(self._renamed(part, first) for part in others)]
        weights = [part.weight for part in same if part is not None]
        powers = {e for w in weights for e in walk(w) if isinstance(e, Call) and e == math("exp", *e.args)}
        inner = {x for e in weights for x in loads(e) if x.buffer.name in self.reducing}
        if None in same or len(powers) != 1 or len(inner) != 2:
            return None
        (power,) = powers
        difference = power.args[0]
        if not isinstance(difference, Binary) or difference.op != "-" or not isinstance(difference.b, Load):
            return None
        score, below = difference.a, difference.b
        scored = [x for x in inner if x in loads(score)]
        products = [self._product(x, first) for x in (*scored, *(inner - {*scored}))]
        if len(scored) != 1 or below in inner or None in products:
            return None
        one, two = (p for p in products if p is not None)
        sums = [self._sum(part, own, (one, two)) for part, own in zip(same, parts, strict=True) if part and own]
        made = Load(Buffer(f"{first.output.name}.power", (1,), power.dtype), (Const(0),))
        sums = [None if s is None else replace(s, weight=with_parts(s.weight, {power: made})) for s in sums]
        numbers = {below, *(x for s in sums if s for x in loads(s.weight))} - inner - {made}
        keys = {a.var.name for a in self.keys}
        if None in sums or any(first.rows.var.name in x.variables and x.variables & keys for x in numbers):
            return None
        return AttentionGradient(
            first.output, FusedAxes(first.batch), FusedAxes((first.rows,)), FusedAxes(first.columns),
            FusedAxes(self.keys[-1:]), one.depth, score, (), FusedAxes(self.keys[:-1]), (one, two), made, below,
            tuple(s for s in sums if s is not None), tuple(sorted(numbers, key=str)),
        )  # fmt: skip

    def _body(self, t: Tensor, index: tuple[Expr, ...], reduced: tuple[Axis, ...]) -> Expr:
        """Reduced expression of a stage for the element ``index``, at ``reduced``."""
        assert isinstance(t.body, Reduce)
        at: Values = {v.name: i for v, i in zip(t.axes, index, strict=True)}
        at.update({a.var.name: own.var for a, own in zip(t.body.axes, reduced, strict=True)})
        return simplify(expanded(substitute(expanded(t.body.body, self.inlined), at), self.inlined), self.ranges)

    def _axes(self, t: Tensor) -> tuple[Axis, ...]:
        """The axes of a reduction, under names of their own."""
        assert isinstance(t.body, Reduce)
        axes = tuple(Axis(Var(f"{t.name}/{a.var.name}"), a.extent) for a in t.body.axes)
        self.ranges.update({a.var.name: a.extent for a in axes})
        return axes

    def _part(self, output: Tensor) -> _Part | None:
        """See :class:`_Part`; the keys are those of the first output."""
        value: Expr = Load(output.buffer, tuple(output.axes))
        if output.name not in self.reducing:
            assert output.body is not None
            value = simplify(expanded(output.body, self.inlined), self.ranges)
        sums = {x for x in loads(value) if x.buffer.name in self.reducing}
        if len(sums) != 1:
            return None
        (load,) = sums
        stage = self.reducing[load.buffer.name]
        keys = self._axes(stage)
        self.keys = self.keys or keys
        if [a.extent for a in keys] != [a.extent for a in self.keys]:
            return None
        pair = factors_of(self._body(stage, load.indices, self.keys))
        weights = [e for e in pair or () if not e.buffers.isdisjoint(self.reducing)]
        factors = [e for e in pair or () if e.buffers.isdisjoint(self.reducing)]
        if len(weights) != 1 or len(factors) != 1:
            return None
        axes = [Axis(v, n) for v, n in zip(output.axes, output.shape, strict=True) if n > 1]
        weight, factor = widened(weights[0], load), factors[0]
        columns = tuple(a for a in axes if a.var.name not in weight.variables)
        own = [a for a in axes if a.var.name in weight.variables - factor.variables]
        inner = next(x for x in loads(weight) if x.buffer.name in self.reducing)
        places = {a: [p for p, i in enumerate(inner.indices) if a.var.name in i.variables] for a in own}
        if not columns or not own or not all(places.values()):
            return None
        rows = max(own, key=lambda a: max(places[a]))
        batch = tuple(a for a in axes if a not in columns and a is not rows)
        return _Part(output, value, load, weight, factor, batch, rows, columns)

    def _renamed(self, part: _Part, first: _Part) -> _Part | None:
        """A part with weight and factor over the batch and rows of the first."""
        mine, wanted = (*part.batch, part.rows), (*first.batch, first.rows)
        if [a.extent for a in mine] != [a.extent for a in wanted]:
            return None
        at: Values = {a.var.name: b.var for a, b in zip(mine, wanted, strict=True)}
        weight, factor = (simplify(substitute(e, at), self.ranges) for e in (part.weight, part.factor))
        return _Part(part.output, part.result, part.sums, weight, factor, first.batch, first.rows, part.columns)

    def _product(self, element: Load, first: _Part) -> PairProduct | None:
        """A product by its factors: of rows and of keys."""
        stage = self.reducing[element.buffer.name]
        depth = self._axes(stage)
        pair = factors_of(self._body(stage, element.indices, depth)) or ()
        row, keys = first.rows.var.name, {a.var.name for a in self.keys}
        left = [e for e in pair if row in e.variables and e.variables.isdisjoint(keys)]
        right = [e for e in pair if row not in e.variables and self.keys[-1].var.name in e.variables]
        if len(left) != 1 or len(right) != 1 or not (left[0].buffers | right[0].buffers).isdisjoint(self.reducing):
            return None
        return PairProduct(element, narrow(left[0]), narrow(right[0]), FusedAxes(depth))

    def _sum(self, part: _Part, own: _Part, products: tuple[PairProduct, PairProduct]) -> WeightedSum | None:
        """A part of which the factor is the right one of a product."""
        column, columns = Var("column"), FusedAxes(part.columns)
        factor = substitute(narrow(part.factor), columns.at(column))
        for number, product in enumerate(products):
            same = product.depth.extent == columns.extent
            if same and substitute(product.right, product.depth.at(column)) == factor:
                return WeightedSum(
                    own.output, FusedAxes(own.batch), FusedAxes((own.rows,)), columns, part.weight, number, own.result,
                    own.sums,
                )  # fmt: skip
        return None
