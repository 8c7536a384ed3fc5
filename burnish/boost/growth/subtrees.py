"""Grows whole subtrees in one kernel: no return to Python between nodes, and histograms that stay in the cache."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.boost.growth.bins import GROUP, lanes_of
from burnish.boost.growth.categorical_split import Categories, improve_by_category
from burnish.boost.growth.evaluate import LANES, find_split, take_off
from burnish.boost.growth.level import send_codes
from burnish.boost.growth.nodes import GAMMA, HESSIAN_UNIT, MIN_CHILD_WEIGHT, NODE, split_node
from burnish.boost.growth.partition import split_entries, split_segment
from burnish.boost.histogram import add_group, add_sparse
from burnish.boost.kernels import inlined, lean, loop

_WORDS = NODE.itemsize // 8
_LEFT, _SLOT = NODE.names.index("left"), NODE.names.index("slot")  # type: ignore[union-attr]
_HALVINGS = 66  # of a number of rows: so many larger children wait for their siblings at most, and two more


class NodeRows(NamedTuple):
    """Row order of nodes, scratch of its length, and an offset of the node numbers that mark rows of a sparse table."""

    order: NDArray[np.uint32]
    spare: NDArray[np.uint32]
    number: int


class Dense(NamedTuple):
    """Flat arrays of `DenseBins`."""

    bins: NDArray[Any]
    columns: NDArray[Any]
    width: NDArray[np.uint64]


class HistogramSlots(NamedTuple):
    """A flat pool of histograms, where one is added up, and ``free[:unused]``, the slots to use."""

    pool: NDArray[np.int64]
    packed: NDArray[np.int64]
    free: NDArray[np.int64]  # with room for as many more as are taken
    unused: int


class GrowthScratch(NamedTuple):
    """Scratch arrays of `grow_subtrees`, with a row for each thread; of a thread, its rows."""

    score: NDArray[np.float32]  # of `find_split`
    left: NDArray[np.int64]  # the same
    right: NDArray[np.uint8]  # (threads, codes + 1): whether a code goes right
    stack: NDArray[np.int64]  # (threads, starts + `_HALVINGS`)

    @property
    def starts(self) -> int:
        """Nodes that a share may start with."""
        return self.stack.shape[1] - _HALVINGS

    @classmethod
    def of(cls, threads: int, positions: int, codes: int, starts: int) -> "GrowthScratch":
        """Allocates scratch for numbers of features (`positions`), codes and nodes to start from."""
        lanes = -(-positions // GROUP) * GROUP
        floats, sums = np.empty((threads, lanes), np.float32), np.empty((threads, LANES), np.int64)
        stack = np.empty((threads, starts + _HALVINGS), np.int64)
        return cls(floats, sums, np.empty((threads, codes + 1), np.uint8), stack)


@inlined
def grow_subtrees(
    nodes: NDArray[Any],
    count: int,
    depths: tuple[int, int],
    slots: Any,
    given: Any,
    statistics: NDArray[np.int64],
    dense: Any,
    entries: Any,
    layout: Any,
    limits: Any,
    categories: Any,
    scratch: Any,
    bundle: Any,
) -> tuple[int, int]:
    """Grows below ``nodes[:count]``, which have histograms, down to nodes of depths[0]; depth first.

    Children are appended to `nodes`. Where a node's `subtract` is a slot, its histogram is its parent's still, and that
    slot's is taken off first. Its best split is found if it has none yet; one that does not gain enough loses its slot,
    and one of depths[0] that does keeps it. No node of depths[1], unless that is 0, is split. slots: `HistogramSlots`,
    as many as levels that grow and one; given: `NodeRows`; layout: `bins.Positions`; limits: `nodes.Limits`, with a
    mask of each depth or one; scratch: `GrowthScratch`. Either `dense` is `Dense`, or, of a sparse table, `entries` the
    arrays that `split_entries` takes; the other is None. categories: `Categories` with sets of the nodes, if there are
    any, else None; the limits' masks allow none of these features then. bundle is the layout's. Returns the numbers of
    nodes and of unused slots then.
    """
    stop_depth, max_depth = depths
    pool, packed, free, unused = slots
    order, spare, number = given
    feature, first, scan, narrow = layout.feature, layout.first, layout.scan, layout.narrow
    masks, rules = limits.masks, limits.rules
    score, left, right, stack = scratch
    starts, plane, rows = count, np.uint64(first[len(scan)]), np.int64(len(order))
    # stack[:waiting] are nodes with a histogram that are yet to be searched or split; children come after parents in
    # `nodes`. A slot is in `free` or belongs to exactly one node of the stack or at stop_depth.
    for i in range(count):
        stack[i] = i
        if nodes[i].subtract >= 0:
            take_off(pool, nodes[i].slot, nodes[i].subtract, plane + plane)
            nodes[i].subtract = -1
    waiting = count
    # In units: a node of less has no split, so it never gets a histogram.
    least = 2.0 * rules[MIN_CHILD_WEIGHT] / rules[HESSIAN_UNIT]
    least = least if least > 1.0 else 1.0
    whole = np.bool_(True)  # a literal would compile `split_segment` once more
    while waiting:
        waiting -= 1
        here = stack[waiting]
        node = nodes[here]
        if node.gain < 0:
            mask = node.depth if len(masks) > 1 else 0
            find_split(pool, node, layout, limits, mask, score, left, bundle, None, None, 0)
            if categories is not None:
                improve_by_category(
                    pool, node, here, mask, feature, first, categories, rules, narrow, None
                )  # fmt: skip
            if node.gain <= 0 or node.gain < rules[GAMMA]:
                free[unused] = node.slot
                unused += 1
                node.slot = -1
                continue
        if node.depth >= stop_depth:
            continue
        split_node(nodes, here, count, feature, limits.monotone, rules)
        send_codes(node, layout, categories, bundle, right)
        column = node.position
        if bundle is not None:
            column = bundle[0][node.position]
        begin, end = np.uint64(node.begin), np.uint64(node.end)
        middle = node.begin
        if dense is not None:  # what lies below such a test is not compiled if it fails
            middle += split_segment(
                order, order, spare, dense.columns, np.uint64(column * rows), right, begin, end, whole
            )
        if entries is not None:
            middle += split_entries(
                order, spare, entries, feature[node.position], right, begin, end, np.int32(number + here),
                np.int32(number + count), here < starts,
            )  # fmt: skip
        one, other = nodes[count], nodes[count + 1]
        one.begin = node.begin
        one.end = other.begin = middle
        other.end = node.end
        # A histogram takes time by its rows: the smaller child's is built, and the larger one's is the parent's less
        # that, in the parent's slot. Where only the larger one can be split, the smaller one's is built just for this.
        small = count + (node.end - middle < middle - node.begin)
        large = 2 * count + 1 - small
        able = node.depth + 1 < max_depth or max_depth == 0
        able_small, able_large = able and nodes[small].hessian >= least, able and nodes[large].hessian >= least
        slot, node.slot = node.slot, -1
        if able_small or able_large:
            unused -= 1
            built = free[unused]
            begin, end = np.uint64(nodes[small].begin), np.uint64(nodes[small].end)
            at = np.uint64(built * 2) * plane
            if begin < end:
                if dense is not None:
                    for g in range(len(scan)):
                        lanes, bin_count = dense.width[g], np.uint64(first[g + 1] - first[g])
                        bins_begin, out_begin = np.uint64(g * rows) * lanes_of(narrow), at + np.uint64(first[g])
                        add_group(
                            order, begin, end, statistics, dense.bins, bins_begin, lanes, bin_count, pool, out_begin,
                            plane, packed, narrow,
                        )  # fmt: skip
                if entries is not None:
                    add_sparse(order, begin, end, statistics, entries[0], entries[1], pool, at, packed)
            else:
                for i in range(plane + plane):
                    pool[at + i] = 0
            if able_large:
                take_off(pool, slot, built, plane + plane)
                nodes[large].slot = slot
                stack[waiting] = large
                waiting += 1
            if able_small:  # on top: so the slots in use are as many as halvings of the rows
                nodes[small].slot = built
                stack[waiting] = small
                waiting += 1
            else:
                free[unused] = built
                unused += 1
        if not able_large:
            free[unused] = slot
            unused += 1
        count += 2
    return count, unused


class NodeShares(NamedTuple):
    """Nodes from which subtrees grow, dealt to shares: share s is nodes[at[s] :]."""

    nodes: NDArray[Any]  # those that shares start with, each with room for its subtrees behind
    at: NDArray[np.int64]  # (shares + 1,)
    starts: NDArray[np.int64]  # (shares,): nodes that it starts with
    sizes: NDArray[np.int64]  # (shares,): written, the nodes then

    @classmethod
    def of(cls, nodes: NDArray[Any], at: NDArray[np.int64], starts: NDArray[np.int64]) -> "NodeShares":
        """NodeShares of which none is begun."""
        return cls(nodes, at, starts, np.empty_like(starts))


@inlined
def _share_of(categories: Any, thread: int, first: int, last: int) -> Any:
    """The sets of some nodes' categories, with a thread's own scratch; None of none."""
    if categories is None:
        return None
    positions, counts, masks, sets, words, key, order = categories
    return Categories(positions, counts, masks, sets[first * words : last * words], words, key[thread], order[thread])


@loop
def grow_shares(
    shares: Any,
    depths: tuple[int, int],
    pool: NDArray[np.int64],
    packed: NDArray[np.int64],
    free: NDArray[np.int64],
    unused: NDArray[np.int64],
    given: Any,
    statistics: NDArray[np.int64],
    dense: Any,
    entries: Any,
    layout: Any,
    limits: Any,
    categories: Any,
    scratch: Any,
    bundle: Any,
    begin: int,
    end: int,
    thread: int,
) -> None:
    """`grow_subtrees` below the nodes of shares begin … end of `NodeShares`.

    packed, free and unused have a row of each thread's; the numbers of rows of a share are from given.number + at on.
    """
    own = GrowthScratch(scratch.score[thread], scratch.left[thread], scratch.right[thread], scratch.stack[thread])
    for share in range(begin, end):
        first, last = shares.at[share], shares.at[share + 1]
        size, left = grow_subtrees(
            shares.nodes[first:last], shares.starts[share], depths,
            HistogramSlots(pool, packed[thread], free[thread], unused[thread]),
            NodeRows(given.order, given.spare, given.number + first), statistics, dense, entries, layout, limits,
            _share_of(categories, thread, first, last), own, bundle,
        )  # fmt: skip
        shares.sizes[share] = size
        unused[thread] = left


@lean
def _breadth_first(
    words: NDArray[np.int64], trunk: int, base: NDArray[np.int64], order: NDArray[np.int64], out: NDArray[np.int64]
) -> int:
    """Writes nodes, one after the other from the root, as `by_level` says; returns how many."""
    order[0] = 0
    # order[at:count] is the queue; a node's place in it is its number in `out`, known as soon as it is queued.
    count, at = 1, 0
    while at < count:
        source = order[at]
        slot = words[source * _WORDS + _SLOT]
        if source < trunk and slot < -1:
            source = trunk - 2 - slot
        for word in range(_WORDS):
            out[at * _WORDS + word] = words[source * _WORDS + word]
        child = words[source * _WORDS + _LEFT]
        if child >= 0:
            out[at * _WORDS + _LEFT] = count
            order[count] = base[source] + child
            order[count + 1] = base[source] + child + 1
            count += 2
        at += 1
    return count


def by_level(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """One array of nodes in order of depth, and in a level of their parents, from a tree and subtrees of its leaves.

    parts[0] is a tree whose field `slot` is, at some leaves, -2 - k: there the root's subtree of node k of all further
    parts, laid end to end, takes its place.
    """
    sizes = [len(part) for part in parts]
    words = np.concatenate([part.view(np.int64) for part in parts])  # NumPy is slow to join records
    base = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    out = np.empty_like(words)
    count = _breadth_first(words, sizes[0], base, np.empty(len(base), np.int64), out)
    return out.view(NODE)[:count]


def capacities(starts: NDArray[Any], max_depth: int) -> NDArray[np.int64]:
    """The number of nodes that the subtree of each of some nodes can have, with it and two more."""
    most = 2 * np.maximum(starts["end"] - starts["begin"], 1) - 1
    if max_depth:
        levels = np.minimum(max_depth - starts["depth"] + 1, 60)
        most = np.minimum(most, (np.int64(1) << levels) - 1)
    return np.asarray(most + 2, np.int64)
