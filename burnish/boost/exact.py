"""Exact greedy trees, level by level (thesis-chen Algorithm 1): one scan of the sorted columns serves all leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from burnish.boost.blocks import column_block
from burnish.boost.data import Dataset
from burnish.boost.growth import scan
from burnish.boost.growth.coarse import too_coarse
from burnish.boost.growth.column_source import CONSTANT, ColumnSource, Entries, MemoryColumns, OwnedColumns
from burnish.boost.growth.interactions import Interactions
from burnish.boost.growth.onehot import PresenceSums
from burnish.boost.growth.row_routing import Router
from burnish.boost.growth.scan_state import SLOTS, RowRecords
from burnish.boost.intrinsics import aligned
from burnish.boost.params import Params
from burnish.boost.sampling import ColumnSampler
from burnish.boost.splitter import UNBOUNDED, child_bounds, leaf_weight, split_gain
from burnish.boost.tree import Tree, TreeBuilder
from burnish.errors import ParameterError
from burnish.runtime.threads import Workers

_SHARE = 100_000  # entries for which it is worth to take up a further group of columns
LEAST_GAIN = 1e-6  # of a split, as in XGBoost: rounding alone gives none


@dataclass(frozen=True)
class OpenLeaf:
    """A leaf that may still be split. Sums are whole numbers in units of the records."""

    number: int
    parent: int  # its number; -1 of the root
    gradient: float
    hessian: float
    lower: float  # bounds of the weights of its subtree, which monotone constraints set
    upper: float


@dataclass(frozen=True)
class BestSplit:
    """The best split of a node. Sums are whole numbers in units of the records."""

    gain: float  # eq. 2.7 without its factor ½, before γ
    feature: int
    threshold: float
    default_left: bool
    left: tuple[float, float]
    right: tuple[float, float]


class ExactGrower:
    """Grows trees on all distinct values, by scans of the columns; those of one value by `growth.onehot`.

    ``columns``: where sorted columns come from, by default the table in memory; with others, such as those of a store
    or of several workers, the table of the data set is not looked at, and is sparse and empty.
    """

    def __init__(self, dataset: Dataset, params: Params, workers: Workers, columns: ColumnSource | None = None) -> None:
        if params.grow_policy != "depthwise":
            raise ParameterError(
                f"parameter 'grow_policy': found {params.grow_policy!r}; tree method exact allows 'depthwise'"
            )
        if dataset.categorical.any():
            feature = int(np.argmax(dataset.categorical))
            raise ParameterError(
                f"parameter 'tree_method': found exact, and feature {feature} is categorical; "
                "allowed for categorical features: 'hist', 'approx'"
            )
        self._params, self._workers = params, workers
        self._presence: PresenceSums | None = None
        if columns is None:
            self.block = column_block(dataset, workers)
            columns = MemoryColumns(self.block)
            self._presence = PresenceSums(dataset, self.block, workers)
        self._columns, self._features = columns, dataset.features
        self._monotone = np.zeros(dataset.features, np.int64)
        self._monotone[: len(params.monotone_constraints)] = params.monotone_constraints
        self._records = RowRecords(dataset.rows, workers, params.min_child_weight)
        self._router = Router(dataset, columns, workers)
        self._rows = dataset.rows
        self._taken: NDArray[np.bool_] | None = None  # the rows to count, if rows are counted
        self._interactions = Interactions(params.interaction_constraints, dataset.features)

    def grow(
        self, gradient: NDArray[np.float32], hessian: NDArray[np.float32], columns: ColumnSampler
    ) -> tuple[Tree, NDArray[np.int32]]:
        """One tree on gradient statistics (rows,), and the leaf (node number) of every training row."""
        records = self._records
        records.load(gradient, hessian)
        if self._params.min_data_in_leaf > 1:  # rows that are not sampled do not count
            self._taken = (gradient != 0.0) | (hessian != 0.0)
        tree, leaf = self._grow(columns)
        if records.narrow and too_coarse(tree, leaf, gradient, records.units[0], self._params, self._workers):
            records.load(gradient, hessian, wide=True)
            return self._grow(columns)
        return tree, leaf

    def _grow(self, columns: ColumnSampler) -> tuple[Tree, NDArray[np.int32]]:
        records, params = self._records, self._params
        if self._presence is not None:
            self._presence.forget()
        self._interactions.reset()
        builder = TreeBuilder()
        root = OpenLeaf(0, -1, *records.total, -UNBOUNDED, UNBOUNDED)
        builder.add(*self._leaf(self._weight(*records.total, -UNBOUNDED, UNBOUNDED), root.hessian))
        position = np.zeros(self._rows, np.int32)
        least = self._rule()[scan.LEAST]
        frontier, depth, leaves = [root], 0, 1
        while frontier and (params.max_depth == 0 or depth < params.max_depth):
            found = self.splits(frontier, 2 * leaves - 1, depth, columns, position)
            worth = [(node, split) for node, split in zip(frontier, found, strict=True) if split is not None]
            if params.max_leaves and leaves + len(worth) > params.max_leaves:  # the best first
                best = sorted(worth, key=lambda pair: -pair[1].gain)[: params.max_leaves - leaves]
                worth = sorted(best, key=lambda pair: pair[0].number)
            below: list[OpenLeaf] = []
            route = self._router.route(2 * leaves - 1)
            for node, split in worth:
                children = self._divide(builder, node, split)
                self._interactions.split(node.number, children[0].number, children[1].number, split.feature)
                route.add(node.number, split.feature, split.threshold, split.default_left, children[0].number)
                below.extend(children)
                leaves += 1
            position = route.apply(position)
            frontier, depth = [node for node in below if node.hessian >= 2 * least], depth + 1
        return builder.tree(), position

    def splits(
        self, nodes: list[OpenLeaf], size: int, depth: int, columns: ColumnSampler, position: NDArray[np.int32]
    ) -> list[BestSplit | None]:
        """The best split of each node, None where none gains enough.

        size: number of nodes of the tree. position: (rows,), the node of each row.
        """
        allowed, usable = self._allowed(nodes, depth, columns)
        found = scan.no_splits(len(nodes))
        presence = self._presence
        if presence is not None and self._taken is None and presence.worthwhile(len(nodes)):
            found = self._by_presence(presence, nodes, size, position, allowed)
            usable = usable[self._columns.kinds[usable] < CONSTANT]
        elif presence is not None:
            presence.forget()
        if len(usable):
            parts = [slice(begin, begin + SLOTS) for begin in range(0, len(nodes), SLOTS)]
            scanned = [self._scan(nodes[part], size, usable, allowed[:, part], position) for part in parts]
            found = _best_of([found, np.concatenate(scanned)])
        if isinstance(self._columns, OwnedColumns):
            found = _best_of([np.array(own) for own in self._columns.comm.all_gather_v(found)])
        return [self._split(node, best) for node, best in zip(nodes, found.tolist(), strict=True)]

    def follow(self, tree: Tree) -> NDArray[np.int32]:
        """The leaf (node number) of every training row in a tree that was grown before."""
        position, depth = np.zeros(self._rows, np.int32), np.zeros(tree.size, np.int64)
        inner = np.flatnonzero(tree.left >= 0)
        for node in inner.tolist():  # children have higher numbers
            depth[tree.left[node]] = depth[tree.right[node]] = depth[node] + 1
        for level in range(int(depth.max()) if len(inner) else 0):
            route = self._router.route(tree.size)
            for node in inner[depth[inner] == level].tolist():
                default = bool(tree.default_left[node])
                route.add(node, int(tree.feature[node]), float(tree.threshold[node]), default, int(tree.left[node]))
            position = route.apply(position)
        return position

    def _by_presence(
        self, presence: PresenceSums, nodes: list[OpenLeaf], size: int, position: NDArray[np.int32],
        allowed: NDArray[np.bool_],
    ) -> NDArray[np.float64]:  # fmt: skip
        """The best splits, (nodes, 6), on columns of one value."""
        numbers = [(node.number, node.parent) for node in nodes]
        slots = presence.build(numbers, size, position, self._records.words)
        totals = np.array([(node.gradient, node.hessian) for node in nodes])
        bounds = np.array([(node.lower, node.upper) for node in nodes])
        return presence.search(*slots, totals, self._rule(), bounds, self._monotone, allowed)

    def _scan(
        self, nodes: list[OpenLeaf], size: int, columns: NDArray[np.int64], allowed: NDArray[np.bool_],
        position: NDArray[np.int32],
    ) -> NDArray[np.float64]:  # fmt: skip
        """The best splits (nodes, 6) on some columns, for nodes few enough to have a slot each."""
        slots = len(nodes)
        slot_of = np.full(size, slots, np.int64)
        slot_of[[node.number for node in nodes]] = np.arange(slots)
        self._records.assign(position, slot_of, slots, self._taken)
        counts = self._counts(slot_of[position], slots)
        bounds = np.array([(node.lower, node.upper) for node in nodes] + [(-UNBOUNDED, UNBOUNDED)])
        found = [scan.no_splits(slots)]
        for some, block in self._columns.parts(columns):
            found += self._scan_part(self._state(nodes), slots, some, block, bounds, allowed, counts)
        return _best_of(found)

    def _scan_part(
        self, start: NDArray[np.float64], slots: int, columns: NDArray[np.int64], block: Entries,
        bounds: NDArray[np.float64], allowed: NDArray[np.bool_], counts: NDArray[np.int64] | None,
    ) -> list[NDArray[np.float64]]:  # fmt: skip
        """The best splits (nodes, 6) that each thread finds on some columns; start: the state of the slots."""
        groups, rule, threads = self._groups(columns), self._rule(), self._workers.threads
        state = aligned((threads, len(start)), np.float64)
        state[:] = start
        scratch = np.zeros((threads, 3, slots + 1), np.int64)
        scratch[:, 0] = np.arange(slots + 1)
        best = np.stack([scan.no_splits(slots + 1)] * threads)
        own = None if counts is None else np.stack([counts] * threads)
        self._workers.each(
            scan.scan_groups, len(groups), (np.concatenate(groups), np.cumsum([0, *map(len, groups)])), block,
            self._columns.kinds, self._records.words, state, scratch, rule, (bounds, self._monotone, allowed), best,
            own,
        )  # fmt: skip
        return list(best[:, :-1])

    def _counts(self, slot: NDArray[np.int64], slots: int) -> NDArray[np.int64] | None:
        """Rows of each slot, as `scan.LEFT_N` tells, if they are counted; slot: (rows,)."""
        if self._taken is None:
            return None
        counts = np.zeros((slots + 1, 4), np.int64)
        counts[:, int(scan.TOTAL_N)] = np.bincount(slot[self._taken], minlength=slots + 1)
        counts[:, int(scan.LEAST_N)] = self._params.min_data_in_leaf
        return counts

    def _state(self, nodes: list[OpenLeaf]) -> NDArray[np.float64]:
        """Slots' states with the nodes' sums; that of rows in no node has one of Hessians that allows no split."""
        state = np.zeros((len(nodes) + 1, int(scan.WIDTH)))
        state[:-1, int(scan.TOTAL_G)] = [node.gradient for node in nodes]
        state[:-1, int(scan.TOTAL_H)] = [node.hessian for node in nodes]
        state[-1, int(scan.TOTAL_H)] = -np.inf
        return state.ravel()

    def _rule(self) -> tuple[float | bool, ...]:
        """See `scan.LAMBDA` and the following."""
        params, (unit_g, unit_h) = self._params, self._records.units
        simple = not (params.reg_alpha or params.max_delta_step or self._monotone.any())
        return (
            params.reg_lambda / unit_h, max(params.min_child_weight / unit_h, 1.0), unit_g, unit_h,
            float(params.reg_lambda), float(params.reg_alpha), float(params.max_delta_step),
            float(params.min_child_weight), simple,
        )  # fmt: skip

    def _allowed(
        self, nodes: list[OpenLeaf], depth: int, columns: ColumnSampler
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which nodes may split on which feature, (features or 1, nodes), and the features that some node may."""
        masks = [self._interactions.narrowed(node.number, columns.allowed(depth, node.number)) for node in nodes]
        features = np.arange(self._features)
        if all(mask is None for mask in masks):
            return np.ones((1, len(nodes)), np.bool_), features
        every = np.ones(self._features, np.bool_)
        allowed = np.array([every if mask is None else mask for mask in masks]).T.copy()
        return allowed, features[allowed.any(axis=1)]

    def _groups(self, columns: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The columns in groups of about equal work: enough for the threads to end together."""
        if len(columns) == 0:
            return []
        entries = np.cumsum(np.diff(self._columns.start)[columns])
        count = min(len(columns), 16 * self._workers.threads, 1 + int(entries[-1]) // _SHARE)
        edges = np.searchsorted(entries, entries[-1] * np.arange(1, count) / count)
        return [group for group in np.split(columns, edges) if len(group)]

    def _split(self, node: OpenLeaf, found: list[float]) -> BestSplit | None:
        if not math.isfinite(found[scan.FEATURE]):
            return None
        left = (found[scan.SPLIT_G], found[scan.SPLIT_H])
        right = (node.gradient - left[0], node.hessian - left[1])
        params, (unit_g, unit_h) = self._params, self._records.units
        feature = int(found[scan.FEATURE])
        gain = split_gain(
            left[0] * unit_g, left[1] * unit_h, right[0] * unit_g, right[1] * unit_h, params.reg_lambda,
            params.reg_alpha, params.max_delta_step, 0.0, int(self._monotone[feature]), node.lower, node.upper,
        )  # fmt: skip
        if not (gain > LEAST_GAIN and gain >= params.gamma):
            return None
        return BestSplit(gain, feature, found[scan.THRESHOLD], found[scan.DEFAULT_LEFT] != 0, left, right)

    def _divide(self, builder: TreeBuilder, node: OpenLeaf, split: BestSplit) -> tuple[OpenLeaf, OpenLeaf]:
        """Makes a leaf an inner node, and returns its children."""
        weights = [self._weight(*sums, node.lower, node.upper) for sums in (split.left, split.right)]
        bounds = child_bounds(int(self._monotone[split.feature]), *weights, node.lower, node.upper)
        kept = min(max(weights[0], bounds[0]), bounds[1]), min(max(weights[1], bounds[2]), bounds[3])
        numbers = builder.split(
            node.number, split.feature, split.threshold, split.default_left, split.gain,
            self._leaf(kept[0], split.left[1]), self._leaf(kept[1], split.right[1]),
        )  # fmt: skip
        parent = node.number
        return (
            OpenLeaf(numbers[0], parent, *split.left, *bounds[:2]),
            OpenLeaf(numbers[1], parent, *split.right, *bounds[2:]),
        )

    def _weight(self, gradient: float, hessian: float, lower: float, upper: float) -> float:
        params, (unit_g, unit_h) = self._params, self._records.units
        return float(
            leaf_weight(
                gradient * unit_g, hessian * unit_h, params.reg_lambda, params.reg_alpha, params.max_delta_step,
                lower, upper,
            )
        )  # fmt: skip

    def _leaf(self, weight: float, hessian: float) -> tuple[float, float]:
        """A leaf's value and cover."""
        return weight * self._params.learning_rate, hessian * self._records.units[1]


def _best_of(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The split of the greatest score of each slot; of equal ones that of the lowest feature."""
    best = parts[0]
    for part in parts[1:]:
        score, other = best[:, scan.SCORE], part[:, scan.SCORE]
        better = (other > score) | ((other == score) & (part[:, scan.FEATURE] < best[:, scan.FEATURE]))
        best[better] = part[better]
    return best
