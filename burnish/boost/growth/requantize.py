"""Requantization: bins proposed anew from sorted columns by a linear scan (thesis-chen §2.3.1)."""

import numpy as np

from burnish.base.jit import njit
from burnish.boost.binning import LAST_CUT
from burnish.boost.intrinsics import prefetch
from burnish.boost.kernels import region

_AHEAD = np.uint64(32)  # entries between a prefetch and its use; at most blocks.PADDING
_BLOCK = 128  # rows that are turned at once from columns into rows
kernel = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)  # see scan.kernel


@kernel
def distinct(values, first, last, most):  # type: ignore[no-untyped-def]
    """The number of distinct values of a sorted column, or ``most + 1`` if there are more than `most`."""
    count = 0
    for j in range(np.uint64(first), np.uint64(last)):
        if count == 0 or values[j] != values[j - np.uint64(1)]:
            count += 1
            if count > most:
                break
    return count


@kernel
def present_weight(rows, first, last, weight):  # type: ignore[no-untyped-def]
    """The sum of the integer weights of a column's rows."""
    total = 0
    for j in range(np.uint64(first), np.uint64(last)):
        prefetch(weight, np.uint64(rows[j + _AHEAD]))
        total += weight[np.uint64(rows[j])]
    return total


@kernel
def _weight_at(rows, weight, codes, j):  # type: ignore[no-untyped-def]
    """The weight of entry j's row; asks for what a later entry reads and writes."""
    ahead = np.uint64(rows[j + _AHEAD])
    prefetch(weight, ahead)
    prefetch(codes, ahead)
    return weight[np.uint64(rows[j])]


@kernel
def propose(rows, values, first, last, weight, total, most, codes, cuts):  # type: ignore[no-untyped-def]
    """Cuts of a column at its weighted quantiles, and in the same scan the bin of every row (Algorithm 2, eq. 2.9).

    Cut k is the least value v with ``most · weight(values <= v) > k · total``, and a value that takes several cuts has
    a bin of its own, as in `binning.column_cuts`. codes: (rows,), written where a value is present. cuts: (most,), of
    which unused ones, and the one that closes the last bin, become `LAST_CUT`.
    """
    below, code, passed, goal, alone = 0, 0, 0, total, False  # below: most · weight(values so far)
    j, end = np.uint64(first), np.uint64(last)
    while j < end:
        value, begin = values[j], j
        below += most * _weight_at(rows, weight, codes, j)
        j += np.uint64(1)
        while j < end and values[j] == value:
            below += most * _weight_at(rows, weight, codes, j)
            j += np.uint64(1)
        hits = 0
        while passed + 1 < most and below > goal:
            passed += 1
            goal += total
            hits += 1
        if (hits > 0 or alone) and begin > np.uint64(first):
            cuts[code] = value + np.float32(0.0)  # minus zero becomes zero
            code += 1
        alone = hits > 1
        codes[np.uint64(rows[begin])] = code
        for k in range(begin + np.uint64(1), j):
            codes[np.uint64(rows[k])] = code
    cuts[code:] = LAST_CUT


@kernel
def assign(rows, values, first, last, cuts, codes):  # type: ignore[no-untyped-def]
    """The bin of every row of a column under given cuts, by one scan of both."""
    code = np.uint64(0)
    final = np.uint64(len(cuts) - 1)
    for j in range(np.uint64(first), np.uint64(last)):
        while code < final and cuts[code] <= values[j]:
            code += np.uint64(1)
        codes[np.uint64(rows[j])] = code


@region
def turn(columns, rows, begin, end, thread):  # type: ignore[no-untyped-def]
    """Copies columns of bins (positions, rows) into rows of 32 positions (groups, rows, 32), for rows begin … end."""
    lanes = rows.shape[2]
    for low in range(begin, end, _BLOCK):
        high = min(low + _BLOCK, end)
        for position in range(np.uint64(columns.shape[0])):
            group, lane = position // np.uint64(lanes), position % np.uint64(lanes)
            for row in range(np.uint64(low), np.uint64(high)):
                rows[group, row, lane] = columns[position, row]


@region
def whole(weight, scale, out, begin, end, thread):  # type: ignore[no-untyped-def]
    """Weights as multiples of ``1 / scale``; those below 0 count as 0."""
    for row in range(np.uint64(begin), np.uint64(end)):
        out[row] = np.int32(max(0.0, np.rint(weight[row] * scale)))
