"""Kernels on blocks of columns: rows are routed, sorted by node, and added to histograms column by column (§2.3.3)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.fixed import PACKED_ROWS, sums_of
from burnish.boost.growth.bins import GROUP
from burnish.boost.intrinsics import prefetch
from burnish.boost.outofcore.layout import QUAD

AHEAD = 16  # rows between a prefetch and its use


@njit(cache=True, nogil=True)
def route_sparse(
    first: int,
    last: int,
    offsets: NDArray[np.uint16],
    bins: NDArray[Any],
    feature: int,
    place: NDArray[np.int32],
    split_feature: NDArray[np.int32],
    right: NDArray[np.uint8],
    left_child: NDArray[np.int32],
    node: NDArray[np.int32],
) -> None:
    """Sends on the rows first … last - 1 of a block that have an entry in a sparse column and split by it.

    offsets, bins: the column's. place: by node number, its place among those split (-1: none). By place: split_feature,
    right (places, bins + 1), left_child (the right one's number is the next). node: those of the block's rows; the new
    node n of a row is left there as ``-1 - n``, for `route` to finish.
    """
    begin = np.searchsorted(offsets, first)
    end = len(offsets) if last > 65535 else np.searchsorted(offsets, last)
    for entry in range(np.uint64(begin), np.uint64(end)):
        row = np.uint64(offsets[entry])
        if node[row] >= 0:
            k = place[np.uint64(node[row])]
            if k >= 0 and split_feature[np.uint64(k)] == feature:
                node[row] = -1 - (left_child[np.uint64(k)] + np.int32(right[np.uint64(k), np.uint64(bins[entry])]))


@njit(cache=True, nogil=True)
def route(
    first: int,
    last: int,
    words: NDArray[Any],
    place: NDArray[np.int32],
    quad: NDArray[np.int32],
    shift: NDArray[np.int32],
    right: NDArray[np.uint8],
    missing_right: NDArray[np.uint8],
    left_child: NDArray[np.int32],
    node: NDArray[np.int32],
) -> None:
    """Sends on the rows first … last - 1 of a block: by the bin of a dense column, or to the side of missing values.

    words: (quads, stride), of the block. place: as for `route_sparse`. By place: quad of the split's column (-1: it is
    sparse) and shift in its words, right (places, bins + 1), missing_right, left_child.
    """
    mask = np.uint64((1 << (2 * words.itemsize)) - 1)
    for row in range(np.uint64(first), np.uint64(last)):
        if node[row] < 0:
            node[row] = -1 - node[row]
            continue
        k = place[np.uint64(node[row])]
        if k >= 0:
            here = np.uint64(k)
            side = missing_right[here]
            if quad[here] >= 0:
                word = np.uint64(words[np.uint64(quad[here]), row])
                side = right[here, (word >> np.uint64(shift[here])) & mask]
            node[row] = left_child[here] + np.int32(side)


@njit(cache=True, nogil=True)
def sort_rows(
    first: int,
    last: int,
    node: NDArray[np.int32],
    slot_of: NDArray[np.int32],
    slot: NDArray[np.uint16],
    order: NDArray[np.uint16],
    run: NDArray[np.int64],
) -> None:
    """Sorts the rows first … last - 1 of a block by the slot of their node, stably; the last slot's are not wanted.

    slot_of: by node number. Rows of slot s become ``order[run[s]:run[s + 1]]``; run: (slots + 2,), with zeros; order:
    as long as the rows. slot: is set for each row. (What is not wanted is sorted too: a branch would cost more.)
    """
    for row in range(np.uint64(first), np.uint64(last)):
        s = np.uint64(slot_of[np.uint64(node[row])])
        slot[row] = s
        run[s + np.uint64(1)] += 1
    for place in range(1, len(run)):
        run[place] += run[place - 1]
    at = run[:-1].copy()
    for row in range(np.uint64(first), np.uint64(last)):
        s = np.uint64(slot[row])
        order[np.uint64(at[s])] = row
        at[s] += 1


@njit(cache=True, nogil=True)
def gather(order: NDArray[np.uint16], count: int, values: NDArray[np.int64], ordered: NDArray[np.int64]) -> None:
    """``ordered[i] = values[order[i]]`` for the first `count` rows, of packed statistics (rows,) or pairs (rows, 2)."""
    for i in range(np.uint64(count)):
        row = np.uint64(order[i])
        if values.ndim == 1:  # known when it is compiled
            ordered[i] = values[row]
        else:
            ordered[i, np.uint64(0)] = values[row, np.uint64(0)]
            ordered[i, np.uint64(1)] = values[row, np.uint64(1)]


@njit(cache=True, nogil=True)
def add_packed(
    first: int,
    last: int,
    words: NDArray[Any],
    quad: NDArray[np.int32],
    order: NDArray[np.uint16],
    ordered: NDArray[np.int64],
    run: NDArray[np.int64],
    packed: NDArray[np.int64],
    pending: NDArray[np.int64],
    target: NDArray[np.int64],
    pool: NDArray[np.int64],
    start: NDArray[np.int64],
    count: NDArray[np.int64],
) -> None:
    """Adds sorted rows to the histograms of the quads first … last - 1, of every slot.

    words: (quads, stride), where a quad is row ``quad[q]``. ordered: packed statistics in the order of the rows.
    packed: (slots, quads, 4, width), to which `pending` rows were added for each slot since it was last flushed to its
    histogram, ``pool[target[slot]]`` (2, size): lane k's `count[q, k]` bins begin at `start[q, k]` (see `bins.Layout`).
    """
    bits = np.uint64(2 * words.itemsize)
    mask = np.uint64((1 << (2 * words.itemsize)) - 1)
    two, three = bits + bits, bits + bits + bits
    flat, width = packed.reshape(-1), np.uint64(packed.shape[3])
    lines, size = (
        np.uint64(packed.shape[3] * QUAD // 8 + 1),
        np.uint64(packed.shape[1] * packed.shape[2] * packed.shape[3]),
    )
    for slot in range(len(pending)):
        at, end = run[slot], run[slot + 1]
        while at < end:
            upto = min(end, at + PACKED_ROWS - pending[slot])
            for q in range(first, last):
                bins = words[np.uint64(quad[q])]
                a = np.uint64(slot) * size + np.uint64(q * QUAD) * width
                b, c, d = a + width, a + width + width, a + width + width + width
                # The next sums are fetched meanwhile, line by line: those of all slots do not fit into the cache.
                coming = d + width if q + 1 < last else a + size - np.uint64(last - 1 - first) * np.uint64(QUAD) * width
                most = np.uint64(upto - 1)
                for i in range(np.uint64(at), np.uint64(upto)):
                    if i - np.uint64(at) < lines:
                        prefetch(flat, coming + (i - np.uint64(at)) * np.uint64(8))
                    prefetch(bins, np.uint64(order[min(i + np.uint64(AHEAD), most)]))
                    word, value = np.uint64(bins[np.uint64(order[i])]), ordered[i]
                    flat[a + (word & mask)] += value
                    flat[b + ((word >> bits) & mask)] += value
                    flat[c + ((word >> two) & mask)] += value
                    flat[d + (word >> three)] += value
            pending[slot] += upto - at
            at = upto
            if pending[slot] == PACKED_ROWS:
                flush(slot, first, last, packed, pool[target[slot]], start, count)
                pending[slot] = 0


@njit(cache=True, nogil=True)
def flush(
    slot: int,
    first: int,
    last: int,
    packed: NDArray[np.int64],
    histogram: NDArray[np.int64],
    start: NDArray[np.int64],
    count: NDArray[np.int64],
) -> None:
    """Unpacks a slot's sums of the quads first … last - 1, and begins them anew."""
    gradient, hessian = histogram[0], histogram[1]
    stride = np.uint64(GROUP)
    for q in range(first, last):
        for b in range(np.uint64(count[q].max())):
            for lane in range(np.uint64(count.shape[1])):
                if b < count[q, lane]:
                    value = packed[np.uint64(slot), np.uint64(q), lane, b]
                    at = np.uint64(start[q, lane]) + b * stride
                    gradient[at] += value >> 32
                    hessian[at] += value & np.int64(0xFFFFFFFF)  # Hessians are not negative
        packed[slot, q] = 0


