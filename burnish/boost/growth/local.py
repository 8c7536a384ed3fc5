"""Best splits of nodes at candidates of their own (thesis-chen Algorithm 2, local proposals), from fine histograms.

The bins are those of a grid that is finer than the candidates. The end of a bin is a candidate of a node where the sum
of its Hessians passes a multiple of ``total / candidates`` (eq. 2.9), which a scan of the histogram has at hand anyway.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.growth.bins import GROUP
from burnish.boost.growth.evaluate import take_off
from burnish.boost.growth.nodes import (
    HESSIAN_UNIT,
    MAX_DELTA_STEP,
    MIN_CHILD_WEIGHT,
    MOST_UNITS,
    REG_ALPHA,
    REG_LAMBDA,
    UNIT,
)
from burnish.boost.kernels import inlined, lean
from burnish.boost.splitter import leaf_score, split_gain

_NONE, _NEAR = np.float32(-1.0), np.float32(1 - 1e-5)
_LANES, _PAIRS = np.uint64(GROUP), np.uint64(2 * GROUP)
_NOTHING = np.int64(0)
_NOISE = 1e-12  # share of a node's score that a gain must exceed to be more than rounding
_OVER = 1 + 1e-5  # so that all of the Hessians reach the last multiple, however they are rounded


class Scratch(NamedTuple):
    """Where `find_local_splits` works, for lanes of whole groups."""

    score: NDArray[np.float32]  # (lanes,): the best estimate of a feature
    share: NDArray[np.float32]  # (lanes,): candidates per unit of Hessian
    passed: NDArray[np.float32]  # (GROUP,): the rank at the bin before
    absent: NDArray[np.int64]  # (2 lanes,): sums over missing values, of gradients and then of Hessians
    left: NDArray[np.int64]  # (3 GROUP,): see `_scan_lanes`

    @classmethod
    def of(cls, positions: int) -> "Scratch":
        """Of so many positions."""
        lanes = -(-positions // GROUP) * GROUP
        floats = np.empty(lanes, np.float32), np.empty(lanes, np.float32), np.empty(GROUP, np.float32)
        return cls(*floats, np.empty(2 * lanes, np.int64), np.empty(3 * GROUP, np.int64))


@inlined
def _scan_lanes(
    pool: NDArray[np.int64],
    at: np.uint64,
    plane: np.uint64,
    scan: int,
    total: int,
    total_hessian: int,
    reg_lambda: np.float32,
    least: int,
    left: NDArray[np.int64],
    score: NDArray[np.float32],
    share: NDArray[np.float32],
    passed: NDArray[np.float32],
    lanes: np.uint64,
) -> None:
    """Raises score[lanes + k] to the largest score of both children (eq. 2.6, in units) over the candidates of lane k.

    See `evaluate`. left: sums of gradients and of Hessians left of the first bin, and of the latter those that do not
    count for the rank (missing values). share: candidates per unit of Hessian. passed: scratch.
    """
    for k in range(_LANES):
        passed[k] = 0
    for _ in range(scan):
        for k in range(_LANES):
            g, h = left[k] + pool[at + k], left[k + _LANES] + pool[at + plane + k]
            left[k] = g
            left[k + _LANES] = h
            rank = np.floor(np.float32(h - left[k + _PAIRS]) * share[lanes + k])
            other_hessian = total_hessian - h
            x, y = np.float32(g), np.float32(total - g)
            value = x * x / (np.float32(h) + reg_lambda) + y * y / (np.float32(other_hessian) + reg_lambda)
            value = value if (h >= least) & (other_hessian >= least) & (rank > passed[k]) else _NONE
            score[lanes + k] = value if value > score[lanes + k] else score[lanes + k]
            passed[k] = rank
        at += _LANES


@inlined
def _scan_feature(
    pool: NDArray[np.int64],
    first: np.uint64,
    plane: np.uint64,
    scan: int,
    absent: np.int64,
    absent_hessian: np.int64,
    share: np.float32,
    position: int,
    node: Any,
    monotone: int,
    rules: NDArray[np.float64],
    noise: float,
) -> None:
    """Replaces a node's best split by a better one of one feature; missing values go right first, then left."""
    unit, hessian_unit = rules[UNIT], rules[HESSIAN_UNIT]
    total, total_hessian = node.gradient * unit, node.hessian * hessian_unit
    start, start_hessian = _NOTHING, _NOTHING
    for way in range(2):
        g, h, passed = start, start_hessian, np.float32(0)
        at = first
        for b in range(scan):
            g += pool[at]
            h += pool[at + plane]
            at += _LANES
            rank = np.floor(np.float32(h - start_hessian) * share)
            if rank > passed:
                left, left_hessian = g * unit, h * hessian_unit
                gain = split_gain(
                    left, left_hessian, total - left, total_hessian - left_hessian, rules[REG_LAMBDA], rules[REG_ALPHA],
                    rules[MAX_DELTA_STEP], rules[MIN_CHILD_WEIGHT], monotone, node.lower, node.upper,
                )  # fmt: skip
                if gain > node.gain and gain > noise:
                    node.gain = gain
                    node.position = position
                    node.bin = b
                    node.default_left = way
                    node.left_gradient = g
                    node.left_hessian = h
            passed = rank
        start, start_hessian = absent, absent_hessian
        if start | start_hessian == 0:
            break


