"""Copies that change which dimension is innermost: 16 x 16 blocks transposed in registers.

Between row-major and channel-blocked images, and for ordinary transposes of matrices.
"""

from __future__ import annotations

from burnish.kernels.cpu.common import apply_layouts, parallel_over
from burnish.kernels.cpu.strides import strides
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Load, Reduce
from burnish.loops.traverse import loads
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

BLOCK = 16


def _transposed(task: KernelTask, target: Target) -> tuple[str, str] | None:
    """The loops along which a copy loads, and stores, consecutive elements."""
    if len(task.outputs) != 1 or len(task.inputs) != 1 or target.lanes != BLOCK:
        return None
    if any(isinstance(t.body, Reduce) for t in task.stages()) or task.outputs[0].dtype != "float32":
        return None
    return _prepare(task)[1]


def _prepare(task: KernelTask) -> tuple[Schedule, tuple[str, str] | None]:
    """The naive copy with channel blocks split, and its (load unit, store unit) loops."""
    out = task.outputs[0]
    s = Schedule(task.program())
    s.inline_all((out.name,))
    apply_layouts(s, task, {})
    if not all(isinstance(t.body, Load) and len(loads(t.body)) == len(t.inputs) == 1 for t in task.stages()):
        return s, None
    loops = s.loops(out.name)
    if task.layouts and len(loops) in (3, 4):
        if out.shape[1] % BLOCK:
            return s, None
        s.split(loops[1], BLOCK)
        loops = s.loops(out.name)
    found = {v: strides(s, out.name, v) for v in loops if s.extent(v) >= BLOCK}
    to = [v for v, x in found.items() if x.store == 1]
    source = [v for v, x in found.items() if x.loads == (1,)]
    linear = all(x.store is not None and None not in x.loads for x in found.values())
    if not linear or len(to) != 1 or len(source) != 1 or to == source:
        return s, None
    if found[to[0]].loads == (0,):  # a column that is repeated along rows
        return s, None
    return s, (source[0], to[0])


def _space(task: KernelTask, target: Target, pair: tuple[str, str]) -> ScheduleSpace:
    return ScheduleSpace({"block": (BLOCK,)}, {"block": BLOCK})


def _apply(task: KernelTask, target: Target, pair: tuple[str, str], choice: Choice) -> Schedule:
    s, _ = _prepare(task)
    out = task.outputs[0].name
    nest = own = s.loops(out)
    ragged = [v for v in pair if s.extent(v) % BLOCK]
    if len(ragged) > 1:
        return s
    for v in ragged:  # whole blocks in one nest, what is left in another
        nest = [v, *(x for x in nest if x != v)]
        s.reorder(*nest)
        s.partition(v, s.extent(v) // BLOCK * BLOCK)
        _schedule_rest(s, [f"{x}.tail" for x in nest], f"{next(x for x in pair if x != v)}.tail")
    inner = []
    for v in pair:
        over, block = (None, v) if s.extent(v) == BLOCK else s.split(v, BLOCK)
        nest = [*([over] if over else []), *(x for x in nest if x != v)]
        inner.append(block)
    # Channels outermost: the threads share them out as most producers do, and find what they wrote in their own caches.
    nest = [v for v in own if v in nest] + [v for v in nest if v not in own]
    s.reorder(*nest, *inner)
    if nest:
        parallel_over(s, nest)
    s.tensorize(inner[0], "transpose16_f32")
    return s


def _schedule_rest(s: Schedule, nest: list[str], vector: str) -> None:
    """Remainder that fills no block: vectors along the other dimension of the pair."""
    lane = vector if s.extent(vector) == BLOCK else s.split(vector, BLOCK)[1]
    outer = [v if v != vector else f"{vector}.o" for v in nest if v != vector or lane != vector]
    s.reorder(*outer, lane)
    s.vectorize(lane)


TRANSPOSE = Template("transpose", _transposed, _space, _apply)
