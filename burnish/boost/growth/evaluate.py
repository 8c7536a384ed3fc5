"""Best splits of nodes from their histograms: one scan of the bins, another where values are missing (Algorithm 3)."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.growth.bins import GROUP
from burnish.boost.kernels import inlined, kernel
from burnish.boost.splitter import leaf_score, split_gain

# What a search yields for a node; see BEST.
BEST = np.dtype(
    [
        ("gain", np.float64),  # −inf: no split
        ("position", np.int64),  # of the feature
        ("bin", np.int64),  # rows of bins up to this one go left
        ("default_left", np.int64),  # 1: missing values go left
        ("gradient", np.int64),  # sums of the left child, in units
        ("hessian", np.int64),
    ]
)
_NONE, _NEAR = np.float32(-1.0), np.float32(1 - 1e-5)
_LANES = np.uint64(GROUP)
_NOISE = 1e-12  # share of a node's score that a gain must exceed to be more than rounding


@inlined
def _subtract(parent: NDArray[np.int64], child: NDArray[np.int64]) -> None:
    """Makes the parent's sums the other child's."""
    for i in range(np.uint64(len(parent))):
        parent[i] -= child[i]


@inlined
def _scan_lanes(
    gradient: NDArray[np.int64],
    hessian: NDArray[np.int64],
    first: int,
    scan: int,
    total: int,
    total_hessian: int,
    reg_lambda: np.float32,
    least: int,
    left: NDArray[np.int64],
    left_hessian: NDArray[np.int64],
    score: NDArray[np.float32],
) -> None:
    """Raises score[k] to the largest score of both children (eq. 2.6, in units) over the splits of lane k of a group.

    ``left, left_hessian`` are what lies left of the first bin, and end as what lies left of bin `scan`. Scores are
    right to 1e-6 of themselves; a split counts only if both children have at least `least` of Hessian.
    """
    for b in range(scan):
        at = np.uint64(first + b * GROUP)
        for k in range(_LANES):
            g, h = left[k] + gradient[at + k], left_hessian[k] + hessian[at + k]
            left[k] = g
            left_hessian[k] = h
            other_hessian = total_hessian - h
            x, y = np.float32(g), np.float32(total - g)
            value = x * x / (np.float32(h) + reg_lambda) + y * y / (np.float32(other_hessian) + reg_lambda)
            value = value if (h >= least) & (other_hessian >= least) else _NONE
            score[k] = value if value > score[k] else score[k]


@inlined
def _scan_feature(
    gradient: NDArray[np.int64],
    hessian: NDArray[np.int64],
    first: int,
    scan: int,
    has_missing: bool,
    position: int,
    node: Any,
    monotone: int,
    unit: float,
    hessian_unit: float,
    reg_lambda: float,
    reg_alpha: float,
    max_delta_step: float,
    min_child_weight: float,
    noise: float,
    best: Any,
) -> None:
    """Replaces the best split by a better one of one feature; missing values go right first, then left."""
    total, total_hessian = node.gradient * unit, node.hessian * hessian_unit
    start, start_hessian = 0, 0
    for way in range(2 if has_missing else 1):
        g, h = start, start_hessian
        at = np.uint64(first)
        for b in range(scan):
            g += gradient[at]
            h += hessian[at]
            empty = gradient[at] == 0 and hessian[at] == 0
            at += _LANES
            if empty:
                continue
            left, left_hessian = g * unit, h * hessian_unit
            gain = split_gain(
                left, left_hessian, total - left, total_hessian - left_hessian, reg_lambda, reg_alpha, max_delta_step,
                min_child_weight, monotone, node.lower, node.upper,
            )  # fmt: skip
            if gain > best.gain and gain > noise:
                best.gain = gain
                best.position = position
                best.bin = b
                best.default_left = way
                best.gradient = g
                best.hessian = h
        start, start_hessian = node.gradient - g, node.hessian - h  # what the bins lack of the node's total
        if start == 0 and start_hessian == 0:
            break


@inlined
def find_split(
    pool: NDArray[np.int64],
    node: Any,
    subtract: int,
    feature: NDArray[np.int64],
    first: NDArray[np.int64],
    scan: NDArray[np.int64],
    missing: NDArray[np.int64],
    mask: NDArray[np.bool_],
    monotone: NDArray[np.int64],
    plain: bool,
    unit: float,
    hessian_unit: float,
    reg_lambda: float,
    reg_alpha: float,
    max_delta_step: float,
    min_child_weight: float,
    score: NDArray[np.float32],
    left: NDArray[np.int64],
    best: Any,
) -> None:
    """Sets `best` to a node's best split; of equal gains the first position's, default's and bin's wins.

    If `subtract` is a slot, the node's histogram is its parent's still, and that slot's is taken off first.
    ``mask[feature]``: which features may be split on. If `plain` (no constraint, no L1 penalty), scores are estimated
    in single precision, 32 features in step; then only the features whose estimate is near the largest are searched.
    """
    best.gain = -math.inf
    gradient, hessian = pool[node.slot, 0], pool[node.slot, 1]
    if subtract >= 0:
        _subtract(gradient, pool[subtract, 0])
        _subtract(hessian, pool[subtract, 1])
    near = np.float32(0.0)
    if plain:
        least = np.int64(math.ceil(min_child_weight / hessian_unit))
        least = least if least > 1 else np.int64(1)
        scaled_lambda = np.float32(reg_lambda / hessian_unit)
        for p in range(len(score)):
            score[p] = _NONE
        for group in range(len(scan)):
            lanes = score[group * GROUP : (group + 1) * GROUP]
            for k in range(GROUP):
                left[0, k] = left[1, k] = 0
            for way in range(2):
                _scan_lanes(
                    gradient, hessian, first[group], scan[group], node.gradient, node.hessian, scaled_lambda, least,
                    left[0], left[1], lanes,
                )  # fmt: skip
                if way == 1 or not _missing_left(left, node.gradient, node.hessian, missing, group):
                    break
        largest = _NONE
        for p in range(len(feature)):
            if not mask[feature[p]]:
                score[p] = _NONE
            largest = score[p] if score[p] > largest else largest
        near = largest * _NEAR
        if largest < 0:
            return
    noise = _NOISE * leaf_score(node.gradient * unit, node.hessian * hessian_unit, reg_lambda, reg_alpha, 0.0)
    for p in range(len(feature)):
        f = feature[p]
        if mask[f] and (not plain or score[p] >= near):
            _scan_feature(
                gradient, hessian, first[p // GROUP] + p % GROUP, scan[p // GROUP], missing[p] != 0, p, node,
                monotone[f], unit, hessian_unit, reg_lambda, reg_alpha, max_delta_step, min_child_weight, noise, best,
            )  # fmt: skip


@inlined
def _missing_left(
    left: NDArray[np.int64], total: int, total_hessian: int, missing: NDArray[np.int64], group: int
) -> bool:
    """Makes sums over present values those over missing values; whether there are any."""
    some = 0
    for k in range(GROUP):
        flag = missing[group * GROUP + k]
        left[0, k] = (total - left[0, k]) & flag
        left[1, k] = (total_hessian - left[1, k]) & flag
        some |= left[0, k] | left[1, k]
    return some != 0


@kernel
def find_splits(
    pool: NDArray[np.int64],
    nodes: NDArray[Any],
    subtract: NDArray[np.int64],
    feature: NDArray[np.int64],
    first: NDArray[np.int64],
    scan: NDArray[np.int64],
    missing: NDArray[np.int64],
    allowed: NDArray[np.bool_],
    monotone: NDArray[np.int64],
    plain: bool,
    unit: float,
    hessian_unit: float,
    reg_lambda: float,
    reg_alpha: float,
    max_delta_step: float,
    min_child_weight: float,
    begin: int,
    end: int,
    best: NDArray[Any],
) -> None:
    """`find_split` for ``nodes[begin:end]``; ``allowed[i]``, or [0] for all nodes, is the mask of features."""
    score, left = np.empty(len(missing), np.float32), np.empty((2, GROUP), np.int64)
    for i in range(begin, end):
        find_split(
            pool, nodes[i], subtract[i], feature, first, scan, missing, allowed[i if len(allowed) > 1 else 0], monotone,
            plain, unit, hessian_unit, reg_lambda, reg_alpha, max_delta_step, min_child_weight, score, left, best[i],
        )  # fmt: skip
