"""Functions whose results have shapes that depend on values, by NumPy: nonzero, unique, compress, non-max suppression.

They are no operators of graphs, where every shape is known: they run between graphs.
"""

from __future__ import annotations

import numpy as np

from burnish.ops.operator import normal_axis


def nonzero(x: np.ndarray) -> np.ndarray:
    """Positions of all elements that are not 0: int64 of one row a dimension, in row-major order."""
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64).reshape(max(x.ndim, 1), -1)


def compress(x: np.ndarray, condition: np.ndarray, axis: int | None) -> np.ndarray:
    """Elements along ``axis`` (of the flat array: None) where ``condition``, which may be shorter, is true."""
    extent = x.size if axis is None else x.shape[normal_axis(axis, x.ndim)]
    return np.compress(condition.reshape(-1)[:extent], x, axis)


def unique(x: np.ndarray, axis: int | None, in_order: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Distinct elements, or slices along ``axis``; positions of their first ones, which each element is, their numbers.

    Sorted if ``in_order``, else as they are met first.
    """
    if axis is not None:
        axis = normal_axis(axis, x.ndim)
    values, first, which, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    which = which.reshape(-1)
    if not in_order:
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        values, first, which, counts = np.take(values, order, axis or 0), first[order], place[which], counts[order]
    return values, first.astype(np.int64), which.astype(np.int64), counts.astype(np.int64)


def non_max_suppression(
    boxes: np.ndarray, scores: np.ndarray, most: int, overlap: float, least_score: float | None, center: bool
) -> np.ndarray:
    """The best boxes of each class that overlap no better one by more than ``overlap`` of their union: (n, 3) int64.

    ``boxes``: (batch, n, 4), two opposite corners (y, x) each, or with ``center`` (x, y, width, height). ``scores``:
    (batch, classes, n), those below ``least_score`` are left out. ``most``: of one class. A row of the result is batch,
    class, box; batches and classes in order, boxes from the best on.
    """
    found: list[np.ndarray] = []
    for batch in range(scores.shape[0]):
        low, high = _corners(boxes[batch].astype(np.float64), center)
        areas = np.prod(high - low, axis=1)
        for number, row in enumerate(scores[batch]):
            order = np.argsort(-row, kind="stable")
            order = order if least_score is None else order[row[order] > least_score]
            kept = _greedy(order, low, high, areas, most, overlap)
            found.append(np.array([(batch, number, box) for box in kept], np.int64).reshape(-1, 3))
    return np.concatenate(found) if found else np.zeros((0, 3), np.int64)


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
