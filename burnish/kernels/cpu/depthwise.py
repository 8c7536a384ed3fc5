"""Convolution in small groups: a vector of channels, a register tile of pixels; depthwise: weights in registers.

The structure of ``parallel(channel block, oh) -> ow tile -> kh -> kw`` with weights packed ``[block][kh][kw][16]``.
Where the whole window fits the register file next to the tile, its weights are loaded once an output row; else one row
of them at a time.
"""

from __future__ import annotations

from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    constant_weight,
    inline_around,
    is_blocked,
    mark,
    parallel_over,
    pixel_tile,
    single_output,
)
from burnish.kernels.task import Choice, Space, Task, Template
from burnish.loops.expr import Reduce
from burnish.schedule.schedule import Schedule
from burnish.target import Target


def _grouped(task: Task, target: Target) -> tuple[int, int] | None:
    """(input, output channels of a group) of a grouped float32 convolution between blocked images; None for others."""
    if task.op != "conv2d" or len(task.outputs) != 1 or len(task.outputs[0].shape) != 4:
        return None
    anchor, weight = task.anchor(), constant_weight(task)
    if anchor is None or weight is None or anchor.dtype != "float32" or anchor.shape != task.outputs[0].shape:
        return None
    data = next(t for t in anchor.inputs if t.name != weight.name)
    source = data.inputs[0] if data.body is not None and len(data.inputs) == 1 else data
    groups = data.shape[1] // weight.shape[1]
    fits = (
        groups > 1
        and sum(isinstance(t.body, Reduce) for t in task.stages()) == 1
        and is_blocked(task.layout(single_output(task)), 1, target.lanes)
        and source in task.inputs
        and is_blocked(task.layout(source.name), 1, target.lanes)
    )
    return (weight.shape[1], weight.shape[0] // groups) if fits else None


def _matches(task: Task, target: Target) -> bool:
    return _grouped(task, target) == (1, 1)


def _matches_groups(task: Task, target: Target) -> bool:
    sizes = _grouped(task, target)
    return sizes is not None and target.lanes % (4 * sizes[1]) == 0 and sizes[0] <= 4 * sizes[1]


def _window(task: Task) -> tuple[int, int]:
    weight = constant_weight(task)
    assert weight is not None
    return weight.shape[2], weight.shape[3]


def _space(task: Task, target: Target) -> Space:
    width = task.outputs[0].shape[3]
    kernel_h, kernel_w = _window(task)
    registers = target.vector_registers
    whole = kernel_h * kernel_w + 8 <= registers
    held = kernel_h * kernel_w if whole else kernel_w
    most = max(1, min(width, (registers - held) // 2 - 1 if whole else registers - held - 3))
    tile = min(range(1, most + 1), key=lambda t: (-(-width // t) * (t + 2), -t))
    knobs = {"tile_ow": tuple(range(1, min(width, registers - 2) + 1)), "weights": ("window", "row")}
    return Space(knobs, {"tile_ow": tile, "weights": "window" if whole else "row"})


def _apply(task: Task, target: Target, choice: Choice) -> Schedule:
    lanes = target.lanes
    weight = constant_weight(task)
    assert weight is not None
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


def _space_groups(task: Task, target: Target) -> Space:
    width = task.outputs[0].shape[3]
    most = min(width, target.vector_registers // 2 - 2)
    tile = min(range(1, most + 1), key=lambda t: (-(-width // t) * (t + 2), -t))
    return Space({"tile_ow": tuple(range(1, most + 1))}, {"tile_ow": tile})


def _apply_groups(task: Task, target: Target, choice: Choice) -> Schedule:
    """As the depthwise convolution, with the group's input channels unrolled: each a shuffle of the block's vector."""
    lanes, weight = target.lanes, constant_weight(task)
    assert weight is not None
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


GROUPED_CONV = Template("grouped_conv2d", _matches_groups, _space_groups, _apply_groups)
DEPTHWISE_CONV = Template("depthwise_conv2d", _matches, _space, _apply)
