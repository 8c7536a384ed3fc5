"""The space of multi-level tilings of any definition with one output and at most one reduction.

AutoTVM section 2 (its space for CPUs) and the tile structure of Ansor (section 4.1, "SSRSRS"), derived from the
definition alone: which axes there are, which one is consecutive in memory, which inputs are constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from burnish.kernels.cpu.common import (
    apply_layouts,
)
from burnish.kernels.cpu.strides import strides
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.loops.expr import ITEM_BYTES, Axis, Load, Reduce, Var
from burnish.loops.layout import Layout
from burnish.loops.program import Store, walk_stmt
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import loads
from burnish.machines.register_tile import register_tile
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

MOST = 12  # choices of one knob
SMALL = 1 << 20  # evaluations of the body below which one thread may be faster than several
SERIAL = 1 << 14  # evaluations below which it is assumed to be
FEW = 4  # elements of a register tile along an axis that is neither the vectors' nor that of its row
SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # offered besides divisors
REDUCED = "reduced "  # before the name of a reduction axis in the knob "vector"


@dataclass(frozen=True)
class ReductionTask:
    """A reduction with its epilogue, or a map: a task's output, and the stage that reduces (None: a map).

    ``dims`` gives for every dimension of the reduction that of the output at which it is read, None where it has one
    element. ``producers`` are the computed activations that the reduction reads: padding, mostly.
    """

    out: Tensor
    reduction: Tensor | None
    dims: tuple[int | None, ...]
    producers: tuple[Tensor, ...]

    @property
    def axes(self) -> Mapping[str, int]:
        """Name -> dimension of the output's axes of more than one element."""
        return {v.name: d for d, v in enumerate(self.out.axes) if self.out.shape[d] > 1}

    @property
    def reduced(self) -> tuple[Axis, ...]:
        """The reduction's own axes."""
        body = self.reduction.body if self.reduction else None
        return body.axes if isinstance(body, Reduce) else ()

    @property
    def item_bytes(self) -> int:
        """Bytes of an element that is computed, of which vectors are made."""
        return ITEM_BYTES[(self.reduction or self.out).dtype]

    @property
    def work(self) -> int:
        """Number of evaluations of the nest's body."""
        return self.out.buffer.size * prod(axis.extent for axis in self.reduced)


def find_nest(task: KernelTask) -> ReductionTask | None:
    """The nest of a task; None where it has several outputs or reductions, or an epilogue that is not element-wise."""
    if len(task.outputs) != 1 or not task.outputs[0].shape or 0 in task.outputs[0].shape:
        return None
    out = task.outputs[0]
    reducing = [t for t in task.stages() if isinstance(t.body, Reduce)]
    if not reducing:
        return ReductionTask(out, None, (), ())
    reduction = reducing[0]
    dims = _read_at(task, reduction, out)
    whole = {d for d in range(len(out.shape)) if out.shape[d] > 1}
    body = reduction.body
    assert isinstance(body, Reduce)
    if len(reducing) > 1 or dims is None or {d for d in dims if d is not None} != whole or not reduction.shape:
        return None
    if any(axis.extent < 1 for axis in body.axes):
        return None
    computed = [t for t in reduction.inputs if t.body is not None and _varies(t, task.constants)]
    return ReductionTask(out, reduction, dims, tuple(computed))


def _read_at(task: KernelTask, reduction: Tensor, out: Tensor) -> tuple[int | None, ...] | None:
    """For each dimension of ``reduction`` the output's dimension that indexes it; None if it is read in another way."""
    places: dict[str, tuple[int | None, ...]] = {
        out.name: tuple(d if n > 1 else None for d, n in enumerate(out.shape)),
    }
    behind = {reduction.name}
    for t in task.stages():
        if any(i.name in behind for i in t.inputs):
            behind.add(t.name)
    for reader in reversed(task.stages()):
        if reader.name not in behind or reader is reduction or reader.body is None:
            continue
        if reader.name not in places:
            return None
        axis_of = {v.name: place for v, place in zip(reader.axes, places[reader.name], strict=True)}
        for load in loads(reader.body):
            if load.buffer.name not in behind:
                continue
            place = _place(load, axis_of)
            if place is None or places.setdefault(load.buffer.name, place) != place:
                return None
    return places.get(reduction.name)


