"""Matrix products: a register tile of rows times column vectors, accumulated over the whole depth, epilogue fused.

The structure of ``parallel(batch, column panel) -> row tile -> k``. A constant right factor is packed at compile time
into panels ``[N / group][K][group]``, so that each is one contiguous stream, and the next one is prefetched; one row
(M = 1) takes more vectors, which is the memory-bound matrix-vector product. Where panels are too deep for the second
cache, the depth is cut into passes over all rows. One that is packed at a call is copied by the loop over panels, each
just before it is multiplied with, where that reads it once. Any other right factor is read in place where its columns
are vectors, and otherwise copied into panels, one batch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import numpy as np

from burnish.errors import ScheduleError
from burnish.kernels.cpu.common import apply_layouts, channel_constants, inline_around, mark, parallel_over
from burnish.kernels.cpu.panels import (
    are_panels,
    copies_own_panel,
    copy_panels,
    has_panels,
    is_copied,
    is_in_place,
    panel_layout,
    panels_fit,
)
from burnish.kernels.cpu.product import MatrixProduct, product
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, Size, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.expr import Axis, Reduce, Var
from burnish.loops.traverse import free_vars
from burnish.machines.register_tile import element_step, fits_elements
from burnish.machines.target import Target
from burnish.schedule.prefetch import LINE
from burnish.schedule.schedule import Schedule

ACROSS = 1.05  # cost of a step whose rows of the left factor lie across the ends of cache lines
FEW_PRODUCTS = 1 << 16  # multiply-adds below which waking the threads costs more than it saves
MOST_VECTORS = 8
PAGE, WAYS = 1 << 12, 8  # bytes between addresses in one set of the first cache, and the lines of a set


def _product(task: KernelTask, target: Target) -> MatrixProduct | None:
    p = product(task)
    if p is None:
        return None
    shape = task.outputs[0].shape
    own = [i for i in p.right.indices if free_vars(i) & {p.anchor.axes[-1].name}]
    whole_blocks = len(p.columns) == 1 or shape[p.columns[-1]] % target.lanes == 0
    plain = all(layout.plain for layout in task.layouts.values())
    return p if plain and whole_blocks and len(own) == 1 and isinstance(own[0], Var) else None


def _space(task: KernelTask, target: Target, p: MatrixProduct) -> ScheduleSpace:
    shape = task.outputs[0].shape
    rows = shape[p.rows[-1]] if p.rows else 1
    in_place = not has_panels(task, p, target.lanes) and is_in_place(task, p, target.lanes)
    tile, vectors, outer = _default(p, shape, target, in_place)
    knobs: dict[str, Sequence[int | str]] = {
        "tile": tuple(range(1, min(rows, target.vector_registers - 2) + 1)),
        "vectors": tuple(v for v in range(1, MOST_VECTORS + 1) if are_panels(p, shape, v * target.lanes)),
        "outer": ("columns", "all", "rows")[: 3 if len(p.rows) == 1 and not p.batch else 2],
        "depth": (0, *_depths(task, p, target.lanes)),  # steps of a pass over all rows; 0: all in one
        "unroll": (1, 2, 4),  # a loop's own instructions take slots from multiply-adds
    }
    depth = _pass_depth(task, p, vectors, target) if outer == "columns" else 0
    if outer == "columns" and not depth and not in_place and _has_long_rows(p, shape, vectors, target):
        outer = "rows"
    unroll = next(u for u in (4, 2, 1) if (depth or p.depth) % u == 0) if tile > 1 else 1
    return ScheduleSpace(knobs, {"tile": tile, "vectors": vectors, "outer": outer, "depth": depth, "unroll": unroll})


def _has_long_rows(p: MatrixProduct, shape: tuple[int, ...], vectors: int, target: Target) -> bool:
    """Whether the left factor is too long to be read again for every panel, and the right one is not.

    Not one whose rows are no runs of memory: a chunk of them has parts of too many pages.
    """
    if len(p.rows) != 1 or p.batch or p.left.indices[-1] not in {axis.var for axis in _summed(p)}:
        return False
    left, right = (4 * p.depth * shape[d] for d in (p.rows[-1], p.columns[-1]))
    return left > 8 * target.l2_bytes and left > 4 * right and shape[p.columns[-1]] > 2 * vectors * target.lanes


def _summed(p: MatrixProduct) -> tuple[Axis, ...]:
    """The axes that a product sums over."""
    assert isinstance(p.anchor.body, Reduce)
    return p.anchor.body.axes


def _chunk(p: MatrixProduct, target: Target, tile: int | np.ndarray) -> Any:
    """Tiles of rows whose part of the left factor takes half of the second cache: in order "rows", around panels."""
    return np.maximum(1, target.l2_bytes // 2 // (4 * p.depth * tile))


def _depths(task: KernelTask, p: MatrixProduct, lanes: int) -> list[int]:
    """The depths of passes, fewer than all steps, into which they divide; none where no rows share a panel in place."""
    if p.batch or not p.rows or is_copied(task, p, lanes):
        return []
    return [depth for depth in range(1, p.depth) if p.depth % depth == 0]


def _pass_depth(task: KernelTask, p: MatrixProduct, vectors: int, target: Target) -> int:
    """Steps of a pass of :func:`_apply_passes`; 0: one pass over all of them.

    Several passes pay where many rows share a panel that would not fit, with the next one, into the second cache. That
    of one pass takes a sixteenth of it, and all sums no more than a quarter.
    """
    group_bytes, rows = 4 * vectors * target.lanes, p.anchor.buffer.size // p.anchor.shape[-1]
    if panels_fit(p, vectors, target) or rows < 32 or rows * group_bytes > target.l2_bytes // 4:
        return 0
    most = target.l2_bytes // 16 // group_bytes
    return max((d for d in _depths(task, p, target.lanes) if target.lanes <= d <= most), default=0)


def _default(p: MatrixProduct, shape: tuple[int, ...], target: Target, in_place: bool) -> tuple[int, int, str]:
    """(rows, vectors) of the register tile, and which loops run in parallel.

    Minimises the cycles of the busiest core: a step of a tile costs ``rows * vectors / 2`` (two multiply-adds a cycle),
    and no less than the multiply-add latency of 4. The tile, one vector of each block and one broadcast must fit the
    register file; a single row reads its vectors from memory. A partial last tile costs its own size and more code.
    ``in_place``: the right factor is no panels, whose last one would have room for whole vectors.
    """
    rows = shape[p.rows[-1]] if p.rows else 1
    columns = shape[p.columns[-1]]
    around = _count(shape, (*p.columns[:-1], *p.batch))
    best: tuple[float, int, int, str] | None = None
    step = partial(element_step, target) if target.element_lanes else _step
    for vectors in range(1, MOST_VECTORS + 1):
        group = vectors * target.lanes
        if not are_panels(p, shape, group) or group >= columns + target.lanes:
            continue
        if in_place and columns % group and columns % target.lanes == 0:  # a mask at every load
            continue
        panels = around * -(-columns // group)
        for tile in range(1, min(rows, _most_rows(p)) + 1):
            if tile > 1 and tile * vectors + vectors + (vectors > 1) > target.vector_registers - (vectors == 1):
                break
            if tile > 1 and target.element_lanes and not fits_elements(target, tile, vectors):
                break
            full, rest = divmod(rows, tile)
            cycles = full * step(tile, vectors) * (ACROSS if _crosses_lines(p, tile) else 1.0)
            cycles = (cycles + step(rest, vectors)) * 1.02 if rest else cycles
            for outer, jobs, unit in (("columns", panels, cycles), ("all", panels * full, cycles / max(full, 1))):
                if outer == "all" and (rest or full == 1):
                    continue
                cost = -(-jobs // target.cores) * unit * (1.01 if outer == "all" else 1.0)
                if best is None or cost < best[0] * 0.999:
                    best = (cost, tile, vectors, outer)
    assert best is not None
    return best[1:]


def _step(rows: int, vectors: int) -> float:
    """Cycles of one reduction step of a tile: multiply-adds, loads (two a cycle), latency; loop, vectors from L2."""
    loads_per_row = 1.15 if vectors == 1 else 1.0  # a broadcast within the multiply-add, which is issued again to load
    return max(rows * vectors / 2, (rows * loads_per_row + vectors) / 2, 4.0) + 0.5 + 0.15 * vectors


def _crosses_lines(p: MatrixProduct, tile: int) -> bool:
    """Whether a tile's rows of the left factor lie side by side, and some of these runs in two cache lines."""
    return len(p.anchor.axes) > 1 and p.left.indices[-1] == p.anchor.axes[-2] and LINE // 4 % tile != 0


