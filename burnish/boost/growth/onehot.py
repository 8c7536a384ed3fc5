"""One-hot columns: a split tells present from missing rows, so sums of the former suffice.

Such sums are histograms of one bin, and are made like those: from the rows of a node, each row's entries in turn, and
for the child of more rows by taking the other's off their parent's. A row's statistics are read once for all entries.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from burnish.base.jit import njit
from burnish.boost.binning import LAST_CUT
from burnish.boost.blocks import ColumnBlock
from burnish.boost.data import Dataset, Sparse
from burnish.boost.growth import scan
from burnish.boost.growth.scan import kernel
from burnish.boost.intrinsics import aligned, prefetch
from burnish.boost.kernels import region
from burnish.runtime.threads import Workers

_SHARE = 100_000  # entries, or sums to look at, for which a further thread is worth its start
_CELLS = 4  # sums to look at that cost as much as one entry of a scan of the columns
_MOST_SUMS = 1 << 24  # of all nodes: 256 MiB
_BLOCK = np.uint64(64)  # columns whose scores are computed in step
_AHEAD = np.uint64(16)  # rows between a prefetch and its use
_ONE = np.uint64(1)


class _Sums(NamedTuple):
    """Sums over present rows, by node and column."""

    pool: NDArray[np.float64]  # (slots, columns, 2)
    own: NDArray[np.int64]  # (nodes,): the slot
    minus: NDArray[np.int64]  # (nodes,): the slot to take off, or -1
    totals: NDArray[np.float64]  # (nodes, 2): over all rows
    features: NDArray[np.int64]  # (columns,)
    value: NDArray[np.float64]  # (columns,): the one that is present


class PresenceSums:
    """For nodes of a level, the sums of their rows that are present in each column of one value; keeps its buffers."""

    def __init__(self, dataset: Dataset, block: ColumnBlock, workers: Workers) -> None:
        self._workers = workers
        self.features, self.start, self.columns = _entries_by_row(dataset, block)
        features = self.features  # (columns,), their numbers in the table
        self._value = block.values[np.minimum(block.start[features], len(block.values) - 1)].astype(np.float64)
        self._order = np.empty(dataset.rows if len(features) else 0, np.int32)
        self._edges = np.array([0, *(end for _, end in workers.ranges(dataset.rows, 16384))])  # of ranges of rows
        self._pool = aligned((0, len(features), 2), np.float64)
        self.forget()

    def forget(self) -> None:
        """Makes ready for another tree."""
        self._free = list(range(len(self._pool)))
        self._slots: dict[int, int] = {}  # of the nodes of the last level

    def worthwhile(self, nodes: int) -> bool:
        """Whether sums for `nodes` nodes cost less than a scan of the columns, and little memory."""
        sums = nodes * len(self.features)
        return 0 < sums <= min(_CELLS * len(self.columns), _MOST_SUMS)

    def build(
        self, nodes: Sequence[tuple[int, int]], size: int, position: NDArray[np.int32], words: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sums for nodes, given as (number, parent's number), of one level of a tree whose siblings are neighbours.

        size: number of nodes of the tree. position: (rows,), the node of each row. words: of the records. Returns the
        slot of each node in the pool, and that of its sibling if the node's holds its parent's sums still, else -1.
        """
        counts = np.zeros((len(self._edges) - 1, size), np.int64)
        self._workers.each(_count, len(counts), position, self._edges, counts)
        rows = counts.sum(axis=0)
        slot_of, sibling, built = {}, {}, {}  # by node number; built: nodes whose own rows are summed up
        for number, parent in nodes:
            other = number + 1 if number % 2 else number - 1
            if parent not in self._slots or (rows[number], number) < (rows[other], other):
                built[number] = -1
            else:
                built[other] = -1
                slot_of[number], sibling[number] = self._slots[parent], other
        kept = set(slot_of.values())
        self._free.extend(slot for slot in self._slots.values() if slot not in kept)
        for number in built:
            built[number] = self._take()
        slot_of.update((number, built[number]) for number, _ in nodes if number in built)
        self._sum_up(dict(sorted(built.items())), counts, position, words)
        self._slots = slot_of
        self._free.extend(slot for number, slot in built.items() if number not in slot_of)
        own = np.array([slot_of[number] for number, _ in nodes])
        return own, np.array([built[sibling[number]] if number in sibling else -1 for number, _ in nodes])

    def search(
        self, own: NDArray[np.int64], minus: NDArray[np.int64], totals: NDArray[np.float64], rule: Any,
        bounds: NDArray[np.float64], monotone: NDArray[np.int64], allowed: NDArray[np.bool_],
    ) -> NDArray[np.float64]:  # fmt: skip
        """The best splits (nodes, 6) on these columns, as of `scan.scan_columns`; totals: (nodes, 2), sums."""
        best = scan.no_splits(len(own))
        sums = _Sums(self._pool, own, minus, totals, self.features, self._value)
        scores = np.empty((self._workers.threads, int(_BLOCK)))
        grain = max(1, _SHARE // len(self.features))
        self._workers.each(
            _search, len(own), sums, rule, bounds, monotone, allowed, best, scores, grain=grain
        )  # fmt: skip
        return best

    def _take(self) -> int:
        if not self._free:
            old = self._pool
            slots = max(4, 2 * len(old))
            self._pool = aligned((slots, *old.shape[1:]), np.float64)
            self._pool[: len(old)] = old
            self._free.extend(range(len(old), slots))
        return self._free.pop()

    def _sum_up(
        self, built: dict[int, int], counts: NDArray[np.int64], position: NDArray[np.int32], words: NDArray[np.int64]
    ) -> None:
        """Sums up the rows of nodes, from node number to slot."""
        numbers = np.array(list(built), np.int64)
        ends = np.cumsum(counts[:, numbers].sum(axis=0))
        begins = np.concatenate([[0], ends[:-1]])
        offset = np.full(counts.shape, -1)
        offset[:, numbers] = begins + np.cumsum(counts[:, numbers], axis=0) - counts[:, numbers]
        self._workers.each(_list_rows, len(offset), position, self._edges, offset, self._order)
        total = int(ends[-1])
        rows = list(zip(begins.tolist(), ends.tolist(), built.values(), strict=True))
        threads = max(1, min(self._workers.threads, total * len(self.columns) // len(position) // _SHARE))
        parts, partial = [], []
        for part in range(threads):
            low, high = total * part // threads, total * (part + 1) // threads
            pieces = []
            for first, last, slot in rows:
                begin, end = max(low, first), min(high, last)
                if begin < end or (first == last and part == 0):
                    if begin > first:  # another thread has the first of its rows
                        part_of, slot = slot, self._take()
                        partial.append((part_of, slot))
                    pieces.append((begin, end, slot))
            parts.append(np.array(pieces, np.int64).reshape(-1, 3))
        shares = np.cumsum([0, *map(len, parts)])
        common = (self._order, words, self.start, self.columns, self._pool)
        self._workers.each(_add_rows, threads, np.concatenate(parts), shares, *common)
        for slot, other in partial:
            self._pool[slot] += self._pool[other]
            self._free.append(other)


def _entries_by_row(
    dataset: Dataset, block: ColumnBlock
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """The columns of one value, where each row begins (rows + 1,) and the places of its entries among these columns.

    A sparse table that has no other columns is what this asks for already.
    """
    lengths = np.diff(block.start)
    if isinstance(dataset.table, Sparse) and block.constant.all():
        return np.arange(block.features), dataset.table.start, dataset.table.columns
    features = np.flatnonzero(block.constant & ~block.dense & (lengths > 0))
    start = np.zeros(dataset.rows + 1, np.int64)
    columns = np.empty(lengths[features].sum(), np.int32)
    if len(features):
        _transpose(block.start, block.rows, features, start, start[:-1].copy(), columns)
    return features, start, columns


@kernel
def _transpose(column_start, rows, features, start, place, columns):  # type: ignore[no-untyped-def]
    for f in features:
        for j in range(column_start[f], column_start[f + 1]):
            start[rows[j] + 1] += 1
    for row in range(len(place)):
        start[row + 1] += start[row]
        place[row] = start[row]
    for k in range(len(features)):
        for j in range(column_start[features[k]], column_start[features[k] + 1]):
            columns[place[rows[j]]] = k
            place[rows[j]] += 1


@region
def _count(position, edges, counts, begin, end, thread):  # type: ignore[no-untyped-def]
    """Counts in counts[part] the rows edges[part] … edges[part + 1] of each node."""
    for part in range(begin, end):
        for row in range(np.uint64(edges[part]), np.uint64(edges[part + 1])):
            counts[part, np.uint64(position[row])] += 1


@region
def _list_rows(position, edges, offsets, order, begin, end, thread):  # type: ignore[no-untyped-def]
    """Lists rows by node: offsets[part, node] is where the next one's place is; negative: they are not asked for."""
    for part in range(begin, end):
        offset = offsets[part]
        for row in range(np.uint64(edges[part]), np.uint64(edges[part + 1])):
            node = np.uint64(position[row])
            at = offset[node]
            if at >= 0:
                order[np.uint64(at)] = row
                offset[node] = at + 1


@region
def _add_rows(pieces, shares, order, words, start, columns, pool, begin, end, thread):  # type: ignore[no-untyped-def]
    """Sets slots of the pool to the sums over rows; pieces: (begin, end, slot), share s from shares[s] on."""
    for piece in range(shares[begin], shares[end]):
        sums = pool[pieces[piece, 2]]
        for k in range(np.uint64(len(sums))):
            sums[k, 0] = 0.0
            sums[k, 1] = 0.0
        last = np.uint64(max(pieces[piece, 1] - 1, 0))
        for i in range(np.uint64(pieces[piece, 0]), np.uint64(pieces[piece, 1])):
            ahead = np.uint64(order[min(i + _AHEAD, last)])
            scan.look_ahead(words, ahead)
            prefetch(columns, np.uint64(start[ahead]))
            row = np.uint64(order[i])
            _, g, h = scan.read(words, row)
            for j in range(np.uint64(start[row]), np.uint64(start[row + _ONE])):
                column = np.uint64(columns[j])
                sums[column, np.uint64(0)] += g
                sums[column, np.uint64(1)] += h


@region
def _search(  # type: ignore[no-untyped-def]
    given, rule, bounds, monotone, allowed, best, scratch, begin, end, thread
):
    """Best splits of nodes begin … end; takes the siblings' sums off first where the slots hold the parents'.

    given: `_Sums`; scratch: (threads, _BLOCK).
    """
    scores = scratch[thread]
    pool, own, minus, totals, features, value = given
    for i in range(begin, end):
        sums = pool[own[i]]
        if minus[i] >= 0:
            other = pool[minus[i]]
            for k in range(np.uint64(len(sums))):
                sums[k, 0] -= other[k, 0]
                sums[k, 1] -= other[k, 1]
        total_g, total_h = totals[i, 0], totals[i, 1]
        for first in range(np.uint64(0), np.uint64(len(sums)), _BLOCK):
            last = min(first + _BLOCK, np.uint64(len(sums)))
            if rule[scan.SIMPLE] and not (
                _greatest(sums, first, last, total_g, total_h, rule[scan.LAMBDA], rule[scan.LEAST], scores)
                > best[i, scan.SCORE]
            ):
                continue
            for k in range(first, last):
                f, g, h = features[k], sums[k, 0], sums[k, 1]
                if h < rule[scan.LEAST] or not allowed[f if len(allowed) > 1 else 0, i]:
                    continue
                # Which of the two goes left matters to monotone constraints only.
                _offer(best, i, f, total_g - g, total_h - h, g, h, value[k], 1.0, rule, bounds, monotone[f])
                if monotone[f] != 0 and value[k] < LAST_CUT:
                    _offer(best, i, f, g, h, total_g - g, total_h - h, LAST_CUT, 0.0, rule, bounds, monotone[f])


@njit(nogil=True, error_model="numpy", _nrt=False, forceinline=True, fastmath={"nnan", "nsz"})
def _greatest(sums, first, last, total_g, total_h, reg_lambda, least, scores):  # type: ignore[no-untyped-def]
    """The greatest score (eq. 2.6, in units) of some columns' splits."""
    for k in range(last - first):
        g, h = sums[first + k, 0], sums[first + k, 1]
        other_g, other_h = total_g - g, total_h - h
        a, b = h + reg_lambda, other_h + reg_lambda
        score = (g * g * b + other_g * other_g * a) / (a * b)
        scores[k] = score if (h >= least) & (other_h >= least) else -1.0
    greatest = -1.0
    for k in range(last - first):
        greatest = scores[k] if scores[k] > greatest else greatest
    return greatest


@scan.inlined
def _offer(best, i, feature, g, h, other_g, other_h, threshold, default_left, rule, bounds, monotone):  # type: ignore[no-untyped-def]
    """Keeps the split with g and h to the left, if it is the best of node i so far."""
    numerator, denominator = scan.fraction(g, h, other_g, other_h, rule, monotone, bounds[i, 0], bounds[i, 1])
    score = numerator / denominator
    if score > best[i, scan.SCORE]:
        best[i, scan.SCORE] = score
        best[i, scan.FEATURE] = feature
        best[i, scan.THRESHOLD] = threshold
        best[i, scan.DEFAULT_LEFT] = default_left
        best[i, scan.SPLIT_G] = g
        best[i, scan.SPLIT_H] = h
