"""Loop-invariant code motion: what an innermost loop repeats is computed before it, into a small buffer."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import Buffer, Const, Expr, Load, Select, Var
from burnish.loops.program import Alloc, For, If, LoopProgram, Stmt, Store, map_exprs, seq
from burnish.loops.sizes import is_size
from burnish.loops.traverse import substitute, transform
from burnish.schedule.memory import check_new_buffer
from burnish.schedule.nest import check_fresh, find_loop, replace_site, sites
from burnish.schedule.reduce import update_of


def precompute(program: LoopProgram, stage: str, loop: str, over: str) -> LoopProgram:
    """Computes the largest part of what ``stage`` adds that is the same in all iterations of ``over`` before it.

    It becomes a buffer ``stage.part`` with a dimension for each loop between ``loop`` and ``over`` that it depends on,
    computed once in each iteration of ``loop``, by loops of its own. Refused under a condition, and where it reads what
    is written in ``loop``::

        for y.init.h in 8:
          for y.init.d in 16:
            y[y.init.h, y.init.d] = 0.0
        for y.e in 100:
          for y.h in 8:
            for y.d in 16:
              y[y.h, y.d] += ((a[y.e, y.h] + b[y.h]) * x[y.e, y.h, y.d])

        for y.init.h in 8:
          for y.init.d in 16:
            y[y.init.h, y.init.d] = 0.0
        for y.e in 100:
          alloc y.part: float32[8] @local
          for y.part.h in 8:
            y.part[y.part.h] = (a[y.e, y.part.h] + b[y.part.h])
          for y.h in 8:
            for y.d in 16:
              y[y.h, y.d] += (y.part[y.h] * x[y.e, y.h, y.d])
    """
    _, update = update_of(program, stage, "precompute")
    site, inner = find_loop(program, loop, "precompute"), find_loop(program, over, "precompute")
    if site.stmt not in inner.path or not any(s is update for s in _leaves(inner.stmt)):
        raise ScheduleError(f"precompute: loop '{over}' of stage '{stage}' is not in loop '{loop}'")
    around = next(s for s in sites(inner.stmt, inner.path) if s.stmt is update).path
    inside = around[around.index(site.stmt) + 1 :]
    if any(isinstance(s, If) for s in inside):
        raise ScheduleError(f"precompute: stage '{stage}' is computed under a condition in loop '{loop}'")
    found = invariant(update.value, over)
    if found is None:
        raise ScheduleError(f"precompute: all that stage '{stage}' computes differs with loop '{over}'")
    between = [s for s in inner.path[inner.path.index(site.stmt) + 1 :] if isinstance(s, For)]
    used = [s for s in between if s.var in found.variables]
    deeper = found.variables & {s.var for s in inside if isinstance(s, For)} - {s.var for s in used}
    written = found.buffers & site.loop.body.writes
    if deeper or written:
        raise ScheduleError(
            f"precompute: what loop '{over}' repeats depends on {', '.join(sorted(deeper | written))}, in loop '{loop}'"
        )
    if any(is_size(s.extent) or not isinstance(s.extent, int) for s in used):
        raise ScheduleError(f"precompute: loops {', '.join(s.var for s in used)}: allowed: ones of known extents")
    part = Buffer(f"{stage}.part", tuple(s.extent for s in used), found.dtype, "local")
    names = {s.var: f"{part.name}.{s.var.rpartition('.')[2]}" for s in used}
    check_new_buffer(program, "precompute", part.name)
    check_fresh(program, tuple(names.values()), "precompute")
    index = tuple(Var(s.var) for s in used)
    own = {old: Var(new) for old, new in names.items()}
    made: Stmt = Store(part, tuple(own[s.var] for s in used), substitute(found, own))
    for s in reversed(used):
        made = For(names[s.var], s.extent, "serial", made)

    def taken(e: Expr) -> Expr:
        return Load(part, index) if e is found else e

    rest = map_exprs(site.loop.body, lambda e: transform(e, taken))
    return replace_site(program, site, For(loop, site.loop.extent, site.loop.kind, Alloc(part, seq(made, rest))))


def invariant(value: Expr, over: str) -> Expr | None:
    """The largest part of an expression that does not depend on a loop, and is more than a number or one element.

    Not one that is only computed where a condition holds.
    """
    if over not in value.variables:
        return None if isinstance(value, (Load, Const, Var)) else value
    sure = value.children[:1] if isinstance(value, Select) or value.dtype == "bool" else value.children
    parts = [found for part in sure if (found := invariant(part, over)) is not None]
    return max(parts, key=_size, default=None)


def _size(e: Expr) -> int:
    return 1 + sum(_size(part) for part in e.children)


def _leaves(s: Stmt) -> list[Stmt]:
    return [s] if not s.parts else [found for part in s.parts for found in _leaves(part)]
