"""Breadth-first growth of a tree's first levels in one compiled call, and of the subtrees below, each by one thread."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.base.regions import run_ranges
from burnish.boost.growth.level import Children, seat_children, split_nodes
from burnish.boost.growth.nodes import HESSIAN_UNIT, MIN_CHILD_WEIGHT
from burnish.boost.growth.row_partition import RowPieces, split_dense, split_sparse
from burnish.boost.growth.subtrees import grow_shares
from burnish.boost.histogram import Dealt, build_histograms
from burnish.boost.kernels import wide


class LevelScratch(NamedTuple):
    """Scratch arrays of `grow_levels` for levels of up to `width` nodes, kept from tree to tree."""

    chosen: NDArray[np.int64]  # (width,): nodes that are split
    middle: NDArray[np.int64]  # (width,): where the rows of their right children begin
    left: NDArray[np.int32]  # (width,): their left children
    segments: NDArray[np.int64]  # (3, width)
    right: NDArray[np.uint8]  # (width, codes + 1)
    children: Any  # `Children`
    pieces: Any  # `RowPieces`
    dealt: Any  # `Dealt`
    routes: Any  # `Routes`, or None for a dense table

    @classmethod
    def of(cls, width: int, codes: int, groups: int, threads: int, routes: Any) -> LevelScratch:
        """Uninitialised arrays."""
        return cls(
            np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width, np.int32),
            np.empty((3, width), np.int64), np.empty((width, codes + 1), np.uint8), Children.of(width),
            RowPieces.of(width, threads), Dealt.of(width, groups, threads), routes,
        )  # fmt: skip


class GrownRows(NamedTuple):
    """Rows of nodes and the table that they are of, as `grow_shares` takes it."""

    rows: Any  # `RowArrays`
    given: Any  # `NodeRows`
    statistics: NDArray[np.int64]
    histograms: Any  # `HistogramArrays`
    dense: Any
    entries: Any


@wide
def grow_levels(
    native: tuple[int, int],
    threads: int,
    ripe: int,
    grain: int,
    built: NDArray[np.int64],
    parts: int,
    shares: Any,
    depths: tuple[int, int],
    free: NDArray[np.int64],
    unused: NDArray[np.int64],
    slots: tuple[NDArray[np.int64], NDArray[np.int64]],
    table: Any,
    dense: Any,
    columns: Any,
    entries: Any,
    routed: Any,
    layout: Any,
    limits: Any,
    categories: Any,
    scratch: Any,
    bundle: Any,
    given: Any,
) -> int:
    """`grow_shares` for some shares, once the histograms of nodes `built` are; then level by level, unless ripe is 0.

    Then shares[0] is a root alone, and depths[0] -1, so that shares are searched for splits and no more: the nodes that
    gain enough are split, and their children are the next shares, numbered as they come, until there are `ripe` nodes
    to split or more, none, or no room. Returns the number of nodes. slots: ``slots[0][: slots[1][0]]`` are free; given:
    `LevelScratch`; dense, entries: what `build_histograms` takes; columns, routed: what `split_dense` or `split_sparse`
    takes, or None; the rest is what `grow_shares` takes.
    """
    nodes, at, starts, _ = shares
    chosen, middle, left, segments, right, children, pieces, dealt, routes = given
    rules, pool, packed = limits.rules, table.histograms.pool, table.histograms.packed
    listed, available = slots
    least = max(2.0 * rules[MIN_CHILD_WEIGHT] / rules[HESSIAN_UNIT], 1.0)
    size, fresh = 1, True
    while True:
        if len(built):
            source = table.rows.identity if fresh else table.rows.order
            build_histograms(
                native, threads, nodes, built, source, table.statistics, dense, entries, table.histograms,
                layout.narrow, dealt,
            )  # fmt: skip
        run_ranges(
            native, parts, grain, grow_shares,
            (shares, depths, pool, packed, free, unused, table.given, table.statistics, table.dense, table.entries,
             layout, limits, categories, scratch, bundle),
        )  # fmt: skip
        if ripe == 0:
            return size
        for thread in range(threads):
            for k in range(unused[thread]):
                listed[available[0]] = free[thread, k]
                available[0] += 1
            unused[thread] = 0
        count = 0
        for share in range(parts):
            node = nodes[at[share]]
            if node.slot >= 0 and starts[share] == 0:  # its histogram was built for its sibling alone
                listed[available[0]] = node.slot
                available[0] += 1
                node.slot = -1
            elif node.slot >= 0:
                if node.category >= 0:
                    node.category = at[share]
                if count < len(chosen):
                    chosen[count] = at[share]
                count += 1
        if count == 0 or count >= ripe or size + 2 * count > len(nodes) or available[0] < count:
            return size
        own = chosen[:count]
        split_nodes(nodes, own, size, layout, limits.monotone, rules, categories, bundle, right, segments)
        begin, end, position = segments[0, :count], segments[1, :count], segments[2, :count]
        for k in range(count):
            left[k] = size + 2 * k
        if columns is not None:
            split_dense(
                native, threads, fresh, table.rows, columns, begin, end, position, right, pieces, middle[:count]
            )  # fmt: skip
        if routed is not None:
            split_sparse(
                native, threads, fresh, table.rows, routed, routes, begin, end, position, right, own, left[:count],
                pieces, middle[:count],
            )  # fmt: skip
        fresh = False
        available[0] -= count
        taken = listed[available[0] : available[0] + count]
        more, found, gone, _ = seat_children(nodes, own, middle, taken, least, depths[1], False, children)
        for k in range(gone):
            listed[available[0]] = children.free[k]
            available[0] += 1
        parts = 2 * count
        for k in range(parts):
            at[k] = size + k
            starts[k] = 0
        at[parts] = size + parts
        for k in range(found):
            nodes[children.found[k]].subtract = children.subtract[k]
            starts[children.found[k] - size] = 1
        size += parts
        built = children.built[:more]
