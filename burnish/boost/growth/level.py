"""A level of a tree between its loops over rows: children of nodes, tests as tables of codes, slots of histograms."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.growth.categorical_split import send_right
from burnish.boost.growth.nodes import split_node
from burnish.boost.growth.partition import send_range
from burnish.boost.kernels import inlined, lean


class ListedCategories(NamedTuple):
    """Bit sets of the categories that go right at nodes, as a part of `categorical_split.Categories`."""

    sets: NDArray[np.uint64]  # (nodes · words,)
    words: int


class Children(NamedTuple):
    """Lists of the children of split nodes, written by `seat_children`; (2 · nodes or more,) each."""

    built: NDArray[np.int64]  # nodes whose histograms are to be built: the smaller children
    found: NDArray[np.int64]  # nodes to find splits of
    subtract: NDArray[np.int64]  # (found,): slots to take off their histograms, the parents' yet; -1: none
    free: NDArray[np.int64]  # slots that nobody needs
    only: NDArray[np.int64]  # nodes whose histograms are built for their siblings alone

    @classmethod
    def of(cls, count: int) -> "Children":
        """Uninitialised arrays."""
        return cls(*np.empty((5, 2 * count), np.int64))


@inlined
def send_codes(node: Any, layout: Any, categories: Any, bundle: Any, right: NDArray[np.uint8]) -> None:
    """Sets whether each code goes right at a node: by thresholds, sets, bundles and missing values alike.

    layout: `bins.Positions`; right: (codes + 1,). categories: sets of the nodes, or None; bundle: the layout's.
    """
    for code in range(np.uint64(layout.codes + 1)):
        right[code] = np.int64(code) > node.bin
    if categories is not None:
        send_right(categories, node.category, layout.codes + 1, right)
    right[layout.missing_code[node.position]] = node.default_left == 0
    if bundle is not None:
        send_range(bundle, node.position, node.bin, node.default_left, right)


def _split_nodes(
    nodes: NDArray[Any],
    chosen: NDArray[np.int64],
    size: int,
    layout: Any,
    monotone: NDArray[np.int64],
    rules: NDArray[np.float64],
    categories: Any,
    bundle: Any,
    right: NDArray[np.uint8],
    segments: NDArray[np.int64],
) -> None:
    """`split_node` for the chosen nodes, whose children are numbered from `size` on, and `send_codes`.

    right: written, (nodes, codes + 1). segments: written, (3, nodes): where the nodes' rows begin and end, and the
    columns by which they are split.
    """
    for k in range(len(chosen)):
        split_node(nodes, chosen[k], size + 2 * k, layout.feature, monotone, rules)
        node = nodes[chosen[k]]
        send_codes(node, layout, categories, bundle, right[k])
        segments[0, k] = node.begin
        segments[1, k] = node.end
        column = node.position
        if bundle is not None:
            column = bundle[0][node.position]
        segments[2, k] = column


split_nodes, enter_split = inlined(_split_nodes), lean(_split_nodes)


def _seat_children(
    nodes: NDArray[Any],
    chosen: NDArray[np.int64],
    middle: NDArray[np.int64],
    slots: NDArray[np.int64],
    least: float,
    max_depth: int,
    by_hessian: bool,
    children: Any,
) -> tuple[int, int, int, int]:
    """Gives the children of split nodes their rows, and slots for histograms to those that may be split.

    Those may that have `least` of Hessian, and are above max_depth unless that is 0. A smaller child, by rows or by
    Hessian, takes one of `slots`; a larger one takes its parent's. middle: where the rows of right children begin.
    children: `Children`, written; returns how many are built, found, free and `only`.
    """
    built, found, free, only, used = 0, 0, 0, 0, 0
    for way in range(2):  # the smaller ones come first
        for k in range(len(chosen)):
            parent = nodes[chosen[k]]
            left = parent.left
            one, other = nodes[left], nodes[left + 1]
            one.begin, other.end = parent.begin, parent.end
            one.end = other.begin = middle[k]
            if by_hessian:
                second = other.hessian < one.hessian
            else:
                second = other.end - other.begin < one.end - one.begin
            small = left + np.int64(second)
            large = 2 * left + 1 - small
            above = max_depth == 0 or one.depth < max_depth
            able_small = above and nodes[small].hessian >= least
            able_large = above and nodes[large].hessian >= least
            if way == 0:
                if able_small or able_large:
                    nodes[small].slot = slots[used]
                    used += 1
                    children.built[built] = small
                    built += 1
                    if not able_small:
                        children.only[only] = small
                        only += 1
                if able_small:
                    children.found[found] = small
                    children.subtract[found] = -1
                    found += 1
            else:
                if able_large:
                    nodes[large].slot = parent.slot
                    children.found[found] = large
                    children.subtract[found] = nodes[small].slot
                    found += 1
                else:
                    children.free[free] = parent.slot
                    free += 1
                parent.slot = -1
    for k in range(used, len(slots)):
        children.free[free] = slots[k]
        free += 1
    return built, found, free, only


seat_children, enter_seat = inlined(_seat_children), lean(_seat_children)
