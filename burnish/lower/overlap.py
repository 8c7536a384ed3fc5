"""A loop whose last tile reaches over the end, with that tile moved back to where it is whole.

``for o in 4: for i in 16: if o * 16 + i < 56: S(o * 16 + i)`` becomes
``for o in 4: for i in 16: S(min(o * 16, 40) + i)``: what two tiles have in common is computed twice, for which there is
one tile's code instead of two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from burnish.loops.bounds import Ranges, linear_bounds
from burnish.loops.expr import Binary, Buffer, Const, Expr, Var, all_of, minimum
from burnish.loops.linear import from_linear, total_of
from burnish.loops.program import (
    HINTS,
    For,
    If,
    Intrinsic,
    Stmt,
    Store,
    map_exprs,
    rebuild_stmt,
    substitute_stmt,
    walk_stmt,
)
from burnish.loops.sizes import at_least, extent_of, is_size
from burnish.loops.traverse import conjuncts, transform
from burnish.lower.conditions import nonnegative_forms

_WASTE = 1 / 40  # of a loop's work: so much may be done twice


class Tail(NamedTuple):
    """Where a loop ends: tiles begin at ``step`` times its variable, the last one that is whole at ``last``.

    ``places``: by condition that says so, the place within a tile. ``last`` may be a size: then it need not exist.
    """

    step: int
    last: int
    places: dict[Expr, Expr]


def overlapped(loop: For, params: Collection[Buffer], ranges: Ranges) -> tuple[For, For] | None:
    """The loop with its last tile moved back: without the conditions of its end, and as it may run.

    They differ where what is computed twice must not be stored twice: a sum's store, that of a value read in the loop,
    or one to a parameter that may share memory with another. None if the loop has no such end, or too much would be
    computed twice, or it is not known how to move what is in it.
    """
    tail, own = find_tail(loop, ranges), loop.body.allocates
    if tail is None or is_size(tail.last) or not guarded(loop.body, tail, own):
        return None
    lanes = {s.var for s in walk_stmt(loop.body) if isinstance(s, For) and s.kind == "vectorize"}
    masked = any(not lanes.isdisjoint(place.variables) for place in tail.places.values())
    twice = tail.step * (loop.extent - 1) - tail.last
    repeatable = _repeatable(loop.body, params)
    # Some lanes of a vector take as long as all; but a mask that says which of them to store, in every tile, is slow
    if not repeatable if masked else twice > _WASTE * (tail.last + tail.step):
        return None
    place = Var(f"{loop.var}'")
    body = map_exprs(loop.body, lambda e: begin_at(e, loop.var, place, tail.step))
    if loop.var in body.variables:
        return None
    moved = tail._replace(places={begin_at(c, loop.var, place, tail.step): p for c, p in tail.places.items()})
    begin = {place.name: minimum(Var(loop.var) * tail.step, tail.last)}

    def finished(once: Expr | None) -> For:
        return For(loop.var, loop.extent, loop.kind, substitute_stmt(without(body, moved, own, once), begin))

    whole = finished(None)
    return whole, whole if repeatable else finished(Var(loop.var) * tail.step - place)


def find_tail(loop: For, ranges: Ranges) -> Tail | None:
    """Where the loop ends, if all conditions on that agree and only its last tile reaches over it."""
    inner = {s.var: s.extent for s in walk_stmt(loop.body) if isinstance(s, For)}
    found: dict[tuple[int, int], dict[Expr, Expr]] = {}
    for cond in dict.fromkeys(c for s in walk_stmt(loop.body) if isinstance(s, If) for c in conjuncts(s.cond)):
        for terms, const in nonnegative_forms(cond):
            step = -terms.get(Var(loop.var), 0)
            sizes = {atom: c for atom, c in terms.items() if is_size(atom)}
            place = {atom: -c for atom, c in terms.items() if atom != Var(loop.var) and atom not in sizes}
            if step <= 1 or not all(isinstance(atom, Var) and atom.name in inner for atom in place):
                continue
            low, high = linear_bounds((place, 0), {**ranges, **inner})
            if (low, high) != (0, step - 1):
                return None
            last = total_of(sizes, const) - step + 1
            found.setdefault((step, last), {})[cond] = from_linear(place, 0)
    if len(found) != 1:
        return None
    (((step, last), places),) = found.items()
    if is_size(last):
        end, begin = step * loop.extent, step * (loop.extent - 1)
        whole = at_least(end, last + step) and at_least(last + step, begin + 1)
    else:
        whole = step * (loop.extent - 2) <= last < step * (loop.extent - 1) and last > 0
    return Tail(step, extent_of(last), places) if whole else None


def guarded(s: Stmt, tail: Tail, own: frozenset[str]) -> bool:
    """Whether all that is stored, but in buffers of the loop's ``own``, is stored only before the loop's end."""
    if s.writes <= own and not _intrinsics(s):
        return True
    if isinstance(s, If) and any(c in tail.places for c in conjuncts(s.cond)):
        return not _intrinsics(s) and s.writes.isdisjoint(own)
    return bool(s.parts) and all(guarded(part, tail, own) for part in s.parts)


def _intrinsics(s: Stmt) -> bool:
    return any(isinstance(x, Intrinsic) and x.name not in HINTS for x in walk_stmt(s))


def _repeatable(body: Stmt, params: Collection[Buffer]) -> bool:
    """Whether computing and storing something again changes nothing.

    A parameter of the same form as one that is written may be the same memory, see ``compiler.in_place_pairs``.
    """
    outer = body.writes - body.allocates
    written = [b for b in params if b.name in outer]
    shared = {b.name for b in params for w in written if b is not w and (b.shape, b.dtype) == (w.shape, w.dtype)}
    sums = any(s.reduce is not None for s in _stores(body) if s.buffer.name in outer)
    return not sums and body.reads.isdisjoint(outer | shared)


def _stores(s: Stmt) -> Iterator[Store]:
    return (x for x in walk_stmt(s) if isinstance(x, Store))


def begin_at(e: Expr, var: str, place: Var, step: int) -> Expr:
    """``e`` with whole multiples of ``step * var`` as multiples of ``place``; others are left."""

    def begun(x: Expr) -> Expr:
        match x:
            case Binary("*", Var(name), Const(factor, _)) if name == var and factor % step == 0:
                return place * (int(factor) // step) if factor != step else place
        return x

    return transform(e, begun, lambda x: var in x.variables)


def without(s: Stmt, tail: Tail, own: frozenset[str], once: Expr | None) -> Stmt:
    """``s`` without the conditions of the end; ``once``: and what is at a place before that only once."""
    if not isinstance(s, If):
        return rebuild_stmt(s, lambda x: without(x, tail, own, once))
    conditions, body = conjuncts(s.cond), without(s.body, tail, own, once)
    kept = [c for c in conditions if c not in tail.places]
    ends = [tail.places[c] for c in conditions if c in tail.places]
    if ends and once is not None and not s.writes <= own:
        kept.append(ends[0] >= once)
    return If(all_of(*kept), body) if kept else body
