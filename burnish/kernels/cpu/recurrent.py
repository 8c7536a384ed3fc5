"""One step of an LSTM or GRU: all gates of a block of hidden units in registers, the cell's update fused behind them.

The recurrent weight is packed so that the gates of a block lie side by side: it streams through once, front to back.
"""

from __future__ import annotations

from typing import NamedTuple

from burnish.kernels.cpu.common import apply_layouts, mark
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.expr import Const, Reduce
from burnish.loops.linear import to_linear
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import loads
from burnish.machines.target import Target
from burnish.schedule.schedule import Schedule

MOST_VECTORS = 4
CACHED = 1.0  # of the second-level caches: weights up to here stay in them from step to step
WEIGHT_CYCLES = 1.5  # of reading a vector of weights from the second cache
FEW_WEIGHTS = 1 << 16  # weights below which waking the threads costs more than it saves


class Gates(NamedTuple):
    """The stage [gates, batch, units] that sums products with the state, and its weight [gates, units, units]."""

    anchor: Tensor
    weight: Tensor


def _gates(task: KernelTask, target: Target) -> Gates | None:
    """Several gates by one product, each of which is read at the position of the unit that it belongs to."""
    anchor = task.anchor()
    packed = [t for t in anchor.inputs if t.name in task.packing and len(t.shape) == 3] if anchor else []
    if anchor is None or len(packed) != 1 or len(anchor.shape) != 3:
        return None
    (weight,) = packed
    reads = [
        isinstance(x.indices[0], Const) and x.indices[1:] == t.axes
        for t in task.stages() if t.body is not None
        for x in loads(t.body) if x.buffer.name == anchor.name
    ]  # fmt: skip
    fits = (
        len(reads) > 1
        and all(reads)
        and anchor.dtype == "float32"
        and sum(isinstance(t.body, Reduce) for t in task.stages()) == 1
        and all(layout.plain for layout in task.layouts.values())
    )
    return Gates(anchor, weight) if fits else None


def _space(task: KernelTask, target: Target, found: Gates) -> ScheduleSpace:
    gates, batch, hidden = found.anchor.shape
    knobs = {"vectors": tuple(range(1, MOST_VECTORS + 1)), "rows": tuple(range(1, batch + 1))}
    vectors, rows = _tile(gates, batch, hidden, target)
    return ScheduleSpace(knobs, {"vectors": vectors, "rows": rows})


def _tile(gates: int, batch: int, hidden: int, target: Target) -> tuple[int, int]:
    """Vectors of hidden units in a block, and batch rows together: fewest cycles of the busiest core.

    A step of the depth costs its multiply-adds, and no less than their latency, nor than reading the weights of the
    block, which come out of the second cache, again for every tile of rows. Among equals, the most independent sums.
    """
    best: tuple[float, int, int] | None = None
    for vectors in range(1, MOST_VECTORS + 1):
        blocks = -(-hidden // (vectors * target.lanes))
        loads = gates * vectors
        for rows in range(1, batch + 1):
            if rows > 1 and loads * (rows + 1) + 1 > target.vector_registers:
                break
            full, rest = divmod(batch, rows)
            tiles = [rows] * full + [rest] * (rest > 0)
            cycles = sum(max(loads * r / 2, WEIGHT_CYCLES * loads, 4.0) for r in tiles) * (1.02 if rest else 1.0)
            cost = -(-blocks // target.cores) * cycles
            if 2 * loads + 1 <= target.vector_registers and (best is None or (cost, -vectors) < best[:2]):
                best = (cost, -vectors, rows)
    assert best is not None
    return -best[1], best[2]


def _apply(task: KernelTask, target: Target, found: Gates, choice: Choice) -> Schedule:
    anchor, weight = found
    lanes, group = target.lanes, int(choice["vectors"]) * target.lanes
    s = Schedule(task.program())
    kept = {anchor.name, *(t.name for t in task.outputs)}
    s.compute_inline(*[t.name for t in task.stages() if t.name not in kept])
    apply_layouts(s, task, {weight.name: f"BCA{group}b"})
    first, *rest = [t.name for t in task.stages() if t in task.outputs]
    batch, unit = s.loops(first)
    block, unit = s.split(unit, group)
    over, row = s.split(batch, int(choice["rows"]))
    s.reorder(block, over, row, unit)
    for name in rest:
        s.reverse_compute_at(name, over)
    s.compute_at(anchor.name, over)
    s.set_scope(anchor.name, "register")
    _vectorize(s, [row, unit], lanes)
    for name in rest:
        _vectorize(s, s.loops(name), lanes)
    gate, row, unit, k = s.loops(anchor.name)
    s.pad(unit, lanes)
    s.reorder(k, row, gate, unit)
    _vectorize(s, [row, gate, unit], lanes)
    inits = s.init_loops(anchor.name)
    s.pad(inits[-1], lanes)
    _vectorize(s, inits, lanes)
    if weight.buffer.size > FEW_WEIGHTS:
        _parallel(s, task, block, anchor.shape[1], weight.buffer.nbytes, target)
    return s


def _parallel(s: Schedule, task: KernelTask, block: str, batch: int, weight_bytes: int, target: Target) -> None:
    """Each core owns a run of blocks. Where its weights exceed L2, every other step runs backwards: it first reads what
    the step before has left there.
    """
    blocks = s.extent(block)
    forwards = (_first_row(task) // batch + task.odd_round) % 2 == 0
    if blocks < 2 * target.cores or weight_bytes <= CACHED * target.cores * target.l2_bytes or forwards:
        s.parallel(block)
        return
    core, block = s.split(block, -(-blocks // target.cores))
    s.reverse(block)
    s.parallel(core)


def _first_row(task: KernelTask) -> int:
    """The first row that the step reads of the gates of all steps: its number, times the batch size."""
    reads = [x for t in task.stages() if not isinstance(t.body, Reduce) and t.body is not None for x in loads(t.body)]
    return max(to_linear(x.indices[0])[1] for x in reads)


def _vectorize(s: Schedule, loops: list[str], lanes: int) -> None:
    """Vectors of the last loop, everything else unrolled."""
    vector, lane = s.split(loops[-1], lanes)
    mark(s, "unroll", *loops[:-1], vector)
    s.vectorize(lane)


def _nests(task: KernelTask, target: Target, found: Gates) -> Describe:
    """Blocks of hidden units, the depth around all gates of a block. A core's run of blocks counts as one loop."""
    (stage, weight), lanes = found, target.lanes
    domain = statement(task, stage)
    gates, batch, hidden, depth = domain.extents
    gate, row, unit, k = range(4)
    parallel = LoopKind.PARALLEL if weight.buffer.size > FEW_WEIGHTS else LoopKind.SERIAL

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        vectors, rows = knobs["vectors"], knobs["rows"]
        group = vectors * lanes
        levels = [
            NestLevel(unit, -(-hidden // group), group, parallel),
            NestLevel(row, -(-batch // rows), rows),
            NestLevel(k, depth),
            NestLevel(row, rows, 1, LoopKind.UNROLL),
            NestLevel(gate, gates, 1, LoopKind.UNROLL),
            NestLevel(unit, vectors, lanes, LoopKind.UNROLL),
            NestLevel(unit, lanes, 1, LoopKind.VECTORIZE),
        ]
        packed = Arrangement(weight.shape, ((1, 0), (2, 0), (0, 0), (1, group)))
        return domain.nest(levels, count, {weight.name: packed})

    return describe


RECURRENT = Template("recurrent", _gates, _space, _apply, _nests)
