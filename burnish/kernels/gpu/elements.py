"""Maps, windows and short sums: a thread for a few elements of the output.

Elements of maps are moved by vectors of 16 bytes, several of them in flight. Of a window (pooling, depthwise
convolutions) a thread computes outputs below each other, which read the same rows of the input: these are loaded once.
"""

from __future__ import annotations

from math import prod

from burnish.kernels.cpu.generic import inline_cheap
from burnish.kernels.cpu.strides import strides
from burnish.kernels.gpu.nests import fuse_all
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.contraction import is_sum_of_products
from burnish.loops.expr import ITEM_BYTES, Reduce, Select, Var
from burnish.loops.linear import to_linear
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import index_only, loads, walk
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

THREADS = (64, 128, 256, 512)
VECTOR_BYTES = 16
VECTORS = (1, 2, 4, 8, 16)  # elements that are moved at once
STEPS = (1, 2, 4)  # of these, of one thread
OWN = (1, 2, 4, 7, 8)  # outputs of one thread, below each other
MOST_UNROLLED = 32  # iterations of a window
MOST_TAPS = 128  # of all windows of a thread
MOST_SUMMED = 1 << 12  # elements that one thread may add up where a block could do it together
MOST_MOVED = 256  # products that are summed here although the output is not where the sums are
FILLED = 512  # threads of a multiprocessor with which it waits little


def _form(task: KernelTask, target: Target) -> bool | None:
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
    if stage.name != task.outputs[0].name and is_sum_of_products(stage) and summed >= MOST_MOVED:
        return None  # products whose elements are moved afterwards, as of a transposed convolution
    return True if own >= elements and (summed <= MOST_SUMMED or elements >= MOST_SUMMED) else None


def serial(task: KernelTask) -> bool:
    """Whether a task can be scheduled so at all: it has one output, of which every thread computes what it needs."""
    return len(task.outputs) == 1 and 0 not in task.outputs[0].shape


# --- what suits a task ------------------------------------------------------------------------------------------------


def overlapping(task: KernelTask) -> int | None:
    """The output's dimension, but its last, along which windows of neighbours overlap; None where none do."""
    (output,) = task.outputs
    stage = next((t for t in task.stages() if isinstance(t.body, Reduce)), None)
    if stage is None or stage.shape != output.shape:
        return None
    body = stage.body
    assert isinstance(body, Reduce)
    extents = {a.var.name: a.extent for a in body.axes}
    found = set()
    for load in loads(body.body):
        for index in load.indices:
            terms, _ = to_linear(index)
            taps = [extents[a.name] for a in terms if isinstance(a, Var) and a.name in extents]
            own = [d for d, v in enumerate(stage.axes) if terms.get(v, 0) > 0]
            if len(own) == 1 and len(taps) == 1 and taps[0] > terms[stage.axes[own[0]]]:
                found.add(own[0])
    last = max((d for d, n in enumerate(output.shape) if n > 1), default=0)
    return max((d for d in found if d != last and output.shape[d] > 1), default=None)


def taps_of(task: KernelTask) -> int:
    """The iterations of a task's reduction."""
    bodies = [t.body for t in task.stages() if isinstance(t.body, Reduce)]
    return max((prod(a.extent for a in body.axes) for body in bodies), default=1)


def widest(task: KernelTask) -> int:
    """Elements that a map moves at once: as many as fit 16 bytes of the widest type, and rows of the output."""
    tensors = [*task.inputs, *task.outputs]
    if any(isinstance(t.body, Reduce) for t in task.stages()) or any(t.dtype == "bool" for t in tensors):
        return 1
    if any(
        isinstance(e, Select) and index_only(e.cond) for t in task.stages() if t.body is not None for e in walk(t.body)
    ):
        return 1  # of a vector some lanes could be off
    row = next((n for n in reversed(task.outputs[0].shape) if n > 1), 1)
    most = VECTOR_BYTES // max(ITEM_BYTES[t.dtype] for t in tensors)
    return next(v for v in reversed(VECTORS) if v == 1 or (v <= most and row % v == 0))


