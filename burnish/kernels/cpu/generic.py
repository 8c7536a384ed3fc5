"""The schedule for everything without a template: element-wise maps, data movement, pooling, softmax, norms.

The output's nest is cut into *rows*: loops over the axes at which every reducing (or dear) stage is read at the
output's own index. Rows run in parallel and hold what those stages need for one row. If the output's unit-stride axis
is a row axis, a vector of it stays inside, and the stages compute vectors; else reductions go through partial sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod

import numpy as np

from burnish.errors import ScheduleError
from burnish.kernels.cpu.common import apply_layouts
from burnish.kernels.cpu.strides import strides
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, main_stage, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template, stage_nest
from burnish.loops.dead import drop_dead_stores
from burnish.loops.expr import Axis, Call, Cast, Expr, Load, Reduce, Var
from burnish.loops.loaded import is_loaded
from burnish.loops.program import Alloc, For, If, Seq, Stmt
from burnish.loops.sizes import hinted
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import loads, walk
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

EXPENSIVE = {"exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "sin", "cos", "pow", "fmod"}
GRAIN = 1 << 12  # elements of work below which waking the threads costs more than it saves
CHUNKS = 16  # of a reduction, at most: those of all its vectors of results
REGISTERS = 24  # vectors an accumulator may take


def _space(task: KernelTask, target: Target, form: bool) -> ScheduleSpace:
    """Several vectors at once where they are one run of memory: blocks of one vector each are not."""
    if any(not task.layout(t.name).plain for t in task.outputs):
        return ScheduleSpace({"vectors": (1,)}, {"vectors": 1})
    space = ScheduleSpace({"vectors": (1, 2, 4)}, {"vectors": 4 if _is_map(task) else 1})
    chunks = _chunks(task, target)
    if not chunks:
        return space
    return ScheduleSpace({**space.knobs, "chunks": (1, *chunks)}, {**space.default, "chunks": chunks[-1]})


def _chunks(task: KernelTask, target: Target) -> list[int]:
    """Into how many parts the only reduction of a task can be cut, where its results are too few for many cores.

    That does not depend on the number of threads, so that the result does not.
    """
    kept = _kept(task, target)
    if len(kept) != 1 or len(task.outputs) != 1 or not _axes(kept[0]):
        return []
    sizes = [*kept[0].shape, *(a.extent for a in _axes(kept[0]))]
    if not all(isinstance(size, int) for size in sizes) or any(not o.plain for o in task.layouts.values()):
        return []
    most = min(-(-CHUNKS // _groups(kept[0], target)), _points(kept[0]) // (4 * GRAIN))
    extent = _axes(kept[0])[_longest(kept[0], target.lanes)].extent
    return [n for n in range(2, most + 1) if extent % n == 0]


def _groups(t: Tensor, target: Target) -> int:
    """Vectors of results of a reduction."""
    return -(-prod(t.shape) // target.lanes)


def _axes(t: Tensor) -> tuple[Axis, ...]:
    """The axes that a stage reduces."""
    return t.body.axes if isinstance(t.body, Reduce) else ()


def _longest(t: Tensor, lanes: int) -> int:
    """The number of the axis that has most to cut, the last one in runs of four vectors."""
    extents = [hinted(a.extent) for a in _axes(t)]
    runs = [*extents[:-1], extents[-1] // (4 * lanes)]
    return runs.index(max(runs))


def _is_map(task: KernelTask) -> bool:
    return not any(isinstance(t.body, Reduce) for t in task.stages())


def _apply(task: KernelTask, target: Target, form: bool, choice: Choice) -> Schedule:
    s = Schedule(task.program())
    kept = inline_cheap(s, task, target)
    caches = {t.name: s.cache_write(t.name, "local") for t in task.outputs if isinstance(t.body, Reduce)}
    apply_layouts(s, task, {})
    chunks = int(choice.get("chunks", 1))
    if chunks > 1:
        _schedule_chunks(s, kept[0], caches.get(kept[0].name, kept[0].name), target.lanes, chunks)
    for out in task.outputs:
        inner = [t for t in kept if t not in task.outputs] if len(task.outputs) == 1 else []
        names = [t.name for t in inner] + ([caches[out.name]] if out.name in caches else [])
        rows, bounds = row_axes(task, out, inner), _bounding(task, out)
        outer = _schedule_output(s, out.name, names, rows, bounds, target.lanes, int(choice["vectors"]))
        if chunks == 1:
            _parallelize(s, outer)
    return s


def _schedule_chunks(s: Schedule, reduction: Tensor, stage: str, lanes: int, chunks: int) -> None:
    """Partial results of each part of the longest axis, side by side; ``stage`` combines them in their order."""
    rank = len(reduction.shape)
    chunk, _ = s.split(s.loops(stage)[rank + _longest(reduction, lanes)], parts=chunks)
    partial = s.rfactor(stage, chunk, 0, f"{stage}.parts")
    inner = s.cache_write(partial, "local")
    _parallelize(s, _schedule_output(s, partial, [inner], list(range(rank + 1)), {0}, lanes, 1))


def _bounding(task: KernelTask, out: Tensor) -> set[int]:
    """The output's dimensions that say where reductions over loaded extents run: no vector goes over them."""
    maps = row_maps(task, out)
    found: set[int] = set()
    for t in task.stages():
        axes = t.body.axes if isinstance(t.body, Reduce) else ()
        names = {name for axis in axes if is_loaded(extent := axis.extent) for name in extent.variables}
        found |= {d for d, own in maps.get(t.name, {}).items() if t.axes[own].name in names}
    return found


