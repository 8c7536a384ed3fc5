"""Convolution to few output channels, whose blocks would leave most of a vector empty: the last of a decoder, a mask.

Of an input in channel blocks the vectors run along the input channels, and each sum is added up at its end; of a
row-major input they run along the columns of the output.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from burnish.kernels.cpu.common import (
    apply_layouts,
    inline_around,
    is_blocked,
    mark,
    packed_weight,
    parallel_over,
    single_output,
)
from burnish.kernels.match import Convolution, convolution
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

ADD_UP = 5.0  # cycles to add up the elements of a vector
GAIN = 0.7  # of the time of vectors of output channels: what is left must be less
MOST_UNROLLED = 27  # taps of a row of the window times channels and rows of a register tile


class Few(NamedTuple):
    """A convolution, and whether its input lies in channel blocks."""

    convolution: Convolution
    blocked: bool


def _form(task: KernelTask, target: Target) -> Few | None:
    """A dense convolution of one output, row-major, with fewer channels than half a vector has elements."""
    found = convolution(task, packed_weight(task))
    if found is None or found.even_groups != 1 or found.conv.dtype != "float32" or len(task.outputs) != 1:
        return None
    conv, weight, _ = found
    outputs, depth, *window = weight.shape
    few = 2 * outputs <= target.lanes and 2 * conv.shape[3] >= target.lanes and conv.shape == task.outputs[0].shape
    blocks = [layout for layout in task.layouts.values() if not layout.plain]
    if (
        not few
        or not all(is_blocked(layout, 1, target.lanes) for layout in blocks)
        or (blocks and depth % target.lanes)
    ):
        return None
    blocked, terms = bool(blocks), depth * prod(window)
    cycles = outputs * (terms / target.lanes / 2 + (ADD_UP if blocked else 0.0))
    return Few(found, blocked) if cycles < GAIN * terms / 2 else None


def _space(task: KernelTask, target: Target, found: Few) -> ScheduleSpace:
    conv = found.convolution.conv
    outputs, height, width = conv.shape[1:]
    kernel_rows = found.convolution.weight.shape[2]
    room = target.vector_registers - 2
    if found.blocked:
        tiles = tuple(range(1, min(width, max(room // outputs, 1), 8) + 1))
        # Each tap loads the vectors of all pixels, and the weights of all channels.
        best = max(tiles, key=lambda n: (n * outputs / (n + outputs) if n * outputs + n + 1 <= room else 0, n))
        return ScheduleSpace({"tile_ow": tiles}, {"tile_ow": best})
    most = max(room // outputs, 1)  # vectors of a register tile in each channel
    rows = tuple(n for n in range(1, min(height, 8) + 1) if n <= most)
    vectors = tuple(n for n in range(1, min(-(-width // target.lanes), 4) + 1) if n <= most)
    # Rows of a tile share what the window reads; without a window, long runs of memory are fetched ahead.
    across = vectors[-1] if kernel_rows == 1 else 1
    fitting = [n for n in rows if n * across <= most]
    best = max(fitting, key=lambda n: (-(-height // n) * n == height, n * outputs <= MOST_UNROLLED, n))
    return ScheduleSpace({"rows": rows, "vectors": vectors}, {"rows": best, "vectors": across})


def _apply(task: KernelTask, target: Target, found: Few, choice: Choice) -> Schedule:
    s = Schedule(task.program())
    acc = inline_around(s, task, ())
    weight = found.convolution.weight.name
    if found.blocked:
        apply_layouts(s, task, {weight: f"ABCD{target.lanes}b"})
        outer = _sum_along_channels(s, task, target, acc, int(choice["tile_ow"]))
    else:
        apply_layouts(s, task, {weight: "BCDA"})
        outer = _sum_along_columns(s, task, target, acc, choice)
    parallel_over(s, outer)
    return s


def _sum_along_channels(s: Schedule, task: KernelTask, target: Target, acc: str, tile: int) -> tuple[str, ...]:
    """``parallel(n, oh) -> ow tile -> ic block, kh, kw -> pixels, channels``: the sums of a row, then its output."""
    lanes = target.lanes
    s.set_scope(acc, "global")
    lane = s.split(s.loops(acc)[-3], lanes)[1]
    partial = s.rfactor(acc, lane, -1)
    image, oc, line, ow = s.loops(single_output(task))
    over, column = s.split(ow, min(lanes, s.extent(ow)))
    s.reorder(image, line, oc, over, column)
    s.vectorize(column)
    s.compute_at(acc, line)
    n, oc, oh, ow, lane = s.loops(acc)
    over, pixel = s.split(ow, tile)
    s.reorder(n, oh, over, pixel, oc, lane)
    mark(s, "unroll", pixel, oc)
    s.vectorize(lane)
    *_, i_ow = s.init_loops(acc)
    s.vectorize(s.split(i_ow, min(lanes, s.extent(i_ow)))[1])
    s.compute_at(partial, over)
    s.set_scope(partial, "register")
    n, oc, oh, pixel, *reduced = s.loops(partial)
    block, lane, kh, kw = reduced
    s.reorder(block, kh, kw, n, oh, pixel, oc, lane)
    mark(s, "unroll", pixel, oc)
    s.vectorize(lane)
    _, i_oc, _, i_ow, lane = s.init_loops(partial)
    mark(s, "unroll", i_oc, i_ow)
    s.vectorize(lane)
    return image, line


def _sum_along_columns(s: Schedule, task: KernelTask, target: Target, acc: str, choice: Choice) -> tuple[str, ...]:
    """``parallel(n, row tile) -> column tile -> ic, kh, kw -> channels, rows``: vectors of columns in registers."""
    vectors = int(choice["vectors"])
    columns = min(target.lanes * vectors, s.extent(s.loops(single_output(task))[3]))

    def tile(column: str, *outer: str) -> None:
        inner = [*outer, column]
        if columns > target.lanes:
            inner[-1:] = s.split(column, target.lanes)
        s.reorder(*inner)
        mark(s, "unroll", *inner[len(outer) - 2 : -1])
        s.vectorize(inner[-1])

    n, oc, oh, ow = s.loops(single_output(task))
    oh, row = s.split(oh, int(choice["rows"]))
    over, column = s.split(ow, columns)
    tile(column, n, oh, over, oc, row)
    s.compute_at(acc, over)
    s.set_scope(acc, "register")
    *_, oc, row, column, ic, kh, kw = s.loops(acc)
    s.unroll(kw)
    tile(column, ic, kh, kw, oc, row)
    *_, oc, row, column = s.init_loops(acc)
    tile(column, oc, row)
    return n, oh


FEW_OUTPUTS = Template("few_outputs", _form, _space, _apply, None)
