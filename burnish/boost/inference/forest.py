"""Trees packed into a few arrays, each in the form that suits its shape: what the kernels of walk.py read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.inference.lanes import LANES, SQUARE
from burnish.boost.kernels import lean
from burnish.boost.tree import Tree

COMPLETE, WALK, CATEGORICAL = 0, 1, 2  # forms of a tree
DEEPEST_COMPLETE = 8  # levels: the work of the form doubles with each, that of walking grows by one step


@dataclass(frozen=True, eq=False)
class CompiledForest:
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
        """Groups of 16 columns of a table `features` wide that hold `columns`: first columns, and places in a block.

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
        """The packed trees for rows without missing values.

        (depth, node_start, leaf_start) of the trees; (slot, threshold, leaf, child, category_start) of the nodes; the
        listed categories. A complete tree has 2^depth - 1 nodes in heap order and 2^depth leaves. In the other
        forms, every node is kept: child[2 k] and child[2 k + 1] are where rows go that pass and fail the test; a leaf's
        children are itself.
        """
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
        base = np.repeat(np.cumsum(sizes) - sizes, sizes)
        values = _joined([tree.value for tree in trees] if self.values is None else self.values, np.float32)
        count = _joined([np.diff(tree.category_start) for tree in trees], np.int64)
        left = _joined([tree.left for tree in trees], np.int64)
        right = _joined([tree.right for tree in trees], np.int64)
        threshold = _joined([tree.threshold for tree in trees], np.float32)
        feature = _joined([tree.feature for tree in trees], np.int32)
        slot = np.searchsorted(self.columns, feature)
        inner, numeric = left >= 0, count == 0
        flip = _joined([tree.default_left for tree in trees], np.bool_) & inner & missing
        passed, failed = np.arange(len(left)), np.arange(len(left))  # below a leaf comes that leaf again
        passed[inner] = (np.where(flip, right, left) + base)[inner]
        failed[inner] = (np.where(flip, left, right) + base)[inner]
        slot = np.where(inner, slot + np.where(flip & numeric, len(self.columns), 0), 0) * LANES
        turned = np.where(flip, np.nextafter(-threshold, np.float32(np.inf)), threshold)
        threshold = np.where(inner, np.where(numeric, turned, np.where(flip, -1, 0)), 0)
        complete = self.form == COMPLETE
        nodes = np.where(complete, (1 << np.where(complete, self.depth, 0)) - 1, sizes)
        leaves = np.where(complete, nodes + 1, sizes)
        order = np.empty(int((nodes + leaves).sum()), np.int64)
        _lay_out(complete, np.cumsum(sizes) - sizes, nodes, leaves, passed, failed, order)
        below = np.repeat(np.tile([False, True], len(trees)), np.stack([nodes, leaves], axis=1).reshape(-1))
        order, last = order[~below], order[below]
        return (
            self.depth, _starts(nodes), _starts(leaves), slot[order].astype(np.uint32),
            threshold[order].astype(np.float32), values[last],
            np.stack([passed - base, failed - base], axis=1)[order].astype(np.uint32).reshape(-1),
            _starts(count[order]), _joined([tree.category for tree in trees], np.int32),
        )  # fmt: skip

    @cached_property
    def depth(self) -> NDArray[np.int32]:
        """The levels of tests of each tree."""
        sizes = [tree.size for tree in self.trees]
        level = np.zeros(sum(sizes), np.int32)
        left, right = (_joined([child(tree) for tree in self.trees], np.int32) for child in _CHILDREN)
        start = np.cumsum([0, *sizes])
        _count_levels(start, left, right, level)
        return np.maximum.reduceat(level, start[:-1]) if sizes else level

    @cached_property
    def form(self) -> NDArray[np.int64]:
        """The form of each tree."""
        listed = np.array([len(tree.category) > 0 for tree in self.trees], np.bool_)
        return np.where(listed, CATEGORICAL, np.where(self.depth <= DEEPEST_COMPLETE, COMPLETE, WALK))

    def runs(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """Runs of the trees ``first … last - 1`` of one form: the form, where it begins and where it ends."""
        form = self.form[first:last]
        edges = [first, *(first + 1 + np.flatnonzero(form[1:] != form[:-1])).tolist(), last]
        return [(int(self.form[begin]), begin, end) for begin, end in pairwise(edges)]


_CHILDREN = attrgetter("left"), attrgetter("right")


@lean
def _count_levels(
    start: NDArray[np.int64], left: NDArray[np.int32], right: NDArray[np.int32], level: NDArray[np.int32]
) -> None:
    """Counts how many nodes are above each, in trees that begin at `start`; children come after their parent."""
    for tree in range(len(start) - 1):
        base = start[tree]
        for node in range(base, start[tree + 1]):
            if left[node] >= 0:
                level[base + left[node]] = level[base + right[node]] = level[node] + 1


@lean
def _lay_out(
    complete: NDArray[np.bool_], root: NDArray[np.int64], nodes: NDArray[np.int64], leaves: NDArray[np.int64],
    passed: NDArray[np.int64], failed: NDArray[np.int64], order: NDArray[np.int64],
) -> None:  # fmt: skip
    """Writes which node stands at each place: those of a tree, in heap order if it is complete, and then its leaves."""
    at = 0
    for tree in range(len(root)):
        if complete[tree]:
            order[at] = root[tree]
            for i in range(nodes[tree]):
                node = order[at + i]
                order[at + 2 * i + 1] = passed[node]
                order[at + 2 * i + 2] = failed[node]
        else:
            for i in range(nodes[tree]):
                order[at + i] = order[at + nodes[tree] + i] = root[tree] + i
        at += nodes[tree] + leaves[tree]


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where parts of these sizes begin and the last ends."""
    return np.append(0, np.cumsum(sizes))


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
