"""Contractions as matrix products: their factors, and where the output nest reads the sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burnish.kernels.task import KernelTask
from burnish.loops.contraction import contraction
from burnish.loops.expr import Expr, Load, Reduce, Var
from burnish.loops.linear import to_linear
from burnish.loops.simplify import simplify
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import free_vars, loads, substitute

HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class MatrixProduct:
    """``anchor[..., n] = sum over k of left[...] * right[..., n]``: only ``right`` depends on the last axis, ``n``.

    ``columns``: the output's axes that make up ``n``; ``rows`` those of the other anchor axes that do not select
    ``right``, ``batch`` those that do. The last of ``columns`` and of ``rows`` is the longest that advances its anchor
    axis in steps of 1. Axes are positions in the output's shape. ``maps``: those of :func:`index_maps`.
    """

    anchor: Tensor
    left: Load
    right: Load
    depth: int
    columns: tuple[int, ...]
    rows: tuple[int, ...]
    batch: tuple[int, ...]
    maps: tuple[Mapping[int, int], ...]


def product(task: KernelTask) -> MatrixProduct | None:
    """The task's only contraction as a :class:`MatrixProduct`; None where it has another form.

    Outputs behind the first are made of that and of inputs, of all at their own index.
    """
    anchor = task.anchor()
    if (
        anchor is None
        or not all(_follows(t, task.outputs[0]) for t in task.outputs[1:])
        or sum(isinstance(t.body, Reduce) for t in task.stages()) != 1
    ):
        return None
    factors = _factors(anchor)
    maps = index_maps(task, anchor)
    if factors is None or maps is None:
        return None
    left, right, depth = factors
    shape = task.outputs[0].shape
    selected = set().union(*(free_vars(i) for i in right.indices))
    columns = in_order(maps[-1], shape)
    batch: list[int] = []
    rows: dict[int, int] = {}
    for axis, terms in zip(anchor.axes[:-1], maps[:-1], strict=True):
        if axis.name in selected:
            batch.extend(in_order(terms, shape) or ())
        else:
            rows |= terms
    if not columns or len({*columns, *batch, *rows}) != len(columns) + len(batch) + len(rows):
        return None
    ordered = in_order(rows, shape)
    if ordered is None:
        return None
    return MatrixProduct(anchor, left, right, depth, columns, ordered, tuple(batch), tuple(maps))


def _follows(t: Tensor, first: Tensor) -> bool:
    """Whether an output is computed from the first one and from inputs, in no other order."""
    if t.shape != first.shape or t.body is None or isinstance(t.body, Reduce):
        return False
    seen = [i for i in t.inputs if i.body is not None and i is not first]
    own = all(x.indices == t.axes for x in loads(t.body) if len(x.indices) == len(t.axes))
    return own and all(_follows(i, first) for i in seen)


def _factors(anchor: Tensor) -> tuple[Load, Load, int] | None:
    """(left, right, depth) of a product of two float32 loads over one reduction axis, or of two words of bytes.

    Halves may be cast to float32.
    """
    found = contraction(anchor)
    if found is None or not found.in_lanes or len(found.reduced) != 1 or not anchor.axes:
        return None
    a, b = found.operands
    stored = ("int32",) if found.words else ("float32", *HALVES)
    if a is None or b is None or not {a.dtype, b.dtype} <= {*stored}:
        return None
    n, depth = anchor.axes[-1].name, found.reduced[0].extent
    inside = [any(n in free_vars(i) for i in x.indices) for x in (a, b)]
    if inside == [False, True]:
        return a, b, depth
    return (b, a, depth) if inside == [True, False] else None


def index_maps(task: KernelTask, anchor: Tensor) -> list[dict[int, int]] | None:
    """For each axis of the anchor: output axis -> coefficient, where the output reads it; None if not so simple."""
    out = task.outputs[0]
    if out is anchor:
        return [{d: 1} if extent > 1 else {} for d, extent in enumerate(out.shape)]
    producers = {t.name: t for t in task.stages()}
    assert out.body is not None
    found = set(_reads(out.body, producers, anchor.name))
    if len(found) != 1:
        return None
    ranges = {v.name: extent for v, extent in zip(out.axes, out.shape, strict=True)}
    position = {v.name: d for d, v in enumerate(out.axes)}
    maps = []
    for index in found.pop():
        terms, const = to_linear(simplify(index, ranges))
        if const or not all(isinstance(atom, Var) and atom.name in position for atom in terms):
            return None
        maps.append({position[atom.name]: c for atom, c in terms.items() if isinstance(atom, Var)})
    return maps


def _reads(e: Expr, producers: Mapping[str, Tensor], anchor: str) -> list[tuple[Expr, ...]]:
    """The indices at which ``e`` reads the anchor, through the stages between."""
    found: list[tuple[Expr, ...]] = []
    for load in loads(e):
        t = producers.get(load.buffer.name)
        if load.buffer.name == anchor:
            found.append(load.indices)
        elif t is not None and t.body is not None:
            values = {v.name: i for v, i in zip(t.axes, load.indices, strict=True)}
            found.extend(_reads(substitute(t.body, values), producers, anchor))
    return found


def in_order(terms: Mapping[int, int], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Output axes with the longest of coefficient 1 last; None where there are axes but none of coefficient 1."""
    unit = [d for d, c in terms.items() if c == 1]
    if not terms:
        return ()
    if not unit:
        return None
    last = max(unit, key=lambda d: (shape[d], d))
    return (*sorted(d for d in terms if d != last), last)
