"""Splits by category: one against the rest, or a partition of the categories sorted by gradient over Hessian."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.growth.bins import HistogramLayout, lanes_of
from burnish.boost.growth.nodes import (
    CAT_L2,
    CAT_SMOOTH,
    CAT_THRESHOLD,
    CATEGORY,
    FEWEST_LISTED,
    GROUP,
    HESSIAN_UNIT,
    MAX_DELTA_STEP,
    MIN_CHILD_WEIGHT,
    MOST_LISTED,
    ONE_HOT,
    REG_ALPHA,
    REG_LAMBDA,
    SHARE_LISTED,
    SHARED,
    SHARED_GROUP,
    UNIT,
)
from burnish.boost.kernels import inlined, region
from burnish.boost.splitter import leaf_score, leaf_weight, split_gain, weight_score

_ONE, _BITS, _WORD = np.uint64(1), np.uint64(6), np.uint64(63)
_NOTHING, _EMPTY = np.int64(0), np.uint64(0)
_NOISE = 1e-12  # share of a node's score that a gain must exceed to be more than rounding


class Categories(NamedTuple):
    """Categorical features for kernels, with a bit set of the categories that go right for each node."""

    positions: NDArray[np.int64]  # of the categorical features in a `HistogramLayout`
    counts: NDArray[np.int64]  # of their categories
    masks: NDArray[np.bool_]  # (depths or 1, features): which of them may be split on
    sets: NDArray[np.uint64]  # (nodes · words,): bit c of a node's words is set if category c goes right
    words: int
    key: NDArray[np.float64]  # (threads, most categories), scratch; of a thread, its row
    order: NDArray[np.int64]  # the same


def set_words(layout: HistogramLayout, categorical: NDArray[np.bool_]) -> int:
    """The words of 64 bits that a set of categories takes."""
    return -(-int(layout.count[categorical[layout.feature]].max(initial=0)) // 64)


def categories_of(
    layout: HistogramLayout, masks: NDArray[np.bool_], categorical: NDArray[np.bool_], nodes: int, threads: int
) -> Categories:
    """Uninitialised bit sets for `nodes` nodes, for the categorical features that `masks` allows."""
    positions = np.flatnonzero(categorical[layout.feature])
    counts = layout.count[positions]
    most, words = int(counts.max(initial=1)), set_words(layout, categorical)
    sets = np.empty(nodes * words, np.uint64)
    key, order = np.empty((threads, most)), np.empty((threads, most), np.int64)
    return Categories(positions, counts, masks & categorical, sets, words, key, order)


@inlined
def scratch_of(categories: Any, thread: int) -> Any:
    """The categories with a thread's own scratch; None of none."""
    if categories is None:
        return None
    positions, counts, masks, sets, words, key, order = categories
    return Categories(positions, counts, masks, sets, words, key[thread], order[thread])


