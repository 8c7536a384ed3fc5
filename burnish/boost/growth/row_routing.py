"""Row routing: sends rows to the children of their nodes after a level of splits, by table or sorted columns."""

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Dataset, Sparse
from burnish.boost.growth.column_source import ColumnSource, OwnedColumns
from burnish.boost.kernels import region
from burnish.runtime.threads import GRAIN, Workers

_SHARE = 100_000  # entries for which further threads are worth their start


class Route:
    """The splits of one level: of each node the feature (−1: none), threshold, default side and left child."""

    def __init__(self, router: "Router", nodes: int) -> None:
        self._router = router
        self.feature = np.full(nodes, -1, np.int64)
        self.threshold = np.zeros(nodes, np.float32)
        self.default_left = np.zeros(nodes, np.bool_)
        self.left = np.zeros(nodes, np.int32)  # the right child has the next number

    def add(self, node: int, feature: int, threshold: float, default_left: bool, left: int) -> None:
        """A split of `node`, whose children are `left` and ``left + 1``."""
        self.feature[node], self.threshold[node] = feature, threshold
        self.default_left[node], self.left[node] = default_left, left

    def apply(self, position: NDArray[np.int32]) -> NDArray[np.int32]:
        """The nodes of all rows after the splits, given those before, (rows,); may change its argument."""
        if (self.feature < 0).all():
            return position
        return self._router.apply(self, position)


class Router:
    """Routes the rows of a training set: by its table if that is dense and at hand, else by sorted columns."""

    def __init__(self, dataset: Dataset, columns: ColumnSource, workers: Workers) -> None:
        self._table = dataset.table
        self._columns = columns
        self._workers = workers

    def route(self, nodes: int) -> Route:
        """An empty level of splits for a tree whose node numbers are below `nodes`."""
        return Route(self, nodes)

    def apply(self, route: Route, position: NDArray[np.int32]) -> NDArray[np.int32]:
        """See `Route.apply`."""
        splits = (route.feature, route.threshold, route.default_left, route.left)
        if not isinstance(self._table, Sparse):
            self._workers.each(_by_table, len(position), self._table, position, *splits, grain=GRAIN)
            return position
        after = np.empty_like(position)
        self._workers.each(_by_default, len(position), position, after, *splits, grain=GRAIN)
        for columns, block in self._columns.parts(np.unique(route.feature[route.feature >= 0])):
            entries = int((block[0][columns + 1] - block[0][columns]).sum())
            grain = 1 if entries > _SHARE else len(columns)
            self._workers.each(_by_columns, len(columns), columns, *block, position, after, *splits, grain=grain)
        if isinstance(self._columns, OwnedColumns):
            return _agreed(self._columns, route, position, after)
        return after


def _agreed(
    columns: OwnedColumns, route: Route, position: NDArray[np.int32], after: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The nodes of all rows, of which each worker knows those that its columns send on: a bit a row is exchanged."""
    split = route.feature >= 0
    mine = split & columns.owned[np.where(split, route.feature, 0)]
    right = mine[position] & (after != route.left[position])
    bits = np.asarray(columns.comm.all_reduce(np.packbits(right), "sum"))  # of a row at most one worker's bit is set
    goes = np.unpackbits(bits, count=len(position))
    return np.where(split[position], route.left[position] + goes, position).astype(np.int32)


@region
def _by_table(table, position, feature, threshold, default_left, left, begin, end, thread):  # type: ignore[no-untyped-def]
    for row in range(np.uint64(begin), np.uint64(end)):
        node = position[row]
        column = feature[node]
        if column >= 0:
            value = table[row, column]
            goes_left = default_left[node] if np.isnan(value) else value < threshold[node]
            position[row] = left[node] + (not goes_left)


@region
def _by_default(position, after, feature, threshold, default_left, left, begin, end, thread):  # type: ignore[no-untyped-def]
    for row in range(np.uint64(begin), np.uint64(end)):
        node = position[row]
        after[row] = left[node] + (not default_left[node]) if feature[node] >= 0 else node


@region
def _by_columns(  # type: ignore[no-untyped-def]
    columns, start, rows, values, position, after, feature, threshold, default_left, left, begin, end, thread
):
    """Each row is written for the one column on which its node splits, so threads may share out the columns."""
    for k in range(begin, end):
        column = columns[k]
        for j in range(start[column], start[column + 1]):
            row = rows[j]
            node = position[row]
            if feature[node] == column:
                after[row] = left[node] + (values[j] >= threshold[node])
