"""Software prefetching: hints what will be read later, so that it has come from memory by then."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product, takewhile
from math import prod

from burnish.errors import ScheduleError
from burnish.loops.expr import INDEX, ITEM_BYTES, Buffer, Const, Expr, Load, Var, minimum
from burnish.loops.loaded import is_loaded
from burnish.loops.program import Alloc, For, Intrinsic, LoopProgram, Stmt, seq
from burnish.loops.regions import Span, accesses, region, within
from burnish.loops.regions import span as span_of
from burnish.loops.simplify import simplify
from burnish.loops.sizes import at_least, floor, hinted, is_size, least
from burnish.loops.traverse import substitute
from burnish.schedule.nest import LoopSite, find_loop, replace_site

LINE = 64  # bytes
ROW_LINES = 8  # of a row that are asked for: the core finds the others by itself


def prefetch(
    program: LoopProgram,
    buffer: str,
    loop: str,
    over: str | Sequence[str],
    distance: int = 1,
    share: str | None = None,
    locality: int = 2,
) -> LoopProgram:
    """Each iteration of ``loop`` hints what it will read of ``buffer`` when ``over`` is ``distance`` iterations on.

    ``over`` is ``loop`` or a loop around it, or several, outermost first, that are counted as one; hints stop at the
    last iteration: nothing outside the buffer is touched. A ``loop`` that reads nothing of it hints what the innermost
    of ``over`` does.
    The iterations of ``share``, ``loop`` or one between the two in which the same is read again, divide the cache
    lines, also of a symbolic loop. Where it is not known how much is read, nothing is hinted.
    ``locality`` 3 is the first cache level, 2 the second, 0 the first without keeping it anywhere else::

        for c.i in 8:
          for c.j in 32:
            c[c.i, c.j] = (a[c.i, c.j] * 2.0)

        for c.i in 8:
          prefetch(a[min((c.i + 1), 7), 0], locality=2)
          prefetch(a[min((c.i + 1), 7), 16], locality=2)
          for c.j in 32:
            c[c.i, c.j] = (a[c.i, c.j] * 2.0)
    """
    site = find_loop(program, loop, "prefetch")
    ranges = {**site.ranges, loop: site.loop.extent}
    ahead = (over,) if isinstance(over, str) else tuple(over)
    for name in (*ahead, *([share] if share else [])):
        if name not in ranges:
            raise ScheduleError(f"prefetch: loop '{name}' is not around loop '{loop}'; around it: {', '.join(ranges)}")
    if distance < 1 or not 0 <= locality <= 3:
        raise ScheduleError(f"prefetch: distance {distance} must be at least 1, and locality {locality} from 0 to 3")
    if is_loaded(site.loop.extent):
        return _gather_ahead(program, site, buffer, distance, locality)
    reader = site if buffer in site.loop.body.reads else find_loop(program, ahead[-1], "prefetch")
    found, box = _footprint(reader, buffer)
    elements, per_line = prod(span.extent for span in box), LINE // ITEM_BYTES[found.dtype]
    run = _run(found, box)
    if is_size(elements) or (run != elements and any(map(is_size, found.shape))):
        return program
    each_run = -(-run // per_line)  # lines of it
    lines = elements // run * each_run
    later = _later([(name, ranges[name]) for name in ahead], distance)
    each = _share(lines, ranges[share]) if share else lines
    turn = Var(f"{loop}.{buffer}.line") if is_size(each) else None
    hints: list[Stmt] = []
    for i in [turn] if turn is not None else [Const(n, INDEX) for n in range(each)]:
        line = i if share is None else minimum(Var(share) * each + i, lines - 1)
        at = line * per_line if run == elements else line // each_run * run + line % each_run * per_line
        index = [simplify(substitute(e, later), ranges) for e in _element(box, at)]
        wanted = tuple(_inside(e, n, ranges) for e, n in zip(index, found.shape, strict=True))
        hints.append(Intrinsic("prefetch", (Load(found, wanted),), (("locality", locality),)))
    if turn is not None:
        hints = [For(turn.name, each, "serial", seq(*hints))]
    return replace_site(program, site, For(loop, site.loop.extent, site.loop.kind, _before(site.loop.body, hints)))


def _share(lines: int, iterations: int) -> int:
    """Cache lines for each of some iterations; symbolic where their number is, which is by its hint if it may be 0."""
    symbolic = least(iterations) > 0 and is_size(iterations)
    if symbolic:
        return floor(iterations + (lines - 1), iterations)
    return -(-lines // min(hinted(iterations), lines))


def _gather_ahead(program: LoopProgram, site: LoopSite, buffer: str, distance: int, locality: int) -> LoopProgram:
    """Hints at rows that a loop over positions in memory reads where these say: those some positions on.

    Only the first ``ROW_LINES`` cache lines of each row. Where it reads no such rows, nothing is hinted.
    """
    loop, extent = site.loop.var, site.loop.extent
    assert is_loaded(extent)
    ranges = {**site.ranges, loop: extent.high}
    later = {loop: minimum(Var(loop) + distance, extent.high - 1)}
    hints: dict[Stmt, None] = {}
    for access in accesses(site.loop.body, ranges, site.given, of=buffer):
        if access.writes or not any(loop in i.variables and i.buffers for i in access.indices[:-1]):
            continue
        rank = sum(1 for _ in takewhile(lambda i: i.variables <= {loop, *site.ranges}, access.indices[:-1]))
        spans = [span_of(i, [*ranges], access.ranges) for i in access.indices[rank:]]
        if None in spans or any(is_size(span.extent) for span in spans if span is not None):
            continue
        per_line = LINE // ITEM_BYTES[access.buffer.dtype]
        steps = [range(0, span.extent, per_line if d == len(spans) - 1 else 1) for d, span in enumerate(spans) if span]
        sizes = access.buffer.shape[rank:]
        for at in islice(product(*steps), ROW_LINES):
            row = [minimum(span.low + k, size - 1) for span, k, size in zip(spans, at, sizes, strict=True) if span]
            index = tuple(simplify(substitute(i, later), access.ranges) for i in (*access.indices[:rank], *row))
            hints[Intrinsic("prefetch", (Load(access.buffer, index),), (("locality", locality),))] = None
    if not hints:
        return program
    return replace_site(program, site, For(loop, site.loop.extent, site.loop.kind, _before(site.loop.body, [*hints])))


def _later(loops: Sequence[tuple[str, int]], distance: int) -> dict[str, Expr]:
    """Indices of nested loops (name, extent) ``distance`` iterations ahead, counted together, and at most the last."""
    at: Expr = Const(0, INDEX)
    for name, extent in loops:
        at = at * extent + Var(name)
    step = prod(extent for _, extent in loops)
    at = minimum(at + distance, step - 1)
    later: dict[str, Expr] = {}
    for name, extent in loops:
        step //= extent
        later[name] = at // step % extent
    return later


def _inside(index: Expr, size: int, ranges: dict[str, int]) -> Expr:
    """An index of a box, which may reach over the end of the buffer, at most at its last element."""
    if is_size(size) or within(index, size, ranges, ()):
        return index
    return simplify(minimum(index, size - 1), ranges)


def _footprint(site: LoopSite, buffer: str) -> tuple[Buffer, list[Span]]:
    """The buffer, and the box of it that one iteration of the loop reads."""
    ranges = {**site.ranges, site.loop.var: site.loop.extent}
    touched = accesses(site.loop.body, ranges, site.given, of=buffer)
    reads = [a for a in touched if a.buffer.name == buffer and not a.writes]
    if not reads:
        raise ScheduleError(f"prefetch: loop '{site.loop.var}' does not read buffer '{buffer}'")
    found = reads[0].buffer
    box = [span for span in region(reads, list(ranges)) if span is not None]
    if len(box) != len(found.shape):
        raise ScheduleError(
            f"prefetch: loop '{site.loop.var}' reads an unknown number of elements of buffer '{buffer}'"
        )
    return found, box


def _run(found: Buffer, box: Sequence[Span]) -> int:
    """Elements of a box that follow each other in memory: those of its last dimensions, as far as they are whole."""
    run = 1
    for span, n in zip(reversed(box), reversed(found.shape), strict=True):
        run *= span.extent
        if not at_least(span.extent, n):
            break
    return run


def _element(box: list[Span], flat: Expr) -> list[Expr]:
    """The index of element number ``flat`` of a box."""
    index: list[Expr] = []
    step = prod(span.extent for span in box)
    for span in box:
        step //= span.extent
        index.append(span.low + (flat // step) % span.extent)
    return index


def _before(s: Stmt, hints: list[Stmt]) -> Stmt:
    return Alloc(s.buffer, _before(s.body, hints)) if isinstance(s, Alloc) else seq(*hints, s)
