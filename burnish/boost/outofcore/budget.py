"""Memory budget of training on a store, planned to the buffer before anything is allocated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from burnish.boost.outofcore.accumulate import Accumulator
from burnish.boost.outofcore.layout import QUAD, ColumnLayout
from burnish.boost.outofcore.prefetch import BlockReader, ColumnSelection
from burnish.boost.outofcore.store import ColumnStore
from burnish.boost.params import Params
from burnish.errors import ParameterError

DEPTH = 2  # blocks of a folder's ring: one is used while the next is read
OVERHEAD = 4 << 20  # nodes, split candidates, trees, and what Python makes along the way
MOST_SLOTS = 1 << 12


@dataclass(frozen=True)
class BufferPlan:
    """Buffers of training, in bytes, and what was chosen to fill the budget."""

    rows: int  # state of the rows: margins, gradients, Hessians, labels, weights, nodes
    ring: int  # blocks that are read ahead
    work: int  # sorted rows of the block at hand, compressed pieces, the store's index
    slot: int  # one histogram, with that of counts where rows are counted
    slots: int  # histograms at a time: with fewer than a level has nodes, the level takes several passes
    resident: int  # blocks that stay in memory, from the first
    resident_bytes: int
    budget: int | None  # None: no limit

    @property
    def total(self) -> int:
        """Bytes of all buffers."""
        return self.rows + self.ring + self.work + self.slot * self.slots + self.resident_bytes + OVERHEAD


def plan(
    store: ColumnStore, layout: ColumnLayout, bins: int, params: Params, row_bytes: int, budget: int | None
) -> BufferPlan:
    """Shares a budget out: what must be, then histograms for a whole level, then blocks that need not be read again.

    bins: of one histogram. row_bytes: state of one row. Raises ParameterError, which states the smallest budget that
    is possible, if `budget` is less.
    """
    reader, everything = BlockReader(store, layout), ColumnSelection.of(layout, None)
    blocks = [reader.buffer_bytes(number, everything) for number in range(reader.blocks)]
    rows = row_bytes * reader.rows
    ring = len(store.folders) * DEPTH * max(blocks)
    # A thread holds a piece as it is stored, as it comes from the decompressor, and as it was.
    pieces = (len(store.folders) + 1) * 3 * int(store.pieces["raw"].max(initial=0))
    work = pieces + store.pieces.nbytes + Accumulator.row_bytes() * min(reader.block_rows, reader.rows)
    dense = -(-layout.dense // QUAD) * QUAD
    widest = int(np.diff(store.arrays["cut_start"]).max(initial=0)) + 1
    planes = 32 if params.min_data_in_leaf > 1 else 16  # bytes of a bin: a histogram of counts beside that of sums
    slot = planes * bins + 8 * dense * widest
    least = rows + ring + work + slot + OVERHEAD
    if budget is not None and budget < least:
        raise ParameterError(
            f"memory_budget: found {budget} bytes; the least that is possible with these {reader.rows} rows is {least} "
            f"({rows} for the rows, {ring} for blocks, {work + slot + OVERHEAD} for histograms and buffers)"
        )
    slots = whole_level(params, reader.rows)
    left = None if budget is None else budget - least
    if left is not None:
        slots = min(slots, 1 + left // max(slot, 1))
        left -= (slots - 1) * slot
    resident = fitting(blocks, left)
    return BufferPlan(rows, ring, work, slot, slots, resident, sum(blocks[:resident]), budget)


def state_of_row(params: Params, row_widths: Mapping[str, int]) -> int:
    """Bytes that training keeps for each row, in memory all along.

    Margin, gradient and Hessian of every output, node, what the store has for rows; and what the objective adds.
    """
    outputs = max(params.num_class, row_widths.get("label", 1))
    name = params.objective if isinstance(params.objective, str) else "custom"
    extra = {"softmax": 4, "quantile": 40, "custom": 20 * outputs}.get(name, 24 if name.startswith("rank") else 0)
    extra += 4 if params.scale_pos_weight != 1.0 else 0
    extra += 4 if params.min_data_in_leaf > 1 else 0  # whether it is sampled
    return 12 * outputs + 4 + 4 * sum(row_widths.values()) + extra


def whole_level(params: Params, rows: int) -> int:
    """The most histograms that depth-wise growth can use at a time: one for each node of the last level with any."""
    limits = [MOST_SLOTS, rows]
    if params.max_depth:
        limits.append(1 << min(params.max_depth - 1, 30))
    if params.max_leaves:
        limits.append(params.max_leaves)
    return max(1, min(limits))


def fitting(blocks: Sequence[int], left: int | None) -> int:
    """Number of first blocks that fit into what is left; none without a limit, as the system caches files anyway."""
    if left is None:
        return 0
    return int(np.searchsorted(np.cumsum(blocks), left, side="right"))
