"""Decision trees as loops: each of a chunk of rows walks some trees side by side, then the next ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.loops.sizes import hinted
from burnish.ops.operator import NativeCall, TensorType

ROWS = 128  # of a chunk: they, and the trees that they walk, lie in the cache of a core
TREES = 16  # that a row walks at the same time
AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")
COLUMN = (1 << 31) - 1  # of a node's first word: the feature; above it whether a missing value goes to the first
NAN = math.nan  # in a result: no tree has said anything yet


def _bound(nodes: Any, n: Any) -> Any:
    """The float64 number in the last two words of a node."""
    return np.uint64(np.uint64(nodes[n, 2]) | (np.uint64(nodes[n, 3]) << np.uint64(32))).view(np.float64)


def _below(x: Any, row: int, nodes: Any, n: Any) -> Any:
    """The node below ``n`` for a row; a leaf is below itself."""
    feature = nodes[n, 0]
    v = x[row, feature & COLUMN]
    goes = (v <= _bound(nodes, n)) | ((v != v) & (feature > COLUMN))
    return np.uint32(nodes[n, 1] + (0 if goes else 1))


def _below_whole(x: Any, row: int, nodes: Any, n: Any) -> Any:
    """As :func:`_below`, of a row in which nothing is missing."""
    return np.uint32(nodes[n, 1] + (0 if x[row, nodes[n, 0] & COLUMN] <= _bound(nodes, n) else 1))


def _is_whole(x: Any, row: int) -> bool:
    """Whether nothing is missing in a row."""
    missing = 0
    for c in range(x.shape[1]):
        missing |= x[row, c] != x[row, c]
    return missing == 0


def _combine(y: Any, row: int, c: Any, w: Any, aggregate: int) -> None:
    """Combines what a leaf says of a target with what other trees have said of a row. NaN: nothing."""
    old = y[row, c]
    if w == w:
        if old != old:
            y[row, c] = w
        elif aggregate == 2:
            y[row, c] = min(old, w)
        elif aggregate == 3:
            y[row, c] = max(old, w)
        else:
            y[row, c] = old + w


def _hear(y: Any, row: int, weights: Any, places: Any, leaf: Any, aggregate: int, known: bool) -> None:
    """Combines what a leaf says; ``known``: in sums that begin with 0. It speaks of one target, or of all."""
    if places.shape[0] > 0:
        w, c = weights[leaf, 0], places[leaf]
        if not known:
            _combine(y, row, c, w, aggregate)
        elif w == w:
            y[row, c] += w
    else:
        for c in range(weights.shape[1]):
            w = weights[leaf, c]
            if not known:
                _combine(y, row, c, w, aggregate)
            elif w == w:
                y[row, c] += w


def _walk_trees(
    x: Any, roots: Any, nodes: Any, weights: Any, places: Any, y: Any, at: Any, aggregate: int, known: bool,
    whole: bool, row: int, tree: int,
) -> None:  # fmt: skip
    """A row's ways down ``TREES`` trees, from ``tree`` on, until all have ended: far above most deepest leaves."""
    for k in range(TREES):
        at[k] = roots[min(tree + k, roots.shape[0] - 1)]
    moved = 1
    while moved != 0:
        moved = 0
        if whole:
            for k in range(TREES):
                below = _below_whole(x, row, nodes, at[k])
                moved |= below ^ at[k]
                at[k] = below
        else:
            for k in range(TREES):
                below = _below(x, row, nodes, at[k])
                moved |= below ^ at[k]
                at[k] = below
    for k in range(min(TREES, roots.shape[0] - tree)):
        _hear(y, row, weights, places, nodes[at[k], 2], aggregate, known)


def _walk(
    x: Any, roots: Any, nodes: Any, weights: Any, places: Any, y: Any, at: Any, aggregate: int, silent: float,
    begin: int, end: int,
) -> None:  # fmt: skip
    """Chunks ``begin`` to ``end`` of rows; ``at``: the node that a row has reached in each of some trees."""
    known = aggregate < 2 and silent == 0.0
    for chunk in range(begin, end):
        low = chunk * ROWS
        high = min(low + ROWS, x.shape[0])
        whole = True
        for row in range(low, high):
            whole = whole and _is_whole(x, row)
            for c in range(y.shape[1]):
                y[row, c] = 0.0 if known else NAN
        for tree in range(0, roots.shape[0], TREES):
            for row in range(low, high):
                _walk_trees(x, roots, nodes, weights, places, y, at, aggregate, known, whole, row, tree)
        for row in range(low, high):
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
    work = hinted(rows) * trees * 8
    return NativeCall(_walk, (*inputs, *outputs), numbers, (rows + ROWS - 1) // ROWS, work, (((TREES,), "uint32"),))
