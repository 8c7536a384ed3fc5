"""Interval analysis of index expressions: which boxes of an operator's inputs a box of its output reads (with halo).

Many boxes are asked for at once: an interval is a pair of vectors, the first and one past the last index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from burnish import ops
from burnish.graph.graph import Attribute, Node, TensorType
from burnish.loops.expr import Binary, Const, Expr, Reduce, Var
from burnish.loops.linear import to_linear
from burnish.loops.tensor import Tensor, placeholder, stages
from burnish.loops.traverse import free_vars
from burnish.ops.classify import accesses

Ints = NDArray[np.int64]
Interval = tuple[Ints, Ints]
MAX_BOXES = 16  # of one tensor; more become their hull


@dataclass(frozen=True, eq=False)
class Box:
    """Boxes of one tensor, a column each: ``low``, ``high`` [dimensions, columns]. ``touched`` [columns]: elements that
    are read at most, fewer than it holds where an index depends on data (the rows of an embedding).
    """

    low: Ints
    high: Ints
    touched: Ints

    @property
    def volume(self) -> Ints:
        """Elements in each column's box."""
        return np.maximum(self.high - self.low, 0).prod(axis=0)


Region = tuple[Box, ...]


@dataclass(frozen=True)
class Read:
    """Operand access: the operand's number and its index expressions, in axes of an output and reduction variables."""

    operand: int
    output: int
    indices: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class Definition:
    """Access pattern of an applied operator: reads, the axes of its outputs, and extents of its reductions."""

    reads: tuple[Read, ...]
    axes: tuple[tuple[str, ...], ...]
    extents: Mapping[str, int]
    outputs: tuple[Tensor, ...]
    opaque: bool


def definition(node: Node, types: Sequence[TensorType]) -> Definition:
    """The definition of a node whose inputs have these types. Of an opaque operator everything is read for anything."""
    return _definition(node.op, tuple(types), tuple(sorted(node.attrs.items())), len(node.outputs))


@lru_cache(maxsize=4096)
def _definition(
    op: str, types: tuple[TensorType, ...], attrs: tuple[tuple[str, Attribute], ...], results: int
) -> Definition:
    inputs = [placeholder(t.shape, t.dtype, f"x{i}") for i, t in enumerate(types)]
    outputs = ops.operator_named(op).define("y", inputs, dict(attrs))
    if ops.is_opaque(op):
        return Definition((), ((),) * results, {}, tuple(outputs), True)
    position = {t.name: i for i, t in enumerate(inputs)}
    reads = [Read(position[a.source.name], number, a.indices) for number, t in enumerate(outputs) for a in accesses(t)]
    extents = {
        f"{t.name}.{a.var.name}": int(a.extent)
        for t in stages(outputs)
        if isinstance(t.body, Reduce)
        for a in t.body.axes
    }
    axes = tuple(tuple(v.name for v in t.axes) for t in outputs)
    return Definition(tuple(reads), axes, extents, tuple(outputs), False)


def read_regions(
    known: Definition, types: Sequence[TensorType], wanted: Mapping[int, Region], narrowed: Mapping[str, Interval]
) -> dict[int, Region]:
    """Operand number -> the region that is read for the ``wanted`` regions of outputs, by the output's number.

    ``narrowed``: intervals of reduction variables (``y.k``); the others run over their extents.
    """
    columns = next(iter(wanted.values()))[0].low.shape[1]
    if known.opaque:
        return {i: (whole(t.shape, columns),) for i, t in enumerate(types)}
    found: dict[int, list[Box]] = {}
    full = {name: (np.zeros(columns, np.int64), np.full(columns, n)) for name, n in known.extents.items()}
    for read in known.reads:
        for box in wanted.get(read.output, ()):
            names = known.axes[read.output]
            own = {name: (box.low[d], box.high[d]) for d, name in enumerate(names)}
            found.setdefault(read.operand, []).append(
                _read(read.indices, types[read.operand].shape, {**full, **narrowed, **own}, columns)
            )
    return {operand: merged(boxes) for operand, boxes in found.items()}


