"""Kernels of the ranking objectives: statistics of pairs of documents, a query at a time, in the order of its ranks.

Pairs of one document are worked on together, in vectors; sums run in one order, whatever the number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.kernels import always_inlined, inlined, region
from burnish.boost.losses.elementary import sigmoid32
from burnish.boost.sampling import mix

PAIRWISE, NDCG, MAP = 0, 1, 2
BATCH = 256  # sampled pairs at a time
LANES = 16  # of a vector: queries are worked on in whole vectors
RUN = 16  # ranks sorted by insertion before runs are merged
LEAST = np.float32(1e-16)  # curvature of a pair, as in XGBoost
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
_ONE, _TWO, _ZERO = np.float32(1.0), np.float32(2.0), np.float32(0.0)


class Queries(NamedTuple):
    """Rows in queries, and what is known of them before there are scores."""

    label: NDArray[np.float32]  # (rows,)
    gain: NDArray[np.float32]  # (rows,)
    start: NDArray[np.int64]  # (queries + 1,): their first rows
    by_label: NDArray[np.int32]  # (rows,): each query's documents by descending label, from its first
    ideal: NDArray[np.float32]  # (queries,): 1 / best value; 0 leaves it out
    discounts: NDArray[np.float32]  # of ranks
    first_row: np.uint64  # how many rows other workers have before these
    longest: np.uint64  # rows of the largest query at least


class PairRule(NamedTuple):
    """Which pairs there are, and what they count."""

    kind: int  # PAIRWISE, NDCG, MAP
    sampled: bool  # pairs are drawn, else made of the first `pairs` ranks
    normalize: bool
    pairs: np.uint64
    key: np.uint64  # of the round


class _Ranks(NamedTuple):
    """A query's documents in the order of their ranks, with room for whole vectors of `LANES`; see `swap_change`."""

    score: NDArray[np.float32]
    label: NDArray[np.float32]
    gain: NDArray[np.float32]
    table: NDArray[np.float32]
    sums: NDArray[np.float32]
    force: NDArray[np.float32]  # scratch
    bend: NDArray[np.float32]  # scratch
    gradient: NDArray[np.float32]
    hessian: NDArray[np.float32]


@njit(**_OPTIONS)
def order_descending(score: Any, order: Any, scratch: Any) -> None:
    """Writes 0 … n - 1 into `order` by descending score; equal scores stay in order. All are of length n."""
    count = np.uint64(len(score))
    one = np.uint64(1)
    for begin in range(np.uint64(0), count, np.uint64(RUN)):
        end = min(begin + np.uint64(RUN), count)
        for i in range(begin, end):
            value = score[i]
            j: Any = i
            while j > begin and score[np.uint64(order[j - one])] < value:
                order[j] = order[j - one]
                j -= one
            order[j] = np.int32(i)
    width: Any = np.uint64(RUN)
    while width < count:
        for begin in range(np.uint64(0), count, width + width):
            middle = min(begin + width, count)
            end = min(middle + width, count)
            left: Any = begin
            right: Any = middle
            for place in range(begin, end):
                if left < middle and (right >= end or score[np.uint64(order[left])] >= score[np.uint64(order[right])]):
                    scratch[place] = order[left]
                    left += one
                else:
                    scratch[place] = order[right]
                    right += one
        for place in range(count):
            order[place] = scratch[place]
        width += width


@njit(**_OPTIONS)
def order_queries(score: Any, start: Any, order: Any) -> None:
    """`order_descending` of every query, whose rows are start[q] … start[q + 1] - 1; positions count from its first."""
    scratch = np.empty(len(score), np.int32)
    for query in range(len(start) - 1):
        lo, hi = start[query], start[query + 1]
        order_descending(score[lo:hi], order[lo:hi], scratch[lo:hi])


@always_inlined
def swap_change(kind: Any, upper: Any, lower: Any, ranks: Any) -> Any:
    """Change of the objective by swapping two ranks, upper < lower. ranks: `_Ranks`.

    NDCG: the DCG; `table` holds discounts. MAP: the sum of precisions at relevant ranks; table[r] counts the relevant
    ones up to rank r, and sums[r] adds 1 / (rank + 1) over them.
    """
    label, gain, table, sums = ranks.label, ranks.gain, ranks.table, ranks.sums
    if kind == PAIRWISE:
        return _ONE
    if kind == NDCG:
        return abs((gain[upper] - gain[lower]) * (table[upper] - table[lower]))
    here, there = np.float32(upper + np.uint64(1)), np.float32(lower + np.uint64(1))
    # The relevant one moves down, and those between count one less above them; or it moves up, and they one more.
    down = table[upper] / here - table[lower] / there + (sums[lower] - sums[upper])
    up = (table[upper] + _ONE) / here - table[lower] / there + (sums[lower] - _ONE / there - sums[upper])
    return abs(down if label[upper] > label[lower] else up)


