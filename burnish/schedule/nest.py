"""Finding and rewriting parts of a loop program by the names of loops and stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache

from burnish.errors import ScheduleError
from burnish.loops.expr import Const, Expr, Select, Var, all_of, binary
from burnish.loops.hashcons import immutable
from burnish.loops.program import (
    NOTHING,
    Alloc,
    For,
    If,
    Intrinsic,
    LoopProgram,
    Seq,
    Stmt,
    Store,
    map_exprs,
    rebuild_stmt,
    substitute_stmt,
    walk_stmt,
    with_part,
)
from burnish.loops.regions import keep_single
from burnish.loops.simplify import Ranges, prove, simplify
from burnish.loops.traverse import conjuncts, loads, rebuild


@immutable()
class Site:
    """A statement and everything around it, outermost first."""

    stmt: Stmt
    path: tuple[Stmt, ...]

    @property
    def ranges(self) -> dict[str, int]:
        """Extents of the loops around the statement."""
        return {s.var: s.extent for s in self.path if isinstance(s, For)}

    @property
    def given(self) -> tuple[Expr, ...]:
        """Conditions that hold at the statement."""
        return tuple(s.cond for s in self.path if isinstance(s, If))

    @property
    def loops(self) -> list[str]:
        """Names of the loops around the statement."""
        return list(self.ranges)


@immutable()
class LoopSite(Site):
    """A loop found by its name."""

    loop: For


def sites(s: Stmt, path: tuple[Stmt, ...] = ()) -> Iterator[Site]:
    """``s`` and all its sub-statements in program order, each with its ancestors."""
    yield Site(s, path)
    for inner in s.parts:
        yield from sites(inner, (*path, s))


def all_loops(s: Stmt) -> list[For]:
    """All loops in ``s``, in program order."""
    return [inner for inner in walk_stmt(s) if isinstance(inner, For)]


def find_loop(program: LoopProgram, name: str, primitive: str) -> LoopSite:
    """The loop called ``name``; ScheduleError when there is none, or when several disjoint loops share the name."""
    path: list[Stmt] = []
    holders: Sequence[Stmt] = (program.body,) if name in program.body.loops else ()
    while len(holders) == 1:
        (s,) = holders
        if isinstance(s, For) and s.var == name:
            return LoopSite(s, tuple(path), s)
        path.append(s)
        holders = s.parts if len(s.parts) == 1 else [inner for inner in s.parts if name in inner.loops]
    known = [loop.var for loop in all_loops(program.body)]
    if name in known:
        raise ScheduleError(f"{primitive}: loop name '{name}' is ambiguous, {known.count(name)} loops have it")
    near = get_close_matches(name, known, n=4) or known[:12]
    raise ScheduleError(f"{primitive}: no loop '{name}' in program '{program.name}'; loops there: {', '.join(near)}")


def check_fresh(program: LoopProgram, names: tuple[str, ...], primitive: str) -> None:
    """ScheduleError when a new loop name is taken or repeated."""
    for position, name in enumerate(names):
        if name in program.body.loops or name in names[:position]:
            raise ScheduleError(f"{primitive}: loop name '{name}' is already in use; choose another one")


def replace_stmt(s: Stmt, target: Stmt, new: Stmt) -> Stmt:
    """``s`` with the very object ``target`` replaced; what does not hold it stays the same object, empty loops go."""
    if s is target:
        return new
    if not (target.loops <= s.loops and target.writes <= s.writes):
        return s
    changed = False

    def visit(inner: Stmt) -> Stmt:
        nonlocal changed
        result = replace_stmt(inner, target, new)
        changed = changed or result is not inner
        return result

    result = rebuild_stmt(s, visit)
    if not changed:
        return s
    return NOTHING if isinstance(result, (For, If, Alloc)) and result.body == NOTHING else result


def replace_at(program: LoopProgram, target: Stmt, new: Stmt) -> LoopProgram:
    """``program`` with the very object ``target`` of its body replaced."""
    return LoopProgram(program.name, program.params, replace_stmt(program.body, target, new))


def replace_site(program: LoopProgram, site: Site, new: Stmt) -> LoopProgram:
    """``program`` with the statement at ``site`` replaced: only what is around it is made anew; empty loops go."""
    old = site.stmt
    for outer in reversed(site.path):
        old, new = outer, _with(outer, old, new)
    return LoopProgram(program.name, program.params, new)


def _with(outer: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """``outer`` with the very object ``old`` of its parts replaced."""
    return NOTHING if new == NOTHING and not isinstance(outer, Seq) else with_part(outer, old, new)


def clean(s: Stmt, ranges: Ranges, given: tuple[Expr, ...] = ()) -> Stmt:
    """Simplifies expressions, drops conditions that hold and what never runs, but keeps all other loops by name.

    The variable of a loop of one iteration stays in the indices too, so that the loop can still be padded.
    """
    if isinstance(s, (Store, Intrinsic)):
        return _clean_leaf(s, tuple([ranges.get(name) for name in s.variables]), 1 in ranges.values())
    if isinstance(s, For):
        ranges = {**ranges, s.var: s.extent}
    if isinstance(s, (For, Seq, Alloc)):
        cleaned = rebuild_stmt(s, lambda inner: clean(inner, ranges, given))
        return NOTHING if isinstance(cleaned, For) and cleaned.body == NOTHING else cleaned
    if isinstance(s, If):
        wide = keep_single(ranges)
        kept: list[Expr] = []
        for c in conjuncts(simplify(s.cond, wide)):
            if simplify(c, ranges) == Const(False, "bool"):
                return NOTHING
            if not prove(c, ranges, (*given, *kept)):
                kept.append(c)
        inner = clean(s.body, ranges, (*given, *kept))
        return If(all_of(*kept), inner) if kept and inner != NOTHING else inner
    raise AssertionError(s)


@lru_cache(maxsize=1 << 12)
def _clean_leaf(s: Store | Intrinsic, extents: tuple[int | None, ...], single: bool) -> Stmt:
    """``s`` cleaned where its variables, in the order of ``s.variables``, have these extents, if known.

    ``single``: whether there is a loop of one iteration around it.
    """
    ranges = {name: n for name, n in zip(s.variables, extents, strict=True) if n is not None}
    wide = keep_single(ranges)
    return map_exprs(s, lambda e: simplify(_take_branches(e, ranges) if single else e, wide))


def _take_branches(e: Expr, ranges: Ranges) -> Expr:
    """``e`` with every select decided whose condition is constant over ``ranges``."""
    return _taken(e, tuple([ranges.get(name) for name in e.variables])) if e.children else e


@lru_cache(maxsize=1 << 14)
def _taken(e: Expr, extents: tuple[int | None, ...]) -> Expr:
    """``e`` with branches taken where its variables, in the order of ``e.variables``, have these extents, if known."""
    ranges = {name: n for name, n in zip(e.variables, extents, strict=True) if n is not None}
    if isinstance(e, Select):
        cond = simplify(e.cond, ranges)
        if isinstance(cond, Const):
            return _take_branches(e.a if cond.value else e.b, ranges)
    return rebuild(e, lambda child: _take_branches(child, ranges))


def rename_loops(s: Stmt, rename: Callable[[str], str]) -> Stmt:
    """``s`` with every loop renamed, its uses included."""
    if isinstance(s, For):
        name = rename(s.var)
        body = rename_loops(s.body, rename)
        return For(name, s.extent, s.kind, body if name == s.var else substitute_var(body, s.var, name))
    return rebuild_stmt(s, lambda inner: rename_loops(inner, rename))


def substitute_var(s: Stmt, old: str, new: str) -> Stmt:
    """``s`` with the variable ``old`` called ``new``."""
    return substitute_stmt(s, {old: Var(new)})


def guard(s: Stmt, cond: Expr) -> Stmt:
    """``s`` with ``cond`` around every innermost store, so that perfect nests stay perfect."""
    match s:
        case Store() | Intrinsic():
            return If(cond, s)
        case If(inner, body) if not loads(inner):
            return If(binary("and", cond, inner), body)
    return rebuild_stmt(s, lambda child: guard(child, cond))


# --- stages -----------------------------------------------------------------------------------------------------------


def stage_names(program: LoopProgram) -> list[str]:
    """Buffers that the program stores to, in order of their first store."""
    return list(dict.fromkeys(name for s in walk_stmt(program.body) if not s.parts for name in s.writes))


def stage_nests(program: LoopProgram, stage: str, primitive: str) -> list[Site]:
    """The largest loop nests that write ``stage`` and nothing else that outlives them, in program order."""
    if stage not in program.body.writes:
        raise ScheduleError(
            f"{primitive}: no stage '{stage}' in program '{program.name}'; stages: {', '.join(stage_names(program))}"
        )
    return list(_nests(program.body, stage, ()))


def _nests(s: Stmt, stage: str, path: tuple[Stmt, ...]) -> Iterator[Site]:
    if stage not in s.writes:
        return
    if not isinstance(s, (Seq, Alloc)) and s.writes - s.allocates == {stage}:
        yield Site(s, path)
        return
    for inner in s.parts:
        yield from _nests(inner, stage, (*path, s))


def find_alloc(program: LoopProgram, buffer: str, primitive: str) -> Site:
    """The allocation of ``buffer``; ScheduleError when it is a parameter or unknown."""
    found = next(alloc_sites(program.body, buffer), None)
    if found is not None:
        return found
    if any(p.name == buffer for p in program.params):
        raise ScheduleError(f"{primitive}: '{buffer}' is a parameter of program '{program.name}', not an intermediate")
    raise ScheduleError(f"{primitive}: no buffer '{buffer}' in program '{program.name}'")


def alloc_sites(s: Stmt, buffer: str, path: tuple[Stmt, ...] = ()) -> Iterator[Site]:
    """The allocations of ``buffer`` in ``s``, in program order."""
    if buffer in s.allocates:
        if isinstance(s, Alloc) and s.buffer.name == buffer:
            yield Site(s, path)
        for inner in s.parts:
            yield from alloc_sites(inner, buffer, (*path, s))


def perfect_chain(outer: For, inner: str) -> list[For] | None:
    """The loops from ``outer`` down to ``inner`` when nothing but conditions stands between them."""
    chain = [outer]
    s: Stmt = outer
    while chain[-1].var != inner:
        s = s.body  # type: ignore[attr-defined]
        while isinstance(s, If):
            s = s.body
        if not isinstance(s, For):
            return None
        chain.append(s)
    return chain
