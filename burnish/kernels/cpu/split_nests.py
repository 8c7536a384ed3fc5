"""Nests of products on a matrix unit (``split.py``): loops around its tiles, then those that it does by itself.

The unit's own loops over the rows and the depth of a tile stand as serial ones around a vector of channels, so that
the sums a nest keeps at hand are counted in tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from burnish.kernels.cpu.split import COLUMNS, PARTS_LAYOUTS, TILE_LAYOUTS, WEIGHT_LAYOUTS, is_stem, tile_stage
from burnish.kernels.nest import PARALLEL, SERIAL, UNROLL, VECTORIZE, Arrangement, Knobs, Level, Nest, Size, statement
from burnish.kernels.task import Task
from burnish.loops.layout import layout
from burnish.loops.tensor import Tensor
from burnish.ops.split import DEPTH, ROWS
from burnish.target import Target

HELD = 4  # tiles of sums that the unit's registers have room for, beside those of the factors
SHORT = 3  # iterations of the window's loops that are unrolled


def split_conv2d(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Groups of channels and blocks of rows in parallel, in either order; in each all tiles of ``tiles_m`` neighbours.

    Of a stem a block is ``tiles_m`` rows of the output, and the tiles of a column belong to all of them.
    """
    del target
    tile = tile_stage(task)
    domain, arrangements = statement(task, tile, (tile.inputs[0].name,)), _arrangements(tile)
    batch, outputs, blocks, _ = tile.shape
    _, _, height, width = task.outputs[0].shape
    n, oc, block, q = range(4)
    stem = is_stem(task)
    pitch = tile.inputs[0].shape[-1]
    pixels = width if stem else (-(-height // blocks) - 1) * pitch + width  # of a block, up to the last that is used

    def describe(knobs: Knobs, count: int) -> Nest:
        group, along, first = knobs["tiles_n"] * COLUMNS, knobs["tiles_m"], knobs["outer"] == "oc"
        high, wide = (along, 1) if stem else (1, along)
        groups = -(-outputs // group)
        levels = [
            Level(n, batch, 1, PARALLEL),
            Level(oc, np.where(first, groups, 1), group, PARALLEL),
            Level(block, -(-blocks // high), high, PARALLEL),
            Level(oc, np.where(first, 1, groups), group, PARALLEL),
            Level(q, -(-pixels // (ROWS * wide)), ROWS * wide),
            *_sums(4, domain.extents[4:]),
            Level(block, high, 1, UNROLL),
            *_tiles(q, wide, oc, knobs["tiles_n"], 4),
        ]
        return replace(domain.nest(levels, count, arrangements), registers=HELD)

    return describe


def split_matmul(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Groups of columns and blocks of rows in parallel, in either order; in a block all tiles of ``tiles_m`` rows."""
    del target
    tile = tile_stage(task)
    domain, arrangements = statement(task, tile, (tile.inputs[0].name,)), _arrangements(tile)
    rows, columns = tile.shape
    m, n = range(2)

    def describe(knobs: Knobs, count: int) -> Nest:
        group, along, first = knobs["tiles_n"] * COLUMNS, knobs["tiles_m"], knobs["outer"] == "columns"
        block = np.minimum(knobs["block"], rows)
        groups = -(-columns // group)
        levels = [
            Level(n, np.where(first, groups, 1), group, PARALLEL),
            Level(m, -(-rows // block), block, PARALLEL),
            Level(n, np.where(first, 1, groups), group, PARALLEL),
            Level(m, -(-block // (ROWS * along)), ROWS * along),
            *_sums(2, domain.extents[2:]),
            *_tiles(m, along, n, knobs["tiles_n"], 2),
        ]
        return replace(domain.nest(levels, count, arrangements), registers=HELD)

    return describe


def _sums(first: int, extents: Sequence[int]) -> list[Level]:
    """The depth by the unit's tiles, then the window and the three products of parts: axes from ``first`` on."""
    depth, *taps = extents
    inner = [Level(first + k, extent, 1, UNROLL if extent <= SHORT else SERIAL) for k, extent in enumerate(taps, 1)]
    return [Level(first, depth // DEPTH, DEPTH), *inner]


def _tiles(row: int, along: Size, column: int, across: Size, depth: int) -> list[Level]:
    """The tiles that are kept at hand, and the loops of one: its depth, rows and columns."""
    return [
        Level(row, along, ROWS, UNROLL),
        Level(column, across, COLUMNS, UNROLL),
        Level(depth, DEPTH),
        Level(row, ROWS),
        Level(column, COLUMNS, 1, VECTORIZE),
    ]


def _arrangements(tile: Tensor) -> dict[str, Arrangement]:
    """Of the sums, the input's parts, and the weight's."""
    parts, weight = tile.inputs
    tags = ((tile, TILE_LAYOUTS), (parts, PARTS_LAYOUTS), (weight, WEIGHT_LAYOUTS))
    return {t.name: Arrangement.of(layout(by_rank[len(t.shape)]), t.shape) for t, by_rank in tags}
