"""Weights of leaves from the statistics of their rows, summed up more finely than to choose splits by."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost import fixed
from burnish.boost.intrinsics import add_pair
from burnish.boost.kernels import inlined, lean, region
from burnish.boost.params import Params
from burnish.boost.splitter import UNBOUNDED, child_bounds, leaf_weight
from burnish.boost.tree import Tree
from burnish.runtime.threads import GRAIN, Workers

_ONE = np.uint64(1)


class _Rules(NamedTuple):
    """Units of the sums, and what weights follow from besides them."""

    unit: float
    hessian_unit: float
    reg_lambda: float
    reg_alpha: float
    max_delta_step: float
    learning_rate: float
    monotone: NDArray[np.int64]  # (features,)


class LeafSums:
    """Computes the weights of a grown tree anew from all workers' rows; the same bits for any number of threads.

    Statistics are fixed-point numbers of int64. Of n rows whose largest magnitude is M, each is right to M 2^-b with
    b = 59 - ⌊log2 n⌋: a unit is as in `fixed.FixedPoint`, and fractions are cut off. So the sums of a leaf whose rows
    have magnitudes m in the mean are right to the share 2^-b M / m of the sums of magnitudes, whatever the distribution
    of these, and so is the weight (eq. 2.5), apart from its rounding to float32: of a million rows, to 1e-3 if m is
    2e-9 M or more.
    """

    def __init__(self, params: Params, rows: int, features: int, workers: Workers, comm: Any = None) -> None:
        self._params, self._workers, self._comm = params, workers, comm
        self.learning_rate = params.learning_rate  # that of a round may be set
        self._bits = fixed.pair_bits(fixed.reduced([(rows,)], "sum", comm)[0])
        self._monotone = np.zeros(features, np.int64)
        self._monotone[: len(params.monotone_constraints)] = params.monotone_constraints

    def refined(
        self, tree: Tree, leaf: NDArray[np.int32], gradient: NDArray[np.float32], hessian: NDArray[np.float32]
    ) -> Tree:
        """The tree with the values and covers that follow from statistics (rows,), given the leaf of every row."""
        *largest, _ = fixed.extremes(gradient, hessian, self._workers, self._comm)
        units = [fixed.unit_of(value, self._bits) for value in largest]
        sums = np.zeros((self._workers.threads, 2 * tree.size), np.int64)
        rows = gradient, hessian, 1 / units[0], 1 / units[1], leaf
        self._workers.each(_add_rows, len(leaf), *rows, sums, grain=GRAIN)
        total = sums.sum(axis=0)
        if self._comm is not None:
            total = np.asarray(self._comm.all_reduce(total, op="sum"))
        params = self._params
        rules = _Rules(
            units[0], units[1], float(params.reg_lambda), float(params.reg_alpha), float(params.max_delta_step),
            float(self.learning_rate), self._monotone,
        )  # fmt: skip
        value, cover = np.empty(tree.size, np.float32), np.empty(tree.size, np.float32)
        _weigh(tree.left, tree.right, tree.feature, total, rules, np.empty((2, tree.size)), value, cover)
        return replace(tree, value=value, cover=cover)


@region
def _add_rows(
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
    scale: float,
    hessian_scale: float,
    leaf: NDArray[np.int32],
    sums: NDArray[np.int64],
    begin: int,
    end: int,
    thread: int,
) -> None:
    """Adds the statistics of rows to sums[thread, 2 node] and sums[thread, 2 node + 1] of their leaves."""
    own = sums[thread]
    for i in range(np.uint64(begin), np.uint64(end)):
        g, h = np.int64(float(gradient[i]) * scale), np.int64(float(hessian[i]) * hessian_scale)
        add_pair(own, np.uint64(leaf[i]) << _ONE, g, h)


@inlined
def _weight(sums: NDArray[np.int64], node: np.uint64, rules: Any, lower: float, upper: float) -> float:
    """The weight (eq. 2.5) of a node's sums, within bounds."""
    at = node << _ONE
    return leaf_weight(
        sums[at] * rules.unit, sums[at + _ONE] * rules.hessian_unit, rules.reg_lambda, rules.reg_alpha,
        rules.max_delta_step, lower, upper,
    )  # fmt: skip


@lean
def _weigh(
    left: NDArray[np.int32],
    right: NDArray[np.int32],
    feature: NDArray[np.int32],
    sums: NDArray[np.int64],
    rules: Any,
    bounds: NDArray[np.float64],
    value: NDArray[np.float32],
    cover: NDArray[np.float32],
) -> None:
    """Weights of all nodes, from sums of the leaves; `bounds` (2, nodes) is scratch. Children come after parents."""
    size = np.uint64(len(left))
    for back in range(size):
        node: Any = size - _ONE - back
        if left[node] >= 0:
            one, other = np.uint64(left[node]) << _ONE, np.uint64(right[node]) << _ONE
            at = node << _ONE
            sums[at] = sums[one] + sums[other]
            sums[at + _ONE] = sums[one + _ONE] + sums[other + _ONE]
    lowest, highest = bounds[0], bounds[1]
    lowest[0], highest[0] = -UNBOUNDED, UNBOUNDED
    for node in range(size):
        lower, upper = lowest[node], highest[node]
        value[node] = _weight(sums, node, rules, lower, upper) * rules.learning_rate
        cover[node] = sums[(node << _ONE) + _ONE] * rules.hessian_unit
        if left[node] < 0:
            continue
        one, other = np.uint64(left[node]), np.uint64(right[node])
        lowest[one] = lowest[other] = lower
        highest[one] = highest[other] = upper
        direction = rules.monotone[feature[node]]
        if direction != 0:
            first, second = _weight(sums, one, rules, lower, upper), _weight(sums, other, rules, lower, upper)
            lowest[one], highest[one], lowest[other], highest[other] = child_bounds(
                direction, first, second, lower, upper
            )
