"""Decision trees as loops: a chunk of rows walks one tree side by side, or few rows many trees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.loops.sizes import hinted
from burnish.ops.operator import NativeCall, TensorType

ROWS = 128  # of a chunk: they, and the tree that they walk, lie in the first-level cache
TREES = 8  # that a row walks at the same time
FEW = 4  # rows of a chunk that are walked one by one
AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")
NAN = math.nan  # in a result: no tree has said anything yet


def _below(x: Any, row: int, nodes: Any, thresholds: Any, n: Any) -> Any:
    """The node below ``n`` for a row; a leaf is below itself."""
    v = x[row, nodes[n, 0]]
    goes = (v <= thresholds[n]) | ((v != v) & (nodes[n, 3] != 0))
    return nodes[n, 1] if goes else nodes[n, 2]


def _combine(y: Any, row: int, weights: Any, leaf: Any, aggregate: int) -> None:
    """Combines what a leaf says with what other trees have said of a row. NaN: nothing."""
    for c in range(weights.shape[1]):
        w, old = weights[leaf, c], y[row, c]
        if w == w:
            if old != old:
                y[row, c] = w
            elif aggregate == 2:
                y[row, c] = min(old, w)
            elif aggregate == 3:
                y[row, c] = max(old, w)
            else:
                y[row, c] = old + w


def _add(y: Any, row: int, weights: Any, leaf: Any) -> None:
    """As :func:`_combine`, of sums that begin with 0."""
    for c in range(weights.shape[1]):
        w = weights[leaf, c]
        if w == w:
            y[row, c] += w


def _walk_side_by_side(
    x: Any, roots: Any, nodes: Any, thresholds: Any, weights: Any, y: Any, at: Any, aggregate: int, known: bool,
    low: int, count: int,
) -> None:  # fmt: skip
    for t in range(roots.shape[0]):
        for i in range(count):
            at[i] = roots[t, 0]
        for _ in range(roots[t, 1]):
            for i in range(count):
                at[i] = _below(x, low + i, nodes, thresholds, at[i])
        if known:
            for i in range(count):
                _add(y, low + i, weights, nodes[at[i], 3])
        else:
            for i in range(count):
                _combine(y, low + i, weights, nodes[at[i], 3], aggregate)


def _walk_many_trees(
    x: Any,
    roots: Any,
    nodes: Any,
    thresholds: Any,
    weights: Any,
    y: Any,
    at: Any,
    aggregate: int,
    known: bool,
    row: int,
) -> None:
    trees = roots.shape[0]
    for t in range(0, trees, TREES):
        deepest = 0
        for k in range(TREES):
            own = min(t + k, trees - 1)
            at[k] = roots[own, 0]
            deepest = max(deepest, int(roots[own, 1]))
        for _ in range(deepest):
            for k in range(TREES):
                at[k] = _below(x, row, nodes, thresholds, at[k])
        for k in range(min(TREES, trees - t)):
            if known:
                _add(y, row, weights, nodes[at[k], 3])
            else:
                _combine(y, row, weights, nodes[at[k], 3], aggregate)


def _walk(
    x: Any, roots: Any, nodes: Any, thresholds: Any, weights: Any, y: Any, at: Any, aggregate: int, silent: float,
    begin: int, end: int,
) -> None:  # fmt: skip
    """Chunks ``begin`` to ``end`` of rows; ``at``: the node that each row, or one row in each tree, has reached."""
    known = aggregate < 2 and silent == 0.0
    for chunk in range(begin, end):
        low = chunk * ROWS
        count = min(ROWS, x.shape[0] - low)
        for row in range(low, low + count):
            for c in range(y.shape[1]):
                y[row, c] = 0.0 if known else NAN
        if count < FEW:
            for row in range(low, low + count):
                _walk_many_trees(x, roots, nodes, thresholds, weights, y, at, aggregate, known, row)
        else:
            _walk_side_by_side(x, roots, nodes, thresholds, weights, y, at, aggregate, known, low, count)
        for row in range(low, low + count):
            for c in range(y.shape[1]):
                if y[row, c] != y[row, c]:
                    y[row, c] = silent
                elif aggregate == 1:
                    y[row, c] = y[row, c] / y.dtype.type(max(roots.shape[0], 1))


def tree_ensemble_call(
    inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> NativeCall | None:
    """The kernel of ``tree_ensemble``."""
    (rows, _), dtype = inputs[0]
    if dtype not in ("float32", "float64"):
        return None
    trees = inputs[1][0][0]
    numbers = (AGGREGATES.index(attrs["aggregate"]), float(attrs["silent"]))
    views = (*inputs, *outputs)
    work = hinted(rows) * trees * 8
    return NativeCall(_walk, views, numbers, (rows + ROWS - 1) // ROWS, work, (((ROWS,), "uint32"),))
