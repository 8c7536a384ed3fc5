"""The oracle: tensor definitions evaluated with NumPy, vectorised over the index space block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from burnish.errors import InputError, VerificationError
from burnish.loops.expr import FLOATS, Binary, Buffer, Call, Cast, Const, Expr, Load, Not, Reduce, Select, Var, all_of
from burnish.loops.loaded import LoadedExtent, is_loaded
from burnish.loops.numeric import FUNCTIONS, OPERATORS, REDUCERS, convert, numpy_dtype
from burnish.loops.onepoint import demanded, padding, scattered_axes
from burnish.loops.reduction import identity
from burnish.loops.tensor import Tensor, stages
from burnish.loops.traverse import free_vars, substitute

BLOCK = 1 << 23  # elements of the largest array made at once: 64 MB in float64


def evaluate(
    outputs: Sequence[Tensor], feeds: Mapping[str, np.ndarray], dtype_override: str | None = None
) -> list[np.ndarray]:
    """The values of ``outputs`` when placeholders hold ``feeds`` (by name).

    ``dtype_override="float64"`` computes and returns all floating-point values in float64: the reference that rounding
    errors are measured against. Raises InputError for a missing or ill-typed feed, VerificationError for an access out
    of bounds that a ``Select`` does not guard.
    """
    order = stages(outputs)
    names = [t.name for t in order]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise VerificationError(f"evaluate: several tensors are named {repeated}; names must be unique")
    values: dict[str, np.ndarray] = {}
    with np.errstate(all="ignore"):
        for t in order:
            if t.body is None:
                values[t.name] = _feed(t.buffer, feeds, dtype_override)
            else:
                values[t.name] = _stage(t, t.body, values, dtype_override)
    return [values[t.name] for t in outputs]


def _dtype(name: str, override: str | None) -> np.dtype:
    return numpy_dtype(override if override and name in FLOATS else name)


def _feed(buffer: Buffer, feeds: Mapping[str, np.ndarray], override: str | None) -> np.ndarray:
    if buffer.name not in feeds:
        raise InputError(f"evaluate: no array for input '{buffer.name}'; given: {', '.join(feeds) or 'none'}")
    array = np.asarray(feeds[buffer.name])
    if array.shape != buffer.shape or (array.dtype != numpy_dtype(buffer.dtype) and buffer.dtype not in FLOATS):
        raise InputError(
            f"evaluate: input '{buffer.name}' is {array.dtype}{list(array.shape)}, "
            f"expected {buffer.dtype}{list(buffer.shape)}"
        )
    return array.astype(_dtype(buffer.dtype, override), copy=False)


# --- one stage --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """A box of the index space: where each variable begins and ends, in grid order, and what tensors hold."""

    ranges: Mapping[str, tuple[int, int]]
    values: Mapping[str, np.ndarray]
    override: str | None
    listed: Mapping[str, np.ndarray] = field(default_factory=dict)  # variables that run together along the first one

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(end - begin for begin, end in self.ranges.values())

    def variable(self, name: str) -> np.ndarray:
        """The variable's values along its own dimension of the grid."""
        if name in self.listed:
            return self.listed[name].reshape(-1, *[1] * (len(self.ranges) - 1))
        place = list(self.ranges).index(name)
        begin, end = self.ranges[name]
        return np.arange(begin, end).reshape([-1 if d == place else 1 for d in range(len(self.ranges))])


def _stage(t: Tensor, body: Expr, values: Mapping[str, np.ndarray], override: str | None) -> np.ndarray:
    spatial = {v.name: n for v, n in zip(t.axes, t.shape, strict=True)}
    if not isinstance(body, Reduce):
        out = np.empty(t.shape, _dtype(t.dtype, override))
        for ranges in _blocks(spatial, [set(spatial)]):
            where = tuple(slice(*r) for r in ranges.values())
            out[where] = _eval(body, _Block(ranges, values, override), None)
        return out
    out = np.full(t.shape, identity(body.kind, t.dtype).value, _dtype(t.dtype, override))
    if any(is_loaded(a.extent) for a in body.axes):
        _reduce_rows(t, body, out, values, override)
        return out
    reduced = {a.var.name: a.extent for a in body.axes}
    chosen = scattered_axes(t)
    if chosen and out.size * prod(reduced.values()) > BLOCK:
        _scatter(t, body, chosen, _Block({}, values, override), out)
        return out
    factors = _factors(body)
    footprints: list[AbstractSet[str]] = [{*spatial, *reduced}]
    if factors:
        footprints = [*map(free_vars, factors), set(spatial)]
    for ranges in _blocks({**spatial, **reduced}, footprints):
        where = tuple(slice(*ranges[v]) for v in spatial)
        grid = {v: ranges[v] for v in (*reduced, *spatial)}  # reduced first: NumPy adds whole rows
        part = _reduce(body, factors, _Block(grid, values, override), len(reduced))
        out[where] = REDUCERS[body.kind](out[where], part)
    return out


