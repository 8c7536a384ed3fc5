"""Weight gradients of convolutions: sums over images and positions, with a register tile of taps and channels.

The structure of ``parallel(oc group) -> image and band of rows -> ic block -> oc -> ic -> kh -> kw`` around a tile of
some columns of the kernel times some input channels times vectors of output channels, which is summed over the band.
Sums of all bands are kept in a buffer ``[oc group][ic][kh][kw][oc]``, from which the result is transposed with its
epilogue. An adjoint that is not stored in channel blocks (a message of another device, a slice) is copied into them a
band at a time. Threads share the output channels, and where these are too few the input channels and the rows of the
kernel: the sums are the same for any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from burnish.kernels.cpu.common import (
    apply_layouts,
    copy_blocks,
    inline_around,
    is_blocked,
    mark,
    parallel_over,
    single_output,
)  # fmt: skip
from burnish.kernels.match import WeightGradient, weight_gradient
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.tensor import Tensor, stages
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

CHUNKS_OUTSIDE, BLOCKS_OUTSIDE = "bands", "channels"


FEW = 96  # positions below which the sums of a band cost time to begin and to end
BALANCED = 0.9  # of the cores' time that equal shares fill


class WeightTile(NamedTuple):
    """A register tile: rows and columns of the kernel, input channels, vectors of output channels."""

    kh: int
    kw: int
    ic: int
    vectors: int


class WeightShare(NamedTuple):
    """Part of a weight gradient, summed by one thread: groups of output channels, input channels, kernel rows."""

    groups: int
    ic: int
    kh: int


def _form(task: KernelTask, target: Target) -> WeightGradient | None:
    """A dense or depthwise gradient, written row-major; what is read in blocks is no result of the kernel too."""
    found = weight_gradient(task)
    if found is None or not (found.dense or found.depthwise) or found.sums.shape != task.outputs[0].shape:
        return None
    if found.depthwise and not all(_has_blocks(task, t, target) for t in task.inputs if t in stages([_data(found)])):
        return None
    results = {t.name for t in task.outputs}
    return found if found.seed.buffer.name not in results and task.layout(single_output(task)).plain else None


def _data(found: WeightGradient) -> Tensor:
    """The stage or input that is read in windows."""
    return next(t for t in found.sums.inputs if t.name == found.data.buffer.name)


def _has_blocks(task: KernelTask, image: Tensor, target: Target) -> bool:
    return is_blocked(task.layout(image.name), 1, target.lanes)


def _prepared(task: KernelTask, found: WeightGradient, target: Target) -> tuple[Schedule, str, str | None]:
    """The schedule with all but the sums inlined; their stage; that of a copy of the adjoint in blocks, if needed."""
    s, seed = Schedule(task.program()), found.seed.buffer.name
    given = next((t for t in task.inputs if t.name == seed), None)
    if given is None:
        return s, inline_around(s, task, (seed,)), seed
    sums = inline_around(s, task, ())
    return s, sums, None if _has_blocks(task, given, target) else s.cache_read(seed, "local", sums)


def _tiles(found: WeightGradient, target: Target) -> list[WeightTile]:
    """Register tiles that fit with a vector of each block of the adjoint and a broadcast."""
    outputs, depth, kernel_h, kernel_w = found.sums.shape
    blocks = -(-outputs // target.lanes)
    return [
        WeightTile(kh, kw, ic, vectors)
        for vectors in (1, 2, 3, 4, 6)
        for kh in {1, kernel_h}
        for kw in range(1, kernel_w + 1)
        for ic in range(1, min(depth, 16) + 1)
        if blocks % vectors == 0
        and kernel_w % kw == 0
        and depth % ic == 0
        and kh * kw * ic * vectors + vectors + 1 <= target.vector_registers
    ]


def _default_tile(found: WeightGradient, target: Target) -> WeightTile:
    """Fewest cycles a multiply-add: loads, of which a core does as many, and the latency of few sums."""

    def cycles(tile: WeightTile) -> tuple[float, int, int]:
        sums = prod(tile)
        loads = prod(tile[:3]) * (1 if found.dense else tile.vectors) + tile.vectors
        return max(sums, 0.9 * loads, 8) / sums + 0.02 * loads / sums + 0.5 / sums, tile.kh, -tile.kw

    return min(_tiles(found, target), key=cycles)


def _band(found: WeightGradient, tile: WeightTile, block: int, target: Target) -> int:
    """Rows of the adjoint in a band: those of both factors stay in the first cache, unless these are few positions."""
    _, _, height, width = found.seed.buffer.shape
    rows_of_data = -(-found.data.buffer.shape[2] // height)
    row_bytes = 4 * (tile.vectors * target.lanes * width + block * rows_of_data * found.data.buffer.shape[3])
    most = max(1, target.l1_bytes * 9 // 10 // row_bytes, -(-FEW // width))
    if height <= most:
        return height
    return max((rows for rows in range(1, height + 1) if height % rows == 0 and rows <= most), default=1)


def _blocks(depth: int, tile_ic: int, lanes: int) -> int:
    """Input channels of a block: whole tiles, at most a vector of them."""
    return max((n for n in range(tile_ic, max(lanes, tile_ic) + 1, tile_ic) if depth % n == 0), default=tile_ic)


def _shares(found: WeightGradient, tile: WeightTile, target: Target) -> list[WeightShare]:
    """Shares of equal work for the cores, of the most kernel rows and input channels: each reads the adjoint again."""
    outputs, depth, kernel_h, _ = found.sums.shape
    groups = -(-outputs // (tile.vectors * target.lanes))
    options = [
        WeightShare(g, ic, kh)
        for g in _divisors(groups)
        for ic in range(tile.ic, depth + 1, tile.ic)
        for kh in {kernel_h, tile.kh}
        if depth % ic == 0
    ]

    def balance(share: WeightShare) -> float:
        count = groups // share.groups * (depth // share.ic) * (kernel_h // share.kh)
        return count / (-(-count // target.cores) * target.cores)

    least = min(BALANCED, max(map(balance, options)))
    balanced = [share for share in options if balance(share) >= least]
    kh, ic = max((share.kh, share.ic) for share in balanced)
    return [share for share in balanced if (share.kh, share.ic) == (kh, ic)]


def _space(task: KernelTask, target: Target, found: WeightGradient) -> ScheduleSpace:
    outputs, depth, kernel_h, kernel_w = found.sums.shape
    tiles = _tiles(found, target)
    tile = _default_tile(found, target)
    group = tile.vectors * target.lanes
    groups = -(-outputs // group)
    block = _blocks(depth, tile.ic, target.lanes)
    shares = _shares(found, tile, target)

    def nbytes(share: WeightShare, ic: int) -> int:
        return 4 * share.groups * group * share.kh * kernel_w * ic

    inside = [share for share in shares if nbytes(share, share.ic) <= target.l2_bytes // 2]
    order = CHUNKS_OUTSIDE if inside else BLOCKS_OUTSIDE
    share = max(inside or [one for one in shares if nbytes(one, block) <= target.l2_bytes // 4] or [min(shares)])
    height = found.seed.buffer.shape[2]
    knobs: dict[str, Sequence[int | str]] = {
        "tile_kh": tuple(sorted({t.kh for t in tiles})),
        "tile_kw": tuple(sorted({t.kw for t in tiles})),
        "tile_ic": tuple(sorted({t.ic for t in tiles})),
        "vectors": tuple(sorted({t.vectors for t in tiles})),
        "band": _divisors(height),
        "groups": _divisors(groups),
        "ic": _divisors(depth),
        "kh": tuple(sorted({1, kernel_h})),
        "outer": (CHUNKS_OUTSIDE, BLOCKS_OUTSIDE),
    }
    default: dict[str, int | str] = {
        "tile_kh": tile.kh, "tile_kw": tile.kw, "tile_ic": tile.ic, "vectors": tile.vectors,
        "band": _band(found, tile, block, target), "groups": share.groups, "ic": share.ic, "kh": share.kh,
        "outer": order,
    }  # fmt: skip
    return ScheduleSpace(knobs, default)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def _apply(task: KernelTask, target: Target, found: WeightGradient, choice: Choice) -> Schedule:
    lanes, vectors = target.lanes, int(choice["vectors"])
    group, share_ic, tile_ic = vectors * lanes, int(choice["ic"]), int(choice["tile_ic"])
    share = WeightShare(int(choice["groups"]), share_ic, int(choice["kh"]))
    out = single_output(task)
    s, sums, copy = _prepared(task, found, target)
    apply_layouts(s, task, {})
    s.set_scope(sums, "global")
    # Partial sums of a band of an image.
    oc, ic, kh, kw, *reduced = s.loops(sums)
    of = dict(zip(found.reduced, reduced, strict=True))
    parts, positions = [of[0]] if 0 in of else [], [of[3]] if 3 in of else []
    if 2 in of:
        bands, oh = s.split(of[2], int(choice["band"]))
        parts, positions = [*parts, bands], [oh, *positions]
    s.reorder(oc, ic, kh, kw, *parts, *positions)
    partial = s.rfactor(sums, s.fuse(*parts) if len(parts) > 1 else parts[0])
    s.set_scope(partial, "register")
    _schedule_result(s, out, sums, lanes, share._replace(groups=group * share.groups))
    s.transform_layout(sums, f"ABCD{group}a")
    # The sums of all bands.
    oc, ic, kh, kw, part = s.loops(sums)
    s.pad(oc, group)
    oc_group, oc = s.split(oc, group)
    block, lane = s.split(oc, lanes)
    ic_block, ic = s.split(ic, _blocks(share_ic, tile_ic, lanes))
    ic_tile, ic = s.split(ic, tile_ic)
    kh_tile, kh = s.split(kh, min(int(choice["tile_kh"]), share.kh))
    kw_tile, kw = s.split(kw, int(choice["tile_kw"]))
    outer = (part, ic_block) if choice["outer"] == CHUNKS_OUTSIDE else (ic_block, part)
    s.reorder(*outer, oc_group, ic_tile, kh_tile, kw_tile, kh, kw, ic, block, lane)
    mark(s, "unroll", kh, kw, ic, block)
    s.vectorize(lane)
    oc, ic, kh, kw = s.init_loops(sums)
    s.pad(oc, lanes)
    block, lane = s.split(oc, lanes)
    s.reorder(block, ic, kh, kw, lane)
    s.vectorize(lane)
    s.compute_at(partial, kw_tile)
    _schedule_partial(s, partial, lanes)
    if copy is not None:
        s.compute_at(copy, part)
        copy_blocks(s, copy, lanes)
    return s


def _schedule_partial(s: Schedule, partial: str, lanes: int) -> None:
    """The register tile, summed over the rows and columns of a band."""
    oc, ic, kh, kw, *positions = s.loops(partial)
    s.pad(oc, lanes)
    block, lane = s.split(oc, lanes)
    s.reorder(*positions, kh, kw, ic, block, lane)
    mark(s, "unroll", kh, kw, ic, block)
    s.vectorize(lane)
    _, oc, ic, kh, kw = s.init_loops(partial)
    s.pad(oc, lanes)
    block, lane = s.split(oc, lanes)
    s.reorder(kh, kw, ic, block, lane)
    mark(s, "unroll", kh, kw, ic, block)
    s.vectorize(lane)


def _schedule_result(s: Schedule, out: str, sums: str, lanes: int, share: WeightShare) -> None:
    """The output's nest: shares in parallel, each transposed out of its sums; of ``share.groups`` output channels."""
    oc, ic, kh, kw = s.loops(out)
    oc_share, oc = s.split(oc, min(share.groups, s.extent(oc)))
    ic_share, ic = s.split(ic, share.ic)
    kh_share, kh = s.split(kh, share.kh)
    s.reorder(oc_share, ic_share, kh_share, oc, ic, kh, kw)
    taps = s.fuse(s.fuse(ic, kh), kw)
    block, channel = s.split(oc, min(lanes, s.extent(oc)))
    shared = s.extent(ic_share) * s.extent(kh_share) > 1  # then no vector may reach into another share
    widths = _divisors(s.extent(taps)) if shared else (min(lanes, s.extent(taps)),)
    taps, lane = s.split(taps, max(n for n in widths if n <= lanes))
    s.reorder(block, taps, channel, lane)
    s.unroll(channel)
    s.vectorize(lane)
    s.compute_at(sums, kh_share)
    parallel_over(s, (oc_share, ic_share, kh_share))


WEIGHT_GRADIENT = Template("weight_gradient", _form, _space, _apply)
