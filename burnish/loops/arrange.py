"""Definitions in the order of memory: tensors whose dimensions a layout permutes, with the permuted ones as their own.

What schedules such tensors then knows no layout: its last dimension is the one whose elements are neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from burnish.loops.contraction import contraction
from burnish.loops.expr import Buffer, Const, Expr, Load, Reduce, Var
from burnish.loops.layout import Layout, layout
from burnish.loops.simplify import simplify
from burnish.loops.sizes import is_size
from burnish.loops.tensor import Tensor, stages
from burnish.loops.traverse import loads, substitute, transform, walk


def in_memory_order(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], layouts: Mapping[str, Layout], between: bool = True
) -> tuple[list[Tensor], list[Tensor]]:
    """``inputs`` and ``outputs`` where those that ``layouts`` permutes have their dimensions in the order of memory.

    Stages ``between`` them of as many dimensions are arranged as an output is, or else an input::

        y[n, c, h, w] = x[n, c, h, w] * s[c]   ->   y[n, h, w, c] = x[n, h, w, c] * s[c]
    """
    usual = {own.rank: own for t in (*inputs, *outputs) if (own := layouts.get(t.name)) is not None and own.permutation}
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


def with_rows(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """A sum of products over pixels as one over rows: tensors whose dimensions but the last are those of the output
    have one in their place, so that neighbours in memory are neighbours of a matrix. Others are as they were::

        y[n, h, w, oc] = sum(x[n, h, w, ic] * weight[oc, ic])   ->   y[row, oc] = sum(x[row, ic] * weight[oc, ic])
    """
    pixels = outputs[0].shape[:-1]
    if len(pixels) < 2 or any(map(is_size, pixels)) or any(t.shape[:-1] != pixels for t in outputs):
        return [*inputs], [*outputs]
    if not any(_multiplies_rows(t) for t in stages(outputs)):
        return [*inputs], [*outputs]
    named = {t.name: t for t in stages(outputs) if t.shape[:-1] == pixels}
    row = Var("row")
    rest, digits = prod(pixels), list[Expr]()
    for extent in pixels:
        rest //= extent
        digits.append(row // rest % extent if digits else row // rest)

    def merged(buffer: Buffer) -> Buffer:
        return buffer.with_(shape=(prod(pixels), buffer.shape[-1])) if buffer.name in named else buffer

    def moved(e: Expr) -> Expr:
        if not isinstance(e, Load) or e.buffer.name not in named:
            return e
        index: Expr = Const(0)
        for extent, own in zip(pixels, e.indices, strict=False):
            index = index * extent + own
        return Load(merged(e.buffer), (index, e.indices[-1]))

    made: dict[str, Tensor] = {}
    for t in stages(outputs):
        axes, body = t.axes, None if t.body is None else transform(t.body, moved)
        if body is not None and t.name in named:
            body = substitute(body, {v.name: d for v, d in zip(t.axes, digits, strict=False)})
            axes = (row, t.axes[-1])
        if body is not None:
            buffer = merged(t.buffer)
            known = {v.name: n for v, n in zip(axes, buffer.shape, strict=True)}
            reduced = {a.var.name: a.extent for e in walk(body) if isinstance(e, Reduce) for a in e.axes}
            body = simplify(body, {**known, **{name: n for name, n in reduced.items() if isinstance(n, int)}})
        reads = tuple(made[i.name] for i in t.inputs)
        made[t.name] = replace(t, buffer=merged(t.buffer), axes=axes, body=body, inputs=reads)
    return [made.get(t.name, t) for t in inputs], [made[t.name] for t in outputs]


def _multiplies_rows(t: Tensor) -> bool:
    """Whether a stage is a sum of products of which the last axis is one factor's alone."""
    product = contraction(t)
    return product is not None and sum(t.axes[-1].name in f.variables for f in product.factors) == 1


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
