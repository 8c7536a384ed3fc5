"""Products with weights of few bits: words of eight numbers or fewer, unpacked in registers where they are multiplied.

The other factor is rounded first, to bytes in blocks (:mod:`burnish.ops.blocks`), once for all columns. Then, in
parallel over panels of columns, a register tile of rows and column vectors for each block of the depth: integer sums of
a block in registers, with the block's scale added to float32 sums in registers. A panel's words are one stream.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from burnish.kernels.cpu.common import (
    apply_layouts,
    channel_constants,
    inline_around,
    mark,
    parallel_over,
    register_tile_at,
)
from burnish.kernels.cpu.product import in_order, index_maps
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestLevel, statement
from burnish.kernels.task import Choice, KernelTask, ScheduleSpace
from burnish.kernels.template import Describe, Template
from burnish.loops.contraction import contraction
from burnish.loops.expr import Reduce
from burnish.loops.tensor import Tensor
from burnish.loops.traverse import loads
from burnish.machines.target import Target
from burnish.ops.byte_words import BYTES
from burnish.schedule.schedule import Schedule

FEW_PRODUCTS = 1 << 16  # multiply-adds below which waking the threads costs more than it saves
MOST_VECTORS = 8
MANY_WORDS = 1 << 13  # of the other factor, from which all threads round it


class BlockProduct(NamedTuple):
    """The sums over blocks, the sums of integers within each, the words, and the stages that round the other factor.

    ``rows`` and ``columns``: axes of the output, as in :class:`burnish.kernels.cpu.product.MatrixProduct`.
    """

    total: Tensor
    dots: Tensor
    words: Tensor
    rounded: Tensor
    others: tuple[Tensor, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def digits(self) -> int:
        """Number of bytes that a number of the other factor is rounded to."""
        return self.dots.shape[-3]

    @property
    def is_long(self) -> bool:
        """Whether it has work for several threads."""
        assert isinstance(self.dots.body, Reduce)
        return BYTES * self.dots.buffer.size * prod(axis.extent for axis in self.dots.body.axes) > FEW_PRODUCTS


def _form(task: KernelTask, target: Target) -> BlockProduct | None:
    dots = task.anchor()
    found = contraction(dots)
    if dots is None or found is None or not found.words or len(dots.shape) < 4 or len(task.outputs) != 1:
        return None
    readers = [t for t in task.stages() if dots in t.inputs]
    factors = [list(loads(f)) for f in found.factors]
    if len(readers) != 1 or not isinstance(readers[0].body, Reduce) or any(len(f) != 1 for f in factors):
        return None
    total, names = readers[0], [f[0].buffer.name for f in factors]
    inputs = {t.name: t for t in dots.inputs}
    words, rounded = (inputs[name] for name in names)
    maps = index_maps(task, total)
    if words.name not in task.packing or rounded.body is None or maps is None or not task_is_plain(task):
        return None
    rows: dict[int, int] = {}
    for terms in maps[:-1]:
        rows |= terms
    shape = task.outputs[0].shape
    columns, ordered = in_order(maps[-1], shape), in_order(rows, shape)
    if not columns or ordered is None or (len(columns) > 1 and shape[columns[-1]] % target.lanes):
        return None
    others = tuple(t for t in task.stages() if isinstance(t.body, Reduce) and t not in (total, dots))
    return BlockProduct(total, dots, words, rounded, others, ordered, columns)


def task_is_plain(task: KernelTask) -> bool:
    """Whether all that a task reads and writes is row-major."""
    return all(layout.plain for layout in task.layouts.values())


def _fits(p: BlockProduct, shape: tuple[int, ...], vectors: int, lanes: int) -> bool:
    return len(p.columns) == 1 or shape[p.columns[-1]] % (vectors * lanes) == 0


def _space(task: KernelTask, target: Target, p: BlockProduct) -> ScheduleSpace:
    shape = task.outputs[0].shape
    rows = shape[p.rows[-1]] if p.rows else 1
    tiles = tuple(range(1, min(rows, 8) + 1))
    vectors = tuple(v for v in range(1, MOST_VECTORS + 1) if _fits(p, shape, v, target.lanes))

    def cost(tile: int, v: int) -> float:
        """Instructions for a vector of columns and a row: sums, unpacking shared by rows, operands by columns."""
        taken = tile * v * (p.digits + 1) + v + 2
        full, rest = divmod(rows, tile)
        steps = full + (rest > 0)
        chains = max(tile * v * p.digits, 8) / (tile * v * p.digits)  # of fewer sums the latency is seen
        spilled = 1.0 + max(0, taken - target.vector_registers) / 8
        panels = -(-shape[p.columns[-1]] // (v * target.lanes)) * v * target.lanes / shape[p.columns[-1]]
        return steps * (tile * p.digits + 1.5 + 0.3 * tile * p.digits / v) * chains * spilled * panels / rows

    tile, v = min(((t, v) for t in tiles for v in vectors), key=lambda pair: cost(*pair))
    return ScheduleSpace({"tile": tiles, "vectors": vectors}, {"tile": tile, "vectors": v})


def _panels(group: int) -> str:
    """The layout of a matrix in panels of columns."""
    return f"BA{group}b"


def _apply(task: KernelTask, target: Target, p: BlockProduct, choice: Choice) -> Schedule:
    lanes, group = target.lanes, int(choice["vectors"]) * target.lanes
    out, s = task.outputs[0].name, Schedule(task.program())
    inside = [t.name for t in (p.total, p.rounded, *p.others)]
    dots = inline_around(s, task, inside)
    total = s.cache_write(out, "register") if p.total.name == out else p.total.name
    tags = channel_constants(task, group)
    for t in p.total.inputs:
        if t.name in task.packing and t.shape[-1:] == p.words.shape[-1:] and len(t.shape) == 2:
            tags[t.name] = _panels(group)
    apply_layouts(s, task, {**tags, p.words.name: _panels(group)})
    own = s.loops(out)
    panel, column = s.split(own[p.columns[-1]], group)
    block, lane = s.split(column, lanes)
    over = [*(own[d] for d in p.columns[:-1]), panel]
    rows, inner = [own[d] for d in p.rows[:-1]], []
    if p.rows:
        tile, row = s.split(own[p.rows[-1]], int(choice["tile"]))
        rows.append(tile)
        inner.append(row)
    single = [v for d, v in enumerate(own) if d not in (*p.columns, *p.rows)]
    s.reorder(*single, *over, *rows, *inner, block, lane)
    register_tile_at(s, total, (rows or over)[-1], lane, *inner, block)
    *spatial, b = s.loops(total)
    _in_vectors(s, spatial, lanes, (b,))
    _in_vectors(s, s.init_loops(total), lanes, ())
    s.compute_at(dots, b)
    s.set_scope(dots, "register")
    *spatial, q, g = s.loops(dots)
    _in_vectors(s, spatial, lanes, (q, g))
    s.unroll(g)
    _in_vectors(s, s.init_loops(dots), lanes, ())
    if p.is_long:
        parallel_over(s, [*single, *over])
    _round(s, p, lanes)
    return s


def _in_vectors(s: Schedule, spatial: list[str], lanes: int, around: tuple[str, ...]) -> None:
    """Columns, the last of the loops, in vectors; all but ``around`` unrolled."""
    s.pad(spatial[-1], lanes)
    block, lane = s.split(spatial[-1], lanes)
    s.reorder(*around, block, *spatial[:-1], lane)
    mark(s, "unroll", block, *spatial[:-1])
    s.vectorize(lane)


def _round(s: Schedule, p: BlockProduct, lanes: int) -> None:
    """Magnitudes of the other factor's blocks, its bytes and their sums, each a nest of its own before the product."""
    rank = len(p.total.shape)
    many = prod(p.rounded.shape) > MANY_WORDS and prod(p.total.shape[:-1]) > 1
    for t in p.others:
        if p.rounded in t.inputs:  # blocks side by side, a word of each at a time
            _lanes_last(s, s.loops(t.name), rank, lanes)
            _lanes_last(s, s.init_loops(t.name), rank, lanes)
        else:
            _, lane = s.split(s.loops(t.name)[-1], lanes)
            partial = s.rfactor(t.name, lane, -1)
            *rows, lane = s.loops(t.name)
            s.vectorize(lane)
            s.compute_at(partial, rows[-1])
            s.set_scope(partial, "register")
            *rows, lane, step = s.loops(partial)
            s.reorder(*rows, step, lane)
            s.vectorize(lane)
            s.vectorize(s.init_loops(partial)[-1])
            if many:
                parallel_over(s, s.loops(t.name)[: rank - 1])
    digit, *rows, word = s.loops(p.rounded.name)
    word, lane = s.split(word, min(lanes, s.extent(word)))
    s.reorder(*rows, word, digit, lane)
    s.unroll(digit)
    s.vectorize(lane)
    if many:
        parallel_over(s, rows)