def _place(load: Load, axis_of: Mapping[str, int | None]) -> tuple[int | None, ...] | None:
    """The output dimension behind each index; None unless every index is an axis, or the only element there is."""
    place: list[int | None] = []
    for index, extent in zip(load.indices, load.buffer.shape, strict=True):
        if extent > 1 and not (isinstance(index, Var) and axis_of.get(index.name) is not None):
            return None
        place.append(axis_of[index.name] if extent > 1 and isinstance(index, Var) else None)
    used = [d for d in place if d is not None]
    return tuple(place) if len(set(used)) == len(used) else None


def _varies(t: Tensor, constants: frozenset[str]) -> bool:
    return t.name not in constants if t.body is None else any(_varies(i, constants) for i in t.inputs)


def prepare(task: KernelTask, nest: ReductionTask, kept: Sequence[str]) -> tuple[Schedule, str]:
    """The program with all but ``kept``, the reduction and the output inlined, and the stage that does the work.

    That is an accumulator of the reduction, or the output itself where nothing reduces.
    """
    s = Schedule(task.program())
    around = {nest.out.name, *kept, *([nest.reduction.name] if nest.reduction else [])}
    s.compute_inline(*[t.name for t in task.stages() if t.name not in around])
    if nest.reduction is None:
        return s, nest.out.name
    return s, s.cache_write(nest.out.name, "register") if nest.reduction is nest.out else nest.reduction.name


# --- the space --------------------------------------------------------------------------------------------------------