def inline_cheap(s: Schedule, task: KernelTask, target: Target) -> list[Tensor]:
    """Inlines the stages that cost little to repeat; returns those that stay, producers first, reducing outputs too."""
    kept = _kept(task, target)
    for t in task.stages():
        if t not in kept and t not in task.outputs:
            s.compute_inline(t.name)
    return kept


def _kept(task: KernelTask, target: Target) -> list[Tensor]:
    """The stages that are not repeated where they are read."""
    stages = task.stages()
    kept = []
    for t in stages:
        readers = [u for u in stages if t in u.inputs]
        dear = t.body is not None and any(_is_dear(e) for e in walk(t.body))
        repeated = sum(_places(u, t) for u in readers) > 1 or any(isinstance(u.body, Reduce) for u in readers)
        shared = _is_row_value(t) and any(_points(u) >= target.lanes * t.buffer.size for u in readers)
        if isinstance(t.body, Reduce) or (((dear and repeated) or shared) and t not in task.outputs):
            kept.append(t)
    return kept


def _is_dear(e: Expr) -> bool:
    """Whether an expression is a costly function, or reads at a position that is computed in floating point."""
    if isinstance(e, Load):
        return any(isinstance(part, Cast) and part.value.dtype == "float64" for i in e.indices for part in walk(i))
    return isinstance(e, Call) and e.fn in EXPENSIVE


def _places(reader: Tensor, t: Tensor) -> int:
    """At how many places a stage reads another one for one of its elements."""
    return 0 if reader.body is None else len({x.indices for x in loads(reader.body) if x.buffer.name == t.name})


def _is_row_value(t: Tensor) -> bool:
    """Whether a stage computes something from the result of a reduction: a mean, a reciprocal."""
    return any(isinstance(i.body, Reduce) for i in t.inputs) and not isinstance(t.body, (Reduce, Load))


def _points(t: Tensor) -> int:
    """Number of evaluations of a stage's body."""
    axes = t.body.axes if isinstance(t.body, Reduce) else ()
    return t.buffer.size * prod(hinted(a.extent) for a in axes)


def _schedule_output(
    s: Schedule, out: str, stages: list[str], rows: list[int], bounds: set[int], lanes: int, vectors: int
) -> list[str]:
    """Rows outermost, ``stages`` computed for each, a vector loop in every nest, none over ``bounds``; the rows."""
    own = s.loops(out)
    outer = [own[d] for d in rows] if stages else own
    inner = [v for v in own if v not in outer]
    free = [v for d, v in enumerate(own) if d not in bounds and s.extent(v) > 1]
    unit = next((v for v in reversed(free) if strides(s, out, v).store in (1, None)), None)
    vector = None
    if unit is not None:
        wide = lanes * vectors
        over, vector = _cut(s, unit, wide if s.extent(unit) % wide == 0 else lanes)
        outer = [over if v == unit else v for v in outer]
        inner = [over if v == unit else v for v in inner] + [vector]
    s.reorder(*outer, *inner)
    alive = drop_dead_stores(s.program).body.reads
    stages = [stage for stage in stages if stage in alive]  # a condition on loops of one iteration was never true
    if outer:
        for stage in reversed(stages):
            s.compute_at(stage, outer[-1])
    for stage in stages:
        vectorize_stage(s, stage, lanes)
    if vector is not None and strides(s, out, vector).store == 1:
        s.vectorize(vector)
    return outer


