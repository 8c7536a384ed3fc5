"""Primitives on reductions: partial results that can be computed independently of each other."""

from __future__ import annotations

from burnish.errors import ScheduleError
from burnish.loops.expr import Buffer, Expr, Load, Var
from burnish.loops.program import Alloc, For, LoopProgram, Stmt, Store, rebuild_stmt, seq, walk_stmt
from burnish.loops.reduction import identity
from burnish.loops.traverse import free_vars
from burnish.schedule.memory import check_new_buffer
from burnish.schedule.nest import Site, find_loop, rename_loops, replace_site, stage_nests


def rfactor(program: LoopProgram, stage: str, loop: str, position: int = 0, name: str | None = None) -> LoopProgram:
    """Turns one reduction loop of ``stage`` into a dimension of partial results, which a new nest then combines.

    The partial results are the stage ``stage.rf`` (its dimension for ``loop`` at ``position``; -1 is last)::

        for s.init.i in 4:
          s[s.init.i] = 0.0
        for s.i in 4:
          for s.k.o in 2:
            for s.k.i in 8:
              s[s.i] += x[s.i, ((s.k.o * 8) + s.k.i)]

        for s.init.i in 4:
          s[s.init.i] = 0.0
        alloc s.rf: float32[8, 4]
        for s.rf.init.k.i in 8:
          for s.rf.init.i in 4:
            s.rf[s.rf.init.k.i, s.rf.init.i] = 0.0
        for s.rf.i in 4:
          for s.rf.k.o in 2:
            for s.rf.k.i in 8:
              s.rf[s.rf.k.i, s.rf.i] += x[s.rf.i, ((s.rf.k.o * 8) + s.rf.k.i)]
        for s.i in 4:
          for s.k.i in 8:
            s[s.i] += s.rf[s.k.i, s.i]
    """
    site = find_loop(program, loop, "rfactor")
    nest, store = update_of(program, stage, "rfactor")
    inside = any(s is nest.stmt for s in (*site.path, site.stmt))
    if not inside or any(loop in free_vars(i) for i in store.indices):
        raise ScheduleError(f"rfactor: loop '{loop}' is not a reduction loop of stage '{stage}'")
    target = name or f"{stage}.rf"
    check_new_buffer(program, "rfactor", target)
    rank = len(store.indices) + 1
    if not -rank <= position < rank:
        raise ScheduleError(f"rfactor: position {position} is outside of the {rank} dimensions of '{target}'")
    at = position % rank
    shape = (*store.buffer.shape[:at], site.loop.extent, *store.buffer.shape[at:])
    partial = store.buffer.with_(name=target, shape=shape, scope="global")
    axis = _axis(stage, loop)
    axes = [_axis(stage, i.name) if isinstance(i, Var) else str(d) for d, i in enumerate(store.indices)]
    axes = axes if len({*axes, axis}) == len(axes) + 1 else [str(d) for d in range(len(axes))]
    all_axes = [*axes[:at], axis, *axes[at:]]
    if nest.stmt.allocates:
        raise ScheduleError(
            f"rfactor: stage '{stage}' has other stages computed inside it; factor it before compute_at"
        )
    kind = store.reduce or "sum"

    def rename(old: str) -> str:
        return f"{target}.{_axis(stage, old)}"

    index = (*store.indices[:at], Var(loop), *store.indices[at:])
    partial_store = Store(partial, index, store.value, kind)
    update = rename_loops(_with_store(nest.stmt, partial_store), rename)
    zero = identity(kind, partial.dtype)
    init = _nest([(f"{target}.init.{a}", n) for a, n in zip(all_axes, shape, strict=True)], partial, zero)
    loops = [(f"{stage}.{a}", n) for a, n in zip(axes, store.buffer.shape, strict=True)]
    own = tuple(Var(n) for n, _ in loops)
    source = Load(partial, (*own[:at], Var(f"{stage}.{axis}"), *own[at:]))
    final: Stmt = Store(store.buffer, own, source, kind)
    for var, extent in reversed([*loops, (f"{stage}.{axis}", site.loop.extent)]):
        final = For(var, extent, "serial", final)
    return replace_site(program, nest, Alloc(partial, seq(init, update, final)))


def update_of(program: LoopProgram, stage: str, primitive: str) -> tuple[Site, Store]:
    """The nest that combines into ``stage``, and its one store."""
    found = [
        (nest, s)
        for nest in stage_nests(program, stage, primitive)
        for s in walk_stmt(nest.stmt)
        if isinstance(s, Store) and s.buffer.name == stage and s.reduce
    ]
    if len(found) != 1:
        raise ScheduleError(f"{primitive}: stage '{stage}' has {len(found)} reducing stores; exactly one is needed")
    return found[0]


def _with_store(s: Stmt, store: Store) -> Stmt:
    return store if isinstance(s, Store) else rebuild_stmt(s, lambda inner: _with_store(inner, store))


def _nest(loops: list[tuple[str, int]], buffer: Buffer, value: Expr) -> Stmt:
    nest: Stmt = Store(buffer, tuple(Var(name) for name, _ in loops), value)
    for name, extent in reversed(loops):
        nest = For(name, extent, "serial", nest)
    return nest


def _axis(stage: str, loop: str) -> str:
    return loop[len(stage) + 1 :] if loop.startswith(f"{stage}.") else loop
