"""Histograms of gradient statistics (§2.2.2): sums of packed fixed-point pairs over the rows of a node, bin by bin.

One int64 addition adds gradient and Hessian at once; every so many rows the packed sums are spread out to int64 pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.base.regions import run_ranges
from burnish.boost.fixed import PACKED_ROWS, FixedPoint
from burnish.boost.growth.bins import DenseBins, SparseBins, lanes_of
from burnish.boost.growth.shares import deal_rows
from burnish.boost.intrinsics import add_pair, aligned, prefetch
from burnish.boost.kernels import inlined, lean, loop
from burnish.runtime.threads import Workers

# Constants of their type: numba takes a millisecond for each conversion it finds in a kernel.
_AHEAD, _HALF_AHEAD = np.uint64(16), np.uint64(8)  # rows between a prefetch and its use
_ZERO, _ONE, _TWO, _THREE, _FOUR = (np.uint64(number) for number in range(5))
_LINE = np.uint64(32)  # entries of a cache line
_LOW, _SHIFT, _NOTHING = np.int64(0xFFFFFFFF), np.int64(32), np.int64(0)
_PACKED_ROWS = np.uint64(PACKED_ROWS)
_SHARE = 40_000  # additions for which a further thread is worth its start
_LEAST_SUMS = 1024  # the same, of sums that are merged


@inlined
def _unpack(
    packed: NDArray[np.int64], size: np.uint64, out: NDArray[np.int64], begin: np.uint64, plane: np.uint64, fresh: bool
) -> None:
    """Moves packed sums to ``out[begin:]`` and, `plane` behind, the Hessians'; the packed ones become zero.

    Those there are set or, unless `fresh`, added to.
    """
    if fresh:
        for i in range(size):
            value = packed[i]
            out[begin + i] = value >> _SHIFT
            out[begin + plane + i] = value & _LOW
            packed[i] = _NOTHING
    else:
        for i in range(size):
            value = packed[i]
            out[begin + i] += value >> _SHIFT
            out[begin + plane + i] += value & _LOW
            packed[i] = _NOTHING


@inlined
def _spread(
    pairs: NDArray[np.int64], size: np.uint64, out: NDArray[np.int64], begin: np.uint64, plane: np.uint64
) -> None:
    """Moves sums of pairs to ``out[begin:]`` and, `plane` behind, the Hessians'; the pairs become zero."""
    for i in range(size):
        at = i << _ONE
        out[begin + i] = pairs[at]
        out[begin + plane + i] = pairs[at + _ONE]
        pairs[at] = _NOTHING
        pairs[at + _ONE] = _NOTHING


@inlined
def _run_end(statistics: NDArray[np.int64], low: np.uint64, end: np.uint64) -> np.uint64:
    """The end of a run of rows: packed sums must be spread out before they overflow, pairs never."""
    if statistics.ndim == 1:
        high = low + _PACKED_ROWS
        return high if high < end else end
    return end


@inlined
def _prefetch_statistics(statistics: NDArray[np.int64], row: np.uint64) -> None:
    if statistics.ndim == 1:
        prefetch(statistics, row)
    else:
        prefetch(statistics, row << _ONE)


@inlined
def _move(
    statistics: NDArray[np.int64], sums: NDArray[np.int64], size: np.uint64, out: NDArray[np.int64], begin: np.uint64,
    plane: np.uint64, fresh: bool,
) -> None:  # fmt: skip
    """Moves the sums of a run of rows, packed or pairs, to ``out[begin:]`` and the plane behind."""
    if statistics.ndim == 1:
        _unpack(sums, size, out, begin, plane, fresh)
    else:
        _spread(sums, size, out, begin, plane)