@inlined
def _changes(kind: Any, upper: Any, start: Any, padded: Any, ranks: Any) -> None:
    """`swap_change` of one rank with each of start … padded - 1, into `bend`, in loops that become vectors."""
    gain, table, change = ranks.gain, ranks.table, ranks.bend
    if kind == PAIRWISE:
        for r in range(start, padded):
            change[r] = _ONE
    elif kind == NDCG:
        own_gain, own_discount = gain[upper], table[upper]
        for block in range(start, padded, np.uint64(LANES)):
            for lane in range(np.uint64(LANES)):
                r = block + lane
                change[r] = abs((own_gain - gain[r]) * (own_discount - table[r]))
    else:
        for block in range(start, padded, np.uint64(LANES)):
            for lane in range(np.uint64(LANES)):
                r = block + lane
                change[r] = swap_change(MAP, upper, r, ranks)


@inlined
def _statistics(upper: Any, start: Any, padded: Any, count: Any, ideal: Any, scaled: Any, ranks: Any) -> None:
    """Gradient (into `force`) and Hessian (into `bend`, which holds changes) of rank `upper` with each one below it."""
    score, label, force, bend = ranks.score, ranks.label, ranks.force, ranks.bend
    own_score, own_label = score[upper], label[upper]
    floor = np.float32(0.01) if scaled else _ONE
    slope = _ONE if scaled else _ZERO
    for block in range(start, padded, np.uint64(LANES)):
        for lane in range(np.uint64(LANES)):
            r = block + lane
            gap = own_score - score[r]
            factor = bend[r] * ideal / (gap * slope + floor)
            sign = _ONE if own_label > label[r] else -_ONE
            factor = factor if own_label != label[r] else _ZERO
            p = sigmoid32(gap * sign)
            curve = p * (_ONE - p)
            force[r] = (p - _ONE) * factor * sign
            bend[r] = (curve if curve > LEAST else LEAST) * factor * _TWO
    for r in range(start, upper + np.uint64(1)):
        force[r] = bend[r] = _ZERO
    for r in range(count, padded):
        force[r] = bend[r] = _ZERO


@inlined
def top_pairs(kind: Any, pairs: Any, count: Any, ideal: Any, spread: Any, ranks: Any) -> Any:
    """Pairs of each of the first `pairs` ranks with all below it; returns twice the sum of the gradients' magnitudes.

    ranks: `_Ranks`.
    """
    force, bend, gradient, hessian = ranks.force, ranks.bend, ranks.gradient, ranks.hessian
    total = 0.0
    scaled = spread and kind != PAIRWISE
    lanes = np.uint64(LANES)
    padded = (count + lanes - np.uint64(1)) & ~(lanes - np.uint64(1))
    upper: Any
    for upper in range(min(pairs, count)):
        start = upper & ~(lanes - np.uint64(1))
        _changes(kind, upper, start, padded, ranks)
        _statistics(upper, start, padded, count, ideal, scaled, ranks)
        for block in range(start, padded, lanes):
            for lane in range(np.uint64(LANES)):
                gradient[block + lane] -= force[block + lane]
                hessian[block + lane] += bend[block + lane]
        own_gradient: Any = _ZERO
        own_hessian: Any = _ZERO
        own_total: Any = _ZERO
        for r in range(upper + np.uint64(1), count):
            own_gradient += force[r]
            own_hessian += bend[r]
            own_total += abs(force[r])
        gradient[upper] += own_gradient
        hessian[upper] += own_hessian
        total += 2.0 * own_total
    return total


@inlined
def listed_pairs(kind: Any, filled: Any, ideal: Any, spread: Any, better: Any, worse: Any, ranks: Any) -> None:
    """Adds the pairs of ranks (better[i], worse[i]), i < filled, at most as many as force and bend have room for."""
    score, force, bend, gradient, hessian = ranks.score, ranks.force, ranks.bend, ranks.gradient, ranks.hessian
    for i in range(filled):
        force[i] = score[np.uint64(better[i])] - score[np.uint64(worse[i])]
        bend[i] = ideal
    if kind != PAIRWISE:
        for i in range(filled):
            upper, lower = np.uint64(min(better[i], worse[i])), np.uint64(max(better[i], worse[i]))
            bend[i] *= swap_change(kind, upper, lower, ranks)
            if spread:
                bend[i] /= abs(force[i]) + np.float32(0.01)
    for i in range(filled):
        factor = bend[i]
        p = sigmoid32(force[i])
        curve = p * (_ONE - p)
        force[i] = (p - _ONE) * factor
        bend[i] = (curve if curve > LEAST else LEAST) * factor * _TWO
    for i in range(filled):
        high, low = np.uint64(better[i]), np.uint64(worse[i])
        gradient[high] += force[i]
        gradient[low] -= force[i]
        hessian[high] += bend[i]
        hessian[low] += bend[i]


