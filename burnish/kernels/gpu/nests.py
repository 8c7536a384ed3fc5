"""Pieces of GPU schedules: nests in the coordinates of tiles, and loops that a block's threads share."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.loops.expr import Buffer, Expr, Var
from burnish.loops.program import MOST_BLOCKS, For, If, Stmt, Store
from burnish.schedule.schedule import Schedule

Loops = Sequence[tuple[str, int]]


def nest(stage: str, loops: Loops, body: Stmt, part: str = "") -> Stmt:
    """Serial loops of a stage around a statement whose variables are :func:`var`."""
    for name, extent in reversed(loops):
        body = For(f"{stage}.{part}{name}", extent, "serial", body)
    return body


def var(stage: str, name: str, part: str = "") -> Var:
    """The variable of a loop of :func:`nest`."""
    return Var(f"{stage}.{part}{name}")


def stored(
    buffer: Buffer, index: Sequence[Expr], value: Expr, reduce: str | None = None, where: Expr | None = None
) -> Stmt:
    """A store, under a condition if there is one."""
    store = Store(buffer, tuple(index), value, reduce)
    return store if where is None else If(where, store)


def fuse_all(s: Schedule, loops: Sequence[str]) -> str:
    """Perfectly nested loops as one."""
    fused, *rest = loops
    for loop in rest:
        fused = s.fuse(fused, loop)
    return fused


def bind_threads(s: Schedule, loop: str, block: tuple[int, int, int], unrolled: int = 0) -> str:
    """Spreads a loop over all threads of a block, neighbours next to each other; the innermost loop, of threads x.

    What is left for one thread is a loop around these; of at most ``unrolled`` iterations, it is written out.
    """
    x, y, z = block
    over = ""
    if s.extent(loop) > x * y * z:
        over, loop = s.split(loop, x * y * z)
        if s.extent(over) <= unrolled:
            s.unroll(over)
    for binding, inner in (("threadIdx.z", x * y), ("threadIdx.y", x)):
        if inner < x * y * z and s.extent(loop) > inner and (z > 1 or binding != "threadIdx.z"):
            outer, loop = s.split(loop, inner)
            s.bind(outer, binding)
    s.bind(loop, "threadIdx.x")
    return loop


def bind_blocks(s: Schedule, loops: Sequence[str]) -> None:
    """Loops as block indices, the innermost as x; loops of more iterations than y and z may have are one with it."""
    loops = [*loops]
    while len(loops) > 1 and any(s.extent(loop) > MOST_BLOCKS["blockIdx.y"] for loop in loops[:-1]):
        loops[-2:] = [s.fuse(loops[-2], loops[-1])]
    for loop, binding in zip(reversed(loops), ("blockIdx.x", "blockIdx.y", "blockIdx.z"), strict=False):
        s.bind(loop, binding)


MOST_ROWS = 32  # of tiles that blocks near each other compute, so that they read the same rows and columns


def block_order(s: Schedule, batch: str, rows: str, columns: str) -> tuple[str, str, str]:
    """The loops over tiles in the order in which blocks run: some rows of tiles, column by column, then the next rows.

    Blocks that run at a time then read few rows and columns, which are in the cache of all multiprocessors.
    """
    count = s.extent(rows)
    group = max(n for n in range(1, min(-(-count // 2), MOST_ROWS) + 1) if count % n == 0)
    if group == 1 or s.extent(columns) == 1:
        return batch, rows, columns
    outer, inner = s.split(rows, group)
    s.reorder(columns, inner)
    return batch, outer, s.fuse(columns, inner)
