"""An opaque operator of decision trees that are held in tensors."""

from __future__ import annotations

import numpy as np

from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.native.trees import AGGREGATES, tree_ensemble_call
from burnish.ops.operator import Refused, differentiated, internal, opaque, require, require_dtype, require_rank


def _tree_ensemble(
    x: np.ndarray,
    roots: np.ndarray,
    nodes: np.ndarray,
    thresholds: np.ndarray,
    weights: np.ndarray,
    aggregate: str,
    silent: float,
) -> np.ndarray:
    rows = np.arange(len(x))
    work = np.float64 if x.dtype == np.float64 else np.float32
    total = np.zeros((len(x), weights.shape[1]), work)
    best = np.full(total.shape, np.nan, work)
    for root, depth in roots:
        at = np.full(len(x), root)
        for _ in range(depth):
            value = x[rows, nodes[at, 0]]
            goes = (value <= thresholds[at]) | (np.isnan(value) & (nodes[at, 3] != 0))
            at = np.where(goes, nodes[at, 1], nodes[at, 2])
        found = weights[nodes[at, 3]]
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
    thresholds: Tensor,
    weights: Tensor,
    *,
    aggregate: str = "SUM",
    silent: float = 0.0,
) -> Tensor:
    """Tree ensemble on the rows of ``x`` [N, F]: [N, targets], the aggregate over all trees of their leaves' weights.

    ``roots`` [trees, 2]: the first node of each, and the steps to its deepest leaf. ``nodes`` [nodes, 4]: of an inner
    one the feature, the next node where that is at most the ``thresholds`` [nodes], the next one elsewhere, and whether
    a missing value goes to the first; of a leaf 0, itself twice, and its row of ``weights`` [leaves, targets], which
    hold NaN where a leaf says nothing. ``silent``: the result where none says anything. Roots and nodes are uint32.
    """
    require_rank(x, "x", 2, "[N, F]")
    for t, argument in ((roots, "roots"), (nodes, "nodes")):
        require_dtype(t, argument, ("uint32",))
    require_rank(weights, "weights", 2, "[leaves, targets]")
    require(aggregate in AGGREGATES, "attribute 'aggregate'", aggregate, ", ".join(AGGREGATES))
    dtype = x.dtype if x.dtype in ("float32", "float64") else "float32"
    return placeholder((x.shape[0], weights.shape[1]), dtype, name)


OPERATORS = internal(tree_ensemble)