def _read(indices: Sequence[Expr], shape: Sequence[int], at: Mapping[str, Interval], columns: int) -> Box:
    low, high = np.zeros((len(shape), columns), np.int64), np.zeros((len(shape), columns), np.int64)
    names: set[str] = set()
    empty = np.zeros(columns, bool)
    for start, stop in at.values():
        empty |= start >= stop
    for d, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        names |= free_vars(index)
        span = interval(index, at)
        low[d] = 0 if span is None else np.clip(span[0], 0, extent)
        high[d] = extent if span is None else np.clip(span[1], 0, extent)
    high[:, empty] = low[:, empty]
    points = np.ones(columns, np.int64)
    for name in names & at.keys():
        points *= np.maximum(at[name][1] - at[name][0], 0)
    box = Box(low, high, points)
    return Box(low, high, np.minimum(points, box.volume))


def interval(e: Expr, at: Mapping[str, Interval]) -> Interval | None:
    """First and one past the last value of an index expression; None where it depends on data."""
    terms, const = to_linear(e)
    columns = next(iter(at.values()))[0].shape[0] if at else 1
    low, last = np.full(columns, const, np.int64), np.full(columns, const, np.int64)
    for atom, factor in terms.items():
        span = _atom(atom, at)
        if span is None:
            return None
        ends = (span[0] * factor, (span[1] - 1) * factor)
        low, last = low + (ends[0] if factor > 0 else ends[1]), last + (ends[1] if factor > 0 else ends[0])
    return low, last + 1


def _atom(e: Expr, at: Mapping[str, Interval]) -> Interval | None:
    match e:
        case Var(name):
            return at.get(name)
        case Binary("//" | "%" as op, a, Const(c, _)) if c > 0:
            span = interval(a, at)
            if span is None:
                return None
            first, last = span[0] // int(c), (span[1] - 1) // int(c)
            if op == "//":
                return first, last + 1
            same = first == last
            low, high = span[0] - first * int(c), span[1] - first * int(c)
            return np.where(same, low, 0), np.where(same, high, int(c))
        case Binary("min" | "max" as op, a, b):
            left, right = interval(a, at), interval(b, at)
            if left is None or right is None:
                return None
            pick = np.minimum if op == "min" else np.maximum
            return pick(left[0], right[0]), pick(left[1], right[1])
    return None


# --- regions ----------------------------------------------------------------------------------------------------------


def whole(shape: Sequence[int], columns: int) -> Box:
    """All of a tensor, in every column."""
    high = np.repeat(np.array(shape, np.int64)[:, None], columns, axis=1).reshape(len(shape), columns)
    box = Box(np.zeros_like(high), high, np.zeros(columns, np.int64))
    return Box(box.low, box.high, box.volume)


def merged(boxes: Sequence[Box]) -> Region:
    """Boxes without those that lie within another, or are empty; those that overlap become their hull."""
    kept: list[Box] = []
    for box in boxes:
        for other in list(kept):
            if _contains(other, box):
                break
            if _contains(box, other):
                kept.remove(other)
            elif _overlap(box, other):
                kept.remove(other)
                box = hull((box, other))
        else:
            kept.append(box)
    filled = [box for box in kept if box.volume.any()]
    if len(filled) > MAX_BOXES:
        filled = [hull(filled)]
    return tuple(filled or kept[:1])


def hull(boxes: Sequence[Box]) -> Box:
    """The smallest box around boxes, column by column; empty ones do not count."""
    big = np.iinfo(np.int64).max
    lows = [np.where(box.volume > 0, box.low, big) for box in boxes]
    highs = [np.where(box.volume > 0, box.high, -1) for box in boxes]
    low, high = np.minimum.reduce(lows), np.maximum.reduce(highs)
    low = np.where(high < 0, 0, low)
    high = np.maximum(high, low)
    volume = np.maximum(high - low, 0).prod(axis=0)
    return Box(low, high, np.minimum(volume, sum(box.touched for box in boxes)))


def _contains(outer: Box, inner: Box) -> bool:
    within = (outer.low <= inner.low).all(axis=0) & (inner.high <= outer.high).all(axis=0)
    return bool((within | (inner.volume == 0)).all() and (outer.touched >= inner.touched).all())


def _overlap(a: Box, b: Box) -> bool:
    common = np.minimum(a.high, b.high) - np.maximum(a.low, b.low)
    return bool((np.maximum(common, 0).prod(axis=0) > 0).any()) if common.shape[0] else True


def volume(region: Region) -> Ints:
    """Elements of a region, by columns."""
    return sum((box.volume for box in region[1:]), region[0].volume)


def touched(region: Region) -> Ints:
    """Elements of a region that are read at most, by columns."""
    return sum((box.touched for box in region[1:]), region[0].touched)
