"""Primitives on buffers: copies in nearer memory, scopes, physical layouts, where a buffer lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from burnish.errors import ScheduleError
from burnish.loops.expr import SCOPES, Buffer, Expr, Load, Var
from burnish.loops.layout import Layout
from burnish.loops.layout import layout as parse_layout
from burnish.loops.program import (
    Alloc,
    For,
    If,
    Intrinsic,
    LoopProgram,
    Seq,
    Stmt,
    Store,
    allocations,
    map_access,
    rebuild_stmt,
    seq,
    walk_stmt,
)
from burnish.loops.traverse import loads
from burnish.machines.scopes import MemoryScope
from burnish.schedule.nest import (
    Site,
    all_loops,
    clean,
    find_alloc,
    find_loop,
    rename_loops,
    replace_at,
    replace_site,
    replace_stmt,
    sites,
    stage_nests,
)


def cache_write(program: LoopProgram, buffer: str, scope: str | MemoryScope, name: str | None = None) -> LoopProgram:
    """Computes ``buffer`` into a new buffer of ``scope``, from which a new nest copies to ``buffer``.

    The computing stage and its loops take the new name (default ``buffer.scope``); the copy is the stage ``buffer``::

        for c.i in 4:
          for c.j in 8:
            c[c.i, c.j] = (a[c.i, c.j] * 2.0)

        alloc c.register: float32[4, 8] @register
        for c.register.i in 4:
          for c.register.j in 8:
            c.register[c.register.i, c.register.j] = (a[c.register.i, c.register.j] * 2.0)
        for c.i in 4:
          for c.j in 8:
            c[c.i, c.j] = c.register[c.i, c.j]
    """
    scope = _scope("cache_write", buffer, scope)
    target = name or f"{buffer}.{scope}"
    check_new_buffer(program, "cache_write", target)
    nests = stage_nests(program, buffer, "cache_write")
    stores = [s for n in nests for s in walk_stmt(n.stmt) if isinstance(s, Store) and s.buffer.name == buffer]
    if any(load.buffer.name == buffer for s in stores for load in loads(s.value)):
        raise ScheduleError(f"cache_write: stage '{buffer}' reads itself")
    alloc = next((s for s in sites(program.body) if isinstance(s.stmt, Alloc) and s.stmt.buffer.name == buffer), None)
    around = [name for n in nests for name in n.loops if alloc is None or name not in alloc.loops]
    if around:
        raise ScheduleError(
            f"cache_write: loop '{around[0]}' computes stage '{buffer}' part by part; cache it before moving it there"
        )
    old = _buffer(program, "cache_write", buffer)
    cache = old.with_(name=target, scope=scope)

    def rename(loop: str) -> str:
        return target + loop[len(buffer) :] if loop.startswith(f"{buffer}.") else loop

    computed = {id(n.stmt): rename_loops(_redirect(n.stmt, buffer, cache), rename) for n in nests}
    own = {loop.var for n in nests for loop in all_loops(n.stmt)}
    taken = {loop.var for loop in all_loops(program.body)} - own
    names = [f"{buffer}.{axis}" for axis in _axis_names(buffer, stores)]
    if taken & {*names, *(rename(loop) for loop in own)}:
        raise ScheduleError(f"cache_write: loops of other stages already have the names of those of '{buffer}'")
    copy = _copy_nest(old, cache, names)
    group = _group(nests)
    if group is None:
        raise ScheduleError(
            f"cache_write: stage '{buffer}' is computed in several places; cache it before moving parts"
        )
    parent, first, last = group
    if not isinstance(parent, Seq):
        return replace_at(program, parent, Alloc(cache, seq(computed[id(parent)], copy)))
    inside = [computed.get(id(s), s) for s in parent.stmts[first : last + 1]]
    new = seq(*parent.stmts[:first], Alloc(cache, seq(*inside, copy)), *parent.stmts[last + 1 :])
    return replace_at(program, parent, new)


def _group(nests: Sequence[Site]) -> tuple[Stmt, int, int] | None:
    """The sequence that holds all ``nests`` and their first and last position; a lone nest stands for itself."""
    parent = nests[0].path[-1] if nests[0].path else None
    if isinstance(parent, Seq) and all(n.path and n.path[-1] is parent for n in nests):
        at = [i for i, s in enumerate(parent.stmts) for n in nests if n.stmt is s]
        return parent, at[0], at[-1]
    return (nests[0].stmt, 0, 0) if len(nests) == 1 else None


def cache_read(
    program: LoopProgram, buffer: str, scope: str | MemoryScope, consumer: str, name: str | None = None
) -> LoopProgram:
    """Copies ``buffer`` into a new buffer of ``scope``, which the stage ``consumer`` reads instead::

    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a[c.i, c.j] * 2.0)

    alloc a.shared: float32[4, 8] @shared
    for a.shared.0 in 4:
      for a.shared.1 in 8:
        a.shared[a.shared.0, a.shared.1] = a[a.shared.0, a.shared.1]
    for c.i in 4:
      for c.j in 8:
        c[c.i, c.j] = (a.shared[c.i, c.j] * 2.0)
    """
    scope = _scope("cache_read", buffer, scope)
    target = name or f"{buffer}.{scope}"
    check_new_buffer(program, "cache_read", target)
    old = _buffer(program, "cache_read", buffer)
    cache = old.with_(name=target, scope=scope)
    nests = [n for n in stage_nests(program, consumer, "cache_read") if buffer in n.stmt.reads]
    if len(nests) != 1:
        raise ScheduleError(f"cache_read: stage '{consumer}' reads '{buffer}' in {len(nests)} nests, not in one")
    if buffer in nests[0].stmt.allocates:
        raise ScheduleError(f"cache_read: '{buffer}' is computed inside stage '{consumer}'; cache it before compute_at")
    copy = _copy_nest(cache, old, [f"{target}.{d}" for d in range(len(old.shape))])
    return replace_site(program, nests[0], Alloc(cache, seq(copy, _redirect(nests[0].stmt, buffer, cache))))


def _copy_nest(to: Buffer, source: Buffer, names: Sequence[str]) -> Stmt:
    index = tuple(Var(name) for name in names)
    nest: Stmt = Store(to, index, Load(source, index))
    for name, extent in reversed(list(zip(names, to.shape, strict=True))):
        nest = For(name, extent, "serial", nest)
    return nest


def _axis_names(buffer: str, stores: Sequence[Store]) -> list[str]:
    """A name for each dimension: that of the loop which is its index, else its number."""
    names = []
    for d, index in enumerate(stores[-1].indices):
        prefix, _, axis = index.name.partition(f"{buffer}.") if isinstance(index, Var) else ("", "", "")
        names.append(axis if axis and not prefix else str(d))
    return names if len(set(names)) == len(names) else [str(d) for d in range(len(names))]


def _redirect(s: Stmt, buffer: str, to: Buffer) -> Stmt:
    """``s`` with every access of ``buffer`` made to ``to`` instead."""
    return map_access(s, buffer, lambda _, indices: (to, indices))


def set_scope(program: LoopProgram, buffer: str, scope: str | MemoryScope) -> LoopProgram:
    """Puts an intermediate buffer into another memory::

    alloc p: float32[10]
    for p.i in 10:
      p[p.i] = (x[p.i] * 2.0)
    for y.i in 8:
      for y.j in 3:
        y[y.i, y.j] = p[(y.i + y.j)]

    alloc p: float32[10] @local
    for p.i in 10:
      p[p.i] = (x[p.i] * 2.0)
    for y.i in 8:
      for y.j in 3:
        y[y.i, y.j] = p[(y.i + y.j)]
    """
    scope = _scope("set_scope", buffer, scope)
    old = _alloc_buffer(program, "set_scope", buffer)
    return replace_buffer(program, old, old.with_(scope=scope))


def transform_layout(program: LoopProgram, buffer: str, layout: Layout | str) -> LoopProgram:
    """Rearranges ``buffer``, which may be a parameter: every access goes through the layout's index map.

    The buffer takes the layout's physical shape; padding up to whole blocks holds no data::

        for c.i in 4:
          for c.j in 32:
            c[c.i, c.j] = (a[c.i, c.j] * 2.0)

        for c.i in 4:
          for c.j in 32:
            c[c.i, (c.j // 16), (c.j % 16)] = (a[c.i, c.j] * 2.0)
    """
    arrangement = parse_layout(layout) if isinstance(layout, str) else layout
    old = _buffer(program, "transform_layout", buffer)
    if arrangement.rank != len(old.shape):
        raise ScheduleError(
            f"transform_layout: buffer '{buffer}' has {len(old.shape)} dimensions, "
            f"layout {arrangement} has {arrangement.rank}"
        )
    new = old.with_(shape=arrangement.physical_shape(old.shape))
    return _exchange(program, old, new, arrangement.physical_index)


def replace_buffer(program: LoopProgram, old: Buffer, new: Buffer) -> LoopProgram:
    """``program`` with the buffer ``old`` exchanged for ``new`` of the same rank, wherever it occurs."""
    return _exchange(program, old, new, lambda indices: indices)


_Index = Callable[[tuple[Expr, ...]], tuple[Expr, ...]]


def _exchange(program: LoopProgram, old: Buffer, new: Buffer, index: _Index) -> LoopProgram:
    params = tuple(new if p.name == old.name else p for p in program.params)
    body = _map_hints(_map_buffer(program.body, old, new, index, {}), old, new, index)
    return LoopProgram(program.name, params, body)


def _map_hints(s: Stmt, old: Buffer, new: Buffer, index: _Index) -> Stmt:
    """``s`` with hints about ``old`` changed, which are no accesses."""
    if not s.hinted:
        return s
    if isinstance(s, Intrinsic):
        stale = any(operand.buffer == old for operand in s.operands)
        return map_access(s, old.name, lambda _, indices: (new, index(indices))) if stale else s
    return rebuild_stmt(s, lambda inner: _map_hints(inner, old, new, index))


def _map_buffer(s: Stmt, old: Buffer, new: Buffer, index: _Index, ranges: dict[str, int]) -> Stmt:
    """``s`` with accesses and the allocation of ``old`` changed; only what accesses it is simplified."""
    used = old.name in s.reads or old.name in s.writes
    if not used and old.name not in s.allocates:
        return s
    match s:
        case For(var, extent, kind, body):
            return For(var, extent, kind, _map_buffer(body, old, new, index, {**ranges, var: extent}))
        case Alloc(buffer, body):
            return Alloc(new if buffer.name == old.name else buffer, _map_buffer(body, old, new, index, ranges))
        case Seq(stmts):
            return seq(*(_map_buffer(inner, old, new, index, ranges) for inner in stmts))
        case If(cond, body) if not loads(cond):
            return If(cond, _map_buffer(body, old, new, index, ranges))
    return clean(map_access(s, old.name, lambda _, indices: (new, index(indices))), ranges) if used else s


def hoist_alloc(program: LoopProgram, buffer: str, loop: str) -> LoopProgram:
    """Allocates ``buffer`` outside of ``loop`` instead of anew in each of its iterations::

    for y.i in 8:
      alloc p: float32[3]
      for p.i in 3:
        p[p.i] = (x[(y.i + p.i)] * 2.0)
      for y.j in 3:
        y[y.i, y.j] = p[y.j]

    alloc p: float32[3]
    for y.i in 8:
      for p.i in 3:
        p[p.i] = (x[(y.i + p.i)] * 2.0)
      for y.j in 3:
        y[y.i, y.j] = p[y.j]
    """
    alloc = find_alloc(program, buffer, "hoist_alloc")
    site = find_loop(program, loop, "hoist_alloc")
    inside = next((i for i, s in enumerate(alloc.path) if s is site.stmt), None)
    if inside is None:
        raise ScheduleError(f"hoist_alloc: buffer '{buffer}' is not allocated inside loop '{loop}'")
    shared = [s.var for s in alloc.path[inside:] if isinstance(s, For) and s.kind not in ("serial", "unroll")]
    if shared:
        raise ScheduleError(
            f"hoist_alloc: iterations of loop '{shared[0]}', which run concurrently, would share '{buffer}'"
        )
    old = alloc.stmt
    assert isinstance(old, Alloc)
    return replace_site(program, site, Alloc(old.buffer, replace_stmt(site.stmt, old, old.body)))


# --- checks -----------------------------------------------------------------------------------------------------------


def _scope(primitive: str, buffer: str, scope: str | MemoryScope) -> str:
    """The name of a scope: one that a machine brings, or one of the grammar. Raises ScheduleError for others."""
    if isinstance(scope, MemoryScope):
        return scope.name
    if scope not in SCOPES:
        raise ScheduleError(
            f"{primitive}: buffer '{buffer}': unknown scope {scope!r}; allowed: {', '.join(SCOPES)}, and those that "
            f"the schedule is given"
        )
    return scope


def buffers(program: LoopProgram) -> dict[str, Buffer]:
    """Every buffer of the program by name: parameters and allocations."""
    found = {p.name: p for p in program.params}
    return found | {s.buffer.name: s.buffer for s in allocations(program.body)}


def check_new_buffer(program: LoopProgram, primitive: str, name: str) -> None:
    """ScheduleError when a buffer called ``name`` exists."""
    if name in buffers(program):
        raise ScheduleError(f"{primitive}: buffer name '{name}' is already in use; choose another one")


def _buffer(program: LoopProgram, primitive: str, name: str) -> Buffer:
    found = buffers(program)
    if name not in found:
        raise ScheduleError(f"{primitive}: no buffer '{name}' in program '{program.name}'; buffers: {', '.join(found)}")
    return found[name]


def _alloc_buffer(program: LoopProgram, primitive: str, name: str) -> Buffer:
    alloc = find_alloc(program, name, primitive).stmt
    assert isinstance(alloc, Alloc)
    return alloc.buffer
