"""Grows trees on binned data: level by level, or always the leaf of the largest gain (§2.2.2, histogram method)."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.binning import Cuts
from burnish.boost.data import Dataset, Sparse
from burnish.boost.fixed import FixedPoint
from burnish.boost.growth.bins import DenseBins, SparseBins
from burnish.boost.growth.bundles import bundled
from burnish.boost.growth.categorical_split import Categories, categories_of, right_of
from burnish.boost.growth.coarse import too_coarse
from burnish.boost.growth.level import Children, ListedCategories, enter_seat, enter_split
from burnish.boost.growth.nodes import NODE, SplitLimits, rules_of, to_tree
from burnish.boost.growth.open_nodes import OpenNodes
from burnish.boost.growth.row_partition import NodeSplits
from burnish.boost.growth.subtrees import GrowthScratch, NodeRows, NodeShares, by_level, capacities
from burnish.boost.growth.trunk import GrownRows, LevelScratch, grow_levels
from burnish.boost.params import Params
from burnish.boost.quantiles import shared_cuts
from burnish.boost.sampling import ColumnSampler
from burnish.boost.sketched import sketched_cuts
from burnish.boost.splitter import UNBOUNDED, leaf_weight
from burnish.boost.tree import Tree
from burnish.runtime.threads import Workers

_SUBTREES = 4  # for each thread: so many balance their work
_SPARSE_SUBTREES = 3  # the same of a sparse table: nodes cost little, so that a level costs more in Python
_FEW_ROWS = 20_000  # so few that Python between the levels would cost more than an idle thread
_LITTLE = 2_000_000  # so few rows × features that a second thread does not pay
_NO_DEPTH = 1 << 40


class BinnedGrower(OpenNodes):
    """Grows trees on the bins of a table; keeps its buffers from tree to tree.

    Statistics are integers, so that a tree is the same, bit for bit, for any number of threads, and of workers that
    hold a part of the rows each (`comm`).
    """

    _level: LevelScratch | None = None
    _allowed_features: tuple[NDArray[np.bool_], NDArray[np.bool_]]  # see `_grow_in_regions`

    def grow(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], columns: ColumnSampler
    ) -> tuple[Tree, NDArray[np.int32]]:
        """One tree on gradient statistics (rows,), and the leaf (node number) of every training row."""
        if self._counts is not None:
            self._counts.start(gradient, hessian)
        statistics = self._quantize(gradient, hessian)
        tree, leaf = self._grow(statistics, columns)
        unit, comm = statistics.gradient_unit, self._shared
        if statistics.packed and too_coarse(tree, leaf, gradient, unit, self._params, self._workers, comm):
            return self._grow(self._quantize(gradient, hessian, True), columns)
        return tree, leaf

    def _grow(self, statistics: FixedPoint, columns: ColumnSampler) -> tuple[Tree, NDArray[np.int32]]:
        self._start(statistics)
        root = np.zeros(1, np.int64)
        if not self._splittable(root)[0]:
            return self._finish()
        self._nodes["slot"][0] = self._histograms.take(1)[0]
        masks = self._masks(columns)
        if masks is not None:
            self._grow_in_regions(masks & self._numeric, masks & ~self._numeric)
            return self._finish()
        self._build(root)
        self._open(root, np.full(1, -1), columns)
        while len(chosen := self._choose()):
            self._split(chosen, columns)
        return self._finish()

    def _start(self, statistics: FixedPoint) -> None:
        params = self._params
        self._statistics = statistics
        self._units = statistics.gradient_unit, statistics.hessian_unit
        self._regular = params.reg_lambda, params.reg_alpha, params.max_delta_step
        self._rules = rules_of(params, self._units, self._total_rows * params.subsample, statistics.total[1])
        self._partition.reset()
        self._interactions.reset()
        self._sets = self._sets[:0]
        self._size = self._leaves = 1
        self._numbers = 0
        self._queue = []
        self._nodes = self._buffer
        root = self._nodes[0]
        root["left"] = -1
        root["depth"] = root["begin"] = 0
        root["end"] = self._partition.rows
        root["gradient"], root["hessian"] = statistics.total
        root["lower"], root["upper"] = -UNBOUNDED, UNBOUNDED
        root["gain"], root["default_left"], root["subtract"], root["category"] = -np.inf, 0, -1, -1
        sums = (value * unit for value, unit in zip(statistics.total, self._units, strict=True))
        root["weight"] = leaf_weight(*sums, *self._regular, -UNBOUNDED, UNBOUNDED)
        root["slot"] = -1

    def _choose(self) -> NDArray[np.int64]:
        """The nodes to split next: the best one, or depth-wise a whole level, the best first if leaves are limited."""
        count = len(self._queue)
        if self._params.grow_policy == "lossguide":
            count = min(count, 1)
        if self._params.max_leaves:
            count = min(count, self._params.max_leaves - self._leaves)
        chosen = sorted(heapq.heappop(self._queue)[1] for _ in range(count))
        if self._params.grow_policy != "lossguide":
            self._drop(np.array([node for _, node in self._queue], np.int64))
            self._queue.clear()
        return np.array(chosen, np.int64)

    def _split(self, chosen: NDArray[np.int64], columns: ColumnSampler) -> None:
        size, count = self._size, len(chosen)
        if size + 2 * count > len(self._nodes):
            self._nodes = self._buffer = np.concatenate([self._nodes, np.zeros(size + 2 * count, NODE)])
        layout, bundle = self._layout, self._layout.bundle
        right, segments = np.empty((count, layout.codes + 1), np.uint8), np.empty((3, count), np.int64)
        listed = ListedCategories(self._sets.reshape(-1), self._sets.shape[1]) if self._by_category else None
        enter_split(
            self._nodes, chosen, size, layout.positions, self._monotone, self._rules, listed, bundle, right, segments
        )  # fmt: skip
        left = size + 2 * np.arange(count)
        if self._interactions:
            feature = layout.feature[self._nodes["position"][chosen]].tolist()
            for node, child, tested in zip(chosen.tolist(), left.tolist(), feature, strict=True):
                self._interactions.split(node, child, child + 1, tested)
        middle = self._partition.split(
            NodeSplits(segments[0], segments[1], segments[2], right, chosen, left.astype(np.int32))
        )
        self._size += 2 * count
        self._leaves += count
        ids, subtract, done = self._histograms_of_children(chosen, left, middle)
        self._open(ids, subtract, columns)
        self._histograms.give_back(done)

    def _histograms_of_children(
        self, chosen: NDArray[np.int64], left: NDArray[np.int64], middle: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Builds the histogram of the smaller child of each node; the larger one's is its parent's less that.

        middle: where the rows of right children begin. Returns nodes to find splits for, the slots to take off their
        histograms first (-1: none), and slots that are free after that.
        """
        params, histograms = self._params, self._histograms
        least = max(2 * params.min_child_weight / self._units[1], 1.0)
        if not histograms.size or (params.max_leaves and self._leaves >= params.max_leaves):
            least = np.inf
        children = Children.of(len(chosen))
        # Where rows are shared out, workers must agree: they do in Hessians.
        given = float(least), params.max_depth, self._comm is not None
        built, found, free, only = enter_seat(
            self._nodes, chosen, middle, histograms.take(len(chosen)), *given, children
        )
        histograms.give_back(children.free[:free])
        if built:
            self._build(children.built[:built])
        alone = children.only[:only]
        done = self._nodes["slot"][alone]
        self._nodes["slot"][alone] = -1
        return children.found[:found], children.subtract[:found], done

    def _masks(self, columns: ColumnSampler) -> NDArray[np.bool_] | None:
        """The features allowed at each depth, (depths, features), if subtrees can be grown apart from each other."""
        params = self._params
        if (
            params.grow_policy == "lossguide" or params.max_leaves or self._comm is not None
            or self._interactions or self._counts is not None
        ):  # fmt: skip
            return None
        if columns.allowed(0, 0) is None:
            return self._every
        if params.colsample_bynode < 1 or not params.max_depth:
            return None
        masks = [columns.allowed(depth, 0) for depth in range(params.max_depth)]
        return np.array([self._every[0] if mask is None else mask for mask in masks])

    def _grow_in_regions(self, masks: NDArray[np.bool_], listed: NDArray[np.bool_]) -> None:
        """Grows the tree below its root: level by level, then subtrees; Python is between regions only a few times.

        masks, listed: (depths or 1, features), those of numbers and of categories that may be split on.
        """
        self._allowed_features = masks, listed
        root = np.zeros(1, np.int64)
        if self._partition.rows < _FEW_ROWS:
            self._partition.own()
            self._graft_subtrees(root, root)
            return
        self._grow_trunk(root)
        nodes = self._nodes[: self._size]
        self._graft_subtrees(np.flatnonzero((nodes["left"] < 0) & (nodes["slot"] >= 0)), root[:0])

    def _grow_trunk(self, root: NDArray[np.int64]) -> None:
        """Grows levels until there are subtrees enough for all threads."""
        threads, partition, layout = self._workers.threads, self._partition, self._layout
        ripe = threads * (_SUBTREES if isinstance(self.bins, DenseBins) else _SPARSE_SUBTREES)
        width = 2 * ripe
        if len(self._nodes) < 4 * width:
            self._nodes = self._buffer = np.concatenate([self._nodes, np.zeros(4 * width - len(self._nodes), NODE)])
        if self._level is None or len(self._level.chosen) < width:
            routes = partition.routes(len(self._nodes), width)
            self._level = LevelScratch.of(width, layout.codes, self._histograms.groups, threads, routes)
        self._histograms.reserve(2 * width)
        places, starts = np.zeros(width + 1, np.int64), np.ones(width, np.int64)
        places[1] = 1
        categories = None
        if self._by_category:
            categories = self._categories(len(self._nodes))
            self._sets = categories.sets.reshape(-1, categories.words)
        free, unused = np.empty((threads, width), np.int64), np.zeros(threads, np.int64)
        shares = NodeShares.of(self._nodes, places, starts)
        self._size = self._grow_levels(shares, -1, free, unused, 0, root, categories, ripe)
        if self._size > 1:
            partition.order = partition.arrays.order

    def _graft_subtrees(self, ids: NDArray[np.int64], built: NDArray[np.int64]) -> None:
        """Grows everything below some nodes, each thread some subtrees; `built`: the root, if it has no histogram."""
        if not len(ids):
            return
        self._partition.own()
        alone = self._partition.rows * len(self._layout.feature) < _LITTLE
        threads = 1 if alone else self._workers.threads
        if threads > 1 and len(ids) < 2 * threads:  # a few levels more by one thread, until there are enough for all
            more = ((2 * threads - 1) // len(ids)).bit_length()
            self._graft([ids], int(self._nodes["depth"][ids].min()) + more, built, len(ids) << more)
            ids, built = np.flatnonzero((self._nodes["left"] < 0) & (self._nodes["slot"] >= 0)), built[:0]
        rows = self._nodes["end"][ids] - self._nodes["begin"][ids]
        ids = ids[np.argsort(-rows, kind="stable")]
        if self._partition.rows < _FEW_ROWS:  # one call for each thread
            hands: list[list[int]] = [[] for _ in range(threads)]
            loads = [0] * threads
            for node, own in zip(ids.tolist(), -np.sort(-rows), strict=True):
                least = loads.index(min(loads))
                hands[least].append(node)
                loads[least] += int(own)
            shares = [np.array(hand, np.int64) for hand in hands if hand]
        else:
            # Each thread begins with its largest, and those that have done theirs take the smallest of others.
            shares = list(np.concatenate([ids[t::threads] for t in range(threads)])[:, None])
        if shares:
            self._graft(shares, _NO_DEPTH, built)

    def _graft(self, shares: list[NDArray[np.int64]], stop_depth: int, built: NDArray[np.int64], kept: int = 0) -> None:
        """Grows the subtrees of some leaves, all in one region, down to a depth and puts them in place.

        kept: how many nodes of that depth there may be, which keep their histograms.
        """
        histograms, threads = self._histograms, self._workers.threads if len(shares) > 1 else 1
        ids, starts = np.concatenate(shares), np.array([len(share) for share in shares])
        first = np.cumsum(starts) - starts
        begin = self._nodes[ids]
        at = np.concatenate([[0], np.cumsum(np.add.reduceat(capacities(begin, self._params.max_depth), first))])
        nodes = np.zeros(int(at[-1]), NODE)
        places = np.repeat(at[:-1] - first, starts) + np.arange(len(ids))
        nodes[places] = begin
        levels = min(self._params.max_depth or 64, self._partition.rows.bit_length()) + 2 + kept
        free = np.empty((self._workers.threads, levels + len(ids)), np.int64)
        unused = np.zeros(self._workers.threads, np.int64)
        free[:threads, :levels] = histograms.take(threads * levels).reshape(threads, levels)
        unused[:threads] = levels
        number = max(self._numbers, self._size)  # none that a row has already
        self._numbers = number + int(at[-1])
        grown, categories = NodeShares.of(nodes, at, starts), None
        if self._by_category:  # where nodes have sets already, they are kept
            categories = self._categories(len(nodes))
            found = categories.sets.reshape(-1, categories.words)
            listed = nodes["category"][places]
            inner = np.arange(len(ids)) - np.repeat(first, starts)  # their numbers in the shares
            found[places[listed >= 0]] = self._sets[listed[listed >= 0]]
            nodes["category"][places[listed >= 0]] = inner[listed >= 0]
        self._grow_levels(grown, stop_depth, free, unused, number, built, categories)
        histograms.give_back(free[np.arange(free.shape[1]) < unused[:, None]])
        sizes = grown.sizes.tolist()
        parts = [nodes[low : low + size] for low, size in zip(at.tolist(), sizes, strict=False)]
        if self._by_category:
            known = len(self._sets)
            sets = [found[low : low + size] for low, size in zip(at.tolist(), sizes, strict=False)]
            self._sets = np.concatenate([self._sets, *sets])
            for part in parts:
                part["category"] += np.where(part["category"] >= 0, known, 0)
                known += len(part)
        ahead = np.cumsum(grown.sizes) - grown.sizes - first
        self._nodes["slot"][ids] = -2 - np.repeat(ahead, starts) - np.arange(len(ids))
        self._nodes = by_level([self._nodes[: self._size], *parts])
        self._size = len(self._nodes)

    def _categories(self, nodes: int) -> Categories:
        """Uninitialised bit sets of categories for `nodes` nodes."""
        return categories_of(self._layout, self._allowed_features[1], ~self._numeric, nodes, self._workers.threads)

    def _grow_levels(
        self, shares: NodeShares, stop_depth: int, free: NDArray[np.int64], unused: NDArray[np.int64], number: int,
        built: NDArray[np.int64], categories: Categories | None, ripe: int = 0,
    ) -> int:  # fmt: skip
        """`grow_levels`, where rows are marked by numbers from `number` on."""
        layout, threads, partition, histograms = self._layout, self._workers.threads, self._partition, self._histograms
        most = int(shares.starts.max(initial=0))
        if most > self._scratch.starts:
            self._scratch = GrowthScratch.of(threads, len(layout.feature), layout.codes, most)
        if self._level is None:  # of no level: it is not used
            self._level = LevelScratch.of(2, layout.codes, histograms.groups, threads, partition.routes(2, 2))
        table = GrownRows(
            partition.arrays, NodeRows(partition.order, partition.spare, number), self._statistics.values,
            histograms.arrays, self._dense, partition.entries,
        )  # fmt: skip
        limits = SplitLimits(self._allowed_features[0], self._monotone, self._plain, self._rules)
        dense, entries = histograms.tables
        size: int = self._workers.call(
            grow_levels, threads, ripe, self._grain if ripe else 1, built, 1 if ripe else len(shares.starts), shares,
            (stop_depth, self._params.max_depth), free, unused, histograms.slots, table, dense, partition.columns,
            entries, partition.routed, layout.positions, limits, categories, self._scratch, layout.bundle, self._level,
        )  # fmt: skip
        return size

    def _finish(self) -> tuple[Tree, NDArray[np.int32]]:
        self._drop(np.array([node for _, node in self._queue], np.int64))
        nodes = self._nodes[: self._size]
        leaves = np.flatnonzero(nodes["left"] < 0)
        segments = np.ascontiguousarray(nodes["begin"][leaves]), np.ascontiguousarray(nodes["end"][leaves])
        leaf = self._partition.leaves(*segments, leaves.astype(np.int32))
        by_category = np.flatnonzero((nodes["left"] >= 0) & (nodes["category"] >= 0))
        right = right_of(self._sets, nodes["category"][by_category])
        categories = {
            node: np.flatnonzero(goes).astype(np.int32) for node, goes in zip(by_category.tolist(), right, strict=True)
        }
        tree = to_tree(nodes, self._layout.feature, self.cuts, categories, self._params.learning_rate, self._units[1])
        return tree, leaf


class HistGrower(BinnedGrower):
    """The histogram method: bins are made once, from quantiles of the whole data (`max_bin`)."""

    _wide = False  # whether `_evaluate` needs groups of 32 features

    def __init__(
        self, dataset: Dataset, params: Params, workers: Workers, comm: Any = None, cuts: Cuts | None = None
    ) -> None:
        wide = self._wide or params.min_data_in_leaf > 1
        apart = wide or cuts is not None or comm is not None or dataset.categorical.any()
        if cuts is None and comm is not None and comm.size > 1:
            of = dataset, params.max_bin, workers, comm, dataset.weight
            cuts = sketched_cuts(*of, params.sketch_eps) if params.sketch_eps else shared_cuts(*of)
        cuts = cuts or Cuts.of(dataset, params.max_bin, workers, dataset.weight)
        bins: DenseBins | SparseBins
        if isinstance(dataset.table, Sparse):
            bins = SparseBins.of(dataset.table, dataset.features, cuts, workers, wide)
            bins = bins if apart else bundled(bins, workers) or bins
        else:
            bins = DenseBins.of(dataset.table, cuts, workers, comm, wide)
        super().__init__(bins, cuts, dataset.categorical, params, workers, comm)
