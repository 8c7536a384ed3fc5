"""Reductions over rows of a CSR matrix: sums of neighbours' features, vertex by vertex or by blocks of sources in L2.

A reduction over one loaded extent (``y[v, f] += x[sources[e], f]``) is a loop over vertices, with vectors of features
in registers. One over blocks and a loaded extent in each (``y[v, f] += x[b * rows + places[e], f]``) goes through the
sources block by block and panel of features by panel: what it gathers from stays in the core's second-level cache.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from burnish.kernels.cpu.common import single_output
from burnish.kernels.match import only_reduction
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.expr import Cast, Expr, Load, Reduce
from burnish.loops.loaded import LoadedExtent, is_loaded
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import loads
from burnish.machines.target import Target
from burnish.schedule.precompute import invariant
from burnish.schedule.schedule import Schedule

MOST_VECTORS = 20  # accumulators of a panel: the registers, less those for a row's addresses and a factor
PARTS = 4  # of each core: parts of equal work, so that a core that the system takes away holds up few
SMALL = 1 << 14  # elements read below which waking the threads costs more than it saves
MOST_SIZE = 64  # features of a head, of which a panel of a block holds whole ones
BLOCK_BYTES = 3 << 19  # of a panel of a block of sources; see graph/aggregation.py
AHEAD = 4  # edges: how far ahead rows are asked for; 2 to 16 differ by some percent where rows come from memory


class EdgeRows(NamedTuple):
    """The stage that reduces over rows of edges, the input with their offsets, and what the stage gathers from.

    ``offsets`` [V + 1] may be another input than that which bounds the extent: any that counts the work of vertices.
    """

    stage: Tensor
    extent: LoadedExtent
    offsets: str | None
    gathered: str
    blocked: bool

    @property
    def near(self) -> tuple[str, ...]:
        """All inputs that are read at loaded rows."""
        body = self.stage.body
        assert isinstance(body, Reduce)
        found = [x.buffer.name for x in loads(body.body) if len(x.indices) > 1 and x.indices[0].buffers]
        return tuple(dict.fromkeys(found))


def _rows(task: KernelTask, target: Target, blocked: bool) -> EdgeRows | None:
    """A reduction over one loaded extent, alone or in blocks, that is read at its own place by all that follows."""
    del target
    stage = only_reduction(task)
    body = stage.body if stage is not None else None
    if stage is None or not isinstance(body, Reduce) or len(body.axes) != 1 + blocked:
        return None
    extent = body.axes[-1].extent
    plain = all(layout.plain for layout in task.layouts.values())
    alike = task.outputs[0].shape == stage.shape and stage.dtype in ("float32", "float64")
    if not is_loaded(extent) or not plain or not alike or len(stage.shape) not in (2, 3, 4) or 0 in stage.shape:
        return None
    gathered = _gathered(stage, body)
    ends = _row(extent.begin)
    expected = (body.axes[0].var, stage.axes[0]) if blocked else (stage.axes[0],)
    if (
        gathered is None
        or ends is None
        or ends.indices != expected
        or (blocked and len(stage.shape) > 2 and stage.shape[-1] > MOST_SIZE)
    ):
        return None
    counts = [t.name for t in task.inputs if t.shape == (stage.shape[0] + 1,) and t.dtype in ("int64", "int32")]
    own = ends.buffer.name if ends.buffer.name in counts else next(iter(counts), None)
    return EdgeRows(stage, extent, own, gathered, blocked)


def _row(begin: Expr) -> Load | None:
    begin = begin.value if isinstance(begin, Cast) else begin
    return begin if isinstance(begin, Load) else None


def _gathered(stage: Tensor, body: Reduce) -> str | None:
    """The tensor that a stage reads at loaded rows and at its own last axis."""
    last = stage.axes[-1]
    found = [x for x in loads(body.body) if x.indices[-1] == last and any(i.buffers for i in x.indices)]
    return found[0].buffer.name if found else None


def _accumulator(s: Schedule, task: KernelTask, rows: EdgeRows, scope: str, keep: tuple[str, ...] = ()) -> str:
    """Inlines all stages but the reduction, the output and those kept; the stage that accumulates."""
    out = single_output(task)
    s.compute_inline(*[t.name for t in task.stages() if t.name not in (out, rows.stage.name, *keep)])
    return s.cache_write(out, scope) if rows.stage.name == out else rows.stage.name


def _vectorize(s: Schedule, loops: list[str], lanes: int) -> None:
    """Vectors of the last loop, everything before it written out."""
    last = loops[-1]
    if s.extent(last) > lanes:
        vector, lane = s.split(last, lanes)
        s.unroll(vector)
        s.vectorize(lane)
    else:
        s.vectorize(last)
    for loop in loops[:-1]:
        s.unroll(loop)


def _registers(s: Schedule, loops: list[str], lanes: int) -> int:
    """Vectors of the sums over these loops."""
    return prod(s.extent(loop) for loop in loops[:-1]) * _vectors(s.extent(loops[-1]), lanes)


def _weighted(rows: EdgeRows) -> bool:
    """Whether what is added has a part that is the same for all of the last axis, as attention's weights are."""
    body = rows.stage.body
    assert isinstance(body, Reduce)
    part = invariant(body.body, rows.stage.axes[-1].name)
    return part is not None and rows.stage.axes[-2].name in part.variables