def space(task: KernelTask, target: Target, nest: ReductionTask) -> ScheduleSpace:
    """The knobs of a task and their analytic default.

    ``tile_x`` and ``block_x`` are the elements of axis ``x`` in a register tile and a cache tile (the latter is rounded
    up to whole register tiles), ``step_k`` the iterations of reduction axis ``k`` in one block of it. ``vector`` is the
    axis whose elements are lanes, of ``vectors`` vectors in a register tile. ``unroll`` is what is unrolled: the
    register tile, and with it the steps of the innermost reduction. ``outermost`` and ``innermost`` are axes of the
    loops over cache tiles, and over the register tiles in one. ``parallel`` is how many outer loops of several
    iterations run in parallel. ``accumulate`` keeps sums over all reduction blocks in registers, or lets each block add
    to a cache tile in scratch. ``producers`` are inlined, or computed for a cache tile.
    """
    target, names = target.for_items(nest.item_bytes), list(nest.axes)
    vectors = _vector_axes(task, nest, target)
    default = _default(task, nest, target, vectors)
    knobs: dict[str, Sequence[int | str]] = {}
    for name, d in nest.axes.items():
        extent = nest.out.shape[d]
        if vectors != [name]:
            most = target.vector_registers if name in (*vectors, default["innermost"]) else FEW
            knobs[f"tile_{name}"] = sizes(extent, most, int(default[f"tile_{name}"]))
        knobs[f"block_{name}"] = sizes(extent, extent, int(default[f"block_{name}"]))
    for axis in (a for a in nest.reduced if a.extent > 1):
        knobs[f"step_{axis.var.name}"] = [n for n in sizes(axis.extent, axis.extent) if axis.extent % n == 0]
    knobs["vector"] = vectors
    extents = [*(nest.out.shape[d] for d in nest.axes.values()), *(axis.extent for axis in nest.reduced)]
    most = -(-max(extents, default=1) // target.lanes)
    knobs["vectors"] = [n for n in (1, 2, 3, 4, 6, 8) if n <= max(most, int(default["vectors"]))]
    knobs["unroll"] = ("tile", "step") if nest.reduced else ("none", "tile")
    if names:
        knobs["outermost"] = knobs["innermost"] = names
        knobs["parallel"] = range(0 if nest.work <= SMALL else 1, len(names) + 1)
    if nest.reduced:
        knobs["innermost_reduction"] = [a.var.name for a in nest.reduced if a.extent > 1]
        knobs["accumulate"] = ("registers", "scratch")
        if nest.producers:
            knobs["producers"] = ("inline", "block")
    offered = {name: tuple(choices) for name, choices in knobs.items() if choices}
    return ScheduleSpace(offered, {name: default[name] for name in offered})


def sizes(extent: int, most: int, *kept: int) -> list[int]:
    """At most about a dozen sizes up to ``most``: divisors of the extent first, then others; ``kept`` in any case."""
    most = min(extent, most)
    divisors = [n for n in range(1, most + 1) if extent % n == 0]
    if len(divisors) > MOST:
        divisors = [divisors[round(i * (len(divisors) - 1) / (MOST - 1))] for i in range(MOST)]
    others = [n for n in SIZES if n <= most and n not in divisors]
    return sorted({*divisors, *others[: MOST - len(divisors)], *kept})


def unit_axis(layout: Layout, shape: tuple[int, ...]) -> int | None:
    """The dimension whose neighbouring elements are neighbours in memory; None if there is one element."""
    return next((p.dim for p in reversed(layout.parts) if shape[p.dim] > 1), None)


def _vector_axes(task: KernelTask, nest: ReductionTask, target: Target) -> list[str]:
    """Axes that may become lanes, best first.

    These are the axis along which the output is consecutive, and others along which what the sum reads is a vector or
    the same for all lanes: a reduction's own, or one of the output, which then takes scattered stores or a transposed
    cache tile. That pays for long sums if the output's own axis has gathers, borders or no whole number of vectors.
    """
    unit = unit_axis(task.layout(nest.out.name), nest.out.shape)
    if nest.reduction is None:
        return ["none"] if unit is None else [nest.out.axes[unit].name]
    s, stage = prepare(task, nest, ())
    apply_layouts(s, task, {})
    packed = [load.buffer.name in task.constants for load in body_loads(s, stage)]
    long = prod(axis.extent for axis in nest.reduced) >= 4 * target.lanes
    found: list[tuple[int, str]] = []
    for position, loop in enumerate(s.loops(stage)):
        steps, wide = strides(s, stage, loop).loads, s.extent(loop) >= target.lanes
        smooth = all(step in (0, 1) or constant for step, constant in zip(steps, packed, strict=True))
        if position >= len(nest.dims):
            axis = nest.reduced[position - len(nest.dims)]
            if wide and 1 in steps and set(steps) <= {0, 1}:
                found.append((3, REDUCED + axis.var.name))
            continue
        d = nest.dims[position]
        if d is not None and d == unit:
            whole = nest.out.shape[d] % target.lanes == 0 and not nest.producers
            found.append(((0 if whole or not long else 2) if smooth else 4, nest.out.axes[d].name))
        elif d is not None and wide and smooth:
            found.append((1, nest.out.axes[d].name))
    return [name for _, name in sorted(found, key=lambda item: item[0])] or ["none"]


def body_loads(s: Schedule, stage: str) -> list[Load]:
    """The loads of the stage's combining store, in the order of :class:`Strides`."""
    stores = [x for x in walk_stmt(s.program.body) if isinstance(x, Store) and x.buffer.name == stage]
    store = next((x for x in stores if x.reduce is not None), stores[0])
    return [x for e in (store.value, *store.indices) for x in loads(e)]


# --- the default ------------------------------------------------------------------------------------------------------


def _default(task: KernelTask, nest: ReductionTask, target: Target, vectors: Sequence[str]) -> Choice:
    """A register tile that hides latency and fits, a row of tiles for a cache tile, the whole reduction in one block.

    Positions of the tile lie along the axis before the vector's, as in a convolution's row or a matrix's rows. A cache
    tile is one register tile where else there were too few to share out.
    """
    names, lanes, vector = list(nest.axes), target.lanes, vectors[0]
    across = nest.axes.get(vector) not in (None, unit_axis(task.layout(nest.out.name), nest.out.shape))
    extents = {name: nest.out.shape[d] for name, d in nest.axes.items()}
    others = [name for name in names if name != vector]
    row = others[-1] if others else vector
    width, blocks = extents.get(row, 1) if others else 1, -(-extents.get(vector, 1) // lanes)
    if nest.reduction is None:
        row, positions, count = vector, 1, min(4, blocks)
    elif vector in extents:
        positions, count = register_tile(target, width, blocks)
        if across and positions > lanes:
            positions -= positions % lanes  # what is transposed are squares of vectors
    else:
        positions, count = min(width, 4), 4
    tile = dict.fromkeys(names, 1) | ({row: positions} if row != vector else {})
    tiles = {name: -(-extents[name] // (count * lanes if name == vector else tile[name])) for name in names}
    shares = prod(n for name, n in tiles.items() if name != row)
    block = tile | ({row: extents[row]} if row in names and shares >= 4 * target.cores else {})
    return {
        **{f"tile_{name}": tile[name] for name in names},
        **{f"block_{name}": block[name] for name in names},
        **{f"step_{axis.var.name}": axis.extent for axis in nest.reduced},
        "vector": vector, "vectors": count, "unroll": "tile", "parallel": len(names) if nest.work > SERIAL else 0,
        "outermost": names[0] if names else "", "innermost": row,
        "innermost_reduction": next((a.var.name for a in nest.reduced if a.extent > 1), ""),
        "accumulate": "scratch" if across else "registers", "producers": "inline",
    }  # fmt: skip
