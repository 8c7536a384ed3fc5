"""Winograd convolution with pre-transformed weights: input transform, n x n products, output transform per tile block.

Two placements of the transformed input. ``tile``: every block of tiles is transformed, multiplied and transformed back
by one thread in private scratch, with no barrier. ``shared``: all tiles are transformed first, then threads own channel
groups of blocks of tiles; for few tiles and many weights, which are then read once or seldom.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from burnish.graph.costs import cache_seconds
from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    is_blocked,
    mark,
    parallel_over,
    single_output,
    whole_groups,
)
from burnish.kernels.match import mapped_from, mapped_to
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.expr import Reduce
from burnish.loops.tensor import Tensor
from burnish.machines.register_tile import fits_elements, most_positions, register_tile, tile_step, unevenness
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

BARRIER = 0.2e-6  # seconds of one more parallel region for each core: two cache lines that move between cores
SURELY = 0.8  # of the usual split's time: another must be predicted to take less, since predictions err
FROM_SECOND = 0.5  # cycles of a step for each vector of weights, which come out of the second cache


class WinogradStages(NamedTuple):
    """Winograd's algorithm: pixels of tiles, transformed by columns and rows, multiplied, and transformed back."""

    pixels: Tensor
    rows: Tensor
    data: Tensor
    weight: Tensor
    product: Tensor
    columns: Tensor
    conv: Tensor


def chain(task: KernelTask, target: Target, reducing: int = 5) -> WinogradStages | None:
    """The chain in a task of one output between images in channel blocks, with no view fused in front.

    ``reducing``: the stages that reduce, which are two more where the weight is transformed too.
    """
    product, out = task.anchor(), task.outputs[0]
    if product is None or len(product.inputs) != 2 or len(task.outputs) != 1:
        return None
    data, weight = product.inputs
    rows, columns = mapped_from(data), mapped_to(task, product)
    pixels, conv = mapped_from(rows), mapped_to(task, columns)
    if rows is None or pixels is None or columns is None or conv is None or len(pixels.inputs) != 1:
        return None
    (source,) = pixels.inputs
    fits = (
        source in task.inputs
        and out.shape == conv.shape
        and sum(isinstance(t.body, Reduce) for t in task.stages()) == reducing
        and is_blocked(task.layout(out.name), 1, target.lanes)
        and is_blocked(task.layout(source.name), 1, target.lanes)
        and source.shape[1] % target.lanes == 0
    )
    return WinogradStages(pixels, rows, data, weight, product, columns, conv) if fits else None


def chain_sizes(task: KernelTask, found: WinogradStages) -> tuple[int, int, int, int, int, int]:
    """(m, products of a tile, input channels, output channels, groups of channels, tiles)."""
    height, width, channels, tiles = found.data.shape
    depth = found.weight.shape[3]
    return found.columns.shape[2], height * width, channels, task.outputs[0].shape[1], channels // depth, tiles


