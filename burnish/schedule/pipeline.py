"""Software pipelining: what a loop computes with is fetched some iterations ahead, into copies of its buffers.

As with virtual threads, several iterations are under way at a time, each in a copy of the buffers of its own; here the
order of statements says what waits for what, there tokens between units do.

Source: thesis-chen section 4.3.4 (latency hiding); PTX ISA, "Asynchronous copy" and "Asynchronous warpgroup level
matrix instructions".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from burnish.errors import ScheduleError
from burnish.loops.boxes import box_extents
from burnish.loops.expr import INDEX, ITEM_BYTES, SHARED, Buffer, Const, Expr, Load, Var
from burnish.loops.program import (
    BINDINGS,
    COMMIT_COPIES,
    COMMIT_PRODUCTS,
    COPY_TENSOR,
    EXPECT_COPIES,
    INIT_ARRIVALS,
    NOTHING,
    START_PRODUCTS,
    WAIT_ARRIVALS,
    WAIT_COPIES,
    WAIT_PRODUCTS,
    Alloc,
    For,
    Intrinsic,
    LoopProgram,
    Seq,
    Stmt,
    map_access,
    rebuild_stmt,
    seq,
    walk_stmt,
)
from burnish.schedule.nest import rename_loops, replace_site
from burnish.schedule.pipeline_steps import pipeline_steps


def pipeline(
    program: LoopProgram, loop: str, stages: int, behind: int | None = None, over: str | None = None
) -> LoopProgram:
    """Software pipelining of ``loop``: data of later iterations are fetched ahead, into ``stages`` copies of buffers.

    The body of the loop allocates buffers, fills some of them by the statements it begins with, and computes. Operands
    of what waits say which copies it is about. ``behind``: None where products are done when the next statement begins;
    else those of so many iterations may go on. Then an iteration waits for its copies, computes, waits for the products
    of ``behind`` iterations ago, and fetches into the copies that these have read. ``over``: a loop around, whose next
    iteration's first steps are fetched while this one ends; only before the first one is there nothing to compute::

    for y.i in 8:
      alloc p: float32[1, 4]
      for p.i in 1:
        for p.j in 4:
          p[p.i, p.j] = (x[(y.i + p.i), p.j] * 2.0)
      for y.j in 4:
        y[y.i, y.j] = (p[0, y.j] + 1.0)

    alloc p: float32[3, 1, 4]
    for y.i.fill in 2:
      for p.i.fill in 1:
        for p.j.fill in 4:
          p[y.i.fill, p.i.fill, p.j.fill] = (x[(y.i.fill + p.i.fill), p.j.fill] * 2.0)
      commit_copies()
    wait_copies(p[0, 0, 0], but=1)
    for y.i in 8:
      if ((y.i + 2) < 8):
        for p.i in 1:
          for p.j in 4:
            p[((y.i + 2) % 3), p.i, p.j] = (x[((y.i + 2) + p.i), p.j] * 2.0)
      commit_copies()
      for y.j in 4:
        y[y.i, y.j] = (p[(y.i % 3), 0, y.j] + 1.0)
      wait_copies(p[((y.i + 1) % 3), 0, 0], but=1)
    """
    steps, ahead = pipeline_steps(program, loop, over), stages - max(1, behind or 0)
    if ahead < 1 or (behind is not None and behind < 1):
        raise ScheduleError(f"pipeline: loop '{loop}': {stages} stages, {behind} behind; allowed: one ahead or more")
    buffers, fetches, rest = _parts(loop, steps.site.loop.body)
    filled = [b for b in buffers if any(b.name in s.writes for s in fetches)]
    steps.check(fetches, [b.name for b in buffers])

    boxes = [s for fetch in fetches for s in walk_stmt(fetch) if _is_box(s)]
    by_threads = any(not s.parts and s.writes and not _is_box(s) for fetch in fetches for s in walk_stmt(fetch))
    arrivals = _arrivals(loop, steps.top.path, stages) if boxes else None
    if arrivals is not None:
        expected = sum(_box_bytes(fetch, ()) for fetch in fetches)
        fetches = [Intrinsic(EXPECT_COPIES, (), (("bytes", expected),)), *fetches]

    def in_slot(s: Stmt, step: Expr, slot: Expr) -> Stmt:
        if arrivals is not None:
            s = _counted(s, _place(arrivals, step))
        for buffer in filled:
            s = map_access(s, buffer.name, partial(_in_slot, _copies(buffer, stages), slot))
        return s

    now, fill = steps.now, Var(f"{loop}.fill")
    first = in_slot(steps.first(seq(*fetches), fill, ahead), fill, fill)
    first = rename_loops(first, lambda name: f"{name}.fill")
    later: Stmt = NOTHING
    if ahead < steps.total:
        later = in_slot(steps.later(seq(*fetches), ahead), now + ahead, (now + ahead) % stages)

    def waits(name: str, step: Expr, but: int = 0, publish: bool = False) -> Stmt:
        """Waits for a step; the operands say which copies of the buffers are its own, for who places barriers."""
        if name == WAIT_COPIES and not by_threads:
            return NOTHING
        operands = tuple(Load(_copies(b, stages), (step % stages, *[Const(0, INDEX)] * len(b.shape))) for b in filled)
        return Intrinsic(name, operands, (("but", but), *((("publish", 1),) if publish else ())))

    commit = Intrinsic(COMMIT_COPIES, ()) if by_threads else NOTHING
    work = in_slot(rest, now, now % stages)
    arrived = NOTHING if arrivals is None else _arrived(arrivals, now, [_copies(b, stages) for b in filled])
    before: Stmt = For(f"{loop}.fill", ahead, "serial", seq(first, commit))
    if behind is None:
        body = seq(later, commit, arrived, work, waits(WAIT_COPIES, now + 1, ahead - 1))
        before = seq(before, waits(WAIT_COPIES, Const(0, INDEX), ahead - 1))
        inner: Stmt = For(loop, steps.extent, "serial", body)
    else:
        ended = waits(WAIT_PRODUCTS, now + ahead, behind)
        work = seq(waits(START_PRODUCTS, now), work, Intrinsic(COMMIT_PRODUCTS, ()), ended)
        body = seq(waits(WAIT_COPIES, now, ahead - 1, publish=True), arrived, work, later, commit)
        inner = seq(For(loop, steps.extent, "serial", body), Intrinsic(WAIT_PRODUCTS, (), (("but", 0),)))
    for buffer in reversed([b for b in buffers if b not in filled]):
        inner = Alloc(buffer, inner)
    new = seq(before, steps.around(inner))
    if arrivals is not None:
        init = Intrinsic(INIT_ARRIVALS, (Load(arrivals, (Const(0, INDEX),) * 2),), (("count", stages),))
        new = Alloc(arrivals, seq(init, new))
    for buffer in reversed(filled):
        new = Alloc(_copies(buffer, stages), new)
    return replace_site(program, steps.top, new)


def _is_box(s: Stmt) -> bool:
    return isinstance(s, Intrinsic) and s.name == COPY_TENSOR


def _arrivals(loop: str, path: Sequence[Stmt], stages: int) -> Buffer:
    """Buffer of mbarriers that count the bytes that have arrived, one for each copy of the buffers: [0, copy] is it
    where a step's number by copies is even, [1, copy] the same one where it is odd. Raises ScheduleError in loops that
    repeat it.
    """
    around = [s for s in path if isinstance(s, For) and s.extent != 1 and s.kind not in BINDINGS]
    if around:
        raise ScheduleError(
            f"pipeline: loop '{loop}' copies boxes of tensors within loop '{around[0].var}'; allowed: once in a kernel"
        )
    return Buffer(f"{loop}.arrivals", (2, stages), "int64", SHARED)


def _place(arrivals: Buffer, step: Expr) -> Load:
    stages = arrivals.shape[1]
    return Load(arrivals, (step // stages % 2, step % stages))


def _counted(s: Stmt, place: Load) -> Stmt:
    """A statement whose copies of boxes, and what expects their bytes, say where these are counted."""
    if isinstance(s, Intrinsic) and s.name in (COPY_TENSOR, EXPECT_COPIES):
        return Intrinsic(s.name, (*s.operands[:2], place), s.attrs)
    return rebuild_stmt(s, lambda inner: _counted(inner, place))


def _box_bytes(s: Stmt, around: tuple[int, ...]) -> int:
    """Bytes of all boxes that a statement copies, whole also where they are beyond an edge."""
    if isinstance(s, For):
        return _box_bytes(s.body, (*around, int(s.extent)))
    if isinstance(s, Intrinsic) and _is_box(s):
        return prod((*around, *box_extents(s), ITEM_BYTES[s.operands[0].dtype]))
    return sum(_box_bytes(part, around) for part in s.parts)


def _arrived(arrivals: Buffer, step: Expr, buffers: Sequence[Buffer]) -> Stmt:
    stages = arrivals.shape[1]
    filled = [Load(b, (step % stages, *[Const(0, INDEX)] * (len(b.shape) - 1))) for b in buffers]
    return Intrinsic(WAIT_ARRIVALS, (_place(arrivals, step), *filled))


def _in_slot(wide: Buffer, slot: Expr, _: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
    return wide, (slot, *indices)


def _copies(buffer: Buffer, stages: int) -> Buffer:
    return buffer.with_(shape=(stages, *buffer.shape))


def _parts(loop: str, body: Stmt) -> tuple[list[Buffer], list[Stmt], Stmt]:
    """The buffers that a body allocates, the statements it begins with that fill some of them, and the others."""
    buffers = []
    while isinstance(body, Alloc):
        buffers.append(body.buffer)
        body = body.body
    own, parts = {b.name for b in buffers}, list(body.stmts if isinstance(body, Seq) else (body,))
    count = 0
    while count < len(parts) and parts[count].writes and parts[count].writes <= own:
        count += 1
    fetches, rest = parts[:count], seq(*parts[count:])
    filled = {name for s in fetches for name in s.writes}
    if not fetches or not rest.parts or not filled <= rest.reads:
        raise ScheduleError(
            f"pipeline: the body of loop '{loop}' does not begin by filling buffers of its own that the rest reads"
        )
    used = sorted(filled & rest.writes) + sorted(rest.writes & {n for s in fetches for n in s.reads})
    if used:
        raise ScheduleError(
            f"pipeline: loop '{loop}' computes '{used[0]}', which an iteration ahead would have to know"
        )
    return buffers, fetches, rest
