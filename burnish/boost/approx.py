"""Approximate greedy trees (thesis-chen Algorithm 2): candidates at weighted quantiles, for each tree or each node."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from burnish.boost.growth.column_source import ColumnSource, Entries, MemoryColumns
from burnish.boost.growth.evaluate import Candidates
from burnish.boost.params import Params
from burnish.boost.quantiles import SharedColumns
from burnish.boost.sampling import ColumnSampler
from burnish.boost.sketched import SketchedColumns
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


def grid_bins(params: Params, features: int) -> int:
    """Bins of the grid from which `LocalGrower` takes candidates, for a table of ``features`` columns."""
    finest = max(_FINEST * params.max_bin, _LEAST_GRID)
    return min(max(_CELLS // max(1, features), 2 * params.max_bin), finest, MOST_BINS)


class LocalGrower(HistGrower):
    """Proposes `max_bin` candidates for every node and feature, at quantiles of the node's own Hessians.

    They are taken from a finer grid, of quantiles of all rows, of which every node has a histogram: the rank of a
    candidate is right to the Hessians in one bin of the grid. A tree costs what one of "hist" with as many bins does.
    """

    _wide = True

    def __init__(self, dataset: Dataset, params: Params, workers: Workers, comm: Any = None) -> None:
        super().__init__(dataset, replace(params, max_bin=grid_bins(params, dataset.features)), workers, comm)
        self._most = params.max_bin

    def _masks(self, columns: ColumnSampler) -> None:
        """None: no subtrees are grown apart, since the kernel that grows them searches all bins."""

    def _candidates(self) -> Candidates:
        """Candidates for a node, at most `max_bin` a feature, and scratch to find them."""
        return Candidates.of(self._most, len(self._layout.feature), self._workers.threads)


class GlobalProposals:
    """Candidates of a tree at quantiles of all rows' Hessians (Algorithm 2, eq. 2.9), by scans of sorted columns.

    ``cuts`` have the same number of bins for every tree; those of the features ``varying`` change with it. ``shared``:
    proposals over several workers, which hold a part of the rows each, as `quantiles.SharedColumns` makes them.
    """

    def __init__(
        self, dataset: Dataset, columns: ColumnSource, max_bin: int, workers: Workers, comm: Any = None,
        shared: SharedColumns | SketchedColumns | None = None,
    ) -> None:  # fmt: skip
        self._dataset, self._columns, self._workers, self._comm = dataset, columns, workers, comm
        self._shared = shared
        self._weight = np.empty(dataset.rows, np.int32)
        incomplete, self._rows = (np.diff(columns.start) != dataset.rows).astype(np.int64), dataset.rows
        if comm is not None:
            incomplete = np.asarray(comm.all_reduce(incomplete, op="max"))
            self._rows = int(comm.all_reduce(np.array([dataset.rows]), op="sum")[0])
        self._most = np.maximum(1, max_bin - incomplete)  # a missing value counts as a bin
        self.cuts, self.varying = self._unproposed()

    def propose(self, hessian: NDArray[np.float32], codes_of: Callable[[int], NDArray[Any]] | None = None) -> None:
        """New cuts of all features that have more values than bins; their rows' bins go to `codes_of`, (rows,) each."""
        self._weigh(hessian)
        features = self.varying.tolist()
        cuts = None if self._shared is None else self._shared.cuts(features, self._weight, self._most)
        for some, block in self._columns.parts(self.varying):
            left = some.tolist()

            def work(left: list[int] = left, block: Entries = block) -> None:
                unused = np.empty(self._dataset.rows if codes_of is None else 0, np.uint16)
                while left:
                    try:
                        feature = left.pop()
                    except IndexError:  # another thread took the last
                        break
                    self._rebin(feature, block, unused if codes_of is None else codes_of(feature), cuts)

            self._workers.run(work, [()] * self._workers.threads)

    def _few(self) -> dict[int, NDArray[np.float32]]:
        """The values, ascending, of each feature that has no more of them than bins: these bins never change."""
        if self._shared is not None:
            return self._shared.few(self._most)
        found = {}
        for some, (start, _, values) in self._columns.parts(np.arange(self._dataset.features)):
            for feature in some.tolist():
                own = start[feature], start[feature + 1]
                if rebin.distinct(values, *own, self._most[feature]) <= self._most[feature]:
                    found[feature] = np.unique(values[own[0] : own[1]])
        return found

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

    def _rebin(
        self, feature: int, block: Entries, codes: NDArray[Any], cuts: dict[int, NDArray[np.float32]] | None
    ) -> None:
        """Writes a feature's cuts, and the bins of its rows."""
        start, rows, values = block
        own = self.cuts.values[self.cuts.start[feature] : self.cuts.start[feature + 1]]
        entries = (rows, values, start[feature], start[feature + 1])
        if cuts is not None:
            own[:] = LAST_CUT
            own[: len(cuts[feature])] = cuts[feature]
            rebin.assign(*entries, own, codes)
            return
        complete = entries[3] - entries[2] == self._dataset.rows
        total = self._total if complete else rebin.present_weight(rows, *entries[2:], self._weight)
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


class GlobalGrower:
    """Proposes candidates once a tree, from all rows' Hessians, then grows it on their bins."""

    def __init__(self, dataset: Dataset, params: Params, workers: Workers, comm: Any = None) -> None:
        self._dataset, self._params, self._workers, self._comm = dataset, params, workers, comm
        block = column_block(dataset, workers)
        shared: SharedColumns | SketchedColumns | None = None
        if comm is not None:
            shared = (
                SketchedColumns(block, comm, params.sketch_eps) if params.sketch_eps else SharedColumns(block, comm)
            )
        self._proposals = GlobalProposals(dataset, MemoryColumns(block), params.max_bin, workers, comm, shared)
        self._cuts = self._proposals.cuts
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
        if len(self._proposals.varying):
            self._propose(hessian)
        return self._grower.grow(gradient, hessian, columns)

    def _propose(self, hessian: NDArray[np.float32]) -> None:
        """New cuts and bins of all features that have more values than bins."""
        if isinstance(self._dataset.table, Sparse):  # binned anew from its entries
            self._proposals.propose(hessian)
            self._grower = HistGrower(self._dataset, self._params, self._workers, self._comm, self._cuts)
            return
        self._proposals.propose(hessian, lambda feature: self._dense.columns[self._position[feature]])
        rows = self._dataset.rows
        self._workers.each(rebin.turn, rows, self._dense.columns, self._dense.rows, grain=GRAIN)
