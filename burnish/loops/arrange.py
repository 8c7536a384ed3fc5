"""Definitions in the order of memory: tensors whose dimensions a layout permutes, with the permuted ones as their own.

What schedules such tensors then knows no layout: its last dimension is the one whose elements are neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from burnish.loops.contraction import contraction
from burnish.loops.expr import Binary, Buffer, Const, Expr, Load, Reduce, Var
from burnish.loops.layout import Layout, layout
from burnish.loops.simplify import simplify
from burnish.loops.sizes import is_size
from burnish.loops.tensor import Tensor, expanded, stages
from burnish.loops.traverse import loads, substitute, transform, walk


def in_memory_order(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], layouts: Mapping[str, Layout], between: bool = True
) -> tuple[list[Tensor], list[Tensor]]:
    """``inputs`` and ``outputs`` where those that ``layouts`` permutes have their dimensions in the order of memory.

    Stages ``between`` them of as many dimensions are arranged as an output is, or else an input::

        y[n, c, h, w] = x[n, c, h, w] * s[c]   ->   y[n, h, w, c] = x[n, h, w, c] * s[c]
    """
    given = [layouts[t.name] for t in (*inputs, *outputs) if t.name in layouts]
    usual = {each.rank: each for each in given if each.permutation}
    own: dict[str, Layout] = {}
    for t in stages(outputs):
        inner = between and t.body is not None and t not in outputs
        found = layouts.get(t.name, usual.get(len(t.shape)) if inner else None)
        if found is not None and found.permutation:
            own[t.name] = found

    def arranged(buffer: Buffer) -> Buffer:
        return buffer.with_(shape=own[buffer.name].physical_shape(buffer.shape)) if buffer.name in own else buffer

    def moved(e: Expr) -> Expr:
        if not isinstance(e, Load) or e.buffer.name not in own:
            return e
        return Load(arranged(e.buffer), tuple(e.indices[p.dim] for p in own[e.buffer.name].parts))

    made: dict[str, Tensor] = {}
    for t in stages(outputs):
        axes = tuple(t.axes[p.dim] for p in own[t.name].parts) if t.name in own and t.body is not None else t.axes
        body = None if t.body is None else transform(t.body, moved)
        reads = tuple(made[i.name] for i in t.inputs)
        made[t.name] = replace(t, buffer=arranged(t.buffer), axes=axes, body=body, inputs=reads)
    return [made.get(t.name, t) for t in inputs], [made[t.name] for t in outputs]


def with_digits(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """A sum of products that reads dimensions of its output as quotients and remainders, with these as dimensions: the
    groups of a convolution, the phases of a transposed one. Memory is the same::

        y[row, oc] = sum(x[row, oc // 32 * 16 + ic] * weight[oc, ic])   ->   y[row, group, o] = ...
    """
    shape = outputs[0].shape
    anchors = [t for t in stages(outputs) if contraction(t) is not None]
    if len(anchors) != 1 or any(t.shape != shape for t in outputs) or any(map(is_size, shape)):
        return [*inputs], [*outputs]
    sizes = _divisors(outputs[0], anchors[0])
    if not sizes:
        return [*inputs], [*outputs]
    split = [(n // sizes[d], sizes[d]) if d in sizes else (n,) for d, n in enumerate(shape)]

    def places(index: Sequence[Expr]) -> list[Expr]:
        return [e for d, i in enumerate(index) for e in ((i // sizes[d], i % sizes[d]) if d in sizes else (i,))]

    def parts(axes: Sequence[Var]) -> tuple[tuple[Var, ...], dict[str, Expr]]:
        own: list[Var] = []
        values: dict[str, Expr] = {}
        for d, v in enumerate(axes):
            if d in sizes:
                over, under = Var(f"{v.name}.over"), Var(f"{v.name}.in")
                own += [over, under]
                values[v.name] = over * sizes[d] + under
            else:
                own.append(v)
        return tuple(own), values

    named = {t.name for t in stages(outputs) if t.shape == shape}
    return _reshaped(inputs, outputs, named, tuple(n for part in split for n in part), places, parts)


def _divisors(output: Tensor, anchor: Tensor) -> dict[int, int]:
    """Dimensions of an output by a divisor of their extent, by which alone a sum of products behind it divides them."""
    known = {t.name: t for t in stages([output]) if t.body is not None and t is not anchor}
    read: list[Expr] = [*output.axes] if output is anchor else []
    if output is not anchor and output.body is not None:
        found = {x for x in loads(expanded(output.body, known)) if x.buffer.name == anchor.name}
        read = [*found.pop().indices] if len(found) == 1 else []
    assert anchor.body is not None
    if not read:
        return {}
    body = substitute(anchor.body, {v.name: i for v, i in zip(anchor.axes, read, strict=True)})
    divided: dict[str, set[int]] = {}
    for e in (*walk(body), *(part for i in read for part in walk(i))):
        if isinstance(e, Binary) and e.op in ("//", "%") and isinstance(e.a, Var) and isinstance(e.b, Const):
            divided.setdefault(e.a.name, set()).add(int(e.b.value))
    sizes = {d: next(iter(divided[v.name])) for d, v in enumerate(output.axes) if len(divided.get(v.name, ())) == 1}
    return {d: n for d, n in sizes.items() if 1 < n < output.shape[d] and output.shape[d] % n == 0}


def with_rows(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """A sum of products over pixels as one over rows: the leading dimensions of the output that one factor alone has
    are one, so that neighbours in memory are neighbours of a matrix; also those of tensors that have the same ones::

        y[n, h, w, oc] = sum(x[n, h, w, ic] * weight[oc, ic])   ->   y[row, oc] = sum(x[row, ic] * weight[oc, ic])
    """
    shape = outputs[0].shape
    count = max((_leading(t) for t in stages(outputs) if t.shape == shape), default=0)
    pixels = shape[:count]
    if count < 2 or any(map(is_size, pixels)) or any(t.shape != shape for t in outputs):
        return [*inputs], [*outputs]
    row, digits, rest = Var("row"), list[Expr](), prod(pixels)
    for extent in pixels:
        rest //= extent
        digits.append(row // rest % extent if digits else row // rest)

    def places(index: Sequence[Expr]) -> list[Expr]:
        joined: Expr = Const(0)
        for extent, own in zip(pixels, index, strict=False):
            joined = joined * extent + own
        return [joined, *index[count:]]

    def parts(axes: Sequence[Var]) -> tuple[tuple[Var, ...], dict[str, Expr]]:
        return (row, *axes[count:]), {v.name: d for v, d in zip(axes, digits, strict=False)}

    named = {t.name for t in stages(outputs) if t.shape[:count] == pixels and len(t.shape) == len(shape)}
    return _reshaped(inputs, outputs, named, (prod(pixels),), places, parts, count)


def _leading(t: Tensor) -> int:
    """Number of leading dimensions of a sum of products one factor alone has, and another has the last."""
    product = contraction(t)
    if product is None:
        return 0
    for factor, other in (product.factors, product.factors[::-1]):
        own = factor.variables - other.variables
        alone = [n == 1 or v.name in own for v, n in zip(t.axes, t.shape, strict=True)]
        if alone[0] and t.axes[-1].name in other.variables - factor.variables:
            return alone.index(False) if False in alone else 0
    return 0


def _reshaped(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    named: Collection[str],
    extents: tuple[int, ...],
    places: Callable[[Sequence[Expr]], list[Expr]],
    parts: Callable[[Sequence[Var]], tuple[tuple[Var, ...], dict[str, Expr]]],
    count: int | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors ``named`` with ``extents`` in the place of their first ``count`` dimensions (None: all): the same
    elements in the same order. ``places``: an old index as a new one. ``parts``: new axes, and the old by them.
    """

    def reshaped(buffer: Buffer) -> Buffer:
        if buffer.name not in named:
            return buffer
        return buffer.with_(shape=(*extents, *(() if count is None else buffer.shape[count:])))

    def moved(e: Expr) -> Expr:
        if not isinstance(e, Load) or e.buffer.name not in named:
            return e
        return Load(reshaped(e.buffer), tuple(places(e.indices)))

    made: dict[str, Tensor] = {}
    for t in stages(outputs):
        axes, body, buffer = t.axes, None if t.body is None else transform(t.body, moved), reshaped(t.buffer)
        if body is not None and t.name in named:
            axes, values = parts(t.axes)
            body = substitute(body, values)
        if body is not None:
            known = {v.name: n for v, n in zip(axes, buffer.shape, strict=True)}
            reduced = {a.var.name: a.extent for e in walk(body) if isinstance(e, Reduce) for a in e.axes}
            body = simplify(body, {**known, **{name: n for name, n in reduced.items() if isinstance(n, int)}})
        reads = tuple(made[i.name] for i in t.inputs)
        made[t.name] = replace(t, buffer=buffer, axes=axes, body=body, inputs=reads)
    return [made.get(t.name, t) for t in inputs], [made[t.name] for t in outputs]


def factor_orders(outputs: Sequence[Tensor], among: Collection[str]) -> dict[str, Layout]:
    """Layouts of factors of products ``among`` inputs that hold what is summed in the order in which the other factor
    does, behind all other dimensions; none for those that are in this order::

        sum(x[n, h + kh, w + kw, ic] * weight[oc, ic, kh, kw], over=(ic, kh, kw))   ->   weight as [oc, kh, kw, ic]

    Where neighbours of the other factor belong to different sums, those of the weight do, too, as in depthwise
    convolutions.
    """
    found: dict[str, Layout] = {}
    for t in stages(outputs):
        product = contraction(t)
        if product is None or len(product.factors) != 2:
            continue
        summed = [a.var.name for a in product.reduced]
        for factor, other in (product.factors, product.factors[::-1]):
            weights, read = [*loads(factor)], [*loads(other)]
            if len(weights) != 1 or len(read) != 1 or weights[0].buffer.name not in among:
                continue
            indices = weights[0].indices
            if len(indices) > 26 or not all(isinstance(i, Var) for i in indices) or len({*indices}) != len(indices):
                continue
            own_axis = t.axes[-1] if t.axes else None
            if own_axis in indices and read[0].indices and own_axis == read[0].indices[-1]:
                order = [*(d for d, i in enumerate(indices) if i != own_axis), indices.index(own_axis)]
                _add(found, weights[0].buffer.name, order)
                continue
            place = {n: d for d, i in enumerate(read[0].indices) for n in summed if n in i.variables}
            last = [d for d, i in enumerate(indices) if isinstance(i, Var) and i.name in place]
            order = [d for d in range(len(indices)) if d not in last]
            order += sorted(last, key=lambda d: place[str(indices[d])])
            _add(found, weights[0].buffer.name, order)
    return found


def _add(found: dict[str, Layout], name: str, order: Sequence[int]) -> None:
    own = layout("".join(chr(ord("A") + d) for d in order))
    if own.permutation:
        found[name] = own