@njit(cache=True, nogil=True)
def flush_all(
    first: int,
    last: int,
    packed: NDArray[np.int64],
    pending: NDArray[np.int64],
    target: NDArray[np.int64],
    pool: NDArray[np.int64],
    start: NDArray[np.int64],
    count: NDArray[np.int64],
) -> None:
    """Flushes the slots that have pending rows."""
    for slot in range(len(pending)):
        if pending[slot] > 0:
            flush(slot, first, last, packed, pool[target[slot]], start, count)
            pending[slot] = 0


@njit(cache=True, nogil=True)
def add_pairs(
    first: int,
    last: int,
    words: NDArray[Any],
    quad: NDArray[np.int32],
    order: NDArray[np.uint16],
    ordered: NDArray[np.int64],
    run: NDArray[np.int64],
    target: NDArray[np.int64],
    pool: NDArray[np.int64],
    start: NDArray[np.int64],
    count: NDArray[np.int64],
) -> None:
    """As `add_packed`, for statistics that are pairs of int64, (rows, 2)."""
    bits = 2 * words.itemsize
    mask, stride = np.uint64((1 << bits) - 1), np.uint64(GROUP)
    for q in range(first, last):
        bins = words[np.uint64(quad[q])]
        for lane in range(count.shape[1]):
            base, most, shift = np.uint64(start[q, lane]), np.uint64(count[q, lane]), np.uint64(lane * bits)
            for slot in range(len(target)):
                gradient, hessian = pool[target[slot], 0], pool[target[slot], 1]
                for i in range(np.uint64(run[slot]), np.uint64(run[slot + 1])):
                    b = (np.uint64(bins[np.uint64(order[i])]) >> shift) & mask
                    if b < most:
                        gradient[base + b * stride] += ordered[i, np.uint64(0)]
                        hessian[base + b * stride] += ordered[i, np.uint64(1)]


