"""Dense convolutions to few channels, in vectors of output columns: those of channels would be mostly empty.

The structure of ``parallel(band of rows) -> rows -> column tile -> ic -> kh -> kw``; what the window reads is computed
once for a band, row-major: padding, an image that is resized or mirrored in front, or channel blocks, which leave the
innermost loop no conditions and no gathers.
"""

from __future__ import annotations

from burnish.kernels.cpu.common import apply_layouts, mark, packed_weight, parallel_over, single_output
from burnish.kernels.match import Convolution, convolution
from burnish.kernels.task import Choice, Space, Task
from burnish.kernels.template import Template
from burnish.loops.simplify import simplify
from burnish.schedule.schedule import Schedule
from burnish.target import Target

MOST_BANDS = 8  # choices
BAND_BYTES = 1 << 15  # of what a band reads: it stays in the first cache


def _few(task: Task, target: Target) -> Convolution | None:
    """A convolution to at most half a vector of channels, row-major, whose columns are read one after the other."""
    found = convolution(task, packed_weight(task))
    if found is None or found.conv.dtype != "float32" or found.data.buffer.dtype != "float32":
        return None
    shape = found.conv.shape
    if len(task.outputs) != 1 or task.outputs[0].shape != shape or not task.layout(single_output(task)).plain:
        return None
    if found.weight.shape[0] > target.lanes // 2 or shape[3] < target.lanes or found.even_groups != 1:
        return None
    ow, kw = found.conv.axes[3], found.conv.body.axes[-1].var  # type: ignore[union-attr]
    ranges = {ow.name: shape[3], kw.name: found.weight.shape[3]}
    return found if simplify(found.data.indices[3], ranges) == simplify(ow + kw, ranges) else None


def _space(task: Task, target: Target, found: Convolution) -> Space:
    batch, outputs, height, width = found.conv.shape
    most = target.vector_registers - 8
    vectors = 2 if width % (2 * target.lanes) == 0 and 2 * outputs <= most else 1
    rows = next(n for n in (8, 4, 2, 1) if height % n == 0 and (n * vectors * outputs <= most or n == 1))
    line = 4 * found.channels * (width + found.weight.shape[3])
    bands = [b for b in range(rows, height + 1, rows) if height % b == 0][:MOST_BANDS]
    shared = [b for b in bands if height // b * batch >= 2 * target.cores] or bands[:1]
    band = max((b for b in shared if line * b <= BAND_BYTES), default=shared[0])
    knobs = {"vectors": (1, 2), "rows": (1, 2, 4, 8), "band": tuple(bands)}
    return Space(knobs, {"vectors": vectors, "rows": rows, "band": band})


def _apply(task: Task, target: Target, found: Convolution, choice: Choice) -> Schedule:
    s = Schedule(task.program())
    out, (conv, _, data) = single_output(task), found
    read = data.buffer.name if data.buffer.name not in {t.name for t in task.inputs} else ""
    for t in task.stages():
        if t.name not in (out, conv.name, read):
            s.compute_inline(t.name)
    acc = s.cache_write(out, "register") if conv.name == out else conv.name
    apply_layouts(s, task, {})
    n, oc, oh, ow = s.loops(out)
    band, oh = s.split(oh, int(choice["band"]))
    oh, row = s.split(oh, int(choice["rows"]))
    over, lane = s.split(ow, int(choice["vectors"]) * target.lanes)
    s.reorder(n, band, oh, over, oc, row, lane)
    s.compute_at(acc, over)
    s.set_scope(acc, "register")
    if read:
        s.compute_at(read, band)
    loops = s.loops(acc)
    oc_, row_, lane_ = loops[-6:-3]
    ic, kh, kw = loops[-3:]
    s.reorder(ic, kh, kw, oc_, row_, lane_)
    mark(s, "unroll", kw, oc_, row_)
    s.vectorize(lane_)
    *_, oc_, row_, lane_ = s.init_loops(acc)
    mark(s, "unroll", oc_, row_)
    s.vectorize(lane_)
    mark(s, "unroll", oc, row)
    s.vectorize(lane)
    if read:
        *_, column = s.loops(read)
        _, lane = s.split(column, target.lanes)
        s.vectorize(lane)
    parallel_over(s, (n, band))
    return s


FEW_CHANNELS = Template("few_channels_conv2d", _few, _space, _apply, None)