def _most_rows(p: MatrixProduct) -> int:
    """Rows of the left factor that a tile may read: those whole pages apart share one set of the first cache."""
    own = p.anchor.axes[-2].name if len(p.anchor.axes) > 1 else ""
    at = next((d for d, index in enumerate(p.left.indices) if own in free_vars(index)), len(p.left.indices))
    step = 4 * prod(p.left.buffer.shape[at + 1 :])
    return WAYS - 2 if step % PAGE == 0 else 1 << 10


def _count(shape: tuple[int, ...], axes: Sequence[int]) -> int:
    total = 1
    for d in axes:
        total *= shape[d]
    return total


def _apply(task: KernelTask, target: Target, p: MatrixProduct, choice: Choice) -> Schedule:
    lanes, group = target.lanes, int(choice["vectors"]) * target.lanes
    out = task.outputs[0]
    own_panel = copies_own_panel(task, target, p, choice)
    s, acc, copy = _prepare(task, p, own_panel or is_copied(task, p, lanes))
    constants = channel_constants(task, group)
    right = p.right.buffer.name
    panels, packed = panel_layout(p, group), has_panels(task, p, lanes) and not own_panel
    if packed:
        constants[right] = panels
    apply_layouts(s, task, constants)

    if choice["depth"]:
        part, tile = _apply_passes(s, task, p, target, choice, acc)
        if packed:
            s.prefetch(right, s.loops(f"{acc}.rf")[0], part, 1, tile)
        return s
    own = s.loops(out.name)
    panel, column = s.split(own[p.columns[-1]], group)
    block, lane = s.split(column, lanes)
    batch = [own[d] for d in p.batch]
    over = [own[d] for d in p.columns[:-1]] + [panel]
    rows = [own[d] for d in p.rows[:-1]]
    inner: list[str] = []
    if p.rows:
        tile, row = s.split(own[p.rows[-1]], int(choice["tile"]))
        rows.append(tile)
        inner.append(row)
    single = [v for d, v in enumerate(own) if d not in (*p.columns, *p.rows, *p.batch)]
    chunks: list[str] = []
    if choice["outer"] == "rows":
        chunk, rows[-1] = s.split(rows[-1], int(_chunk(p, target, int(choice["tile"]))))
        chunks.append(chunk)
    s.reorder(*single, *batch, *chunks, *over, *rows, *inner, block, lane)
    _follow(s, task, (rows or over)[-1], lanes)
    s.compute_at(acc, (rows or over)[-1])
    s.set_scope(acc, "register")
    mark(s, "unroll", *inner, block)
    s.vectorize(lane)
    _schedule_accumulator(s, acc, s.loops(acc), lanes, int(choice["unroll"]))
    jobs = [*batch, *over, *rows] if choice["outer"] == "all" else [*batch, *chunks, *over]
    if copy is not None:
        inside = bool(batch) and _count(out.shape, p.batch) >= target.cores
        copy_panels(s, copy, panels, panel if own_panel else batch[-1] if inside else None, lanes)
        jobs = batch if inside else jobs
    if p.anchor.buffer.size * p.depth > FEW_PRODUCTS:
        fused = parallel_over(s, [*single, *jobs])
        if packed and choice["outer"] == "columns" and panels_fit(p, int(choice["vectors"]), target):
            s.prefetch(right, s.loops(acc)[0], fused, 1, rows[-1] if rows else None)
        if own_panel and rows:
            s.prefetch(right, rows[-1], fused, 1, rows[-1])
        if rows:
            _hint_results(s, task, target, p, fused if rows[-1] in jobs else rows[-1])
    return s


