"""Row routing: sends rows to the children of their nodes after a level of splits, by table or sorted columns."""

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.blocks import ColumnBlock
from burnish.boost.data import Dataset, Sparse
from burnish.runtime.threads import Workers

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
    """Routes the rows of a training set."""

    def __init__(self, dataset: Dataset, block: ColumnBlock, workers: Workers) -> None:
        self._table = dataset.table
        self._block = block
        self._workers = workers
        self._ranges = workers.ranges(dataset.rows, 16384)

    def route(self, nodes: int) -> Route:
        """An empty level of splits for a tree whose node numbers are below `nodes`."""
        return Route(self, nodes)

    def apply(self, route: Route, position: NDArray[np.int32]) -> NDArray[np.int32]:
        """See `Route.apply`."""
        splits = (route.feature, route.threshold, route.default_left, route.left)
        if not isinstance(self._table, Sparse):
            self._workers.run(_by_table, [(self._table, position, *splits, *part) for part in self._ranges])
            return position
        after = np.empty_like(position)
        self._workers.run(_by_default, [(position, after, *splits, *part) for part in self._ranges])
        block = (self._block.start, self._block.rows, self._block.values)
        features = np.unique(route.feature[route.feature >= 0])
        entries = (self._block.start[features + 1] - self._block.start[features]).sum()
        parts = [np.array(part) for part in self._workers.over(features)] if entries > _SHARE else [features]
        self._workers.run(_by_columns, [(part, *block, position, after, *splits) for part in parts])
        return after


@njit(cache=True, nogil=True)
def _by_table(table, position, feature, threshold, default_left, left, begin, end):  # type: ignore[no-untyped-def]
    for row in range(np.uint64(begin), np.uint64(end)):
        node = position[row]
        column = feature[node]
        if column >= 0:
            value = table[row, column]
            goes_left = default_left[node] if np.isnan(value) else value < threshold[node]
            position[row] = left[node] + (not goes_left)


@njit(cache=True, nogil=True)
def _by_default(position, after, feature, threshold, default_left, left, begin, end):  # type: ignore[no-untyped-def]
    for row in range(np.uint64(begin), np.uint64(end)):
        node = position[row]
        after[row] = left[node] + (not default_left[node]) if feature[node] >= 0 else node


@njit(cache=True, nogil=True)
def _by_columns(columns, start, rows, values, position, after, feature, threshold, default_left, left):  # type: ignore[no-untyped-def]
    """Each row is written for the one column on which its node splits, so threads may share out the columns."""
    for column in columns:
        for j in range(start[column], start[column + 1]):
            row = rows[j]
            node = position[row]
            if feature[node] == column:
                after[row] = left[node] + (values[j] >= threshold[node])
