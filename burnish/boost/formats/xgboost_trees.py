"""One tree in XGBoost's JSON format: its arrays, and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.formats.values import float32_array, floats, int32_array
from burnish.boost.inference.validate import check_shapes
from burnish.boost.tree import PRESENT, Tree
from burnish.errors import DataError

NO_PARENT = 2**31 - 1
_LARGEST = np.finfo(np.float32).max


def tree_from_xgboost(columns: Mapping[str, Any], where: str) -> Tree:
    """The tree of XGBoost's arrays. Nodes that pruning deleted are left out, so that the numbers after them decrease.

    Raises DataError, naming `where`, for arrays that do not fit together; the model checks that they are a tree.
    """
    width = int(columns["tree_param"].get("size_leaf_vector", "1"))
    if width > 1:
        raise DataError(f"{where} has vectors of {width} values at its leaves, allowed: one value")

    def integers(name: str) -> NDArray[np.int32]:
        return int32_array(columns[name], f"{where}: {name}")

    def numbers(name: str) -> NDArray[np.float32]:
        return float32_array(columns[name], f"{where}: {name}")

    left, right = integers("left_children"), integers("right_children")
    inner = left >= 0
    condition = numbers("split_conditions")
    start, category = _categories(columns, len(left), where)
    listed = np.diff(start) > 0
    if condition.shape == inner.shape == listed.shape:
        threshold = np.where(inner & ~listed, np.clip(condition, -_LARGEST, _LARGEST), np.float32(0))
        value = np.where(inner, np.float32(0), condition)
    else:
        threshold = value = condition
    split_type = columns.get("split_type")
    if (
        split_type is not None
        and len(split_type) == len(left)
        and ((np.asarray(split_type) == 1) & ~listed & inner).any()
    ):
        raise DataError(f"{where} has a categorical split without categories")
    tree = Tree(
        left=left,
        right=right,
        feature=np.where(inner, integers("split_indices"), -1).astype(np.int32),
        threshold=threshold,
        default_left=integers("default_left") != 0,
        value=value,
        gain=np.where(inner, numbers("loss_changes"), np.float32(0)),
        cover=numbers("sum_hessian"),
        category_start=start,
        category=category,
    )
    check_shapes(tree, where)
    return with_means(_in_order(tree, where))


def tree_to_xgboost(tree: Tree, number: int, features: int) -> dict[str, Any]:
    """XGBoost's arrays of a tree."""
    inner = tree.left >= 0
    parents = np.full(tree.size, NO_PARENT, np.int64)
    for child in (tree.left, tree.right):
        parents[child[inner]] = np.flatnonzero(inner)
    counts = np.diff(tree.category_start)
    nodes = np.flatnonzero(counts)
    return {
        "base_weights": floats(tree.value),
        "categories": tree.category.tolist(),
        "categories_nodes": nodes.tolist(),
        "categories_segments": tree.category_start[nodes].tolist(),
        "categories_sizes": counts[nodes].tolist(),
        "default_left": tree.default_left.astype(int).tolist(),
        "id": number,
        "left_children": tree.left.tolist(),
        "loss_changes": floats(tree.gain),
        "parents": parents.tolist(),
        "right_children": tree.right.tolist(),
        "split_conditions": floats(np.where(inner, tree.threshold, tree.value)),
        "split_indices": np.maximum(tree.feature, 0).tolist(),
        "split_type": (counts > 0).astype(int).tolist(),
        "sum_hessian": floats(tree.cover),
        "tree_param": {
            "num_deleted": "0", "num_feature": str(features), "num_nodes": str(tree.size), "size_leaf_vector": "1",
        },
    }  # fmt: skip


