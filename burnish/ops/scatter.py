"""Opaque operators that write at positions held in a tensor, by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from burnish.loops.sizes import greatest
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.native.scattering import (
    fold_windows_call,
    max_unpool_call,
    scatter_elements_call,
    scatter_nd_call,
    scatter_rows_call,
)
from burnish.ops.native.windows import max_pool_indices_call
from burnish.ops.operator import (
    Application,
    Composed,
    Ints,
    differentiated,
    normal_axis,
    opaque,
    require,
    require_input,
)
from burnish.ops.terms import GraphTerm

INDEX_DTYPES = ("int64", "int32")
_AT: Mapping[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
REDUCTIONS = ("none", *_AT)


def _write(target: np.ndarray, place: tuple[Any, ...], values: np.ndarray, reduction: str) -> None:
    """Writes values at index arrays, in place; of several at one place the last one stays, or all combine."""
    if reduction == "none":
        target[place] = values
    else:
        _AT[reduction].at(target, place, values)


def _wide(extern: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """``extern`` in float32 where it adds up or multiplies halves, which are rounded when all are combined."""

    def run(*arrays: np.ndarray, **attrs: Any) -> np.ndarray:
        dtype = arrays[0].dtype
        if dtype.itemsize != 2 or dtype.kind in "iu" or attrs.get("reduction") == "none":
            return extern(*arrays, **attrs)
        return extern(*(a.astype(np.float32) if a.dtype == dtype else a for a in arrays), **attrs).astype(dtype)

    return run


def _position(index: np.ndarray, extent: int) -> np.ndarray:
    """Positions: negative ones count from the end, those out of range are the nearer end."""
    index = index.astype(np.int64)
    return np.clip(np.where(index < 0, index + extent, index), 0, max(extent - 1, 0))


def _scatter_elements(
    data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int, reduction: str
) -> np.ndarray:
    result = data.copy()
    place: list[Any] = list(np.indices(indices.shape, sparse=True))
    place[axis] = _position(indices, data.shape[axis])
    _write(result, tuple(place), updates, reduction)
    return result


def _gradient(a: Application) -> list[str | None]:
    """The adjoint where each value is; by which of several stays, or by the product of the others.

    Of equal greatest or least values ``data`` counts, else the first update, as in reductions.
    """
    seed, reduction = a.seeds[0], a.attrs["reduction"]
    assert seed is not None
    if reduction == "add":
        return [seed, None, _read(a, seed)]
    if reduction == "mul":
        return _product_gradient(a, seed)
    (data, dtype), _, (updates, _) = a.types
    count = prod(updates)
    number = GraphTerm.places(a, count).reshape(*updates).name
    count = greatest(count)
    zero = a.emit.constant(0.0, dtype=dtype)
    if reduction == "none":
        blank = a.add("expand", a.emit.constant(-1), shape=data)
        last = _again(a, blank, number, "none")
        own = a.add("less", last, a.emit.constant(0))
        stays = a.add("equal", _read(a, last), number)
    else:
        blank = a.add("expand", a.emit.constant(count), shape=data)
        hit = a.add("equal", a.inputs[2], _read(a, a.outputs[0]))
        first = _again(a, blank, a.add("where", hit, number, a.emit.constant(count)), "min")
        own = a.add("equal", a.inputs[0], a.outputs[0])
        stays = a.add("equal", _read(a, a.add("where", own, a.emit.constant(-1), first)), number)
    return [a.add("where", own, seed, zero), None, a.add("where", stays, _read(a, seed), zero)]


def _product_gradient(a: Application, seed: str) -> list[str | None]:
    """The product of the other factors: that of all that are not 0, if no other one is 0."""
    dtype = a.types[0][1]
    zero = a.emit.constant(0.0, dtype=dtype)
    empty = [a.add("cast", a.add("equal", x, zero), to=dtype) for x in (a.inputs[0], a.inputs[2])]
    factors = [a.add("add", x, e) for x, e in zip((a.inputs[0], a.inputs[2]), empty, strict=True)]
    product, zeros = _again(a, factors[0], factors[1], "mul"), _again(a, empty[0], empty[1], "add")
    found = []
    for at, e, factor in zip((lambda t: t, lambda t: _read(a, t)), empty, factors, strict=True):
        others = a.add("where", a.add("equal", at(zeros), e), a.add("div", at(product), factor), zero)
        found.append(a.add("mul", at(seed), others))
    return [found[0], None, found[1]]


def _read(a: Application, t: str) -> str:
    """The elements of a tensor like ``data`` that updates are written to."""
    if "axis" in a.attrs:
        return a.add("gather_elements", t, a.inputs[1], axis=a.attrs["axis"])
    return a.add("gather_nd", t, a.inputs[1])


def _again(a: Application, target: str, updates: str, reduction: str) -> str:
    """Other updates at the same places."""
    if "axis" in a.attrs:
        return a.add("scatter_elements", target, a.inputs[1], updates, axis=a.attrs["axis"], reduction=reduction)
    return a.add("scatter_nd", target, a.inputs[1], updates, reduction=reduction)


@differentiated(_gradient)
@opaque(_wide(_scatter_elements), scatter_elements_call)
def scatter_elements(
    name: str, data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    """``data`` with each element of ``updates`` written at its own position, the index along ``axis`` replaced by that
    of ``indices``; ``reduction`` combines it with what is there: none, add, mul, max, min.
    """
    require_input(indices, "indices", dtype=INDEX_DTYPES)
    require_input(updates, "updates", dtype=(data.dtype,))
    require_input(indices, "indices", len(data.shape), "like 'data'")
    require_input(updates, "updates", shape=indices.shape)
    dim = normal_axis(axis, len(data.shape))
    ok = all(m <= n for d, (m, n) in enumerate(zip(indices.shape, data.shape, strict=True)) if d != dim)
    require(ok, "input 'indices'", f"shape {list(indices.shape)}", f"extents within {list(data.shape)}")
    require(data.shape[dim] > 0 or 0 in indices.shape, "input 'data'", f"shape {list(data.shape)}", "some elements")
    require(reduction in REDUCTIONS, "attribute 'reduction'", reduction, ", ".join(REDUCTIONS))
    return placeholder(data.shape, data.dtype, name)


def _scatter_nd(data: np.ndarray, indices: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    result = data.copy()
    place = tuple(_position(indices[..., k], data.shape[k]) for k in range(indices.shape[-1]))
    if place:
        _write(result, place, updates, reduction)
    else:  # every update is of the whole tensor
        for update in updates.reshape(-1, *data.shape):
            result = update.copy() if reduction == "none" else _AT[reduction](result, update)
    return result


@differentiated(_gradient)
@opaque(_wide(_scatter_nd), scatter_nd_call)
def scatter_nd(name: str, data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    """``data`` with slices of ``updates`` written at the index tuples along the last dimension of ``indices``.

    ``reduction`` combines them with what is there: none, add, mul, max, min.
    """
    require_input(indices, "indices", dtype=INDEX_DTYPES)
    require_input(updates, "updates", dtype=(data.dtype,))
    require(len(indices.shape) > 0, "input 'indices'", "a scalar", "at least 1 dimension")
    depth = indices.shape[-1]
    require(depth <= len(data.shape), "input 'indices'", f"tuples of {depth}", f"at most {len(data.shape)}")
    require_input(updates, "updates", shape=(*indices.shape[:-1], *data.shape[depth:]))
    ok = 0 not in data.shape[:depth] or 0 in updates.shape
    require(ok, "input 'data'", f"shape {list(data.shape)}", "some elements")
    require(reduction in REDUCTIONS, "attribute 'reduction'", reduction, ", ".join(REDUCTIONS))
    return placeholder(data.shape, data.dtype, name)


def _scatter_rows(past: np.ndarray, update: np.ndarray, start: np.ndarray, axis: int, circular: bool) -> np.ndarray:
    result = past.copy()
    for row in range(len(past)):
        places = int(start[row]) + np.arange(update.shape[axis])
        places = places % past.shape[axis] if circular else np.clip(places, 0, past.shape[axis] - 1)
        np.moveaxis(result[row], axis - 1, 0)[places] = np.moveaxis(update[row], axis - 1, 0)
    return result


def _rows_terms(a: Application) -> list[str]:
    """Each place along the axis as the element of the update that is written there last, or what was there."""
    (past, _), (update, _), _ = a.types
    axis = normal_axis(a.attrs["axis"], len(past))
    size, count = past[axis], update[axis]
    start = GraphTerm.of(a, 2).cast("int64").reshape(past[0], 1)
    place = GraphTerm.constant(a, np.arange(size)[None], "int64")
    at = place - start
    if a.attrs["circular"]:
        at = at % size
        inside = at < count
    else:  # what would lie beyond an end is written at it
        beyond = (place >= size - 1) & (start + (count - 1) >= size - 1)
        at = beyond.choose(place * 0 + (count - 1), at)
        before = (place <= 0) & (start <= 0)
        at = before.choose((start * -1).apply("minimum", count - 1), at) if size > 1 else at
        inside = (at >= 0) & (at < count)
    spread = tuple(n if d in (0, axis) else 1 for d, n in enumerate(past))
    index = at.clip(0, count - 1).reshape(*spread).expand(*past)
    read = GraphTerm.of(a, 1).apply("gather_elements", index, axis=axis)
    return [inside.reshape(*spread).choose(read, GraphTerm.of(a, 0)).name]


@differentiated(Composed(_rows_terms))
@opaque(_scatter_rows, scatter_rows_call)
def scatter_rows(
    name: str, past: Tensor, update: Tensor, start: Tensor, *, axis: int, circular: bool = False
) -> Tensor:
    """``past`` [B, ...] with the ``update`` of every batch row written along ``axis`` from ``start`` [B] on.

    ``circular``: what goes beyond the end goes on at the beginning.
    """
    require_input(start, "start", dtype=INDEX_DTYPES)
    require_input(update, "update", dtype=(past.dtype,))
    require_input(start, "start", shape=past.shape[:1])
    dim = normal_axis(axis, len(past.shape))
    wanted = (*past.shape[:dim], *update.shape[dim : dim + 1], *past.shape[dim + 1 :])
    ok = dim > 0 and update.shape == wanted and wanted[dim] <= past.shape[dim]
    require(ok, "input 'update'", f"shape {list(update.shape)}, axis {axis}", f"{list(past.shape)}, or less there")
    return placeholder(past.shape, past.dtype, name)


def _fold_windows(x: np.ndarray, size: Ints, block: Ints, strides: Ints, pads: Ints, dilations: Ints) -> np.ndarray:
    rank = len(size)
    batch, channels = x.shape[0], x.shape[1] // int(np.prod(block))
    counts = [
        (size[d] + pads[d] + pads[rank + d] - dilations[d] * (block[d] - 1) - 1) // strides[d] + 1 for d in range(rank)
    ]
    image = np.zeros((batch, channels, *(size[d] + pads[d] + pads[rank + d] for d in range(rank))), x.dtype)
    columns = x.reshape(batch, channels, *block, *counts)
    for tap in np.ndindex(*block):
        steps = zip(tap, dilations, counts, strides, strict=True)
        at = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in steps)
        image[(slice(None), slice(None), *at)] += columns[(slice(None), slice(None), *tap)]
    inside = tuple(slice(pads[d], pads[d] + size[d]) for d in range(rank))
    return np.ascontiguousarray(image[(slice(None), slice(None), *inside)])


def _fold_terms(a: Application) -> list[str]:
    """Every column's elements, added up in a flat padded image."""
    (x, dtype), size, block, pads = a.types[0], a.attrs["size"], a.attrs["block"], a.attrs["pads"]
    rank, channels = len(size), x[1] // prod(block)
    padded = tuple(size[d] + pads[d] + pads[rank + d] for d in range(rank))
    flat = np.zeros((), np.int64)
    for d in range(rank):
        count = (padded[d] - a.attrs["dilations"][d] * (block[d] - 1) - 1) // a.attrs["strides"][d] + 1
        taps, windows = np.arange(block[d]) * a.attrs["dilations"][d], np.arange(count) * a.attrs["strides"][d]
        own = taps.reshape([-1 if e == d else 1 for e in range(2 * rank)])
        own = own + windows.reshape([-1 if e == rank + d else 1 for e in range(2 * rank)])
        flat = flat * padded[d] + own
    index = GraphTerm.constant(a, flat.reshape(1, 1, -1), "int64").expand(x[0], channels, flat.size)
    columns = GraphTerm.of(a, 0).reshape(x[0], channels, flat.size)
    image = GraphTerm.constant(a, 0.0, dtype).expand(x[0], channels, prod(padded))
    image = image.apply("scatter_elements", index, columns, axis=2, reduction="add")
    inside = image.reshape(x[0], channels, *padded)
    extents = (x[0], channels, *size)
    return [inside.apply("slice", starts=(0, 0, *pads[:rank]), extents=extents).name]


