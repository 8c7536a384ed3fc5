"""Validation of tree arrays: whether they are a tree, which every kernel that walks one relies on."""

import numpy as np
from numpy.typing import NDArray

from burnish.boost.tree import Tree
from burnish.errors import DataError

MOST_NODES = 1 << 24  # node numbers are exact as float32
MOST_CATEGORIES = 1 << 24  # so are category numbers
_NODE_ARRAYS = ("left", "right", "feature", "threshold", "default_left", "value", "gain", "cover")


def check_tree(tree: Tree, features: int, where: str) -> None:
    """Raises DataError, naming `where` and the node, unless `tree` is one that any kernel can walk.

    Every node but the root is the child of exactly one, which comes before it; so all walks end, and there are no more
    paths than leaves. Inner nodes test one of `features` features against a finite number or a list of categories.
    """
    check_shapes(tree, where)
    nodes = tree.size
    inner = tree.left >= 0
    numbers = np.arange(nodes, dtype=np.int32)
    for side, child in (("left", tree.left), ("right", tree.right)):
        _none(np.where(inner, (child <= numbers) | (child >= nodes), child != -1), where, f"{side} child", child)
    parents = np.bincount(np.concatenate([tree.left[inner], tree.right[inner]]), minlength=nodes)
    _none(parents != (numbers > 0), where, "number of parents", parents)
    _none(inner & ((tree.feature < 0) | (tree.feature >= features)), where, "feature", tree.feature)
    for name in ("threshold", "value", "gain", "cover"):
        values = getattr(tree, name)
        _none(~np.isfinite(values), where, name, values)
    _check_categories(tree, inner, where)


def check_shapes(tree: Tree, where: str) -> None:
    """Raises DataError unless the arrays have one entry for each node."""
    nodes = tree.size
    if not 1 <= nodes < MOST_NODES:
        raise DataError(f"{where} has {nodes} nodes, allowed: 1 … {MOST_NODES - 1}")
    for name in _NODE_ARRAYS:
        found = getattr(tree, name).shape
        if found != (nodes,):
            raise DataError(f"{where}: {name} has shape {list(found)}, allowed: [{nodes}], one for each node")
    if tree.category_start.shape != (nodes + 1,):
        raise DataError(f"{where}: category_start has shape {list(tree.category_start.shape)}, allowed: [{nodes + 1}]")


def _check_categories(tree: Tree, inner: NDArray[np.bool_], where: str) -> None:
    start, category = tree.category_start, tree.category
    if start[0] != 0 or start[-1] != len(category) or (np.diff(start) < 0).any():
        raise DataError(f"{where}: category_start does not ascend from 0 to the {len(category)} categories listed")
    if not len(category):
        return
    counts = np.diff(start)
    _none((counts > 0) & ~inner, where, "number of categories of a leaf", counts)
    owner = np.repeat(np.arange(tree.size), counts)
    if category.min() < 0 or category.max() >= MOST_CATEGORIES:
        raise DataError(
            f"{where}: a category is {category.min()} … {category.max()}, allowed: 0 … {MOST_CATEGORIES - 1}"
        )
    if ((np.diff(category) <= 0) & (owner[1:] == owner[:-1])).any():
        raise DataError(f"{where}: the categories of a node do not ascend")


def _none(wrong: NDArray[np.bool_], where: str, what: str, values: NDArray[np.generic]) -> None:
    """Raises DataError for the first node that is wrong."""
    if wrong.any():
        node = int(np.argmax(wrong))
        raise DataError(f"{where}, node {node}: {what} is {values[node]}, which no valid tree has")
