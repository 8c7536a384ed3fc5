"""Approximate greedy trees (thesis-chen Algorithm 2): candidates at weighted quantiles, for each tree or each node."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.binning import LAST_CUT, MOST_BINS, Cuts, category_cuts
from burnish.boost.blocks import column_block
from burnish.boost.data import Dataset, Sparse
from burnish.boost.grower import BinnedGrower, HistGrower
from burnish.boost.growth import requantize as rebin
from burnish.boost.growth.bins import DenseBins
from burnish.boost.growth.evaluate import Candidates
from burnish.boost.params import Params
from burnish.boost.quantiles import SharedColumns
from burnish.boost.sampling import ColumnSampler
from burnish.boost.tree import Tree
from burnish.runtime.threads import GRAIN, Workers

_FINEST, _LEAST_GRID = 8, 1024  # bins of the grid for each local candidate; of coarse ones there are so many at least
_CELLS = 1 << 17  # bins of all features, unless these are so many that there are two for each candidate


class ApproxGrower:
    """Grows trees on candidates that are proposed for every tree ("global") or every node ("local", §2.2.2)."""

    def __init__(self, dataset: Dataset, params: Params, workers: Workers, comm: Any = None) -> None:
        comm = comm if comm is not None and comm.size > 1 else None
        kind = LocalGrower if params.proposal == "local" else GlobalGrower
        self._grower: LocalGrower | GlobalGrower = kind(dataset, params, workers, comm)

    def grow(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], columns: ColumnSampler
    ) -> tuple[Tree, NDArray[np.int32]]:
        """One tree on gradient statistics (rows,), and the leaf (node number) of every training row."""
        return self._grower.grow(gradient, hessian, columns)


class LocalGrower(HistGrower):
    """Proposes `max_bin` candidates for every node and feature, at quantiles of the node's own Hessians.

    They are taken from a finer grid, of quantiles of all rows, of which every node has a histogram: the rank of a
    candidate is right to the Hessians in one bin of the grid. A tree costs what one of "hist" with as many bins does.
    """

    _wide = True

    def __init__(self, dataset: Dataset, params: Params, workers: Workers, comm: Any = None) -> None:
        finest = max(_FINEST * params.max_bin, _LEAST_GRID)
        grid = min(max(_CELLS // max(1, dataset.features), 2 * params.max_bin), finest, MOST_BINS)
        super().__init__(dataset, replace(params, max_bin=grid), workers, comm)
        self._most = params.max_bin

    def _masks(self, columns: ColumnSampler) -> None:
        """None: no subtrees are grown apart, since the kernel that grows them searches all bins."""

    def _candidates(self) -> Candidates:
        """Candidates for a node, at most `max_bin` a feature, and scratch to find them."""
        return Candidates.of(self._most, len(self._layout.feature), self._workers.threads)


class GlobalGrower:
    """Proposes candidates once a tree, from all rows' Hessians, then grows it on their bins."""

    def __init__(self, dataset: Dataset, params: Params, workers: Workers, comm: Any = None) -> None:
        self._dataset, self._params, self._workers, self._comm = dataset, params, workers, comm
        self._block = column_block(dataset, workers)
        self._shared = None if comm is None else SharedColumns(self._block, comm)
        self._weight = np.empty(dataset.rows, np.int32)
        incomplete, self._rows = (~self._block.dense).astype(np.int64), dataset.rows
        if comm is not None:
            incomplete = np.asarray(comm.all_reduce(incomplete, op="max"))
            self._rows = int(comm.all_reduce(np.array([dataset.rows]), op="sum")[0])
        self._most = np.maximum(1, params.max_bin - incomplete)  # a missing value counts as a bin
        self._cuts, self._varying = self._unproposed()
        self._position = np.zeros(dataset.features, np.int64)
        self._grower: BinnedGrower
        if isinstance(dataset.table, Sparse):
            self._grower = HistGrower(dataset, params, workers, comm, self._cuts)
        else:
            self._dense = DenseBins.of(dataset.table, self._cuts, workers, comm, params.min_data_in_leaf > 1)
            self._grower = BinnedGrower(self._dense, self._cuts, dataset.categorical, params, workers, comm)
            self._position[self._dense.layout.feature] = np.arange(len(self._dense.layout.feature))

    def grow(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], columns: ColumnSampler
    ) -> tuple[Tree, NDArray[np.int32]]:
        """One tree on gradient statistics (rows,), and the leaf (node number) of every training row."""
        if len(self._varying):
            self._propose(hessian)
        return self._grower.grow(gradient, hessian, columns)

    def _few(self) -> dict[int, NDArray[np.float32]]:
        """The values, ascending, of each feature that has no more of them than bins: these bins never change."""
        if self._shared is not None:
            return self._shared.few(self._most)
        start, values = self._block.start, self._block.values
        return {
            feature: np.unique(values[start[feature] : start[feature + 1]])
            for feature, most in enumerate(self._most.tolist())
            if rebin.distinct(values, start[feature], start[feature + 1], most) <= most
        }

    def _unproposed(self) -> tuple[Cuts, NDArray[np.int64]]:
        """Cuts of the right number, and the features whose cuts change; all rows are in the first bin of these yet."""
        few, categorical = self._few(), self._dataset.categorical
        columns: list[NDArray[np.float32]] = []
        for feature, most in enumerate(self._most.tolist()):
            if categorical[feature]:
                columns.append(category_cuts(len(self._dataset.categories[feature])))
            elif feature in few:
                columns.append(np.append(few[feature][1:], LAST_CUT)[: len(few[feature])].astype(np.float32))
            else:
                columns.append(np.full(most, LAST_CUT, np.float32))
        varying = [f for f in range(self._dataset.features) if f not in few and not categorical[f]]
        return Cuts.join(columns), np.array(varying, np.int64)

    def _propose(self, hessian: NDArray[np.float32]) -> None:
        """New cuts and bins of all features that have more values than bins."""
        self._weigh(hessian)
        features = self._varying.tolist()
        cuts = None if self._shared is None else self._shared.cuts(features, self._weight, self._most)
        sparse = isinstance(self._dataset.table, Sparse)

        def work() -> None:
            unused = np.empty(self._dataset.rows if sparse else 0, np.uint16)
            while features:
                try:
                    feature = features.pop()
                except IndexError:  # another thread took the last
                    break
                codes = unused if sparse else self._dense.columns[self._position[feature]]
                self._rebin(feature, codes, cuts)

        self._workers.run(work, [()] * self._workers.threads)
        if sparse:  # binned anew from its entries
            self._grower = HistGrower(self._dataset, self._params, self._workers, self._comm, self._cuts)
        else:
            rows = self._dataset.rows
            self._workers.each(rebin.turn, rows, self._dense.columns, self._dense.rows, grain=GRAIN)

    def _rebin(self, feature: int, codes: NDArray[Any], cuts: dict[int, NDArray[np.float32]] | None) -> None:
        """Writes a feature's cuts, and the bins of its rows."""
        block, own = self._block, self._cuts.values[self._cuts.start[feature] : self._cuts.start[feature + 1]]
        entries = (block.rows, block.values, block.start[feature], block.start[feature + 1])
        if cuts is not None:
            own[:] = LAST_CUT
            own[: len(cuts[feature])] = cuts[feature]
            rebin.assign(*entries, own, codes)
            return
        complete = entries[3] - entries[2] == block.count
        total = self._total if complete else rebin.present_weight(block.rows, *entries[2:], self._weight)
        rebin.propose(*entries, self._weight, total, len(own), codes, own)

    def _weigh(self, hessian: NDArray[np.float32]) -> None:
        """Hessians as whole numbers, of which a column's sum times the number of bins stays below 2^62."""
        largest = np.array([hessian.max(initial=0)], np.float32)
        if self._comm is not None:
            largest = np.asarray(self._comm.all_reduce(largest, op="max"))
        bits = min(30, 62 - 9 - self._rows.bit_length())
        scale = math.ldexp(1.0, bits - math.frexp(largest[0])[1]) if largest[0] > 0 else 1.0
        self._workers.each(rebin.whole, len(hessian), hessian, scale, self._weight, grain=GRAIN)
        self._total = int(self._weight.sum(dtype=np.int64))
