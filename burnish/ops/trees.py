"""An opaque operator of decision trees that are held in tensors: all rows of a table, tree by tree, by NumPy."""

from __future__ import annotations

import numpy as np

from burnish.loops.tensor import Tensor, placeholder
from burnish.ops.operator import Refused, differentiated, opaque, require, require_dtype, require_rank

MODES = ("LEAF", "BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
AGGREGATES = ("SUM", "AVERAGE", "MIN", "MAX")


def _tree_ensemble(
    x: np.ndarray,
    roots: np.ndarray,
    nodes: np.ndarray,
    thresholds: np.ndarray,
    weights: np.ndarray,
    members: np.ndarray,
    aggregate: str,
    silent: float,
) -> np.ndarray:
    rows = np.arange(len(x))
    work = np.float64 if x.dtype == np.float64 else np.float32
    total = np.zeros((len(x), weights.shape[1]), work)
    best = np.full(total.shape, np.nan, work)
    for root in roots:
        at = np.full(len(x), root)
        for _ in range(len(nodes)):  # no way down is longer
            walking = nodes[at, 0] != 0
            if not walking.any():
                break
            own = at[walking]
            value = x[rows[walking], nodes[own, 1]]
            goes = _decided(nodes[own, 0], value, thresholds[own], own, members)
            goes = np.where(np.isnan(value), nodes[own, 4] != 0, goes)
            at[walking] = np.where(goes, nodes[own, 2], nodes[own, 3])
        found = weights[at]
        total += np.where(np.isnan(found), 0, found)
        best = np.fmin(best, found) if aggregate == "MIN" else np.fmax(best, found)
    if aggregate == "AVERAGE":
        total /= max(len(roots), 1)
    result = np.where(np.isnan(best), silent, best if aggregate in ("MIN", "MAX") else total)
    return result.astype(x.dtype if x.dtype.kind == "f" else np.float32)


def _decided(
    mode: np.ndarray, value: np.ndarray, threshold: np.ndarray, node: np.ndarray, members: np.ndarray
) -> np.ndarray:
    """Whether each value goes to its node's true branch."""
    with np.errstate(invalid="ignore"):
        cases = [value <= threshold, value < threshold, value >= threshold, value > threshold,
                 value == threshold, value != threshold]  # fmt: skip
    goes = np.select([mode == k + 1 for k in range(len(cases))], cases, False)
    for own in np.unique(node[mode == MODES.index("BRANCH_MEMBER")]):
        here = node == own
        goes[here] = np.isin(value[here], members[members[:, 0] == own, 1])
    return goes


@differentiated(Refused("trees do not change between thresholds; allowed: burnish.boost, which trains them"))
@opaque(_tree_ensemble)
def tree_ensemble(
    name: str,
    x: Tensor,
    roots: Tensor,
    nodes: Tensor,
    thresholds: Tensor,
    weights: Tensor,
    members: Tensor,
    *,
    aggregate: str = "SUM",
    silent: float = 0.0,
) -> Tensor:
    """What trees say of the rows of ``x`` [N, F]: [N, targets], the aggregate over all trees of their leaves' weights.

    ``nodes`` [nodes, 5] (int64): mode (by place in ``MODES``), feature, next node if true, if false, whether a missing
    value goes to the first; ``thresholds`` [nodes]; ``weights`` [nodes, targets], NaN where a leaf says nothing, and
    ``silent`` is the result where none says anything;
    ``members`` [pairs, 2]: a node of mode member, and a value that it holds.
    """
    require_rank(x, "x", 2, "[N, F]")
    require_dtype(nodes, "nodes", ("int64",))
    require_rank(weights, "weights", 2, "[nodes, targets]")
    require(aggregate in AGGREGATES, "attribute 'aggregate'", aggregate, ", ".join(AGGREGATES))
    dtype = x.dtype if x.dtype in ("float32", "float64") else "float32"
    return placeholder((x.shape[0], weights.shape[1]), dtype, name)


OPERATORS = (tree_ensemble,)
