"""Nests of the templates in which a window moves over images: convolution, direct and depthwise, and pooling."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from burnish.kernels.cpu.common import constant_weight, single_output
from burnish.kernels.nest import (
    PARALLEL,
    SERIAL,
    UNROLL,
    VECTORIZE,
    Arrangement,
    Knobs,
    Level,
    Nest,
    Size,
    main_stage,
    reduced_stage,
    statement,
)
from burnish.kernels.task import Task
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor
from burnish.target import Target

N, OC, OH, OW, IC, KH, KW = range(7)  # axes of a convolution


def direct_conv2d(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Bands of passes where ``depth`` is not 0 or the output is row-major; else single rows, in either order."""
    rows = task.layout(single_output(task)).plain
    return _register_tiles(task, target, lambda knobs: np.asarray(rows) | (knobs["depth"] > 0))


def plain_conv2d(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """As the direct convolution without bands, in a buffer of its own."""
    describe, none = _register_tiles(task, target, lambda knobs: np.asarray(False)), np.asarray(0)
    return lambda knobs, count: describe({**knobs, "band": none, "depth": none}, count)


def _register_tiles(
    task: Task, target: Target, bands: Callable[[Knobs], np.ndarray]
) -> Callable[[Knobs, int], Nest]:
    conv, weight = main_stage(task), _weight(task)
    domain, lanes = statement(task, conv), target.lanes
    batch, outputs, height, width = conv.shape
    inputs, kernel_h, kernel_w = domain.extents[IC], domain.extents[KH], domain.extents[KW]
    block = lanes if inputs % lanes == 0 or inputs >= 2 * lanes else inputs

    def describe(knobs: Knobs, count: int) -> Nest:
        tile, vectors, step = knobs["tile_ow"], knobs["vectors"], knobs["unroll_ic"]
        group, in_bands = vectors * lanes, bands(knobs)
        depth = np.where(in_bands & (knobs["depth"] > 0), knobs["depth"], inputs)
        band = np.where(in_bands, knobs["band"], 1 if height > 1 else width)
        high, wide = (band, width) if height > 1 else (np.asarray(1), band)
        by_columns = ~in_bands & (knobs["outer"] == "oh")
        alone = ~in_bands & (height == 1) & (width % tile == 0)  # tiles of a single row run in parallel
        groups, tiles = -(-outputs // group), -(-wide // tile)
        levels = [
            Level(N, batch, 1, PARALLEL),
            Level(OC, np.where(by_columns, 1, groups), group, PARALLEL),
            Level(OH, -(-height // high), high, PARALLEL),
            Level(OW, -(-width // wide), wide, PARALLEL),
            Level(OW, np.where(alone, tiles, 1), tile, PARALLEL),
            Level(OC, np.where(by_columns, groups, 1), group, PARALLEL),
            Level(IC, -(-inputs // depth), depth),
            Level(OH, high),
            Level(OW, np.where(alone, 1, tiles), tile),
            Level(IC, -(-depth // block), block),
            Level(KH, kernel_h),
            Level(KW, kernel_w),
            Level(IC, -(-block // step), step),
            Level(IC, step, 1, UNROLL),
            Level(OW, tile, 1, UNROLL),
            Level(OC, vectors, lanes, UNROLL),
            Level(OC, lanes, 1, VECTORIZE),
        ]
        packed = Arrangement(weight.shape, ((0, 0), (1, 0), (2, 0), (3, 0), (1, block), (0, group)))
        return domain.nest(levels, count, {weight.name: packed, conv.name: _blocked(conv.shape, lanes)})

    return describe


def pointwise_conv2d(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Tiles of pixels in parallel; in each, tiles of channels times vectors of pixels."""
    conv, weight, lanes = main_stage(task), _weight(task), target.lanes
    domain = statement(task, conv)
    batch, outputs, height, width = conv.shape
    inputs = domain.extents[IC]

    def describe(knobs: Knobs, count: int) -> Nest:
        rows, vectors, step = knobs["rows"], knobs["vectors"], knobs["unroll_ic"]
        levels = [
            Level(N, batch, 1, PARALLEL),
            Level(OH, height, 1, PARALLEL),
            Level(OW, -(-width // (vectors * lanes)), vectors * lanes, PARALLEL),
            Level(OC, -(-outputs // rows), rows),
            Level(IC, -(-inputs // step), step),
            Level(IC, step, 1, UNROLL),
            Level(OC, rows, 1, UNROLL),
            Level(OW, vectors, lanes, UNROLL),
            Level(OW, lanes, 1, VECTORIZE),
        ]
        packed = Arrangement(weight.shape, ((0, 0), (1, 0), (2, 0), (3, 0), (0, rows)))
        return domain.nest(levels, count, {weight.name: packed})

    return describe


def _weight(task: Task) -> Tensor:
    weight = constant_weight(task)
    assert weight is not None
    return weight


def _blocked(shape: tuple[Size, ...], lanes: int) -> Arrangement:
    """Channels, the second dimension, in blocks of one vector."""
    return Arrangement.of(layout(f"ABCD{lanes}b"), shape)


def _pixel_tiles(shape: tuple[int, ...], tile: Size, lanes: int) -> list[Level]:
    """The loops around :func:`burnish.kernels.cpu.common.pixel_tile`: rows of channel blocks in parallel, tiles."""
    batch, channels, height, width = shape
    return [
        Level(N, batch, 1, PARALLEL),
        Level(OC, -(-channels // lanes), lanes, PARALLEL),
        Level(OH, height, 1, PARALLEL),
        Level(OW, -(-width // tile), tile),
    ]


def depthwise_conv2d(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """The window around a tile of pixels; its rows unrolled where all its weights are held in registers."""
    conv, weight, lanes = main_stage(task), _weight(task), target.lanes
    domain = statement(task, conv)
    arrangements = {weight.name: Arrangement.of(layout(f"ABCD{lanes}a"), weight.shape)}

    def describe(knobs: Knobs, count: int) -> Nest:
        tile = knobs["tile_ow"]
        levels = [
            *_pixel_tiles(conv.shape, tile, lanes),
            Level(KH, domain.extents[KH], 1, np.where(knobs["weights"] == "window", UNROLL, SERIAL)),
            Level(KW, domain.extents[KW], 1, UNROLL),
            Level(OW, tile, 1, UNROLL),
            Level(OC, lanes, 1, VECTORIZE),
        ]
        return domain.nest(levels, count, arrangements)

    return describe


def grouped_conv2d(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """As the depthwise convolution, with the input channels of a group unrolled within a tile."""
    conv, weight, lanes = main_stage(task), _weight(task), target.lanes
    domain = statement(task, conv)
    arrangements = {weight.name: Arrangement.of(layout(f"ACDB{lanes}a"), weight.shape)}

    def describe(knobs: Knobs, count: int) -> Nest:
        tile = knobs["tile_ow"]
        levels = [
            *_pixel_tiles(conv.shape, tile, lanes),
            Level(KH, domain.extents[KH]),
            Level(KW, domain.extents[KW]),
            Level(OW, tile, 1, UNROLL),
            Level(IC, domain.extents[IC], 1, UNROLL),
            Level(OC, lanes, 1, VECTORIZE),
        ]
        return domain.nest(levels, count, arrangements)

    return describe


def window_rows(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Row-major images: vectors of columns, several rows of them in registers."""
    del target
    stage = reduced_stage(task)
    domain = statement(task, stage)
    batch, channels, height, width = stage.shape
    kh, kw = len(domain.extents) - 2, len(domain.extents) - 1

    def describe(knobs: Knobs, count: int) -> Nest:
        rows, vector = knobs["rows"], knobs["vector"]
        levels = [
            Level(N, batch, 1, PARALLEL),
            Level(OC, channels, 1, PARALLEL),
            Level(OH, -(-height // rows), rows),
            Level(OW, -(-width // vector), vector),
            Level(kh, domain.extents[kh], 1, UNROLL),
            Level(kw, domain.extents[kw], 1, UNROLL),
            Level(OH, np.minimum(rows, height), 1, UNROLL),
            Level(OW, np.minimum(vector, width), 1, VECTORIZE),
        ]
        return domain.nest(levels, count)

    return describe


def pool2d(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """The window around a tile of pixels, its columns unrolled."""
    stage, lanes = reduced_stage(task), target.lanes
    domain = statement(task, stage)
    kh, kw = 4, 5

    def describe(knobs: Knobs, count: int) -> Nest:
        tile = knobs["tile_ow"]
        levels = [
            *_pixel_tiles(stage.shape, tile, lanes),
            Level(kh, domain.extents[kh]),
            Level(kw, domain.extents[kw], 1, UNROLL),
            Level(OW, tile, 1, UNROLL),
            Level(OC, lanes, 1, VECTORIZE),
        ]
        return domain.nest(levels, count)

    return describe


def neighbouring_channels(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Rows in parallel, in each the channel blocks, pixel after pixel; no knobs."""
    stage, lanes = reduced_stage(task), target.lanes
    domain = statement(task, stage)
    batch, channels, height, width, neighbours = domain.extents
    levels = [
        Level(N, batch, 1, PARALLEL),
        Level(OH, height, 1, PARALLEL),
        Level(OC, channels // lanes, lanes),
        Level(OW, width),
        Level(4, neighbours, 1, UNROLL),
        Level(OC, lanes, 1, VECTORIZE),
    ]
    return lambda knobs, count: domain.nest(levels, count)


def conv2d_transpose_phases(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Phase after phase a tile of output pixels; the code has a copy for each phase, which runs its iteration."""
    conv, weight, lanes = main_stage(task), _weight(task), target.lanes
    domain = statement(task, conv)
    batch, outputs, stride_h, stride_w, height, width, inputs, taps_h, taps_w = domain.extents
    n, oc, rh, rw, qh, qw, ic, th, tw = range(9)
    block = lanes if inputs % lanes == 0 else inputs if inputs < 2 * lanes else lanes

    def describe(knobs: Knobs, count: int) -> Nest:
        tile_h, tile_w, vectors = knobs["tile_h"], knobs["tile_w"], knobs["vectors"]
        group, taps = vectors * lanes, np.where(tile_h != 1, UNROLL, SERIAL)
        levels = [
            Level(n, batch, 1, PARALLEL),
            Level(oc, -(-outputs // group), group, PARALLEL),
            Level(qh, -(-height // tile_h), tile_h, PARALLEL),
            Level(rh, stride_h),
            Level(rw, stride_w),
            Level(qw, -(-width // tile_w), tile_w),
            Level(ic, -(-inputs // block), block),
            Level(th, taps_h, 1, taps),
            Level(tw, taps_w, 1, taps),
            Level(ic, block),
            Level(qh, tile_h, 1, UNROLL),
            Level(qw, tile_w, 1, UNROLL),
            Level(oc, vectors, lanes, UNROLL),
            Level(oc, lanes, 1, VECTORIZE),
        ]
        parts: list[tuple[int, Size]] = [(d, 0) for d in range(6)]
        packed = Arrangement(weight.shape, (*parts, (3, block), (0, group)))
        return domain.nest(levels, count, {weight.name: packed})

    return describe
