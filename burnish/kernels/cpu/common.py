"""Steps that several CPU templates share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress

from burnish.errors import ScheduleError
from burnish.kernels.nest import Arrangement, Size
from burnish.kernels.task import KernelTask
from burnish.loops.expr import Reduce
from burnish.loops.layout import Layout, layout
from burnish.loops.tensor import Tensor
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule


def single_output(task: KernelTask) -> str:
    """The name of the task's only output."""
    if len(task.outputs) != 1:
        raise ScheduleError(f"task '{task.name}' has {len(task.outputs)} outputs; this template schedules one")
    return task.outputs[0].name


def inline_around(s: Schedule, task: KernelTask, keep: Sequence[str]) -> str:
    """Inlines every element-wise stage but the output into its readers; returns the accumulator stage of the anchor.

    What remains: the stages in ``keep``, the anchor, and the nest of the first output, that holds the whole epilogue,
    with those of others.
    """
    out, anchor = task.outputs[0].name, task.anchor()
    if anchor is None:
        raise ScheduleError(f"task '{task.name}' has no contraction")
    kept = {anchor.name, *keep, *(t.name for t in task.outputs)}
    s.compute_inline(*[t.name for t in task.stages() if t.name not in kept and not isinstance(t.body, Reduce)])
    return anchor.name if anchor.name != out else s.cache_write(out, "register")


def packed_weight(task: KernelTask) -> Tensor | None:
    """The one factor of the anchor that is packed, as a constant or at each call, None if there is no such input."""
    anchor = task.anchor()
    found = [t for t in anchor.inputs if t.name in task.packing] if anchor else []
    return found[0] if len(found) == 1 else None


def apply_layouts(s: Schedule, task: KernelTask, constants: dict[str, str]) -> None:
    """Lays the parameters out: activations as the task says, constants as the template chose (name -> tag)."""
    for tensor in (*task.inputs, *task.outputs):
        own: Layout | str | None = constants.get(tensor.name) or task.layouts.get(tensor.name)
        if own is not None and not (isinstance(own, Layout) and own.plain):
            s.transform_layout(tensor.name, own)


def channel_constants(task: KernelTask, block: int) -> dict[str, str]:
    """Layouts padding per-channel operands ([C] or [C, 1, 1], ...) to whole blocks, so that they load as vectors."""
    tags = {}
    for tensor in task.inputs:
        wide = [d for d, extent in enumerate(tensor.shape) if extent > 1]
        if tensor.name in task.packing and len(wide) == 1 and tensor.shape[wide[0]] % block:
            letters = [chr(ord("A") + d) for d in range(len(tensor.shape))]
            tags[tensor.name] = "".join(letters) + f"{block}{letters[wide[0]].lower()}"
    return tags


def is_blocked(own: Layout, dim: int, block: int) -> bool:
    """Whether a layout keeps ``block`` consecutive elements of ``dim`` innermost."""
    last = own.parts[-1] if own.parts else None  # a scalar has none
    return last is not None and last.dim == dim and last.block == block and last.step == 1


def pad_channels(s: Schedule, loops: Sequence[str], block: int, vectors: int = 1) -> None:
    """Extends channel loops to whole blocks of ``vectors``: that of the output first, then those of the accumulator.

    Where that would read outside of an input, a loop keeps its extent, and its last block a mask. Raises ScheduleError
    for an output whose vectors are no whole blocks.
    """
    output, *accumulator = loops
    whole = -(-s.extent(output) // (block // vectors)) % vectors == 0
    with suppress(ScheduleError) if whole else nullcontext():
        s.pad(output, block)
    for loop in accumulator:
        with suppress(ScheduleError):
            s.pad(loop, block)


def pixel_tile(s: Schedule, out: str, acc: str, lanes: int, tile: int) -> tuple[str, str, str]:
    """The nest of an image in channel blocks: ``n, channel block, oh, ow tile`` around ``tile`` pixels of one vector.

    ``acc`` is computed in registers for each tile, its identity stored by unrolled vectors; how it accumulates is left
    to the caller. Returns the loops ``n``, channel block and ``oh``, which are not parallel yet.
    """
    n, c, oh, ow = s.loops(out)
    pad_channels(s, (c, s.loops(acc)[1], s.init_loops(acc)[1]), lanes)
    block, lane = s.split(c, lanes)
    over, ow = s.split(ow, tile)
    s.reorder(n, block, oh, over, ow, lane)
    register_tile_at(s, acc, over, lane, ow)
    _, i_c, i_oh, i_ow = s.init_loops(acc)
    s.reorder(i_oh, i_ow, i_c)
    s.unroll(i_ow)
    s.vectorize(i_c)
    return n, block, oh


def channel_blocks(shape: tuple[Size, ...], lanes: int) -> Arrangement:
    """Channels, the second dimension, in blocks of one vector."""
    return Arrangement.of(layout(f"ABCD{lanes}b"), shape)


def mark(s: Schedule, kind: str, *loops: str) -> None:
    """Applies ``unroll`` or ``vectorize`` to several loops."""
    for loop in loops:
        getattr(s, kind)(loop)


def register_tile_at(s: Schedule, acc: str, over: str, lane: str, *unrolled: str) -> None:
    """Register tile: computes ``acc`` in registers at loop ``over``, whose own tile is ``unrolled`` around ``lane``."""
    s.compute_at(acc, over)
    s.set_scope(acc, "register")
    mark(s, "unroll", *unrolled)
    s.vectorize(lane)


def parallel_over(s: Schedule, loops: Sequence[str]) -> str:
    """Fuses perfectly nested ``loops``, outermost first, and runs the result in parallel.

    Loops of one iteration before the first longer one and behind the last stay as they are: fusing takes its time.
    """
    longer = [number for number, loop in enumerate(loops) if s.extent(loop) > 1] or [0]
    fused, *rest = loops[longer[0] : longer[-1] + 1]
    for loop in rest:
        fused = s.fuse(fused, loop)
    s.parallel(fused)
    return fused


def narrowed(task: KernelTask, target: Target, channels: int) -> Target:
    """The target with vectors that the channels fill better, for a task between row-major images.

    Blocks of channels are whole vectors.
    """
    return target.filled(channels) if all(layout.plain for layout in task.layouts.values()) else target


def whole_groups(blocks: int) -> tuple[int, ...]:
    """Numbers of channel blocks that a register tile may take: those that divide those there are."""
    return tuple(vectors for vectors in (1, 2, 3, 4) if blocks % vectors == 0)


def copy_blocks(s: Schedule, copy: str, lanes: int) -> None:
    """Lays a stage of an image [n, c, h, w] out in channel blocks, each a transposition of rows of columns."""
    s.set_scope(copy, "local")
    s.transform_layout(copy, f"ABCD{lanes}b")
    _, c, h, w = s.loops(copy)
    s.reorder(w, c, h)
    whole = s.extent(w) // lanes * lanes
    if 0 < whole < s.extent(w):
        s.partition(w, whole)
        _transposed(s, f"{c}.tail", f"{w}.tail", lanes)
    _transposed(s, c, w, lanes)


def _transposed(s: Schedule, channel: str, column: str, lanes: int) -> None:
    """Vectors of channels out of as many rows of columns."""
    over, channel = s.split(channel, lanes)
    along, column = s.split(column, min(lanes, s.extent(column)))
    s.reorder(over, along, column, channel)
    s.unroll(column)
    s.vectorize(channel)
