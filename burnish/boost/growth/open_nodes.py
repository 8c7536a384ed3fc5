"""Nodes of a tree that grows, with their histograms, and the best splits of those that may be split."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.binning import Cuts
from burnish.boost.fixed import FixedPoint, Quantizer
from burnish.boost.growth.bins import DenseBins, SparseBins
from burnish.boost.growth.categorical_split import categories_of, find_categories, set_words
from burnish.boost.growth.counted import Counted, RowCounts
from burnish.boost.growth.evaluate import Candidates, find_splits
from burnish.boost.growth.interactions import Interactions
from burnish.boost.growth.nodes import NODE, SplitLimits
from burnish.boost.growth.row_partition import RowPartition
from burnish.boost.growth.subtrees import Dense, GrowthScratch
from burnish.boost.histogram import Histograms
from burnish.boost.params import Params
from burnish.boost.sampling import ColumnSampler
from burnish.runtime.threads import Workers

_SHARE = 30_000  # bins for which a further thread is worth its start


class OpenNodes:
    """The nodes of one tree at a time: rows, histograms, best splits, and the queue of those to split.

    Buffers are kept from tree to tree. What a tree starts with, `grower.BinnedGrower` sets.
    """

    _statistics: FixedPoint
    _units: tuple[float, float]  # of gradients, of Hessians
    _rules: NDArray[np.float64]
    _size: int  # of the tree: nodes
    _leaves: int
    _queue: list[tuple[float, int]]  # a heap of (-gain, node)

    def __init__(
        self, bins: DenseBins | SparseBins, cuts: Cuts, categorical: NDArray[np.bool_], params: Params,
        workers: Workers, comm: Any = None,
    ) -> None:  # fmt: skip
        self.bins = bins
        self.cuts = cuts
        self._params = params
        self._workers = workers
        self._comm = self._shared = comm  # out of core, the first is set where rows are not shared
        self._layout = bins.layout
        self._partition = RowPartition(bins, workers)
        self._dense: Dense | None = None
        if isinstance(bins, DenseBins):
            self._dense = Dense(bins.rows.reshape(-1), bins.columns.reshape(-1), bins.width)
        self._histograms = Histograms(bins, workers, comm)
        self._quantize = Quantizer(self._partition.rows, workers, comm, params.min_child_weight)
        self._total_rows = self._quantize.total_rows
        self._counts: RowCounts | None = None
        if params.min_data_in_leaf > 1:
            self._counts = RowCounts(bins, self._partition.rows, params.min_data_in_leaf, workers, comm)
        self._nodes = self._buffer = np.zeros(256, NODE)
        self._scratch = GrowthScratch.of(workers.threads, len(self._layout.feature), self._layout.codes, 2)
        self._every = np.ones((1, cuts.features), np.bool_)
        self._numeric = ~categorical
        self._interactions = Interactions(params.interaction_constraints, cuts.features)
        self._by_category = bool(categorical[self._layout.feature].any())
        words = set_words(self._layout, categorical)
        self._sets = np.empty((0, words), np.uint64)  # categories that go right, by the nodes' field `category`
        self._monotone = np.zeros(cuts.features, np.int64)
        self._monotone[: len(params.monotone_constraints)] = params.monotone_constraints
        self._plain = not (self._monotone.any() or params.max_delta_step > 0 or params.reg_alpha > 0)

    def _splittable(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of nodes that may be split by their Hessian, depth and the number of leaves, before any histogram."""
        params, nodes = self._params, self._nodes[ids]
        least = max(2 * params.min_child_weight / self._units[1], 1)
        able = nodes["hessian"] >= least
        if params.max_depth:
            able &= nodes["depth"] < params.max_depth
        if params.max_leaves and self._leaves >= params.max_leaves:
            able[:] = False
        return able if self._histograms.size else np.zeros(len(ids), np.bool_)

    def _build(self, ids: NDArray[np.int64]) -> None:
        self._histograms.build(self._nodes, ids, self._partition.order, self._statistics)

    def _open(self, ids: NDArray[np.int64], subtract: NDArray[np.int64], columns: ColumnSampler) -> None:
        """Finds the best splits of nodes that have histograms, and queues those that gain enough."""
        ids, subtract = ids[self._nodes["slot"][ids] >= 0], subtract[self._nodes["slot"][ids] >= 0]
        if not len(ids):
            return
        nodes, params = self._nodes[ids], self._params
        nodes["subtract"] = subtract
        allowed = self._allowed(ids, columns)
        counted = self._count(nodes, ids)
        self._evaluate(nodes, allowed & self._numeric, counted)
        if self._by_category:
            each = np.ascontiguousarray(np.broadcast_to(allowed, (len(ids), allowed.shape[1])))
            self._keep(nodes, ids, self._evaluate_categories(nodes, each, counted))
        if self._counts is not None and counted is not None:
            self._counts.give_back(counted)
        self._nodes[ids] = nodes
        self._nodes["subtract"][ids] = -1
        worth = (nodes["gain"] > 0) & (nodes["gain"] >= params.gamma)
        self._drop(ids[~worth])
        for node, gain in zip(ids[worth].tolist(), nodes["gain"][worth].tolist(), strict=True):
            heapq.heappush(self._queue, (-gain, node))

    def _count(self, nodes: NDArray[Any], ids: NDArray[np.int64]) -> Counted | None:
        """Rows of nodes by bin, if leaves must have a least number of them."""
        return None if self._counts is None else self._counts.of(nodes, self._partition.order)

    @property
    def _grain(self) -> int:
        """Nodes to find splits for that are worth handing to a thread."""
        return max(1, _SHARE // max(1, self._histograms.size))

    def _evaluate_categories(
        self, nodes: NDArray[Any], allowed: NDArray[np.bool_], counted: Counted | None
    ) -> NDArray[np.uint64]:
        """Improves the splits of nodes by such by category; returns their sets, (nodes, words)."""
        layout = self._layout
        categories = categories_of(layout, allowed, ~self._numeric, len(nodes), self._workers.threads)
        self._workers.each(
            find_categories, len(nodes), nodes, self._histograms.pool.reshape(-1), layout.feature, layout.first,
            categories, self._rules, layout.narrow, counted, grain=self._grain,
        )  # fmt: skip
        return categories.sets.reshape(-1, categories.words)

    def _keep(self, nodes: NDArray[Any], ids: NDArray[np.int64], sets: NDArray[np.uint64]) -> None:
        """Keeps the sets of nodes just evaluated, (nodes, words), under the numbers of the nodes."""
        if len(self._sets) < len(self._nodes):
            self._sets = np.concatenate([self._sets, np.empty((len(self._nodes), sets.shape[1]), np.uint64)])
        self._sets[ids] = sets
        nodes["category"] = np.where(nodes["category"] >= 0, ids, -1)

    def _evaluate(self, nodes: NDArray[Any], masks: NDArray[np.bool_], counted: Counted | None) -> None:
        """`find_splits` for nodes."""
        layout = self._layout
        limits = SplitLimits(masks, self._monotone, self._plain, self._rules)
        scratch = self._scratch
        self._workers.each(
            find_splits, len(nodes), nodes, self._histograms.pool.reshape(-1), layout.positions, limits, scratch.score,
            scratch.left, layout.bundle, self._candidates(), counted, grain=self._grain,
        )  # fmt: skip

    def _candidates(self) -> Candidates | None:
        """Which ends of bins a node may be split at; None: at all."""
        return None

    def _drop(self, ids: NDArray[np.int64]) -> None:
        """Frees the histograms of nodes."""
        slots = self._nodes["slot"][ids]
        self._histograms.give_back(slots[slots >= 0])
        self._nodes["slot"][ids] = -1

    def _allowed(self, ids: NDArray[np.int64], columns: ColumnSampler) -> NDArray[np.bool_]:
        masks = [
            self._interactions.narrowed(node, columns.allowed(depth, node))
            for depth, node in zip(self._nodes["depth"][ids].tolist(), ids.tolist(), strict=True)
        ]
        if all(mask is None for mask in masks):
            return self._every
        return np.array([self._every[0] if mask is None else mask for mask in masks])
