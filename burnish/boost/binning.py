"""Candidate thresholds of every feature: quantiles of its values, once for all trees (thesis-chen §2.2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Dataset, Sparse
from burnish.boost.growth.csc import column_values
from burnish.boost.kernels import lean
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

LAST_CUT = np.finfo(np.float32).max  # closes the last bin: a split there parts present from missing values
MOST_BINS = 65_535
_WEIGHT_BITS = 40
_LITTLE = 1_000_000  # so few values that a second thread does not pay
_TOGETHER = 16  # columns that share the cache lines of a row-major table


@dataclass(frozen=True)
class Cuts:
    """Thresholds of all features; bin b of feature f holds ``values[start[f] + b - 1] <= x < values[start[f] + b]``.

    A feature without values has no bins; every other one's last cut is the largest float32. Bins of a categorical
    feature are its categories.
    """

    values: NDArray[np.float32]
    start: NDArray[np.int32]  # (features + 1,)

    @staticmethod
    def of(dataset: Dataset, max_bin: int, workers: Workers, weight: NDArray[np.float32] | None = None) -> Cuts:
        """At most `max_bin` bins a feature, by quantiles of its values under `weight`; missing ones count as a bin."""
        if not 2 <= max_bin <= MOST_BINS:
            raise ParameterError(f"max_bin: found {max_bin}; allowed: 2 to {MOST_BINS}")
        integers = None if weight is None else integer_weights(weight)
        blocks = _blocks(dataset.rows, dataset.features, workers)
        if isinstance(dataset.table, Sparse):
            entries = column_values(dataset.table, dataset.features, workers)
            parts = workers.run(_sparse_cuts, [(dataset, entries, integers, max_bin, share) for share in blocks])
        else:
            parts = workers.run(_dense_cuts, [(dataset, integers, max_bin, share) for share in blocks])
        found = {feature: cuts for part in parts for feature, cuts in part}
        return Cuts.join([found[feature] for feature in range(dataset.features)])

    @staticmethod
    def join(columns: list[NDArray[np.float32]]) -> Cuts:
        """Cuts of the features one after the other."""
        start = np.zeros(len(columns) + 1, np.int32)
        start[1:] = np.cumsum([len(values) for values in columns])
        values = np.concatenate([np.empty(0, np.float32), *columns])
        return Cuts(values + np.float32(0.0), start)  # minus zero, which sorts anywhere among zeros, becomes zero

    @property
    def features(self) -> int:
        """Number of features."""
        return len(self.start) - 1

    @property
    def most(self) -> int:
        """Number of bins of the feature that has most."""
        return int(np.diff(self.start).max(initial=0))


def _blocks(rows: int, features: int, workers: Workers) -> list[list[tuple[int, int]]]:
    """Ranges of features for each thread; a range's columns are copied out of the table together."""
    size = max(1, min(_TOGETHER, -(-features // workers.threads)))
    ranges = [(begin, min(begin + size, features)) for begin in range(0, features, size)]
    if rows * features < _LITTLE:
        return [ranges]
    return workers.over(ranges)


def _dense_cuts(
    dataset: Dataset, weight: NDArray[np.int64] | None, max_bin: int, blocks: list[tuple[int, int]]
) -> list[tuple[int, NDArray[np.float32]]]:
    """Cuts of the features in some ranges, with their numbers."""
    found = []
    categorical = dataset.categorical
    columns = np.empty((max((end - begin for begin, end in blocks), default=0), dataset.rows), np.float32)
    for begin, end in blocks:
        _copy_columns(dataset.table, begin, end, columns)
        for feature in range(begin, end):
            if categorical[feature]:
                found.append((feature, category_cuts(len(dataset.categories[feature]))))
            else:
                found.append((feature, column_cuts(columns[feature - begin], weight, max_bin, dataset.rows)))
    return found


def _sparse_cuts(
    dataset: Dataset,
    entries: tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.uint32]],
    weight: NDArray[np.int64] | None,
    max_bin: int,
    blocks: list[tuple[int, int]],
) -> list[tuple[int, NDArray[np.float32]]]:
    found = []
    categorical = dataset.categorical
    start, values, rows = entries
    for feature in (feature for begin, end in blocks for feature in range(begin, end)):
        part = slice(start[feature], start[feature + 1])
        if categorical[feature]:
            found.append((feature, category_cuts(len(dataset.categories[feature]))))
        else:
            weights = None if weight is None else weight[rows[part]]
            found.append((feature, column_cuts(values[part], weights, max_bin, dataset.rows)))
    return found


@lean
def _copy_columns(table: NDArray[np.float32], begin: int, end: int, columns: NDArray[np.float32]) -> None:
    """Copies some columns of a table, in blocks of rows that stay in the cache."""
    for low in range(0, len(table), 256):
        high = low + 256 if low + 256 < len(table) else len(table)
        for feature in range(begin, end):
            for row in range(low, high):
                columns[feature - begin, row] = table[row, feature]


def category_cuts(categories: int) -> NDArray[np.float32]:
    """One bin for each category 0, 1, …"""
    cuts = np.arange(1, categories + 1, dtype=np.float32)
    cuts[-1:] = LAST_CUT
    return cuts


def column_cuts(
    values: NDArray[np.float32], weight: NDArray[np.int64] | None, max_bin: int, rows: int
) -> NDArray[np.float32]:
    """Cuts of a column of a table of `rows` rows from its values (reordered in place; NaN is missing) and weights.

    Cut k is the least value v with ``max_bin · weight(values <= v) > k · weight``; a value that takes several cuts
    gets one after itself as well, so that it has a bin of its own. With few distinct values each has its own bin. The
    result depends on the multiset of (value, weight) alone.
    """
    if weight is None:
        values.sort()
    else:
        order = np.argsort(values)
        values, weight = values[order], weight[order]
    present = int(np.searchsorted(values, np.inf, side="right"))  # NaN is sorted last
    if not present:
        return np.empty(0, np.float32)
    max_bin = max(1, max_bin - (present < rows))
    if weight is None:
        cuts = _unweighted_cuts(values[:present], max_bin)
    else:
        cuts = _weighted_cuts(values[:present], weight[:present], max_bin)
    return np.append(cuts, LAST_CUT)


def quantile_cuts(values: NDArray[np.float32], cumulative: NDArray[np.int64], max_bin: int) -> NDArray[np.float32]:
    """Inner cuts from ascending distinct values and the weight of the rows up to and with each of them."""
    if len(values) <= max_bin:
        return values[1:]
    targets = np.arange(1, max_bin, dtype=np.int64) * cumulative[-1]
    at = np.searchsorted(cumulative * max_bin, targets, side="right")
    repeated = at[1:][at[1:] == at[:-1]]
    at = np.union1d(at, repeated + 1)
    return values[at[(at > 0) & (at < len(values))]]


def _unweighted_cuts(ordered: NDArray[np.float32], max_bin: int) -> NDArray[np.float32]:
    few = _distinct(ordered, max_bin)
    if len(few) <= max_bin:
        return few[1:]
    candidates = ordered[np.arange(1, max_bin) * len(ordered) // max_bin]
    repeated = candidates[1:][candidates[1:] == candidates[:-1]]
    if len(repeated):
        after = np.searchsorted(ordered, repeated, side="right")
        candidates = np.union1d(candidates, ordered[after[after < len(ordered)]])
    return candidates[candidates > ordered[0]]


def _weighted_cuts(ordered: NDArray[np.float32], weight: NDArray[np.int64], max_bin: int) -> NDArray[np.float32]:
    ordered, weight = ordered[weight > 0], weight[weight > 0]
    if not len(ordered):
        return np.empty(0, np.float32)
    last = np.append(ordered[1:] != ordered[:-1], True)
    return quantile_cuts(ordered[last], np.cumsum(weight)[last], max_bin)


def _distinct(ordered: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    """The distinct ones of ascending values, at most ``most + 1`` of them."""
    found, count = [ordered[:1]], 1
    begin, size = 1, 4 * most
    while begin < len(ordered) and count <= most:
        part = ordered[begin - 1 : begin + size]
        found.append(part[1:][part[1:] != part[:-1]])
        count += len(found[-1])
        begin, size = begin + size, 4 * size
    return np.concatenate(found)[: most + 1]


def integer_weights(
    weight: NDArray[np.float32], largest: float | None = None, rows: int | None = None
) -> NDArray[np.int64]:
    """Weights as integers of one unit, a power of two, such that `column_cuts` computes with them exactly.

    Shards of a data set pass the `largest` weight and the number of `rows` of the whole.
    """
    largest = float(weight.max(initial=0)) if largest is None else largest
    bits = min(_WEIGHT_BITS, 62 - MOST_BINS.bit_length() - (rows or len(weight)).bit_length())
    exponent = int(np.frexp(np.float32(largest))[1])
    return np.rint(np.ldexp(weight.astype(np.float64), bits - exponent)).astype(np.int64)
