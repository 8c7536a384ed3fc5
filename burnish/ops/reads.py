"""Read analysis of a definition: which elements of its inputs an element, or a box, of an output reads (with halo).

Intervals go through index expressions, for many boxes at once: an interval is a pair of vectors, the first and one past
the last index of each box.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from burnish.loops.expr import Binary, Cast, Const, Expr, Load, Reduce, Select, Var
from burnish.loops.linear import to_linear
from burnish.loops.simplify import simplify
from burnish.loops.sizes import greatest
from burnish.loops.tensor import Tensor, placeholder, stages
from burnish.loops.traverse import free_vars, loads, substitute
from burnish.ops.operator import Nested, Operator, TensorType

Find = Callable[[str], Operator]
Ints = NDArray[np.int64]
Interval = tuple[Ints, Ints]
_SMALL = {"bool": 2, "uint8": 1 << 8, "uint16": 1 << 16}  # how many values numbers have that may be indices
MAX_BOXES = 16  # of one tensor; more become their hull


# --- elements ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Access:
    """One element read by an output element: indices in terms of the output's axes and of reduction variables."""

    source: Tensor
    indices: tuple[Expr, ...]


def accesses(output: Tensor) -> list[Access]:
    """Every read of a placeholder that an element of ``output`` depends on, inner stages substituted away.

    Reduction variables of inner stages are renamed ``stage.variable``. Reads in indices are included.
    """
    return _expanded(output)[0]


def bodies(output: Tensor) -> list[Expr]:
    """The expressions that an element of ``output`` is computed by: its own body, bare of a reduction, and those of
    inner stages at every place that is read, over the variables of :func:`accesses`.
    """
    return _expanded(output)[1]


def _expanded(output: Tensor) -> tuple[list[Access], list[Expr]]:
    producers = {t.name: t for t in stages([output])}
    found: dict[tuple[str, tuple[Expr, ...]], Access] = {}
    computed = [_renamed(output)]
    met = set[Load]()
    waiting = [*reversed(loads(computed[0])), *_read_by_axes(output)]
    while waiting:
        load = waiting.pop()
        if load in met:
            continue
        met.add(load)
        t = producers[load.buffer.name]
        if t.body is None:
            found[t.name, load.indices] = Access(t, load.indices)
        else:
            index = dict(zip((v.name for v in t.axes), load.indices, strict=True))
            computed.append(substitute(_renamed(t), index))
            waiting.extend(reversed(loads(computed[-1])))
            waiting.extend(x for own in _read_by_axes(t) for x in loads(substitute(own, index)))
    return list(found.values()), computed


def _read_by_axes(t: Tensor) -> list[Load]:
    """Loads in a reduction's bounds, which say between which positions it runs."""
    axes = t.body.axes if isinstance(t.body, Reduce) else ()
    fresh: dict[str, Expr] = {a.var.name: Var(f"{t.name}.{a.var.name}") for a in axes}
    return [x for axis in axes for end in axis.ends for x in loads(substitute(end, fresh))]


def _renamed(t: Tensor) -> Expr:
    """The body of ``t``, bare of its reduction, whose variables are prefixed by the stage's name."""
    assert t.body is not None
    if not isinstance(t.body, Reduce):
        return t.body
    fresh: dict[str, Expr] = {a.var.name: Var(f"{t.name}.{a.var.name}") for a in t.body.axes}
    return substitute(t.body.body, fresh)


# --- boxes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Boxes:
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


Region = tuple[Boxes, ...]


@dataclass(frozen=True)
class OperandAccess:
    """One access: the operand's number and its index expressions, in axes of an output and reduction variables."""

    operand: int
    output: int
    indices: tuple[Expr, ...]


@dataclass(frozen=True, eq=False)
class ReadMap:
    """Reads of an operator where it is applied: accesses, the axes of its outputs, and extents of its reductions.

    ``opaque``: it has no definition; everything is read for anything.
    """

    accesses: tuple[OperandAccess, ...]
    axes: tuple[tuple[str, ...], ...]
    extents: Mapping[str, int]
    outputs: tuple[Tensor, ...]
    opaque: bool


