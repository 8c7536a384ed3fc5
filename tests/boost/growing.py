"""The oracle of growers: Algorithm 3 in plain NumPy, one node at a time, on the same bins; and checks of trees."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.boost.binning import Cuts
from burnish.boost.data import Dataset, Sparse
from burnish.boost.params import Params
from burnish.boost.tree import Tree


@dataclass
class Plain:
    """A node of the oracle's tree."""

    rows: Any
    weight: float
    cover: float
    gain: float = 0.0
    feature: int = -1
    threshold: float = 0.0
    default_left: bool = True
    children: list["Plain"] = field(default_factory=list)


def dense(dataset: Dataset) -> Any:
    """The table as a dense array; NaN where an entry is absent."""
    if not isinstance(dataset.table, Sparse):
        return dataset.table
    table = np.full((dataset.rows, dataset.features), np.nan, np.float32)
    for row in range(dataset.rows):
        part = slice(dataset.table.start[row], dataset.table.start[row + 1])
        table[row, dataset.table.columns[part]] = dataset.table.values[part]
    return table


def score(g: float, h: float, params: Params) -> float:
    """G² / (H + λ)."""
    shrunk = np.sign(g) * max(abs(g) - params.reg_alpha, 0)
    return shrunk**2 / (h + params.reg_lambda) if h > 0 else 0.0


def candidates(table: Any, cuts: Cuts, order: Any, rows: Any, gradient: Any, hessian: Any, params: Params) -> Any:
    """Every split of a node: (gain, feature, threshold, default_left), features in the given order."""
    total, total_hessian = gradient[rows].sum(), hessian[rows].sum()
    for feature in order:
        x = table[rows, feature]
        absent = np.isnan(x)
        for default_left in (False, True) if absent.any() else (False,):
            for threshold in cuts.values[cuts.start[feature] : cuts.start[feature + 1]]:
                goes = (x < threshold) | (absent & default_left)
                g, h = gradient[rows][goes].sum(), hessian[rows][goes].sum()
                if min(h, total_hessian - h) < params.min_child_weight or goes.all() or not goes.any():
                    continue
                if min(goes.sum(), len(goes) - goes.sum()) < params.min_data_in_leaf:
                    continue
                gain = score(g, h, params) + score(total - g, total_hessian - h, params)
                yield gain - score(total, total_hessian, params), feature, threshold, default_left


def plain_tree(dataset: Dataset, cuts: Cuts, order: Any, gradient: Any, hessian: Any, params: Params) -> Plain:
    """The tree that depth-wise growth gives."""
    table = dense(dataset)
    gradient, hessian = gradient.astype(np.float64), hessian.astype(np.float64)

    def grow(rows: Any, depth: int) -> Plain:
        g, h = gradient[rows].sum(), hessian[rows].sum()
        shrunk = np.sign(g) * max(abs(g) - params.reg_alpha, 0)
        node = Plain(rows, -shrunk / (h + params.reg_lambda) if h > 0 else 0.0, h)
        if depth == params.max_depth:
            return node
        best = max(candidates(table, cuts, order, rows, gradient, hessian, params), key=lambda x: x[0], default=None)
        if best is None or best[0] < max(params.gamma, 1e-6):
            return node
        node.gain, node.feature, node.threshold, node.default_left = best
        x = table[rows, node.feature]
        goes = (x < node.threshold) | (np.isnan(x) & node.default_left)
        node.children = [grow(rows[goes], depth + 1), grow(rows[~goes], depth + 1)]
        return node

    return grow(np.arange(dataset.rows), 0)


def route(tree: Tree, table: Any) -> Any:
    """The leaf of every row, one node at a time."""
    node = np.zeros(len(table), np.int64)
    for _ in range(tree.size):
        inner = tree.left[node] >= 0
        if not inner.any():
            break
        x = table[np.arange(len(table)), tree.feature[node]]
        left = np.where(np.isnan(x), tree.default_left[node], x < tree.threshold[node])
        for n in np.unique(node):
            if tree.left[n] >= 0 and len(tree.categories(n)):
                here = (node == n) & ~np.isnan(x)
                left[here] = ~np.isin(x[here], tree.categories(n))
        node = np.where(inner, np.where(left, tree.left[node], tree.right[node]), node)
    return node


def same(tree: Tree, node: Plain, learning_rate: float, leaf: Any, number: int = 0) -> None:
    """Fails unless the tree equals the oracle's up to rounding, wherever the oracle's best split is not a near tie."""
    scale = abs(node.gain) + node.cover + 1
    assert np.isclose(tree.cover[number], node.cover, rtol=1e-5, atol=1e-6)
    assert np.isclose(tree.value[number], node.weight * learning_rate, rtol=1e-4, atol=1e-5)
    if not node.children:
        assert tree.left[number] < 0
        assert (leaf[node.rows] == number).all()
        return
    assert np.isclose(tree.gain[number], node.gain, rtol=1e-4, atol=1e-6 * scale)
    assert tree.feature[number] == node.feature
    assert tree.threshold[number] == np.float32(node.threshold)
    assert tree.default_left[number] == node.default_left
    for child, plain in zip((tree.left[number], tree.right[number]), node.children, strict=True):
        same(tree, plain, learning_rate, leaf, int(child))


def equal(a: Tree, b: Tree) -> bool:
    """Whether two trees are the same bit for bit."""
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)
