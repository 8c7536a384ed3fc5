"""Best splits of nodes from their histograms: one scan of the bins, another where values are missing (Algorithm 3).

Two filters narrow which ends of bins a scan considers: `Candidates`, which are each node's own (Algorithm 2 with local
proposals), and rows of bins, of which both sides must have enough (`counted.Counted`). Neither is compiled where it is
None.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.growth.bins import GROUP, lanes_of
from burnish.boost.growth.nodes import (
    HESSIAN_UNIT,
    MAX_DELTA_STEP,
    MIN_CHILD_WEIGHT,
    MOST_UNITS,
    REG_ALPHA,
    REG_LAMBDA,
    UNIT,
)
from burnish.boost.kernels import inlined, region
from burnish.boost.splitter import leaf_score, split_gain

_NONE, _NEAR = np.float32(-1.0), np.float32(1 - 1e-5)
_ZERO, _LANES, _PAIRS = np.uint64(0), np.uint64(GROUP), np.uint64(2 * GROUP)
_NOTHING, _FIRST = np.int64(0), np.float32(0.0)
_NOISE = 1e-12  # share of a node's score that a gain must exceed to be more than rounding
_OVER = 1 + 1e-5  # so that all of the Hessians reach the last multiple, however they are rounded
LANES = 3 * GROUP  # of the scratch `left` of `find_split`


class Candidates(NamedTuple):
    """Candidate splits of a node and feature, at most `most`, and scratch to find them, for lanes of whole groups.

    The bins are those of a grid that is finer. The end of a bin is a candidate of a node where the sum of its Hessians
    passes a multiple of ``total / most`` (eq. 2.9), which a scan of the histogram has at hand anyway.
    """

    most: int
    share: NDArray[np.float32]  # (lanes,): candidates per unit of Hessian
    passed: NDArray[np.float32]  # (GROUP,): the rank at the bin before
    sums: NDArray[np.int64]  # (GROUP,): of Hessians

    @classmethod
    def of(cls, most: int, positions: int, threads: int) -> "Candidates":
        """Scratch of some threads, a row for each, for `positions` features, rounded up to whole groups."""
        lanes = -(-positions // GROUP) * GROUP
        share, passed = np.empty((threads, lanes), np.float32), np.empty((threads, GROUP), np.float32)
        return cls(most, share, passed, np.empty((threads, GROUP), np.int64))


class _Bins(NamedTuple):
    """Where a feature's bins lie in a histogram, and how they may split a node."""

    first: np.uint64  # place of the first bin's gradients
    plane: np.uint64  # what Hessians lie behind
    lanes: np.uint64  # from bin to bin
    scan: int  # bins after which a split may be
    ways: int  # 2: missing values go right, or left
    position: int
    monotone: int


@inlined
def own_of(candidates: Any, thread: int) -> Any:
    """The candidates with a thread's own scratch."""
    if candidates is None:
        return None
    return Candidates(candidates.most, candidates.share[thread], candidates.passed[thread], candidates.sums[thread])


@inlined
def take_off(pool: NDArray[np.int64], slot: int, other: int, size: np.uint64) -> None:
    """Makes a slot's histogram, the parent's, that of the other child."""
    begin, at = np.uint64(slot) * size, np.uint64(other) * size
    for i in range(size):
        pool[begin + i] -= pool[at + i]


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
    lanes: np.uint64,
    narrow: Any,
    candidates: Any,
) -> None:
    """Raises score[lanes + k] to the largest score of both children (eq. 2.6, in units) over the splits of lane k.

    The group's histogram begins at pool[at], `plane` before the Hessians. ``left[k]`` and ``left[GROUP + k]`` are what
    lies left of the first bin, and end as what lies left of bin `scan`; left[2 GROUP + k] are Hessians of missing
    values among those, which do not count for the ranks of candidates. Scores are right to 1e-6 of themselves; a split
    counts only if both children have at least `least` of Hessian.
    """
    width = lanes_of(narrow)
    if candidates is not None:
        for k in range(width):
            candidates.passed[k] = 0
    for _ in range(scan):
        for k in range(width):
            g, h = left[k] + pool[at + k], left[k + _LANES] + pool[at + plane + k]
            left[k] = g
            left[k + _LANES] = h
            other_hessian = total_hessian - h
            x, y = np.float32(g), np.float32(total - g)
            value = x * x / (np.float32(h) + reg_lambda) + y * y / (np.float32(other_hessian) + reg_lambda)
            value = value if (h >= least) & (other_hessian >= least) else _NONE
            if candidates is not None:
                rank = np.floor(np.float32(h - left[k + _PAIRS]) * candidates.share[lanes + k])
                value = value if rank > candidates.passed[k] else _NONE
                candidates.passed[k] = rank
            score[lanes + k] = value if value > score[lanes + k] else score[lanes + k]
        at += width


