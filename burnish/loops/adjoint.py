"""Adjoints of tensor definitions: reverse-mode differentiation, stage by stage, in the same language.

A load ``X[f(v)]`` in ``Y[s] = sum over r of body`` gives ``dX[x] = sum over v with f(v) = x of dY[s] · ∂body/∂load``,
with ``v`` all of ``s`` and ``r``: what :mod:`burnish.loops.preimage` finds of them is put in, the rest is summed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from burnish.loops.bounds import prove
from burnish.loops.derivative import partials, times
from burnish.loops.expr import (
    FLOATS,
    ITEM_BYTES,
    Axis,
    Buffer,
    Expr,
    Load,
    Reduce,
    Var,
    all_of,
    cast,
    equal,
    select,
    wrap,
)
from burnish.loops.onepoint import demanded
from burnish.loops.preimage import preimage
from burnish.loops.simplify import simplify
from burnish.loops.sizes import greatest
from burnish.loops.tensor import Tensor, stages
from burnish.loops.traverse import substitute, transform

SUMMED = {"float16": "float32", "bfloat16": "float32"}  # in which sums of a dtype are, where that is another one


def gradients(
    outputs: Sequence[Tensor], results: Sequence[Tensor], seeds: Sequence[Tensor | None], wrt: Tensor
) -> Tensor | None:
    """The gradient by the placeholder ``wrt`` of the sum of all ``outputs`` times their ``seeds``; None: it is 0.

    ``results`` are placeholders that hold the values of the outputs: what is known from them alone is read there,
    other stages are computed again. Several stages: those of the outputs, where they are needed, and ``grad.0``,
    ``grad.1``… Raises UnsupportedOperator for a function without a derivative.
    """
    return _Reverse(outputs, results, wrt).run(seeds)


def replaced(tensors: Sequence[Tensor], by: Mapping[str, Tensor], names: Mapping[str, str]) -> list[Tensor]:
    """``tensors`` with all stages of theirs, in which buffers are other tensors, and the stages have other names."""
    new: dict[str, Tensor] = dict(by)
    for t in stages(tensors):
        if t.name not in new and t.body is not None:
            new[t.name] = _rebuilt(t, new, names.get(t.name, t.name))
    return [new.get(t.name, t) for t in tensors]


def _rebuilt(t: Tensor, by: Mapping[str, Tensor], name: str) -> Tensor:
    inputs: dict[str, Tensor] = {}

    def read(e: Expr) -> Expr:
        if not isinstance(e, Load):
            return e
        source = by.get(e.buffer.name)
        loaded = e if source is None else source[e.indices]
        if isinstance(loaded, Load):
            source = source or next(i for i in t.inputs if i.name == e.buffer.name)
            inputs[source.name] = source
        return loaded

    assert t.body is not None
    body = transform(t.body, read)
    return Tensor(t.buffer.with_(name=name), t.axes, body, tuple(inputs.values()))


class _Reverse:
    """One pass from the outputs back."""

    def __init__(self, outputs: Sequence[Tensor], results: Sequence[Tensor], wrt: Tensor) -> None:
        self.wrt = wrt
        self.outputs = outputs
        self.order = stages(outputs)
        self.values = {t.name: t for t in self.order}  # what holds the value of a stage
        self.values.update({t.name: r for t, r in zip(outputs, results, strict=True)})
        known = {t.name: r for t, r in zip(outputs, results, strict=True)}
        for t in self.order:
            if t.body is not None and t.name not in known:
                self.values[t.name] = _rebuilt(t, self.values, t.name)
        self.reached = {wrt.name}
        for t in self.order:
            if t.dtype in FLOATS and any(i.name in self.reached for i in t.inputs):
                self.reached.add(t.name)
        self.parts: dict[str, list[Tensor]] = {}  # what adds up to the adjoint of a stage
        self.dtypes = {t.name: t.dtype for t in self.order}
        self.count = 0

    def run(self, seeds: Sequence[Tensor | None]) -> Tensor | None:
        for t, seed in zip(self.outputs, seeds, strict=True):
            if seed is not None and t.dtype in FLOATS:
                self.parts.setdefault(t.name, []).append(seed)
        for t in reversed(self.order):
            if t.body is not None and t.name in self.reached and t.name in self.parts:
                self.stage(t, self.total(t.name))
        return self.total(self.wrt.name) if self.wrt.name in self.parts else None

    def total(self, name: str) -> Tensor:
        """The sum of the contributions to one adjoint, in the dtype of what it is by; those that are no reductions are
        computed as they are read.
        """
        parts, dtype = self.parts[name], self.dtypes.get(name, self.wrt.dtype)
        if len(parts) == 1 and parts[0].dtype == dtype:
            return parts[0]
        axes = _positions(parts[0].shape)
        body: Expr | None = None
        inputs: dict[str, Tensor] = {}
        for t in parts:
            if t.body is None or isinstance(t.body, Reduce):
                value: Expr = Load(t.buffer, axes)
                inputs[t.name] = t
            else:
                value = substitute(t.body, {v.name: x for v, x in zip(t.axes, axes, strict=True)})
                inputs.update({i.name: i for i in t.inputs})
            wide = value.dtype if body is None else _wider(body.dtype, value.dtype)
            body = cast(wide, value) if body is None else cast(wide, body) + cast(wide, value)
        assert body is not None
        return Tensor(self.buffer(parts[0].shape, dtype), axes, cast(dtype, body), tuple(inputs.values()))

    def buffer(self, shape: tuple[int, ...], dtype: str) -> Buffer:
        """The buffer of another stage."""
        self.count += 1
        return Buffer(f"grad.{self.count - 1}", shape, dtype)

    def stage(self, t: Tensor, adjoint: Tensor) -> None:
        """Adds what one stage contributes to the adjoints of the tensors that it reads."""
        body = t.body
        assert body is not None
        reduce = body if isinstance(body, Reduce) else None
        variables = [v.name for v in t.axes] + ([a.var.name for a in reduce.axes] if reduce is not None else [])
        ranges = [*t.shape, *([a.extent for a in reduce.axes] if reduce is not None else [])]
        renamed: dict[str, Expr] = {name: Var(f"v{k}") for k, name in enumerate(variables)}
        extents = {f"v{k}": extent for k, extent in enumerate(ranges)}
        inner = substitute(body if reduce is None else reduce.body, renamed)
        at = tuple(renamed[v.name] for v in t.axes)
        sources = {i.name: self.values[i.name] for i in t.inputs} | {adjoint.name: adjoint}
        value = self.values[t.name]
        own = Load(value.buffer, at)
        seed: Expr = Load(adjoint.buffer, at)
        if reduce is not None and reduce.kind in ("max", "min"):
            first = self.first(t, reduce, value)
            sources[first.name] = first
            place = cast(first.dtype, _flat([renamed[a.var.name] for a in reduce.axes], reduce.axes))
            seed = select(equal(Load(first.buffer, at), place), seed, 0.0)
        elif reduce is not None and reduce.kind == "prod":
            others = self.others(t, reduce)
            sources[others.name] = others
            seed = seed * Load(others.buffer, (*at, *(renamed[a.var.name] for a in reduce.axes)))
        for load, slope in partials(inner, self.reached).items():
            term = times(slope, seed)
            if reduce is None:
                term = transform(term, lambda e: own if e == inner else e)
                sources[value.name] = value
            term = transform(term, self.moved)
            self.contribute(load, term, extents, {**sources, **{s.name: s for s in sources.values()}})

    def moved(self, e: Expr) -> Expr:
        """A load of an output as one of what holds its value."""
        if isinstance(e, Load) and e.buffer.name in self.values:
            return Load(self.values[e.buffer.name].buffer, e.indices)
        return e

    def contribute(self, load: Load, term: Expr, extents: Mapping[str, int], sources: Mapping[str, Tensor]) -> None:
        """Adds the sum of ``term`` over all points at which ``load`` reads an element, as a stage."""
        shape = load.buffer.shape
        axes = _positions(shape)
        found = preimage([transform(i, self.moved) for i in load.indices], extents, axes, shape)
        value, conditions, left = found.at(term), found.conditions, dict(found.free)
        ranges = {**{x.name: n for x, n in zip(axes, shape, strict=True)}, **left}
        for name, extent in found.free.items():
            point = demanded(conditions, name)
            if point is not None:  # one term of the sum is left
                inside = [c for c in (point[0] >= 0, point[0] < extent) if not prove(c, ranges)]
                conditions = (*inside, *(substitute(c, {name: point[0]}) for c in point[1]))
                value = substitute(value, {name: point[0]})
                del left[name]
        if conditions:
            value = select(all_of(*conditions), value, 0.0)
        value = simplify(value, ranges)
        free = tuple(Axis(Var(v), n) for v, n in left.items())
        body = Reduce("sum", cast(SUMMED.get(value.dtype, value.dtype), value), free) if free else value
        inputs = {sources[name].name: sources[name] for name in sorted(value.buffers)}
        stage = Tensor(self.buffer(shape, body.dtype), axes, body, tuple(inputs.values()))
        self.parts.setdefault(load.buffer.name, []).append(stage)

    # --- reductions that are no sums ----------------------------------------------------------------------------------

    def first(self, t: Tensor, reduce: Reduce, value: Tensor) -> Tensor:
        """The first place, counted through, where each extreme is attained."""
        axes = tuple(Axis(Var(f"k{n}"), a.extent) for n, a in enumerate(reduce.axes))
        inner = substitute(reduce.body, {a.var.name: k.var for a, k in zip(reduce.axes, axes, strict=True)})
        count = prod(a.extent for a in axes)
        narrow = "int32" if greatest(count) < 1 << 31 else "int64"  # as many lanes as the float32 values beside it
        found = equal(transform(inner, self.moved), Load(value.buffer, t.axes))
        place = cast(narrow, _flat([a.var for a in axes], axes))
        body = Reduce("min", select(found, place, cast(narrow, wrap(count - 1))), axes)
        sources = {self.values[i.name].name: self.values[i.name] for i in t.inputs} | {value.name: value}
        return Tensor(self.buffer(t.shape, body.dtype), t.axes, body, tuple(sources[n] for n in sorted(body.buffers)))

    def others(self, t: Tensor, reduce: Reduce) -> Tensor:
        """The product of all factors but one, for each of them: a quotient would be 0 / 0 where a factor is 0."""
        own = tuple(Var(f"o{n}") for n in range(len(reduce.axes)))
        axes = tuple(Axis(Var(f"k{n}"), a.extent) for n, a in enumerate(reduce.axes))
        inner = substitute(reduce.body, {a.var.name: k.var for a, k in zip(reduce.axes, axes, strict=True)})
        same = all_of(*(equal(o, k.var) for o, k in zip(own, axes, strict=True)))
        body = Reduce("prod", select(same, 1.0, transform(inner, self.moved)), axes)
        shape = (*t.shape, *(a.extent for a in axes))
        sources = {self.values[i.name].name: self.values[i.name] for i in t.inputs}
        inputs = tuple(sources[n] for n in sorted(body.buffers))
        return Tensor(self.buffer(shape, body.dtype), (*t.axes, *own), body, inputs)


def _wider(a: str, b: str) -> str:
    """The dtype of two floating-point ones that holds more; of two halves float32."""
    if a == b or ITEM_BYTES[a] != ITEM_BYTES[b]:
        return max(a, b, key=lambda dtype: ITEM_BYTES[dtype])
    return SUMMED[a]


def _positions(shape: Sequence[int]) -> tuple[Var, ...]:
    return tuple(Var(f"x{d}") for d in range(len(shape)))


def _flat(places: Sequence[Expr], axes: Sequence[Axis]) -> Expr:
    """Reduction variables as one number that counts the points through in order."""
    total: Expr = wrap(0)
    for place, axis in zip(places, axes, strict=True):
        total = total * axis.extent + place
    return total