@njit(**_OPTIONS)
def sampled_pairs(
    kind: Any, pairs: Any, count: Any, ideal: Any, spread: Any, key: Any, by_label: Any, place_rank: Any, ranks: Any,
    better: Any, worse: Any,
) -> None:  # fmt: skip
    """Pairs of each document with `pairs` others, drawn with replacement from those of its query with another label.

    by_label: documents by descending label; place_rank: their ranks. `key` belongs to the round and the query. ranks:
    `_Ranks`. better, worse: scratch, (BATCH,).
    """
    label = ranks.label
    filled: Any = np.uint64(0)
    one = np.uint64(1)
    begin: Any = np.uint64(0)
    while begin < count:  # a run of documents of one label
        this = label[np.uint64(place_rank[begin])]
        end: Any = begin + one
        while end < count and label[np.uint64(place_rank[end])] == this:
            end += one
        run = end - begin
        others = count - run
        for place in range(begin, end):
            counter = np.uint64(by_label[place]) * pairs
            for draw in range(pairs):
                word = mix(key + (counter + draw) * np.uint64(0x9E3779B97F4A7C15))
                pick = ((word >> np.uint64(32)) * others) >> np.uint64(32)
                pick += run if pick >= begin else np.uint64(0)
                better[filled] = place_rank[min(place, pick)]
                worse[filled] = place_rank[max(place, pick)]
                filled += one
                if filled == np.uint64(BATCH):
                    listed_pairs(kind, filled, ideal, spread, better, worse, ranks)
                    filled = np.uint64(0)
        begin = end
    listed_pairs(kind, filled, ideal, spread, better, worse, ranks)


class PairScratch(NamedTuple):
    """Scratch of `lambda_gradients`, with a row for each thread."""

    numbers: NDArray[np.float32]  # (threads, 9, places)
    places: NDArray[np.int32]  # (threads, 5, places)

    @classmethod
    def of(cls, longest: int, threads: int) -> PairScratch:
        """Scratch for queries of up to `longest` rows; zeros, as what lies behind a query's last rank is read."""
        count = max(int(longest) + int(LANES), int(BATCH))
        return cls(np.zeros((threads, 9, count), np.float32), np.empty((threads, 5, count), np.int32))


@region
def lambda_gradients(
    score: Any, queries: Any, rule: Any, gradient: Any, hessian: Any, edges: Any, given: Any, begin: int, end: int,
    thread: int,
) -> None:  # fmt: skip
    """Gradient and Hessian of the rows of queries edges[begin] … edges[end] - 1.

    queries: `Queries`; rule: `PairRule`; given: `PairScratch`.
    """
    label, gain, start, by_label, ideal, discounts, first_row, _ = queries
    kind, sampled, normalize, pairs, key = rule
    # What lies behind a query's last rank is computed with, and dropped: it must be finite.
    scratch, places = given.numbers[thread], given.places[thread]
    ranked, rank_of, spare = places[0], places[1], places[2]
    one = np.uint64(1)
    for query in range(edges[begin], edges[end]):
        lo, hi = np.uint64(start[query]), np.uint64(start[query + one])
        count = hi - lo
        gradient[lo:hi] = _ZERO
        hessian[lo:hi] = _ZERO
        if count < 2 or label[lo + np.uint64(by_label[lo])] == label[lo + np.uint64(by_label[hi - one])]:
            continue
        if kind == PAIRWISE and sampled:  # pairs that all count the same need no ranks
            for r in range(count):
                ranked[r] = np.int32(r)
        else:
            order_descending(score[lo:hi], ranked[:count], spare[:count])
        s, y, w, g, h = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
        for r in range(count):
            row = lo + np.uint64(ranked[r])
            rank_of[np.uint64(ranked[r])] = np.int32(r)
            s[r], y[r], w[r], g[r], h[r] = score[row], label[row], gain[row], _ZERO, _ZERO
        table, sums = scratch[5], scratch[6]
        relevant, reciprocals = _ZERO, _ZERO
        for r in range(count):
            if kind == MAP and y[r] > _ZERO:
                relevant += _ONE
                reciprocals += _ONE / np.float32(r + one)
            table[r] = relevant if kind == MAP else discounts[r]
            sums[r] = reciprocals
        spread = s[0] != s[count - one]
        best = _ONE if kind == PAIRWISE else ideal[query]
        ranks = _Ranks(s, y, w, table, sums, scratch[7], scratch[8], g, h)
        if sampled:
            for place in range(count):
                spare[place] = rank_of[np.uint64(by_label[lo + place])]
            query_key = mix(key + first_row + lo)
            sampled_pairs(
                kind, pairs, count, best, spread, query_key, by_label[lo:hi], spare, ranks, places[3], places[4]
            )  # fmt: skip
            scale: Any = 1.0 / np.float64(pairs)
        else:
            total = top_pairs(kind, pairs, count, best, spread, ranks)
            scale = np.log2(1.0 + total) / total if total > 0.0 else 1.0
        scale = scale if normalize else 1.0
        for r in range(count):
            row = lo + np.uint64(ranked[r])
            gradient[row] = g[r] * np.float32(scale)
            hessian[row] = h[r] * np.float32(scale)