@inlined
def _set_shares(
    candidates: Any, pool: NDArray[np.int64], at: np.uint64, scan: int, total: int, missing: NDArray[np.int64],
    lanes: np.uint64,
) -> None:  # fmt: skip
    """Sets the candidates for each unit of present Hessians in a group, whose histogram of these begins at pool[at]."""
    share, sums = candidates.share, candidates.sums
    some = _NOTHING
    for k in range(_LANES):
        sums[k] = 0
        some |= missing[lanes + k]
    for _ in range(scan if some else 0):
        for k in range(_LANES):
            sums[k] += pool[at + k]
        at += _LANES
    for k in range(_LANES):
        present = sums[k] if missing[lanes + k] else total
        share[lanes + k] = candidates.most * _OVER / present if present > 0 else 0.0


@inlined
def _scan_feature(
    pool: NDArray[np.int64],
    bins: Any,
    node: Any,
    here: int,
    rules: NDArray[np.float64],
    noise: float,
    candidates: Any,
    counted: Any,
) -> None:
    """Replaces a node's best split by a better one of one feature; missing values go right first, then left.

    bins: `_Bins`. Rows of the node are number `here` of those `counted`.
    """
    first, plane, lanes, scan, ways, position, monotone = bins
    unit, hessian_unit = rules[UNIT], rules[HESSIAN_UNIT]
    total, total_hessian = node.gradient * unit, node.hessian * hessian_unit
    start, start_hessian, start_rows = _NOTHING, _NOTHING, _NOTHING
    # Sums are integers in units: the same, and so are gains, in any order of rows and for any number of threads.
    for way in range(ways):
        g, h, rows, passed = start, start_hessian, start_rows, _FIRST
        at = first
        for b in range(scan):
            g += pool[at]
            h += pool[at + plane]
            # An empty bin ends no split that the bin before it does not: only the first of equal splits is tried.
            some = pool[at] | pool[at + plane]
            if counted is not None:
                some = counted.pool[at + np.uint64(2 * (counted.slots[here] - node.slot) + 1) * plane]
                rows += some
                if rows < counted.least or counted.rows[here] - rows < counted.least:
                    some = _NOTHING
            if candidates is not None:
                rank = np.floor(np.float32(h - start_hessian) * candidates.share[position])
                if rank <= passed:
                    some = _NOTHING
                passed = rank
            if some:
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
            at += lanes
        # The second way begins with the missing values' sums; without any it would only repeat the first.
        start, start_hessian = node.gradient - g, node.hessian - h  # what the bins lack of the node's total
        some = start | start_hessian
        if counted is not None:
            some = start_rows = counted.rows[here] - rows
        if some == 0:
            break


