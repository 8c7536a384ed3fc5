"""Best splits whose sides have a least number of rows each: a scan of the bins beside their counts."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.fixed import FixedPoint
from burnish.boost.growth.bins import GROUP, DenseBins, SparseBins
from burnish.boost.growth.evaluate import _NOISE, take_off
from burnish.boost.growth.local import _OVER
from burnish.boost.growth.nodes import (
    HESSIAN_UNIT,
    MAX_DELTA_STEP,
    MIN_CHILD_WEIGHT,
    REG_ALPHA,
    REG_LAMBDA,
    UNIT,
)
from burnish.boost.histogram import Histograms
from burnish.boost.kernels import inlined, lean
from burnish.boost.splitter import leaf_score, split_gain
from burnish.boost.threads import Workers

_LANES, _NOTHING, _NONE = np.uint64(GROUP), np.int64(0), np.float32(0.0)


class Counted(NamedTuple):
    """Rows of some nodes, and how many of them a side of a split must have; of all workers."""

    pool: NDArray[np.int64]  # flat; a slot's second plane, where Hessians lie elsewhere, has numbers of rows by bin
    slots: NDArray[np.int64]  # (nodes,)
    rows: NDArray[np.int64]  # (nodes,)
    least: int

    def part(self, begin: int, end: int) -> "Counted":
        """Those of the nodes begin … end."""
        return self._replace(slots=self.slots[begin:end], rows=self.rows[begin:end])


class Counts:
    """Numbers of rows in bins. Rows that are not sampled, whose statistics are zero, do not count."""

    def __init__(self, bins: DenseBins | SparseBins, rows: int, least: int, workers: Workers, comm: Any) -> None:
        self._histograms = Histograms(bins, workers, comm)
        self._least = least
        self._values = np.zeros((rows, 2), np.int64)
        self._comm = comm

    def start(self, gradient: NDArray[np.float32], hessian: NDArray[np.float32]) -> None:
        """Takes the rows of a tree."""
        self._values[:, 1] = (gradient != 0.0) | (hessian != 0.0)

    def of(self, nodes: NDArray[Any], order: NDArray[np.uint32]) -> Counted:
        """The counts of nodes, of all workers' rows; to be given back."""
        begin, end = np.ascontiguousarray(nodes["begin"]), np.ascontiguousarray(nodes["end"])
        slots = self._histograms.take(len(nodes))
        self._histograms.build(order, begin, end, slots, FixedPoint(self._values, 1.0, 1.0, (0, 0)))
        pairs = zip(begin.tolist(), end.tolist(), strict=True)
        rows = np.array([self._values[order[low:high], 1].sum() for low, high in pairs], np.int64)
        rows = rows if self._comm is None else np.asarray(self._comm.all_reduce(rows))
        return Counted(self._histograms.pool.reshape(-1), slots, rows, self._least)

    def give_back(self, counted: Counted) -> None:
        """Frees the slots of some counts."""
        self._histograms.give_back(counted.slots)


@inlined
def _share(
    pool: NDArray[np.int64], at: np.uint64, scan: int, total: np.int64, missing: int, candidates: int
) -> np.float32:  # fmt: skip
    """Candidates for each unit of a feature's present Hessians, whose bins begin at pool[at]."""
    present = total
    if missing:
        present = _NOTHING
        for _ in range(scan):
            present += pool[at]
            at += _LANES
    return np.float32(candidates * _OVER / present) if present > 0 else _NONE


@lean
def find_counted_splits(
    nodes: Any, pool: Any, counted: Any, feature: Any, first: Any, scan: Any, missing: Any, masks: Any, monotone: Any,
    rules: Any, candidates: Any,
) -> None:  # fmt: skip
    """`find_splits` of splits with at least ``counted.least`` rows on each side.

    Unless `candidates` is 0, at most so many ends of bins are considered, as in `local.find_local_splits`.
    """
    counts, slots, rows, least = counted
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
            share = _NONE
            if candidates > 0:
                share = _share(pool, begin + plane + offset, scan[p // GROUP], node.hessian, missing[p], candidates)
            for way in range(2 if missing[p] else 1):
                g, h, c, passed = g0, h0, c0, _NONE
                at = offset
                for b in range(scan[p // GROUP]):
                    g += pool[begin + at]
                    h += pool[begin + plane + at]
                    c += counts[count_begin + at]
                    rank = np.floor(np.float32(h - h0) * share)
                    fits = candidates == 0 or rank > passed
                    passed = rank
                    if fits and c >= least and rows[i] - c >= least and counts[count_begin + at]:
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