@inlined
def add_group(
    order: NDArray[np.uint32],
    begin: np.uint64,
    end: np.uint64,
    statistics: NDArray[np.int64],
    bins: NDArray[np.uint8],
    group_begin: np.uint64,
    width: np.uint64,
    size: np.uint64,
    out: NDArray[np.int64],
    out_begin: np.uint64,
    plane: np.uint64,
    packed: NDArray[np.int64],
    narrow: Any,
) -> None:
    """Sets ``out[out_begin : out_begin + size]``, and what lies `plane` behind, to one group's histogram of some rows.

    statistics: packed, (rows,), or pairs, (rows, 2). bins: those of the group begin at `group_begin`. packed: zeros,
    (2 size,), for packed sums or for pairs side by side. Features are taken four at a time.
    """
    lanes = lanes_of(narrow)
    low = begin
    last = end - _ONE
    while low < end:
        high = _run_end(statistics, low, end)
        for i in range(low, high):
            ahead = i + _AHEAD
            coming = np.uint64(order[ahead if ahead < last else last])
            prefetch(bins, group_begin + coming * lanes)
            _prefetch_statistics(statistics, coming)
            row = np.uint64(order[i])
            at = group_begin + row * lanes
            if statistics.ndim == 1:  # known when it is compiled
                value = statistics[row]
                for lane in range(_ZERO, width, _FOUR):
                    packed[bins[at + lane] * lanes + lane] += value
                    packed[bins[at + lane + _ONE] * lanes + lane + _ONE] += value
                    packed[bins[at + lane + _TWO] * lanes + lane + _TWO] += value
                    packed[bins[at + lane + _THREE] * lanes + lane + _THREE] += value
            else:
                gradient, hessian = statistics[row, _ZERO], statistics[row, _ONE]
                for lane in range(_ZERO, width, _FOUR):
                    for k in range(_FOUR):
                        add_pair(packed, (bins[at + lane + k] * lanes + lane + k) << _ONE, gradient, hessian)
        _move(statistics, packed, size, out, out_begin, plane, low == begin)
        low = high


