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
    source = next(t for t in task.stages() if t.name.endswith(".rows")).inputs[0]
    return (
        source in task.inputs  # no view fused in front
        and out.shape == _conv(task).shape
        and sum(isinstance(t.body, Reduce) for t in task.stages()) == 5
        and is_blocked(task.layout(out.name), 1, target.lanes)
        and is_blocked(task.layout(source.name), 1, target.lanes)
        and source.shape[1] % target.lanes == 0
    )


def _sizes(task: Task) -> tuple[int, int, int, int, int, int]:
    """(m, n, input channels, output channels, groups of channels, tiles)."""
    stages = {t.name.rpartition(".")[2]: t for t in task.stages()}
    n, _, channels, tiles = stages["data"].shape
    depth = stages["product"].inputs[1].shape[3]
    return stages["columns"].shape[2], n, channels, task.outputs[0].shape[1], channels // depth, tiles


def _space(task: Task, target: Target) -> Space:
    _, n, channels, outputs, groups, tiles = _sizes(task)
    blocks = -(-outputs // groups // target.lanes)
    positions, vectors = register_tile(target, tiles, blocks, padded=True)
    weight_bytes = 4 * n * n * (channels // groups) * outputs
    panels = -(-outputs // (vectors * target.lanes))
    sizes = (28, 14, 21, 16, 12, 8) if weight_bytes <= target.l2_bytes // 2 else (14, 16, 12, 8)
    block = next((b for b in sizes if tiles % b == 0 and tiles // b >= 2 * target.cores), 0)
    scratch_bytes = 4 * n * n * block * (channels + vectors * target.lanes)
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
        "block": tuple(range(1, tiles + 1)),
        "positions": tuple(range(1, 31)),
        "vectors": whole_groups(blocks),
        "prefetch": (0, 1),  # of the next product's weights
    }
    default: Choice = {"placement": placement, "block": size, "positions": positions, "vectors": vectors}
    return Space(knobs, {**default, "prefetch": int(weight_bytes > target.l2_bytes)})


def _apply(task: Task, target: Target, choice: Choice) -> Schedule:
    m = _sizes(task)[0]
    lanes, group = target.lanes, int(choice["vectors"]) * target.lanes
    conv, out = _conv(task).name, single_output(task)
    weight = next(t for t in task.stages() if t.name == f"{conv}.product").inputs[1].name
    s = Schedule(task.program())
    for t in task.stages():
        if not isinstance(t.body, Reduce) and t.name != out:
            s.compute_inline(t.name)
    result = s.cache_write(out, "register") if conv == out else conv
    product = f"{conv}.product"
    accumulator = s.cache_write(product, "register")
    apply_layouts(s, task, {**channel_constants(task, group), weight: f"CABD{group}c"})

    # The output nest: tiles, then channel groups, then the pixels of a tile.
    batch, oc, oh, ow = s.loops(out)
    s.pad(oc, group)
    oc_group, oc = s.split(oc, group)
    oc_block, lane = s.split(oc, lanes)
    tile_h, row = s.split(oh, m)
    tile_w, column = s.split(ow, m)
    s.reorder(batch, tile_h, tile_w, oc_group, oc_block, row, column, lane)
    tiles = s.fuse(s.fuse(batch, tile_h), tile_w)
    block, tile = s.split(tiles, int(choice["block"]))
    if choice["placement"] == "tile":
        s.reorder(block, oc_group, tile, oc_block, row, column, lane)
        per_block, outer = oc_group, block
    else:
        s.reorder(oc_group, block, tile, oc_block, row, column, lane)
        per_block, outer = block, oc_group
    s.compute_at(result, row)
    s.compute_at(f"{conv}.columns", oc_block)
    s.compute_at(product, per_block)
    _private_vectors(s, result, lanes)
    _private_vectors(s, f"{conv}.columns", lanes)
    mark(s, "unroll", row, column)
    s.vectorize(lane)

    channels, points, over = _schedule_product(s, product, accumulator, lanes, int(choice["positions"]))
    _schedule_data(s, f"{conv}.data", f"{conv}.rows", lanes, block if choice["placement"] == "tile" else None)
    parallel_over(s, [outer])
    if choice["prefetch"]:
        s.prefetch(weight, channels, points, 1, over)
    return s


def _private_vectors(s: Schedule, stage: str, lanes: int) -> None:
    """Unrolls a small stage completely, channels in one vector, in registers."""
    s.set_scope(stage, "register")
    for loops in (s.loops(stage), s.init_loops(stage)):
        vector = next(v for v in loops if s.extent(v) == lanes and v.endswith(("oc", "c", "i1")))
        rest = [v for v in loops if v != vector]
        s.reorder(*rest, vector)
        mark(s, "unroll", *rest)
        s.vectorize(vector)


def _schedule_product(
    s: Schedule, product: str, accumulator: str, lanes: int, positions: int
) -> tuple[str, tuple[str, str], str]:
    """n x n matrix products [channels of the group] x [tiles of the block], each a register tile over all inputs.

    Tiles that only fill up a register tile are computed, and not read: not to would take a branch for each. Returns the
    loops over blocks of input channels, over the products, and over the register tiles of one.
    """
    s.transform_layout(product, f"ABDC{lanes}c")
    i, j, oc, p = s.loops(product)
    s.pad(p, positions)
    block, lane = s.split(oc, lanes)
    over, p = s.split(p, positions)
    s.reorder(i, j, over, p, block, lane)
    s.compute_at(accumulator, over)
    s.set_scope(accumulator, "register")
    mark(s, "unroll", p, block)
    s.vectorize(lane)
    _, _, oc, p, *phases, ic = s.loops(accumulator)
    s.pad(p, positions)
    block, lane = s.split(oc, lanes)
    s.reorder(*phases, ic, p, block, lane)
    mark(s, "unroll", p, block)
    s.vectorize(lane)
    ic, _ = s.split(ic, lanes)
    _, _, oc, p = s.init_loops(accumulator)
    s.pad(p, positions)
    block, lane = s.split(oc, lanes)
    s.reorder(p, block, lane)
    mark(s, "unroll", p, block)
    s.vectorize(lane)
    return ic, (i, j), over


def _schedule_data(s: Schedule, data: str, rows: str, lanes: int, block: str | None) -> None:
    """The input transform of a block of tiles (``block``), or of all tiles at once in parallel (None)."""
    sums = s.cache_write(data, "register")
    if block is not None:
        s.compute_at(data, block)
    s.transform_layout(data, f"ABCD{lanes}c")
    i, j, c, tile = s.loops(data)
    over, lane = s.split(c, lanes)
    s.reorder(over, tile, i, j, lane)
    s.compute_at(sums, i)
    s.compute_at(rows, tile)
    mark(s, "unroll", i, j)
    s.vectorize(lane)
    _, j, c, p, r = s.loops(sums)
    s.reorder(j, p, r, c)
    mark(s, "unroll", j, r)
    s.vectorize(c)
    _, j, c, p = s.init_loops(sums)
    s.reorder(j, p, c)
    s.unroll(j)
    s.vectorize(c)
    s.set_scope(rows, "register")
    _, c, i, column, r = s.loops(rows)
    s.reorder(column, i, r, c)
    mark(s, "unroll", column, i, r)
    s.vectorize(c)
    _, c, i, column = s.init_loops(rows)
    s.reorder(column, i, c)
    mark(s, "unroll", column, i)
    s.vectorize(c)
    if block is None:
        parallel_over(s, (over, tile))


WINOGRAD_CONV = Template("winograd_conv2d", _matches, _space, _apply)
