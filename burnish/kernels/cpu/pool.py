"""Windows over images and channels in channel blocks: pooling, and sums over neighbouring channels."""

from __future__ import annotations

from burnish.kernels.cpu.common import (
    apply_layouts,
    is_blocked,
    mark,
    parallel_over,
    pixel_tile,
    register_tile_at,
    single_output,
)
from burnish.kernels.match import is_over_neighbours, is_pooling, parameters_of
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Reduce
from burnish.loops.tensor import Tensor
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

DTYPES = ("float32", "uint8", "int8")
MOST_UNROLLED = 256  # elements of a row of a window, and neighbours of a channel


def _reduction(task: KernelTask, target: Target) -> Tensor | None:
    """The one reduction of a task, which has the output's shape and reads images in blocks; None if there is none.

    What is written, and what an epilogue reads, may be row-major: each element is stored or read once.
    """
    found = [t for t in task.stages() if isinstance(t.body, Reduce)]
    if len(found) != 1 or len(task.outputs) != 1 or len(task.outputs[0].shape) != 4:
        return None
    body, images = found[0].body, [t for t in parameters_of(found[0]) if t.name not in task.constants]
    blocked = bool(images) and all(is_blocked(task.layout(t.name), 1, target.lanes) for t in images)
    if not isinstance(body, Reduce) or body.axes[-1].extent > MOST_UNROLLED or not blocked:
        return None
    return found[0] if found[0].shape == task.outputs[0].shape and found[0].dtype in DTYPES else None


def accumulator(s: Schedule, task: KernelTask, reduction: Tensor) -> str:
    """Inlines all but the reduction and the output; the stage that accumulates, in registers."""
    out = single_output(task)
    s.compute_inline(*[t.name for t in task.stages() if t.name not in (out, reduction.name)])
    return s.cache_write(out, "register") if reduction.name == out else reduction.name


# --- pooling ----------------------------------------------------------------------------------------------------------


def _pooled(task: KernelTask, target: Target) -> Tensor | None:
    found = _reduction(task, target)
    return found if found is not None and is_pooling(found) else None


def _space_pool(task: KernelTask, target: Target, reduction: Tensor) -> ScheduleSpace:
    del reduction
    width = task.outputs[0].shape[3]
    most = min(width, target.vector_registers // 2)
    tile = min(range(1, most + 1), key=lambda t: (-(-width // t) * (t + 1), -t))
    return ScheduleSpace({"tile_ow": tuple(range(1, most + 1))}, {"tile_ow": tile})


def _apply_pool(task: KernelTask, target: Target, reduction: Tensor, choice: Choice) -> Schedule:
    """``parallel(channel block, oh) -> ow tile -> kh -> kw`` with a register tile of pixels."""
    lanes = target.lanes
    s = Schedule(task.program())
    out = single_output(task)
    acc = accumulator(s, task, reduction)
    apply_layouts(s, task, {})
    n, block, oh = pixel_tile(s, out, acc, lanes, int(choice["tile_ow"]))
    _, a_c, a_oh, a_ow, kh, kw = s.loops(acc)
    s.reorder(a_oh, kh, kw, a_ow, a_c)
    mark(s, "unroll", kw, a_ow)
    s.vectorize(a_c)
    parallel_over(s, (n, block, oh))
    return s


POOL = Template("pool2d", _pooled, _space_pool, _apply_pool, nests=None)


# --- neighbouring channels --------------------------------------------------------------------------------------------


def _neighbours(task: KernelTask, target: Target) -> Tensor | None:
    found = _reduction(task, target)
    whole = found is not None and found.shape[1] % target.lanes == 0
    return found if found is not None and whole and is_over_neighbours(found) else None


def _space_neighbours(task: KernelTask, target: Target, reduction: Tensor) -> ScheduleSpace:
    return ScheduleSpace({}, {})


def _apply_neighbours(task: KernelTask, target: Target, reduction: Tensor, choice: Choice) -> Schedule:
    """``parallel(row) -> channel block -> pixel``; the first and last block, with borders, get code of their own."""
    del choice
    lanes = target.lanes
    s = Schedule(task.program())
    out = single_output(task)
    acc = accumulator(s, task, reduction)
    apply_layouts(s, task, {})
    n, c, h, w = s.loops(out)
    block, lane = s.split(c, lanes)
    s.reorder(n, h, block, w, lane)
    register_tile_at(s, acc, w, lane)
    _, a_c, a_h, a_w, k = s.loops(acc)
    s.reorder(a_h, a_w, k, a_c)
    s.unroll(k)
    s.vectorize(a_c)
    s.vectorize(s.init_loops(acc)[1])
    _, i_c, i_h, i_w = s.init_loops(acc)
    s.reorder(i_h, i_w, i_c)
    parallel_over(s, (n, h))
    return s


LRN = Template("neighbouring_channels", _neighbours, _space_neighbours, _apply_neighbours, nests=None)