def with_lists(tree: Tree, categories: Sequence[Sequence[Any] | None], other: bool) -> Tree:
    """The tree with lists at the nodes that tell missing values from all categories: a test by threshold of a
    categorical feature is one that XGBoost predicts by, but refuses to draw or to dump.

    All categories (and, if there is a further one for `other` values, that) are listed, and so go right; missing
    values go left, so that the children change sides.
    """
    known = np.array([0 if values is None else len(values) + other for values in categories], np.int64)
    if not len(known):
        return tree
    inner = tree.left >= 0
    counts = np.where(inner & (tree.threshold == np.float32(PRESENT)), known[tree.feature], 0)
    if not counts.any():
        return tree
    swapped = counts > 0
    pieces = [np.arange(count, dtype=np.int32) if count else tree.categories(node) for node, count in enumerate(counts)]
    return replace(
        tree,
        left=np.where(swapped, tree.right, tree.left),
        right=np.where(swapped, tree.left, tree.right),
        default_left=tree.default_left ^ swapped,
        threshold=np.where(swapped, np.float32(0), tree.threshold),
        category_start=np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(np.int32),
        category=np.concatenate(pieces),
    )


def _categories(columns: Mapping[str, Any], nodes: int, where: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Our category_start and category."""
    counts = np.zeros(nodes, np.int32)
    listed = int32_array(columns.get("categories", []), f"{where}: categories")
    owners = int32_array(columns.get("categories_nodes", []), f"{where}: categories_nodes")
    begins = int32_array(columns.get("categories_segments", []), f"{where}: categories_segments")
    sizes = int32_array(columns.get("categories_sizes", []), f"{where}: categories_sizes")
    pieces: dict[int, NDArray[np.int32]] = {}
    if not len(owners) == len(begins) == len(sizes):
        raise DataError(f"{where}: {len(owners)} categories_nodes, {len(begins)} segments, {len(sizes)} sizes")
    for node, begin, size in zip(owners.tolist(), begins.tolist(), sizes.tolist(), strict=True):
        if not (0 <= node < nodes and node not in pieces and 0 <= begin <= begin + size <= len(listed)):
            raise DataError(f"{where}: node {node} lists categories {begin} … {begin + size} of {len(listed)}")
        pieces[node] = np.unique(listed[begin : begin + size]).astype(np.int32)
        counts[node] = len(pieces[node])
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return start, np.concatenate([np.zeros(0, np.int32), *(pieces[node] for node in sorted(pieces))])


def _in_order(tree: Tree, where: str) -> Tree:
    """The nodes that the root leads to, in their order if children come after parents, else level by level."""
    found = [0]
    for node in found:  # grows while it is read
        if tree.left[node] >= 0:
            found += [int(tree.left[node]), int(tree.right[node])]
        if (
            len(found) > tree.size
            or not 0 <= found[-1] < tree.size
            or not 0 <= found[-2 if len(found) > 1 else 0] < tree.size
        ):
            raise DataError(f"{where}, node {node}: its children are no nodes of the tree, or have another parent")
    order = np.array(found, np.int64)
    if len(set(found)) < len(found):
        raise DataError(f"{where} has a node with two parents")
    ascending = np.sort(order)
    inner = tree.left >= 0
    if (np.minimum(tree.left, tree.right)[inner] > np.flatnonzero(inner)).all():
        order = ascending
    if len(order) == tree.size and (order == np.arange(tree.size)).all():
        return tree
    new = np.full(tree.size, -1, np.int32)
    new[order] = np.arange(len(order))
    counts = np.diff(tree.category_start)[order]
    pieces = [tree.categories(int(node)) for node in order]

    def moved(child: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.where(child[order] >= 0, new[child[order]], -1).astype(np.int32)

    return Tree(
        left=moved(tree.left),
        right=moved(tree.right),
        category_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        category=np.concatenate([np.zeros(0, np.int32), *pieces]),
        **{
            name: getattr(tree, name)[order]
            for name in ("feature", "threshold", "default_left", "value", "gain", "cover")
        },
    )


def with_means(tree: Tree) -> Tree:
    """The tree with the mean of their leaves, by cover, as the values of inner nodes."""
    value = tree.value.astype(np.float64)
    for node in np.flatnonzero(tree.left >= 0)[::-1].tolist():
        children = [tree.left[node], tree.right[node]]
        cover = tree.cover[children].astype(np.float64)
        total = cover.sum()
        value[node] = value[children] @ cover / total if total > 0 else value[children].mean()
    return replace(tree, value=value.astype(np.float32))
