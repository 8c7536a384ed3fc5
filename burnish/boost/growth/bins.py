"""Tables as bin numbers: dense ones in rows of bytes and in columns, sparse ones as compressed rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.binning import MOST_BINS, Cuts
from burnish.boost.data import Sparse
from burnish.boost.growth.csc import column_offsets
from burnish.boost.intrinsics import aligned
from burnish.boost.kernels import inlined, region
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

GROUP = 32  # features that lie together: a group; their lanes in a row of bins, and in a row of a histogram
FEW = 8  # the same of a narrow layout
_NARROW = 16  # so few features of a dense table are laid out narrowly
_QUAD = 4  # the histogram kernel takes features by fours
_MOST_BUCKETS = 1 << 14
_ROWS = 4096  # of a table, that are worth handing to a thread
_LANES, _FEW, _NOUGHT = np.uint64(GROUP), np.uint64(FEW), np.float32(0.0)


@inlined
def lanes_of(narrow: Any) -> np.uint64:
    """Lanes of a group, known when a kernel is compiled: `narrow` is None, or True of narrow layouts."""
    if narrow is None:
        return _LANES
    return _FEW


class Positions(NamedTuple):
    """A `HistogramLayout` as the kernels that find splits take it."""

    feature: NDArray[np.int64]
    first: NDArray[np.int64]
    scan: NDArray[np.int64]
    missing: NDArray[np.int64]
    missing_code: NDArray[np.int64]
    codes: int
    narrow: bool | None


@dataclass(frozen=True)
class HistogramLayout:
    """Where bins lie in a histogram: bin b of lane k of group g is at ``first[g] + lanes · b + k``.

    Features that can be split have positions, dealt to groups by descending number of bins; position p is lane
    p % lanes of group p // lanes. A prefix sum over the first ``scan[g]`` bins of a group therefore takes 32 features
    in step, or 8 in a narrow layout, which wastes less where a few features have many bins.
    """

    feature: NDArray[np.int64]  # (positions,)
    count: NDArray[np.int64]  # (positions,): bins of present values
    first: NDArray[np.int64]  # (groups + 1,): the last is `size`
    scan: NDArray[np.int64]  # (groups,): bins after which a split may be
    missing: NDArray[np.int64]  # (groups * 32,): -1 where the column has missing values, else 0
    missing_code: NDArray[np.int64]  # (positions,): the code of missing values; `codes` where there is none
    codes: int  # codes are below this
    narrow: bool | None = None  # True or None, for `lanes_of`
    # Where features are bundled, of each position: its column, the code there of its first bin, its bins. Groups then
    # are of columns, and rows whose code is not one of its bins have no value of the feature.
    bundle: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None

    @classmethod
    def of(
        cls, order: NDArray[np.int64], count: NDArray[np.int64], missing: NDArray[np.bool_], stored: bool,
        narrow: bool | None = None,
    ) -> HistogramLayout:  # fmt: skip
        """The layout of the features in `order`, with these counts; `stored`: missing values have a code in a table."""
        lanes = FEW if narrow else GROUP
        groups = -(-len(order) // lanes)
        padded = np.zeros(groups * lanes, np.int64)
        padded[: len(order)] = count + (missing if stored else 0)
        bins = padded.reshape(groups, lanes).max(axis=1, initial=0)
        first = np.append(0, np.cumsum(bins * lanes))
        mask = np.zeros(groups * lanes, np.int64)
        mask[: len(order)] = -missing.astype(np.int64)
        codes = int(bins.max(initial=0))
        # The last code of a group is a missing value, or a last bin, after which there is no split.
        code = np.where(missing & stored, bins[np.arange(len(order)) // lanes] - 1, codes)
        return cls(order, count, first, bins - 1 if stored else bins, mask, code, codes, narrow)

    @property
    def size(self) -> int:
        """Numbers in a histogram's plane, of gradients or of Hessians."""
        return int(self.first[-1])

    @property
    def lanes(self) -> int:
        """Features of a group."""
        return FEW if self.narrow else GROUP

    @property
    def place(self) -> NDArray[np.int64]:
        """Where the first bin of each position lies in a histogram, (positions,)."""
        group, lane = np.divmod(np.arange(len(self.feature)), self.lanes)
        return np.asarray(self.first[group] + lane)

    @property
    def positions(self) -> Positions:
        """The same for kernels; `bundle`, which decides what of them is compiled, they take as an argument."""
        return Positions(
            self.feature, self.first, self.scan, self.missing, self.missing_code, self.codes, self.narrow
        )  # fmt: skip

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.scan)


