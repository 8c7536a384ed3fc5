"""Weights that are packed within a kernel: the part that a loop reads is copied into a cache just before it does.

That suits weights which are known at a call only: they are read from memory once, and never written back to it.
"""

from __future__ import annotations

from math import prod

from burnish.kernels.task import KernelTask
from burnish.loops.tensor import Tensor
from burnish.machines.register_tile import unevenness
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule


def is_packed_within(task: KernelTask, target: Target, weight: Tensor, group: int, nbytes: int) -> bool:
    """Whether a weight [O, C, KH, KW] is packed by the loop over whole groups of ``group`` output channels.

    That loop alone is shared by the cores then, so there are groups for all of them; and what is packed at once,
    ``nbytes``, leaves room in the second cache.
    """
    outputs, *taps = weight.shape
    if weight.name not in task.packed - task.shared or outputs % group or not columns_of_run(prod(taps), target.lanes):
        return False
    return nbytes <= target.l2_bytes * 5 // 8 and unevenness(outputs // group, target.cores) == 1.0


def columns_of_run(run: int, lanes: int) -> int:
    """Columns of a block whose rows are runs of ``run`` elements: the most that divide it; 0 where these are few."""
    columns = max(n for n in range(1, lanes + 1) if run % n == 0)
    return columns if 4 * columns >= lanes else 0


def transposed_copy(s: Schedule, copy: str, at: str, lanes: int, tag: str = "") -> None:
    """A block of a weight [O, C, KH, KW] with vectors of outputs innermost, transposed from runs of its rows.

    ``at``: the loop that reads the block; ``tag``: its layout, by default vector by vector of outputs.
    """
    s.compute_at(copy, at)
    s.transform_layout(copy, tag or f"ACDB{lanes}a")
    o, c, kh, kw = s.loops(copy)
    run = s.fuse(s.fuse(c, kh), kw)
    over, lane = s.split(o, lanes) if s.extent(o) > lanes else (None, o)
    runs, column = s.split(run, columns_of_run(s.extent(run), lanes) or lanes)
    s.reorder(*([over] if over else []), runs, column, lane)
    s.unroll(column)
    s.vectorize(lane)