@njit(cache=True, nogil=True)
def add_sparse(
    first: int,
    last: int,
    place: NDArray[np.int64],
    start: NDArray[np.int64],
    offsets: NDArray[np.uint16],
    bins: NDArray[Any],
    slot: NDArray[np.uint16],
    values: NDArray[np.int64],
    target: NDArray[np.int64],
    pool: NDArray[np.int64],
    bin_start: NDArray[np.int64],
) -> None:
    """Adds the entries of the sparse columns first … last - 1 to the histograms of their rows' wanted slots.

    start, offsets, bins: as in `prefetch.Block`, where column k is number ``place[k]``. By row of the block: slot, and
    values, packed statistics (rows,) or pairs (rows, 2). Column k's bins begin at ``bin_start[k]`` of
    ``pool[target[slot]]`` (2, size).
    """
    wanted, stride = np.uint16(len(target)), np.uint64(GROUP)
    for column in range(first, last):
        base = np.uint64(bin_start[column])
        for entry in range(np.uint64(start[place[column]]), np.uint64(start[place[column] + 1])):
            row = np.uint64(offsets[entry])
            if slot[row] < wanted:
                here, at = np.uint64(target[np.uint64(slot[row])]), base + np.uint64(bins[entry]) * stride
                gradient, hessian = sums_of(values, row)
                pool[here, np.uint64(0), at] += gradient
                pool[here, np.uint64(1), at] += hessian
