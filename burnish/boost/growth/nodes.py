"""Nodes of a tree while it grows, as records that kernels read and write, and the tree that they become."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.kernels import inlined, lean
from burnish.boost.params import Params
from burnish.boost.splitter import child_bounds, leaf_weight
from burnish.boost.tree import Tree

NODE = np.dtype(
    [
        ("left", np.int64),  # number of the left child; the right one's is the next; -1: a leaf
        ("depth", np.int64),
        ("begin", np.int64),  # segment of the partition
        ("end", np.int64),
        ("slot", np.int64),  # of its histogram; -1: none
        ("subtract", np.int64),  # the slot to take off its histogram, the parent's yet; -1: none
        ("gradient", np.int64),  # sums over the rows of all workers, in units
        ("hessian", np.int64),
        ("weight", np.float64),  # eq. 2.5
        ("lower", np.float64),  # bounds of weights in the subtree
        ("upper", np.float64),
        ("gain", np.float64),  # of the best split; −inf: none
        ("position", np.int64),  # of the best split's feature
        ("bin", np.int64),  # rows of bins up to this one go left
        ("default_left", np.int64),  # 1: missing values go left
        ("left_gradient", np.int64),  # sums of the left child, in units
        ("left_hessian", np.int64),
    ]
)


# What splits follow from besides the statistics, as float64: see `rules_of`.
UNIT, HESSIAN_UNIT, REG_LAMBDA, REG_ALPHA, MAX_DELTA_STEP, MIN_CHILD_WEIGHT, GAMMA = range(7)


def rules_of(params: Params, units: tuple[float, float]) -> NDArray[np.float64]:
    """Units of the statistics and regularisation as kernels take them, (7,)."""
    limits = params.max_delta_step, params.min_child_weight, params.gamma
    return np.array([*units, params.reg_lambda, params.reg_alpha, *limits], np.float64)


@inlined
def split_node(
    nodes: NDArray[Any],
    here: int,
    child: int,
    layout_feature: NDArray[np.int64],
    monotone: NDArray[np.int64],
    rules: NDArray[np.float64],
) -> None:
    """Gives a node children, numbered `child` and the next, by its best split; segments are yet to be set."""
    node = nodes[here]
    node.left = child
    for side in range(2):
        new = nodes[child + side]
        new.left = -1
        new.depth = node.depth + 1
        new.slot = -1
        new.subtract = -1
        new.gain = -np.inf
        new.lower = node.lower
        new.upper = node.upper
        new.gradient = node.left_gradient if side == 0 else node.gradient - node.left_gradient
        new.hessian = node.left_hessian if side == 0 else node.hessian - node.left_hessian
        new.weight = leaf_weight(
            new.gradient * rules[UNIT], new.hessian * rules[HESSIAN_UNIT], rules[REG_LAMBDA], rules[REG_ALPHA],
            rules[MAX_DELTA_STEP], node.lower, node.upper,
        )  # fmt: skip
    direction = monotone[layout_feature[node.position]]
    if direction != 0:
        left, right = nodes[child], nodes[child + 1]
        left.lower, left.upper, right.lower, right.upper = child_bounds(
            direction, left.weight, right.weight, node.lower, node.upper
        )


@lean
def split_nodes(
    nodes: NDArray[Any],
    chosen: NDArray[np.int64],
    size: int,
    layout_feature: NDArray[np.int64],
    monotone: NDArray[np.int64],
    rules: NDArray[np.float64],
) -> None:
    """`split_node` for the chosen nodes, whose children are numbered from `size` on."""
    for k in range(len(chosen)):
        split_node(nodes, chosen[k], size + 2 * k, layout_feature, monotone, rules)


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
