"""Resolution of statistics: whether a tree's were too coarse for a group of rows in it, few units of most gradients."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.fixed import reduced
from burnish.boost.kernels import lean, region
from burnish.boost.params import Params
from burnish.boost.tree import Tree
from burnish.runtime.threads import GRAIN, Workers

_FINE = 256  # units of a gradient that is rounded to 1/512 of itself or better
_TWO, _ONE = np.uint64(2), np.uint64(1)


def too_coarse(
    tree: Tree, leaf: NDArray[np.int32], gradient: NDArray[np.float32], unit: float, params: Params, workers: Workers,
    comm: Any = None,
) -> bool:  # fmt: skip
    """Whether most gradients (other than 0) of a node that is split, or could be, have fewer than 256 units.

    In every other node, a sum of gradients that chose a split is right to 1/512 of the magnitudes of most of its rows.
    leaf: (rows,), the node of each row of this worker; the answer is that of all workers' rows.
    """
    bits = gradient.view(np.int32), np.int32(np.float32(_FINE * unit).view(np.int32))
    small = np.zeros((workers.threads, 1), np.int64)
    workers.each(_small, len(leaf), *bits, small, grain=GRAIN)
    if not reduced(small.tolist(), "sum", comm)[0]:
        return False  # as most often; counting by leaf takes ten times as long
    counts = np.zeros((workers.threads, 2 * tree.size), np.int64)
    limit = np.float32(_FINE * unit)
    workers.each(_count, len(leaf), leaf, gradient, limit, counts, grain=GRAIN)
    total = counts.sum(axis=0)
    if comm is not None:
        total = np.asarray(comm.all_reduce(total, op="sum"))
    return bool(
        _any_coarse(
            tree.left, tree.right, tree.cover, total, params.max_depth, 2 * float(params.min_child_weight),
            np.zeros(tree.size, np.int64),
        )
    )  # fmt: skip


@region
def _small(
    gradient: NDArray[np.int32], limit: np.int32, counts: NDArray[np.int64], begin: int, end: int, thread: int
) -> None:
    """Counts the gradients, given as bits, that are neither zero nor as large as the limit, in counts[thread]."""
    count, one, none = np.int32(0), np.int32(1), np.int32(0)
    for i in range(np.uint64(begin), np.uint64(end)):
        size = np.int32(gradient[i] & np.int32(0x7FFFFFFF))
        count = np.int32(count + one) if (size < limit) & (size != none) else count
    counts[thread, 0] += np.int64(count)


@region
def _count(
    leaf: NDArray[np.int32],
    gradient: NDArray[np.float32],
    limit: np.float32,
    counts: NDArray[np.int64],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Counts the gradients of each leaf that are not zero, and those of them below the limit, in counts[thread]."""
    own = counts[thread]
    for i in range(np.uint64(begin), np.uint64(end)):
        at = np.uint64(leaf[i]) * _TWO
        some = gradient[i] != 0
        own[at] += some
        own[at + _ONE] += some & (abs(gradient[i]) < limit)


@lean
def _any_coarse(
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    cover: NDArray[np.float32],
    counts: NDArray[np.int64],
    max_depth: int,
    least: float,
    depth: NDArray[np.int64],
) -> bool:
    """Adds leaves' counts up to those of inner nodes, and looks for one most of which is coarse; depth: zeros."""
    for node in range(len(left)):
        if left[node] >= 0:
            depth[left[node]] = depth[right[node]] = depth[node] + 1
    for node in range(len(left) - 1, -1, -1):
        inner = left[node] >= 0
        if inner:
            for k in range(2):
                counts[2 * node + k] = counts[2 * left[node] + k] + counts[2 * right[node] + k]
        could = cover[node] >= least and (max_depth == 0 or depth[node] < max_depth)
        if (inner or could) and counts[2 * node] > 1 and 2 * counts[2 * node + 1] > counts[2 * node]:
            return True
    return False
