"""float32 products on a bfloat16 matrix unit: parts of the input made once, then tiles of 2 x 2 accumulators.

The input's parts are written by all threads first; then every thread owns channel groups and row blocks, with no
barrier but the one between. Row-major images are transposed on the way, a row that becomes parts, and a block of tiles
that becomes output, while they are in the first cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import numpy as np

from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    copy_blocks,
    is_blocked,
    mark,
    parallel_over,
    single_output,
)
from burnish.kernels.cpu.product import in_order, index_maps
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, Size, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.expr import Reduce
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor
from burnish.machines.register_tile import unevenness
from burnish.machines.target import Target
from burnish.machines.unit import MatrixUnit
from burnish.ops.bf16x3 import DEPTH, ROWS, multiplies_parts
from burnish.schedule.schedule import Schedule

HELD = 4  # tiles of sums that the unit's registers have room for, beside those of the factors
SHORT = 3  # iterations of the window's loops that are unrolled
COLUMNS = 16  # channels of an accumulator tile
# By rank: where sums and the input's parts lie, channels innermost, and the weight's, a tile as the unit reads it.
TILE_LAYOUTS = {4: f"ACDB{COLUMNS}b", 2: "AB"}
PARTS_LAYOUTS = {7: f"ABCDEFG{DEPTH}c", 5: "ABCDE", 3: f"ACB{DEPTH}c"}
WEIGHT_LAYOUTS = {5: "ABCDE16c16b2c", 4: "ABCD16c16b2c", 3: "ACB16b16c2b"}


class Parts(NamedTuple):
    """The stage that sums products of parts, the input's parts that it reads, and the weight's."""

    tile: Tensor
    parts: Tensor
    weight: Tensor

    @property
    def is_stem(self) -> bool:
        """Whether tiles side by side belong to several rows of the output, each a block of its own in the tile."""
        return len(self.parts.shape) == 5


def _parts(task: KernelTask, target: Target) -> Parts | None:
    """The product of bfloat16 parts of a task with one output, where the target's unit multiplies such."""
    tile = task.anchor()
    if tile is None or len(tile.inputs) != 2 or len(task.outputs) != 1 or not multiplies_parts(target.unit):
        return None
    parts, weight = tile.inputs
    single = sum(isinstance(t.body, Reduce) for t in task.stages()) == 1
    split = parts.body is not None and parts.dtype == weight.dtype == "bfloat16" and parts.shape[0] == weight.shape[0]
    return Parts(tile, parts, weight) if single and split else None


