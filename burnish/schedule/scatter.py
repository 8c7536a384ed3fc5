"""Scatter loops, of which data choose one iteration: stores go to where the data say."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.bounds import prove
from burnish.loops.expr import Expr, all_of
from burnish.loops.onepoint import demanded, padding
from burnish.loops.program import For, If, LoopProgram, Stmt, Store
from burnish.loops.traverse import conjuncts, substitute
from burnish.schedule.nest import find_loop, replace_site


def scatter(program: LoopProgram, loop: str) -> LoopProgram:
    """Runs of ``loop``, around a reduction, the one iteration that a condition on what is combined demands.

    In all others the reduction's identity is combined. The order of what one element takes in stays as it was::

        for y.init.i in 8:
          y[y.init.i] = 0.0
        for y.i in 8:
          for y.k in 5:
            y[y.i] += (x[y.k] if (index[y.k] == y.i) else 0.0)

        for y.init.i in 8:
          y[y.init.i] = 0.0
        for y.k in 5:
          if ((index[y.k] >= 0) and (index[y.k] < 8)):
            y[index[y.k]] += x[y.k]
    """
    site = find_loop(program, loop, "scatter")
    inner: list[For] = []
    conditions: list[Expr] = []
    s = site.loop.body
    while isinstance(s, (For, If)):
        if isinstance(s, For):
            inner.append(s)
        else:
            conditions += conjuncts(s.cond)
        s = s.body
    if not isinstance(s, Store) or s.reduce is None:
        raise ScheduleError(f"scatter: loop '{loop}' is not around one reduction alone")
    value, own = padding(s.value, s.reduce)
    found = demanded([*conditions, *own], loop)
    if found is None:
        raise ScheduleError(
            f"scatter: loop '{loop}': no condition on what '{s.buffer.name}' combines demands its value"
        )
    at, rest = found
    values = {loop: at}
    ranges = {**site.ranges, **{x.var: x.extent for x in inner}}
    asked = [*(substitute(c, values) for c in rest), at >= 0, at < site.loop.extent]
    left = [c for c in asked if not prove(c, ranges, site.given)]
    indices = tuple(substitute(i, values) for i in s.indices)
    nest: Stmt = Store(s.buffer, indices, substitute(value, values), s.reduce)
    nest = If(all_of(*left), nest) if left else nest
    for x in reversed(inner):
        nest = For(x.var, x.extent, x.kind, nest)
    return replace_site(program, site, nest)