def defined(find: Find, name: str, attributes: Nested, types: tuple[TensorType, ...]) -> tuple[Tensor, ...]:
    """The outputs of an operator over placeholders ``x0``, ``x1``…; the last stages are called ``y``, ``y.1``…"""
    given = [placeholder(shape, dtype, f"x{i}") for i, (shape, dtype) in enumerate(types)]
    return find(name).define("y", given, dict(attributes))


@lru_cache(maxsize=4096)
def read_map(find: Find, name: str, attributes: Nested, types: tuple[TensorType, ...]) -> ReadMap:
    """The read map of an operator whose inputs have these types."""
    outputs = defined(find, name, attributes, types)
    if find(name).extern is not None:
        return ReadMap((), ((),) * len(outputs), {}, outputs, True)
    found = [
        OperandAccess(int(a.source.name[1:]), number, a.indices)
        for number, t in enumerate(outputs)
        for a in accesses(t)
    ]
    extents = {
        f"{t.name}.{a.var.name}": greatest(a.extent)
        for t in stages(outputs)
        if isinstance(t.body, Reduce)
        for a in t.body.axes
    }
    axes = tuple(tuple(v.name for v in t.axes) for t in outputs)
    return ReadMap(tuple(found), axes, extents, outputs, False)


def read_regions(
    known: ReadMap, shapes: Sequence[Sequence[int]], wanted: Mapping[int, Region], narrowed: Mapping[str, Interval]
) -> dict[int, Region]:
    """Operand number -> the region that is read for the ``wanted`` regions of outputs, by the output's number.

    ``narrowed``: intervals of reduction variables (``y.k``); the others run over their extents.
    """
    columns = next(iter(wanted.values()))[0].low.shape[1]
    if known.opaque:
        return {i: (whole(shape, columns),) for i, shape in enumerate(shapes)}
    found: dict[int, list[Boxes]] = {}
    full = {name: (np.zeros(columns, np.int64), np.full(columns, n)) for name, n in known.extents.items()}
    for read in known.accesses:
        for box in wanted.get(read.output, ()):
            names = known.axes[read.output]
            own = {name: (box.low[d], box.high[d]) for d, name in enumerate(names)}
            found.setdefault(read.operand, []).append(
                _read(read.indices, shapes[read.operand], {**full, **narrowed, **own}, columns)
            )
    return {operand: merged(boxes) for operand, boxes in found.items()}


def _read(indices: Sequence[Expr], shape: Sequence[int], at: Mapping[str, Interval], columns: int) -> Boxes:
    low, high = _reached(indices, shape, at, columns)
    empty = np.zeros(columns, bool)
    for start, stop in at.values():
        empty |= start >= stop
    high[:, empty] = low[:, empty]
    points = np.ones(columns, np.int64)
    for name in {v for index in indices for v in free_vars(index)} & at.keys():
        points *= np.maximum(at[name][1] - at[name][0], 0)
    box = boxes_between(low, high)
    return Boxes(low, high, np.minimum(points, box.touched))


def _reached(indices: Sequence[Expr], shape: Sequence[int], at: Mapping[str, Interval], columns: int) -> Interval:
    """First and one past the last of the indices [dimensions, columns] in a tensor; all that depend on data."""
    low, high = np.zeros((len(shape), columns), np.int64), np.empty((len(shape), columns), np.int64)
    for d, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        span = interval(index, at)
        if span is None:
            high[d] = extent
        else:
            low[d], high[d] = (np.minimum(np.maximum(end, 0), extent) for end in span)
    return low, high


def interval(e: Expr, at: Mapping[str, Interval]) -> Interval | None:
    """First and one past the last value of an index expression; None where it depends on data."""
    if isinstance(e, Var):
        return at.get(e.name)
    terms, const = to_linear(e)
    columns = _columns(at)
    low, last = np.full(columns, const, np.int64), np.full(columns, const, np.int64)
    for atom, factor in terms.items():
        span = _atom(atom, at)
        if span is None:
            return None
        ends = (span[0] * factor, (span[1] - 1) * factor)
        low, last = low + (ends[0] if factor > 0 else ends[1]), last + (ends[1] if factor > 0 else ends[0])
    return low, last + 1