@dataclass(frozen=True)
class DenseBins:
    """Bin numbers of a dense table, in rows for histograms and in columns for partitions."""

    layout: HistogramLayout
    rows: NDArray[np.uint8] | NDArray[np.uint16]  # (groups, rows, lanes)
    columns: NDArray[np.uint8] | NDArray[np.uint16]  # (positions, rows)
    width: NDArray[np.uint64]  # (groups,): positions of a group, rounded up to fours

    @classmethod
    def of(
        cls, table: NDArray[np.float32], cuts: Cuts, workers: Workers, comm: Any = None, wide: bool = False
    ) -> DenseBins:
        """Bins of a table (rows, features) float32; ParameterError if a feature has more than 65,535.

        wide: groups have `GROUP` lanes, however few features there are.
        """
        rows = len(table)
        counts = np.diff(cuts.start).astype(np.int64)
        found = np.zeros((workers.threads, table.shape[1]), np.bool_)
        workers.each(_any_missing, rows, table, found, grain=_ROWS)
        missing = np.logical_or.reduce(found).astype(np.int64)
        if comm is not None:  # all workers must lay out their histograms alike
            missing = comm.all_reduce(missing, op="max")
        codes = counts + missing
        if codes.max(initial=0) > MOST_BINS:
            raise ParameterError(f"max_bin: found a feature of {codes.max()} bins; allowed: {MOST_BINS}")
        order = np.argsort(-codes, kind="stable")
        order = order[codes[order] > 1]
        narrow = None if wide or len(order) > _NARROW else True
        layout = HistogramLayout.of(order, counts[order], missing[order] > 0, stored=True, narrow=narrow)
        lanes = layout.lanes
        width = np.full(layout.groups, lanes, np.uint64)
        if len(order) % lanes:
            width[-1] = -(-(len(order) % lanes) // _QUAD) * _QUAD
        dtype = np.uint8 if layout.codes <= 256 else np.uint16
        row_bins = aligned((layout.groups, rows, lanes), dtype)
        column_bins = aligned((len(order), rows), dtype)
        search = _search_tables(cuts, order)
        block = min(512, max(64, 16384 // max(1, table.shape[1]) // 64 * 64))
        codes = layout.missing_code
        values, found = np.empty((workers.threads, block), np.float32), np.empty((workers.threads, block), np.int32)
        arrays = row_bins.reshape(-1), column_bins.reshape(-1), values, found
        workers.each(_bin_rows, rows, table, order, search, codes, *arrays, layout.narrow, grain=_ROWS)
        return cls(layout, row_bins, column_bins, width)


@region
def _any_missing(table: NDArray[np.float32], found: NDArray[np.bool_], begin: int, end: int, thread: int) -> None:
    """Notes in found[thread] which features have a missing value in some rows."""
    missing = found[thread]
    for row in range(np.uint64(begin), np.uint64(end)):
        for feature in range(np.uint64(table.shape[1])):
            value = table[row, feature]
            missing[feature] |= value != value


class _Search(NamedTuple):
    """Bucket tables for the binary search of bins in `_bin_rows`.

    Bucket b, of equal width, holds the values from ``origin + b / scale`` on; ``guide[position, b]`` cuts are in
    buckets before it, and a binary search of ``steps`` steps among those in it remains. As the bucket is the same
    ascending function of cuts and of values, rounding does no harm.
    """

    cuts: NDArray[np.float32]  # (positions, most cuts and more): the inner ones, then NaN
    guide: NDArray[np.int32]  # (positions, buckets)
    buckets: NDArray[np.float32]  # (positions, 2): origin and scale
    steps: NDArray[np.int64]  # (positions,)


def _search_tables(cuts: Cuts, features: NDArray[np.int64]) -> _Search:
    """Bucket tables by which bins of the features are found, in the order of `features`."""
    counts = np.maximum(np.diff(cuts.start)[features] - 1, 0).astype(np.int64)
    widest = int(counts.max(initial=0))
    buckets = min(max(4 << widest.bit_length(), 16), _MOST_BUCKETS)
    search = np.full((len(features), 2 << widest.bit_length()), np.nan, np.float32)  # NaN is no cut below a value
    places = np.repeat(np.arange(len(features)), counts)
    inner = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    search[places, inner] = cuts.values[np.repeat(cuts.start[features], counts) + inner]
    origin = np.where(counts > 0, search[:, 0], np.float32(0.0))
    last = search[np.arange(len(features)), np.maximum(counts - 1, 0)]
    with np.errstate(all="ignore"):
        scale = np.where(last > origin, np.float32(buckets - 1) / (last - origin), np.float32(0.0)).astype(np.float32)
        bucket = (search[places, inner] - origin[places]) * scale[places]
    top = np.float32(buckets - 1)
    bucket = np.where(bucket > 0, np.where(bucket < top, bucket, top), np.float32(0.0)).astype(np.int64)
    width = buckets + 1
    found = np.bincount(places * width + bucket + 1, minlength=len(features) * width).reshape(-1, width)
    steps = np.array([int(most).bit_length() for most in found.max(axis=1, initial=0)], np.int64)
    guide = np.cumsum(found, axis=1, dtype=np.int32)[:, :-1]
    return _Search(search, np.ascontiguousarray(guide), np.stack([origin, scale], axis=1), steps)


@region
def _bin_rows(
    table: NDArray[np.float32],
    features: NDArray[np.int64],
    search: Any,
    missing_code: NDArray[np.int64],
    row_bins: NDArray[np.uint8],
    column_bins: NDArray[np.uint8],
    scratch: NDArray[np.float32],
    scratch_codes: NDArray[np.int32],
    narrow: Any,
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Bins of rows ``begin … end``: in blocks of rows, each feature by a search that all rows make in step.

    search: `_Search`. The bins' arrays are flat; scratch and scratch_codes are (threads, rows of a block).
    """
    values, found = scratch[thread], scratch_codes[thread]
    cuts, guide, buckets, steps = search
    block, rows, positions = len(values), len(table), len(features)
    lanes = lanes_of(narrow)
    width = np.int64(lanes)
    top = np.float32(guide.shape[1] - 1)
    # Feature by feature in blocks of rows that stay in the cache. All rows of a block take each step of the search
    # together, with a select in place of a branch, so that it becomes vectors; the guide saves most of the steps.
    for low in range(begin, end, block):
        n = np.uint64(block if block < end - low else end - low)
        first = np.uint64(low)
        for position in range(positions):
            feature, place = np.uint64(features[position]), np.uint64(position)
            origin, scale = buckets[place, 0], buckets[place, 1]
            for i in range(n):
                value = table[first + i, feature]
                values[i] = value
                at = (value - origin) * scale
                at = at if at > _NOUGHT else _NOUGHT  # as NaN is not
                found[i] = guide[place, np.uint64(np.uint32(at if at < top else top))]
            for step in range(steps[position] - 1, -1, -1):
                half = np.int32(1 << step)
                for i in range(n):
                    to = found[i] + half
                    found[i] = to if cuts[place, np.uint64(np.uint32(to - np.int32(1)))] <= values[i] else found[i]
            last = np.int32(missing_code[position])
            column = np.uint64(position * rows + low)
            for i in range(n):
                code = found[i] if values[i] == values[i] else last
                found[i] = code
                column_bins[column + i] = code
            row = np.uint64((position // width * rows + low) * width + position % width)
            for i in range(n):
                row_bins[row + i * lanes] = found[i]
        filled = positions % width
        for lane in range(filled, width if filled else 0):  # fill up the last group
            row = np.uint64((positions // width * rows + low) * width + lane)
            for i in range(n):
                row_bins[row + i * lanes] = 0


@dataclass(frozen=True)
class SparseBins:
    """Bins of a sparse table: by rows as indices of histograms, by columns as bin numbers."""

    layout: HistogramLayout
    row_start: NDArray[np.int64]  # (rows + 1,)
    row_bins: NDArray[np.uint16] | NDArray[np.uint32]  # (entries,)
    column_start: NDArray[np.int64]  # (features + 1,)
    column_rows: NDArray[np.uint32]  # (entries,), ascending in a column
    column_bins: NDArray[np.uint16] | NDArray[np.uint32]  # (entries,)

    @classmethod
    def of(cls, table: Sparse, features: int, cuts: Cuts, workers: Workers, wide: bool = False) -> SparseBins:
        """Bins of the entries; cost is linear in their number. wide: as of `DenseBins`."""
        counts = np.diff(cuts.start).astype(np.int64)
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] > 0]
        missing = np.ones(len(order), np.bool_)
        layout = HistogramLayout.of(order, counts[order], missing, stored=False)
        narrow = HistogramLayout.of(order, counts[order], missing, stored=False, narrow=True)
        if not wide and 2 * narrow.size <= layout.size:
            layout = narrow
        place = np.zeros(features, np.int64)
        place[order] = layout.place
        dtype = np.uint16 if layout.size < 1 << 16 else np.uint32
        row_bins: NDArray[Any] = np.empty(len(table.columns), dtype)
        common = table.columns, table.values, cuts.values, cuts.start, place, layout.lanes
        workers.each(_bin_entries, len(table.columns), *common, row_bins, grain=65536)
        start = np.ascontiguousarray(table.start, np.int64)
        column_start, offsets, edges = column_offsets(table, features, workers)
        column_rows = np.empty(len(row_bins), np.uint32)
        column_bins: NDArray[Any] = np.empty(len(row_bins), dtype)
        entries = start, table.columns, row_bins, place, layout.lanes
        workers.each(_scatter_bins, len(offsets), *entries, edges, offsets, column_rows, column_bins)
        return cls(layout, start, row_bins, column_start, column_rows, column_bins)


@region
def _bin_entries(
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
    cuts: NDArray[np.float32],
    start: NDArray[np.int32],
    place: NDArray[np.int64],
    lanes: int,
    bins: NDArray[np.uint16],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """The histogram index of every entry's bin, by binary search among the inner cuts of its feature."""
    for j in range(begin, end):
        first = start[columns[j]]
        low, high = start[columns[j]], start[columns[j] + 1] - 1
        while low < high:
            middle = (low + high) >> 1
            if cuts[middle] <= values[j]:
                low = middle + 1
            else:
                high = middle
        bins[j] = place[columns[j]] + (low - first) * lanes


@region
def _scatter_bins(
    start: NDArray[np.int64],
    columns: NDArray[np.int32],
    bins: NDArray[np.uint16],
    place: NDArray[np.int64],
    lanes: int,
    edges: NDArray[np.int64],
    offsets: NDArray[np.int64],
    out_rows: NDArray[np.uint32],
    out_bins: NDArray[np.uint16],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Writes the entries of ranges begin … end of rows into their columns; see `csc.column_offsets`."""
    for part in range(begin, end):
        offset = offsets[part]
        for row in range(edges[part], edges[part + 1]):
            for j in range(start[row], start[row + 1]):
                column = columns[j]
                at = offset[column]
                out_rows[at] = row
                out_bins[at] = (bins[j] - place[column]) // lanes
                offset[column] = at + 1
