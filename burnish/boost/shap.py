"""TreeSHAP: what every feature contributes to a margin, by Shapley's values of the trees' path-dependent expectation.

Source: Lundberg, Erion, Lee, "Consistent individualized feature attribution for tree ensembles" (2018), Algorithm 2:
polynomial time, by keeping for every path the permutation weights of all subset sizes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.data import Dataset, Sparse
from burnish.boost.kernels import inlined, lean
from burnish.boost.predictor import as_table, of_values, round_range
from burnish.boost.tree import Tree
from burnish.errors import DataError
from burnish.runtime.threads import Workers

if TYPE_CHECKING:
    from burnish.boost.ensemble import Ensemble

_ROWS = 1 << 12  # of a sparse table that are made dense at once
MOST_LEVELS = 512  # of a tree: the work grows with their square


class _Nodes(NamedTuple):
    """A tree's nodes, (nodes,) each but the listed categories."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    cover: NDArray[np.float64]
    category_start: NDArray[np.int32]
    category: NDArray[np.int32]
    level: NDArray[np.int32]
    mean: NDArray[np.float64]  # of the leaves below


class _Paths(NamedTuple):
    """Room for the paths to a node and to those above it, and for the nodes that are still to be seen."""

    path: NDArray[np.int32]  # (levels, levels): features, by level of node and place in its path
    zero: NDArray[np.float64]  # the same: their shares where they are unknown,
    one: NDArray[np.float64]  # and where they are known
    weight: NDArray[np.float64]  # the same: of subsets by size
    length: NDArray[np.int64]  # (levels,)
    factor: NDArray[np.float64]  # (levels,)
    stack: NDArray[np.int64]  # (2 levels, 2): node and level
    split: NDArray[np.float64]  # (2 levels, 4): zero share, one share, feature and factor of it

    @classmethod
    def of(cls, levels: int) -> _Paths:
        """Allocates paths for trees of fewer than `levels` levels."""
        square, line = (levels, levels), 2 * levels
        shares = np.zeros(square), np.zeros(square), np.zeros(square)
        lines = np.zeros(levels, np.int64), np.zeros(levels)
        return cls(np.zeros(square, np.int32), *shares, *lines, np.zeros((line, 2), np.int64), np.zeros((line, 4)))


def contributions(
    model: Ensemble,
    data: Dataset | Sparse | NDArray[np.float32],
    workers: Workers | None = None,
    rounds: tuple[int, int] | None = None,
) -> NDArray[np.float32]:
    """Contributions (outputs, rows, features + 1) to margins; the last column is the expectation in training.

    Those of a row add up to its margin, of the `rounds` begin … end - 1; by default those that `predict` uses, up to
    `best_iteration`. They follow the paths that rows take, weighted by the covers of the nodes, as
    XGBoost's ``pred_contribs`` do. Raises DataError for data that do not fit the model.
    """
    return _explain(model, data, workers, rounds, condition=None)


def interactions(
    model: Ensemble,
    data: Dataset | Sparse | NDArray[np.float32],
    workers: Workers | None = None,
    rounds: tuple[int, int] | None = None,
) -> NDArray[np.float32]:
    """SHAP interaction values (outputs, rows, features + 1, features + 1): symmetric, with rows that add up to
    `contributions`; the diagonal holds what a feature contributes alone.
    """
    plain = contributions(model, data, workers, rounds).astype(np.float64)
    size = plain.shape[2]
    result = np.zeros((*plain.shape, size), np.float64)
    begin, end = round_range(model, rounds or model.used)
    trees = model.trees[begin * model.outputs : end * model.outputs]
    used = np.unique(np.concatenate([np.zeros(0, np.int32), *(tree.feature[tree.left >= 0] for tree in trees)]))
    for feature in used.tolist():
        present = _explain(model, data, workers, rounds, (feature, True)).astype(np.float64)
        absent = _explain(model, data, workers, rounds, (feature, False)).astype(np.float64)
        result[:, :, feature, :-1] = (present - absent)[:, :, :-1] / 2
        result[:, :, feature, feature] = 0
    diagonal = plain - result.sum(3)
    for feature in range(size):
        result[:, :, feature, feature] = diagonal[:, :, feature]
    return result.astype(np.float32)


