"""Baselines of the sparsity-aware and fetching scans: Figs. 2.5 and 2.7."""

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.growth import scan
from burnish.boost.growth.scan_state import RowRecords

_BUFFER = 64  # entries of the paper's mini-batch
kernel = njit(cache=True, nogil=True, error_model="numpy", _nrt=False)  # see burnish.boost.growth.scan


def narrow(records: RowRecords) -> NDArray[np.int64]:
    """The words of records, one for each row."""
    assert records.words.ndim == 1
    return records.words


def state_of(words: NDArray[np.int64], slots: int) -> tuple[NDArray[np.float64], tuple[float | bool, ...]]:
    """The state of a scan of a column that no row misses, for the sums of these rows; and rules with λ = 1."""
    table = np.zeros((slots + 1, int(scan.WIDTH)))
    slot = words & 0xFFFF
    table[:, int(scan.TOTAL_G)] = np.bincount(slot, (words >> 40).astype(np.float64), slots + 1)
    table[:, int(scan.TOTAL_H)] = np.bincount(slot, ((words << 24) >> 40).astype(np.float64), slots + 1)
    table[-1, int(scan.TOTAL_H)] = -np.inf
    rule = (2.0**23, 2.0**23, 2.0**-23, 2.0**-23, 1.0, 0.0, 0.0, 1.0, True)
    state = table.ravel()
    scan.clear(state, slots + 1, rule, None)
    return state, rule


@kernel
def _naive(rows, values, first, last, words, state, rule, bounds):  # type: ignore[no-untyped-def]
    for j in range(np.uint64(first), np.uint64(last)):
        slot, g, h = scan.read(words, np.uint64(rows[j]))
        scan.visit(state, slot * scan.WIDTH, g, h, float(values[j]), rule, bounds, 0, None)


@njit(cache=True, nogil=True, error_model="numpy")
def _buffer(rows, values, first, last, words, state, rule, bounds):  # type: ignore[no-untyped-def]
    _buffered(rows, values, first, last, words, state, rule, bounds, np.empty(_BUFFER, np.int64))


@kernel
def _buffered(rows, values, first, last, words, state, rule, bounds, buffer):  # type: ignore[no-untyped-def]
    """§2.3.2: statistics of a mini-batch are fetched into a buffer, which depend on nothing, and then accumulated."""
    for low in range(np.uint64(first), np.uint64(last), np.uint64(_BUFFER)):
        count = min(np.uint64(_BUFFER), np.uint64(last) - low)
        for k in range(count):
            buffer[k] = words[np.uint64(rows[low + k])]
        for k in range(count):
            slot, g, h = scan.read(buffer, k)
            scan.visit(state, slot * scan.WIDTH, g, h, float(values[low + k]), rule, bounds, 0, None)


def _prefetch(rows, values, first, last, words, state, rule, bounds):  # type: ignore[no-untyped-def]
    scan.scan_complete(rows, values, first, last, words, state, rule, bounds, 0, None)


FORMS = {"naive": _naive, "buffer": _buffer, "prefetch": _prefetch}


class NaiveTrees:
    """Trees by the exact greedy algorithm as Algorithm 1 has it, on one thread: all entries of a dense table, absent
    ones as 0, are visited in the order of each column for each level.
    """

    def __init__(self, table: NDArray[np.float32]) -> None:
        """table: (rows, features)."""
        self._table = table
        self._order = np.argsort(table.T, axis=1, kind="stable").astype(np.int32)
        self._values = np.take_along_axis(table.T, self._order.astype(np.int64), axis=1)

    def grow(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], depth: int) -> NDArray[np.float64]:
        """The values (eq. 2.5, λ = 1) of the leaves that rows come to in a tree of this depth, (rows,)."""
        node = np.zeros(len(gradient), np.int64)  # among those of the level; -1 in a leaf
        value = np.zeros(len(gradient))
        nodes = 1
        for level in range(depth + 1):
            inside = node >= 0
            g, h = (np.bincount(node[inside], sums[inside], nodes) for sums in (gradient, hessian))
            value[inside] = (-g / (h + 1))[node[inside]]
            if level == depth:
                break
            gain, feature, threshold = np.zeros(nodes), np.full(nodes, -1), np.zeros(nodes, np.float32)
            for column in range(len(self._order)):
                entries = self._order[column], self._values[column]
                _best_splits(*entries, node, gradient, hessian, g, h, column, gain, feature, threshold)
            if (feature < 0).all():
                break
            split = inside & (feature[node] >= 0)
            here = node[split]
            node[~split] = -1
            node[split] = 2 * here + (self._table[split, feature[here]] >= threshold[here])
            nodes *= 2
        return value


@njit(cache=True, nogil=True, error_model="numpy")
def _best_splits(order, values, node, gradient, hessian, g, h, column, gain, feature, threshold):  # type: ignore[no-untyped-def]
    """The inner loops of Algorithm 1, for all nodes of a level: better splits on this column, if there are any."""
    left_g, left_h, last = np.zeros(len(g)), np.zeros(len(g)), np.full(len(g), np.inf, np.float32)
    for j in range(len(order)):
        row = order[j]
        k = node[row]
        if k < 0:
            continue
        right_h = h[k] - left_h[k]
        if values[j] > last[k] and left_h[k] >= 1 and right_h >= 1:
            right_g = g[k] - left_g[k]
            found = left_g[k] ** 2 / (left_h[k] + 1) + right_g**2 / (right_h + 1) - g[k] ** 2 / (h[k] + 1)
            if found > gain[k]:
                gain[k], feature[k], threshold[k] = found, column, values[j]
        left_g[k] += gradient[row]
        left_h[k] += hessian[row]
        last[k] = values[j]
