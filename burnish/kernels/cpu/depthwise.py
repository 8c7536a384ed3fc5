"""Convolution in small groups: a vector of channels, a register tile of pixels; depthwise: weights in registers.

The structure of ``parallel(channel block, oh) -> ow tile -> kh -> kw`` with weights packed ``[block][kh][kw][16]``.
Where the whole window fits the register file next to the tile, its weights are loaded once an output row; else one row
of them at a time.
"""

from __future__ import annotations

from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    inline_around,
    is_blocked,
    mark,
    packed_weight,
    parallel_over,
    pixel_tile,
    single_output,
)
from burnish.kernels.match import Convolution, convolution
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule


def _grouped(task: KernelTask, target: Target) -> Convolution | None:
    """A convolution in equal groups between images in channel blocks."""
    found = convolution(task, packed_weight(task))
    if found is None or found.conv.shape != task.outputs[0].shape or found.even_groups <= 1:
        return None
    data = next(t for t in found.conv.inputs if t.name == found.data.buffer.name)
    source = data.inputs[0] if data.body is not None and len(data.inputs) == 1 else data
    fits = (
        is_blocked(task.layout(single_output(task)), 1, target.lanes)
        and source in task.inputs
        and is_blocked(task.layout(source.name), 1, target.lanes)
    )
    return found if fits else None


def _sizes(found: Convolution) -> tuple[int, int]:
    """Input and output channels of a group."""
    return found.weight.shape[1], found.weight.shape[0] // found.even_groups


def _depthwise(task: KernelTask, target: Target) -> Convolution | None:
    found = _grouped(task, target)
    return found if found is not None and _sizes(found) == (1, 1) else None


def _small_groups(task: KernelTask, target: Target) -> Convolution | None:
    found = _grouped(task, target)
    if found is None:
        return None
    inputs, outputs = _sizes(found)
    return found if target.lanes % (4 * outputs) == 0 and inputs <= 4 * outputs else None


def _space(task: KernelTask, target: Target, found: Convolution) -> ScheduleSpace:
    width = task.outputs[0].shape[3]
    kernel_h, kernel_w = found.weight.shape[2:]
    registers = target.vector_registers
    whole = kernel_h * kernel_w + 8 <= registers
    held = kernel_h * kernel_w if whole else kernel_w
    most = max(1, min(width, (registers - held) // 2 - 1 if whole else registers - held - 3))
    tile = min(range(1, most + 1), key=lambda t: (-(-width // t) * (t + 2), -t))
    knobs = {"tile_ow": tuple(range(1, min(width, registers - 2) + 1)), "weights": ("window", "row")}
    return ScheduleSpace(knobs, {"tile_ow": tile, "weights": "window" if whole else "row"})


def _apply(task: KernelTask, target: Target, found: Convolution, choice: Choice) -> Schedule:
    lanes, weight = target.lanes, found.weight
    s = Schedule(task.program())
    out = single_output(task)
    acc = inline_around(s, task, ())
    held = s.cache_read(weight.name, "register", acc)
    apply_layouts(s, task, {**channel_constants(task, lanes), weight.name: f"ABCD{lanes}a"})
    n, block, oh = pixel_tile(s, out, acc, lanes, int(choice["tile_ow"]))
    _, a_c, a_oh, a_ow, _, kh, kw = s.loops(acc)
    s.reorder(a_oh, kh, kw, a_ow, a_c)
    s.compute_at(held, oh if choice["weights"] == "window" else kh)
    mark(s, "unroll", *((kh, kw, a_ow) if choice["weights"] == "window" else (kw, a_ow)))
    s.vectorize(a_c)
    w_c, w_depth, w_kh, w_kw = s.loops(held)
    s.reorder(w_depth, w_kh, w_kw, w_c)
    mark(s, "unroll", w_kh, w_kw)
    s.vectorize(w_c)
    parallel_over(s, (n, block, oh))
    return s


def _space_groups(task: KernelTask, target: Target, found: Convolution) -> ScheduleSpace:
    del found
    width = task.outputs[0].shape[3]
    most = min(width, target.vector_registers // 2 - 2)
    tile = min(range(1, most + 1), key=lambda t: (-(-width // t) * (t + 2), -t))
    return ScheduleSpace({"tile_ow": tuple(range(1, most + 1))}, {"tile_ow": tile})


def _apply_groups(task: KernelTask, target: Target, found: Convolution, choice: Choice) -> Schedule:
    """As the depthwise convolution, with the group's input channels unrolled: each a shuffle of the block's vector."""
    lanes, weight = target.lanes, found.weight
    s = Schedule(task.program())
    out = single_output(task)
    acc = inline_around(s, task, ())
    apply_layouts(s, task, {**channel_constants(task, lanes), weight.name: f"ACDB{lanes}a"})
    n, block, oh = pixel_tile(s, out, acc, lanes, int(choice["tile_ow"]))
    _, a_c, a_oh, a_ow, ic, kh, kw = s.loops(acc)
    s.reorder(a_oh, kh, kw, a_ow, ic, a_c)
    mark(s, "unroll", a_ow, ic)
    s.vectorize(a_c)
    parallel_over(s, (n, block, oh))
    return s


GROUPED_CONV = Template("grouped_conv2d", _small_groups, _space_groups, _apply_groups, nests=None)
DEPTHWISE_CONV = Template("depthwise_conv2d", _depthwise, _space, _apply, nests=None)
