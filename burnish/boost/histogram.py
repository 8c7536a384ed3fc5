"""Histograms of gradient statistics (§2.2.2): sums of packed fixed-point pairs over the rows of a node, bin by bin.

One int64 addition adds gradient and Hessian at once; every so many rows the packed sums are spread out to int64 pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.fixed import PACKED_ROWS, FixedPoint
from burnish.boost.growth.bins import GROUP as GROUP_WIDTH
from burnish.boost.growth.bins import DenseBins, SparseBins
from burnish.boost.intrinsics import aligned, prefetch
from burnish.boost.kernels import inlined, kernel, lean
from burnish.boost.threads import Workers

# Constants of their type: numba takes a millisecond for each conversion it finds in a kernel.
_AHEAD, _TWICE_AHEAD = np.uint64(16), np.uint64(32)  # rows between a prefetch and its use
_ZERO, _ONE, _TWO, _THREE, _FOUR, _FIVE = (np.uint64(number) for number in range(6))
_LANES = np.uint64(GROUP_WIDTH)
_LOW = np.int64(0xFFFFFFFF)
_SHARE = 40_000  # additions for which a further thread is worth its start

# Columns of a piece: a run of rows of one unit (a node's rows in one group of features) that one thread takes.
GROUP, NODE, BEGIN, END, TARGET = range(5)  # TARGET: 0 if the piece is its unit's first, 1 if it adds to one


@kernel
def share_rows(
    begin: NDArray[np.int64], end: NDArray[np.int64], groups: int, threads: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Deals the rows of nodes, in each of several groups, to threads in equal shares.

    Returns pieces (count, 5) in order, and where each thread's begin, (threads + 1,).
    """
    nodes = len(begin)
    total = 0
    for i in range(nodes):
        total += end[i] - begin[i]
    total *= groups
    pieces = np.empty((groups * nodes + threads, 5), np.int64)
    start = np.zeros(threads + 1, np.int64)
    count, done, thread = 0, 0, 0
    for group in range(groups):
        for node in range(nodes):
            low, first = begin[node], 0
            while low < end[node]:
                limit = total * (thread + 1) // threads
                if done >= limit:
                    thread += 1
                    start[thread] = count
                    continue
                high = low + limit - done
                high = high if high < end[node] else end[node]
                pieces[count, GROUP] = group
                pieces[count, NODE] = node
                pieces[count, BEGIN] = low
                pieces[count, END] = high
                pieces[count, TARGET] = first
                count += 1
                done += high - low
                low, first = high, 1
    for i in range(thread + 1, threads + 1):
        start[i] = count
    return pieces[:count], start


@inlined
def _unpack(packed: NDArray[np.int64], size: int, out: NDArray[np.int64], begin: int, fresh: bool) -> None:
    """Moves packed sums to the planes out[:, begin:], set or, unless `fresh`, added to; the packed ones become zero."""
    gradient, hessian = out[0], out[1]
    shift = np.uint64(begin)
    if fresh:
        for i in range(np.uint64(size)):
            value = packed[i]
            gradient[i + shift] = value >> 32
            hessian[i + shift] = value & _LOW
            packed[i] = 0
    else:
        for i in range(np.uint64(size)):
            value = packed[i]
            gradient[i + shift] += value >> 32
            hessian[i + shift] += value & _LOW
            packed[i] = 0


@inlined
def _add_dense(
    order: NDArray[np.uint32],
    begin: int,
    end: int,
    statistics: NDArray[np.int64],
    bins: NDArray[np.uint8],
    group_begin: np.uint64,
    width: np.uint64,
    packed: NDArray[np.int64],
) -> None:
    """Adds the statistics of some rows to the bins of one group's features, four features at a time."""
    last = np.uint64(end - 1)
    for i in range(np.uint64(begin), np.uint64(end)):
        ahead = i + _AHEAD
        coming = np.uint64(order[ahead if ahead < last else last])
        prefetch(bins, group_begin + coming * _LANES)
        prefetch(statistics, coming)
        row = np.uint64(order[i])
        value = statistics[row]
        at = group_begin + row * _LANES
        for lane in range(_ZERO, width, _FOUR):
            packed[(bins[at + lane] << _FIVE) + lane] += value
            packed[(bins[at + lane + _ONE] << _FIVE) + lane + _ONE] += value
            packed[(bins[at + lane + _TWO] << _FIVE) + lane + _TWO] += value
            packed[(bins[at + lane + _THREE] << _FIVE) + lane + _THREE] += value