def _explain(
    model: Ensemble,
    data: Dataset | Sparse | NDArray[np.float32],
    workers: Workers | None,
    rounds: tuple[int, int] | None,
    condition: tuple[int, bool] | None,
) -> NDArray[np.float32]:
    table, rows = as_table(of_values(data, model), model)
    begin, end = round_range(model, rounds or model.used)
    workers = workers or Workers()
    result = np.zeros((model.outputs, rows, model.features + 1), np.float64)
    chosen = [_prepared(tree, number) for number, tree in enumerate(model.trees)][
        begin * model.outputs : end * model.outputs
    ]
    feature, present = condition or (-1, False)

    def part(first: int, last: int) -> None:
        paths = _Paths.of(max((int(nodes.level.max()) for nodes in chosen), default=0) + 3)
        for row in range(first, last, _ROWS):
            stop = min(row + _ROWS, last)
            dense = _dense(table, row, stop, model.features) if isinstance(table, Sparse) else table[row:stop]
            for number, nodes in enumerate(chosen):
                _explain_tree(dense, nodes, feature, present, paths, result[number % model.outputs, row:stop])

    workers.run(part, workers.ranges(rows, 64))
    for number, nodes in enumerate(chosen):
        result[number % model.outputs, :, -1] += nodes.mean[0]
    result[:, :, -1] += model.base_score[:, None]
    base_margin = data.base_margin if isinstance(data, Dataset) else None
    if base_margin is not None:
        result[:, :, -1] += np.asarray(base_margin, np.float64).reshape(rows, -1).T - model.base_score[:, None]
    return result.astype(np.float32)


def _prepared(tree: Tree, number: int) -> _Nodes:
    """The nodes as the kernel takes them. Raises DataError for too many levels."""
    cover = tree.cover.astype(np.float64)
    mean, level = tree.value.astype(np.float64), np.zeros(tree.size, np.int32)
    _means(tree.left, tree.right, cover, mean, level)
    if level.max() > MOST_LEVELS:
        raise DataError(f"contributions: tree {number} has {level.max()} levels, allowed: {MOST_LEVELS}")
    return _Nodes(
        tree.left, tree.right, tree.feature, tree.threshold, tree.default_left, tree.value, cover, tree.category_start,
        tree.category, level, mean,
    )  # fmt: skip


def _dense(table: Sparse, first: int, last: int, features: int) -> NDArray[np.float32]:
    result = np.full((last - first, features), np.nan, np.float32)
    begin, end = int(table.start[first]), int(table.start[last])
    row = np.repeat(np.arange(last - first), np.diff(table.start[first : last + 1]))
    result[row, table.columns[begin:end]] = table.values[begin:end]
    return result


@lean
def _means(left, right, cover, mean, level):  # type: ignore[no-untyped-def]
    """The mean leaf below every node, weighted as paths are, and the level of every node.

    Into `mean`, which holds the leaves' values, and `level`, zeros.
    """
    for node in range(len(left)):
        if left[node] >= 0:
            level[left[node]] = level[right[node]] = level[node] + 1
    for node in range(len(left) - 1, -1, -1):
        if left[node] >= 0:
            share = _share(cover, node, left, right)
            mean[node] = share * mean[left[node]] + (1 - share) * mean[right[node]]


@inlined
def _share(cover, node, left, right):  # type: ignore[no-untyped-def]
    """The share of a node's training rows that go left; of a node without cover, half."""
    total = cover[left[node]] + cover[right[node]]
    return cover[left[node]] / total if total > 0 else 0.5


@inlined
def _goes_left(x, node, nodes):  # type: ignore[no-untyped-def]
    if np.isnan(x):
        return nodes.default_left[node]
    begin, end = nodes.category_start[node], nodes.category_start[node + 1]
    if begin == end:
        return x < nodes.threshold[node]
    for j in range(begin, end):  # noqa: SIM110 - numba knows no generators
        if x >= 0 and np.floor(x) == nodes.category[j]:
            return False
    return True


@inlined
def _extend(paths, row, length, feature, zero_share, one_share):  # type: ignore[no-untyped-def]
    """EXTEND: grows the subsets of all sizes by a feature; `length` features of the path `row` are there before."""
    path, zero, one, weight = paths.path, paths.zero, paths.one, paths.weight
    path[row, length], zero[row, length], one[row, length] = feature, zero_share, one_share
    weight[row, length] = 1.0 if length == 0 else 0.0
    for i in range(length - 1, -1, -1):
        weight[row, i + 1] += one_share * weight[row, i] * (i + 1) / (length + 1)
        weight[row, i] = zero_share * weight[row, i] * (length - i) / (length + 1)