def _space(task: KernelTask, target: Target, found: WinogradStages) -> ScheduleSpace:
    m, products, channels, outputs, groups, tiles = chain_sizes(task, found)
    blocks = -(-outputs // groups // target.lanes)
    positions, vectors = register_tile(target, tiles, blocks, padded=True)
    weight_bytes = 4 * products * (channels // groups) * outputs
    panels = -(-outputs // (vectors * target.lanes))
    sizes = (28, 14, 21, 16, 12, 8) if weight_bytes <= target.l2_bytes // 2 else (14, 16, 12, 8)
    block = next((b for b in sizes if tiles % b == 0 and tiles // b >= 2 * target.cores), 0)
    scratch_bytes = 4 * products * block * (channels + vectors * target.lanes)
    fits = weight_bytes <= target.l2_bytes // 2 or weight_bytes + scratch_bytes <= target.l2_bytes * 7 // 8
    private = block and (fits or tiles >= 8 * block)
    placement = "tile" if private or panels < target.cores else "shared"
    if placement == "tile":
        size = block or max(1, -(-tiles // (2 * target.cores)))
        positions, vectors = register_tile(target, size, blocks, padded=True)
    else:
        size = tiles if tiles <= 64 else -(-tiles // -(-tiles // 28))
        wide, fitting = min(tiles, 6), target.vector_registers - 5  # beside a weight of each vector and a broadcast
        if blocks % 4 == 0 and groups * blocks // 4 >= target.cores and 4 * wide <= fitting:
            positions, vectors = wide, 4  # wide panels read the shared tiles less often
    jobs = -(-tiles // size) * (1 if placement == "tile" else -(-outputs // (vectors * target.lanes)))
    if (placement == "tile" and not block) or unevenness(jobs, target.cores) > 1:
        usual = placement, size, positions, vectors
        placement, size, positions, vectors = _busiest_least(target, found, task, blocks, usual)
    knobs = {
        "placement": ("tile", "shared"),
        "block": _blocks(tiles, -(-task.outputs[0].shape[3] // m)),
        "positions": tuple(range(1, target.vector_registers - 1)),
        "vectors": whole_groups(blocks),
        "prefetch": (0, 1),  # of the next product's weights
    }
    default: Choice = {"placement": placement, "block": size, "positions": positions, "vectors": vectors}
    return ScheduleSpace(knobs, {**default, "prefetch": int(weight_bytes > target.l2_bytes)})


def _busiest_least(
    target: Target, found: WinogradStages, task: KernelTask, blocks: int, usual: tuple[str, int, int, int]
) -> tuple[str, int, int, int]:
    """(placement, tiles of a block, positions, vectors) of the least time of the busiest core, where a split by blocks
    of tiles or by channels alone would leave cores idle: cycles of register tiles, and bytes from behind its caches.
    ``usual``: the choice that stays unless another is surely faster.
    """
    _, products, channels, outputs, groups, tiles = chain_sizes(task, found)
    depth = products * (channels // groups)
    weight_bytes, tile_bytes = 4 * depth * outputs, 4 * products * channels
    cycles_a_byte = target.core.clock * target.cores * cache_seconds(1.0, target)

    def cost(placement: str, size: int, positions: int, vectors: int) -> float:
        panels, over = -(-blocks * groups // vectors), -(-tiles // size)
        private = placement == "tile"
        rounds = -(-over * (1 if private else panels) // target.cores)
        step = tile_step(positions, vectors, target) + FROM_SECOND * vectors
        products_of_panel = depth * -(-size // positions) * step
        held = weight_bytes <= target.l2_bytes * 3 // 4  # once it is read, beside the tiles of a block
        weights = weight_bytes * (1 if held else rounds) if private else min(rounds, panels) * weight_bytes / panels
        data = 0 if private else min(rounds, over) * size * tile_bytes
        waited = 0.0 if private else BARRIER * target.cores * target.core.clock
        return rounds * products_of_panel * (panels if private else 1) + (weights + data) * cycles_a_byte + waited

    choices = [
        (placement, size, positions, vectors)
        for placement in ("shared", "tile")
        for vectors in whole_groups(blocks)
        for size in even_blocks(tiles)
        for positions in range(1, min(size, most_positions(target, vectors)) + 1)
        if not target.element_lanes or fits_elements(target, positions, vectors)
    ]
    best = min(choices, key=lambda choice: cost(*choice))
    return best if cost(*best) < SURELY * cost(*usual) else usual


def _blocks(tiles: int, row: int) -> tuple[int, ...]:
    """Sizes of blocks, the least ones for as many, and whole rows of tiles."""
    return tuple(sorted({*even_blocks(tiles), *range(row, tiles, row)}))


def even_blocks(tiles: int) -> tuple[int, ...]:
    """Sizes of blocks, the least ones for as many."""
    return tuple(sorted({-(-tiles // count) for count in range(1, tiles + 1)}))


def _apply(task: KernelTask, target: Target, found: WinogradStages, choice: Choice) -> Schedule:
    """Schedule of a choice. What depends on few choices comes first: a process that makes many makes it once."""
    m, products, *_ = chain_sizes(task, found)
    lanes, vectors, out = target.lanes, int(choice["vectors"]), single_output(task)
    pixels, rows, data, weight, product, columns, conv = (t.name for t in found)
    s = Schedule(task.program())
    s.compute_inline(*[t.name for t in task.stages() if not isinstance(t.body, Reduce) and t.name not in (out, pixels)])
    for transform in (rows, data, columns, conv):
        s.expand(transform)
    accumulator = s.cache_write(product, "register")
    apply_layouts(s, task, {**channel_constants(task, lanes), weight: f"CABD{vectors * lanes}c"})
    in_registers = products <= target.vector_registers
    schedule_data(s, pixels, rows, data, lanes, in_registers)
    tiles, oc_block = schedule_output(s, out, conv, columns, m, lanes, in_registers)
    _vectorize_product(s, product, accumulator, lanes)

    # Blocks of tiles and groups of channels around everything, and the products of both.
    block, tile = s.split(tiles, int(choice["block"]))
    over, oc_block = s.split(oc_block, vectors)
    private = choice["placement"] == "tile"
    s.reorder(*((block, over) if private else (over, block)), tile, oc_block)
    s.compute_at(product, over if private else block)
    points, register_tiles = _tile_product(s, product, accumulator, int(choice["positions"]))
    if private:
        s.compute_at(data, block)
    else:
        parallel_over(s, s.loops(data)[:2])
    inputs, _ = s.split(s.loops(accumulator)[-4], lanes)
    if private:
        s.parallel(block)
    else:  # one after the other: that blocks which end in the middle of a row are apart is not seen of both at once
        s.parallel(over)
        s.parallel(block)
        s.fuse(over, block)
    if choice["prefetch"]:
        s.prefetch(weight, inputs, points, 1, register_tiles)
    return s


def schedule_data(s: Schedule, pixels: str, rows: str, data: str, lanes: int, in_registers: bool) -> None:
    """The input transform, a tile at a time, in vectors of channels: its columns, then its rows.

    ``in_registers``: all of a tile is held in registers, else only a column or a row.
    """
    s.transform_layout(data, f"ABCD{lanes}c")
    s.transform_layout(rows, "ACDB")
    row, unrolled, c, tile = s.loops(data)
    over, lane = s.split(c, lanes)
    s.reorder(over, tile, row, unrolled, lane)
    s.compute_at(rows, tile)
    mark(s, "unroll", unrolled)
    s.vectorize(lane)
    _, c, unrolled, column = s.loops(rows)
    s.reorder(column, unrolled, c)
    s.compute_at(pixels, column)
    mark(s, "unroll", unrolled)
    s.vectorize(c)
    _vectors(s, pixels)
    if in_registers:
        s.set_scope(rows, "register")
        mark(s, "unroll", row, column)


def schedule_output(
    s: Schedule, out: str, conv: str, columns: str, m: int, lanes: int, in_registers: bool
) -> tuple[str, str]:
    """The nest that stores the result: tiles, blocks of channels, the pixels of a tile. Returns the first two loops."""
    batch, oc, oh, ow = s.loops(out)
    for channels in dict.fromkeys((oc, s.loops(conv)[1], s.loops(columns)[1])):
        s.pad(channels, lanes)
    oc_block, lane = s.split(oc, lanes)
    tile_h, row = s.split(oh, m)
    tile_w, unrolled = s.split(ow, m)
    s.reorder(batch, tile_h, tile_w, oc_block, row, unrolled, lane)
    tiles = s.fuse(s.fuse(batch, tile_h), tile_w)
    if conv != out:
        s.compute_at(conv, row)
        _vectors(s, conv)
    s.transform_layout(columns, "ACDB")
    s.compute_at(columns, oc_block)
    mark(s, "unroll", unrolled)
    s.vectorize(lane)
    _, c, unrolled, column = s.loops(columns)
    s.reorder(column, unrolled, c)
    mark(s, "unroll", unrolled)
    s.vectorize(c)
    if in_registers:
        s.set_scope(columns, "register")
        mark(s, "unroll", row, column)
    return tiles, oc_block


def _vectors(s: Schedule, stage: str) -> None:
    """A row or a column of pixels in registers, channels in one vector."""
    s.set_scope(stage, "register")
    _, c, *rest = s.loops(stage)
    s.reorder(*rest, c)
    mark(s, "unroll", *rest)
    s.vectorize(c)


def _vectorize_product(s: Schedule, product: str, accumulator: str, lanes: int) -> None:
    """n x n matrix products [channels] x [tiles], in vectors of channels; the sums of each in registers."""
    s.transform_layout(product, f"ABDC{lanes}c")
    s.transform_layout(accumulator, f"ABDC{lanes}c")
    s.set_scope(accumulator, "register")
    for i, j, oc, p, *summed in (s.loops(product), s.init_loops(accumulator), s.loops(accumulator)):
        s.pad(oc, lanes)
        block, lane = s.split(oc, lanes)
        s.reorder(i, j, *summed, p, block, lane)
        s.unroll(block)
        s.vectorize(lane)


def _tile_product(s: Schedule, product: str, accumulator: str, positions: int) -> tuple[tuple[str, str], str]:
    """Register tiles of ``positions`` tiles of the image, padded to whole ones: the padding is computed, and not read.

    Not to compute it would take a branch for each. Returns the loops over the products and those over register tiles.
    """
    i, j, p, *_ = s.loops(product)
    s.pad(p, positions)
    over, p = s.split(p, positions)
    s.compute_at(accumulator, over)
    s.unroll(p)
    for tile in (s.loops(accumulator)[-3], s.init_loops(accumulator)[-3]):
        s.pad(tile, positions)
        s.unroll(tile)
    return (i, j), over


def _nests(task: KernelTask, target: Target, found: WinogradStages) -> Describe:
    """Tile blocks and channel groups in either order around n x n products, each of register tiles."""
    stage, lanes = found.product, target.lanes
    domain = statement(task, stage)
    points_h, points_w, outputs, tiles, phases_h, phases_w, inputs = domain.extents
    i, j, oc, p, phase_h, phase_w, ic = range(7)
    data, weight = found.data, found.weight

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        block, positions, vectors = knobs["block"], knobs["positions"], knobs["vectors"]
        group, by_tiles = vectors * lanes, knobs["placement"] == "tile"
        blocks, groups = -(-tiles // block), -(-outputs // group)
        levels = [
            NestLevel(p, np.where(by_tiles, blocks, 1), block, LoopKind.PARALLEL),
            NestLevel(oc, groups, group, np.where(by_tiles, LoopKind.SERIAL, LoopKind.PARALLEL)),
            NestLevel(p, np.where(by_tiles, 1, blocks), block, LoopKind.PARALLEL),
            NestLevel(i, points_h),
            NestLevel(j, points_w),
            NestLevel(p, -(-block // positions), positions),
            NestLevel(phase_h, phases_h),
            NestLevel(phase_w, phases_w),
            NestLevel(ic, -(-inputs // lanes), lanes),
            NestLevel(ic, lanes),
            NestLevel(p, positions, 1, LoopKind.UNROLL),
            NestLevel(oc, vectors, lanes, LoopKind.UNROLL),
            NestLevel(oc, lanes, 1, LoopKind.VECTORIZE),
        ]
        computed = -(-block // positions) * positions
        held = np.where(by_tiles, computed, np.maximum((blocks - 1) * block + computed, tiles))
        arrangements = {
            data.name: Arrangement((*data.shape[:3], held), ((0, 0), (1, 0), (2, 0), (3, 0), (2, lanes))),
            weight.name: Arrangement(weight.shape, ((2, 0), (0, 0), (1, 0), (3, 0), (2, group))),
        }
        return domain.nest(levels, count, arrangements)

    return describe


WINOGRAD_CONV = Template("winograd_conv2d", chain, _space, _apply, _nests)