@inlined
def add_group(
    order: NDArray[np.uint32],
    begin: int,
    end: int,
    statistics: NDArray[np.int64],
    bins: NDArray[np.uint8],
    rows: int,
    group: int,
    width: np.uint64,
    size: int,
    out: NDArray[np.int64],
    out_begin: int,
    packed: NDArray[np.int64],
) -> None:
    """Sets ``out[:, out_begin : out_begin + size]`` to one group's histogram of some rows, at least one."""
    group_begin = np.uint64(group * rows) * _LANES
    for low in range(begin, end, PACKED_ROWS):
        high = low + PACKED_ROWS if low + PACKED_ROWS < end else end
        _add_dense(order, low, high, statistics, bins, group_begin, width, packed)
        _unpack(packed, size, out, out_begin, low == begin)


@lean
def dense_packed(
    order: NDArray[np.uint32],
    statistics: NDArray[np.int64],
    bins: NDArray[np.uint8],
    rows: int,
    width: NDArray[np.uint64],
    first: NDArray[np.int64],
    pieces: NDArray[np.int64],
    slots: NDArray[np.int64],
    pool: NDArray[np.int64],
    packed: NDArray[np.int64],
    spare: NDArray[np.int64],
) -> None:
    """Histograms of the pieces of one thread; a piece that is not its unit's first goes to `spare`."""
    for p in range(len(pieces)):
        group = pieces[p, 0]
        out = spare if pieces[p, 4] else pool[slots[pieces[p, 1]]]
        add_group(
            order, pieces[p, 2], pieces[p, 3], statistics, bins, rows, group, width[group],
            first[group + 1] - first[group], out, 0 if pieces[p, 4] else first[group], packed,
        )  # fmt: skip


@lean
def dense_pairs(
    order: NDArray[np.uint32],
    statistics: NDArray[np.int64],
    bins: NDArray[np.uint8],
    rows: int,
    width: NDArray[np.uint64],
    first: NDArray[np.int64],
    pieces: NDArray[np.int64],
    slots: NDArray[np.int64],
    pool: NDArray[np.int64],
    packed: NDArray[np.int64],
    spare: NDArray[np.int64],
) -> None:
    """The same of statistics that are pairs."""
    for p in range(len(pieces)):
        group = pieces[p, 0]
        out = spare if pieces[p, 4] else pool[slots[pieces[p, 1]]]
        out_begin = np.uint64(0 if pieces[p, 4] else first[group])
        gradients, hessians = out[0], out[1]
        for i in range(out_begin, out_begin + np.uint64(first[group + 1] - first[group])):
            gradients[i] = 0
            hessians[i] = 0
        group_begin = np.uint64(group * rows) * _LANES
        for i in range(np.uint64(pieces[p, 2]), np.uint64(pieces[p, 3])):
            row = np.uint64(order[i])
            gradient, hessian = statistics[row, 0], statistics[row, 1]
            at = group_begin + row * _LANES
            for lane in range(width[group]):
                index = out_begin + (bins[at + lane] << _FIVE) + lane
                gradients[index] += gradient
                hessians[index] += hessian


@inlined
def _add_sparse(
    order: NDArray[np.uint32],
    begin: int,
    end: int,
    statistics: NDArray[np.int64],
    start: NDArray[np.int64],
    bins: NDArray[np.uint16],
    packed: NDArray[np.int64],
) -> None:
    last = np.uint64(end - 1)
    for i in range(np.uint64(begin), np.uint64(end)):
        prefetch(start, np.uint64(order[min(i + _TWICE_AHEAD, last)]))
        coming = np.uint64(order[min(i + _AHEAD, last)])
        prefetch(bins, np.uint64(start[coming]))
        prefetch(bins, np.uint64(start[coming]) + _TWICE_AHEAD)
        prefetch(statistics, coming)
        row = np.uint64(order[i])
        value = statistics[row]
        for j in range(np.uint64(start[row]), np.uint64(start[row + _ONE])):
            packed[bins[j]] += value


@lean
def sparse_packed(
    order: NDArray[np.uint32],
    statistics: NDArray[np.int64],
    start: NDArray[np.int64],
    bins: NDArray[np.uint16],
    pieces: NDArray[np.int64],
    slots: NDArray[np.int64],
    pool: NDArray[np.int64],
    packed: NDArray[np.int64],
    spare: NDArray[np.int64],
) -> None:
    for p in range(len(pieces)):
        out = spare if pieces[p, 4] else pool[slots[pieces[p, 1]]]
        for low in range(pieces[p, 2], pieces[p, 3], PACKED_ROWS):
            high = min(low + PACKED_ROWS, pieces[p, 3])
            _add_sparse(order, low, high, statistics, start, bins, packed)
            _unpack(packed, len(packed), out, 0, low == pieces[p, 2])


