"""Winograd convolution with pre-transformed weights: input transform, n x n products, output transform per tile block.

Two placements of the transformed input. ``tile``: every block of tiles is transformed, multiplied and transformed back
by one thread in private scratch, with no barrier. ``shared``: all tiles are transformed first, then threads own channel
groups; for few tiles and many weights, which are then read once.
"""

from __future__ import annotations

from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    is_blocked,
    mark,
    parallel_over,
    register_tile,
    single_output,
    whole_groups,
)
from burnish.kernels.task import Choice, Space, Task, Template
from burnish.loops.expr import Reduce
from burnish.loops.tensor import Tensor
from burnish.schedule.schedule import Schedule
from burnish.target import Target


def _conv(task: Task) -> Tensor:
    """The stage that holds the convolution's result."""
    product = next(t for t in task.stages() if t.name.endswith(".product"))
    return next(t for t in task.stages() if t.name == product.name.removesuffix(".product"))


def _matches(task: Task, target: Target) -> bool:
    if task.op != "winograd_conv2d" or len(task.outputs) != 1:
        return False
    out = task.outputs[0]
    source = next(t for t in task.stages() if t.name.endswith(".pixels")).inputs[0]
    return (
        source in task.inputs  # no view fused in front
        and out.shape == _conv(task).shape
        and sum(isinstance(t.body, Reduce) for t in task.stages()) == 5
        and is_blocked(task.layout(out.name), 1, target.lanes)
        and is_blocked(task.layout(source.name), 1, target.lanes)
        and source.shape[1] % target.lanes == 0
    )


def _sizes(task: Task) -> tuple[int, int, int, int, int, int]:
    """(m, products of a tile, input channels, output channels, groups of channels, tiles)."""
    stages = {t.name.rpartition(".")[2]: t for t in task.stages()}
    height, width, channels, tiles = stages["data"].shape
    depth = stages["product"].inputs[1].shape[3]
    return stages["columns"].shape[2], height * width, channels, task.outputs[0].shape[1], channels // depth, tiles


def _space(task: Task, target: Target) -> Space:
    m, products, channels, outputs, groups, tiles = _sizes(task)
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
    knobs = {
        "placement": ("tile", "shared"),
        "block": _blocks(tiles, -(-task.outputs[0].shape[3] // m)),
        "positions": tuple(range(1, target.vector_registers - 1)),
        "vectors": whole_groups(blocks),
        "prefetch": (0, 1),  # of the next product's weights
    }
    default: Choice = {"placement": placement, "block": size, "positions": positions, "vectors": vectors}
    return Space(knobs, {**default, "prefetch": int(weight_bytes > target.l2_bytes)})


def _blocks(tiles: int, row: int) -> tuple[int, ...]:
    """Sizes of blocks, the least ones for as many, and whole rows of tiles."""
    return tuple(sorted({-(-tiles // count) for count in range(1, tiles + 1)} | {*range(row, tiles, row)}))


def _apply(task: Task, target: Target, choice: Choice) -> Schedule:
    """What depends on no choice comes first: a process that makes many schedules makes that part once."""
    m, products, *_ = _sizes(task)
    lanes, vectors, out = target.lanes, int(choice["vectors"]), single_output(task)
    conv = _conv(task).name
    pixels, rows, data, product, columns = (f"{conv}.{s}" for s in ("pixels", "rows", "data", "product", "columns"))
    weight = next(t for t in task.stages() if t.name == product).inputs[1].name
    s = Schedule(task.program())
    for t in task.stages():
        if not isinstance(t.body, Reduce) and t.name not in (out, pixels):
            s.compute_inline(t.name)
    for transform in (rows, data, columns, conv):
        s.expand(transform)
    accumulator = s.cache_write(product, "register")
    apply_layouts(s, task, channel_constants(task, lanes))
    in_registers = products <= target.vector_registers
    _schedule_data(s, pixels, rows, data, lanes, in_registers)
    tiles, oc_block = _schedule_output(s, out, conv, columns, m, lanes, in_registers)
    _vectorize_product(s, product, accumulator, lanes)

    # Blocks of tiles and groups of channels around everything, and the products of both.
    s.transform_layout(weight, f"CABD{vectors * lanes}c")
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
    parallel_over(s, [block if private else over])
    if choice["prefetch"]:
        s.prefetch(weight, inputs, points, 1, register_tiles)
    return s


def _schedule_data(s: Schedule, pixels: str, rows: str, data: str, lanes: int, in_registers: bool) -> None:
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


def _schedule_output(
    s: Schedule, out: str, conv: str, columns: str, m: int, lanes: int, in_registers: bool
) -> tuple[str, str]:
    """The nest that stores the result: tiles, blocks of channels, the pixels of a tile. Returns the first two loops."""
    batch, oc, oh, ow = s.loops(out)
    s.pad(oc, lanes)
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
        block, lane = s.split(oc, lanes)
        s.reorder(i, j, *summed, p, block, lane)
        s.unroll(block)
        s.vectorize(lane)


def _tile_product(s: Schedule, product: str, accumulator: str, positions: int) -> tuple[tuple[str, str], str]:
    """Register tiles of so many tiles of the image, whole ones: what only fills up the last is computed, and not read.

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


WINOGRAD_CONV = Template("winograd_conv2d", _matches, _space, _apply)