@loop
def _add_dense(
    order: NDArray[np.uint32],
    statistics: NDArray[np.int64],
    dense: Any,
    first: NDArray[np.int64],
    pieces: NDArray[np.int64],
    start: NDArray[np.int64],
    slots: NDArray[np.int64],
    pool: NDArray[np.int64],
    packed: NDArray[np.int64],
    spare: NDArray[np.int64],
    narrow: Any,
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Histograms of shares of pieces, share s from start[s] on; a piece that is not its unit's first goes to spare[s].

    dense: bins, the number of rows, and width (groups,). bins, pool (slots, 2, size) and the rows of spare (shares, 2
    of the largest group) and of packed (threads, …) are flat. Only the first piece of a share can be one that adds to a
    unit.
    """
    bins, rows, width = dense
    whole = first[len(width)]
    share = begin
    for p in range(start[begin], start[end]):
        while p >= start[share + 1]:
            share += 1
        group = pieces[p, 0]
        size = first[group + 1] - first[group]
        out, out_begin, plane = pool, slots[pieces[p, 1]] * 2 * whole + first[group], whole
        if pieces[p, 4]:
            out, out_begin, plane = spare[share], 0, spare.shape[1] >> 1
        add_group(
            order, np.uint64(pieces[p, 2]), np.uint64(pieces[p, 3]), statistics, bins,
            np.uint64(group * rows) * lanes_of(narrow), width[group], np.uint64(size), out, np.uint64(out_begin),
            np.uint64(plane), packed[thread], narrow,
        )  # fmt: skip


@inlined
def _add_sparse_packed(
    order: NDArray[np.uint32],
    begin: np.uint64,
    end: np.uint64,
    statistics: NDArray[np.int64],
    start: NDArray[np.int64],
    bins: NDArray[np.uint16],
    out: NDArray[np.int64],
    out_begin: np.uint64,
    packed: NDArray[np.int64],
) -> None:
    """Sets ``out[out_begin : out_begin + size]``, and the plane behind, to the histogram of some rows."""
    size = np.uint64(len(packed) >> 1)
    low = begin
    last = end - _ONE
    while low < end:
        high = low + _PACKED_ROWS
        high = high if high < end else end
        for i in range(low, high):
            far, ahead = i + _AHEAD, i + _HALF_AHEAD
            prefetch(start, np.uint64(order[far if far < last else last]))
            coming = np.uint64(order[ahead if ahead < last else last])
            prefetch(bins, np.uint64(start[coming]))
            prefetch(bins, np.uint64(start[coming]) + _LINE)
            prefetch(bins, np.uint64(start[coming + _ONE]))
            prefetch(statistics, coming)
            row = np.uint64(order[i])
            value = statistics[row]
            for j in range(np.uint64(start[row]), np.uint64(start[row + _ONE])):
                packed[bins[j]] += value
        _unpack(packed, size, out, out_begin, size, low == begin)
        low = high


@inlined
def _add_sparse_pairs(
    order: NDArray[np.uint32],
    begin: np.uint64,
    end: np.uint64,
    statistics: NDArray[np.int64],
    start: NDArray[np.int64],
    bins: NDArray[np.uint16],
    out: NDArray[np.int64],
    out_begin: np.uint64,
    pairs: NDArray[np.int64],
) -> None:
    """The same of statistics that are pairs, which are added up side by side in `pairs`, (2 size,) zeros.

    Apart from the packed ones, as one loop for both, like `add_group`, takes 1.03 to 1.05 times as long.
    """
    size = np.uint64(len(pairs) >> 1)
    last = end - _ONE
    for i in range(begin, end):
        far, ahead = i + _AHEAD, i + _HALF_AHEAD
        prefetch(start, np.uint64(order[far if far < last else last]))
        coming = np.uint64(order[ahead if ahead < last else last])
        prefetch(bins, np.uint64(start[coming]))
        prefetch(bins, np.uint64(start[coming]) + _LINE)
        prefetch(bins, np.uint64(start[coming + _ONE]))
        prefetch(statistics, coming << _ONE)
        row = np.uint64(order[i])
        gradient, hessian = statistics[row, _ZERO], statistics[row, _ONE]
        for j in range(np.uint64(start[row]), np.uint64(start[row + _ONE])):
            add_pair(pairs, np.uint64(bins[j]) << _ONE, gradient, hessian)
    _spread(pairs, size, out, out_begin, size)


@inlined
def add_sparse(
    order: NDArray[np.uint32],
    begin: np.uint64,
    end: np.uint64,
    statistics: NDArray[np.int64],
    start: NDArray[np.int64],
    bins: NDArray[np.uint16],
    out: NDArray[np.int64],
    out_begin: np.uint64,
    packed: NDArray[np.int64],
) -> None:
    """Sets a part of `out` to the histogram of some rows: of packed statistics (rows,) or pairs (rows, 2)."""
    if statistics.ndim == 1:
        _add_sparse_packed(order, begin, end, statistics, start, bins, out, out_begin, packed)
    else:
        _add_sparse_pairs(order, begin, end, statistics, start, bins, out, out_begin, packed)


@loop
def _add_entries(
    order: NDArray[np.uint32],
    statistics: NDArray[np.int64],
    start: NDArray[np.int64],
    bins: NDArray[np.uint16],
    pieces: NDArray[np.int64],
    share_start: NDArray[np.int64],
    slots: NDArray[np.int64],
    pool: NDArray[np.int64],
    packed: NDArray[np.int64],
    spare: NDArray[np.int64],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Histograms of shares of pieces, as `_add_dense`."""
    share = begin
    for p in range(share_start[begin], share_start[end]):
        while p >= share_start[share + 1]:
            share += 1
        out, out_begin = pool, slots[pieces[p, 1]] * packed.shape[1]
        if pieces[p, 4]:
            out, out_begin = spare[share], 0
        add_sparse(
            order, np.uint64(pieces[p, 2]), np.uint64(pieces[p, 3]), statistics, start, bins, out,
            np.uint64(out_begin), packed[thread],
        )  # fmt: skip


@inlined
def _find_heads(pieces: NDArray[np.int64], start: NDArray[np.int64], threads: int, heads: NDArray[np.int64]) -> int:
    """Writes the pieces that shares begin with and that add to a unit, and the shares; returns how many these are."""
    count = 0
    for share in range(threads):
        if start[share] < start[share + 1] and pieces[start[share], 4] == 1:
            heads[0, count] = start[share]
            heads[1, count] = share
            count += 1
    return count


@loop
def _merge(
    pieces: NDArray[np.int64],
    heads: NDArray[np.int64],
    count: int,
    first: NDArray[np.int64],
    slots: NDArray[np.int64],
    pool: NDArray[np.int64],
    spare: NDArray[np.int64],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Adds what the first pieces of shares, `heads`, left in `spare` to their histograms: the numbers begin … end.

    heads: (2, count or more).
    """
    whole = first[len(first) - 1]
    other = spare.shape[1] >> 1
    for k in range(count):
        group, slot = pieces[heads[0, k], 0], slots[pieces[heads[0, k], 1]]
        sums, at = spare[heads[1, k]], slot * 2 * whole + first[group]
        last = min(end, first[group + 1] - first[group])
        for i in range(np.uint64(begin), np.uint64(max(begin, last))):
            pool[np.uint64(at) + i] += sums[i]
            pool[np.uint64(at + whole) + i] += sums[np.uint64(other) + i]


class Dealt(NamedTuple):
    """Scratch of `build_histograms`: rows dealt to threads."""

    segments: NDArray[np.int64]  # (3, nodes or more): where the rows of nodes begin and end, and the nodes' slots
    pieces: NDArray[np.int64]
    start: NDArray[np.int64]  # (threads + 1,)
    heads: NDArray[np.int64]  # (2, threads)

    @classmethod
    def of(cls, nodes: int, groups: int, threads: int) -> Dealt:
        """Uninitialised arrays."""
        pieces = np.empty((groups * nodes + threads, 5), np.int64)
        return cls(
            np.empty((3, nodes), np.int64), pieces, np.empty(threads + 1, np.int64), np.empty((2, threads), np.int64)
        )  # fmt: skip


class HistogramArrays(NamedTuple):
    """Where histograms of a table are added up."""

    first: NDArray[np.int64]  # (groups + 1,): where a group's sums begin
    additions: float  # of a row, in a group
    pool: NDArray[np.int64]  # flat
    packed: NDArray[np.int64]
    spare: NDArray[np.int64]


def _build(
    native: tuple[int, int],
    threads: int,
    nodes: NDArray[Any],
    ids: NDArray[np.int64],
    order: NDArray[np.uint32],
    statistics: NDArray[np.int64],
    dense: Any,
    entries: Any,
    tables: Any,
    narrow: Any,
    given: Any,
) -> None:
    """Sets the slots of the nodes `ids` to the histograms of their rows, in two regions of at most `threads` threads.

    Either `dense` is what `_add_dense` takes of a table, or `entries` what `_add_entries` takes; the other is None.
    tables: `HistogramArrays`; given: `Dealt`.
    """
    first, additions, pool, packed, spare = tables
    segments, pieces, start, heads = given
    count = len(ids)
    begin, end, slots = segments[0, :count], segments[1, :count], segments[2, :count]
    groups, whole, widest, total = len(first) - 1, first[len(first) - 1], np.int64(0), np.int64(0)
    for group in range(groups):
        widest = max(widest, first[group + 1] - first[group])
    for k in range(len(ids)):
        node = nodes[ids[k]]
        begin[k], end[k], slots[k] = node.begin, node.end, node.slot
        total += node.end - node.begin
        if node.begin == node.end:
            at = np.uint64(node.slot * 2 * whole)
            for i in range(np.uint64(2 * whole)):
                pool[at + i] = _NOTHING
    shares: Any = max(1, min(threads, np.int64(total * groups * additions / _SHARE)))
    deal_rows(begin, end, groups, shares, pieces, start)
    if dense is not None:
        run_ranges(
            native, shares, 1, _add_dense,
            (order, statistics, dense, first, pieces, start, slots, pool, packed, spare, narrow),
        )  # fmt: skip
    if entries is not None:
        run_ranges(
            native, shares, 1, _add_entries,
            (order, statistics, entries[0], entries[1], pieces, start, slots, pool, packed, spare),
        )  # fmt: skip
    found = _find_heads(pieces, start, shares, heads)
    if found:
        grain = max(_LEAST_SUMS, -(-widest // shares))
        run_ranges(native, widest, grain, _merge, (pieces, heads, found, first, slots, pool, spare))


build_histograms, _enter = inlined(_build), lean(_build)


class Histograms:
    """A pool of histograms, (slots, 2, size) int64: planes of gradient and of Hessian sums in fixed-point units."""

    def __init__(self, bins: DenseBins | SparseBins, workers: Workers, comm: Any = None) -> None:
        self.bins = bins
        self.size = bins.layout.size
        self.pool = aligned((0, 2, self.size), np.int64)
        self._workers = workers
        self._comm = comm
        self._free = np.empty(0, np.int64)  # slots of nodes to use again: the first of it
        self._unused = np.zeros(1, np.int64)  # the number of those
        self.tables: tuple[Any, Any] = None, None  # of a dense table, of a sparse one
        if isinstance(bins, DenseBins):
            self.tables = (bins.rows.reshape(-1), bins.rows.shape[1], bins.width), None
            self._edges = bins.layout.first
            self.groups = len(bins.width)
            widest = int(np.diff(bins.layout.first).max(initial=0))
            self._additions = float(bins.width.mean()) if self.groups else 1.0
        else:
            self.tables = None, (bins.row_start, bins.row_bins)
            self._edges = np.array([0, self.size])
            self.groups = 1
            widest = self.size
            self._additions = len(bins.row_bins) / max(1, len(bins.row_start) - 1)
        # Where a thread adds up one histogram: packed sums in the first half, or pairs.
        self.packed = aligned((workers.threads, 2 * widest), np.int64)
        self.packed[:] = 0
        self._spare = np.empty((workers.threads, 2 * widest), np.int64)

    @property
    def arrays(self) -> HistogramArrays:
        """Arrays as kernels take them; the pool is another one once it has grown."""
        sums = self.pool.reshape(-1), self.packed, self._spare
        return HistogramArrays(self._edges, self._additions, *sums)

    @property
    def slots(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """List of slots, of which the first are free, and how many these are, (1,)."""
        return self._free, self._unused

    def reserve(self, count: int) -> None:
        """Growth of the pool until `count` slots are free."""
        unused = int(self._unused[0])
        if unused < count:
            old, free = self.pool, self._free
            slots = max(4, 2 * len(old), len(old) - unused + count)
            self.pool, self._free = aligned((slots, 2, self.size), np.int64), np.empty(slots, np.int64)
            self.pool[: len(old)], self._free[:unused] = old, free[:unused]
            self._unused[0] += slots - len(old)
            self._free[unused : self._unused[0]] = np.arange(slots - 1, len(old) - 1, -1)

    def take(self, count: int) -> NDArray[np.int64]:
        """Slots for `count` histograms, (count,), from a pool that grows if needed; their contents are undefined."""
        self.reserve(count)
        self._unused[0] -= count
        unused = int(self._unused[0])
        return self._free[unused : unused + count].copy()

    def give_back(self, slots: NDArray[np.int64]) -> None:
        """Frees slots."""
        unused = int(self._unused[0])
        self._free[unused : unused + len(slots)] = slots
        self._unused[0] += len(slots)

    def build(
        self, nodes: NDArray[Any], ids: NDArray[np.int64], order: NDArray[np.uint32], statistics: FixedPoint
    ) -> None:
        """Sets the slots of the nodes `ids`, of rows ``order[begin:end]``, to sums over the rows of all workers."""
        if not self.size:
            return
        threads = self._workers.threads
        self._workers.call(
            _enter, threads, nodes, ids, order, statistics.values, *self.tables, self.arrays, self.bins.layout.narrow,
            Dealt.of(len(ids), self.groups, threads),
        )  # fmt: skip
        if self._comm is not None:
            slots = nodes["slot"][ids]
            self.pool[slots] = self._comm.all_reduce(self.pool[slots], op="sum")