def right_of(sets: NDArray[np.uint64], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Whether each category goes right by some rows of the sets (sets, words): (rows, 64 · words)."""
    chosen = sets[rows].astype("<u8")
    return np.unpackbits(chosen.view(np.uint8), axis=1, bitorder="little")


@inlined
def _sort(order: NDArray[np.int64], key: NDArray[np.float64], count: int) -> None:
    """Sorts the first `count` categories of `order` by their keys, then by number (Shell's method)."""
    # In place and without recursion, for the kernels that this is inlined in. Ties go by number, so that the order, and
    # with it the tree, follows from the sums alone.
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            c = order[i]
            j = i
            while j >= gap:
                other = order[j - gap]
                if key[other] < key[c] or (key[other] == key[c] and other < c):
                    break
                order[j] = other
                j -= gap
            order[j] = c
        gap = gap // 3


@inlined
def _score(gradient: float, hessian: float, smoothing: float, node: Any, rules: NDArray[np.float64]) -> float:
    """The score of a node as a leaf, within its bounds, with so much more L2."""
    own, reg_alpha, step = rules[REG_LAMBDA] + smoothing, rules[REG_ALPHA], rules[MAX_DELTA_STEP]
    if node.lower == -math.inf and node.upper == math.inf:
        return leaf_score(gradient, hessian, own, reg_alpha, step)
    weight = leaf_weight(gradient, hessian, own, reg_alpha, step, node.lower, node.upper)
    return weight_score(gradient, hessian, weight, own, reg_alpha)


@inlined
def _offer(
    node: Any, right: int, right_hessian: int, right_rows: int, missing: int, missing_hessian: int, missing_rows: int,
    rows: int, least: int, smoothing: float, handicap: float, floor: float, rules: NDArray[np.float64],
) -> int:  # fmt: skip
    """Takes a split that gains more than the node's best: the set's sums go right, and missing values to either side.

    Returns whether it was taken. `handicap` is taken off the gain, which must exceed `floor`. Either side must have
    `least` of the node's rows.
    """
    total, total_hessian = node.gradient * rules[UNIT], node.hessian * rules[HESSIAN_UNIT]
    taken = 0
    for way in range(2 if missing | missing_hessian else 1):
        g, h, c = right, right_hessian, right_rows
        if way == 1:
            g += missing
            h += missing_hessian
            c += missing_rows
        x, y = g * rules[UNIT], h * rules[HESSIAN_UNIT]
        gain = split_gain(
            total - x, total_hessian - y, x, y, rules[REG_LAMBDA] + smoothing, rules[REG_ALPHA], rules[MAX_DELTA_STEP],
            rules[MIN_CHILD_WEIGHT], 0, node.lower, node.upper,
        ) - handicap  # fmt: skip
        if gain > node.gain and gain > floor and h < node.hessian and c >= least and rows - c >= least:
            node.gain = gain
            node.bin = 0
            node.default_left = 1 - way
            node.left_gradient = node.gradient - g
            node.left_hessian = node.hessian - h
            taken = 1
    return taken


@inlined
def _most_listed(threshold: float, count: int) -> np.int64:
    """The most categories of the smaller side: the threshold, or if negative, by their number and rows."""
    if threshold < 0.0:
        threshold = min(max(-threshold / count, count * SHARE_LISTED, FEWEST_LISTED), MOST_LISTED)
    return np.int64(threshold)


@inlined
def _choose(
    sets: NDArray[np.uint64], begin: np.uint64, words: int, order: NDArray[np.int64], first: int, last: int
) -> None:
    """Makes a node's set the categories ``order[first:last]``."""
    for word in range(np.uint64(words)):
        sets[begin + word] = _EMPTY
    for k in range(first, last):
        c = np.uint64(order[k])
        sets[begin + (c >> _BITS)] |= _ONE << (c & _WORD)


@inlined
def send_right(categories: Any, category: int, codes: int, right: NDArray[np.uint8]) -> None:
    """Sets right[code] to 1 for the categories in a set, and to 0 for the others; of set -1, nothing."""
    sets, words = categories.sets, np.uint64(categories.words)
    if category >= 0:
        for c in range(np.uint64(codes)):
            word = c >> _BITS
            bits = sets[np.uint64(category) * words + word] if word < words else _EMPTY
            right[c] = bits >> (c & _WORD) & _ONE


@inlined
def _least_of(counted: Any) -> np.int64:
    if counted is None:
        return _NOTHING
    return np.int64(counted[3])


@inlined
def _rows_of(counted: Any, here: int) -> np.int64:
    if counted is None:
        return _NOTHING
    return counted[2][here]


@inlined
def _counts_begin(counted: Any, here: int, plane: np.uint64, at: np.uint64) -> np.uint64:
    if counted is None:
        return at
    return np.uint64(counted[1][here] * 2 + 1) * plane + at


@inlined
def _count_of(counted: Any, begin: np.uint64, offset: np.uint64) -> np.int64:
    if counted is None:
        return _NOTHING
    return counted[0][begin + offset]


@inlined
def find_partition(
    pool: NDArray[np.int64],
    at: np.uint64,
    plane: np.uint64,
    index: int,
    node: Any,
    here: int,
    categories: Any,
    floor: float,
    handicap: float,
    rules: NDArray[np.float64],
    lanes: np.uint64,
    counted: Any,
    count_at: np.uint64,
) -> None:
    """Replaces a node's best split by a better one by feature `index` of `Categories`, whose histogram is at pool[at].

    Their numbers of rows, if they are `counted` (else None), begin at count_at.

    Sorted by G / (H + cat_smooth), the best partition in two is one by threshold (Fisher 1958). As in LightGBM, rare
    categories are not sorted, but stay with the larger side; the smaller one has at most `max_cat_threshold` or
    `_most_listed`; either side, and each step between thresholds, has `min_data_per_group` rows. The smaller side goes
    right, so that categories that no row of the node has go with the larger one.
    """
    # Categories without rows in the node are left out: order[:present] are the others. Missing values have the sums
    # that are left of the node's.
    position, count = categories.positions[index], categories.counts[index]
    sets, words, key, order = categories.sets, categories.words, categories.key, categories.order
    begin = np.uint64(here * words)
    g, h, present = _NOTHING, _NOTHING, _NOTHING
    fewest = _least_of(counted)
    rows = _rows_of(counted, here)
    missing_rows = rows
    lane = at
    for c in range(count):
        missing_rows -= _count_of(counted, count_at, np.uint64(c) * lanes)
        own, own_hessian = pool[lane], pool[lane + plane]
        if own | own_hessian:
            g += own
            h += own_hessian
            order[present] = c
            present += 1
        lane += lanes
    missing, missing_hessian = node.gradient - g, node.hessian - h
    better = 0
    # The missing ones against all categories, of which none is in the set.
    if missing | missing_hessian and _offer(
        node, missing, missing_hessian, missing_rows, _NOTHING, _NOTHING, _NOTHING, rows, fewest, 0.0, 0.0, floor, rules
    ):  # fmt: skip
        node.default_left = 0
        _choose(sets, begin, words, order, 0, 0)
        better = 1
    # Few categories: each against all others. Their order does not matter, and no extra L2 is needed.
    if count < rules[ONE_HOT]:
        for k in range(present):
            offset = np.uint64(order[k]) * lanes
            own_rows = _count_of(counted, count_at, offset)
            if _offer(
                node, pool[at + offset], pool[at + plane + offset], own_rows, missing, missing_hessian, missing_rows,
                rows, fewest, 0.0, 0.0, floor, rules,
            ):  # fmt: skip
                _choose(sets, begin, words, order, k, k + 1)
                better = 1
    else:
        sorted_out = _NOTHING
        least, group = rules[SHARED] / count, rules[SHARED_GROUP] / count
        least = least if least < rules[CATEGORY] else rules[CATEGORY]
        group = group if group < rules[GROUP] else rules[GROUP]
        # Rare categories drop out of `order`, in place: places are written behind those that are read.
        for k in range(present):
            c = order[k]
            lane = at + np.uint64(c) * lanes
            if pool[lane + plane] >= least:
                key[c] = pool[lane] / (pool[lane + plane] + rules[CAT_SMOOTH] / rules[HESSIAN_UNIT] + 1e-16)
                order[sorted_out] = c
                sorted_out += 1
        _sort(order, key, sorted_out)
        most, half = _most_listed(rules[CAT_THRESHOLD], count), (sorted_out + 1) // 2
        most = most if most < half else half
        # The side that goes right, and is listed, is a prefix or a suffix of the order. Both ends are searched, each to
        # the middle at most, as a longer list would be the other end's rest.
        for way in range(2):
            g, h, since, right_rows = _NOTHING, _NOTHING, _NOTHING, _NOTHING
            for k in range(most):
                offset = np.uint64(order[k if way == 0 else sorted_out - 1 - k]) * lanes
                lane = at + offset
                right_rows += _count_of(counted, count_at, offset)
                g += pool[lane]
                h += pool[lane + plane]
                since += pool[lane + plane]
                # The rest only shrinks from here: no later threshold will do. The listed side only grows: one may.
                if node.hessian - h < group or rows - right_rows < fewest:
                    break
                if since < group or right_rows + missing_rows < fewest:
                    continue
                since = _NOTHING
                if _offer(
                    node, g, h, right_rows, missing, missing_hessian, missing_rows, rows, fewest, rules[CAT_L2],
                    handicap, floor, rules,
                ):  # fmt: skip
                    if way == 0:
                        _choose(sets, begin, words, order, 0, k + 1)
                    else:
                        _choose(sets, begin, words, order, sorted_out - 1 - k, sorted_out)
                    better = 1
    if better:
        node.position = position
        node.category = here


@inlined
def improve_by_category(
    pool: NDArray[np.int64],
    node: Any,
    here: int,
    mask: int,
    feature: NDArray[np.int64],
    first: NDArray[np.int64],
    categories: Any,
    rules: NDArray[np.float64],
    narrow: Any,
    counted: Any,
) -> None:
    """Replaces a node's best split where one by category gains more; its set becomes number `here` of the sets.

    counted: `counted.Counted` of nodes of which this is number `here`, or None.
    """
    positions, masks = categories.positions, categories.masks
    plane, lanes = np.uint64(first[len(first) - 1]), lanes_of(narrow)
    width = np.int64(lanes)
    begin = np.uint64(node.slot * 2) * plane
    g, h = node.gradient * rules[UNIT], node.hessian * rules[HESSIAN_UNIT]
    floor = _NOISE * leaf_score(g, h, rules[REG_LAMBDA], rules[REG_ALPHA], 0.0)
    # The children's scores bear cat_l2, that of their parent does not.
    handicap = _score(g, h, 0.0, node, rules) - _score(g, h, rules[CAT_L2], node, rules)
    node.category = -1
    for i in range(len(positions)):
        p = positions[i]
        if masks[mask, feature[p]]:
            at = np.uint64(first[p // width] + p % width)
            find_partition(
                pool, begin + at, plane, i, node, here, categories, floor, handicap, rules, lanes, counted,
                _counts_begin(counted, here, plane, at),
            )  # fmt: skip


@region
def find_categories(
    nodes: NDArray[Any],
    pool: NDArray[np.int64],
    feature: NDArray[np.int64],
    first: NDArray[np.int64],
    categories: Any,
    rules: NDArray[np.float64],
    narrow: Any,
    counted: Any,
    begin: int,
    end: int,
    thread: int,
) -> None:
    """`improve_by_category` for nodes begin … end; the set of node i is number i."""
    own = scratch_of(categories, thread)
    for i in range(begin, end):
        mask = i if len(categories.masks) > 1 else 0
        improve_by_category(pool, nodes[i], i, mask, feature, first, own, rules, narrow, counted)