def _hint_results(s: Schedule, task: KernelTask, target: Target, p: MatrixProduct, tile: str) -> None:
    """Hints, one tile of rows ahead, at what else is read at the place of each result: a weight that is updated, and
    what its optimizer remembers, which no cache but the last has held since the last step.
    """
    factors = (p.left.buffer.name, p.right.buffer.name)
    for t in task.inputs:
        if t.shape == task.outputs[0].shape and t.name not in factors and t.buffer.nbytes >= target.l2_bytes:
            with suppress(ScheduleError):  # what is read of it depends on data
                s.prefetch(t.name, tile, tile)


def _follow(s: Schedule, task: KernelTask, at: str, lanes: int) -> None:
    """The outputs behind the first, of each part of it while that is in the first cache."""
    for t in task.outputs[1:]:
        s.reverse_compute_at(t.name, at)
        *rows, column = s.loops(t.name)
        block, lane = s.split(column, lanes)
        mark(s, "unroll", *rows, block)
        s.vectorize(lane)


def _apply_passes(
    s: Schedule, task: KernelTask, p: MatrixProduct, target: Target, choice: Choice, acc: str
) -> tuple[str, str]:
    """The sums of a panel in scratch, to which each pass adds the products of ``depth`` steps.

    What a pass reads of the panel stays in the second cache from one tile of rows to the next. Returns the loops over
    passes and over tiles, which may share the hints of what the next pass will read.
    """
    lanes = target.lanes
    s.set_scope(acc, "global")
    partial = s.rfactor(acc, s.split(s.loops(acc)[-1], int(choice["depth"]))[0])
    own = s.loops(task.outputs[0].name)
    panel, column = s.split(own[p.columns[-1]], int(choice["vectors"]) * lanes)
    block, lane = s.split(column, lanes)
    over = [*(own[d] for d in p.columns[:-1]), panel]
    rows = [v for d, v in enumerate(own) if d not in p.columns]
    s.reorder(*over, *rows, block, lane)
    _follow(s, task, [*over, *rows][-1], lanes)
    s.vectorize(lane)
    s.compute_at(acc, panel)
    *spatial, row, column, part = s.loops(acc)
    s.pad(column, lanes)
    block, lane = s.split(column, lanes)
    tile, row = s.split(row, int(choice["tile"]))
    s.reorder(part, *spatial, tile, row, block, lane)
    mark(s, "unroll", row, block)
    s.vectorize(lane)
    column = s.init_loops(acc)[-1]
    s.pad(column, lanes)
    s.vectorize(s.split(column, lanes)[1])
    s.compute_at(partial, tile)
    s.set_scope(partial, "register")
    *spatial, _, k = s.loops(partial)
    _schedule_accumulator(s, partial, [*spatial, k], lanes, int(choice["unroll"]))
    parallel_over(s, over)
    return part, tile


