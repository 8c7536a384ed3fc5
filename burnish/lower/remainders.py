"""Remainder versions of a register tile: code for 8, 4, 2 and 1 of the rows that a symbolic size leaves over.

``for o in (n + 5) // 6: for unroll i in 6: if o * 6 + i < n: S(o * 6 + i)`` becomes, behind a loop over ``n // 6`` whole
tiles, one tile for each bit of ``n % 6``::

    if n % 6 % 8 >= 4: for unroll i in 6: if i < 4: S(n - n % 6 % 8 + i)
    if n % 6 % 4 >= 2: for unroll i in 6: if i < 2: S(n - n % 6 % 4 + i)
    if n % 6 % 2 >= 1: for unroll i in 6: if i < 1: S(n - n % 6 % 2 + i)

So no tile asks for every row whether it is there, and none is computed twice. Conditions on ``i`` are gone when the
tile is unrolled.
"""

from __future__ import annotations

from burnish.loops.bounds import Ranges
from burnish.loops.expr import Const, Var, all_of, wrap
from burnish.loops.program import For, If, Stmt, map_exprs, rebuild_stmt, substitute_stmt, walk_stmt
from burnish.loops.sizes import Size
from burnish.loops.traverse import conjuncts
from burnish.lower.overlap import Tail, begin_at, find_tail, guarded

MOST_ROWS = 32  # of a tile: what is left of a larger one is no register tile


def remainders(loop: For, ranges: Ranges) -> list[Stmt] | None:
    """What is left behind the whole tiles of ``loop``, in order; None where it is not of this form."""
    tail = find_tail(loop, ranges)
    if tail is None or not isinstance(tail.last, Size) or tail.step > MOST_ROWS:
        return None
    kinds = {s.var: s.kind for s in walk_stmt(loop.body) if isinstance(s, For)}
    unrolled = all(kinds[name] == "unroll" for place in tail.places.values() for name in place.variables)
    if not unrolled or not guarded(loop.body, tail, loop.body.allocates):
        return None
    place = Var(f"{loop.var}'")
    body = map_exprs(loop.body, lambda e: begin_at(e, loop.var, place, tail.step))
    if any(loop.var in s.variables for s in walk_stmt(body) if not s.parts and not s.hinted):
        return None
    moved = tail._replace(places={begin_at(c, loop.var, place, tail.step): p for c, p in tail.places.items()})
    size = tail.last + tail.step
    found: list[Stmt] = []
    last = wrap(size // tail.step)  # the iteration whose rows these are: hints count by it
    for bit in reversed(range((tail.step - 1).bit_length())):
        rows = 1 << bit
        left = size % tail.step % (2 * rows)
        cond = wrap(left >= rows, "bool")
        if isinstance(cond, Const) and not cond.value:
            continue
        begin = {place.name: wrap(size - left), loop.var: last}
        found.append(If(cond, substitute_stmt(_of_rows(body, moved, rows), begin)))
    return found


def _of_rows(s: Stmt, tail: Tail, rows: int) -> Stmt:
    """``s`` with the conditions of the end as conditions on the place in a tile of so many rows."""
    if not isinstance(s, If):
        return rebuild_stmt(s, lambda x: _of_rows(x, tail, rows))
    kept = [tail.places[c] < rows if c in tail.places else c for c in conjuncts(s.cond)]
    return If(all_of(*kept), _of_rows(s.body, tail, rows))
