"""An opaque operator of decision trees that are held in tensors."""

from __future__ import annotations

import numpy as np

from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.native.trees import AGGREGATES, COLUMN, tree_ensemble_call
from burnish.ops.operator import Refused, differentiated, internal, opaque, require, require_input


def packed_trees(
    roots: np.ndarray, nodes: np.ndarray, thresholds: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Trees as the operator reads them: 16 bytes a node, both nodes below another side by side, and behind these what
    is below the one with more leaves, so that ways down stay within few cache lines.

    ``roots`` [trees]. ``nodes`` [nodes, 4]: of an inner one the feature, the next node where that is at most the
    ``thresholds`` [nodes], the next one elsewhere, and whether a missing value goes to the first; of a leaf 0, itself
    twice, and its row of ``weights`` [leaves, targets]. A node with several above it is there once for each.
    """
    count, is_leaf = len(nodes), nodes[:, 1] == np.arange(len(nodes))
    first, second = nodes[:, 1].tolist(), nodes[:, 2].tolist()
    leaves, pair = [0] * count, [0] * count  # below each node, and where the two next ones are
    places: list[int] = []
    starts = []
    for root in roots.tolist():
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node < 0:  # what is below has been counted
                leaves[~node] = leaves[first[~node]] + leaves[second[~node]]
            elif first[node] == node:
                leaves[node] = 1
            elif not leaves[node]:
                waiting += (~node, first[node], second[node])
        starts.append(len(places))
        places.append(root)
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if first[node] != node and not pair[node]:
                pair[node] = len(places)
                below = (first[node], second[node])
                places += below
                waiting += below if leaves[below[0]] <= leaves[below[1]] else below[::-1]
    order = np.asarray(places, np.int64)
    made, ends = np.zeros((len(order), 4), np.uint32), is_leaf[order]
    made[:, 0] = nodes[order, 0] | (np.where(ends, 0, nodes[order, 3]) << 31)
    made[:, 1] = np.where(ends, np.arange(len(order)) - 1, np.asarray(pair, np.int64)[order])
    made[:, 2:] = np.where(ends, np.nan, thresholds[order]).astype("<f8").view(np.uint32).reshape(-1, 2)
    made[ends, 2] = nodes[order[ends], 3]
    present = ~np.isnan(weights)
    if weights.shape[1] == 1 or not len(weights) or present.sum(1).max() > 1:
        return np.asarray(starts, np.uint32), made, weights, np.zeros(0, np.uint32)
    target = present.argmax(1)
    return np.asarray(starts, np.uint32), made, weights[np.arange(len(weights)), target][:, None], target.astype("u4")


def _tree_ensemble(
    x: np.ndarray,
    roots: np.ndarray,
    nodes: np.ndarray,
    weights: np.ndarray,
    places: np.ndarray,
    targets: int,
    aggregate: str,
    silent: float,
) -> np.ndarray:
    rows = np.arange(len(x))
    work = np.float64 if x.dtype == np.float64 else np.float32
    total = np.zeros((len(x), targets), work)
    best = np.full(total.shape, np.nan, work)
    thresholds = np.ascontiguousarray(nodes[:, 2:]).view("<f8").reshape(-1)
    for root in roots:
        at, before = np.full(len(x), root), None
        while before is None or (at != before).any():
            before, value = at, x[rows, nodes[at, 0] & COLUMN]
            goes = (value <= thresholds[at]) | (np.isnan(value) & (nodes[at, 0] > COLUMN))
            at = nodes[at, 1] + np.where(goes, 0, 1).astype(np.uint32)
        leaf = nodes[at, 2]
        found = weights[leaf]
        if len(places):
            found = np.where(np.arange(targets) == places[leaf][:, None], found, np.nan)
        total += np.where(np.isnan(found), 0, found)
        best = np.fmin(best, found) if aggregate == "MIN" else np.fmax(best, found)
    if aggregate == "AVERAGE":
        total /= max(len(roots), 1)
    result = np.where(np.isnan(best), silent, best if aggregate in ("MIN", "MAX") else total)
    return result.astype(x.dtype if x.dtype.kind == "f" else np.float32)


@differentiated(Refused("trees do not change between thresholds; allowed: burnish.boost, which trains them"))
@opaque(_tree_ensemble, tree_ensemble_call)
def tree_ensemble(
    name: str,
    x: Tensor,
    roots: Tensor,
    nodes: Tensor,
    weights: Tensor,
    places: Tensor,
    *,
    targets: int = 1,
    aggregate: str = "SUM",
    silent: float = 0.0,
) -> Tensor:
    """Tree ensemble on the rows of ``x`` [N, F]: [N, targets], the aggregate over all trees of their leaves' weights.

    ``roots`` [trees]: the first node of each. ``nodes`` [nodes, 4]: of an inner one the feature, plus 2³¹ where a
    missing value goes to the first of the two next nodes; where that is, the other being behind it; the two words of
    the float64 number up to which a feature goes to the first. Of a leaf 0, the place before its own, its row of
    ``weights``, and the upper word of a NaN (:func:`packed_trees`). ``weights`` [leaves, targets], which hold NaN where
    a leaf says nothing; or [leaves, 1], of the target ``places`` [leaves] each, which is empty otherwise. ``silent``:
    the result where none says anything. Roots, nodes and places are uint32.
    """
    require_input(x, "x", 2, "[N, F]")
    for t, argument, shape in ((roots, "roots", "[trees]"), (nodes, "nodes", "[nodes, 4]"), (places, "places", "[N]")):
        require_input(t, argument, shape.count(",") + 1, shape, dtype=("uint32",))
    require_input(weights, "weights", 2, "[leaves, targets]")
    wanted = (places.shape[0], 1) if places.shape[0] else (weights.shape[0], targets)
    require(weights.shape == wanted, "input 'weights'", f"shape {list(weights.shape)}", f"shape {list(wanted)}")
    require(aggregate in AGGREGATES, "attribute 'aggregate'", aggregate, ", ".join(AGGREGATES))
    dtype = x.dtype if x.dtype in ("float32", "float64") else "float32"
    return placeholder((x.shape[0], targets), dtype, name)


OPERATORS = internal(tree_ensemble)
