"""Best splits whose sides have a least number of rows each: a scan of the bins beside their counts."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.fixed import FixedPoint
from burnish.boost.growth.bins import GROUP, DenseBins, SparseBins
from burnish.boost.growth.evaluate import _NOISE, take_off
from burnish.boost.growth.nodes import (
    HESSIAN_UNIT,
    MAX_DELTA_STEP,
    MIN_CHILD_WEIGHT,
    REG_ALPHA,
    REG_LAMBDA,
    UNIT,
)
from burnish.boost.histogram import Histograms
from burnish.boost.kernels import lean
from burnish.boost.splitter import leaf_score, split_gain
from burnish.boost.threads import Workers

_LANES, _NOTHING = np.uint64(GROUP), np.int64(0)


class Counts:
    """Numbers of rows in bins. Rows that are not sampled, whose statistics are zero, do not count."""

    def __init__(self, bins: DenseBins | SparseBins, rows: int, workers: Workers, comm: Any) -> None:
        self.histograms = Histograms(bins, workers, comm)
        self._values = np.zeros((rows, 2), np.int64)
        self._comm = comm

    def start(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32]) -> None:
        """Takes the rows of a tree."""
        self._values[:, 1] = (gradient != 0.0) | (hessian != 0.0)

    def of(self, nodes: NDArray[Any], order: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Slots of the nodes' histograms of counts, to be given back, and their numbers of rows, of all workers."""
        begin, end = np.ascontiguousarray(nodes["begin"]), np.ascontiguousarray(nodes["end"])
        slots = self.histograms.take(len(nodes))
        self.histograms.build(order, begin, end, slots, FixedPoint(self._values, 1.0, 1.0, (0, 0)))
        pairs = zip(begin.tolist(), end.tolist(), strict=True)
        rows = np.array([self._values[order[low:high], 1].sum() for low, high in pairs], np.int64)
        return slots, rows if self._comm is None else np.asarray(self._comm.all_reduce(rows))


@lean
def find_counted_splits(
    nodes: Any, pool: Any, counts: Any, slots: Any, rows: Any, feature: Any, first: Any, scan: Any, missing: Any,
    masks: Any, monotone: Any, rules: Any, least: Any,
) -> None:  # fmt: skip
    """`find_splits` of splits with at least `least` rows on each side; counts lie as Hessians in slots of their own."""
    plane = np.uint64(first[len(scan)])
    for i in range(len(nodes)):
        node = nodes[i]
        if node.subtract >= 0:
            take_off(pool, node.slot, node.subtract, plane + plane)
        node.gain = -math.inf
        unit, hessian_unit = rules[UNIT], rules[HESSIAN_UNIT]
        total, total_hessian = node.gradient * unit, node.hessian * hessian_unit
        noise = _NOISE * leaf_score(total, total_hessian, rules[REG_LAMBDA], rules[REG_ALPHA], 0.0)
        begin, count_begin = np.uint64(node.slot * 2) * plane, np.uint64(slots[i] * 2 + 1) * plane
        for p in range(len(feature)):
            f = feature[p]
            if not masks[i if len(masks) > 1 else 0, f]:
                continue
            offset = np.uint64(first[p // GROUP] + p % GROUP)
            g0, h0, c0 = _NOTHING, _NOTHING, _NOTHING
            for way in range(2 if missing[p] else 1):
                g, h, c = g0, h0, c0
                at = offset
                for b in range(scan[p // GROUP]):
                    g += pool[begin + at]
                    h += pool[begin + plane + at]
                    c += counts[count_begin + at]
                    if c >= least and rows[i] - c >= least and counts[count_begin + at]:
                        left, left_hessian = g * unit, h * hessian_unit
                        gain = split_gain(
                            left, left_hessian, total - left, total_hessian - left_hessian, rules[REG_LAMBDA],
                            rules[REG_ALPHA], rules[MAX_DELTA_STEP], rules[MIN_CHILD_WEIGHT], monotone[f], node.lower,
                            node.upper,
                        )  # fmt: skip
                        if gain > node.gain and gain > noise:
                            node.gain = gain
                            node.position = p
                            node.bin = b
                            node.default_left = way
                            node.left_gradient = g
                            node.left_hessian = h
                    at += _LANES
                g0, h0, c0 = node.gradient - g, node.hessian - h, rows[i] - c
                if c0 == 0:
                    break