@inlined
def _unwind(paths, row, length, at):  # type: ignore[no-untyped-def]
    """UNWIND: takes the feature `at` out again; `length` features are there, and one fewer after."""
    path, zero, one, weight = paths.path, paths.zero, paths.one, paths.weight
    last = length - 1
    zero_share, one_share = zero[row, at], one[row, at]
    n = weight[row, last]
    for j in range(last - 1, -1, -1):
        if one_share != 0:
            t = weight[row, j]
            weight[row, j] = n * length / ((j + 1) * one_share)
            n = t - weight[row, j] * zero_share * (last - j) / length
        else:
            weight[row, j] = weight[row, j] * length / (zero_share * (last - j))
    for j in range(at, last):
        path[row, j], zero[row, j], one[row, j] = path[row, j + 1], zero[row, j + 1], one[row, j + 1]


@inlined
def _unwound_sum(paths, row, length, at):  # type: ignore[no-untyped-def]
    """The sum of the weights after UNWIND, which is not carried out."""
    zero, one, weight = paths.zero, paths.one, paths.weight
    last = length - 1
    total = 0.0
    n = weight[row, last]
    for j in range(last - 1, -1, -1):
        if one[row, at] != 0:
            t = n * length / ((j + 1) * one[row, at])
            total += t
            n = weight[row, j] - t * zero[row, at] * (last - j) / length
        else:
            total += weight[row, j] * length / (zero[row, at] * (last - j))
    return total


@lean
def _explain_tree(table, nodes, condition, present, paths, result):  # type: ignore[no-untyped-def]
    """Adds a tree's contributions to `result` (rows, features + 1).

    `condition`: a feature that is known, or, if not `present`, unknown, whatever the subset; -1 for none. nodes:
    `_Nodes`; paths: `_Paths`, scratch.
    """
    left, right, value = nodes.left, nodes.right, nodes.value
    path, zero, one, weight, length, factor, stack, split = paths
    # Depth first, with stacks in place of recursion. Level `at` of the paths is overwritten by each node of that level:
    # it is always that of the node's parent when a child copies from it, since a subtree is done before the next one.
    for row in range(len(table)):
        depth = 1
        stack[0, 0], stack[0, 1] = 0, 0
        split[0, 0], split[0, 1], split[0, 2], split[0, 3] = 1.0, 1.0, -1.0, 1.0
        while depth:
            depth -= 1
            node, at = stack[depth, 0], stack[depth, 1]
            zero_share, one_share, tested = split[depth, 0], split[depth, 1], np.int32(split[depth, 2])
            factor[at] = split[depth, 3]
            # The path of the parent, extended by its test: level `at` holds the path of a node at that level.
            if at == 0:
                count = 0
            else:
                count = length[at - 1]
                for i in range(count):
                    path[at, i], zero[at, i], one[at, i] = path[at - 1, i], zero[at - 1, i], one[at - 1, i]
                    weight[at, i] = weight[at - 1, i]
            if tested >= 0 or at == 0:
                for i in range(1, count):
                    if path[at, i] == tested:  # tested above, too: its shares are multiplied
                        zero_share, one_share = zero_share * zero[at, i], one_share * one[at, i]
                        _unwind(paths, at, count, i)
                        count -= 1
                        break
                if zero_share == 0.0 and one_share == 0.0:  # no subset reaches what is below
                    continue
                _extend(paths, at, count, tested, zero_share, one_share)
                count += 1
            length[at] = count
            if left[node] < 0:
                for i in range(1, count):
                    total = _unwound_sum(paths, at, count, i)
                    result[row, path[at, i]] += total * (one[at, i] - zero[at, i]) * value[node] * factor[at]
                continue
            f = nodes.feature[node]
            goes_left = _goes_left(table[row, f], node, nodes)
            share = _share(nodes.cover, node, left, right)
            for child, weighed, hot in (
                (left[node], share, goes_left), (right[node], 1 - share, not goes_left)
            ):  # fmt: skip
                scale, name = factor[at], f
                if f == condition:  # its test is no part of the path: known or unknown, it only scales
                    scale *= (1.0 if hot else 0.0) if present else weighed
                    name = -1
                if scale == 0.0 or (weighed == 0.0 and not hot):
                    continue
                stack[depth, 0], stack[depth, 1] = child, at + 1
                split[depth, 0], split[depth, 1] = weighed, 1.0 if hot else 0.0
                split[depth, 2], split[depth, 3] = name, scale
                depth += 1
