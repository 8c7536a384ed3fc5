"""Any operator with one output and at most one reduction, as tiles of tiles; the space is that of ``tiling.py``.

The structure of ``parallel(cache tiles) -> register tiles -> reduction blocks -> reduction -> register tile``, or with
``accumulate`` in scratch ``parallel(cache tiles) -> reduction blocks -> register tiles -> reduction -> register tile``,
which adds each block's sums to a cache tile. Meant for the tuner, which finds the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from burnish.errors import ScheduleError
from burnish.kernels.cpu.common import apply_layouts, channel_constants, parallel_over
from burnish.kernels.cpu.tiling import REDUCED, ReductionTask, body_loads, find_nest, prepare, unit_axis
from burnish.kernels.task import Choice, KernelTask
from burnish.loops.expr import Var
from burnish.loops.layout import Layout
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

UNROLLED = 128  # statements of an unrolled reduction step, beyond which it stays a loop


def tileable(task: KernelTask, target: Target) -> ReductionTask | None:
    """The task's reduction or map, if its loops can be tiled by their form alone; else None."""
    return find_nest(task)


@dataclass(frozen=True)
class TilePlan:
    """The choices of one point in numbers.

    ``vector`` is the output's dimension whose elements are lanes, ``lane_reduction`` the position of the reduction axis
    that is instead. ``width`` lanes make a vector; ``tile`` and ``block`` are elements for each dimension, ``steps``
    iterations for each reduction axis. Along ``unit`` the output is consecutive. An unrolled register tile is at most
    ``most`` statements.
    """

    nest: ReductionTask
    choice: Choice
    vector: int | None
    lane_reduction: int | None
    width: int
    tile: tuple[int, ...]
    block: tuple[int, ...]
    steps: tuple[int, ...]
    unit: int | None
    most: int

    @property
    def scratch(self) -> bool:
        """Whether sums are added up in a cache tile."""
        return self.choice.get("accumulate") == "scratch" and self.lane_reduction is None

    def ordered(self, knob: str, first: bool) -> list[int]:
        """The output's wide dimensions, the one that ``knob`` names first or last."""
        chosen = self.nest.axes.get(str(self.choice.get(knob)))
        rest = [d for d in self.nest.axes.values() if d != chosen]
        end = [] if chosen is None else [chosen]
        return [*end, *rest] if first else [*rest, *end]

    @property
    def steps_order(self) -> list[int]:
        """Positions of the reduction axes, innermost last."""
        names = [axis.var.name for axis in self.nest.reduced]
        return sorted(range(len(names)), key=lambda i: names[i] == self.choice.get("innermost_reduction"))


