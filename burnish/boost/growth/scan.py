"""One scan of a sorted column finds its best split of every node at once (thesis-chen Algorithms 1 and 3, §2.3.1).

    for each entry (row, value), by value:          node = node of the row
        if value > last value of node:              a candidate lies between the two
            score = GL²/(HL + λ) + GR²/(HR + λ)     and is kept if it is the best so far
        GL, HL of node += g, h of row

A row is one or two words of `records.Records`: its statistics in fixed point and the slot of its node, so that an entry
costs one cache line, which is prefetched (§2.3.2). Sums are whole numbers in float64, exact in any order. A score is a
fraction; fractions are compared by cross-multiplication, as a division for each entry would cost more than the rest.
"""

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.binning import LAST_CUT
from burnish.boost.intrinsics import prefetch
from burnish.boost.kernels import region
from burnish.boost.splitter import split_gain

# Without the option, numba counts references to the arrays at every entry of a column: five times slower.
kernel = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)
inlined = njit(cache=True, nogil=True, error_model="numpy", _nrt=False, forceinline=True)

AHEAD = np.uint64(32)  # entries between a prefetch and its use; at most blocks.PADDING

# The state of a slot during the scan of a column: 16 float64, of which a column that no row misses mostly uses 8.
WIDTH = np.uint64(16)
LEFT_G, LEFT_H, LAST, LOWEST = (np.uint64(i) for i in range(4))  # sums so far; last value; least value
NUMERATOR, DENOMINATOR, TOTAL_G, TOTAL_H = (np.uint64(i) for i in range(4, 8))  # best score; sums of the node
MISSING_G, MISSING_H = np.uint64(8), np.uint64(9)  # sums of the node's rows that are missing in the column
BEST_G, BEST_H, BEST_LOW, BEST_HIGH = (np.uint64(i) for i in range(10, 14))  # left sums and the values around the best
DEFAULT = np.uint64(14)  # side of missing rows at the best split: 1 left, 0 right; -1 if there is none

# What is kept of the best split of a slot over columns.
SCORE, FEATURE, THRESHOLD, DEFAULT_LEFT, SPLIT_G, SPLIT_H = range(6)

# Rules of a split, a tuple: λ and the least sum of Hessians in units of the records; these units; what `split_gain`
# takes; and whether none of α, a largest weight and monotone constraints is in use.
LAMBDA, LEAST, UNIT_G, UNIT_H, REG_LAMBDA, REG_ALPHA, MAX_DELTA, MIN_CHILD, SIMPLE = range(9)

# Rows of a slot during the scan, (slots, 4) int64 where sides of splits must have a least number of rows, else None:
# left of the entry, of the node, missing in the column; and that least number, in every slot.
LEFT_N, TOTAL_N, MISSING_N, LEAST_N = (np.uint64(i) for i in range(4))


def no_splits(slots: int) -> NDArray[np.float64]:
    """Initial best splits, (slots, 6): a score of -inf, which any split exceeds."""
    best = np.zeros((slots, 6))
    best[:, SCORE] = -np.inf
    best[:, FEATURE] = np.inf
    return best


@inlined
def set_left(counts, slot, number):  # type: ignore[no-untyped-def]
    """Rows left of the entry, if they are counted."""
    if counts is not None:
        counts[slot, LEFT_N] = number


@inlined
def add_row(counts, slot):  # type: ignore[no-untyped-def]
    """One row more left of the entry, if they are counted."""
    if counts is not None:
        counts[slot, LEFT_N] += 1


@inlined
def _enough_rows(counts, slot, missing_left):  # type: ignore[no-untyped-def]
    """Whether both sides of a split have the least number of rows; missing ones go left with missing_left > 0."""
    if counts is None:
        return True
    left = counts[slot, LEFT_N]
    if missing_left > 0.0:
        left += counts[slot, MISSING_N]
    return left >= counts[slot, LEAST_N] and counts[slot, TOTAL_N] - left >= counts[slot, LEAST_N]


