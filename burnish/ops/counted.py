"""Opaque operators whose results' extent depends on values: nonzero, compress, unique, non-max suppression.

The extent is a size that the attribute ``count`` names, a dimension from 0 to a bound; the last result is its value.
"""

from __future__ import annotations

from math import prod

import numpy as np

from burnish.loops.sizes import greatest
from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.native.counting import compress_call, non_max_suppression_call, nonzero_call, unique_call
from burnish.ops.operator import Refused, declare, differentiated, internal, normal_axis, opaque, require, require_input

_INDEX = "int64"
_WHOLE = Refused("results whose number depends on values do not move with these")


def _counted(name: str, count: int, bound: int, *results: tuple[tuple[int, ...], str]) -> tuple[Tensor, ...]:
    """Results, and their extent, of which there is a bound."""
    require(greatest(count) >= greatest(bound), "attribute 'count'", greatest(count), f"up to {greatest(bound)}")
    found = [placeholder(shape, dtype, f"{name}.{i}") for i, (shape, dtype) in enumerate(results)]
    return (*found, placeholder((), _INDEX, f"{name}.{len(found)}"))


def _number(count: int) -> np.ndarray:
    return np.array(count, np.int64)


def _nonzero(x: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    found = np.array(np.nonzero(np.atleast_1d(x)), np.int64).reshape(max(x.ndim, 1), -1)
    return found, _number(found.shape[1])


@differentiated(_WHOLE)
@declare(counts=True)
@opaque(_nonzero, nonzero_call)
def nonzero(name: str, x: Tensor, *, count: int) -> tuple[Tensor, Tensor]:
    """Positions of all elements that are not 0: int64 [rank, count], one row a dimension, in row-major order."""
    return _counted(name, count, prod(x.shape), ((max(len(x.shape), 1), count), _INDEX))  # type: ignore[return-value]


def _compress(x: np.ndarray, condition: np.ndarray, axis: int | None, count: int) -> tuple[np.ndarray, ...]:
    extent = x.size if axis is None else x.shape[axis]
    found = np.compress(condition[:extent], x, axis)
    return found, _number(len(found) if axis is None else found.shape[axis])


@differentiated(_WHOLE)
@declare(counts=True)
@opaque(_compress, compress_call)
def compress(name: str, x: Tensor, condition: Tensor, *, axis: int | None = None, count: int) -> tuple[Tensor, Tensor]:
    """Elements along ``axis`` (of the flat tensor: None) where ``condition``, which may be shorter, is true."""
    require_input(condition, "condition", 1, dtype=("bool",))
    shape: tuple[int, ...] = (count,)
    if axis is not None:
        dim = normal_axis(axis, len(x.shape))
        shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    extent = prod(x.shape) if axis is None else x.shape[normal_axis(axis, len(x.shape))]
    bound = min(greatest(condition.shape[0]), greatest(extent))
    return _counted(name, count, bound, (shape, x.dtype))  # type: ignore[return-value]


def _unique(x: np.ndarray, axis: int | None, sorted: bool, count: int) -> tuple[np.ndarray, ...]:
    values, first, which, numbers = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    which = which.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        values, first, which, numbers = np.take(values, order, axis or 0), first[order], place[which], numbers[order]
    return values, *(a.astype(np.int64) for a in (first, which, numbers)), _number(len(first))


@differentiated(_WHOLE)
@declare(counts=True)
@opaque(_unique, unique_call)
def unique(
    name: str, x: Tensor, *, axis: int | None = None, sorted: bool = True, count: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Distinct elements, or slices along ``axis``; positions of their first ones, which each element is, their numbers.

    In order if ``sorted``, else as they are met first. NaN counts as the greatest value, and as one.
    """
    extent: int = prod(x.shape)
    shape: tuple[int, ...] = (count,)
    if axis is not None:
        dim = normal_axis(axis, len(x.shape))
        extent, shape = x.shape[dim], (*x.shape[:dim], count, *x.shape[dim + 1 :])
    rest = ((count,), _INDEX), ((extent,), _INDEX), ((count,), _INDEX)
    return _counted(name, count, extent, (shape, x.dtype), *rest)  # type: ignore[return-value]


def _non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    limit: np.ndarray,
    overlap: np.ndarray,
    least: np.ndarray,
    center: bool,
    most: int,
    count: int,
) -> tuple[np.ndarray, ...]:
    found: list[np.ndarray] = []
    share, allowed = float(overlap.reshape(-1)[0]), min(int(limit.reshape(-1)[0]), most)
    for batch in range(scores.shape[0]):
        low, high = _corners(boxes[batch].astype(np.float64), center)
        areas = np.prod(high - low, axis=1)
        for number, row in enumerate(scores[batch]):
            order = np.argsort(-row, kind="stable")
            order = order[row[order] > least[0]] if least.size else order
            kept = _greedy(order, low, high, areas, allowed, share)
            found.append(np.array([(batch, number, box) for box in kept], np.int64).reshape(-1, 3))
    result = np.concatenate(found) if found else np.zeros((0, 3), np.int64)
    return result, _number(len(result))


@differentiated(_WHOLE)
@declare(counts=True)
@opaque(_non_max_suppression, non_max_suppression_call)
def non_max_suppression(
    name: str,
    boxes: Tensor,
    scores: Tensor,
    limit: Tensor,
    overlap: Tensor,
    least: Tensor,
    *,
    center: bool = False,
    most: int,
    count: int,
) -> tuple[Tensor, Tensor]:
    """The best boxes of each class that overlap no better one by more than ``overlap`` of their union.

    ``boxes``: [batch, n, 4], two opposite corners (y, x) each, or with ``center`` (x, y, width, height). ``scores``:
    [batch, classes, n]; those that are not above ``least`` [1], or [0] for none, are left out. ``limit`` [1]: how many
    of one class there are, not more than ``most``. A row of the result, int64 [count, 3], is batch, class,
    box; batches and classes in order, boxes from the best on.
    """
    require_input(boxes, "boxes", 3, "[batch, n, 4]")
    require_input(scores, "scores", 3, "[batch, classes, n]")
    ok = boxes.shape[2] == 4 and boxes.shape[:2] == (scores.shape[0], scores.shape[2])
    require(ok, "input 'boxes'", f"shape {list(boxes.shape)}", f"[{scores.shape[0]}, {scores.shape[2]}, 4]")
    for t, argument in ((boxes, "boxes"), (scores, "scores")):
        require_input(t, argument, dtype=("float32", "float64"))
    require_input(limit, "limit", dtype=("int64",))
    ok = limit.shape == overlap.shape == (1,) and least.shape in ((0,), (1,))
    require(ok, "inputs 'limit', 'overlap', 'least'", f"{limit.shape}, {overlap.shape}, {least.shape}", "[1]")
    bound = scores.shape[0] * scores.shape[1] * min(most, greatest(scores.shape[2]))
    return _counted(name, count, bound, ((count, 3), _INDEX))  # type: ignore[return-value]


def _corners(boxes: np.ndarray, center: bool) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper corner of each box."""
    if center:
        middle, half = boxes[:, :2], boxes[:, 2:] / 2
        return middle - half, middle + half
    return np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])


def _greedy(
    order: np.ndarray, low: np.ndarray, high: np.ndarray, areas: np.ndarray, most: int, overlap: float
) -> list[int]:
    """Boxes in this order, but those that one before them covers."""
    kept: list[int] = []
    while len(order) and len(kept) < most:
        best, order = order[0], order[1:]
        kept.append(int(best))
        sides = np.minimum(high[order], high[best]) - np.maximum(low[order], low[best])
        common = np.prod(np.maximum(sides, 0), axis=1)
        union = areas[order] + areas[best] - common
        order = order[common <= overlap * union]
    return kept


OPERATORS = internal(nonzero, compress, unique, non_max_suppression)
