"""Winograd convolutions on GPUs in three launches: tiles to points, a product for every point, points back to tiles.

Transforms are maps by matrices of literals. A thread transforms one tile of one channel in registers, so that what is
between two of their steps is never in memory; the products are a batch, by the template for these.

Source: Lavin and Gray 2016, algorithm 1; thesis-chen section 4.6.2 (pre-transformed weights).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from burnish.kernels.gpu.forms import parts
from burnish.kernels.gpu.nests import fuse_all
from burnish.kernels.gpu.product import PRODUCT
from burnish.kernels.gpu.tensor_product import TENSOR_PRODUCT
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template, TemplateMatch
from burnish.loops.contraction import literal_factor
from burnish.loops.expr import Binary, Const, Reduce, Var
from burnish.loops.program import Alloc, LoopProgram, Stmt, seq
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import loads, walk
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

THREADS = (64, 128, 256)
MOST_POINTS = 64  # of a tile, which a thread holds in registers


@dataclass(frozen=True, eq=False)
class ProductLaunches:
    """Tasks of the three launches, the middle one as a match; ``tile``: the axes of the last that a thread's tile has,
    and how many elements along each.
    """

    stages: tuple[Tensor, Tensor, Tensor]
    first: KernelTask
    product: TemplateMatch
    last: KernelTask
    points: tuple[int, ...]
    tile: tuple[tuple[int, int], ...]


def _form(task: KernelTask, target: Target) -> ProductLaunches | None:
    """Maps by literals in front of a product, and behind it."""
    product = task.anchor()
    if product is None or len(task.outputs) != 1 or 0 in task.outputs[0].shape or task.dims:
        return None
    (output,) = task.outputs
    before = [t for t in product.inputs if literal_factor(t) is not None]
    reducing = [t for t in task.stages() if isinstance(t.body, Reduce)]
    if len(before) != 1 or output is product or any(t is not product and literal_factor(t) is None for t in reducing):
        return None
    (data,) = before
    first, middle, last = parts(task, (data, product, output))
    match = TENSOR_PRODUCT.match(middle, target) or PRODUCT.match(middle, target)
    points = _points(data)
    tile = _tile(next(t for t in reversed(last.stages()) if isinstance(t.body, Reduce)))
    inner = prod(data.shape[d] for d in points)
    if match is None or not points or not tile or not 1 < inner <= MOST_POINTS or output.shape != _result(last).shape:
        return None
    return ProductLaunches((data, product, output), first, match, last, points, tile)


def _result(task: KernelTask) -> Tensor:
    """The last stage that reduces."""
    return next(t for t in reversed(task.stages()) if isinstance(t.body, Reduce))


def _points(t: Tensor) -> tuple[int, ...]:
    """The dimensions of a stage that maps by literals go along, its own and those of the stages that it maps."""
    factor, found = literal_factor(t), set[int]()
    if factor is None:
        return ()
    found |= {d for d, v in enumerate(t.axes) if v.name in factor.variables}
    assert isinstance(t.body, Reduce)
    for load in loads(t.body):
        source = next((i for i in t.inputs if i.name == load.buffer.name), None)
        for d in _points(source) if source is not None else ():
            found |= {k for k, v in enumerate(t.axes) if v.name in load.indices[d].variables}
    return tuple(sorted(found))


def _tile(t: Tensor) -> tuple[tuple[int, int], ...]:
    """The dimensions of a stage that it goes along in tiles, and the elements of one: those of ``axis % elements``."""
    assert isinstance(t.body, Reduce)
    found = {}
    for e in walk(t.body.body):
        if isinstance(e, Binary) and e.op == "%" and isinstance(e.a, Var) and isinstance(e.b, Const):
            found.update({d: int(e.b.value) for d, v in enumerate(t.axes) if v == e.a})
    for load in loads(t.body.body):
        for index in load.indices:
            for e in walk(index):
                if isinstance(e, Binary) and e.op == "%" and isinstance(e.a, Var) and isinstance(e.b, Const):
                    found.update({d: int(e.b.value) for d, v in enumerate(t.axes) if v == e.a})
    return tuple(sorted(found.items()))


def _space(task: KernelTask, target: Target, form: ProductLaunches) -> ScheduleSpace:
    del task, target
    own = form.product.space
    return ScheduleSpace({"threads": THREADS, **own.knobs}, {"threads": 128, **own.default})


def _schedule(task: KernelTask, target: Target, form: ProductLaunches, choice: Choice) -> Schedule:
    """``tiles to points; products of points; points to tiles``."""
    del target
    threads = int(choice["threads"])
    own = {knob: choice[knob] for knob in form.product.space.knobs}
    body: Stmt = seq(
        _transformed(form.first, form.points, (), threads),
        form.product.apply(own).program.body,
        _transformed(form.last, (), form.tile, threads),
    )
    for t in (form.stages[1], form.stages[0]):
        body = Alloc(t.buffer, body)
    params = tuple(t.buffer for t in (*task.inputs, *task.outputs))
    return Schedule(LoopProgram(task.name, params, body))


def _transformed(task: KernelTask, points: Sequence[int], tile: Sequence[tuple[int, int]], threads: int) -> Stmt:
    """One transform: a thread for all ``points``, or a ``tile``, of one channel."""
    s = Schedule(task.program())
    (output,) = task.outputs
    stages = [t for t in task.stages() if t is not output]
    mapped = [t.name for t in (*stages, output) if literal_factor(t) is not None]
    for name in mapped:
        s.expand(name)
    s.compute_inline(*[t.name for t in stages if not isinstance(t.body, Reduce) and not _is_read_by_maps(t, task)])
    kept = [t.name for t in stages if isinstance(t.body, Reduce) or _is_read_by_maps(t, task)]
    loops = s.loops(output.name)
    inner = [loops[d] for d in points]
    outer = [v for d, v in enumerate(loops) if d not in points]
    for d, elements in tile:
        over, own = s.split(loops[d], elements)
        outer[outer.index(loops[d])] = over
        inner.append(own)
    s.reorder(*outer, *inner)
    thread = fuse_all(s, outer)
    if s.extent(thread) > threads:
        block, thread = s.split(thread, threads)
        s.bind(block, "blockIdx.x")
    s.bind(thread, "threadIdx.x")
    for loop in inner:
        s.unroll(loop)
    for name in reversed(kept):
        s.compute_at(name, thread)
        s.set_scope(name, "register")
    for name in kept:
        for loop in s.loops(name):
            s.unroll(loop)
    return s.program.body


def _is_read_by_maps(t: Tensor, task: KernelTask) -> bool:
    """Whether a stage is what a map by literals reads: each of its elements several times."""
    return any(t in u.inputs and literal_factor(u) is not None for u in task.stages())


TRANSFORMED_PRODUCT = Template("transformed_product", _form, _space, _schedule)