def _prepare(task: KernelTask, p: MatrixProduct, copied: bool) -> tuple[Schedule, str, str | None]:
    """The schedule with all but the accumulator inlined into the output; the stage that copies the right factor."""
    s = Schedule(task.program())
    acc = inline_around(s, task, ())
    right = p.right.buffer.name
    if not copied:
        return s, acc, None
    s = Schedule(task.program())
    if right in {t.name for t in task.stages()}:
        return s, inline_around(s, task, (right,)), right
    acc = inline_around(s, task, ())
    return s, acc, s.cache_read(right, "local", acc)


def _schedule_accumulator(s: Schedule, acc: str, loops: Sequence[str], lanes: int, unroll: int) -> None:
    """Depth outside, the tile unrolled inside; columns beyond the last one are computed and not stored."""
    *spatial, k = loops
    s.pad(spatial[-1], lanes)
    block, lane = s.split(spatial[-1], lanes)
    k, step = s.split(k, unroll)
    s.reorder(k, step, *spatial[:-1], block, lane)
    mark(s, "unroll", step, *spatial[:-1], block)
    s.vectorize(lane)
    spatial = s.init_loops(acc)
    s.pad(spatial[-1], lanes)
    block, lane = s.split(spatial[-1], lanes)
    mark(s, "unroll", *spatial[:-1], block)
    s.vectorize(lane)