def row_axes(task: KernelTask, out: Tensor, kept: list[Tensor]) -> list[int]:
    """The output's dimensions at which every kept stage is read at the output's own index, directly or not."""
    maps = row_maps(task, out)
    return [d for d in range(len(out.shape)) if all(d in maps.get(t.name, {}) for t in kept)]


def row_maps(task: KernelTask, out: Tensor, beside: Sequence[Tensor] = ()) -> dict[str, dict[int, int]]:
    """Row-wise dimensions of stages and inputs, always read at the index of one of the output's: output's -> own. Those
    of outputs ``beside`` it, of its shape, are their own.
    """
    maps = {t.name: {d: d for d in range(len(t.shape))} for t in (out, *beside)}
    for consumer in reversed(task.stages()):
        seen = maps.get(consumer.name)
        if seen is None or consumer.body is None:
            continue
        axis_of = {consumer.axes[d].name: axis for axis, d in seen.items()}
        for load in loads(consumer.body):
            here = {
                axis_of[i.name]: d
                for d, i in enumerate(load.indices)
                if isinstance(i, Var) and i.name in axis_of and load.buffer.shape[d] == out.shape[axis_of[i.name]]
            }
            old = maps.get(load.buffer.name)
            maps[load.buffer.name] = here if old is None else {a: d for a, d in here.items() if old.get(a) == d}
    return maps


def _cut(s: Schedule, loop: str, width: int) -> tuple[str, str]:
    """Splits a loop into vectors; whole ones where the buffers have room for them, else the last is masked."""
    if s.extent(loop) % width:
        with suppress(ScheduleError):
            s.pad(loop, width)
    return s.split(loop, min(width, s.extent(loop)))


def vectorize_stage(s: Schedule, stage: str, lanes: int) -> None:
    """One vector loop for the nest of a stage that is computed inside the rows."""
    _put_lanes_last(s, stage, lanes)
    own = [v for v in s.loops(stage) if hinted(s.extent(v)) > 1]
    found = {v: strides(s, stage, v) for v in own}
    spatial = [v for v in own if found[v].store != 0]
    bounds = {name for v in own if is_loaded(extent := s.extent(v)) for name in extent.variables}
    smooth = [v for v in spatial if v not in bounds and {*found[v].loads} <= {0, 1} and found[v].store == 1]
    if smooth:
        _vectorize_spatial(s, stage, smooth[-1], lanes)
        return
    plain = [v for v in own if v not in spatial and not is_loaded(s.extent(v))]
    wide = [v for v in plain if s.extent(v) >= lanes]
    # Along what is computed of the position alone, such as one-hot rows, nothing is loaded.
    reduced = [v for v in wide if 1 in found[v].loads] or [v for v in wide if {*found[v].loads} <= {0}]
    if not s.init_loops(stage) and spatial:  # it reduces nothing
        return
    if reduced:
        _vectorize_reduction(s, stage, reduced[-1], lanes)
        return
    for v in (v for v in plain if hinted(s.extent(v)) >= lanes):  # along channels in blocks of a vector
        _, lane = s.split(v, lanes)
        if 1 in (steps := {*strides(s, stage, lane).loads}) and steps <= {0, 1}:
            _vectorize_blocks(s, stage, lane, lanes)
            return


def _put_lanes_last(s: Schedule, stage: str, lanes: int) -> None:
    """Makes the dimension of one vector, along which all is read that the stage reads, its buffer's last one."""
    loops, inits = s.loops(stage), s.init_loops(stage)
    rank = len(inits) if inits else len(loops)
    for d, loop in enumerate(loops[:rank]):
        found = strides(s, stage, loop)
        read = {step for step in found.loads if step != 0}
        if s.extent(loop) == lanes and read == {1} and found.store not in (0, 1, None):
            letters = [chr(ord("A") + i) for i in range(rank)]
            s.transform_layout(stage, "".join([*letters[:d], *letters[d + 1 :], letters[d]]))
            return


def _vectorize_spatial(s: Schedule, stage: str, loop: str, lanes: int) -> None:
    position = s.loops(stage).index(loop)
    inits = s.init_loops(stage)
    whole = s.extent(loop) == lanes
    vector = loop if s.extent(loop) <= lanes else s.split(loop, lanes)[1]
    s.reorder(*[v for v in s.loops(stage) if v != vector], vector)
    s.vectorize(vector)
    if inits:
        init = inits[position]
        init_vector = init if s.extent(init) <= lanes else s.split(init, lanes)[1]
        s.reorder(*[v for v in s.init_loops(stage) if v != init_vector], init_vector)
        s.vectorize(init_vector)
        size = 1
        for v in s.init_loops(stage):
            size *= s.extent(v)
        if whole and size <= REGISTERS * lanes:
            for v in [v for v in s.loops(stage) if strides(s, stage, v).store not in (0,) and v != vector]:
                s.unroll(v)
            for v in [v for v in s.init_loops(stage) if v != init_vector]:
                s.unroll(v)
            s.set_scope(stage, "register")


