"""Direct convolution of row-major images, also in groups: a register tile of output channels times vectors of columns.

Nothing is converted, and no vector is filled up with channels that are not there: for few or ragged output channels,
and for groups that fill no vector. Weights are broadcast, packed ``[oc tile][ic][kh][kw][oc]``. The structure of
``parallel(n, group, oh tile) -> column tile -> oc tile -> ic -> kh -> kw``, or with the channels outside the columns
where each of their tiles writes long runs of memory.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np

from burnish.errors import ScheduleError
from burnish.kernels.cpu.common import (
    apply_layouts,
    inline_around,
    mark,
    narrowed,
    packed_weight,
    parallel_over,
    single_output,
)
from burnish.kernels.match import Convolution, convolution
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.machines.register_tile import (
    FAR,
    MOST_ACROSS,
    MOST_HIGH,
    Rows,
    RowTile,
    direct_cycles,
    lengths,
    row_tile,
    unevenness,
)
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

GAIN = 0.9  # of the time of vectors of output channels: what is left must be less
STREAMED = 10.0  # cycles until a run of memory arrives that follows another
N, OC, OH, OW, IC, KH, KW = range(7)  # axes of a convolution


class RowConv(NamedTuple):
    """A convolution, and its register tile."""

    convolution: Convolution
    tile: RowTile


def _form(task: KernelTask, target: Target) -> RowConv | None:
    """A convolution between row-major images, in equal groups or faster so than by vectors of output channels."""
    found = convolution(task, packed_weight(task))
    plain = all(layout.plain for layout in task.layouts.values())
    if found is None or not plain or len(task.outputs) != 1 or found.conv.shape != task.outputs[0].shape:
        return None
    conv, weight, data = found
    groups = found.even_groups
    if not groups or not found.in_rows or conv.dtype != "float32" or weight.shape[:2] == (groups, 1) != (1, 1):
        return None
    outputs, (height, width) = weight.shape[0] // groups, conv.shape[2:]
    stride = max(1, round(data.buffer.shape[3] / width))
    nbytes = 4 * data.buffer.size if weight.shape[2:] == (1, 1) else 0
    far = nbytes > max(target.l2_bytes, target.l3_bytes // 4)
    tile, cycles = row_tile(target, Rows(outputs, height, width, stride, groups > 1, far))
    by_channels = narrowed(task, target, outputs)
    blocks = -(-outputs // by_channels.lanes)
    streams = height > 1 or width % by_channels.lanes == 0  # of which bands can be cut, to read them in passes
    arriving = 0.0 if nbytes <= target.l2_bytes else STREAMED if streams else FAR
    faster = groups > 1 or cycles < GAIN * direct_cycles(by_channels, width, height, blocks, arriving)
    return RowConv(found, tile) if faster else None


def _space(task: KernelTask, target: Target, found: RowConv) -> ScheduleSpace:
    del task
    (conv, weight, data), tile, groups = found.convolution, found.tile, found.convolution.even_groups
    outputs, height = weight.shape[0] // groups, conv.shape[2]
    fitting = range(1, min(outputs, target.vector_registers - 2) + 1)
    knobs: dict[str, tuple[int | str, ...]] = {
        "channels": tuple(c for c in fitting if groups == 1 or outputs % c == 0),
        "rows": tuple(n for n in range(1, MOST_HIGH + 1) if height % n == 0),
        "vectors": tuple(range(1, MOST_ACROSS + 1)),
        "length": lengths(target),
        "inner": ("columns", "channels"),
    }
    # What a band of rows reads stays in the second cache while all channels are computed from it.
    read = 4 * weight.shape[1] * (tile.rows + weight.shape[2]) * data.buffer.shape[3]
    inner = "columns" if 2 * read <= target.l2_bytes and not _by_columns(found, tile.rows, target) else "channels"
    return ScheduleSpace(
        knobs,
        {"channels": tile.channels, "rows": tile.rows, "vectors": tile.vectors, "length": tile.length, "inner": inner},
    )


def _by_columns(found: RowConv, rows: int, target: Target) -> bool:
    """Whether cores share the columns of an image, which has too few rows."""
    batch, _, height, _ = found.convolution.conv.shape
    jobs = batch * found.convolution.even_groups * (height // rows)
    return unevenness(jobs, target.cores) > 1.0 and height == rows


def _apply(task: KernelTask, target: Target, found: RowConv, choice: Choice) -> Schedule:
    (_, weight, _), groups = found.convolution, found.convolution.even_groups
    channels, length = int(choice["channels"]), int(choice["length"])
    s = Schedule(task.program())
    acc = inline_around(s, task, ())
    apply_layouts(s, task, {weight.name: f"ABCD{channels}a"})
    n, oc, oh, ow = s.loops(single_output(task))
    columns = min(length * int(choice["vectors"]), -(-s.extent(ow) // length) * length)
    outer = [n]
    if groups > 1:
        group, oc = s.split(oc, weight.shape[0] // groups)
        outer.append(group)
    oc, channel = s.split(oc, channels)
    oh, row = s.split(oh, int(choice["rows"]))
    over, column = s.split(ow, columns)
    inner = [oc, over] if choice["inner"] == "columns" else [over, oc]
    _tile(s, (channel, row), column, length, (*outer, oh, *inner))
    s.compute_at(acc, inner[-1])
    s.set_scope(acc, "register")
    for loop in (s.loops(acc)[3], s.init_loops(acc)[3]):
        with suppress(ScheduleError):  # where it would read outside of the image, the last vector keeps its mask
            s.pad(loop, length)
    *_, channel, row, column, ic, kh, kw = s.loops(acc)
    s.unroll(kw)
    _tile(s, (channel, row), column, length, (ic, kh, kw))
    *_, channel, row, column = s.init_loops(acc)
    _tile(s, (channel, row), column, length, ())
    alone = choice["inner"] == "channels" and _by_columns(found, int(choice["rows"]), target)
    parallel_over(s, (over,) if alone else (*outer, oh))
    return s


def _tile(s: Schedule, unrolled: tuple[str, str], column: str, length: int, outer: tuple[str, ...]) -> None:
    """Makes the inner part of a nest a register tile, ``column`` its vectors, inside the loops ``outer``."""
    inner = [*unrolled, *(s.split(column, length) if s.extent(column) > length else [column])]
    s.reorder(*outer, *inner)
    mark(s, "unroll", *inner[:-1])
    s.vectorize(inner[-1])


def _nests(task: KernelTask, target: Target, found: RowConv) -> Describe:
    conv, weight, _ = found.convolution
    groups, domain = found.convolution.even_groups, statement(task, conv)
    batch, outputs, height, width = conv.shape
    inputs, kernel_h, kernel_w = domain.extents[IC:]
    own = outputs // groups

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        channels, rows, length = knobs["channels"], knobs["rows"], knobs["length"]
        columns = np.minimum(length * knobs["vectors"], -(-width // length) * length)
        tiles, over, by_channels = -(-own // channels), -(-width // columns), knobs["inner"] == "channels"
        alone = by_channels & np.array([_by_columns(found, int(n), target) for n in rows])
        levels = [
            NestLevel(N, batch, 1, np.where(alone, LoopKind.SERIAL, LoopKind.PARALLEL)),
            NestLevel(OC, groups, own, np.where(alone, LoopKind.SERIAL, LoopKind.PARALLEL)),
            NestLevel(OH, -(-height // rows), rows, np.where(alone, LoopKind.SERIAL, LoopKind.PARALLEL)),
            NestLevel(OC, np.where(by_channels, 1, tiles), channels),
            NestLevel(OW, over, columns, np.where(alone, LoopKind.PARALLEL, LoopKind.SERIAL)),
            NestLevel(OC, np.where(by_channels, tiles, 1), channels),
            NestLevel(IC, inputs),
            NestLevel(KH, kernel_h),
            NestLevel(KW, kernel_w, 1, LoopKind.UNROLL),
            NestLevel(OC, np.minimum(channels, own), 1, LoopKind.UNROLL),
            NestLevel(OH, rows, 1, LoopKind.UNROLL),
            NestLevel(OW, columns // length, length, LoopKind.UNROLL),
            NestLevel(OW, length, 1, LoopKind.VECTORIZE),
        ]
        packed = Arrangement(weight.shape, ((0, 0), (1, 0), (2, 0), (3, 0), (0, channels)))
        return domain.nest(levels, count, {weight.name: packed})

    return describe


ROW_CONV = Template("row_conv2d", _form, _space, _apply, _nests)
