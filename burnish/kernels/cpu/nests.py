"""The main loop nest of every CPU template as arrays over many candidates: how each cuts and orders the axes.

``nests`` gives the function that describes candidates; one function below for each template, after which it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from burnish.kernels.cpu import matrix_nests, split_nests, tiled_nests, window_nests
from burnish.kernels.cpu.generic import GRAIN
from burnish.kernels.nest import PARALLEL, SERIAL, VECTORIZE, Arrangement, Knobs, Level, Nest, main_stage, statement
from burnish.kernels.task import Task, Template
from burnish.loops.expr import Reduce
from burnish.target import Target

Describe = Callable[[Knobs, int], Nest]
"""Knobs and the number of candidates -> their nests."""


def nests(template: Template, task: Task, target: Target) -> Describe:
    """What describes the candidates of ``template`` for ``task``; for one not known here, its stage's own loops."""
    return _NESTS.get(template.name, stage_nest)(task, target)


def stage_nest(task: Task, target: Target) -> Describe:
    """The loops of the main stage as the definition has them, which no knob changes."""
    del target
    domain = statement(task, main_stage(task))
    levels = [Level(axis, extent) for axis, extent in enumerate(domain.extents)]
    return lambda knobs, count: domain.nest(levels, count)


def generic(task: Task, target: Target) -> Describe:
    """Of a map: all loops in parallel, of the one with unit stride whole vectors. Of a reduction: its stage's loops."""
    stage = main_stage(task)
    if isinstance(stage.body, Reduce) or len(task.outputs) != 1:
        return stage_nest(task, target)
    stage = task.outputs[0]
    domain, layout = statement(task, stage), task.layout(stage.name)
    unit = _unit(Arrangement.of(layout, stage.shape), stage.shape)
    if unit is None:
        return stage_nest(task, target)
    contiguous = layout.block(unit) == 1
    parallel = PARALLEL if prod(stage.shape) >= GRAIN else SERIAL

    def describe(knobs: Knobs, count: int) -> Nest:
        wide = target.lanes * knobs["vectors"]
        extent = stage.shape[unit]
        vector = np.minimum(np.where(extent % wide == 0, wide, target.lanes), extent if contiguous else wide)
        outer = [Level(a, e, annotation=parallel) for a, e in enumerate(stage.shape)]
        outer[unit] = Level(unit, -(-extent // vector), vector, parallel)
        return domain.nest([*outer, Level(unit, vector, 1, VECTORIZE)], count)

    return describe


def _unit(arrangement: Arrangement, shape: Sequence[int]) -> int | None:
    """The last dimension with several elements whose neighbours are adjacent, or which is cut into blocks."""
    strides = arrangement.strides()
    adjacent = [d for d, extent in enumerate(shape) if extent > 1 and (len(strides[d]) > 1 or strides[d][0][1] == 1)]
    return adjacent[-1] if adjacent else None


_NESTS: dict[str, Callable[[Task, Target], Describe]] = {
    "direct_conv2d": window_nests.direct_conv2d,
    "plain_conv2d": window_nests.plain_conv2d,
    "pointwise_conv2d": window_nests.pointwise_conv2d,
    "depthwise_conv2d": window_nests.depthwise_conv2d,
    "grouped_conv2d": window_nests.grouped_conv2d,
    "depthwise_rows": window_nests.window_rows,
    "pool_rows": window_nests.window_rows,
    "conv2d_transpose_phases": window_nests.conv2d_transpose_phases,
    "pool2d": window_nests.pool2d,
    "neighbouring_channels": window_nests.neighbouring_channels,
    "winograd_conv2d": matrix_nests.winograd_conv2d,
    "polyphase_conv2d": matrix_nests.polyphase_conv2d,
    "matmul": matrix_nests.matmul,
    "recurrent": matrix_nests.recurrent,
    "split_conv2d": split_nests.split_conv2d,
    "split_matmul": split_nests.split_matmul,
    "tiled": tiled_nests.tiled,
    "generic": generic,
}
