"""Packing of weights at a call: a weight, perhaps transformed for an algorithm, written in the layout its kernel reads.

The loops run in the physical order of the output, whose innermost block is a vector. Weights of Winograd and polyphase
algorithms are transformed on the way, all points of a window at once in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from burnish.kernels.cpu.common import apply_layouts, mark, parallel_over, single_output
from burnish.kernels.cpu.raw_weight import transposed_copy
from burnish.kernels.cpu.strides import strides
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Reduce
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

MOST_TERMS = 8  # of a sum in a transform, which is unrolled


@dataclass(frozen=True)
class Packing:
    """Packing of a map of one tensor, or of a ``transform`` of it, by sums of few terms."""

    transform: bool


def _packing(task: KernelTask, target: Target) -> Packing | None:
    """A map of one tensor, or sums of literals times it, into a layout with blocks."""
    if len(task.outputs) != 1 or len(task.inputs) != 1 or task.layouts.get(task.inputs[0].name):
        return None
    layout = task.layout(single_output(task))
    if layout.plain or str(layout) == f"ABCD{target.lanes}b":  # the latter is that of images
        return None
    last = layout.parts[-1]
    if not last.block or task.outputs[0].shape[last.dim] == 1:
        return None
    sums = [t.body for t in task.stages() if isinstance(t.body, Reduce)]
    if any(axis.extent > MOST_TERMS for reduced in sums for axis in reduced.axes):
        return None
    return Packing(bool(sums))


def _space(task: KernelTask, target: Target, form: Packing) -> ScheduleSpace:
    del task, target, form
    return ScheduleSpace({}, {})


def _schedule(task: KernelTask, target: Target, form: Packing, choice: Choice) -> Schedule:
    del choice
    s = Schedule(task.program())
    out = single_output(task)
    kept = [t.name for t in task.stages() if isinstance(t.body, Reduce) and t.name != out]
    s.compute_inline(*[t.name for t in task.stages() if t.name != out and t.name not in kept])
    if isinstance(task.outputs[0].body, Reduce):
        s.expand(out)
    for stage in kept:
        s.expand(stage)
    apply_layouts(s, task, {})
    physical = _split_blocks(s, task, out)
    if not form.transform:
        _schedule_map(s, task, physical, target.lanes)
        return s
    _schedule_transform(s, task, kept, physical, target.lanes)
    return s


def _split_blocks(s: Schedule, task: KernelTask, out: str) -> list[tuple[str, int, int]]:
    """(loop, dimension, extent of its block) for every part of the output's layout, in physical order."""
    layout, loops = task.layout(out), list(s.loops(out))
    found: dict[int, str] = {}  # number of the part -> its loop
    for d, rest in enumerate(loops):
        own = [number for number, part in enumerate(layout.parts) if part.dim == d]
        holder = next(n for n in own if not layout.parts[n].block)
        blocks = [n for n in own if layout.parts[n].block]
        for number in sorted(blocks, key=lambda n: -layout.parts[n].step):
            size = layout.parts[number].step * layout.parts[number].block
            if s.extent(rest) > size:
                found[holder], rest = s.split(rest, size)
            holder = number
        found[holder] = rest
    return [(found[n], part.dim, part.block) for n, part in enumerate(layout.parts) if n in found]


def _schedule_map(s: Schedule, task: KernelTask, physical: list[tuple[str, int, int]], lanes: int) -> None:
    """A vector of the innermost blocks; where rows of the source are whole ones, it comes out of a transposed copy."""
    loops = [loop for loop, _, _ in physical]
    s.reorder(*loops)
    lane, fused = loops.pop(), False
    while loops and s.extent(lane) < lanes and physical[len(loops) - 1][2]:
        lane, fused = s.fuse(loops.pop(), lane), True
    blocks = {dim for _, dim, block in physical if block}
    outer = [loop for loop, dim, block in physical if not block and dim in blocks and loop in loops]
    rest = [loop for loop in loops if loop not in outer]
    if s.extent(lane) > (2 if fused else 1) * lanes:
        over, lane = s.split(lane, lanes)
        rest.append(over)
    squares: list[str] = []
    if len(task.inputs[0].shape) == 2:  # of a transposed matrix, which are transposed in registers
        for loop in [v for v in rest if strides(s, single_output(task), v).loads == (1,) and s.extent(v) % lanes == 0]:
            run, step = s.split(loop, lanes)
            rest = [*(v for v in rest if v != loop), run]
            squares.append(step)
    parts = [loop for loop, dim, _ in physical if dim == 0 and loop in rest and s.extent(loop) == 2]
    rest = [loop for loop in rest if loop not in parts]
    s.reorder(*outer, *rest, *parts, *squares, lane)
    mark(s, "unroll", *parts, *squares)
    s.vectorize(lane)
    if outer and _has_whole_blocks(task, lanes):  # else the last block would be cut off
        copy = s.cache_read(task.inputs[0].name, "local", single_output(task))
        transposed_copy(s, copy, outer[-1], lanes)
    if outer or rest:
        parallel_over(s, outer or rest[:1])


def _depth_of(task: KernelTask) -> int:
    """The dimension of input channels in what a transform writes: [n, n, O, D], or [n, KH, C, stride, O]."""
    return 3 if len(task.outputs[0].shape) == 4 else 2


def _has_whole_blocks(task: KernelTask, lanes: int) -> bool:
    """Whether the source is a weight of whole vectors of outputs, and pairs of blocks of input channels."""
    shape = task.inputs[0].shape
    return len(shape) == 4 and shape[0] % lanes == 0 and shape[1] % (2 * lanes) == 0


def _schedule_transform(
    s: Schedule, task: KernelTask, kept: list[str], physical: list[tuple[str, int, int]], lanes: int
) -> None:
    """All points of a window for a vector of output channels; what precedes the last sum stays in registers.

    Where input channels come in whole blocks, those of one are transposed first, and cores share blocks and groups.
    """
    lane, over = physical[-1][0], []
    if s.extent(lane) > lanes:
        first, lane = s.split(lane, lanes)
        over = [first]
    points = [loop for loop, dim, block in physical if dim in (0, 1) and not block]
    outer = [loop for loop, dim, _ in physical[:-1] if dim not in (0, 1)]
    shared = outer[:1]
    depth, copy = _depth_of(task), ""
    if _has_whole_blocks(task, lanes) and (block := next((v for v, dim, _ in physical if dim == depth), None)):
        copy = s.cache_read(task.inputs[0].name, "local", kept[0] if kept else single_output(task))
        blocks, channel = s.split(block, lanes)
        outer[outer.index(block) : outer.index(block) + 1] = [blocks, channel]
        outer.sort(key=lambda v: v not in (*shared, blocks))
        shared = outer[:2]
    s.reorder(*outer, *over, *points, lane)
    mark(s, "unroll", *points)
    s.vectorize(lane)
    for stage in kept:
        s.compute_at(stage, (*outer, *over)[-1])
        s.set_scope(stage, "register")
        i, kw, o, d = s.loops(stage)
        s.reorder(d, i, kw, o)
        mark(s, "unroll", i, kw)
        s.vectorize(o)
    if copy:
        transposed_copy(s, copy, shared[-1], lanes)
    parallel_over(s, shared)


PACK = Template("pack", _packing, _space, _schedule)