def _lanes_last(s: Schedule, loops: list[str], at: int, lanes: int) -> None:
    over, lane = s.split(loops[at], min(lanes, s.extent(loops[at])))
    s.reorder(*loops[:at], over, *loops[at + 1 :], lane)
    s.vectorize(lane)


def _nests(task: KernelTask, target: Target, p: BlockProduct) -> Describe:
    """Panels of columns in parallel, tiles of rows, words of the depth, and a register tile within."""
    domain, lanes = statement(task, p.dots, (p.rounded.name,)), target.lanes
    parallel = LoopKind.PARALLEL if p.is_long else LoopKind.SERIAL
    *rows, digits, blocks, columns = p.dots.shape
    rank = len(p.dots.shape)
    assert isinstance(p.dots.body, Reduce)
    steps, groups = (axis.extent for axis in p.dots.body.axes)

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        group = knobs["vectors"] * lanes
        levels = [NestLevel(rank - 1, -(-columns // group), group, parallel)]
        levels += [NestLevel(d, extent) for d, extent in enumerate(rows[:-1])]
        if rows:
            levels.append(NestLevel(len(rows) - 1, -(-rows[-1] // knobs["tile"]), knobs["tile"]))
        levels += [NestLevel(rank - 2, blocks), NestLevel(rank, steps), NestLevel(rank + 1, groups, 1, LoopKind.UNROLL)]
        levels.append(NestLevel(rank - 1, knobs["vectors"], lanes, LoopKind.UNROLL))
        if rows:
            levels.append(NestLevel(len(rows) - 1, knobs["tile"], 1, LoopKind.UNROLL))
        levels += [NestLevel(rank - 3, digits, 1, LoopKind.UNROLL), NestLevel(rank - 1, lanes, 1, LoopKind.VECTORIZE)]
        packed = {p.words.name: Arrangement(p.words.shape, ((1, 0), (0, 0), (1, group)))}
        return domain.nest(levels, count, packed)

    return describe


BLOCK_PRODUCT = Template("block_product", _form, _space, _apply, _nests)
