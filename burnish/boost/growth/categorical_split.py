"""Splits by category: one against the rest, or a partition of the categories sorted by gradient over Hessian."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from burnish.boost.growth.bins import GROUP, Layout
from burnish.boost.params import Params
from burnish.boost.splitter import split_gain
from burnish.jit import njit

_FOUND = "gain", "position", "bin", "default_left", "left_gradient", "left_hessian"


@njit(cache=True, nogil=True)
def _search(
    histogram: NDArray[np.int64],
    one_hot: bool,
    total: tuple[int, int],
    units: tuple[float, float],
    regular: tuple[float, float, float],
    min_child_weight: float,
    bounds: tuple[float, float],
    side: NDArray[np.uint8],
) -> tuple[float, int, int, int]:
    """Best split of one feature's categories: its gain, whether missing goes left, and the left child's sums.

    `side` is set to 1 for the categories that go right: for none of them if what goes right is the missing values
    alone. Categories that no row of the node has go left.
    Sorted by G / (H + λ), the best partition in two is one by threshold (Fisher 1958).
    """
    count = histogram.shape[1]
    weight = np.empty(count, np.float64)
    present = np.int64(0)
    gradient, hessian = np.int64(0), np.int64(0)
    for c in range(count):
        g, h = histogram[0, c], histogram[1, c]
        gradient += g
        hessian += h
        weight[c] = np.inf
        if g != 0 or h != 0:
            present += 1
            weight[c] = g * units[0] / (max(h * units[1], 0.0) + regular[0] + 1e-16)
    order = np.argsort(weight, kind="mergesort")
    missing, missing_hessian = total[0] - gradient, total[1] - hessian
    best, best_at, best_left = -np.inf, -1, 0
    sums = (np.int64(0), np.int64(0))
    for way in range(2 if missing != 0 or missing_hessian != 0 else 1):
        g, h = np.int64(0), np.int64(0)
        for k in range(present):
            c = order[k]
            g = histogram[0, c] if one_hot else g + histogram[0, c]
            h = histogram[1, c] if one_hot else h + histogram[1, c]
            # One-hot: the category goes right. Sorted: the first k + 1 go left.
            left = (total[0] - g - missing, total[1] - h - missing_hessian) if one_hot else (g, h)
            if way == 1:
                left = (left[0] + missing, left[1] + missing_hessian)
            gain = split_gain(
                left[0] * units[0], left[1] * units[1], (total[0] - left[0]) * units[0],
                (total[1] - left[1]) * units[1], *regular, min_child_weight, 0, *bounds,
            )  # fmt: skip
            if gain > best and not (k == present - 1 and not one_hot and way == 1):
                best, best_at, best_left, sums = gain, k, way, left
    side[:] = 0
    if best_at >= 0:
        if one_hot:
            side[order[best_at]] = 1
        else:
            for k in range(best_at + 1, present):
                side[order[k]] = 1
    return best, best_left, sums[0], sums[1]  # type: ignore[return-value]


class CategoricalSplits:
    """Finds splits by category, and remembers for the nodes of a tree which categories go right."""

    def __init__(self, layout: Layout, categorical: NDArray[np.bool_], params: Params) -> None:
        self._layout = layout
        self._positions = np.flatnonzero(categorical[layout.feature])
        self._params = params
        self._right: dict[int, NDArray[np.uint8]] = {}

    def reset(self) -> None:
        """Forgets the nodes of the last tree."""
        self._right.clear()

    def improve(
        self,
        ids: NDArray[np.int64],
        nodes: NDArray[Any],
        pool: NDArray[np.int64],
        allowed: NDArray[np.bool_],
        units: tuple[float, float],
        regular: tuple[float, float, float],
    ) -> None:
        """Replaces the best split of nodes, in place, where one by category gains more."""
        layout, params = self._layout, self._params
        for i, node in enumerate(ids.tolist()):
            total = int(nodes["gradient"][i]), int(nodes["hessian"][i])
            bounds = float(nodes["lower"][i]), float(nodes["upper"][i])
            histogram = pool[nodes["slot"][i]]
            for p in self._positions.tolist():
                if not allowed[i if len(allowed) > 1 else 0, layout.feature[p]]:
                    continue
                begin, count = int(layout.first[p // GROUP]) + p % GROUP, int(layout.count[p])
                own = np.ascontiguousarray(histogram[:, begin : begin + GROUP * count : GROUP])
                side = np.empty(count, np.uint8)
                gain, default_left, *sums = _search(
                    own, count < params.max_cat_to_onehot, total, units, regular,
                    float(params.min_child_weight), bounds, side,
                )  # fmt: skip
                if gain > nodes["gain"][i]:
                    for field, value in zip(_FOUND, (gain, p, 0, default_left, *sums), strict=True):
                        nodes[field][i] = value
                    self._right[node] = side

    def route(self, chosen: NDArray[np.int64], right: NDArray[np.uint8]) -> None:
        """Sets the rows of ``right[i, category]`` that belong to nodes split by category."""
        for i, node in enumerate(chosen.tolist()):
            if node in self._right:
                right[i, : len(self._right[node])] = self._right[node]

    def listed(self, inner: NDArray[np.int64]) -> dict[int, NDArray[np.int32]]:
        """The categories that go right at the inner nodes that split by category; none if only missing values do."""
        return {
            node: np.flatnonzero(self._right[node]).astype(np.int32) for node in inner.tolist() if node in self._right
        }