def _reduce_rows(
    t: Tensor, body: Reduce, out: np.ndarray, values: Mapping[str, np.ndarray], override: str | None
) -> None:
    """Combines into ``out`` what a reduction over a loaded extent gives, with all its positions in one list."""
    loaded = [(a.var.name, a.extent) for a in body.axes if is_loaded(a.extent)]
    if len(loaded) > 1:
        raise VerificationError(f"evaluate: '{t.name}' reduces over {len(loaded)} loaded extents; allowed: 1")
    ((name, extent),) = loaded
    spatial = {v.name: n for v, n in zip(t.axes, t.shape, strict=True)}
    every = {**spatial, **{a.var.name: a.extent for a in body.axes if a.var.name != name}}
    outer = [v for v in every if v in extent.variables]
    others = [v for v in every if v not in outer]
    inner = [v for v in others if v not in spatial] + [v for v in others if v in spatial]
    row, position = _positions(t, extent, {v: every[v] for v in outer}, values, override)
    where = dict(zip(outer, np.unravel_index(row, [every[v] for v in outer]), strict=True))
    step = max(1, BLOCK // max(1, prod(every[v] for v in inner)))
    order = [v for v in outer if v in spatial] + [v for v in inner if v in spatial]
    target = out.transpose([list(spatial).index(v) for v in order])
    for first in range(0, len(row), step):
        part = slice(first, first + step)
        listed = {name: position[part], **{v: where[v][part] for v in outer}}
        ranges = {"": (0, len(listed[name])), **{v: (0, every[v]) for v in inner}}
        block = _Block(ranges, values, override, listed)
        value = np.broadcast_to(_eval(body.body, block, None), block.shape)
        value = REDUCERS[body.kind].reduce(value, axis=tuple(range(1, 1 + len(inner) - len(set(inner) & set(spatial)))))
        place = tuple(listed[v] for v in outer if v in spatial)
        if place:
            REDUCERS[body.kind].at(target, place, value)
        else:
            target[...] = REDUCERS[body.kind](target, REDUCERS[body.kind].reduce(value, axis=0))


def _positions(
    t: Tensor, extent: LoadedExtent, outer: Mapping[str, int], values: Mapping[str, np.ndarray], override: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """For every position that a loaded extent runs over: the number of the outer point, and the position itself."""
    block = _Block({v: (0, n) for v, n in outer.items()}, values, override)
    begin, end = (
        np.broadcast_to(_eval(e, block, None), block.shape).reshape(-1).astype(np.int64)
        for e in (extent.begin, extent.end)
    )
    bad = (begin < 0) | (begin > end) | (end > extent.most)
    if bad.any():
        first, last = begin[bad][0], end[bad][0]
        raise VerificationError(f"evaluate: '{t.name}' runs from {first} to {last}, outside 0 to {extent.most}")
    counts = end - begin
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts - begin, counts)


def _scatter(t: Tensor, body: Reduce, chosen: Sequence[int], block: _Block, out: np.ndarray) -> None:
    """Combines terms into ``out`` at the positions along the axes ``chosen`` that data demand: one visit a term."""
    value, conditions = padding(body.body, body.kind)
    places: dict[str, Expr] = {v.name: v for v in t.axes}
    for d in chosen:
        found = demanded(conditions, t.axes[d].name)
        assert found is not None
        conditions, values = list(found[1]), {t.axes[d].name: found[0]}
        conditions = [found[0] >= 0, found[0] < t.shape[d], *(substitute(c, values) for c in conditions)]
        places = {name: substitute(e, values) for name, e in places.items()}
        value = substitute(value, values)
    extents = {v.name: n for d, (v, n) in enumerate(zip(t.axes, t.shape, strict=True)) if d not in chosen}
    extents |= {a.var.name: a.extent for a in body.axes}
    for ranges in _blocks(extents, [set(extents)]):
        box = replace(block, ranges=ranges)
        live = np.broadcast_to(_eval(all_of(*conditions), box, None), box.shape)
        index = tuple(np.broadcast_to(_eval(e, box, live), box.shape)[live] for e in places.values())
        REDUCERS[body.kind].at(out, index, np.broadcast_to(_eval(value, box, live), box.shape)[live])


def _blocks(extents: Mapping[str, int], footprints: Sequence[AbstractSet[str]]) -> Iterator[dict[str, tuple[int, int]]]:
    """Boxes that cover ``range(extent)`` of every variable, in which no footprint has more than ``BLOCK`` points."""
    if 0 in extents.values():
        return
    box = dict(extents)
    while True:
        largest = max(footprints, key=lambda vs: prod(box[v] for v in vs if v in box))
        size = prod(box[v] for v in largest if v in box)
        if size <= BLOCK:
            break
        v = next(v for v in box if v in largest and box[v] > 1)
        box[v] = -(-box[v] // -(-size // BLOCK))
    cuts = [[(i, min(i + box[v], n)) for i in range(0, n, box[v])] for v, n in extents.items()]
    for ranges in product(*cuts):
        yield dict(zip(extents, ranges, strict=True))


def _factors(reduce: Reduce) -> tuple[Expr, Expr] | None:
    """The two factors of a sum of products of different extent, which is a matrix product in disguise."""
    body = reduce.body
    if reduce.kind != "sum" or not (isinstance(body, Binary) and body.op == "*"):
        return None
    left, right = free_vars(body.a), free_vars(body.b)
    return None if left <= right or right <= left else (body.a, body.b)


def _reduce(reduce: Reduce, factors: tuple[Expr, Expr] | None, block: _Block, count: int) -> np.ndarray:
    """The reduction over the first ``count`` dimensions of the block's grid."""
    rank = len(block.shape)
    if factors:
        a, b = (_full_rank(_eval(f, block, None), rank) for f in factors)
        return _contract(a, b, block.shape, count)
    value = np.broadcast_to(_eval(reduce.body, block, None), block.shape)
    return REDUCERS[reduce.kind].reduce(value, axis=tuple(range(count)), dtype=value.dtype)


def _full_rank(value: np.ndarray, rank: int) -> np.ndarray:
    return value.reshape((1,) * (rank - value.ndim) + value.shape)


def _contract(a: np.ndarray, b: np.ndarray, shape: tuple[int, ...], count: int) -> np.ndarray:
    """``sum(a * b)`` over the first ``count`` dimensions of the grid that both broadcast to, as one matrix product."""
    reduced, spatial = range(count), range(count, len(shape))
    both = [d for d in reduced if shape[d] == a.shape[d] == b.shape[d]]
    only = [d for d in reduced if d not in both]
    scale = prod(shape[d] for d in only if a.shape[d] == b.shape[d] == 1)
    a = a.sum(axis=tuple(only), keepdims=True, dtype=a.dtype)  # a dimension that one factor lacks is summed beforehand
    b = b.sum(axis=tuple(only), keepdims=True, dtype=b.dtype)
    batch = [d for d in spatial if a.shape[d] == b.shape[d]]
    rows = [d for d in spatial if d not in batch and b.shape[d] == 1]
    columns = [d for d in spatial if d not in batch and a.shape[d] == 1]
    m, n, k = (prod(shape[d] for d in dims) for dims in (rows, columns, both))
    left = a.transpose(*batch, *rows, *both, *columns, *only).reshape(-1, m, k)
    right = b.transpose(*batch, *both, *columns, *rows, *only).reshape(-1, k, n)
    result = np.matmul(left, right) * np.asarray(scale, left.dtype)
    order = [*batch, *rows, *columns]
    result = result.reshape([max(a.shape[d], b.shape[d]) for d in order])
    inverse = [order.index(d) for d in spatial]
    return np.broadcast_to(result.transpose(inverse), shape[count:])


# --- expressions ------------------------------------------------------------------------------------------------------


def _eval(e: Expr, block: _Block, live: np.ndarray | None) -> np.ndarray:
    """The value of ``e`` at every point of the block, broadcastable to its grid; ``live`` marks the points in use."""
    match e:
        case Const(value, dtype):
            return np.asarray(value, _dtype(dtype, block.override))
        case Var(name):
            return block.variable(name)
        case Binary("and" | "or" as op, a, b) if b.buffers:  # as in a program: b counts where a leaves it open
            first = np.asarray(_eval(a, block, live))
            open_ = first if op == "and" else ~first
            return np.asarray(OPERATORS[op](first, _eval(b, block, open_ if live is None else live & open_)))
        case Binary(op, a, b):
            return np.asarray(OPERATORS[op](_eval(a, block, live), _eval(b, block, live)))
        case Not(a):
            return np.logical_not(_eval(a, block, live))
        case Cast(dtype, value):
            return convert(_eval(value, block, live), value.dtype, dtype, _dtype(dtype, block.override))
        case Call(fn, args):
            return np.asarray(FUNCTIONS[fn](*(_eval(a, block, live) for a in args)))
        case Select(cond, a, b):
            return _select(cond, a, b, block, live)
        case Load():
            return _load(e, block, live)
    raise AssertionError(e)


def _select(cond: Expr, a: Expr, b: Expr, block: _Block, live: np.ndarray | None) -> np.ndarray:
    taken = np.asarray(_eval(cond, block, live))
    if taken.all():
        return _eval(a, block, live)
    if not taken.any():
        return _eval(b, block, live)
    where_a, where_b = (taken, ~taken) if live is None else (live & taken, live & ~taken)
    return np.where(taken, _eval(a, block, where_a), _eval(b, block, where_b))


def _load(e: Load, block: _Block, live: np.ndarray | None) -> np.ndarray:
    array = block.values[e.buffer.name]
    view = _strided(e, array, block)
    if view is not None:
        return view
    indices = []
    for d, i in enumerate(e.indices):
        index, extent = np.asarray(_eval(i, block, live)), array.shape[d]
        outside = (index < 0) | (index >= extent)
        if outside.any():
            used = outside if live is None else outside & live
            if used.any():
                bad = np.broadcast_to(index, used.shape)[used][0]
                raise VerificationError(f"{e}: index {bad} in dimension {d} is outside 0 to {extent - 1}")
            index = np.clip(index, 0, max(extent - 1, 0))
        indices.append(index)
    if array.size == 0:
        return np.zeros(np.broadcast_shapes(*(i.shape for i in indices)), array.dtype)
    return np.asarray(array[tuple(indices)])


def _strided(e: Load, array: np.ndarray, block: _Block) -> np.ndarray | None:
    """The load as a view, if its indices are affine in the variables and all in bounds."""
    if any(not i.variables.isdisjoint(block.listed) for i in e.indices):
        return None
    strides = dict.fromkeys(block.ranges, 0)
    start = []
    for i, extent, stride in zip(e.indices, array.shape, array.strides, strict=True):
        form = _affine(i)
        if form is None:
            return None
        low = high = first = form.pop("")
        for v, factor in form.items():
            begin, end = block.ranges[v]
            first += factor * begin
            low += min(factor * begin, factor * (end - 1))
            high += max(factor * begin, factor * (end - 1))
            strides[v] += factor * stride
        if low < 0 or high >= extent:
            return None
        start.append(slice(first, None))
    used = {v for i in e.indices for v in free_vars(i)}
    shape = [end - begin if v in used else 1 for v, (begin, end) in block.ranges.items()]
    return as_strided(array[tuple(start)], shape, list(strides.values()), writeable=False)


def _affine(e: Expr) -> dict[str, int] | None:
    """``e`` as factors of variables, with the constant under ``""``; None if it is not affine."""
    match e:
        case Const(value, _):
            return {"": int(value)}
        case Var(name):
            return {"": 0, name: 1}
        case Binary("+" | "-" | "*" as op, a, b):
            left, right = _affine(a), _affine(b)
            if left is None or right is None:
                return None
            if op == "*":
                if len(left) > 1 and len(right) > 1:
                    return None
                scale, form = (left[""], right) if len(left) == 1 else (right[""], left)
                return {v: scale * factor for v, factor in form.items()}
            sign = 1 if op == "+" else -1
            return {v: left.get(v, 0) + sign * right.get(v, 0) for v in {**left, **right}}
    return None
