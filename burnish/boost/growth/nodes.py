"""Nodes of a tree while it grows, as records that kernels read and write, and the tree that they become."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.kernels import lean
from burnish.boost.splitter import child_bounds, leaf_weight
from burnish.boost.tree import Tree

NODE = np.dtype(
    [
        ("left", np.int64),  # number of the left child; the right one's is the next; -1: a leaf
        ("depth", np.int64),
        ("begin", np.int64),  # segment of the partition
        ("end", np.int64),
        ("slot", np.int64),  # of its histogram; -1: none
        ("gradient", np.int64),  # sums over the rows of all workers, in units
        ("hessian", np.int64),
        ("weight", np.float64),  # eq. 2.5
        ("lower", np.float64),  # bounds of weights in the subtree
        ("upper", np.float64),
        ("gain", np.float64),  # of the best split; −inf: none
        ("position", np.int64),  # the best split: see evaluate.BEST
        ("bin", np.int64),
        ("default_left", np.int64),
        ("left_gradient", np.int64),
        ("left_hessian", np.int64),
    ]
)


@lean
def split_nodes(
    nodes: NDArray[Any],
    chosen: NDArray[np.int64],
    size: int,
    layout_feature: NDArray[np.int64],
    monotone: NDArray[np.int64],
    unit: float,
    hessian_unit: float,
    reg_lambda: float,
    reg_alpha: float,
    max_delta_step: float,
) -> None:
    """Gives the chosen nodes children, numbered from `size` on, by their best splits; segments are yet to be set."""
    for k in range(len(chosen)):
        node = nodes[chosen[k]]
        child = size + 2 * k
        nodes[chosen[k]].left = child
        for side in range(2):
            new = nodes[child + side]
            new.left = -1
            new.depth = node.depth + 1
            new.slot = -1
            new.gain = -np.inf
            new.lower = node.lower
            new.upper = node.upper
            new.gradient = node.left_gradient if side == 0 else node.gradient - node.left_gradient
            new.hessian = node.left_hessian if side == 0 else node.hessian - node.left_hessian
            new.weight = leaf_weight(
                new.gradient * unit, new.hessian * hessian_unit, reg_lambda, reg_alpha, max_delta_step,
                node.lower, node.upper,
            )  # fmt: skip
        direction = monotone[layout_feature[node.position]]
        if direction != 0:
            bounds = child_bounds(direction, nodes[child].weight, nodes[child + 1].weight, node.lower, node.upper)
            nodes[child].lower, nodes[child].upper = bounds[0], bounds[1]
            nodes[child + 1].lower, nodes[child + 1].upper = bounds[2], bounds[3]


def to_tree(
    nodes: NDArray[Any],
    feature: NDArray[np.int64],
    thresholds: NDArray[np.float32],
    categories: dict[int, NDArray[np.int32]],
    learning_rate: float,
    hessian_unit: float,
) -> Tree:
    """The tree of all nodes, given their features (-1 at leaves), thresholds, and categories that go right."""
    inner = nodes["left"] >= 0
    start = np.zeros(len(nodes) + 1, np.int32)
    for node, listed in categories.items():
        start[node + 1] = len(listed)
    parts = [categories[node] for node in sorted(categories)]
    return Tree(
        left=nodes["left"].astype(np.int32),
        right=np.where(inner, nodes["left"] + 1, -1).astype(np.int32),
        feature=feature.astype(np.int32),
        threshold=thresholds,
        default_left=~inner | (nodes["default_left"] > 0),
        value=(nodes["weight"] * learning_rate).astype(np.float32),
        gain=np.where(inner, np.minimum(nodes["gain"], np.finfo(np.float32).max), 0.0).astype(np.float32),
        cover=(nodes["hessian"] * hessian_unit).astype(np.float32),
        category_start=np.cumsum(start, dtype=np.int32),
        category=np.concatenate([np.empty(0, np.int32), *parts]),
    )
