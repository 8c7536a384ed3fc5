"""Load balancing: cuts a loop into parts of equal work, where the work of iterations is in memory."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import INDEX, Binary, Buffer, Const, Expr, Load, Select, Var, all_of, cast, equal, minimum, wrap
from burnish.loops.loaded import LoadedExtent, is_loaded
from burnish.loops.program import Alloc, For, LoopProgram, seq, store
from burnish.loops.sizes import greatest, hinted
from burnish.schedule.dependence import carried
from burnish.schedule.memory import buffers, check_new_buffer
from burnish.schedule.nest import check_fresh, find_loop, replace_site


def balance(program: LoopProgram, loop: str, parts: int, offsets: str) -> LoopProgram:
    """Runs ``loop`` in ``parts`` parallel parts of about equal work: iteration i has that from ``offsets[i]`` to
    ``offsets[i + 1]``.

    ``offsets``: a buffer of integers that do not fall, one more than there are iterations. Where a part begins is found
    by bisection: ``loop.cuts[p]`` is the last iteration before which there is no more than p parts of all work. Refused
    where two iterations touch the same element::

        for y.v in 100:
          for y.e in o[y.v]..o[(y.v + 1)] (of 900):
            y[y.v] += x[y.e]

        alloc y.v.cuts: int64[3]
        ... the bisection
        for parallel y.v.part in 2:
          for y.v in y.v.cuts[y.v.part]..y.v.cuts[(y.v.part + 1)] (of 100):
            for y.e in o[y.v]..o[(y.v + 1)] (of 900):
              y[y.v] += x[y.e]
    """
    site = find_loop(program, loop, "balance")
    count, known = site.loop.extent, buffers(program).get(offsets)
    if is_loaded(count) or parts < 1:
        raise ScheduleError(f"balance: found {parts} parts of {count} iterations; allowed: 1 or more of an extent")
    if known is None or known.shape != (count + 1,):
        raise ScheduleError(f"balance: found buffer '{known or offsets}'; allowed: one of {count + 1} elements")
    part, cuts = f"{loop}.part", Buffer(f"{loop}.cuts", (parts + 1,), INDEX, "local")
    check_fresh(program, (part, f"{loop}.cut", f"{loop}.bit"), "balance")
    check_new_buffer(program, "balance", cuts.name)
    reason = carried(site.loop.body, {loop: count}, site.ranges, reassociate=False)
    if reason:
        raise ScheduleError(f"balance: loop '{loop}' carries a dependence: {reason}")
    whole = cast(INDEX, Load(known, (wrap(count),)))
    p = Var(f"{loop}.cut")
    at: Expr = Load(cuts, (p,))
    bits = max(greatest(count).bit_length(), 1)
    further = at + _power(bits - 1, Var(f"{loop}.bit"), bits)
    before = cast(INDEX, Load(known, (minimum(further, count),)))
    fits = all_of(further <= count, Binary("<=", before * parts, whole * p), Binary(">", p, Const(0, INDEX)))
    bisection = seq(
        store(cuts, (p,), 0), For(f"{loop}.bit", bits, "unroll", store(cuts, (p,), Select(fits, further, at)))
    )
    begin, end = Load(cuts, (Var(part),)), Load(cuts, (Var(part) + 1,))
    inner = For(loop, LoadedExtent(begin, end, count, max(1, hinted(count) // parts)), "serial", site.loop.body)  # type: ignore[arg-type]
    both = seq(For(p.name, parts + 1, "serial", bisection), For(part, parts, "parallel", inner))
    return replace_site(program, site, Alloc(cuts, both))


def _power(highest: int, bit: Expr, bits: int) -> Expr:
    """2 to the power ``highest - bit``, for ``bit`` from 0 to below ``bits``."""
    value: Expr = Const(1, INDEX)
    for n in range(bits - 1):
        value = Select(equal(bit, n), Const(1 << (highest - n), INDEX), value)
    return value
