"""Direct convolution: a register tile of output pixels times channel vectors, accumulated over the whole window.

The structure of ``parallel(oc group, oh) -> ow tile -> ic block -> kh -> kw -> ic`` with weights packed
``[ocg][icb][kh][kw][ic][oc]``; the padding stage is inlined, its conditions vanish where lowering partitions the tile loop.
"""

from __future__ import annotations

from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    inline_around,
    is_blocked,
    mark,
    parallel_over,
    register_tile,
    single_output,
)
from burnish.kernels.task import Choice, Space, Task, Template
from burnish.loops.expr import Reduce
from burnish.schedule.schedule import Schedule
from burnish.target import Target


def _matches(task: Task, target: Target) -> bool:
    if task.op != "conv2d" or len(task.outputs) != 1 or len(task.outputs[0].shape) != 4:
        return False
    anchor = task.anchor()
    reductions = [t for t in task.stages() if isinstance(t.body, Reduce)]
    weight = _weight(task)
    return (
        anchor is not None
        and len(reductions) == 1
        and anchor.shape == task.outputs[0].shape
        and weight is not None
        and anchor.dtype == "float32"
        and is_blocked(task.layout(single_output(task)), 1, target.lanes)
    )


def _weight(task: Task) -> str | None:
    """The constant input of the convolution."""
    anchor = task.anchor()
    names = [t.name for t in anchor.inputs if t.name in task.constants] if anchor else []
    return names[0] if len(names) == 1 else None


def _shapes(task: Task) -> tuple[tuple[int, ...], tuple[int, ...]]:
    weight = next(t for t in task.inputs if t.name == _weight(task))
    return task.outputs[0].shape, weight.shape


def _space(task: Task, target: Target) -> Space:
    (_, channels, _, width), (_, depth, _, _) = _shapes(task)
    positions, vectors = register_tile(target, width, -(-channels // target.lanes))
    knobs = {
        "tile_ow": tuple(range(1, min(width, target.vector_registers - 2) + 1)),
        "vectors": (1, 2, 3, 4),
        "outer": ("oc", "oh"),
    }
    return Space(knobs, {"tile_ow": positions, "vectors": vectors, "outer": "oc"})


def _apply(task: Task, target: Target, choice: Choice) -> Schedule:
    lanes = target.lanes
    tile, vectors = int(choice["tile_ow"]), int(choice["vectors"])
    group = vectors * lanes
    _, (_, depth, _, _) = _shapes(task)
    depth_block = lanes if depth % lanes == 0 else depth if depth < 2 * lanes else lanes
    weight = _weight(task)
    assert weight is not None
    s = Schedule(task.program())
    out = single_output(task)
    acc = inline_around(s, task, ())
    constants = channel_constants(task, group)
    apply_layouts(s, task, {**constants, weight: f"ABCD{depth_block}b{group}a"})

    n, oc, oh, ow = s.loops(out)
    s.pad(oc, group)
    oc_group, oc = s.split(oc, group)
    oc_block, lane = s.split(oc, lanes)
    ow_tile, ow = s.split(ow, tile)
    s.reorder(n, oc_group, oh, ow_tile, ow, oc_block, lane)
    s.compute_at(acc, ow_tile)
    s.set_scope(acc, "register")
    mark(s, "unroll", ow, oc_block)
    s.vectorize(lane)

    _, a_oc, a_oh, a_ow, ic, kh, kw = s.loops(acc)
    a_block, a_lane = s.split(a_oc, lanes)
    ic_block, ic = s.split(ic, depth_block)
    s.reorder(a_oh, ic_block, kh, kw, ic, a_ow, a_block, a_lane)
    mark(s, "unroll", a_ow, a_block)
    s.vectorize(a_lane)
    _, i_oc, i_oh, i_ow = s.init_loops(acc)
    i_block, i_lane = s.split(i_oc, lanes)
    s.reorder(i_oh, i_ow, i_block, i_lane)
    mark(s, "unroll", i_ow, i_block)
    s.vectorize(i_lane)

    outer = (oc_group, oh) if choice["outer"] == "oc" else (oh, oc_group)
    s.reorder(n, *outer)
    parallel_over(s, (n, *outer))
    return s


DIRECT_CONV = Template("direct_conv2d", _matches, _space, _apply)
