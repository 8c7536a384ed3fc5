"""The schedule that convolutions and matrix products share: tiles, copies to on-chip memories, tensorized sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from burnish.kernels.cpu.common import apply_layouts, single_output
from burnish.kernels.task import Choice, KernelTask
from burnish.kernels.vdla.form import VdlaSum
from burnish.kernels.vdla.tiling import AXES, VdlaTile, checked_tile
from burnish.loops.expr import Load
from burnish.loops.tensor import Tensor
from burnish.machines.intrinsics import TensorRule
from burnish.machines.target import Target
from burnish.machines.vdla.config import Config
from burnish.machines.vdla.intrinsics import core
from burnish.machines.vdla.scopes import ACC, INP, WGT
from burnish.schedule.schedule import Schedule


@dataclass(frozen=True)
class BufferRoles:
    """The buffers of a schedule: the output, the sums in accumulators, data and weight on chip, and of every operand
    beside these the accumulators that it is read into.
    """

    out: str
    sums: str
    data: str
    weight: str
    beside: Mapping[str, str]

    @staticmethod
    def of(
        s: Schedule, task: KernelTask, sums: Tensor, data: Load, weight: Load, beside: Iterable[Tensor]
    ) -> BufferRoles:
        """Inlines element-wise stages, and copies everything to the memory where the core finds it."""
        out, image = single_output(task), data.buffer.name
        s.inline_all(keep=(out, sums.name, image))
        if sums.name == out:
            total = s.cache_write(out, ACC)
        else:
            total = sums.name
            s.set_scope(total, ACC)
        given = any(t.name == image for t in task.inputs)
        near = s.cache_read(image, INP, total) if given else image
        if not given:
            s.set_scope(image, INP)
        read = {t.name: s.cache_read(t.name, ACC, out) for t in beside}
        return BufferRoles(out, total, near, s.cache_read(weight.buffer.name, WGT, total), read)


@dataclass(frozen=True)
class Dimensions:
    """Loops of the output that are channels and, by their axes, rows and columns. ``wide``: other operands that have
    all of them, ``narrow`` those of a number a channel, with the number of their channel's dimension. ``layouts``:
    of on-chip buffers; ``entries``: the dimensions of data and weight of which an entry is made.
    """

    channel: int
    spatial: Mapping[int, str]
    wide: Sequence[str]
    narrow: Mapping[str, int]
    layouts: Mapping[str, str]
    entries: tuple[Sequence[int], Sequence[int]]


def schedule_sum(
    task: KernelTask, target: Target, found: VdlaSum, choice: Choice, spatial: Mapping[int, str],
    narrow: Mapping[str, int], weights: str, images: str = "",
) -> Schedule:  # fmt: skip
    """The schedule of a choice. ``weights``: the layout of the weight, ``images``: of data, sums and wide operands.

    Raises ScheduleError for tiles that do not fit.
    """
    config: Config = target.machine.config
    tile = checked_tile(found.work, choice, config)
    s = Schedule(task.program(), target.machine.intrinsics, target.machine.scopes)
    roles = BufferRoles.of(s, task, found.sums, found.data, found.weight, (*found.channels, *found.images))
    apply_layouts(s, task, {found.weight.buffer.name: weights})
    blocks = [roles.data, roles.sums, *(roles.beside[t.name] for t in found.images)]
    layouts = {roles.weight: weights, **(dict.fromkeys(blocks, images) if images else {})}
    dims = Dimensions(1, spatial, [t.name for t in found.images], narrow, layouts, ((1,), (0, 1)))
    schedule_tiles(s, roles, dims, tile, config.block, core(config))
    return s


def schedule_tiles(
    s: Schedule, roles: BufferRoles, dims: Dimensions, tile: VdlaTile, block: int, rule: TensorRule
) -> None:
    """Tiles of the output, one after the other on each virtual thread; sums of a tile step by step over the depth."""
    outer: dict[str, str] = {}
    inner: list[str] = []
    batch: list[str] = []
    lane = ""
    for position, loop in enumerate(s.loops(roles.out)):
        if position == dims.channel:
            blocks, lane = s.split(loop, block)
            outer["channels"], own = s.split(blocks, tile.channels)
            inner.insert(0, own)
        elif position in dims.spatial:
            axis = dims.spatial[position]
            outer[axis], own = s.split(loop, getattr(tile, axis))
            inner.append(own)
        else:
            batch.append(loop)
    thread = []
    if tile.threads > 1:
        first, outer[tile.axis] = s.split(outer[tile.axis], parts=tile.threads)
        thread = [first]
    tiles = [outer[axis] for axis in AXES if axis in outer]
    s.reorder(*thread, *batch, *tiles, *inner, lane)
    s.compute_at(roles.sums, tiles[-1])
    for name in dims.wide:
        s.compute_at(roles.beside[name], tiles[-1])
        entry_lanes(s, roles.beside[name], (dims.channel,), block)
    for name, position in dims.narrow.items():
        if thread:
            s.compute_at(roles.beside[name], thread[0])
        entry_lanes(s, roles.beside[name], (position,), block)
    nests = _sum_tile(s, roles, dims, tile, block)
    if thread:
        s.vthread(thread[0])
    for loop in nests:
        s.tensorize(loop, rule)


def _sum_tile(s: Schedule, roles: BufferRoles, dims: Dimensions, tile: VdlaTile, block: int) -> tuple[str, str]:
    """The sums of a tile, and what is loaded for a step over the depth; the loops of the core's instructions: over the
    accumulators that are set to zero, and those that are added to.
    """
    first = s.init_loops(roles.sums)
    blocks, zeros = s.split(first[dims.channel], block)
    s.reorder(*(x for i, x in enumerate(first) if i < dims.channel), blocks, *first[dims.channel + 1 :], zeros)
    own = s.loops(roles.sums)
    free, (depth, *taps) = own[: len(first)], own[len(first) :]
    blocks, lane = s.split(free[dims.channel], block)
    deep, element = s.split(depth, block)
    step, deep = s.split(deep, tile.depth)
    batch = [x for i, x in enumerate(free) if i != dims.channel and i not in dims.spatial]
    positions = [free[i] for i in dims.spatial]
    s.reorder(*batch, step, blocks, deep, *taps, *positions, lane, element)
    s.compute_at(roles.weight, step)
    s.compute_at(roles.data, step)
    for buffer, split in zip((roles.data, roles.weight), dims.entries, strict=True):
        entry_lanes(s, buffer, split, block)
    for buffer, tag in dims.layouts.items():
        s.transform_layout(buffer, tag)
    return zeros, lane


def entry_lanes(s: Schedule, buffer: str, positions: Sequence[int], block: int) -> None:
    """Loops over whole entries in the copy to a buffer."""
    loops = s.loops(buffer)
    for position in positions:
        s.split(loops[position], block)
