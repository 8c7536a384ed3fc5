"""Attention as a form: a product of matrices, a softmax of each of its rows, and a second product with these.

``sum_j(exp(e_j - max e) * v_j) * r(sum_j exp(e_j - max e))``, ``e_j`` being any expression of one element of the first
product: scaled, masked, biased. It is found by the stages' expressions, whatever operators they come from.

Source: Vaswani et al. 2017, section 3.2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from burnish.kernels.gpu.forms import FusedAxes, Values
from burnish.kernels.task import KernelTask
from burnish.loops.contraction import is_sum_of_products
from burnish.loops.expr import (
    Axis,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Var,
    all_of,
    binary,
    cast,
    math,
    select,
    wrap,
)
from burnish.loops.layout import row_major
from burnish.loops.linear import to_linear
from burnish.loops.reduction import factors_of
from burnish.loops.simplify import simplify
from burnish.loops.tensor import Tensor, expanded
from burnish.loops.traverse import conjuncts, loads, substitute, transform, walk

MOST_GROUPED = 8  # rows of all heads that share keys, up to which they are rows of one block
HALF_FLOATS = ("float16", "bfloat16")


@dataclass(frozen=True)
class DividedAxis:
    """Heads that share keys: an axis of the output as ``shared``, of keys, and ``own``, of rows with the same keys.

    Keys are those of ``axis // group``, which is a multiple of what ``own`` has.
    """

    axis: Axis
    shared: Axis
    own: Axis
    group: int

    def whole(self, shared: Expr, own: Expr) -> Expr:
        """The axis by its parts."""
        return shared * self.own.extent + own

    def of_keys(self, e: Expr) -> Expr:
        """A factor that keys have, by the part that they have."""
        each = self.group // self.own.extent
        part: Expr = self.shared.var // each if each > 1 else self.shared.var
        return transform(e, lambda x: part if _quotient(x, self.axis) else x)


@dataclass(frozen=True)
class AttentionAxes:
    """Axes of scores: ``batch`` of queries, keys and values; ``rows`` of what a block has, and ``keys`` of what it goes
    through; ``depth`` of both; ``columns`` of the output. ``score`` is over these. ``divided``: axes of the output
    whose parts are in ``batch`` and in ``rows``.
    """

    output: Tensor
    batch: FusedAxes
    rows: FusedAxes
    columns: FusedAxes
    keys: FusedAxes
    depth: FusedAxes
    score: Expr
    divided: tuple[DividedAxis, ...]

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """Batch, rows, keys, depth, columns."""
        groups = (self.batch, self.rows, self.keys, self.depth, self.columns)
        return groups[0].extent, groups[1].extent, groups[2].extent, groups[3].extent, groups[4].extent


@dataclass(frozen=True)
class RowResult:
    """A number of each row that is computed of its greatest score, ``top``, and its sum of exponentials: ``value`` at
    ``index`` of ``output``, over the axes of attention's own output.
    """

    output: Tensor
    index: tuple[Expr, ...]
    value: Expr
    top: Load
    total: Load


@dataclass(frozen=True)
class Attention(AttentionAxes):
    """``query``, ``key`` and ``value`` are over the axes.

    ``score`` is what softmax is taken of, in which ``product`` stands for the sum over the depth. ``result`` is the
    output's element, in which ``weighted`` stands for the sum of values by the exponentials, and ``total`` for the sum
    of these. ``numbers``: what else is stored of each row.
    """

    query: Expr
    key: Expr
    value: Expr
    product: Load
    result: Expr
    weighted: Load
    total: Load
    numbers: RowResult | None


def attention(task: KernelTask) -> Attention | None:
    """Attention that a task is, of one output or with a number of each row as a second one; None of others."""
    stages = task.stages()
    reducing = [t for t in stages if isinstance(t.body, Reduce)]
    if len(task.outputs) > 2 or len(reducing) != 4 or task.dims or 0 in task.outputs[0].shape:
        return None
    if any(layout != row_major(len(layout.parts)) for layout in task.layouts.values()):
        return None
    products = [t for t in reducing if is_sum_of_products(t)]
    others = [t for t in reducing if t not in products]
    kinds = {t.body.kind: t for t in others if isinstance(t.body, Reduce)}
    if len(products) != 2 or kinds.keys() != {"max", "sum"}:
        return None
    inlined = {t.name: t for t in stages if not isinstance(t.body, Reduce)}
    found = _Finder(task.outputs[0], products[0], products[1], kinds["max"], kinds["sum"], inlined)
    form = found.found()
    if form is None or len(task.outputs) == 1:
        return form
    numbers = found.numbers(form, task.outputs[1])
    return None if numbers is None else replace(form, numbers=numbers)


class _Finder:
    """See :func:`attention`: the four stages that reduce, in the order in which they are computed."""

    def __init__(
        self, output: Tensor, first: Tensor, second: Tensor, top: Tensor, total: Tensor, inlined: Mapping[str, Tensor]
    ) -> None:
        self.output, self.first, self.second, self.top, self.total = output, first, second, top, total
        self.inlined = inlined
        self.ranges = {v.name: n for v, n in zip(output.axes, output.shape, strict=True)}

    def found(self) -> Attention | None:
        """All of it, or None."""
        result = self._result()
        if result is None:
            return None
        value, weighted = result
        keys = self._axes(self.second)
        pair = factors_of(self._body(self.second, weighted.indices, keys))  # type: ignore[arg-type]
        if pair is None:
            return None
        shares = [e for e in pair if self.total.name in e.buffers]
        values = [e for e in pair if self.total.name not in e.buffers]
        if len(shares) != 1 or any(self._computed(e) for e in values):
            return None
        whole, some = shares[0], None
        chosen = _uncast(whole)
        if isinstance(chosen, Select) and _is_zero(chosen.b):
            whole, some = chosen.a, chosen.cond  # where no key counts, the result is zero
        share = self._share(whole, keys)
        if share is None:
            return None
        if some is not None and (some.variables & {a.var.name for a in keys.axes} or self._computed(some)):
            return None
        score, scale, total, product = share
        return self._classified(value, weighted, keys, values[0], score, scale, total, product, some)

    def _axes(self, t: Tensor) -> FusedAxes:
        """The axes of a reduction, under names of their own."""
        assert isinstance(t.body, Reduce)
        axes = tuple(Axis(Var(f"{t.name}/{a.var.name}"), a.extent) for a in t.body.axes)
        self.ranges.update({a.var.name: a.extent for a in axes})
        return FusedAxes(axes)

    def _body(self, t: Tensor, index: tuple[Expr, ...], reduced: FusedAxes) -> Expr | None:
        """Reduced expression of a stage for the element ``index``, at ``reduced``; None where that has other axes."""
        body = t.body
        assert isinstance(body, Reduce)
        if [a.extent for a in body.axes] != [a.extent for a in reduced.axes]:
            return None
        at: Values = {v.name: i for v, i in zip(t.axes, index, strict=True)}
        at.update({a.var.name: own.var for a, own in zip(body.axes, reduced.axes, strict=True)})
        return simplify(expanded(substitute(expanded(body.body, self.inlined), at), self.inlined), self.ranges)

    def _computed(self, e: Expr) -> bool:
        """Whether an expression reads what the task reduces."""
        return not e.buffers.isdisjoint({t.name for t in (self.first, self.second, self.top, self.total)})

    def _result(self) -> tuple[Expr, Load] | None:
        """The output's element, and in it the only load of the second product."""
        output, second = self.output, self.second
        if output is second:
            load = Load(second.buffer, tuple(second.axes))
            return load, load
        assert output.body is not None
        value = simplify(expanded(output.body, self.inlined), self.ranges)
        found = {x for x in loads(value) if x.buffer.name == second.name}
        foreign = value.buffers & {self.first.name, self.top.name, self.total.name}
        return (value, found.pop()) if len(found) == 1 and not foreign else None

    def _share(self, e: Expr, keys: FusedAxes) -> tuple[Expr, Expr, Load, Load] | None:
        """The score, the factor by which exponentials become shares, the sum in it, and the product in the score."""
        plain = _uncast(e)
        totals = {x for x in loads(plain) if x.buffer.name == self.total.name}
        if len(totals) != 1 or not isinstance(plain, Binary) or plain.op not in ("*", "/"):
            return None
        (total,) = totals
        power = self._body(self.total, total.indices, keys)
        if not isinstance(power, Call) or len(power.args) != 1 or power != math("exp", power.args[0]):
            return None
        sides = [plain.a, plain.b] if plain.op == "*" else [plain.a]
        mine = next((s for s in sides if _uncast(s) == _uncast(power)), None)
        (below,) = power.args
        if mine is None or not isinstance(below, Binary) or below.op != "-" or not isinstance(below.b, Load):
            return None
        rest = plain.b if mine is plain.a else plain.a
        scale = rest if plain.op == "*" else 1.0 / rest
        top = below.b
        if top.buffer.name != self.top.name or self._body(self.top, top.indices, keys) != below.a:
            return None
        products = {x for x in loads(below.a) if x.buffer.name == self.first.name}
        others = {self.second.name, self.top.name, self.total.name}
        free = scale.variables & {a.var.name for a in keys.axes}
        if len(products) != 1 or free or below.a.buffers & others or scale.buffers != {self.total.name}:
            return None
        return below.a, scale, total, products.pop()

    def _classified(
        self,
        value: Expr,
        weighted: Load,
        keys: FusedAxes,
        values: Expr,
        score: Expr,
        scale: Expr,
        total: Load,
        product: Load,
        some: Expr | None,
    ) -> Attention | None:
        """The axes by who has them."""
        depth = self._axes(self.first)
        pair = factors_of(self._body(self.first, product.indices, depth))  # type: ignore[arg-type]
        named = {a.var.name for a in keys.axes}
        if pair is None:
            return None
        left = [e for e in pair if e.variables.isdisjoint(named)]
        right = [e for e in pair if not e.variables.isdisjoint(named)]
        if len(left) != 1 or len(right) != 1 or self._computed(left[0]) or self._computed(right[0]):
            return None
        (query, factor), (key, other) = _unscaled(left[0]), _unscaled(right[0])
        if factor * other != 1.0:
            wide = "float32" if product.dtype in HALF_FLOATS else product.dtype
            scaled = cast(product.dtype, cast(wide, product) * Const(factor * other, wide))
            score = transform(score, lambda e: scaled if e == product else e)
        left, right = [query], [key]
        axes = [Axis(v, n) for v, n in zip(self.output.axes, self.output.shape, strict=True) if n > 1]
        parts = [score, left[0], right[0], total, *([some] if some is not None else [])]
        scored = frozenset[str]().union(*(part.variables for part in parts))
        columns = tuple(a for a in axes if a.var.name in values.variables and a.var.name not in scored)
        rows = tuple(a for a in axes if a not in columns and a.var.name not in values.variables | right[0].variables)
        batch = tuple(a for a in axes if a not in columns and a not in rows)
        divided: tuple[DividedAxis, ...] = ()
        found = next((d for a in batch if (d := _shared_keys(a, rows, right[0], values)) is not None), None)
        if found is not None:
            divided = (found,)
            batch = tuple(found.shared if a is found.axis else a for a in batch)
            rows = (found.own, *rows)
            right, values = [found.of_keys(right[0])], found.of_keys(values)
        share = weighted * scale if weighted.dtype == scale.dtype else None
        if some is not None and share is not None:
            share = select(some, share, Const(0.0, share.dtype))
        result = _replaced(value, weighted, share)
        if result is None or not columns:
            return None
        return Attention(
            self.output, FusedAxes(batch), FusedAxes(rows), FusedAxes(columns), keys, depth, score, divided, left[0],
            right[0], values, product, result, weighted, total, None,
        )  # fmt: skip

    def numbers(self, form: Attention, output: Tensor) -> RowResult | None:
        """A second output of attention, if it is of rows."""
        assert output.body is not None
        ranges = {v.name: n for v, n in zip(output.axes, output.shape, strict=True)}
        value = simplify(expanded(output.body, self.inlined), ranges)
        found = {x.buffer.name: x for x in loads(value)}
        if len(set(loads(value))) != 2 or found.keys() != {self.top.name, self.total.name}:
            return None
        top, total = found[self.top.name], found[self.total.name]
        known: Values = {}
        for own, other in zip(total.indices, form.total.indices, strict=True):
            if isinstance(own, Var):
                known[own.name] = other
            elif own != other and not isinstance(own, Const):
                return None
        if top.indices != total.indices or {v.name for v, n in zip(output.axes, output.shape, strict=True) if n > 1} - {
            *known
        }:
            return None
        index = tuple(known.get(v.name, Const(0)) for v in output.axes)
        moved = {x: Load(x.buffer, form.total.indices) for x in (top, total)}
        return RowResult(output, index, transform(value, lambda e: moved.get(e, e)), *moved.values())  # type: ignore[call-overload]


