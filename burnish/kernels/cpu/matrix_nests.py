"""Nests of the templates around matrix products: matmul itself, the products of fast convolutions, recurrent steps."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from burnish.kernels.cpu.common import constant_weight, is_blocked
from burnish.kernels.cpu.matmul import SERIAL as SERIAL_PRODUCT
from burnish.kernels.cpu.product import index_maps, product
from burnish.kernels.cpu.recurrent import SERIAL as SERIAL_WEIGHTS
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
    statement,
)
from burnish.kernels.task import Task
from burnish.target import Target


def matmul(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Batches and column panels outside, row tiles in them or beside them, the depth around a register tile.

    With ``depth``: passes over all rows in each panel, which follow the product's own axes and not the output's.
    """
    p = product(task)
    assert p is not None
    maps = index_maps(task, p.anchor)
    assert maps is not None
    shape, lanes, right = task.outputs[0].shape, target.lanes, p.right.buffer
    owner = {d: (axis, step) for axis, terms in enumerate(maps) for d, step in terms.items()}
    k, n = len(p.anchor.shape), len(p.anchor.shape) - 1
    constant = right.name in task.constants
    in_place = statement(task, p.anchor)
    steps = set(in_place.nest([Level(n, 2)], 1).stride[1:, 0, 0].tolist())
    copied = not constant and (p.anchor.shape[-1] % lanes != 0 or steps != {0, 1})
    domain = statement(task, p.anchor, (right.name,)) if copied else in_place
    by_batch = copied and prod(shape[d] for d in p.batch) >= target.cores  # the thread that multiplies also copies
    parallel = PARALLEL if p.anchor.buffer.size * p.depth > SERIAL_PRODUCT else SERIAL
    at = next(d for d, i in enumerate(p.right.indices) if i == p.anchor.axes[-1])
    rest = [d for d in range(len(right.shape)) if d != at]
    outer: list[tuple[int, Size]] = [(d, 0) for d in (*rest[:-1], at, *rest[-1:])]

    def whole(d: int, annotation: Size) -> Level:
        return Level(owner[d][0], shape[d], owner[d][1], annotation)

    def describe(knobs: Knobs, count: int) -> Nest:
        vectors, tile, passes = knobs["vectors"], knobs["tile"], knobs["depth"] > 0
        group, depth = vectors * lanes, np.where(passes, knobs["depth"], p.depth)
        panels = SERIAL if by_batch else np.where(passes, PARALLEL, parallel)
        shared = np.where((knobs["outer"] == "all") & ~passes & (not by_batch), parallel, SERIAL)
        levels = [whole(d, parallel) for d in p.batch]
        levels += [whole(d, panels) for d in p.columns[:-1]]
        levels.append(Level(n, -(-shape[p.columns[-1]] // group), group, panels))
        levels.append(Level(k, -(-p.depth // depth), depth))
        for d in p.rows[:-1]:
            levels.append(_where(~passes, whole(d, shared)))
        levels += [_where(passes, Level(axis, p.anchor.shape[axis])) for axis in range(n - 1) if not p.batch]
        axis, last = owner[p.rows[-1]][0] if p.rows else n - 1, shape[p.rows[-1]] if p.rows else 1
        tiles = Level(axis, -(-last // tile), tile, shared)
        tile_level = Level(axis, tile if p.rows else 1, 1, UNROLL)
        levels += _either(passes, Level(n - 1, -(-p.anchor.shape[n - 1] // tile), tile), tiles)
        levels += [Level(k, -(-depth // knobs["unroll"]), knobs["unroll"]), Level(k, knobs["unroll"], 1, UNROLL)]
        levels += _either(passes, Level(n - 1, tile, 1, UNROLL), tile_level)
        levels += [Level(n, vectors, lanes, UNROLL), Level(n, lanes, 1, VECTORIZE)]
        packed = {right.name: Arrangement(right.shape, (*outer, (at, group)))} if constant or copied else {}
        return domain.nest(levels, count, packed)

    return describe


def _where(mask: np.ndarray, level: Level) -> Level:
    """A level of the candidates in ``mask`` only."""
    return level._replace(extent=np.where(mask, level.extent, 1))


def _either(mask: np.ndarray, a: Level, b: Level) -> list[Level]:
    """``a`` for the candidates in ``mask``, ``b`` for the others: one level if both advance the same axis."""
    if a.axis != b.axis:
        return [_where(mask, a), _where(~mask, b)]
    merged = (np.where(mask, x, y) for x, y in ((a.extent, b.extent), (a.step, b.step), (a.annotation, b.annotation)))
    return [Level(a.axis, *merged)]


def winograd_conv2d(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Tile blocks and channel groups in either order around n x n products, each of register tiles."""
    stage, lanes = main_stage(task), target.lanes
    domain = statement(task, stage)
    points_h, points_w, outputs, tiles, phases_h, phases_w, inputs = domain.extents
    i, j, oc, p, phase_h, phase_w, ic = range(7)
    data, weight = stage.inputs

    def describe(knobs: Knobs, count: int) -> Nest:
        block, positions, vectors = knobs["block"], knobs["positions"], knobs["vectors"]
        group, by_tiles = vectors * lanes, knobs["placement"] == "tile"
        blocks, groups = -(-tiles // block), -(-outputs // group)
        levels = [
            Level(p, np.where(by_tiles, blocks, 1), block, PARALLEL),
            Level(oc, groups, group, np.where(by_tiles, SERIAL, PARALLEL)),
            Level(p, np.where(by_tiles, 1, blocks), block),
            Level(i, points_h),
            Level(j, points_w),
            Level(p, -(-block // positions), positions),
            Level(phase_h, phases_h),
            Level(phase_w, phases_w),
            Level(ic, -(-inputs // lanes), lanes),
            Level(ic, lanes),
            Level(p, positions, 1, UNROLL),
            Level(oc, vectors, lanes, UNROLL),
            Level(oc, lanes, 1, VECTORIZE),
        ]
        computed = -(-block // positions) * positions
        held = np.where(by_tiles, computed, np.maximum((blocks - 1) * block + computed, tiles))
        arrangements = {
            data.name: Arrangement((*data.shape[:3], held), ((0, 0), (1, 0), (2, 0), (3, 0), (2, lanes))),
            weight.name: Arrangement(weight.shape, ((2, 0), (0, 0), (1, 0), (3, 0), (2, group))),
        }
        return domain.nest(levels, count, arrangements)

    return describe


def polyphase_conv2d(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Bands of rows in parallel; for every channel group, row and block of tiles the products of all points."""
    stage, lanes = main_stage(task), target.lanes
    domain = statement(task, stage)
    points, batch, outputs, height, tiles, kernel, inputs, phases = domain.extents
    i, b, oc, oh, t, kh, ic, phase = range(8)
    data, weight = stage.inputs
    rows = next(s for s in task.stages() if s.name.endswith(".rows"))
    source = rows.inputs[0]
    blocked = is_blocked(task.layout(source.name), 1, lanes) and source.shape[1] % lanes == 0
    inner = lanes if blocked else inputs
    stride = (data.shape[2] - kernel) // max(height - 1, 1)

    def describe(knobs: Knobs, count: int) -> Nest:
        band, positions, vectors = knobs["band"], knobs["positions"], knobs["vectors"]
        group = vectors * lanes
        levels = [
            Level(b, batch, 1, PARALLEL),
            Level(oh, -(-height // band), band, PARALLEL),
            Level(oc, -(-outputs // group), group),
            Level(oh, band),
            Level(t, -(-tiles // positions), positions),
            Level(i, points),
            Level(ic, inputs // inner, inner),
            Level(kh, kernel),
            Level(ic, inner),
            Level(phase, phases, 1, UNROLL),
            Level(t, positions, 1, UNROLL),
            Level(oc, vectors, lanes, UNROLL),
            Level(oc, lanes, 1, VECTORIZE),
        ]
        held: tuple[Size, ...] = (*data.shape[:2], (band - 1) * stride + kernel, *data.shape[3:])
        lane = 1 if blocked else 4
        arrangements = {
            data.name: Arrangement(held, (*((d, 0) for d in range(5)), (lane, lanes))),
            weight.name: Arrangement(weight.shape, ((4, 0), (0, 0), (1, 0), (2, 0), (3, 0), (4, group))),
        }
        return domain.nest(levels, count, arrangements)

    return describe


def recurrent(task: Task, target: Target) -> Callable[[Knobs, int], Nest]:
    """Blocks of hidden units, the depth around all gates of a block. A core's run of blocks counts as one loop."""
    stage, lanes = main_stage(task), target.lanes
    domain = statement(task, stage)
    gates, batch, hidden, depth = domain.extents
    gate, row, unit, k = range(4)
    weight = constant_weight(task)
    assert weight is not None
    parallel = PARALLEL if weight.buffer.size > SERIAL_WEIGHTS else SERIAL

    def describe(knobs: Knobs, count: int) -> Nest:
        vectors, rows = knobs["vectors"], knobs["rows"]
        group = vectors * lanes
        levels = [
            Level(unit, -(-hidden // group), group, parallel),
            Level(row, -(-batch // rows), rows),
            Level(k, depth),
            Level(row, rows, 1, UNROLL),
            Level(gate, gates, 1, UNROLL),
            Level(unit, vectors, lanes, UNROLL),
            Level(unit, lanes, 1, VECTORIZE),
        ]
        packed = Arrangement(weight.shape, ((1, 0), (2, 0), (0, 0), (1, group)))
        return domain.nest(levels, count, {weight.name: packed})

    return describe