@kernel
def clear(state, slots, rule, counts):  # type: ignore[no-untyped-def]
    """Makes slots ready for a column that no row misses."""
    for slot in range(slots):
        _clear_slot(state, np.uint64(slot) * WIDTH, rule, counts)


@kernel
def _clear_slot(state, s, rule, counts):  # type: ignore[no-untyped-def]
    set_left(counts, s // WIDTH, 0)
    state[s + LEFT_G] = 0.0
    state[s + LEFT_H] = 0.0
    state[s + LAST] = np.nan  # nothing is greater
    state[s + DEFAULT] = -1.0
    if rule[SIMPLE]:  # a split must beat the node as it is
        state[s + NUMERATOR] = state[s + TOTAL_G] * state[s + TOTAL_G]
        state[s + DENOMINATOR] = state[s + TOTAL_H] + rule[LAMBDA]
    else:
        state[s + NUMERATOR] = 0.0
        state[s + DENOMINATOR] = 1.0


@kernel
def fraction(left_g, left_h, right_g, right_h, rule, monotone, lower, upper):  # type: ignore[no-untyped-def]
    """The score of a split as numerator and denominator, which are 0 and 1 if it is not allowed."""
    reg_lambda, least, unit_g, unit_h, real_lambda, reg_alpha, max_delta, min_child, simple = rule
    if left_h < least or right_h < least:
        return -np.inf, 1.0
    if simple:
        a, b = left_h + reg_lambda, right_h + reg_lambda
        return left_g * left_g * b + right_g * right_g * a, a * b
    gain = split_gain(
        left_g * unit_g, left_h * unit_h, right_g * unit_g, right_h * unit_h,
        real_lambda, reg_alpha, max_delta, min_child, monotone, lower, upper,
    )  # fmt: skip
    return gain, 1.0


@inlined
def _offer(state, s, left_g, left_h, value, default, rule, bounds, monotone, counts):  # type: ignore[no-untyped-def]
    """Keeps the split with these sums to the left, if it is the best so far."""
    slot = s // WIDTH
    if not _enough_rows(counts, slot, default):
        return
    right_g, right_h = state[s + TOTAL_G] - left_g, state[s + TOTAL_H] - left_h
    numerator, denominator = fraction(
        left_g, left_h, right_g, right_h, rule, monotone, bounds[slot, 0], bounds[slot, 1]
    )
    if numerator * state[s + DENOMINATOR] > state[s + NUMERATOR] * denominator:
        state[s + NUMERATOR] = numerator
        state[s + DENOMINATOR] = denominator
        state[s + BEST_G] = left_g
        state[s + BEST_H] = left_h
        state[s + BEST_LOW] = state[s + LAST]
        state[s + BEST_HIGH] = value
        state[s + DEFAULT] = default


@inlined
def read(words, row):  # type: ignore[no-untyped-def]
    """A row's slot, gradient and Hessian, from one word or two (`records.Records`)."""
    if words.ndim == 1:
        word = words[row]
        return np.uint64(word & 0xFFFF), float(word >> 40), float((word << 24) >> 40)
    word = words[row, np.uint64(0)]
    return np.uint64(word & 0xFFFF), float(word >> 16), float(words[row, np.uint64(1)])


@inlined
def look_ahead(words, row):  # type: ignore[no-untyped-def]
    """Asks for the words of a row."""
    prefetch(words, row * np.uint64(words.ndim))


@inlined
def visit(state, s, g, h, value, rule, bounds, monotone, counts):  # type: ignore[no-untyped-def]
    """One entry of a column that no row misses: what every form of the scan of such a column repeats."""
    left_g = state[s + LEFT_G]
    left_h = state[s + LEFT_H]
    if value > state[s + LAST] and left_h >= rule[LEAST]:
        _offer(state, s, left_g, left_h, value, 0.0, rule, bounds, monotone, counts)
    state[s + LAST] = value
    state[s + LEFT_G] = left_g + g
    state[s + LEFT_H] = left_h + h
    add_row(counts, s // WIDTH)


@kernel
def scan_complete(rows, values, first, last, words, state, rule, bounds, monotone, counts):  # type: ignore[no-untyped-def]
    """Scans a column that no row misses; `clear` first."""
    for j in range(np.uint64(first), np.uint64(last)):
        look_ahead(words, np.uint64(rows[j + AHEAD]))
        slot, g, h = read(words, np.uint64(rows[j]))
        visit(state, slot * WIDTH, g, h, float(values[j]), rule, bounds, monotone, counts)


@inlined
def count_missing(counts, slot):  # type: ignore[no-untyped-def]
    """After `present_sums`: notes the rows that miss in the column; returns the number of the others."""
    if counts is None:
        return 0
    counts[slot, MISSING_N] = counts[slot, TOTAL_N] - counts[slot, LEFT_N]
    return counts[slot, LEFT_N]


@kernel
def present_sums(rows, values, first, last, words, state, stamp, column, touched, counts):  # type: ignore[no-untyped-def]
    """Sums over the present entries of a column, of the slots that have some; returns how many, and lists them.

    Leaves the sums in LEFT, the least value in LOWEST. stamp: (slots,), the last column that touched each.
    """
    count = 0
    for j in range(np.uint64(first), np.uint64(last)):
        look_ahead(words, np.uint64(rows[j + AHEAD]))
        slot, g, h = read(words, np.uint64(rows[j]))
        s = slot * WIDTH
        if stamp[slot] != column:
            stamp[slot] = column
            touched[count] = slot
            count += 1
            state[s + LEFT_G] = 0.0
            state[s + LEFT_H] = 0.0
            state[s + LOWEST] = values[j]
            set_left(counts, slot, 0)
        state[s + LEFT_G] += g
        state[s + LEFT_H] += h
        add_row(counts, slot)
    return count


@kernel
def separate_missing(state, touched, constant, greatest, rule, bounds, monotone, counts):  # type: ignore[no-untyped-def]
    """After `present_sums`: considers to separate present from missing, then makes the slots ready for the scan.

    Which of the two goes left matters to monotone constraints only. constant: whether there is no scan to come.
    greatest: the column's greatest value.
    """
    for slot in touched:
        s = np.uint64(slot) * WIDTH
        if constant and state[s + LEFT_H] < rule[LEAST]:  # as most are where a column is sparse
            state[s + DEFAULT] = -1.0
            continue
        present_g, present_h, lowest = state[s + LEFT_G], state[s + LEFT_H], state[s + LOWEST]
        state[s + MISSING_G] = state[s + TOTAL_G] - present_g
        state[s + MISSING_H] = state[s + TOTAL_H] - present_h
        present = count_missing(counts, slot)
        _clear_slot(state, s, rule, counts)
        if state[s + MISSING_H] > 0.0:
            _offer(state, s, state[s + MISSING_G], state[s + MISSING_H], lowest, 1.0, rule, bounds, monotone, counts)
            if monotone != 0 and greatest < LAST_CUT:
                set_left(counts, slot, present)
                _offer(state, s, present_g, present_h, LAST_CUT, 0.0, rule, bounds, monotone, counts)
                set_left(counts, slot, 0)


@kernel
def scan_incomplete(rows, values, first, last, words, state, rule, bounds, monotone, counts):  # type: ignore[no-untyped-def]
    """Scans a column that some rows miss, which go to the better side (Algorithm 3); `separate_missing` first."""
    for j in range(np.uint64(first), np.uint64(last)):
        look_ahead(words, np.uint64(rows[j + AHEAD]))
        slot, g, h = read(words, np.uint64(rows[j]))
        s = slot * WIDTH
        value = float(values[j])
        left_g, left_h = state[s + LEFT_G], state[s + LEFT_H]
        if value > state[s + LAST]:
            _offer(state, s, left_g, left_h, value, 0.0, rule, bounds, monotone, counts)
            if state[s + MISSING_H] > 0.0:
                left, left_hessian = left_g + state[s + MISSING_G], left_h + state[s + MISSING_H]
                _offer(state, s, left, left_hessian, value, 1.0, rule, bounds, monotone, counts)
        state[s + LAST] = value
        state[s + LEFT_G] = left_g + g
        state[s + LEFT_H] = left_h + h
        add_row(counts, slot)


@kernel
def harvest(state, slots, feature, allowed, best):  # type: ignore[no-untyped-def]
    """Keeps the column's best split of each listed slot, if it beats those of other columns.

    allowed: (slots,), whether a slot may split on the column. Of equal scores, that of the lowest column is
    kept: threads take columns in any order.
    """
    for slot in slots:
        s = np.uint64(slot) * WIDTH
        if state[s + DEFAULT] < 0.0 or not allowed[slot]:
            continue
        score = state[s + NUMERATOR] / state[s + DENOMINATOR]
        if score > best[slot, SCORE] or (score == best[slot, SCORE] and feature < best[slot, FEATURE]):
            best[slot, SCORE] = score
            best[slot, FEATURE] = feature
            best[slot, THRESHOLD] = _between(state[s + BEST_LOW], state[s + BEST_HIGH])
            best[slot, DEFAULT_LEFT] = state[s + DEFAULT]
            best[slot, SPLIT_G] = state[s + BEST_G]
            best[slot, SPLIT_H] = state[s + BEST_H]


@kernel
def _between(low, high):  # type: ignore[no-untyped-def]
    """A float32 t with ``low < t <= high``, in their middle if there is one; `high` if low is NaN."""
    middle = float(np.float32(0.5 * low + 0.5 * high))
    return middle if low < middle <= high else high


@inlined
def _own(counts, thread):  # type: ignore[no-untyped-def]
    if counts is None:
        return None
    return counts[thread]


@region
def scan_groups(  # type: ignore[no-untyped-def]
    groups, block, kinds, words, state, scratch, rule, limits, best, counts, begin, end, thread,
):  # fmt: skip
    """`scan_columns` of the groups begin … end of columns; groups: the columns, and edges, group g from edges[g] on.

    limits: bounds, monotone and allowed. state, scratch, best and counts, unless that is None, have a row for each
    thread.
    """
    columns, edges = groups
    bounds, monotone, allowed = limits
    for group in range(begin, end):
        scan_columns(
            columns[edges[group] : edges[group + 1]], block, kinds, words, state[thread], scratch[thread], rule, bounds,
            monotone, allowed, best[thread], _own(counts, thread),
        )  # fmt: skip


@inlined
def scan_columns(columns, block, kinds, words, state, scratch, rule, bounds, monotone, allowed, best, counts):  # type: ignore[no-untyped-def]
    """Scans columns for the best split of each slot; the last slot is of rows in no node.

    scratch: (3, slots), in which row 0 counts the slots from 0.
    block: start, rows and values of a `blocks.ColumnBlock`; kinds: (features,), its `dense` + 2 · `constant`.
    bounds: (slots, 2), of the nodes' weights. monotone: (features,). allowed: (features or 1, slots).
    best: (slots, 6), the best splits of other columns, which these must beat. counts: see `LEFT_N`.
    """
    start, rows, values = block
    every, stamp, touched = scratch[0], scratch[1], scratch[2]
    stamp[:] = -1
    for column in columns:
        entries = rows, values, start[column], start[column + 1], words, state
        here = allowed[column if len(allowed) > 1 else 0]
        if kinds[column] == 1:
            clear(state, len(every), rule, counts)
            scan_complete(*entries, rule, bounds, monotone[column], counts)
            harvest(state, every, column, here, best)
        elif kinds[column] != 3:
            count = present_sums(*entries, stamp, column, touched, counts)
            greatest = values[start[column + 1] - 1]
            separate_missing(
                state, touched[:count], kinds[column] == 2, greatest, rule, bounds, monotone[column], counts
            )
            if kinds[column] == 0:
                scan_incomplete(*entries, rule, bounds, monotone[column], counts)
            harvest(state, touched[:count], column, here, best)
