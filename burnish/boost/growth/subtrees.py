"""Grows whole subtrees in one kernel: no return to Python between nodes, and histograms that stay in the cache."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.growth.bins import GROUP
from burnish.boost.growth.evaluate import find_split
from burnish.boost.growth.nodes import NODE, split_nodes
from burnish.boost.growth.partition import split_segment
from burnish.boost.histogram import add_group
from burnish.boost.kernels import inlined, kernel


@inlined
def _record(node: Any, best: Any) -> None:
    node.gain = best.gain
    node.position = best.position
    node.bin = best.bin
    node.default_left = best.default_left
    node.left_gradient = best.gradient
    node.left_hessian = best.hessian


@kernel
def grow_subtrees(
    nodes: NDArray[Any],
    count: int,
    stop_depth: int,
    max_depth: int,
    gamma: float,
    free: NDArray[np.int64],
    unused: int,
    order: NDArray[np.uint32],
    spare: NDArray[np.uint32],
    statistics: NDArray[np.int64],
    bins: NDArray[np.uint8],
    columns: NDArray[np.uint8],
    width: NDArray[np.uint64],
    feature: NDArray[np.int64],
    first: NDArray[np.int64],
    scan: NDArray[np.int64],
    missing: NDArray[np.int64],
    missing_code: NDArray[np.int64],
    codes: int,
    pool: NDArray[np.int64],
    packed: NDArray[np.int64],
    masks: NDArray[np.bool_],
    monotone: NDArray[np.int64],
    plain: bool,
    unit: float,
    hessian_unit: float,
    reg_lambda: float,
    reg_alpha: float,
    max_delta_step: float,
    min_child_weight: float,
    best: NDArray[Any],
) -> tuple[int, int]:
    """Grows below ``nodes[:count]``, whose splits are found, down to nodes of `stop_depth`; depth first.

    Children are appended to `nodes`. A node that is left to be split keeps its slot. ``free[:unused]``: slots to use,
    as many as levels that grow and one, and room for more. ``masks[depth]`` (or [0]): the allowed features. Returns
    the numbers of nodes and of unused slots then.
    """
    stack = np.empty(len(nodes), np.int64)
    for i in range(count):  # numba compiles an assignment of arrays, with its error messages, for seconds
        stack[i] = i
    waiting = count
    chosen, right = np.empty(1, np.int64), np.empty(codes + 1, np.uint8)
    score, left = np.empty(len(missing), np.float32), np.empty((2, GROUP), np.int64)
    least = 2.0 * min_child_weight / hessian_unit
    least = least if least > 1.0 else 1.0
    whole = np.bool_(True)  # a literal would compile `split_segment` once more
    pair, subtract = np.empty(2, np.int64), np.empty(2, np.int64)
    while waiting:
        waiting -= 1
        here = stack[waiting]
        node = nodes[here]
        if node.depth >= stop_depth:
            continue
        chosen[0] = here
        split_nodes(nodes, chosen, count, feature, monotone, unit, hessian_unit, reg_lambda, reg_alpha, max_delta_step)
        for code in range(codes + 1):
            right[code] = code > node.bin
        right[missing_code[node.position]] = node.default_left == 0
        middle = node.begin + split_segment(
            order, order, spare, columns[node.position], right, node.begin, node.end, whole
        )
        nodes[count].begin, nodes[count].end = node.begin, middle
        nodes[count + 1].begin, nodes[count + 1].end = middle, node.end
        small = count + (node.end - middle < middle - node.begin)
        large = 2 * count + 1 - small
        able = node.depth + 1 < max_depth or max_depth == 0
        able_small, able_large = able and nodes[small].hessian >= least, able and nodes[large].hessian >= least
        slot, node.slot = node.slot, -1
        pair[0], pair[1], subtract[0], subtract[1] = -1, -1, -1, -1
        if able_small or able_large:
            unused -= 1
            built = free[unused]
            if nodes[small].end > nodes[small].begin:
                for g in range(len(scan)):
                    add_group(
                        order, nodes[small].begin, nodes[small].end, statistics, bins, len(order), g, width[g],
                        first[g + 1] - first[g], pool[built], first[g], packed,
                    )  # fmt: skip
            else:
                for i in range(pool.shape[2]):
                    pool[built, 0, i] = pool[built, 1, i] = 0
            if able_large:
                nodes[large].slot = slot
                pair[0], subtract[0] = large, built
            if able_small:
                nodes[small].slot = built
                pair[1] = small
            for k in range(2):
                if pair[k] < 0:
                    continue
                child = nodes[pair[k]]
                mask = masks[child.depth if len(masks) > 1 else 0]
                find_split(
                    pool, child, subtract[k], feature, first, scan, missing, mask, monotone, plain, unit, hessian_unit,
                    reg_lambda, reg_alpha, max_delta_step, min_child_weight, score, left, best[0],
                )  # fmt: skip
                _record(child, best[0])
                if child.gain > 0 and child.gain >= gamma:
                    stack[waiting] = pair[k]
                    waiting += 1
                else:
                    free[unused] = child.slot
                    unused += 1
                    child.slot = -1
            if not able_small:
                free[unused] = built
                unused += 1
        if not able_large:
            free[unused] = slot
            unused += 1
        count += 2
    return count, unused


@kernel
def _breadth_first(left: NDArray[np.int64], replaced: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Nodes in order of breadth from the root, each as what replaces it, and the new numbers of all."""
    order, number = np.empty(len(left), np.int64), np.empty(len(left), np.int64)
    order[0] = replaced[0]
    count, at = 1, 0
    while at < count:
        number[order[at]] = at
        child = left[order[at]]
        at += 1
        if child >= 0:
            for side in range(2):
                order[count] = replaced[child + side]
                number[child + side] = count
                count += 1
    return order[:count], number


def by_level(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """One array of nodes in order of depth, and in a level of their parents, from a tree and subtrees of its leaves.

    parts[0] is a tree whose field `slot` is, at some leaves, -2 - k: there the root's subtree of node k of all further
    parts, laid end to end, takes its place.
    """
    trunk = parts[0]
    offsets = np.cumsum([0] + [len(part) for part in parts])
    words = [part.view(np.int64).reshape(len(part), -1) for part in parts]  # NumPy is slow to join records
    nodes = np.concatenate(words).reshape(-1).view(NODE)
    for part, offset in zip(parts, offsets, strict=False):
        field = nodes["left"][offset : offset + len(part)]
        field[field >= 0] += offset
    stubs = np.flatnonzero(trunk["slot"] < -1)
    replaced = np.arange(len(nodes))
    replaced[stubs] = len(trunk) - 2 - trunk["slot"][stubs]
    order, number = _breadth_first(np.ascontiguousarray(nodes["left"]), replaced)
    result = nodes.view(np.int64).reshape(len(nodes), -1)[order].reshape(-1).view(NODE)
    inner = result["left"] >= 0
    result["left"][inner] = number[result["left"][inner]]
    return result


def capacity(starts: NDArray[Any], max_depth: int) -> int:
    """The number of nodes that subtrees of some nodes can have, with these."""
    rows = np.maximum(starts["end"] - starts["begin"], 1)
    most = 2 * rows - 1
    if max_depth:
        most = np.minimum(most, 2 ** np.minimum(max_depth - starts["depth"] + 1, 40) - 1)
    return int(most.sum()) + 2


def copies(nodes: NDArray[Any], size: int) -> NDArray[Any]:
    """An array of `size` nodes that begins with the given ones."""
    result = np.zeros(size, NODE)
    result[: len(nodes)] = nodes
    return result