def _quotient(e: Expr, axis: Axis) -> int:
    """The number by which an expression divides an axis; 0 where it is no such quotient."""
    divides = isinstance(e, Binary) and e.op == "//" and e.a == axis.var and isinstance(e.b, Const)
    return int(e.b.value) if divides else 0  # type: ignore[attr-defined]


def _shared_keys(axis: Axis, rows: Sequence[Axis], key: Expr, value: Expr) -> DividedAxis | None:
    """Parts of an axis whose neighbours read the same keys and values, where there are few rows."""
    found = {n for e in (key, value) for x in walk(e) if (n := _quotient(x, axis))}
    rest = [transform(e, lambda x: Const(0) if _quotient(x, axis) else x) for e in (key, value)]
    if len(found) != 1 or any(axis.var.name in e.variables for e in rest):
        return None
    (group,) = found
    most = MOST_GROUPED // prod(a.extent for a in rows)
    own = max((n for n in range(2, most + 1) if group % n == 0 and axis.extent % n == 0), default=1)
    if own == 1:
        return None
    name = axis.var.name
    return DividedAxis(axis, Axis(Var(f"{name}/keys"), axis.extent // own), Axis(Var(f"{name}/own"), own), group)


def _replaced(e: Expr, load: Load, by: Expr | None) -> Expr | None:
    return None if by is None else transform(e, lambda part: by if part == load else part)


def _unscaled(e: Expr) -> tuple[Expr, float]:
    """A factor of a product without the constant that its elements are multiplied by, and that."""
    plain = _uncast(e)
    if isinstance(plain, Binary) and plain.op == "*":
        for number, rest in ((plain.a, plain.b), (plain.b, plain.a)):
            number = _uncast(number)
            if isinstance(number, Const) and "float" in number.dtype:
                inner, factor = _unscaled(rest)
                return cast(e.dtype, inner), factor * float(number.value)
    return e, 1.0


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


def _uncast(e: Expr) -> Expr:
    """An expression without the conversions of floats around it: sums of exponentials are not rounded between."""
    while isinstance(e, Cast) and e.value.dtype != "bool" and "float" in e.dtype and "float" in e.value.dtype:
        e = e.value
    return e


def widened(e: Expr, product: Load) -> Expr:
    """A score in float32: of halves, what is computed from ``product`` is not rounded in between."""
    if e.dtype not in HALF_FLOATS and e.dtype != "float32":
        return e
    match e:
        case Cast(_, value) if value.dtype in (*HALF_FLOATS, "float32"):
            return widened(value, product)
        case Const(value):
            return Const(value, "float32")
        case Binary(op, a, b):
            return binary(op, widened(a, product), widened(b, product))
        case Select(cond, a, b):
            return select(cond, widened(a, product), widened(b, product))
        case Call(fn, args):
            return math(fn, *(widened(a, product) for a in args))
    return e if e == product else cast("float32", e)


def hides(score: Expr, ranges: Mapping[str, int]) -> Expr | None:
    """A condition without the variables of ``ranges`` that holds wherever a score of theirs may be above minus
    infinity; None where nothing tells.

    Known are masks: ``select(a <= b, score, -inf)`` whose two sides are linear in these variables, one on another.
    """
    e, found, parts = _uncast(score), list[Expr](), list[Expr]()
    while isinstance(e, Select) and e.b == Const(float("-inf"), e.dtype):
        parts += conjuncts(e.cond)
        e = _uncast(e.a)
    for part in parts:
        if not isinstance(part, Binary) or part.op not in ("<", "<=", ">", ">="):
            continue
        less, more = (part.a, part.b) if part.op in ("<", "<=") else (part.b, part.a)
        terms, const = to_linear(simplify(wrap(less - more)))
        least: Expr = Const(const)
        for atom, n in terms.items():
            if isinstance(atom, Var) and atom.name in ranges:
                least = least + (n * (ranges[atom.name] - 1) if n < 0 else 0)
            elif atom.variables & {*ranges}:
                break
            else:
                least = least + atom * n
        else:
            found.append(least <= 0 if part.op in ("<=", ">=") else least < 0)
    return all_of(*found) if found else None