def _nests(task: KernelTask, target: Target, p: MatrixProduct) -> Describe:
    """Loop nests: batches and column panels outside, row tiles inside or around them, the depth around a register tile.

    With ``depth``: passes over all rows in each panel, which follow the product's own axes and not the output's.
    """
    shape, lanes, right = task.outputs[0].shape, target.lanes, p.right.buffer
    owner = {d: (axis, step) for axis, terms in enumerate(p.maps) for d, step in terms.items()}
    k, n = len(p.anchor.shape), len(p.anchor.shape) - 1
    constant = has_panels(task, p, lanes)
    in_place = statement(task, p.anchor)
    copied = is_copied(task, p, lanes)
    domain = statement(task, p.anchor, (right.name,)) if copied else in_place
    # The thread that multiplies also copies.
    by_batch = copied and bool(p.batch) and prod(shape[d] for d in p.batch) >= target.cores
    parallel = LoopKind.PARALLEL if p.anchor.buffer.size * p.depth > FEW_PRODUCTS else LoopKind.SERIAL
    at = next(d for d, i in enumerate(p.right.indices) if i == p.anchor.axes[-1])
    rest = [d for d in range(len(right.shape)) if d != at]
    outer: list[tuple[int, Size]] = [(d, 0) for d in (*rest[:-1], at, *rest[-1:])]

    def whole(d: int, annotation: Size) -> NestLevel:
        return NestLevel(owner[d][0], shape[d], owner[d][1], annotation)

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        vectors, tile, passes = knobs["vectors"], knobs["tile"], knobs["depth"] > 0
        group, depth = vectors * lanes, np.where(passes, knobs["depth"], p.depth)
        panels = LoopKind.SERIAL if by_batch else np.where(passes, LoopKind.PARALLEL, parallel)
        shared = np.where((knobs["outer"] == "all") & ~passes & (not by_batch), parallel, LoopKind.SERIAL)
        axis, last = owner[p.rows[-1]][0] if p.rows else n - 1, shape[p.rows[-1]] if p.rows else 1
        by_rows = (knobs["outer"] == "rows") & ~passes
        tiles = -(-last // tile)
        chunk = np.where(by_rows, np.minimum(_chunk(p, target, tile), tiles), tiles)
        levels = [whole(d, parallel) for d in p.batch]
        levels.append(NestLevel(axis, np.where(by_rows, -(-tiles // chunk), 1), chunk * tile, panels))
        levels += [whole(d, panels) for d in p.columns[:-1]]
        levels.append(NestLevel(n, -(-shape[p.columns[-1]] // group), group, panels))
        levels.append(NestLevel(k, -(-p.depth // depth), depth))
        for d in p.rows[:-1]:
            levels.append(_where(~passes, whole(d, shared)))
        levels += [_where(passes, NestLevel(axis, p.anchor.shape[axis])) for axis in range(n - 1) if not p.batch]
        tile_level = NestLevel(axis, tile if p.rows else 1, 1, LoopKind.UNROLL)
        levels += _either(
            passes, NestLevel(n - 1, -(-p.anchor.shape[n - 1] // tile), tile), NestLevel(axis, chunk, tile, shared)
        )
        levels += [
            NestLevel(k, -(-depth // knobs["unroll"]), knobs["unroll"]),
            NestLevel(k, knobs["unroll"], 1, LoopKind.UNROLL),
        ]
        levels += _either(passes, NestLevel(n - 1, tile, 1, LoopKind.UNROLL), tile_level)
        levels += [NestLevel(n, vectors, lanes, LoopKind.UNROLL), NestLevel(n, lanes, 1, LoopKind.VECTORIZE)]
        packed = {right.name: Arrangement(right.shape, (*outer, (at, group)))} if constant or copied else {}
        return domain.nest(levels, count, packed)

    return describe


def _where(mask: np.ndarray, level: NestLevel) -> NestLevel:
    """A level of the candidates in ``mask`` only."""
    return level._replace(extent=np.where(mask, level.extent, 1))


def _either(mask: np.ndarray, a: NestLevel, b: NestLevel) -> list[NestLevel]:
    """``a`` for the candidates in ``mask``, ``b`` for the others: one level if both advance the same axis."""
    if a.axis != b.axis:
        return [_where(mask, a), _where(~mask, b)]
    merged = (np.where(mask, x, y) for x, y in ((a.extent, b.extent), (a.step, b.step), (a.annotation, b.annotation)))
    return [NestLevel(a.axis, *merged)]


MATMUL = Template("matmul", _product, _space, _apply, _nests)