def _space(task: KernelTask, target: Target, form: bool) -> ScheduleSpace:
    del form
    size, full = prod(task.outputs[0].shape), FILLED * target.cores
    vector = widest(task)
    vectors = [v for v in VECTORS if v <= vector]
    axis = overlapping(task)
    own, taps = [1], taps_of(task)
    if axis is not None:
        own = [n for n in OWN if task.outputs[0].shape[axis] % n == 0 and n * taps <= MOST_TAPS] or [1]
    default = {
        "vector": max(v for v in vectors if v == 1 or size >= v * full),
        "own": max(n for n in own if n == 1 or size >= n * full),
    }
    default["steps"] = 1
    if axis is None and taps == 1:
        default["steps"] = max(n for n in STEPS if n == 1 or size >= 4 * n * default["vector"] * full)
    each = size // (default["vector"] * default["own"])
    default["threads"] = 256 if each >= 1 << 16 else 128 if each >= 1 << 13 else 64
    return ScheduleSpace({"threads": THREADS, "vector": vectors, "own": own, "steps": STEPS}, default)


# --- the schedule -----------------------------------------------------------------------------------------------------


def schedule_elements(task: KernelTask, target: Target, form: bool, choice: Choice) -> Schedule:
    """``blocks -> threads -> [sums in registers] -> own outputs``, or ``-> steps -> vectors``."""
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
    axis, own, mine = overlapping(task), int(choice.get("own", 1)), None
    if axis is not None and own > 1:
        over, mine = s.split(loops[axis], own)
        rest = [over if d == axis else v for d, v in enumerate(loops)]
        s.reorder(*rest, mine)
        loops = rest
    fused = fuse_all(s, loops)
    if not inner:
        fused = _vectorized(s, output, fused, int(choice.get("vector", 1)))
    threads, steps = int(choice["threads"]), int(choice.get("steps", 1))
    if steps > 1 and not inner and s.extent(fused) > threads * steps:
        fused, step_thread = s.split(fused, threads * steps)
        step, thread = s.split(step_thread, threads)
        s.unroll(step)
        s.bind(fused, "blockIdx.x")
    elif s.extent(fused) > threads:
        block, thread = s.split(fused, threads)
        s.bind(block, "blockIdx.x")
    else:
        thread = fused
    s.bind(thread, "threadIdx.x")
    if mine is not None:
        s.unroll(mine)
    for stage in reversed(inner):
        s.compute_at(stage, thread)
    for stage in inner:
        _in_registers(s, stage, own if mine is not None else 1)
    return s


def _vectorized(s: Schedule, output: Tensor, fused: str, vector: int) -> str:
    """The loop over vectors; over elements where neighbours of the output are not neighbours in memory."""
    if vector == 1 or s.extent(fused) % vector:
        return fused
    over, lane = s.split(fused, vector)
    found = strides(s, output.name, lane)
    if found.store == 1 and all(step in (0, 1) for step in found.loads):
        s.vectorize(lane)
        return over
    return s.fuse(over, lane)


def _in_registers(s: Schedule, stage: str, own: int) -> None:
    """A stage of ``own`` elements, in registers; small windows written out."""
    loops, inits = s.loops(stage), s.init_loops(stage)
    spatial = inits or loops
    if prod(s.extent(v) for v in spatial) > own:
        s.set_scope(stage, "local")
        return
    s.set_scope(stage, "register")
    window = 1
    for loop in inits:
        s.unroll(loop)
    most = MOST_TAPS if own > 1 else MOST_UNROLLED
    for loop in reversed(loops):
        window *= s.extent(loop)
        if window > most:
            return
        s.unroll(loop)


ELEMENTS = Template("elements", _form, _space, schedule_elements)