def _vectorize_reduction(s: Schedule, stage: str, loop: str, lanes: int) -> None:
    """``loop`` in several vectors of partial results, combined with each other and then across the lanes at the end."""
    vectors = next(n for n in (4, 2, 1) if n == 1 or s.extent(loop) % (n * lanes) == 0)
    _, inner = s.split(loop, lanes * vectors)
    partial = s.rfactor(stage, inner, -1)
    _vectorize_partial(s, partial, lanes)
    if vectors > 1:
        _, lane = s.split(s.loops(stage)[-1], lanes)
        lanewise = s.rfactor(stage, lane, -1, f"{stage}.lanes")
        _vectorize_partial(s, lanewise, lanes)
        s.unroll(next(v for v in s.loops(lanewise) if s.extent(v) == vectors))
    s.vectorize(s.loops(stage)[-1])


def _vectorize_blocks(s: Schedule, stage: str, lane: str, lanes: int) -> None:
    """``lane``, a block of channels, as one vector of partial results, combined across the lanes at the end."""
    partial = s.rfactor(stage, lane, -1)
    _vectorize_partial(s, partial, lanes)
    s.vectorize(s.loops(stage)[-1])


def _vectorize_partial(s: Schedule, partial: str, lanes: int) -> None:
    """Vectors of the last dimension of ``partial``, which are partial results; registers if there are no others."""
    own, inits = s.loops(partial), s.init_loops(partial)
    last = next(v for v in own if strides(s, partial, v).store == 1 and s.extent(v) == s.extent(inits[-1]))
    single = prod(s.extent(v) for v in inits[:-1]) == 1
    for loops, wide in ((own, last), (inits, inits[-1])):
        block, lane = s.split(wide, lanes)
        s.reorder(*[v for v in loops if v != wide], block, lane)
        s.unroll(block)
        s.vectorize(lane)
    if single:
        s.set_scope(partial, "register")


def _parallelize(s: Schedule, outer: list[str]) -> None:
    if not outer or _work(s.program.body) < GRAIN:
        return
    fused = outer[0]
    for loop in outer[1:]:
        fused = s.fuse(fused, loop)
    if s.extent(fused) > 1:
        s.parallel(fused)


def _work(body: Stmt) -> int:
    """Stores executed."""
    match body:
        case For(_, extent, _, inner):
            return hinted(extent) * _work(inner)
        case Seq(stmts):
            return sum(_work(x) for x in stmts)
        case If(_, inner) | Alloc(_, inner):
            return _work(inner)
    return 1


def _nests(task: KernelTask, target: Target, form: bool) -> Describe:
    """Loop nests: of a map all in parallel, the one with unit stride in whole vectors; of a reduction its stage's."""
    stage = main_stage(task)
    if isinstance(stage.body, Reduce) or len(task.outputs) != 1:
        return stage_nest(task, target, form)
    stage = task.outputs[0]
    domain, layout = statement(task, stage), task.layout(stage.name)
    unit = _unit(Arrangement.of(layout, stage.shape), stage.shape)
    if unit is None:
        return stage_nest(task, target, form)
    contiguous = layout.block(unit) == 1
    parallel = LoopKind.PARALLEL if prod(stage.shape) >= GRAIN else LoopKind.SERIAL

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        wide = target.lanes * knobs["vectors"]
        extent = stage.shape[unit]
        vector = np.minimum(np.where(extent % wide == 0, wide, target.lanes), extent if contiguous else wide)
        outer = [NestLevel(a, e, annotation=parallel) for a, e in enumerate(stage.shape)]
        outer[unit] = NestLevel(unit, -(-extent // vector), vector, parallel)
        return domain.nest([*outer, NestLevel(unit, vector, 1, LoopKind.VECTORIZE)], count)

    return describe


def _unit(arrangement: Arrangement, shape: Sequence[int]) -> int | None:
    """The last dimension with several elements whose neighbours are adjacent, or which is cut into blocks."""
    strides = arrangement.strides()
    adjacent = [d for d, extent in enumerate(shape) if extent > 1 and (len(strides[d]) > 1 or strides[d][0][1] == 1)]
    return adjacent[-1] if adjacent else None


GENERIC = Template("generic", lambda task, target: True, _space, _apply, _nests, loaded=True)
