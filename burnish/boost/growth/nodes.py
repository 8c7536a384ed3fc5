"""Nodes of a tree while it grows, as records that kernels read and write, and the tree that they become."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.binning import Cuts
from burnish.boost.kernels import inlined, lean
from burnish.boost.params import Params
from burnish.boost.splitter import child_bounds, leaf_weight
from burnish.boost.tree import PRESENT, Tree

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
        ("category", np.int64),  # the row of `categories.sets` that lists what goes right; -1: a split by threshold
    ]
)


_LARGEST = float(np.finfo(np.float32).max)

# What splits follow from besides the statistics, as float64: see `rules_of`.
MOST_UNITS = 2.0**62  # more than any sum of statistics
UNIT, HESSIAN_UNIT, REG_LAMBDA, REG_ALPHA, MAX_DELTA_STEP, MIN_CHILD_WEIGHT, GAMMA = range(7)
ONE_HOT, CAT_THRESHOLD, CAT_SMOOTH, CAT_L2, CATEGORY, GROUP, SHARED, SHARED_GROUP = range(7, 15)

_GROUP_ROWS, _GROUP_SHARE = 100, 0.05  # least rows of a side of a partition: this many, at most this share of all,
_GROUP_CATEGORIES = 10.0  # and at most this many times the mean of a category
_CATEGORY_ROWS = 30.0  # rows of a category, in the mean, for each category that the smaller side may have,
FEWEST_LISTED, MOST_LISTED = 16.0, 64.0  # within these: with fewer rows, sides of many categories fit to noise;
SHARE_LISTED = 1 / 80  # at least this share of very many categories, which a tree could not tell apart otherwise


class SplitLimits(NamedTuple):
    """Which splits of nodes are allowed, and what they gain."""

    masks: NDArray[np.bool_]  # (nodes, depths or 1, features): the features that may be split on
    monotone: NDArray[np.int64]  # (features,)
    plain: bool  # no constraint, no L1 penalty: gains can be estimated in single precision
    rules: NDArray[np.float64]  # see `rules_of`


def rules_of(params: Params, units: tuple[float, float], rows: float, hessian: int) -> NDArray[np.float64]:
    """Units of the statistics, and regularisation as kernels take it, (15,).

    rows: those of all workers that a tree sees; hessian: their sum, in units. The rows of a category are estimated from
    its Hessian, of which a row has the mean: CATEGORY and GROUP are least sums; not above SHARED and SHARED_GROUP
    divided by the number of categories, so that features of many categories with few rows each can be split.
    CAT_THRESHOLD, if negative, is to be divided by their number, too.
    """
    limits = params.max_delta_step, params.min_child_weight, params.gamma
    mean = hessian / max(rows, 1.0)
    group = (params.min_data_per_group or min(_GROUP_ROWS, rows * _GROUP_SHARE)) * mean
    threshold = params.max_cat_threshold or -rows / _CATEGORY_ROWS
    by_category = params.max_cat_to_onehot, threshold, params.cat_smooth, params.cat_l2
    shared = np.inf if params.min_data_per_group else _GROUP_CATEGORIES * hessian
    least = params.cat_smooth * mean, group, hessian, shared
    return np.array([*units, params.reg_lambda, params.reg_alpha, *limits, *by_category, *least], np.float64)


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
        new.category = -1
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


class _Columns(NamedTuple):
    """Arrays of a `Tree`, (nodes,) each."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]
    value: NDArray[np.float32]
    gain: NDArray[np.float32]
    cover: NDArray[np.float32]


@lean
def _fill(
    nodes: NDArray[Any],
    layout_feature: NDArray[np.int64],
    cut_start: NDArray[np.int32],
    cuts: NDArray[np.float32],
    learning_rate: float,
    hessian_unit: float,
    columns: Any,
) -> None:
    """Writes the arrays of a tree, `_Columns`."""
    left, right, feature, threshold, default_left, value, gain, cover = columns
    for i in range(len(nodes)):
        node = nodes[i]
        left[i] = right[i] = feature[i] = -1
        default_left[i] = True
        threshold[i] = gain[i] = 0.0
        value[i] = node.weight * learning_rate
        cover[i] = node.hessian * hessian_unit
        if node.left >= 0:
            own = layout_feature[node.position]
            left[i] = node.left
            right[i] = node.left + 1
            feature[i] = own
            threshold[i] = cuts[cut_start[own] + node.bin]
            default_left[i] = node.default_left > 0
            gain[i] = node.gain if node.gain < _LARGEST else _LARGEST


def to_tree(
    nodes: NDArray[Any],
    layout_feature: NDArray[np.int64],
    cuts: Cuts,
    categories: dict[int, NDArray[np.int32]],
    learning_rate: float,
    hessian_unit: float,
) -> Tree:
    """The tree of all nodes, given the features of positions, their cuts, and the categories that go right at nodes.

    A node whose split tells missing values from all categories has an empty list of those.
    """
    size = len(nodes)
    left, right, feature = np.empty((3, size), np.int32)
    threshold, value, gain, cover = np.empty((4, size), np.float32)
    default_left = np.empty(size, np.bool_)
    columns = _Columns(left, right, feature, threshold, default_left, value, gain, cover)
    _fill(nodes, layout_feature, cuts.start, cuts.values, float(learning_rate), hessian_unit, columns)
    start = np.zeros(size + 1, np.int32)
    category = np.empty(0, np.int32)
    if categories:
        for node, listed in categories.items():
            start[node + 1] = len(listed)
        start = np.cumsum(start, dtype=np.int32)
        category = np.concatenate([categories[node] for node in sorted(categories)])
        for node, listed in categories.items():
            threshold[node] = 0.0 if len(listed) else PRESENT  # without a list, a node is a test by threshold
    return Tree(left, right, feature, threshold, default_left, value, gain, cover, start, category)
