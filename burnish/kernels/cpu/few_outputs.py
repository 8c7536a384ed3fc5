"""Convolution of channel blocks to few output channels, which would leave most of a vector empty: a decoder's last.

The vectors run along the input channels, and each sum is added up at its end.
"""

from __future__ import annotations

from math import prod

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


def _form(task: KernelTask, target: Target) -> Convolution | None:
    """A dense convolution of channel blocks to one row-major output of fewer channels than half a vector."""
    found = convolution(task, packed_weight(task))
    if found is None or found.even_groups != 1 or found.conv.dtype != "float32" or len(task.outputs) != 1:
        return None
    conv, weight, _ = found
    outputs, depth, *window = weight.shape
    few = 2 * outputs <= target.lanes and 2 * conv.shape[3] >= target.lanes and conv.shape == task.outputs[0].shape
    blocks = [layout for layout in task.layouts.values() if not layout.plain]
    if not few or not blocks or depth % target.lanes:
        return None
    terms = depth * prod(window)
    cheaper = outputs * (terms / target.lanes / 2 + ADD_UP) < GAIN * terms / 2
    return found if cheaper and all(is_blocked(layout, 1, target.lanes) for layout in blocks) else None


def _space(task: KernelTask, target: Target, found: Convolution) -> ScheduleSpace:
    del task
    outputs, _, width = found.conv.shape[1:]
    room = target.vector_registers - 2
    tiles = tuple(range(1, min(width, max(room // outputs, 1), 8) + 1))
    # Each tap loads the vectors of all pixels, and the weights of all channels.
    best = max(tiles, key=lambda n: (n * outputs / (n + outputs) if n * outputs + n + 1 <= room else 0, n))
    return ScheduleSpace({"tile_ow": tiles}, {"tile_ow": best})


def _apply(task: KernelTask, target: Target, found: Convolution, choice: Choice) -> Schedule:
    s = Schedule(task.program())
    acc = inline_around(s, task, ())
    apply_layouts(s, task, {found.weight.name: f"ABCD{target.lanes}b"})
    parallel_over(s, _sum_along_channels(s, task, target, acc, int(choice["tile_ow"])))
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


FEW_OUTPUTS = Template("few_outputs", _form, _space, _apply, None)