@inlined
def _absent_sums(
    pool: NDArray[np.int64],
    at: np.uint64,
    plane: np.uint64,
    scan: int,
    node: Any,
    missing: NDArray[np.int64],
    lanes: np.uint64,
    absent: NDArray[np.int64],
    half: np.uint64,
) -> bool:
    """Sets absent[lanes + k], and `half` further, to the sums over missing values in a group; whether there are any."""
    some = _NOTHING
    for k in range(_LANES):
        absent[lanes + k] = absent[half + lanes + k] = 0
        some |= missing[lanes + k]
    if some == 0:
        return False
    for _ in range(scan):
        for k in range(_LANES):
            absent[lanes + k] += pool[at + k]
            absent[half + lanes + k] += pool[at + plane + k]
        at += _LANES
    some = _NOTHING
    for k in range(_LANES):
        flag = missing[lanes + k]
        absent[lanes + k] = (node.gradient - absent[lanes + k]) & flag
        absent[half + lanes + k] = (node.hessian - absent[half + lanes + k]) & flag
        some |= absent[lanes + k] | absent[half + lanes + k]
    return some != 0


@inlined
def _find_split(
    pool: NDArray[np.int64],
    node: Any,
    positions: Any,
    limits: Any,
    mask: int,
    candidates: int,
    scratch: Any,
) -> None:
    """`evaluate.find_split` at the node's candidates."""
    node.gain = -math.inf
    feature, first, scan, missing = positions.feature, positions.first, positions.scan, positions.missing
    masks, monotone, plain, rules = limits.masks, limits.monotone, limits.plain, limits.rules
    score, share, passed, absent, left = scratch
    groups, half = len(scan), np.uint64(len(score))
    plane = np.uint64(first[groups])
    begin = np.uint64(node.slot * 2) * plane
    least = np.int64(math.ceil(min(rules[MIN_CHILD_WEIGHT] / rules[HESSIAN_UNIT], MOST_UNITS)))
    least = least if least > 1 else np.int64(1)
    scaled_lambda = np.float32(rules[REG_LAMBDA] / rules[HESSIAN_UNIT])
    for group in range(groups):
        lanes, at = np.uint64(group * GROUP), begin + np.uint64(first[group])
        some = _absent_sums(pool, at, plane, scan[group], node, missing, lanes, absent, half)
        for k in range(_LANES):
            present = node.hessian - absent[half + lanes + k]
            share[lanes + k] = candidates * _OVER / present if present > 0 else 0.0
            score[lanes + k] = _NONE
            left[k] = left[k + _LANES] = left[k + _PAIRS] = 0
        for _ in range((2 if some else 1) if plain else 0):
            _scan_lanes(
                pool, at, plane, scan[group], node.gradient, node.hessian, scaled_lambda, least, left, score, share,
                passed, lanes,
            )  # fmt: skip
            for k in range(_LANES):
                left[k] = absent[lanes + k]
                left[k + _LANES] = left[k + _PAIRS] = absent[half + lanes + k]
    near = _NONE
    for p in range(len(feature)):
        near = score[p] if score[p] > near and masks[mask, feature[p]] else near
    if plain and near < 0:
        return
    near *= _NEAR
    noise = _NOISE * leaf_score(
        node.gradient * rules[UNIT], node.hessian * rules[HESSIAN_UNIT], rules[REG_LAMBDA], rules[REG_ALPHA], 0.0
    )
    for p in range(len(feature)):
        f = feature[p]
        if masks[mask, f] and (not plain or score[p] >= near):
            group = p // GROUP
            _scan_feature(
                pool, begin + np.uint64(first[group] + p % GROUP), plane, scan[group], absent[p],
                absent[half + np.uint64(p)], share[p], p, node, monotone[f], rules, noise,
            )  # fmt: skip


@lean
def find_local_splits(
    nodes: NDArray[Any],
    begin: int,
    end: int,
    pool: NDArray[np.int64],
    positions: Any,
    limits: Any,
    candidates: int,
    scratch: Any,
) -> None:
    """`evaluate.find_splits` with at most so many candidates for each node and feature; scratch: `Scratch`."""
    size = np.uint64(2 * positions.first[len(positions.scan)])
    for i in range(begin, end):
        if nodes[i].subtract >= 0:
            take_off(pool, nodes[i].slot, nodes[i].subtract, size)
        _find_split(pool, nodes[i], positions, limits, i if len(limits.masks) > 1 else 0, candidates, scratch)