def final_axes(task: KernelTask, tile: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The output's axes that run over the rows and over the columns of the product; None if it has another form."""
    maps = index_maps(task, tile)
    if maps is None:
        return None
    rows, columns = (in_order(terms, task.outputs[0].shape) for terms in maps)
    return (rows, columns) if rows is not None and columns else None


def _convolution(task: KernelTask, target: Target) -> Parts | None:
    found, out = _parts(task, target), task.outputs[0]
    if found is None or len(out.shape) != 4 or len(found.tile.shape) != 4:
        return None
    own = task.layout(out.name)
    return found if own.plain or is_blocked(own, 1, target.lanes) else None


def _space(task: KernelTask, target: Target, found: Parts) -> ScheduleSpace:
    tile = found.tile
    channels = tile.shape[1] // COLUMNS
    stem = found.is_stem
    tiles_m = 2 if (task.outputs[0].shape[2] if stem else tile.shape[3] // ROWS) % 2 == 0 else 1
    most = tiles_m if stem else 2
    knobs = {"tiles_n": (1, 2, 4), "tiles_m": tuple(range(1, most + 1)), "outer": ("oc", "block")}
    tiles_n = next(n for n in (4 // tiles_m, 2, 1) if channels % n == 0)  # four accumulators hide the unit's latency
    return ScheduleSpace(knobs, {"tiles_n": tiles_n, "tiles_m": tiles_m, "outer": "block"})


def _apply(task: KernelTask, target: Target, found: Parts, choice: Choice) -> Schedule:
    group = int(choice["tiles_n"]) * COLUMNS
    (tile, parts, weight), out = found, single_output(task)
    rows = int(choice["tiles_m"]) if found.is_stem else -(-task.outputs[0].shape[2] // tile.shape[2])
    s = Schedule(task.program())
    s.compute_inline(*[t.name for t in task.stages() if t.name not in (out, parts.name, tile.name)])
    accumulator = s.cache_write(tile.name, "register")
    apply_layouts(s, task, {**channel_constants(task, group), weight.name: WEIGHT_LAYOUTS[len(weight.shape)]})

    n, oc_group, block = _schedule_output(s, out, group, rows, target.lanes if task.layout(out).plain else 0)
    s.compute_at(tile.name, block)
    s.set_scope(tile.name, "local")
    outer = (n, oc_group, block) if choice["outer"] == "oc" else (n, block, oc_group)
    s.reorder(*outer)
    parallel_over(s, outer)
    _schedule_parts(s, parts.name, target.lanes)
    (source,) = parts.inputs
    if source in task.inputs and task.layout(source.name).plain and not found.is_stem:
        _copy_blocks(s, source.name, parts.name, target.lanes)
    _schedule_tiles(s, tile.name, accumulator, 1 if found.is_stem else int(choice["tiles_m"]), target.unit)
    return s


def _schedule_output(s: Schedule, out: str, group: int, rows: int, lanes: int) -> tuple[str, str, str]:
    """The nest that stores blocks of ``rows`` by groups of channels; returns its loops over images, groups and blocks.

    Vectors are channels, or ``lanes`` columns of a row-major output, which are transposed out of the tiles.
    """
    n, oc, oh, ow = s.loops(out)
    if not lanes:
        s.pad(oc, group)
    oc_group, oc = s.split(oc, group)
    oc_block, channel = s.split(oc, COLUMNS)
    block, row = s.split(oh, rows)
    if lanes:
        ow, column = s.split(ow, min(lanes, s.extent(ow)))
        s.reorder(n, oc_group, block, oc_block, row, ow, channel, column)
        s.unroll(channel)
        s.vectorize(column)
    else:
        s.reorder(n, oc_group, block, row, ow, oc_block, channel)
        s.unroll(oc_block)
        s.vectorize(channel)
    return n, oc_group, block


def _schedule_tiles(s: Schedule, tile: str, accumulator: str, along: int, unit: MatrixUnit | None) -> None:
    """Accumulators over all taps and channels, then stored to the block's buffer.

    They are ``along`` neighbours of every row there is, for every tile of channels.
    """
    assert unit is not None, "a matching target has one"
    own = s.loops(tile)
    image = len(own) == 4
    if image:
        s.transform_layout(tile, TILE_LAYOUTS[len(own)])
    rows, oc, q = _tile_loops(own, image)
    s.pad(q, ROWS * along)
    columns, j = s.split(oc, COLUMNS)
    over, i = s.split(q, ROWS)
    outer, over = s.split(over, along)
    s.reorder(outer, *rows, over, columns, i, j)
    s.compute_at(accumulator, outer)
    s.set_scope(accumulator, "register")
    s.transform_layout(accumulator, f"ABCD{ROWS}d{COLUMNS}b" if image else f"AB{ROWS}a{COLUMNS}b")
    update, init = s.loops(accumulator), s.init_loops(accumulator)
    a_rows, oc, q = _tile_loops(update, image)
    depth, *taps = update[len(own) :]
    a_columns, a_j = s.split(oc, COLUMNS)
    a_over, a_i = s.split(q, ROWS)
    depth, k = s.split(depth, DEPTH)
    k, pair = s.split(k, 2)
    s.reorder(depth, *taps, *a_rows, a_over, a_columns, a_i, a_j, k, pair)
    i_rows, oc, q = _tile_loops(init, image)
    i_columns, i_j = s.split(oc, COLUMNS)
    i_over, i_i = s.split(q, ROWS)
    s.reorder(*i_rows, i_over, i_columns, i_i, i_j)
    small = [t for t in taps if s.extent(t) <= 3]
    mark(s, "unroll", *rows, over, columns, *small, *a_rows, a_over, a_columns, *i_rows, i_over, i_columns)
    s.tensorize(i_i, unit.zero)
    s.tensorize(a_i, unit.dot)
    s.tensorize(i, unit.store)


def _tile_loops(loops: Sequence[str], image: bool) -> tuple[list[str], str, str]:
    """Rows, channels and pixels of a convolution's loops [n, oc, row, q]; a product's [m, n]: pixels and channels."""
    return ([loops[2]], loops[1], loops[3]) if image else ([], loops[1], loops[0])


def _schedule_parts(s: Schedule, parts: str, lanes: int) -> None:
    """Both parts of a vector of channels from one load."""
    own = s.loops(parts)
    if len(own) == 5:
        _schedule_rows(s, own, lanes)
        return
    part, outer, c = own[0], own[1], own[2]
    s.transform_layout(parts, PARTS_LAYOUTS[len(own)])
    over, c = s.split(c, DEPTH)
    half, lane = s.split(c, lanes)
    if len(own) == 7:
        # Rows outermost: a thread multiplies mostly those that it has made.
        phase_h, phase_w, row, column = own[3:]
        shared, inner = [outer, row, over], [phase_h, phase_w, column]
    else:
        shared, inner = [outer], [over]
    s.reorder(*shared, *inner, half, part, lane)
    mark(s, "unroll", half, part)
    s.vectorize(lane)
    parallel_over(s, shared)


def _copy_blocks(s: Schedule, source: str, parts: str, lanes: int) -> None:
    """Transposes a row of a row-major image into channel blocks, which are then read from the first cache."""
    phase_h = s.loops(parts)[-6]
    copy = s.cache_read(source, "local", parts)
    s.compute_at(copy, phase_h)
    copy_blocks(s, copy, lanes)


def _schedule_rows(s: Schedule, own: list[str], lanes: int) -> None:
    """Parts of an image of few channels, which become innermost: vectors of columns, scattered."""
    part, n, row, column, c = own
    s.pad(column, lanes)
    over, lane = s.split(column, lanes)
    s.reorder(n, row, over, c, part, lane)
    mark(s, "unroll", c, part)
    s.vectorize(lane)
    parallel_over(s, (n, row))


class Matrices(NamedTuple):
    """The parts, and the output's axes that run over the rows and over the columns of the product."""

    parts: Parts
    rows: tuple[int, ...]
    columns: tuple[int, ...]


def _matrices(task: KernelTask, target: Target) -> Matrices | None:
    found = _parts(task, target)
    if found is None or len(found.tile.shape) != 2:
        return None
    final = final_axes(task, found.tile)
    if final is None or prod(task.outputs[0].shape[d] for d in final[1]) < COLUMNS:
        return None
    return Matrices(found, *final)


def _space_matmul(task: KernelTask, target: Target, found: Matrices) -> ScheduleSpace:
    tile = found.parts.tile
    rows = tile.shape[0]
    tiles_m = 2 if rows % (2 * ROWS) == 0 else 1
    blocks = tuple(b for b in range(tiles_m * ROWS, rows + 1, tiles_m * ROWS) if rows % b == 0)
    knobs = {"tiles_n": (1, 2), "tiles_m": (1, tiles_m), "block": blocks, "outer": ("columns", "rows")}
    inner = task.outputs[0].shape[found.columns[-1]]
    wide = inner % (2 * COLUMNS) == 0 or inner > 8 * COLUMNS
    depth = tile.inputs[0].shape[2]
    stays = 4 * rows * depth <= target.l2_bytes // 2  # the input's parts, read again for every column group
    share = -(-rows // (target.cores * 2 * ROWS)) * 2 * ROWS
    groups = prod(task.outputs[0].shape[d] for d in found.columns[:-1]) * -(-inner // (COLUMNS * (2 if wide else 1)))
    default = {
        "tiles_n": 2 if wide else 1,
        "tiles_m": tiles_m,
        "block": _nearest(blocks, 128 if stays else min(128, share), rows, groups, target),
        "outer": "columns" if stays else "rows",
    }
    return ScheduleSpace(knobs, default)


def _nearest(blocks: Sequence[int], wanted: int, rows: int, groups: int, target: Target) -> int:
    """The block whose ratio to the wanted size is closest to one, of those that share out evenly."""

    def key(block: int) -> tuple[float, float]:
        return unevenness(groups * -(-rows // block), target.cores), max(block / wanted, wanted / block)

    return min(blocks, key=key)


def _whole(extent: int, block: int, tile: int) -> bool:
    """Whether blocks within an axis of rows are whole ones, made of whole tiles."""
    block = min(block, extent)
    return extent % block == 0 and block % tile == 0


def _apply_matmul(task: KernelTask, target: Target, found: Matrices, choice: Choice) -> Schedule:
    group, block = int(choice["tiles_n"]) * COLUMNS, int(choice["block"])
    (tile, parts, weight), out = found.parts, single_output(task)
    s = Schedule(task.program())
    s.compute_inline(*[t.name for t in task.stages() if t.name not in (out, parts.name, tile.name)])
    accumulator = s.cache_write(tile.name, "register")
    apply_layouts(s, task, {weight.name: WEIGHT_LAYOUTS[len(weight.shape)]})
    own = s.loops(out)
    rows, columns = [own[d] for d in found.rows], [own[d] for d in found.columns]
    rest = [v for v in own if v not in rows and v not in columns]
    if len(rows) > 1 and not _whole(s.extent(rows[-1]), block, int(choice["tiles_m"]) * ROWS):
        s.reorder(*rest, *rows, *columns)
        while len(rows) > 1:
            rows = [s.fuse(rows[0], rows[1]), *rows[2:]]
    if len(columns) > 1 and s.extent(columns[-1]) % COLUMNS:
        s.reorder(*rest, *rows, *columns)
        while len(columns) > 1:
            columns = [s.fuse(columns[0], columns[1]), *columns[2:]]
    over, n = s.split(columns[-1], min(group, s.extent(columns[-1])))
    half, lane = s.split(n, COLUMNS)
    many, m = s.split(rows[-1], min(block, s.extent(rows[-1]))) if rows else (None, None)
    over_columns, over_rows = [*columns[:-1], over], [*rows[:-1], *([many] if many else [])]
    outer = [*rest, *over_columns, *over_rows] if choice["outer"] == "columns" else [*rest, *over_rows, *over_columns]
    s.reorder(*outer, *([m] if m else []), half, lane)
    s.compute_at(tile.name, outer[-1])
    s.set_scope(tile.name, "local")
    s.unroll(half)
    s.vectorize(lane)
    parallel_over(s, outer)
    _schedule_parts(s, parts.name, target.lanes)
    _schedule_tiles(s, tile.name, accumulator, int(choice["tiles_m"]), target.unit)
    return s


# --- what cost models see ---------------------------------------------------------------------------------------------
# The unit's own loops over the rows and the depth of a tile stand as serial ones around a vector of channels, so that
# the sums a nest keeps at hand are counted in tiles.


def _conv_nests(task: KernelTask, target: Target, found: Parts) -> Describe:
    """Groups of channels and blocks of rows in parallel, in either order; in each all tiles of ``tiles_m`` neighbours.

    Of a stem a block is ``tiles_m`` rows of the output, and the tiles of a column belong to all of them.
    """
    del target
    tile, parts, _ = found
    domain, arrangements = statement(task, tile, (parts.name,)), _arrangements(found)
    batch, outputs, blocks, _ = tile.shape
    _, _, height, width = task.outputs[0].shape
    n, oc, block, q = range(4)
    stem = found.is_stem
    pitch = parts.shape[-1]
    pixels = width if stem else (-(-height // blocks) - 1) * pitch + width  # of a block, up to the last that is used

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        group, along, first = knobs["tiles_n"] * COLUMNS, knobs["tiles_m"], knobs["outer"] == "oc"
        high, wide = (along, 1) if stem else (1, along)
        groups = -(-outputs // group)
        levels = [
            NestLevel(n, batch, 1, LoopKind.PARALLEL),
            NestLevel(oc, np.where(first, groups, 1), group, LoopKind.PARALLEL),
            NestLevel(block, -(-blocks // high), high, LoopKind.PARALLEL),
            NestLevel(oc, np.where(first, 1, groups), group, LoopKind.PARALLEL),
            NestLevel(q, -(-pixels // (ROWS * wide)), ROWS * wide),
            *_sums(4, domain.extents[4:]),
            NestLevel(block, high, 1, LoopKind.UNROLL),
            *_tiles(q, wide, oc, knobs["tiles_n"], 4),
        ]
        return replace(domain.nest(levels, count, arrangements), registers=HELD)

    return describe


def _matmul_nests(task: KernelTask, target: Target, found: Matrices) -> Describe:
    """Groups of columns and blocks of rows in parallel, in either order; in a block all tiles of ``tiles_m`` rows."""
    del target
    tile, parts, _ = found.parts
    domain, arrangements = statement(task, tile, (parts.name,)), _arrangements(found.parts)
    rows, columns = tile.shape
    m, n = range(2)

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        group, along, first = knobs["tiles_n"] * COLUMNS, knobs["tiles_m"], knobs["outer"] == "columns"
        block = np.minimum(knobs["block"], rows)
        groups = -(-columns // group)
        levels = [
            NestLevel(n, np.where(first, groups, 1), group, LoopKind.PARALLEL),
            NestLevel(m, -(-rows // block), block, LoopKind.PARALLEL),
            NestLevel(n, np.where(first, 1, groups), group, LoopKind.PARALLEL),
            NestLevel(m, -(-block // (ROWS * along)), ROWS * along),
            *_sums(2, domain.extents[2:]),
            *_tiles(m, along, n, knobs["tiles_n"], 2),
        ]
        return replace(domain.nest(levels, count, arrangements), registers=HELD)

    return describe


def _sums(first: int, extents: Sequence[int]) -> list[NestLevel]:
    """The depth by the unit's tiles, then the window and the three products of parts: axes from ``first`` on."""
    depth, *taps = extents
    inner = [
        NestLevel(first + k, extent, 1, LoopKind.UNROLL if extent <= SHORT else LoopKind.SERIAL)
        for k, extent in enumerate(taps, 1)
    ]
    return [NestLevel(first, depth // DEPTH, DEPTH), *inner]


def _tiles(row: int, along: Size, column: int, across: Size, depth: int) -> list[NestLevel]:
    """The tiles that are kept at hand, and the loops of one: its depth, rows and columns."""
    return [
        NestLevel(row, along, ROWS, LoopKind.UNROLL),
        NestLevel(column, across, COLUMNS, LoopKind.UNROLL),
        NestLevel(depth, DEPTH),
        NestLevel(row, ROWS),
        NestLevel(column, COLUMNS, 1, LoopKind.VECTORIZE),
    ]


def _arrangements(found: Parts) -> dict[str, Arrangement]:
    """Arrangements of the sums, the input's parts, and the weight's, by the tensor's name."""
    tile, parts, weight = found
    tags = ((tile, TILE_LAYOUTS), (parts, PARTS_LAYOUTS), (weight, WEIGHT_LAYOUTS))
    return {t.name: Arrangement.of(layout(by_rank[len(t.shape)]), t.shape) for t, by_rank in tags}


SPLIT_MATMUL = Template("split_matmul", _matrices, _space_matmul, _apply_matmul, _matmul_nests)
SPLIT_CONV = Template("split_conv2d", _convolution, _space, _apply, _conv_nests)
