"""Trees packed into a few arrays, each in the form that suits its shape: what the kernels of walk.py read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inference.lanes import LANES, SQUARE
from burnish.boost.kernels import kernel
from burnish.boost.tree import Tree

COMPLETE, WALK, CATEGORICAL = 0, 1, 2  # forms of a tree
DEEPEST_COMPLETE = 8  # levels: the work of the form doubles with each, that of walking grows by one step


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees to be summed. ``columns`` are the features that any of them tests, ascending: a block's slots.

    Tree t adds to output ``t % outputs``. ``values``: what the nodes of each tree give, instead of their own values.
    """

    trees: tuple[Tree, ...]
    outputs: int = 1
    values: tuple[NDArray[np.float32], ...] | None = None

    @cached_property
    def columns(self) -> NDArray[np.int32]:
        """The features that any tree tests, ascending, int32."""
        columns: NDArray[np.int32] = np.unique(_joined([tree.feature[tree.left >= 0] for tree in self.trees], np.int32))
        return columns

    def groups(self, features: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Of tables so wide: first columns of groups of 16 that hold `columns`, and where in a block each of them goes.

        There are no groups where most of their columns would be of no use.
        """
        if features not in self._groups:
            self._groups[features] = _groups(self.columns, features)
        return self._groups[features]

    @cached_property
    def _groups(self) -> dict[int, tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        """`groups` of the widths met so far: few rows take less time to predict than these to find."""
        return {}

    @cached_property
    def plain(self) -> tuple[NDArray[Any], ...]:
        """The packed trees for rows without missing values."""
        return self._pack(False)

    @cached_property
    def with_missing(self) -> tuple[NDArray[Any], ...]:
        """The packed trees for rows with missing values, in blocks that hold every column, and then its negative.

        Where missing goes left, the test ``x >= t`` is made as ``-x < the float after -t``, and the children change
        sides. So a missing value, which fails every comparison, comes to the side it goes to by default.
        """
        return self._pack(True)

    def _pack(self, missing: bool) -> tuple[NDArray[Any], ...]:
        trees = self.trees
        sizes = np.array([tree.size for tree in trees], np.int64)
        listed = np.array([len(tree.category) for tree in trees], np.int64)
        values = [tree.value for tree in trees] if self.values is None else self.values
        count = _joined([np.diff(tree.category_start) for tree in trees], np.int64)
        feature = _joined([tree.feature for tree in trees], np.int32)
        slot = np.searchsorted(self.columns, feature).astype(np.int32)  # of leaves: unused
        packed: tuple[NDArray[Any], ...] = _pack(
            sizes,
            listed,
            _joined([tree.left for tree in trees], np.int32),
            _joined([tree.right for tree in trees], np.int32),
            slot,
            _joined([tree.threshold for tree in trees], np.float32),
            _joined([tree.default_left for tree in trees], np.bool_),
            _joined(values, np.float32),
            count,
            len(self.columns) if missing else 0,
            np.zeros(max(2 << DEEPEST_COMPLETE, int(sizes.max(initial=1))), np.int64),
        )
        return *packed, _joined([tree.category for tree in trees], np.int32)


@kernel
def _pack(  # type: ignore[no-untyped-def]
    sizes, listed, left, right, slot, threshold, default_left, value, count, negatives, place
):  # fmt: skip
    """Packs trees of so many nodes and listed categories. `negatives`: the slot of the first negative column, or 0.

    `place` is scratch for the nodes of the largest tree, made outside: a maximum here would take longer to compile.

    Returns (form, depth, node_start, leaf_start) of the trees; (slot, threshold, leaf, child, category_start) of the
    nodes. A complete tree has 2^depth - 1 nodes in heap order and 2^depth leaves. In the other forms, every node is
    kept: child[2 k] and child[2 k + 1] are where rows go that pass and fail the test; a leaf's children are itself.
    """
    trees = len(sizes)
    form, depth = np.zeros(trees, np.int32), np.zeros(trees, np.int32)
    node_start, leaf_start = np.zeros(trees + 1, np.int64), np.zeros(trees + 1, np.int64)
    base = 0
    for tree in range(trees):
        place[0] = 0
        for k in range(sizes[tree]):  # children come after their parent
            if left[base + k] >= 0:
                below = place[k] + 1
                place[left[base + k]] = place[right[base + k]] = below
                if below > depth[tree]:
                    depth[tree] = below
        complete = not listed[tree] and depth[tree] <= DEEPEST_COMPLETE
        form[tree] = COMPLETE if complete else CATEGORICAL if listed[tree] else WALK
        node_start[tree + 1] = node_start[tree] + ((1 << depth[tree]) - 1 if complete else sizes[tree])
        leaf_start[tree + 1] = leaf_start[tree] + (1 << depth[tree] if complete else sizes[tree])
        base += sizes[tree]
    nodes = node_start[trees]
    packed_slot, packed_threshold = np.zeros(nodes, np.uint32), np.zeros(nodes, np.float32)
    leaf, child = np.zeros(leaf_start[trees], np.float32), np.zeros(2 * nodes, np.uint32)
    category_start = np.zeros(nodes + 1, np.int64)
    base = 0
    for tree in range(trees):
        first, first_leaf = node_start[tree], leaf_start[tree]
        inner = node_start[tree + 1] - first
        place[0] = 0
        for i in range(inner):
            node = place[i] if form[tree] == COMPLETE else i
            k, at = base + node, first + i
            flip = negatives > 0 and default_left[k]
            passed, failed = (right[k], left[k]) if flip else (left[k], right[k])
            if left[k] < 0:  # below a leaf of a complete tree comes that leaf again
                passed = failed = node
            elif count[k]:
                packed_slot[at] = slot[k] * LANES
                packed_threshold[at] = -1 if flip else 0
            else:
                packed_slot[at] = (slot[k] + (negatives if flip else 0)) * LANES
                packed_threshold[at] = np.nextafter(-threshold[k], np.float32(np.inf)) if flip else threshold[k]
            if form[tree] == COMPLETE:
                place[2 * i + 1], place[2 * i + 2] = passed, failed
            else:
                child[2 * at], child[2 * at + 1] = passed, failed
                leaf[first_leaf + i] = value[k]
            category_start[at + 1] = category_start[at] + (count[k] if form[tree] == CATEGORICAL else 0)
        if form[tree] == COMPLETE:
            for i in range(inner + 1):
                leaf[first_leaf + i] = value[base + place[inner + i]]
        base += sizes[tree]
    return form, depth, node_start, leaf_start, packed_slot, packed_threshold, leaf, child, category_start


def _groups(columns: NDArray[np.int32], features: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    starts: list[int] = []
    if features >= SQUARE:
        for column in columns.tolist():
            if not starts or column >= starts[-1] + SQUARE:
                starts.append(min(column, features - SQUARE))
    if len(starts) * SQUARE > 4 * len(columns):
        starts = []
    groups = np.array(starts, np.int64)
    place = np.full(features, 2 * len(columns), np.uint32)
    place[columns] = np.arange(len(columns))
    places = place[(groups[:, None] + np.arange(SQUARE)).reshape(-1)] * np.uint32(LANES)
    return groups, places


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype, copy=False)