@lean
def sparse_pairs(
    order: NDArray[np.uint32],
    statistics: NDArray[np.int64],
    start: NDArray[np.int64],
    bins: NDArray[np.uint16],
    pieces: NDArray[np.int64],
    slots: NDArray[np.int64],
    pool: NDArray[np.int64],
    packed: NDArray[np.int64],
    spare: NDArray[np.int64],
) -> None:
    for p in range(len(pieces)):
        out = spare if pieces[p, 4] else pool[slots[pieces[p, 1]]]
        out[:] = 0
        for i in range(np.uint64(pieces[p, 2]), np.uint64(pieces[p, 3])):
            row = np.uint64(order[i])
            for j in range(np.uint64(start[row]), np.uint64(start[row + _ONE])):
                out[0, bins[j]] += statistics[row, 0]
                out[1, bins[j]] += statistics[row, 1]


class Histograms:
    """A pool of histograms, (slots, 2, size) int64: planes of gradient and of Hessian sums in fixed-point units."""

    def __init__(self, bins: DenseBins | SparseBins, workers: Workers, comm: Any = None) -> None:
        self.bins = bins
        self.size = bins.layout.size
        self.pool = aligned((0, 2, self.size), np.int64)
        self._workers = workers
        self._comm = comm
        self._free: list[int] = []
        if isinstance(bins, DenseBins):
            self._groups = len(bins.width)
            widest = int(np.diff(bins.layout.first).max(initial=0))
            self._additions = float(bins.width.mean()) if self._groups else 1.0
        else:
            self._groups = 1
            widest = self.size
            self._additions = len(bins.row_bins) / max(1, len(bins.row_start) - 1)
        self.packed = [np.zeros(widest, np.int64) for _ in range(workers.threads)]
        self._spare = [np.empty((2, widest), np.int64) for _ in range(workers.threads)]

    def take(self, count: int) -> NDArray[np.int64]:
        """Slots for so many histograms, whose contents are undefined."""
        while len(self._free) < count:
            old = self.pool
            slots = max(4, 2 * len(old), len(old) - len(self._free) + count)
            self.pool = aligned((slots, 2, self.size), np.int64)
            self.pool[: len(old)] = old
            self._free.extend(range(slots - 1, len(old) - 1, -1))
        return np.array([self._free.pop() for _ in range(count)], np.int64)

    def give_back(self, slots: NDArray[np.int64]) -> None:
        """Frees slots."""
        self._free.extend(slots.tolist())

    def build(
        self,
        order: NDArray[np.uint32],
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
        slots: NDArray[np.int64],
        statistics: FixedPoint,
    ) -> None:
        """Sets a slot for each node, whose rows are ``order[begin:end]``, to the sums over the rows of all workers."""
        if not self.size:
            return
        additions = float((end - begin).sum()) * self._groups * self._additions
        threads = max(1, min(self._workers.threads, int(additions / _SHARE)))
        pieces, start = share_rows(begin, end, self._groups, threads)
        for slot in slots[begin == end]:
            self.pool[slot] = 0
        kernel, arguments = self._kernel(statistics)
        parts = [
            (order, statistics.values, *arguments, pieces[start[t] : start[t + 1]], slots, self.pool, *buffers)
            for t, buffers in enumerate(zip(self.packed[:threads], self._spare, strict=False))
        ]
        self._workers.run(kernel, parts)
        for thread in range(1, threads):
            if start[thread] < start[thread + 1] and pieces[start[thread], TARGET]:
                self._merge(pieces[start[thread]], slots, self._spare[thread])
        if self._comm is not None:
            self.pool[slots] = self._comm.all_reduce(self.pool[slots], op="sum")

    def _kernel(self, statistics: FixedPoint) -> tuple[Any, tuple[Any, ...]]:
        bins = self.bins
        if isinstance(bins, DenseBins):
            kernel = dense_packed if statistics.packed else dense_pairs
            return kernel, (bins.rows.reshape(-1), bins.rows.shape[1], bins.width, bins.layout.first)
        return (sparse_packed if statistics.packed else sparse_pairs), (bins.row_start, bins.row_bins)

    def _merge(self, piece: NDArray[np.int64], slots: NDArray[np.int64], spare: NDArray[np.int64]) -> None:
        begin, end = 0, self.size
        if isinstance(self.bins, DenseBins):
            begin, end = self.bins.layout.first[piece[GROUP] : piece[GROUP] + 2].tolist()
        self.pool[slots[piece[NODE]], :, begin:end] += spare[:, : end - begin]
