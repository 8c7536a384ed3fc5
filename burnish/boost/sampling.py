"""Row and column sampling by a counter-based hash: the same choice for any number of threads and workers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.kernels import region
from burnish.boost.params import Params
from burnish.runtime.threads import GRAIN, Workers

# Streams keep the draws of different purposes apart.
ROWS, TREE_COLUMNS, LEVEL_COLUMNS, NODE_COLUMNS, PAIRS, DROPS, FOLDS = range(7)


@njit(cache=True, nogil=True)
def mix(x: Any) -> Any:
    """A bijection of 64-bit words whose output bits each depend on every input bit (Stafford's variant 13)."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def stream(seed: int, *counters: int) -> np.uint64:
    """A key for one purpose: equal arguments give the same key, others give unrelated ones."""
    word = 0x9E3779B97F4A7C15 ^ (seed & 0xFFFFFFFFFFFFFFFF)
    for counter in counters:
        word = (_mix(word) + counter + 1) & 0xFFFFFFFFFFFFFFFF
    return np.uint64(_mix(word))


def _mix(x: int) -> int:
    """`mix` on Python's integers."""
    full = 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & full
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & full
    return x ^ (x >> 31)


@region
def _drop_rows(
    key: Any, limit: Any, first_row: Any, gradient: Any, hessian: Any, begin: int, end: int, thread: int
) -> None:
    """Sets the statistics of the rows begin … end - 1 that are not sampled to zero, for every output."""
    for row in range(np.uint64(begin), np.uint64(end)):
        if mix(key + (first_row + row) * np.uint64(0x9E3779B97F4A7C15)) > limit:
            for output in range(gradient.shape[0]):
                gradient[output, row] = np.float32(0.0)
                hessian[output, row] = np.float32(0.0)


def sample_rows(
    params: Params,
    round_number: int,
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
    workers: Workers,
    first_row: int = 0,
) -> None:
    """Keeps each row with probability `subsample` and zeroes the statistics, (outputs, rows), of all others in place.

    `first_row` is the global number of the first row here, so that the choice does not depend on how rows are shared
    out over workers.
    """
    if params.subsample >= 1.0:
        return
    key = stream(params.seed, ROWS, round_number)
    limit = np.uint64(min(int(params.subsample * 2.0**64), 2**64 - 1))
    workers.each(
        _drop_rows, gradient.shape[1], key, limit, np.uint64(first_row), gradient, hessian, grain=GRAIN
    )  # fmt: skip


class ColumnSampler:
    """Which features a node may split on: every one."""

    def allowed(self, depth: int, node: int) -> NDArray[np.bool_] | None:
        """The features allowed at a node, (features,); None when all are."""
        return None


EVERY_COLUMN = ColumnSampler()


class HashedColumns(ColumnSampler):
    """Column subsampling (§2.1.3) of one tree: a subset for the tree, in it one for each level, in it one for a node.

    A subset of a share of n features has max(1, ⌊share · n⌋) of them, as in XGBoost: those of least hash.
    """

    def __init__(self, params: Params, features: int, tree: int) -> None:
        self._params = params
        self._tree_number = tree
        self._features = features
        every = np.arange(features, dtype=np.uint64)
        self._tree = self._least(every, params.colsample_bytree, stream(params.seed, TREE_COLUMNS, tree))
        self._levels: dict[int, NDArray[np.uint64]] = {}
        self._masks: dict[int, NDArray[np.bool_]] = {}

    @staticmethod
    def _least(features: NDArray[np.uint64], share: float, key: np.uint64) -> NDArray[np.uint64]:
        """The given share of the features, ascending."""
        if share >= 1.0 or len(features) <= 1:
            return features
        count = max(1, int(share * len(features)))
        words = _hash(key, features)
        return np.sort(features[np.argsort(words, kind="stable")[:count]])

    def allowed(self, depth: int, node: int) -> NDArray[np.bool_] | None:
        """The features allowed at a node, (features,); None when all are."""
        params, level = self._params, self._level(depth)
        if params.colsample_bynode >= 1.0:
            if depth not in self._masks:
                self._masks[depth] = self._mask(level)
            return self._masks[depth]
        key = stream(params.seed, NODE_COLUMNS, self._tree_number, node)
        return self._mask(self._least(level, params.colsample_bynode, key))

    def _level(self, depth: int) -> NDArray[np.uint64]:
        """The features of a level."""
        if depth not in self._levels:
            key = stream(self._params.seed, LEVEL_COLUMNS, self._tree_number, depth)
            self._levels[depth] = self._least(self._tree, self._params.colsample_bylevel, key)
        return self._levels[depth]

    def _mask(self, features: NDArray[np.uint64]) -> NDArray[np.bool_]:
        mask = np.zeros(self._features, np.bool_)
        mask[features.astype(np.int64)] = True
        return mask


def _hash(key: np.uint64, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix` of every word under a key."""
    x = key + words * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def column_sampler(params: Params, features: int, tree: int) -> ColumnSampler:
    """The sampler of tree number `tree` of a model."""
    if params.colsample_bytree * params.colsample_bylevel * params.colsample_bynode >= 1.0:
        return EVERY_COLUMN
    return HashedColumns(params, features, tree)