@inlined
def _find_bundled(
    pool: NDArray[np.int64],
    begin: np.uint64,
    plane: np.uint64,
    node: Any,
    feature: NDArray[np.int64],
    first: NDArray[np.int64],
    masks: NDArray[np.bool_],
    mask: int,
    monotone: NDArray[np.int64],
    rules: NDArray[np.float64],
    noise: float,
    bundle: Any,
    lanes: np.uint64,
) -> None:
    """`find_split` among features that are ranges of the codes of a column (`Layout.bundle`)."""
    columns, base, counts = bundle
    width = np.int64(lanes)
    least = math.ceil(rules[MIN_CHILD_WEIGHT] / rules[HESSIAN_UNIT])
    for p in range(len(feature)):
        f, column = feature[p], columns[p]
        if masks[mask, f]:
            at = begin + np.uint64(first[column // width] + column % width) + np.uint64(base[p]) * lanes
            # Most features of one bin have too few rows of a node.
            if counts[p] > 1 or (pool[at + plane] >= least and node.hessian - pool[at + plane] >= least):
                bins = _Bins(at, plane, lanes, counts[p], 2, p, monotone[f])
                _scan_feature(pool, bins, node, 0, rules, noise, None, None)


@inlined
def find_split(
    pool: NDArray[np.int64],
    node: Any,
    positions: Any,
    limits: Any,
    mask: int,
    score: NDArray[np.float32],
    left: NDArray[np.int64],
    bundle: Any,
    candidates: Any,
    counted: Any,
    here: int,
) -> None:
    """Sets a node's best split; of equal gains the first position's, default's and bin's wins.

    pool: (slots, 2, size), flat. positions: `bins.Positions`; limits: `nodes.Limits`, of whose masks `mask` is the
    node's. If they are plain, scores are estimated in single precision, 32 features in step (8 if narrow); then only
    the features whose estimate is near the largest are searched. score (positions, whole groups) and left (`LANES`)
    are scratch. candidates: `Candidates`, or None: all bins. counted: `counted.Counted`, of whose nodes this is number
    `here`, or None. With either, groups have `GROUP` lanes and no bundles.
    """
    node.gain = -math.inf
    feature, first, scan, missing = positions.feature, positions.first, positions.scan, positions.missing
    masks, monotone, plain, rules = limits.masks, limits.monotone, limits.plain, limits.rules
    few = lanes_of(positions.narrow)
    width = np.int64(few)
    groups = len(scan)
    plane = np.uint64(first[groups])
    begin = np.uint64(node.slot * 2) * plane
    near = _NONE
    noise = _NOISE * leaf_score(
        node.gradient * rules[UNIT], node.hessian * rules[HESSIAN_UNIT], rules[REG_LAMBDA], rules[REG_ALPHA], 0.0
    )
    if bundle is not None:
        _find_bundled(pool, begin, plane, node, feature, first, masks, mask, monotone, rules, noise, bundle, few)
        return
    if candidates is not None:
        for group in range(groups):
            at, lanes = begin + np.uint64(first[group]), np.uint64(group * width)
            _set_shares(candidates, pool, at + plane, scan[group], node.hessian, missing, lanes)
    # A filter: single precision over 32 features at once costs a fraction of the exact scan, which then runs only for
    # those within `_NEAR` of the largest estimate, a margin for its rounding.
    estimated = plain and counted is None
    if estimated:
        least = np.int64(math.ceil(min(rules[MIN_CHILD_WEIGHT] / rules[HESSIAN_UNIT], MOST_UNITS)))
        least = least if least > 1 else np.int64(1)
        scaled_lambda = np.float32(rules[REG_LAMBDA] / rules[HESSIAN_UNIT])
        for p in range(len(score)):
            score[p] = _NONE
        for group in range(groups):
            for i in range(_PAIRS + _LANES):
                left[i] = _NOTHING
            lanes = np.uint64(group * width)
            for _ in range(2):
                _scan_lanes(
                    pool, begin + np.uint64(first[group]), plane, scan[group], node.gradient, node.hessian,
                    scaled_lambda, least, left, score, lanes, positions.narrow, candidates,
                )  # fmt: skip
                if first[group + 1] - first[group] == width:  # one bin: missing values beside it leave nothing opposite
                    break
                some = _NOTHING
                for k in range(few):  # what lacks are missing values, which go left next
                    flag = missing[lanes + k]
                    left[k] = (node.gradient - left[k]) & flag
                    left[k + _LANES] = (node.hessian - left[k + _LANES]) & flag
                    left[k + _PAIRS] = left[k + _LANES]
                    some |= left[k] | left[k + _LANES]
                if some == 0:
                    break
        for p in range(len(feature)):
            if not masks[mask, feature[p]]:
                score[p] = _NONE
            near = score[p] if score[p] > near else near
        if near < 0:
            return
        near *= _NEAR
    for p in range(len(feature)):
        if estimated and score[p] < near:
            continue
        f = feature[p]
        if masks[mask, f]:
            own = p // width
            at = begin + np.uint64(first[own] + p % width)
            bins = _Bins(at, plane, few, scan[own], 2 if missing[p] else 1, p, monotone[f])
            _scan_feature(pool, bins, node, here, rules, noise, candidates, counted)


@region
def find_splits(
    nodes: NDArray[Any],
    pool: NDArray[np.int64],
    positions: Any,
    limits: Any,
    score: NDArray[np.float32],
    left: NDArray[np.int64],
    bundle: Any,
    candidates: Any,
    counted: Any,
    begin: int,
    end: int,
    thread: int,
) -> None:
    """`find_split` for ``nodes[begin:end]``; ``limits.masks[i]``, or [0] for all nodes, is the mask of features.

    Where ``nodes[i].subtract`` is a slot, the node's histogram is its parent's still, and that slot's is taken off.
    score and left, and what is scratch of the candidates, have a row for each thread.
    """
    size = np.uint64(2 * positions.first[len(positions.scan)])
    for i in range(begin, end):
        if nodes[i].subtract >= 0:
            take_off(pool, nodes[i].slot, nodes[i].subtract, size)
        mask = i if len(limits.masks) > 1 else 0
        find_split(
            pool, nodes[i], positions, limits, mask, score[thread], left[thread], bundle, own_of(candidates, thread),
            counted, i,
        )  # fmt: skip
