"""Definitions in the order of memory: tensors whose dimensions a layout permutes, with the permuted ones as their own.

What schedules such tensors then knows no layout: its last dimension is the one whose elements are neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from burnish.loops.contraction import contraction
from burnish.loops.expr import Buffer, Expr, Load, Var
from burnish.loops.layout import Layout, layout
from burnish.loops.tensor import Tensor, stages
from burnish.loops.traverse import loads, transform


def in_memory_order(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], layouts: Mapping[str, Layout]
) -> tuple[list[Tensor], list[Tensor]]:
    """``inputs`` and ``outputs`` where those that ``layouts`` permutes have their dimensions in the order of memory.

    Stages between them of as many dimensions are arranged as an output is, or else an input::

        y[n, c, h, w] = x[n, c, h, w] * s[c]   ->   y[n, h, w, c] = x[n, h, w, c] * s[c]
    """
    usual = {own.rank: own for t in (*inputs, *outputs) if (own := layouts.get(t.name)) is not None and own.permutation}
    own: dict[str, Layout] = {}
    for t in stages(outputs):
        between = None if t.body is None or t in outputs else usual.get(len(t.shape))
        found = layouts.get(t.name, between)
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
