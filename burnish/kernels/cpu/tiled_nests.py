"""Template of tiles of tiles for any definition (``tiled.py``, ``tiling.py``), and how its knobs cut the axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import numpy as np

from burnish.kernels.cpu.tiled import UNROLLED, apply, tileable
from burnish.kernels.cpu.tiling import REDUCED, space
from burnish.kernels.cpu.tiling import ReductionTask as Tiling
from burnish.kernels.nest import Arrangement, CandidateNests, Knobs, LoopKind, NestAccess, NestLevel, Size, statement
from burnish.kernels.task import KernelTask
from burnish.kernels.template import Describe, Template
from burnish.machines.target import Target


def nests(task: KernelTask, target: Target, nest: Tiling) -> Describe:
    """Cache tiles, register tiles in one, blocks of the sum (before the register tiles where they add up in scratch),
    the steps of a block, a register tile, its vectors. Whether padding is inlined does not show.
    """
    stage, target = nest.reduction or nest.out, target.for_items(nest.item_bytes)
    domain = statement(task, stage)
    shape, lanes, most = nest.out.shape, target.lanes, 2 * target.vector_registers
    layout = task.layout(nest.out.name)
    dims = nest.dims if nest.reduction else tuple(range(len(shape)))
    axes = {name: dims.index(d) for name, d in nest.axes.items()}  # of the statement, by name
    tile_order = sorted(axes, key=axes.__getitem__)
    extents = {name: shape[d] for name, d in nest.axes.items()}
    reduced = {a.var.name: (len(dims) + k, a.extent) for k, a in enumerate(nest.reduced)}
    constants = [a for a in domain.accesses[1:] if a.buffer.name in task.constants] if nest.reduction else []

    def describe(knobs: Knobs, count: int) -> CandidateNests:
        ones, vectors = np.ones(count, np.int64), knobs["vectors"]
        lane = {name: knobs["vector"] == name for name in axes}
        width = {name: min(lanes, extent) * ones for name, extent in extents.items()}
        if nest.reduction is None:
            for name, extent in extents.items():
                wide = width[name] * vectors
                last = layout.parts[-1].block
                width[name] = np.where((extent % wide == 0) & ((last == 0) | (last == wide)), wide, width[name])
            one = [lane[name] & (width[name] > min(lanes, extent)) for name, extent in extents.items()]
            vectors = np.where(np.any(one, axis=0), 1, vectors)
        many = {name: np.minimum(vectors, -(-extents[name] // width[name])) for name in axes}
        tile = {n: np.where(lane[n], many[n] * width[n], knobs.get(f"tile_{n}", ones)) for n in axes}
        block = {n: -(-knobs[f"block_{n}"] // tile[n]) * tile[n] for n in axes}
        step, summed = {}, {}
        for name, (_, extent) in reduced.items():
            summed[name] = knobs["vector"] == REDUCED + name
            whole = [
                np.where((n <= vectors) & (extent % (n * lanes) == 0), n, 1) for n in range(1, int(vectors.max()) + 1)
            ]
            step[name] = np.where(summed[name], np.max(whole, axis=0) * lanes, knobs.get(f"step_{name}", extent))

        outer = [NestLevel(axes[n], -(-extents[n] // block[n]), block[n]) for n in axes]
        outer = _parallel(
            _ordered(outer, [knobs["outermost"] == n for n in axes], True), knobs.get("parallel", 0 * ones)
        )
        within = [NestLevel(axes[n], -(-np.minimum(block[n], extents[n]) // tile[n]), tile[n]) for n in axes]
        over = [NestLevel(axis, -(-extent // step[n]), step[n]) for n, (axis, extent) in reduced.items()]
        scratch = np.zeros(count, bool)
        if reduced:
            scratch = (knobs["accumulate"] == "scratch") & ~np.any(list(summed.values()), axis=0)
        steps = [NestLevel(axis, np.where(summed[n], 1, step[n])) for n, (axis, _) in reduced.items()]
        if "innermost_reduction" in knobs:
            steps = _ordered(steps, [knobs["innermost_reduction"] == n for n in reduced], False)
        inside = [NestLevel(axes[n], np.where(lane[n], 1, tile[n])) for n in tile_order]
        inside += [NestLevel(axes[n], np.where(lane[n], many[n], 1), width[n]) for n in axes]
        inside += [NestLevel(axis, np.where(summed[n], step[n] // lanes, 1), lanes) for n, (axis, _) in reduced.items()]
        copies, inside = _unrolled(inside, np.where(knobs["unroll"] == "none", 0, most))
        if steps:
            innermost = prod(level.extent for level in steps[-len(reduced) :])  # of those, one has iterations
            short = (knobs["unroll"] == "step") & (copies * innermost <= UNROLLED)
            steps[-len(reduced) :] = [
                level._replace(annotation=np.where(short, LoopKind.UNROLL, LoopKind.SERIAL))
                for level in steps[-len(reduced) :]
            ]
        levels = [
            *outer, *_only(scratch, over), *_ordered(within, [knobs["innermost"] == n for n in axes], False),
            *_only(~scratch, over), *steps, *inside,
            *(NestLevel(axes[n], np.where(lane[n], width[n], 1), 1, LoopKind.VECTORIZE) for n in axes),
            *(NestLevel(axis, np.where(summed[n], lanes, 1), 1, LoopKind.VECTORIZE) for n, (axis, _) in reduced.items())
        ]  # fmt: skip
        by_axis = {axes[n]: np.where(lane[n], tile[n], 1) for n in axes}
        blocks = {axis: np.where(step[n] < extent, step[n], 1) for n, (axis, extent) in reduced.items()}
        return domain.nest(levels, count, {a.buffer.name: _packed(a, by_axis, blocks) for a in constants})

    return describe


def _ordered(levels: list[NestLevel], chosen: list[np.ndarray], first: bool) -> list[NestLevel]:
    """The levels with the chosen one (a mask for each) moved to the front or the end: each twice, once of extent 1."""
    own = [level._replace(extent=np.where(mask, level.extent, 1)) for level, mask in zip(levels, chosen, strict=True)]
    rest = [level._replace(extent=np.where(mask, 1, level.extent)) for level, mask in zip(levels, chosen, strict=True)]
    return [*own, *rest] if first else [*rest, *own]


def _only(mask: np.ndarray, levels: Iterable[NestLevel]) -> list[NestLevel]:
    """Levels of the candidates in ``mask`` only."""
    return [level._replace(extent=np.where(mask, level.extent, 1)) for level in levels]


def _parallel(levels: list[NestLevel], count: np.ndarray) -> list[NestLevel]:
    """The first ``count`` levels of several iterations run in parallel."""
    found, before = [], np.zeros_like(count)
    for level in levels:
        several = np.asarray(level.extent) > 1
        found.append(
            level._replace(annotation=np.where(several & (before < count), LoopKind.PARALLEL, LoopKind.SERIAL))
        )
        before = before + several
    return found


def _unrolled(levels: list[NestLevel], most: np.ndarray) -> tuple[np.ndarray, list[NestLevel]]:
    """Unrolls the innermost levels, of at most ``most`` iterations together; returns all iterations, and the levels."""
    found: list[NestLevel] = []
    copies = np.ones_like(most)
    for level in reversed(levels):
        copies = copies * level.extent
        found.append(level._replace(annotation=np.where(copies <= most, LoopKind.UNROLL, LoopKind.SERIAL)))
    return copies, found[::-1]


def _packed(access: NestAccess, tiles: Mapping[int, Size], blocks: Mapping[int, Size]) -> Arrangement:
    """A constant as the template packs it: blocks of the sum, in each its steps, in these a register tile's lanes."""
    owner = {d: t.linear.index(1) for d, terms in enumerate(access.indices) for t in terms if 1 in t.linear}
    lanes = [d for d, axis in owner.items() if axis in tiles]
    summed = [d for d, axis in owner.items() if axis in blocks]
    grouped: Size = tiles[owner[lanes[-1]]] if lanes else 1
    packs = np.asarray(grouped) > 1
    rest = [d for d in range(len(access.indices)) if d not in summed]
    steps = [(d, np.where(packs, blocks[owner[d]], 1)) for d in summed]
    last = [(lanes[-1], grouped)] if lanes else []
    return Arrangement(access.buffer.shape, (*((d, 0) for d in (*rest, *summed)), *steps, *last))


def needs_search(task: KernelTask, target: Target, nest: Tiling) -> bool:
    """Whether the default tile sizes are a guess, so that only tuning makes them good. For contractions they are not: a
    register tile reuses each loaded operand, which the general schedule, without register tiling, does not.
    """
    del target
    return nest.reduction is None or nest.reduction is not task.anchor()


TILED = Template("tiled", tileable, space, apply, nests, searched=needs_search)