def _columns(at: Mapping[str, Interval]) -> int:
    return next(iter(at.values()))[0].shape[0] if at else 1


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
        case Select(_, a, b):
            left, right = interval(a, at), interval(b, at)
            if left is None or right is None:
                return None
            return np.minimum(left[0], right[0]), np.maximum(left[1], right[1])
        case Cast(_, value) if value.dtype in _SMALL:
            zero = np.zeros(_columns(at), np.int64)
            return zero, zero + _SMALL[value.dtype]
    return None


def stage_boxes(output: Tensor, wanted: Boxes, terms: Sequence[Interval] = ()) -> dict[str, Boxes]:
    """By name, the hull of what is needed of every stage and placeholder for boxes ``wanted`` of ``output``; of its
    reduction only ``terms``, unless there are none. What is read only beyond a tensor's ends needs its nearest element.
    """
    needed, columns = {output.name: wanted}, wanted.low.shape[1]
    for t in reversed(stages([output])):
        if t.body is None or t.name not in needed:
            continue
        own = needed[t.name]
        at = {v.name: (own.low[d], own.high[d]) for d, v in enumerate(t.axes)}
        ranges = {v.name: extent for v, extent in zip(t.axes, t.shape, strict=True)}
        if isinstance(t.body, Reduce):
            full = [(np.zeros(columns, np.int64), np.full(columns, greatest(a.extent))) for a in t.body.axes]
            chosen = terms if t is output and terms else full
            at |= {a.var.name: span for a, span in zip(t.body.axes, chosen, strict=True)}
            ranges |= {a.var.name: a.extent for a in t.body.axes}
        shapes = {source.name: source.shape for source in t.inputs}
        for load in loads(t.body):
            name, shape = load.buffer.name, shapes[load.buffer.name]
            low, high = _reached([simplify(index, ranges) for index in load.indices], shape, at, columns)
            extents = np.array(shape, np.int64).reshape(-1, 1)
            low = np.maximum(np.minimum(low, extents - 1), 0)
            high = np.minimum(np.maximum(high, low + 1), extents)
            if name in needed:
                low, high = np.minimum(low, needed[name].low), np.maximum(high, needed[name].high)
            needed[name] = boxes_between(low, high)
    return needed


def whole(shape: Sequence[int], columns: int) -> Boxes:
    """All of a tensor, in every column."""
    high = np.repeat(np.array(shape, np.int64)[:, None], columns, axis=1).reshape(len(shape), columns)
    return boxes_between(np.zeros_like(high), high)


def boxes_between(low: Ints, high: Ints) -> Boxes:
    """Boxes [dimensions, columns] of which all elements are read."""
    return Boxes(low, high, np.maximum(high - low, 0).prod(axis=0))


def merged(boxes: Sequence[Boxes]) -> Region:
    """Boxes without those that lie within another, or are empty; those that overlap become their hull."""
    kept: list[Boxes] = []
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


def hull(boxes: Sequence[Boxes]) -> Boxes:
    """The smallest box around boxes, column by column; empty ones do not count."""
    big = np.iinfo(np.int64).max
    lows = [np.where(box.volume > 0, box.low, big) for box in boxes]
    highs = [np.where(box.volume > 0, box.high, -1) for box in boxes]
    low, high = np.minimum.reduce(lows), np.maximum.reduce(highs)
    low = np.where(high < 0, 0, low)
    high = np.maximum(high, low)
    volume = np.maximum(high - low, 0).prod(axis=0)
    return Boxes(low, high, np.minimum(volume, sum(box.touched for box in boxes)))


def _contains(outer: Boxes, inner: Boxes) -> bool:
    within = (outer.low <= inner.low).all(axis=0) & (inner.high <= outer.high).all(axis=0)
    return bool((within | (inner.volume == 0)).all() and (outer.touched >= inner.touched).all())


def _overlap(a: Boxes, b: Boxes) -> bool:
    common = np.minimum(a.high, b.high) - np.maximum(a.low, b.low)
    return bool((np.maximum(common, 0).prod(axis=0) > 0).any()) if common.shape[0] else True


def volume(region: Region) -> Ints:
    """Elements of a region, by columns."""
    return sum((box.volume for box in region[1:]), region[0].volume)


def touched(region: Region) -> Ints:
    """Elements of a region that are read at most, by columns."""
    return sum((box.touched for box in region[1:]), region[0].touched)
