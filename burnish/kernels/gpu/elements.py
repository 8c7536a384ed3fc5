"""One thread for an element of the output: maps, windows (pooling, depthwise convolutions), and short sums."""

from __future__ import annotations

from math import prod

from burnish.kernels.cpu.generic import inline_cheap
from burnish.kernels.gpu.nests import fuse_all
from burnish.kernels.task import Choice, Space, Task
from burnish.kernels.template import Template
from burnish.loops.expr import Reduce
from burnish.schedule.schedule import Schedule
from burnish.target import Target

THREADS = (64, 128, 256, 512)
MOST_UNROLLED = 32  # iterations of a window
MOST_SUMMED = 1 << 12  # elements that one thread may add up where a block could do it together


def _form(task: Task, target: Target) -> bool | None:
    """A task of one output, with at most one reduction, of whose results each is read for about one element."""
    del target
    found = [t for t in task.stages() if isinstance(t.body, Reduce)]
    if len(task.outputs) != 1 or len(found) > 1 or 0 in task.outputs[0].shape:
        return None
    if not found:
        return True
    (stage,) = found
    body, own = stage.body, prod(stage.shape)
    assert isinstance(body, Reduce)
    summed = prod(a.extent for a in body.axes)
    elements = prod(task.outputs[0].shape)
    return True if own >= elements and (summed <= MOST_SUMMED or elements >= MOST_SUMMED) else None


def serial(task: Task) -> bool:
    """Whether a task can be scheduled so at all: it has one output, of which every thread computes what it needs."""
    return len(task.outputs) == 1 and 0 not in task.outputs[0].shape


def _space(task: Task, target: Target, form: bool) -> Space:
    del target, form
    size = prod(task.outputs[0].shape)
    return Space({"threads": THREADS}, {"threads": 256 if size >= 1 << 16 else 128 if size >= 1 << 13 else 64})


def schedule_elements(task: Task, target: Target, form: bool, choice: Choice) -> Schedule:
    """``blocks -> threads -> [sums in registers]``."""
    del form
    s = Schedule(task.program())
    kept = inline_cheap(s, task, target)
    (output,) = task.outputs
    inner = [t.name for t in kept if t is not output]
    if isinstance(output.body, Reduce):
        inner.append(s.cache_write(output.name, "register"))
    loops = s.loops(output.name)
    if not loops:
        return s
    fused = fuse_all(s, loops)
    threads = int(choice["threads"])
    if s.extent(fused) > threads:
        block, thread = s.split(fused, threads)
        s.bind(block, "blockIdx.x")
    else:
        thread = fused
    s.bind(thread, "threadIdx.x")
    for stage in reversed(inner):
        s.compute_at(stage, thread)
    for stage in inner:
        _in_registers(s, stage)
    return s


def _in_registers(s: Schedule, stage: str) -> None:
    """A stage of one element, in a register; a small window written out."""
    own, inits = s.loops(stage), s.init_loops(stage)
    if prod(s.extent(v) for v in (inits or own)) != 1:
        s.set_scope(stage, "local")
        return
    s.set_scope(stage, "register")
    window = 1
    for loop in reversed(own):
        window *= s.extent(loop)
        if window > MOST_UNROLLED:
            return
        s.unroll(loop)


ELEMENTS = Template("elements", _form, _space, schedule_elements)
