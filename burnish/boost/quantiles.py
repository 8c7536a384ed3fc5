"""Cuts of a table whose rows lie on several workers: those of the whole table, to the bit, without moving its rows.

Values are compared as integers that order as they do; every cut is found by bisecting over these with the summed
weight of all workers. A bisection moves 8 bytes for each cut and step, at most 32 steps, however many rows there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.binning import LAST_CUT, MOST_BINS, Cuts, category_cuts, integer_weights
from burnish.boost.data import Dataset, Sparse
from burnish.boost.growth.csc import column_values
from burnish.comm.protocol import Comm
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

_BLOCK = 1 << 24  # values that are sorted at a time
_MOST_FEATURES = 1024  # that are sorted at a time
_SIGN = np.uint32(1 << 31)
_MINUS_ZERO = (1 << 31) - 1  # would be its key
_NONE = 1 << 32  # above all keys


def shared_cuts(
    dataset: Dataset, max_bin: int, workers: Workers, comm: Comm, weight: NDArray[np.float32] | None = None
) -> Cuts:
    """``Cuts.of`` the rows of all workers together; `dataset` and `weight` (rows,) are this worker's part of them."""
    if not 2 <= max_bin <= MOST_BINS:
        raise ParameterError(f"max_bin: found {max_bin}; allowed: 2 to {MOST_BINS}")
    rows, most_rows = (int(comm.all_reduce(np.array([dataset.rows]), op)[0]) for op in ("sum", "max"))
    integers = None
    if weight is not None:
        largest = comm.all_reduce(np.array([weight.max(initial=0)], np.float32), "max")
        integers = integer_weights(weight, float(largest[0]), rows)
    categorical = dataset.categorical
    numeric, categories = np.flatnonzero(~categorical).tolist(), np.flatnonzero(categorical).tolist()
    found = {feature: category_cuts(len(dataset.categories[feature])) for feature in categories}
    columns = _columns(dataset, integers, workers)
    step = min(_MOST_FEATURES, max(1, _BLOCK // max(1, most_rows)))
    for begin in range(0, len(numeric), step):
        block = numeric[begin : begin + step]
        hands = workers.run(lambda hand: [columns(feature) for feature in hand], [(h,) for h in workers.over(block)])
        order = [feature for hand in workers.over(block) for feature in hand]
        ordered = dict(zip(order, (column for hand in hands for column in hand), strict=True))
        cuts = _block_cuts([ordered[feature] for feature in block], max_bin, rows, comm)
        found.update(zip(block, cuts, strict=True))
    return Cuts.join([found[feature] for feature in range(dataset.features)])


def shared_column_cuts(
    columns: Sequence[tuple[NDArray[np.float32], NDArray[np.int64] | None]], max_bin: int, rows: int, comm: Comm
) -> list[NDArray[np.float32]]:
    """Cuts of some columns, `binning.column_cuts` of the values that all workers have of each; `rows` of all together.

    columns: this worker's values, which are not missing, and integer weights, (n,) each.
    """
    return _block_cuts([_sorted(*column) for column in columns], max_bin, rows, comm)


class SharedColumns:
    """Sorted columns of one worker's rows, for quantiles under weights that change."""

    def __init__(self, block: Any, comm: Comm) -> None:
        """`block`: sorted entries of all features, as of `blocks.column_block` (start, rows, values)."""
        self._start, self._rows, self._values, self._comm = block.start, block.rows, block.values, comm

    def few(self, most: NDArray[np.int64]) -> dict[int, NDArray[np.float32]]:
        """By feature, the distinct values of those that have at most `most` (features,) of them."""
        columns = [_Column(self._column(feature), None) for feature in range(len(most))]
        return {feature: _values(keys) for feature, keys in _few_values(columns, most, self._comm).items()}

    def cuts(
        self, features: Sequence[int], weight: NDArray[np.int32], most: NDArray[np.int64]
    ) -> dict[int, NDArray[np.float32]]:
        """By feature, the inner cuts of `most` (features,) bins by the integer weights of the rows, which may be 0."""
        most_entries = self._comm.all_reduce(np.array([np.diff(self._start).max(initial=1)]), "max")
        step = min(_MOST_FEATURES, max(1, _BLOCK // int(most_entries[0])))
        found: dict[int, NDArray[np.float32]] = {}
        for begin in range(0, len(features), step):
            block = features[begin : begin + step]
            columns = [_Column.weighted(self._column(f), weight[self._row(f)]) for f in block]
            totals = self._comm.all_reduce(np.array([column.total for column in columns], np.int64))
            keys = _quantiles(columns, most[np.array(block)], totals, self._comm)
            found.update(zip(block, map(_values, keys), strict=True))
        return found

    def _column(self, feature: int) -> NDArray[np.float32]:
        column: NDArray[np.float32] = self._values[self._start[feature] : self._start[feature + 1]]
        return column

    def _row(self, feature: int) -> NDArray[Any]:
        rows: NDArray[Any] = self._rows[self._start[feature] : self._start[feature + 1]]
        return rows


@dataclass(frozen=True)
class _Column:
    """Feature column of one worker: ascending values, and the cumulative weight of the first 0, 1, … of them."""

    values: NDArray[np.float32]
    cumulative: NDArray[np.int64] | None  # (values + 1,); None: every weight is one

    @classmethod
    def weighted(cls, values: NDArray[np.float32], weight: NDArray[Any]) -> "_Column":
        """A column of values with integer weights."""
        cumulative = np.zeros(len(weight) + 1, np.int64)
        np.cumsum(weight, out=cumulative[1:])
        return cls(values, cumulative)

    @property
    def total(self) -> int:
        """The weight of all values."""
        return len(self.values) if self.cumulative is None else int(self.cumulative[-1])

    def weight_to(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The weight of the values up to and with each of some keys."""
        at = np.searchsorted(self.values, _values(keys), side="right")
        return at.astype(np.int64) if self.cumulative is None else self.cumulative[at]

    def after(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """The least key above each of some; _NONE where there is none."""
        at = np.searchsorted(self.values, _values(keys), side="right")
        found = np.full(len(keys), _NONE)
        there = at < len(self.values)
        found[there] = _keys(self.values[at[there]])
        return found

    def distinct(self, most: int) -> NDArray[np.uint32]:
        """The distinct keys; not all of them if there are more than `most`."""
        change = np.append(True, self.values[1:] != self.values[:-1])[: len(self.values)]
        return _keys(self.values[np.flatnonzero(change)[: most + 1]])

    @property
    def ends(self) -> tuple[int, int]:
        """The least key, and the largest with its sign turned, so that both are minima."""
        if not len(self.values):
            return _NONE, 0
        least, largest = _keys(self.values[[0, -1]]).tolist()
        return least, -largest


def _columns(dataset: Dataset, weight: NDArray[np.int64] | None, workers: Workers) -> Any:
    """A function from a feature to its sorted `_Column`, and how many values of any weight that has."""
    table = dataset.table
    if isinstance(table, Sparse):
        start, values, rows = column_values(table, dataset.features, workers)

        def sparse(feature: int) -> tuple[_Column, int]:
            part = slice(start[feature], start[feature + 1])
            return _sorted(values[part], None if weight is None else weight[rows[part]])

        return sparse

    def dense(feature: int) -> tuple[_Column, int]:
        column = table[:, feature]
        here = ~np.isnan(column)
        return _sorted(column[here], None if weight is None else weight[here])

    return dense


def _sorted(values: NDArray[np.float32], weight: NDArray[np.int64] | None) -> tuple[_Column, int]:
    if weight is None:
        return _Column(np.sort(values), None), len(values)
    order = np.argsort(values)
    order = order[weight[order] > 0]
    return _Column.weighted(values[order], weight[order]), len(values)


def _keys(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Integers that order as the values do; both zeros have the same."""
    bits = (values + np.float32(0.0)).view(np.uint32)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _values(keys: NDArray[np.int64]) -> NDArray[np.float32]:
    """The values of some keys."""
    bits = keys.astype(np.uint32)
    return np.where(bits & _SIGN, bits ^ _SIGN, ~bits).view(np.float32)


def _block_cuts(
    sorted_columns: Sequence[tuple[_Column, int]], max_bin: int, rows: int, comm: Comm
) -> list[NDArray[np.float32]]:
    """Cuts of some features, as `binning.column_cuts` makes them."""
    columns = [column for column, _ in sorted_columns]
    sums = np.array([[count for _, count in sorted_columns], [column.total for column in columns]], np.int64)
    present, total = comm.all_reduce(sums)
    bins = np.maximum(1, max_bin - (present < rows))
    few = _few_values(columns, bins, comm)
    cuts: list[NDArray[np.int64]] = [few.get(i, np.empty(0, np.int64))[1:] for i in range(len(columns))]
    many = [i for i in range(len(columns)) if i not in few]
    if many:
        found = _quantiles([columns[i] for i in many], bins[many], total[many], comm)
        for i, keys in zip(many, found, strict=True):
            cuts[i] = keys
    return [
        np.append(_values(keys), LAST_CUT) if count else np.empty(0, np.float32)
        for keys, count in zip(cuts, present.tolist(), strict=True)
    ]


def _few_values(columns: Sequence[_Column], bins: NDArray[np.int64], comm: Comm) -> dict[int, NDArray[np.int64]]:
    """By feature, the keys of those that have no more distinct values than bins."""
    distinct = [column.distinct(most) for column, most in zip(columns, bins.tolist(), strict=True)]
    most = comm.all_reduce(np.array([len(keys) for keys in distinct], np.int64), "max")
    chosen = np.flatnonzero(most <= bins)
    lengths = comm.all_gather_v(np.array([len(distinct[i]) for i in chosen], np.int64))
    gathered = comm.all_gather_v(np.concatenate([np.empty(0, np.uint32), *(distinct[i] for i in chosen)]))
    parts = [np.split(keys, np.cumsum(length)) for keys, length in zip(gathered, lengths, strict=True)]
    few = {}
    for place, i in enumerate(chosen.tolist()):
        keys = np.unique(np.concatenate([part[place] for part in parts]))
        if len(keys) <= bins[i]:
            few[i] = keys.astype(np.int64)
    return few


def _quantiles(
    columns: Sequence[_Column], bins: NDArray[np.int64], total: NDArray[np.int64], comm: Comm
) -> list[NDArray[np.int64]]:
    """Keys of the inner cuts of each feature: cut k is the least with ``bins · weight up to it > k · total``."""
    start = np.concatenate([[0], np.cumsum(bins - 1)])
    edges = list(zip(start[:-1].tolist(), start[1:].tolist(), strict=True))
    each = np.repeat(np.arange(len(columns)), bins - 1)
    target = (np.arange(start[-1]) - start[each] + 1) * total[each]
    ends = comm.all_reduce(np.array([column.ends for column in columns], np.int64).reshape(-1, 2), "min")
    low, high = ends[each, 0], -ends[each, 1]
    while (low < high).any():
        middle = (low + high) // 2
        local = [column.weight_to(middle[a:b]) for column, (a, b) in zip(columns, edges, strict=True)]
        enough = comm.all_reduce(np.concatenate(local)) * bins[each] > target
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    low = np.where(low == _MINUS_ZERO, _MINUS_ZERO + 1, low)  # no value's key, yet it compares as zero does
    repeated = [low[a:b][1:][low[a:b][1:] == low[a:b][:-1]] for a, b in edges]
    after = comm.all_reduce(
        np.concatenate([column.after(keys) for column, keys in zip(columns, repeated, strict=True)]), "min"
    )
    following = np.split(after, np.cumsum([len(keys) for keys in repeated]))
    found = []
    for i, (a, b) in enumerate(edges):
        keys = np.union1d(low[a:b], following[i])
        found.append(keys[(keys > ends[i, 0]) & (keys < _NONE)] if total[i] else np.empty(0, np.int64))
    return found
