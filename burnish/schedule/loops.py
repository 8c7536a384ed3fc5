"""Primitives on loops: split, tile, fuse, reorder, and what kind of loop each one is."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import Var
from burnish.loops.loaded import is_loaded
from burnish.loops.program import BINDINGS, For, If, LoopProgram, Stmt, substitute_stmt
from burnish.loops.sizes import is_size, least
from burnish.schedule.dependence import carried
from burnish.schedule.nest import LoopSite, check_fresh, clean, find_loop, guard, perfect_chain, replace_site


def split_names(loop: str) -> tuple[str, str]:
    """The default names of the two halves of a split loop."""
    return f"{loop}.o", f"{loop}.i"


def split(
    program: LoopProgram,
    loop: str,
    factor: int | None = None,
    names: tuple[str, str] | None = None,
    parts: int | None = None,
) -> LoopProgram:
    """Cuts ``loop`` into an outer loop and an inner one of ``factor`` iterations (or an outer one of ``parts``).

    Where the factor does not divide the extent, every store is guarded::

        for y.i in 10:
          y[y.i] = (x[y.i] * 2.0)

        for y.i.o in 3:
          for y.i.i in 4:
            if (((y.i.o * 4) + y.i.i) < 10):
              y[((y.i.o * 4) + y.i.i)] = (x[((y.i.o * 4) + y.i.i)] * 2.0)
    """
    site = find_loop(program, loop, "split")
    extent = _counted("split", site.loop)
    if (factor is None) == (parts is None):
        raise ScheduleError(f"split: loop '{loop}' needs either a factor or a number of parts")
    size = factor if factor is not None else -(-extent // max(parts or 0, 1))
    if least(size) < 1 or (parts is not None and parts < 1):
        raise ScheduleError(f"split: loop '{loop}': factor {factor} or parts {parts} must be at least 1")
    count = parts if parts is not None else -(-extent // size)
    outer, inner = names or split_names(loop)
    check_fresh(program, tuple(n for n in (outer, inner) if n != loop), "split")
    whole = Var(outer) * size + Var(inner)
    body = substitute_stmt(site.loop.body, {loop: whole})
    if count * size != extent:
        body = guard(body, whole < extent)
    nest = For(outer, count, site.loop.kind, For(inner, size, site.loop.kind, body))
    return replace_site(program, site, clean(nest, site.ranges, site.given))


def stride_names(loop: str) -> tuple[str, str]:
    """The names of the loops over parts, and over turns, of a strided loop."""
    return f"{loop}.part", f"{loop}.turn"


def stride(program: LoopProgram, loop: str, parts: int) -> LoopProgram:
    """Grid-stride loop: deals the iterations of ``loop`` out to ``parts`` in turn, as ``parts`` blocks of a GPU go over
    more tiles than run at a time.

    The loop over parts is of the kind of ``loop``, the one over turns serial. In the last turn there may be fewer::

        for y.i in 10:
          y[y.i] = (x[y.i] * 2.0)

        for y.i.part in 4:
          for y.i.turn in 3:
            if (((y.i.turn * 4) + y.i.part) < 10):
              y[((y.i.turn * 4) + y.i.part)] = (x[((y.i.turn * 4) + y.i.part)] * 2.0)
    """
    site = find_loop(program, loop, "stride")
    extent = _counted("stride", site.loop)
    if is_size(extent) or not 1 <= parts <= extent:
        raise ScheduleError(f"stride: loop '{loop}' has {extent} iterations for {parts} parts; allowed: 1 to {extent}")
    if site.loop.kind not in ("serial", "parallel", *BINDINGS):
        raise ScheduleError(f"stride: loop '{loop}' is {site.loop.kind}; allowed: serial, parallel, or bound")
    check_fresh(program, stride_names(loop), "stride")
    if site.loop.kind == "serial":
        reason = carried(site.loop.body, {loop: extent}, site.ranges, reassociate=False)
        if reason:
            raise ScheduleError(f"stride: loop '{loop}' carries a dependence: {reason}")
    (part, turn), turns = stride_names(loop), -(-extent // parts)
    whole = Var(turn) * parts + Var(part)
    body = substitute_stmt(site.loop.body, {loop: whole})
    if turns * parts != extent:
        body = If(whole < extent, body)
    nest = For(part, parts, site.loop.kind, For(turn, turns, "serial", body))
    return replace_site(program, site, clean(nest, site.ranges, site.given))


def _counted(primitive: str, loop: For) -> int:
    """The extent of a loop that counts from 0. Raises ScheduleError for one between positions in memory."""
    if is_loaded(loop.extent):
        raise ScheduleError(f"{primitive}: loop '{loop.var}' runs over {loop.extent}; allowed: a loop from 0 on")
    return loop.extent


def tile(program: LoopProgram, y: str, x: str, y_factor: int, x_factor: int) -> LoopProgram:
    """Splits two perfectly nested loops and moves the halves to ``y.o, x.o, y.i, x.i``::

    for c.i in 8:
      for c.j in 8:
        c[c.i, c.j] = 1.0

    for c.i.o in 2:
      for c.j.o in 2:
        for c.i.i in 4:
          for c.j.i in 4:
            c[((c.i.o * 4) + c.i.i), ((c.j.o * 4) + c.j.i)] = 1.0
    """
    program = split(split(program, y, y_factor), x, x_factor)
    (yo, yi), (xo, xi) = split_names(y), split_names(x)
    return reorder(program, yo, xo, yi, xi)


def fused_name(outer: str, inner: str) -> str:
    """The default name of a fused loop."""
    return f"{outer}.{inner}"


def fuse(program: LoopProgram, outer: str, inner: str, name: str | None = None) -> LoopProgram:
    """Makes one loop of two perfectly nested ones::

    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)

    for ij in 32:
      c[(ij // 8), (ij % 8)] = (a[(ij // 8), (ij % 8)] * 2.0)
    """
    site = find_loop(program, outer, "fuse")
    find_loop(program, inner, "fuse")
    chain = perfect_chain(site.loop, inner)
    if chain is None or len(chain) != 2:
        raise ScheduleError(f"fuse: loop '{inner}' is not nested directly in '{outer}'")
    first, second = chain
    _counted("fuse", first)
    _counted("fuse", second)
    if first.kind != second.kind:
        raise ScheduleError(
            f"fuse: loop '{outer}' is {first.kind} but '{inner}' is {second.kind}; fuse before changing kinds"
        )
    fused = name or fused_name(outer, inner)
    check_fresh(program, () if fused in (outer, inner) else (fused,), "fuse")
    body = _without(first.body, second)
    values = {outer: Var(fused) // second.extent, inner: Var(fused) % second.extent}
    nest = For(fused, first.extent * second.extent, first.kind, substitute_stmt(body, values))
    return replace_site(program, site, clean(nest, site.ranges, site.given))


def _without(s: Stmt, loop: For) -> Stmt:
    """The chain of conditions ``s`` with ``loop`` replaced by its body."""
    return loop.body if s is loop else If(s.cond, _without(s.body, loop))  # type: ignore[attr-defined]


def reorder(program: LoopProgram, *loops: str) -> LoopProgram:
    """Puts perfectly nested loops into the given order, in the places they occupy; others between them stay.

    Conditions between the loops move inside. Reductions may be reordered in any way (re-association)::

        for c.init.i in 4:
          for c.init.j in 4:
            c[c.init.i, c.init.j] = 0.0
        for c.i in 4:
          for c.j in 4:
            for c.k in 8:
              c[c.i, c.j] += (a[c.k, c.i] * b[c.k, c.j])

        for c.init.i in 4:
          for c.init.j in 4:
            c[c.init.i, c.init.j] = 0.0
        for c.k in 8:
          for c.i in 4:
            for c.j in 4:
              c[c.i, c.j] += (a[c.k, c.i] * b[c.k, c.j])
    """
    if len(set(loops)) != len(loops):
        raise ScheduleError(f"reorder: a loop is listed twice in {', '.join(loops)}")
    if len(loops) < 2:
        return program
    found = {name: find_loop(program, name, "reorder") for name in loops}
    top = min(found.values(), key=lambda site: len(site.path))
    last = max(found.values(), key=lambda site: len(site.path))
    chain = perfect_chain(top.loop, last.loop.var)
    missing = [name for name in loops if chain is None or name not in {c.var for c in chain}]
    if chain is None or missing:
        raise ScheduleError(
            f"reorder: loops {', '.join(loops)} are not perfectly nested: something stands between "
            f"'{top.loop.var}' and '{missing[0] if len(missing) == 1 else last.loop.var}'"
        )
    wanted = iter(loops)
    order = [next(wanted) if c.var in loops else c.var for c in chain]
    if order == [c.var for c in chain]:
        return program
    inner = chain[-1].body
    reason = carried(inner, {c.var: c.extent for c in chain}, top.ranges, reassociate=True)
    if reason:
        raise ScheduleError(f"reorder: loops {', '.join(loops)} cannot change places: {reason}")
    by_name = {c.var: c for c in chain}
    for position, name in enumerate(order):
        own = by_name[name].extent
        late = set(order[position:]) & own.variables if is_loaded(own) else set()
        if late:
            raise ScheduleError(
                f"reorder: loop '{name}' runs over {own}, which depends on loop '{late.pop()}' inside it"
            )
    body = _conditions(chain, inner)
    for name in reversed(order):
        body = For(name, by_name[name].extent, by_name[name].kind, body)
    return replace_site(program, top, body)


def _conditions(chain: list[For], inner: Stmt) -> Stmt:
    """``inner`` under the conditions that stood between the loops of ``chain``."""
    conds = []
    for loop in chain[:-1]:
        s = loop.body
        while isinstance(s, If):
            conds.append(s.cond)
            s = s.body
    for cond in reversed(conds):
        inner = guard(inner, cond)
    return inner


def reverse(program: LoopProgram, loop: str) -> LoopProgram:
    """Runs the iterations of ``loop`` from the last to the first; refused where one depends on another::

    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)

    for c.i in 4:
      for c.j in 8:
        c[((c.i * -1) + 3), c.j] = (a[((c.i * -1) + 3), c.j] * 2.0)
    """
    site = find_loop(program, loop, "reverse")
    extent, kind = _counted("reverse", site.loop), site.loop.kind
    reason = carried(site.loop.body, {loop: extent}, site.ranges, reassociate=True)
    if reason:
        raise ScheduleError(f"reverse: loop '{loop}' carries a dependence: {reason}")
    body = substitute_stmt(site.loop.body, {loop: extent - 1 - Var(loop)})
    return replace_site(program, site, clean(For(loop, extent, kind, body), site.ranges, site.given))


# --- kinds ------------------------------------------------------------------------------------------------------------


def unroll(program: LoopProgram, loop: str) -> LoopProgram:
    """Marks ``loop`` to be written out iteration by iteration::

    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)

    for unroll c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)
    """
    return _with_kind(program, find_loop(program, loop, "unroll"), "unroll")


def vectorize(program: LoopProgram, loop: str) -> LoopProgram:
    """Marks ``loop`` to run as the lanes of one vector; a loop that only reduces becomes a horizontal reduction::

    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)

    for c.i in 4:
      for vectorize c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)
    """
    return _independent(program, loop, "vectorize", "vectorize", reassociate=True)


def copy_async(program: LoopProgram, loop: str) -> LoopProgram:
    """Makes ``loop`` one copy of at most 16 bytes that goes on while others do, where the machine has such copies.

    Its elements may be read after a ``wait_copies`` (see ``pipeline``). A loop that computes, as this one does, or
    copies what does not lie together is unrolled::

    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)

    for c.i in 4:
      for async c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)
    """
    return _independent(program, loop, "async", "copy_async", reassociate=False)


def parallel(program: LoopProgram, loop: str) -> LoopProgram:
    """Spreads the iterations of ``loop`` over threads; refused where two iterations touch the same element::

    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)

    for parallel c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)
    """
    return _independent(program, loop, "parallel", "parallel", reassociate=False)


def bind(program: LoopProgram, loop: str, thread: str) -> LoopProgram:
    """Binds ``loop`` to a GPU index (``blockIdx.x``, ``threadIdx.x``, ...)::

    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)

    for blockIdx.x c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)
    """
    if thread not in BINDINGS:
        raise ScheduleError(f"bind: loop '{loop}': unknown thread {thread!r}; allowed: {', '.join(BINDINGS)}")
    return _independent(program, loop, thread, "bind", reassociate=False)


def vthread(program: LoopProgram, loop: str) -> LoopProgram:
    """Makes ``loop`` virtual threads, later interleaved into one instruction stream (thesis-chen section 4.3.4)::

    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)

    for vthread c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)
    """
    return _independent(program, loop, "vthread", "vthread", reassociate=False)


def serial(program: LoopProgram, loop: str) -> LoopProgram:
    """Takes back any other kind of ``loop``."""
    return _with_kind(program, find_loop(program, loop, "serial"), "serial")


def _independent(program: LoopProgram, loop: str, kind: str, primitive: str, reassociate: bool) -> LoopProgram:
    site = find_loop(program, loop, primitive)
    reason = carried(site.loop.body, {loop: site.loop.extent}, site.ranges, reassociate)
    if reason:
        raise ScheduleError(f"{primitive}: loop '{loop}' carries a dependence: {reason}")
    return _with_kind(program, site, kind)


def _with_kind(program: LoopProgram, site: LoopSite, kind: str) -> LoopProgram:
    if kind != "serial":
        _counted(kind, site.loop)
    if kind in ("unroll", "vectorize", "async") and is_size(site.loop.extent):
        found = f"loop '{site.loop.var}' has {site.loop.extent} iterations"
        raise ScheduleError(f"{kind}: {found}; allowed: a number of them; split it first")
    return replace_site(program, site, For(site.loop.var, site.loop.extent, kind, site.loop.body))