@differentiated(Composed(_fold_terms))
@opaque(_wide(_fold_windows), fold_windows_call)
def fold_windows(
    name: str, x: Tensor, *, size: Ints, block: Ints, strides: Ints, pads: Ints, dilations: Ints
) -> Tensor:
    """Columns [N, C * block, L] added up to the image [N, C, *size] whose windows they are (col2im)."""
    require_input(x, "x", 3, "[N, C * block, L]")
    rank, taps, windows = len(size), 1, 1
    for d, b in enumerate(block):
        taps *= b
        windows *= (size[d] + pads[d] + pads[rank + d] - dilations[d] * (b - 1) - 1) // strides[d] + 1
    ok = x.shape[1] % taps == 0 and x.shape[2] == windows
    require(ok, "input 'x'", f"shape {list(x.shape)}", f"a multiple of {taps} channels, and {windows} windows")
    return placeholder((x.shape[0], x.shape[1] // taps, *size), x.dtype, name)


def _max_unpool(x: np.ndarray, indices: np.ndarray, size: Ints) -> np.ndarray:
    flat = np.zeros((*x.shape[:2], int(np.prod(size))), x.dtype)
    inside = np.clip(indices.reshape(*x.shape[:2], -1), 0, max(flat.size - 1, 0))  # the nearer end, where out of range
    place = _position(inside % max(flat.shape[2], 1), flat.shape[2])
    np.put_along_axis(flat, place, x.reshape(*x.shape[:2], -1), 2)
    return flat.reshape(*x.shape[:2], *size)


def _unpool_terms(a: Application) -> list[str]:
    """A flat image of zeros, written to."""
    (x, dtype), size = a.types[0], a.attrs["size"]
    flat = (*x[:2], prod(x[2:]))
    places = (GraphTerm.of(a, 1).reshape(*flat)) % max(prod(size), 1)
    image = GraphTerm.constant(a, 0.0, dtype).expand(*x[:2], prod(size))
    written = image.apply("scatter_elements", places, GraphTerm.of(a, 0).reshape(*flat), axis=2)
    return [written.reshape(*x[:2], *size).name]


@differentiated(Composed(_unpool_terms))
@opaque(_max_unpool, max_unpool_call)
def max_unpool(name: str, x: Tensor, indices: Tensor, *, size: Ints) -> Tensor:
    """The image [N, C, *size] of zeros with ``x`` at its flat ``indices``, taken within every channel."""
    require_input(indices, "indices", shape=x.shape, dtype=INDEX_DTYPES)
    require(len(size) == len(x.shape) - 2, "attribute 'size'", list(size), f"{len(x.shape) - 2} extents")
    return placeholder((*x.shape[:2], *size), x.dtype, name)


def _max_pool_indices(
    x: np.ndarray, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, size: Ints, column_major: bool
) -> np.ndarray:
    rank = len(kernel)
    sizes = x.shape[2:]
    last = [(size[d] - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1 for d in range(rank)]
    reach = [max(sizes[d] + pads[d], last[d]) for d in range(rank)]
    low = np.finfo(x.dtype).min if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    image = np.full((*x.shape[:2], *reach), low, x.dtype)
    live = np.zeros(reach, bool)
    inside = tuple(slice(pads[d], pads[d] + sizes[d]) for d in range(rank))
    image[(slice(None), slice(None), *inside)] = x
    live[inside] = True
    place, count = np.zeros(reach, np.int64), np.arange(int(np.prod(sizes)))
    place[inside] = count.reshape(sizes[::-1]).T if column_major else count.reshape(sizes)
    best = np.zeros((*x.shape[:2], *size), x.dtype)
    found = np.full((*x.shape[:2], *size), -1, np.int64)
    for tap in np.ndindex(*kernel):
        steps = zip(tap, dilations, size, strides, strict=True)
        at = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in steps)
        value = image[(slice(None), slice(None), *at)]
        better = live[at] & ((found < 0) | (value > best))
        best = np.where(better, value, best)
        found = np.where(better, place[at], found)
    channels = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * rank)
    return found + channels * int(np.prod(sizes))


@opaque(_max_pool_indices, max_pool_indices_call)
def max_pool_indices(
    name: str,
    x: Tensor,
    *,
    kernel: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    size: Ints,
    column_major: bool = False,
) -> Tensor:
    """The flat positions in ``x`` [N, C, ...] of the greatest elements of its windows [N, C, *size]; the first of equal
    ones. ``column_major``: an image's positions count along its first dimension first.
    """
    require(len(kernel) == len(x.shape) - 2, "attribute 'kernel'", list(kernel), f"{len(x.shape) - 2} integers")
    return placeholder((*x.shape[:2], *size), "int64", name)


OPERATORS = (scatter_elements, scatter_nd, scatter_rows, fold_windows, max_unpool, max_pool_indices)