def _plan(task: KernelTask, nest: ReductionTask, target: Target, choice: Choice) -> TilePlan:
    shape, names, registers = nest.out.shape, nest.axes, target.vector_registers
    chosen = str(choice["vector"])
    vector = names.get(chosen)
    reduced = [REDUCED + axis.var.name for axis in nest.reduced]
    lane_reduction = reduced.index(chosen) if chosen in reduced else None
    extent, count = shape[vector] if vector is not None else target.lanes, int(choice["vectors"])
    layout = task.layout(nest.out.name)
    width = min(target.lanes, extent)
    if nest.reduction is None and extent % (width * count) == 0 and layout.parts[-1].block in (0, width * count):
        width, count = width * count, 1  # the operations of several vectors side by side hide each other's latency
    tile, block = [1] * len(shape), [1] * len(shape)
    for name, d in names.items():
        tile[d] = min(count, -(-extent // width)) * width if d == vector else int(choice[f"tile_{name}"])
        block[d] = int(choice[f"block_{name}"])
        if tile[d] < 1 or block[d] < 1:
            raise ScheduleError(f"tiled: axis '{name}' has a tile of {tile[d]} and a block of {block[d]} elements")
        block[d] = -(-block[d] // tile[d]) * tile[d]
    steps = [int(choice.get(f"step_{axis.var.name}", axis.extent)) for axis in nest.reduced]
    for i, axis in enumerate(nest.reduced):
        if i == lane_reduction:
            fitting = [n for n in range(1, count + 1) if axis.extent % (n * width) == 0]
            steps[i] = width * max(fitting, default=1)
        elif steps[i] < 1 or axis.extent % steps[i]:
            raise ScheduleError(f"tiled: step_{axis.var.name} is {steps[i]}, which does not divide {axis.extent}")
    sizes = tuple(tile), tuple(block), tuple(steps)
    return TilePlan(nest, choice, vector, lane_reduction, width, *sizes, unit_axis(layout, shape), 2 * registers)


def apply(task: KernelTask, target: Target, nest: ReductionTask, choice: Choice) -> Schedule:
    """Schedule of a nest, tiled for registers and blocked for caches as ``choice`` says.

    Raises ScheduleError for a choice that its sizes do not allow.
    """
    target = target.for_items(nest.item_bytes)
    plan = _plan(task, nest, target, choice)
    kept = [t.name for t in nest.producers] if choice.get("producers") == "block" else []
    s, stage = prepare(task, nest, kept)
    apply_layouts(s, task, _pack(s, task, plan, stage))
    sums = _split_reduction(s, plan, stage) if nest.reduction else ""
    _pad_lanes(s, plan, stage, sums)
    outer, blocks = _cut_output(s, plan, target.lanes)
    if nest.reduction:
        _compute_sums(s, plan, stage, sums, outer[-1], blocks[-1])
    for name in reversed(kept):
        _produce(s, task, name, outer[-1], target.lanes)
    several = [loop for loop in outer if s.extent(loop) > 1][: int(choice.get("parallel", 0))]
    if several:
        parallel_over(s, outer[: outer.index(several[-1]) + 1])
    return s


def _pack(s: Schedule, task: KernelTask, plan: TilePlan, stage: str) -> dict[str, str]:
    """Layouts in which what a register tile reads of a constant is consecutive: lanes, then a block of the sum."""
    tags = channel_constants(task, plan.width)
    loops = s.loops(stage)
    if plan.vector is None or plan.nest.reduction is None:
        return tags
    lane, reduced = loops[plan.nest.dims.index(plan.vector)], loops[len(plan.nest.dims) :]
    for load in body_loads(s, stage):
        names = [i.name if isinstance(i, Var) else "" for i in load.indices]
        if load.buffer.name not in task.constants or lane not in names:
            continue
        letter = {name: chr(ord("A") + d) for d, name in enumerate(names)}
        summed = [loop for loop in reduced if loop in letter]
        over = [chr(ord("A") + d) for d, name in enumerate(names) if name not in summed]
        parts = [(reduced[i], plan.steps[i]) for i in plan.steps_order if reduced[i] in summed]
        steps = [f"{n}{letter[loop].lower()}" for loop, n in parts if 1 < n < s.extent(loop)]
        group = f"{plan.tile[plan.vector]}{letter[lane].lower()}"
        tags[load.buffer.name] = "".join([*over, *(letter[loop] for loop in summed), *steps, group])
    return tags


def _split_reduction(s: Schedule, plan: TilePlan, stage: str) -> str:
    """Cuts the reduction into blocks; the stage that computes the sums of one register tile.

    In scratch that is a stage of partial sums, one block of the reduction at a time, or of all of them.
    """
    loops, rank = s.loops(stage), len(plan.nest.dims)
    halves = [s.split(loop, step) for loop, step in zip(loops[rank:], plan.steps, strict=True)]
    s.reorder(*loops[:rank], *(over for over, _ in halves), *(inner for _, inner in halves))
    if not plan.scratch:
        return stage
    if all(s.extent(over) == 1 for over, _ in halves):
        return s.cache_write(stage, "register")
    fused = halves[0][0]
    for over, _ in halves[1:]:
        fused = s.fuse(fused, over)
    return s.rfactor(stage, fused)


def _pad_lanes(s: Schedule, plan: TilePlan, stage: str, sums: str) -> None:
    """Whole vectors where there is room for them, else the last is masked; the output first, then what it reads."""
    if plan.vector is None:
        return
    loops = [s.loops(plan.nest.out.name)[plan.vector]]
    if plan.nest.reduction:
        d, rank = plan.nest.dims.index(plan.vector), len(plan.nest.dims)
        for name in dict.fromkeys((stage, sums)):
            loops += [s.loops(name)[d], *s.init_loops(name)[-rank:][d : d + 1]]
    for loop in loops:
        with suppress(ScheduleError):
            s.pad(loop, plan.width)


def _cut_output(s: Schedule, plan: TilePlan, lanes: int) -> tuple[list[str], list[str]]:
    """Tiles the nest of the output; returns its loops over cache tiles, and over register tiles in one of these.

    A cache tile of sums that is written across its vectors is transposed, a square of vectors at a time.
    """
    own = s.loops(plan.nest.out.name)
    single = [v for d, v in enumerate(own) if d not in plan.nest.axes.values()]
    outer: dict[int, str] = {}
    blocks: dict[int, str] = {}
    tiles: dict[int, str] = {}
    transposed = plan.scratch and plan.unit is not None and plan.vector not in (None, plan.unit)
    for d in plan.nest.axes.values():
        outer[d], rest = s.split(own[d], plan.block[d])
        square = {plan.vector: plan.width, plan.unit: min(lanes, plan.block[d])}.get(d, 1)
        blocks[d], tiles[d] = s.split(rest, square if transposed else plan.tile[d])
    over = [*single, *(outer[d] for d in plan.ordered("outermost", True))]
    within = [blocks[d] for d in plan.ordered("innermost", False)]
    if transposed and plan.vector is not None and plan.unit is not None:
        channel, lane = tiles.pop(plan.vector), tiles.pop(plan.unit)
        s.reorder(*over, *within, *tiles.values(), channel, lane)
        s.unroll(channel)
        s.vectorize(lane)
    else:
        s.reorder(*over, *within, *tiles.values())
        _lanes_and_unrolling(s, plan, list(tiles.values()), None if plan.vector is None else tiles[plan.vector])
    return over, within or over


def _lanes_and_unrolling(s: Schedule, plan: TilePlan, tile: Sequence[str], vector: str | None) -> int:
    """Vectors innermost in a register tile, its loops unrolled while they fit; returns its statements."""
    loops = [v for v in tile if v != vector]
    if vector is not None:
        block, lane = s.split(vector, plan.width)
        loops.append(block)
        s.reorder(*loops, lane)
        s.vectorize(lane)
    count = 1
    for loop in reversed(loops if plan.choice["unroll"] != "none" else ()):
        count *= s.extent(loop)
        if count > plan.most:
            break
        s.unroll(loop)
    return count


def _compute_sums(s: Schedule, plan: TilePlan, stage: str, sums: str, cache_tile: str, register_tile: str) -> None:
    if sums != stage:
        s.compute_at(stage, cache_tile)
        s.set_scope(stage, "local")
        register_tile = _add_blocks(s, plan, stage)
    s.compute_at(sums, register_tile)
    s.set_scope(sums, "register")
    if plan.lane_reduction is None:
        _sum_tile(s, plan, sums, None if plan.vector is None else plan.nest.dims.index(plan.vector))
    else:
        _sum_lanes(s, plan, sums)


def _sum_lanes(s: Schedule, plan: TilePlan, sums: str) -> None:
    """Sums in vectors along the reduction, which are added to each other and then across their lanes at the end."""
    rank = len(plan.nest.dims)
    partial = s.rfactor(sums, s.loops(sums)[(plan.lane_reduction or 0) - len(plan.nest.reduced)], -1)
    several, lane = s.split(s.loops(sums)[-1], plan.width)
    stages = [partial]
    if s.extent(several) > 1:
        stages.append(s.rfactor(sums, lane, -1, f"{sums}.lanes"))
        _unrolled(s, plan, stages[-1], s.loops(stages[-1])[-1])
    for stage in stages:
        s.set_scope(stage, "register")
    _sum_tile(s, plan, partial, rank)
    _unrolled(s, plan, sums, s.loops(sums)[-1])


def _unrolled(s: Schedule, plan: TilePlan, stage: str, vector: str) -> None:
    """A stage of one register tile as vectors along the loop ``vector``, its last."""
    inits = s.init_loops(stage)
    wide = len(inits) > len(plan.nest.dims)
    _lanes_and_unrolling(s, plan, s.loops(stage), vector)
    _lanes_and_unrolling(s, plan, inits, inits[-1] if wide else None)


def _add_blocks(s: Schedule, plan: TilePlan, stage: str) -> str:
    """The nest that adds a block's sums to a cache tile; returns its loop over the register tiles."""
    rank = len(plan.nest.dims)
    spatial, blocks = s.loops(stage)[:rank], s.loops(stage)[rank:]
    halves = {d: s.split(loop, plan.tile[d]) for d, loop in zip(plan.nest.dims, spatial, strict=True) if d is not None}
    single = [loop for d, loop in zip(plan.nest.dims, spatial, strict=True) if d is None]
    over = [halves[d][0] for d in plan.ordered("innermost", False)]
    tiles = [halves[d][1] for d in plan.nest.axes.values()]
    s.reorder(*single, *blocks, *over, *tiles)
    _vectors_together(s, plan, stage)
    _lanes_and_unrolling(s, plan, tiles, halves[plan.vector][1] if plan.vector is not None else None)
    if plan.vector is not None and s.init_loops(stage):
        inits = s.init_loops(stage)
        own = inits[plan.nest.dims.index(plan.vector)]
        block, lane = s.split(own, plan.width)
        s.reorder(*[v for v in inits if v != own], block, lane)
        s.vectorize(lane)
    return [*single, *blocks, *over][-1]


def _vectors_together(s: Schedule, plan: TilePlan, stage: str) -> None:
    """Lays a cache tile of sums out in vectors."""
    letters = [chr(ord("A") + d) for d in range(len(plan.nest.dims))]
    if plan.vector is not None and plan.nest.dims[-1] != plan.vector:
        lane = letters[plan.nest.dims.index(plan.vector)].lower()
        s.transform_layout(stage, "".join(letters) + f"{plan.width}{lane}")


def _sum_tile(s: Schedule, plan: TilePlan, sums: str, vector: int | None) -> None:
    """The sums of a register tile, lanes of its dimension ``vector``: reduction blocks, the steps of one, the tile."""
    rank = len(plan.nest.dims)
    loops, inits = s.loops(sums), s.init_loops(sums)
    inner = loops[len(loops) - len(plan.nest.reduced) :]
    spatial, outer = loops[:rank], loops[rank : len(loops) - len(inner)]
    steps = [inner[i] for i in plan.steps_order if i != plan.lane_reduction]
    if plan.lane_reduction is None:
        inits = inits[-rank:]
    else:
        spatial = [*spatial, inner[plan.lane_reduction]]
    s.reorder(*outer, *steps, *spatial)
    tile = _lanes_and_unrolling(s, plan, spatial, None if vector is None else spatial[vector])
    if plan.choice["unroll"] == "step" and steps and tile * s.extent(steps[-1]) <= UNROLLED:
        s.unroll(steps[-1])
    _lanes_and_unrolling(s, plan, inits, None if vector is None else inits[vector])


def _produce(s: Schedule, task: KernelTask, name: str, cache_tile: str, lanes: int) -> None:
    """Computes what the reduction reads for one cache tile, in the order of the input that it is made from."""
    s.compute_at(name, cache_tile)
    s.set_scope(name, "local")
    own = s.loops(name)
    source = _source_layout(task, name, len(own))
    if source is not None:
        s.transform_layout(name, source)
    d = (
        unit_axis(source, tuple(map(s.extent, own)))
        if source
        else next((d for d in reversed(range(len(own))) if s.extent(own[d]) > 1), None)
    )
    if d is None:
        return
    over, lane = s.split(own[d], min(lanes, s.extent(own[d])))
    s.reorder(*[v for v in own if v != own[d]], over, lane)
    s.vectorize(lane)


def _source_layout(task: KernelTask, name: str, rank: int) -> Layout | None:
    """The layout of the input behind a producer, if it has the same dimensions and is not row-major."""
    stage = next(t for t in task.stages() if t.name == name)
    found = [task.layouts[t.name] for t in stage.inputs if t.name in task.layouts]
    return next((layout for layout in found if layout.rank == rank and not layout.plain), None)
