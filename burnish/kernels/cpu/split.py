"""float32 products on a bfloat16 matrix unit: parts of the input made once, then tiles of 2 x 2 accumulators.

The input's parts are written by all threads first; then every thread owns channel groups and row blocks, with no
barrier but the one between.
"""

from __future__ import annotations

from burnish.kernels.cpu.common import apply_layouts, channel_constants, is_blocked, mark, parallel_over, single_output
from burnish.kernels.task import Choice, Space, Task, Template
from burnish.loops.expr import Reduce
from burnish.ops.split import DEPTH, ROWS
from burnish.schedule.schedule import Schedule
from burnish.target import Target

COLUMNS = 16  # channels of an accumulator tile


def _matches(task: Task, target: Target) -> bool:
    if task.op != "split_conv2d" or len(task.outputs) != 1 or not target.has("amx-bf16"):
        return False
    out = task.outputs[0]
    reductions = [t for t in task.stages() if isinstance(t.body, Reduce)]
    return len(out.shape) == 4 and len(reductions) == 1 and is_blocked(task.layout(out.name), 1, target.lanes)


def _space(task: Task, target: Target) -> Space:
    channels = -(-task.outputs[0].shape[1] // COLUMNS)
    tile = next(t for t in task.stages() if t.name.endswith(".tile"))
    rows = tile.shape[3] // ROWS
    knobs = {"tiles_n": (1, 2), "tiles_m": (1, 2), "outer": ("oc", "block")}
    return Space(knobs, {"tiles_n": 2 if channels % 2 == 0 else 1, "tiles_m": 2 if rows % 2 == 0 else 1, "outer": "oc"})


def _apply(task: Task, target: Target, choice: Choice) -> Schedule:
    group = int(choice["tiles_n"]) * COLUMNS
    tile = next(t for t in task.stages() if t.name.endswith(".tile"))
    conv, out = tile.name.removesuffix(".tile"), single_output(task)
    rows = _rows(task, conv)
    weight = tile.inputs[1].name
    s = Schedule(task.program())
    for t in task.stages():
        if t.name not in (out, f"{conv}.parts", tile.name):
            s.compute_inline(t.name)
    accumulator = s.cache_write(tile.name, "register")
    apply_layouts(s, task, {**channel_constants(task, group), weight: "ABCDE16c16b2c"})

    n, oc, oh, ow = s.loops(out)
    s.pad(oc, group)
    oc_group, oc = s.split(oc, group)
    oc_block, lane = s.split(oc, COLUMNS)
    block, row = s.split(oh, rows)
    s.reorder(n, oc_group, block, row, ow, oc_block, lane)
    s.compute_at(tile.name, block)
    s.set_scope(tile.name, "local")
    s.unroll(oc_block)
    s.vectorize(lane)
    outer = (n, oc_group, block) if choice["outer"] == "oc" else (n, block, oc_group)
    s.reorder(*outer)
    parallel_over(s, outer)
    _schedule_parts(s, f"{conv}.parts", target.lanes)
    _schedule_tiles(s, tile.name, accumulator, int(choice["tiles_m"]))
    return s


def _rows(task: Task, conv: str) -> int:
    """Output rows of a block."""
    tile = next(t for t in task.stages() if t.name == f"{conv}.tile")
    return -(-task.outputs[0].shape[2] // tile.shape[2])


def _schedule_tiles(s: Schedule, tile: str, accumulator: str, tiles_m: int) -> None:
    """Accumulators of ``tiles_m`` x (channel tiles) over all taps and channels, then stored to the block's buffer."""
    s.transform_layout(tile, f"ACDB{COLUMNS}b")
    _, oc, _, q = s.loops(tile)
    s.pad(q, ROWS * tiles_m)
    columns, j = s.split(oc, COLUMNS)
    over, i = s.split(q, ROWS)
    outer, over = s.split(over, tiles_m)
    s.reorder(outer, over, columns, i, j)
    s.compute_at(accumulator, outer)
    s.set_scope(accumulator, "register")
    s.transform_layout(accumulator, f"ABCD{ROWS}d{COLUMNS}b")
    _, oc, _, q, ic, kh, kw, term = s.loops(accumulator)
    a_columns, a_j = s.split(oc, COLUMNS)
    a_over, a_i = s.split(q, ROWS)
    ic_block, k = s.split(ic, DEPTH)
    k, pair = s.split(k, 2)
    s.reorder(ic_block, kh, kw, term, a_over, a_columns, a_i, a_j, k, pair)
    _, oc, _, q = s.init_loops(accumulator)
    i_columns, i_j = s.split(oc, COLUMNS)
    i_over, i_i = s.split(q, ROWS)
    s.reorder(i_over, i_columns, i_i, i_j)
    mark(s, "unroll", over, columns, term, a_over, a_columns, i_over, i_columns, kh, kw)
    s.tensorize(i_i, "amx_zero")
    s.tensorize(a_i, "amx_dot_bf16")
    s.tensorize(i, "amx_store")


def _schedule_parts(s: Schedule, parts: str, lanes: int) -> None:
    """Both parts of a vector of channels from one load."""
    s.transform_layout(parts, f"ABCDEFG{DEPTH}c")
    part, n, c, ph, pw, row, column = s.loops(parts)
    over, c = s.split(c, DEPTH)
    half, lane = s.split(c, lanes)
    s.reorder(n, over, ph, pw, row, column, half, part, lane)
    mark(s, "unroll", half, part)
    s.vectorize(lane)
    parallel_over(s, (n, over, ph, pw, row))


SPLIT_CONV = Template("split_conv2d", _matches, _space, _apply)