def _work(rows: EdgeRows) -> int:
    """Elements that are read."""
    return rows.extent.high * prod(rows.stage.shape[1:])


# --- vertex by vertex -------------------------------------------------------------------------------------------------


def _by_vertex(task: KernelTask, target: Target) -> EdgeRows | None:
    return _rows(task, target, blocked=False)


def _vectors(extent: int, lanes: int) -> int:
    return -(-extent // lanes)


def _space_by_vertex(task: KernelTask, target: Target, rows: EdgeRows) -> ScheduleSpace:
    """``vectors`` of features in a panel, of as equal panels as can be; ``ahead``: edges until a row is needed."""
    del task
    most = min(MOST_VECTORS, target.vector_registers - 8)
    whole = _vectors(rows.stage.shape[-1], target.lanes)
    panels = -(-whole // most)
    default = -(-whole // panels)
    knobs = {"vectors": tuple(sorted({1, 2, 4, 8, default})), "ahead": (0, 2, AHEAD, 8, 16), "parts": (1, PARTS, 16)}
    return ScheduleSpace(knobs, {"vectors": default, "ahead": AHEAD, "parts": PARTS})


def _apply_by_vertex(task: KernelTask, target: Target, rows: EdgeRows, choice: Choice) -> Schedule:
    """``panel of features -> parallel(part) -> vertex -> edge -> vectors``, the sums in registers."""
    s, lanes = Schedule(task.program()), target.lanes
    out, width = single_output(task), int(choice["vectors"]) * target.lanes
    acc = _accumulator(s, task, rows, "register")
    v, *features = s.loops(out)
    outer: list[str] = []
    while len(features) > 1 and _registers(s, features, lanes) > MOST_VECTORS:
        outer.append(features.pop(-2))
    if s.extent(features[-1]) > width:
        panel, inner = s.split(features[-1], width)
        outer, features = [*outer, panel], [*features[:-1], inner]
    s.reorder(*outer, v, *features)
    s.compute_at(acc, v)
    s.set_scope(acc, "register")
    _vectorize(s, features, lanes)
    _, *own, edge = s.loops(acc)
    s.reorder(edge, *own)
    if len(own) > 1 and _weighted(rows):
        _vectorize(s, s.loops(s.precompute(acc, edge, own[-1])), lanes)
    _vectorize(s, own, lanes)
    _vectorize(s, s.init_loops(acc)[1:], lanes)
    parts = int(choice["parts"]) * target.cores if _work(rows) >= SMALL and rows.offsets and target.cores > 1 else 1
    if parts > 1 and rows.offsets is not None:
        s.balance(v, parts, rows.offsets)
    for name in rows.near if choice["ahead"] else ():
        s.prefetch(name, edge, edge, int(choice["ahead"]), None, 3)
    bounds = _row(rows.extent.begin)
    if parts > 1 and bounds is not None and bounds.buffer.name == rows.offsets:
        s.divide(edge)  # a vertex may have a large share of all edges
    return s


AGGREGATE = Template("aggregate", _by_vertex, _space_by_vertex, _apply_by_vertex, nests=None, loaded=True)


# --- block by block ---------------------------------------------------------------------------------------------------


def _by_block(task: KernelTask, target: Target) -> EdgeRows | None:
    return _rows(task, target, blocked=True)


def _space_by_block(task: KernelTask, target: Target, rows: EdgeRows) -> ScheduleSpace:
    """``vectors`` of features in a panel: as many as let a block's rows stay in about the second-level cache."""
    del task
    body = rows.stage.body
    assert isinstance(body, Reduce)
    source = next(t for t in rows.stage.inputs if t.name == rows.gathered)
    block = -(-source.shape[0] // max(1, body.axes[0].extent))
    most = min(BLOCK_BYTES, target.l2_bytes * 3 // 2)
    fitting = [n for n in (4, 2, 1) if block * n * target.lanes * 4 <= most] or [1]
    whole = _vectors(prod(rows.stage.shape[1:]), target.lanes)
    default = next((n for n in fitting if n <= whole), 1)
    return ScheduleSpace({"vectors": (1, 2, 4), "parts": (1, 2, 4, 8, 16)}, {"vectors": default, "parts": 1})


def _apply_by_block(task: KernelTask, target: Target, rows: EdgeRows, choice: Choice) -> Schedule:
    """``panel of features -> parallel(part) -> block of sources -> vertex -> edge``; sums of a block in registers.

    A panel of the sources and of the sums lies in memory of its own, where rows follow each other: what a block gathers
    from is one run of memory.
    """
    s, lanes = Schedule(task.program()), target.lanes
    out, width = single_output(task), int(choice["vectors"]) * target.lanes
    acc = _accumulator(s, task, rows, "local", rows.near)
    v, *inner = s.loops(out)
    cut = max(len(inner) - 2, 0)  # of features, or of heads, of whose features a panel has all
    panel, width = None, max(width // (s.extent(inner[-1]) if len(inner) > 1 else 1), 1)
    if s.extent(inner[cut]) > width:
        panel, inner[cut] = s.split(inner[cut], width)
    packed = [t.name for t in rows.stage.inputs if t.name in rows.near and t.body is not None]
    if panel is not None:
        packed += [s.cache_read(name, "local", acc) for name in rows.near if name not in packed]
        s.reorder(panel, v, *inner)
        s.compute_at(acc, panel)
        for name in packed:
            s.compute_at(name, panel)
    block = s.loops(acc)[-2]
    sums = s.rfactor(acc, block, -1)
    own_v, *own, own_block = s.loops(acc)
    s.reorder(own_v, own_block, *own)
    s.compute_at(sums, own_block)
    s.set_scope(sums, "register")
    _, *features, sum_block, edge = s.loops(sums)
    s.reorder(sum_block, edge, *features)
    if len(features) > 1 and _weighted(rows):
        _vectorize(s, s.loops(s.precompute(sums, edge, features[-1])), lanes)
    _vectorize(s, features, lanes)
    _vectorize(s, s.init_loops(sums)[1 : 1 + len(features)], lanes)
    _vectorize(s, own, lanes)
    maps = [s.init_loops(acc), [v, *inner], *(s.loops(name) for name in packed)]
    for *_, loop in maps:
        _vectorize(s, [loop], lanes)
    if _work(rows) >= SMALL and rows.offsets is not None:
        part = s.balance(own_v, int(choice["parts"]) * target.cores, rows.offsets)
        s.reorder(part, own_block, own_v)
        for loop, *_ in maps:
            s.parallel(loop)
    else:
        s.reorder(own_block, own_v)
    return s


AGGREGATE_BLOCKS = Template("aggregate_blocks", _by_block, _space_by_block, _apply_by_block, nests=None, loaded=True)
