"""Remainder versions of a register tile: code of its own for the rows that a symbolic size leaves over.

``for o in (n + 9) // 10: for unroll i in 10: if o * 10 + i < n: S(o * 10 + i)`` becomes, behind a loop over ``n // 10``
whole tiles, one tile of eight rows, and one for each number of rows that may be left then::

    if n % 10 % 16 >= 8: for unroll i in 10: if i < 8: S(n - n % 10 % 16 + i)
    if n % 10 % 8 == 1: for unroll i in 10: if i < 1: S(n - n % 10 % 8 + i)
    if n % 10 % 8 == 2: for unroll i in 10: if i < 2: S(n - n % 10 % 8 + i)
    ...

So no tile asks for every row whether it is there, none is computed twice, and what all rows share is read at most twice
more. Conditions on ``i`` are gone when the tile is unrolled.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from burnish.loops.bounds import Ranges, symbolic_extent
from burnish.loops.expr import Expr, Var, all_of, equal, wrap
from burnish.loops.program import For, If, Stmt, map_exprs, rebuild_stmt, seq, substitute_stmt, walk_stmt
from burnish.loops.simplify import simplify_stmt
from burnish.loops.sizes import extent_of, is_size
from burnish.loops.traverse import conjuncts, transform, walk
from burnish.lower.overlap import Tail, begin_at, find_tail, guarded

MOST_ROWS = 32  # of a tile: what is left of a larger one is no register tile
APART = 8  # rows: of what is left, fewer have code for every number of them, which is faster than one for each bit


def remainders(loop: For, ranges: Ranges) -> tuple[int, list[Stmt]] | None:
    """The number of whole tiles of ``loop``, and what is left behind them, in order; None where it has another form."""
    tail = find_tail(loop, ranges)
    if tail is None or not is_size(tail.last) or tail.step > MOST_ROWS:
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
    whole = size // tail.step
    last = wrap(whole)  # the iteration whose rows these are: hints count by it
    found: list[Stmt] = []
    for rows, left, cond in _versions(size % tail.step, tail.step):
        begin = {place.name: wrap(size - left), loop.var: last}
        found.append(If(cond, substitute_stmt(_of_rows(body, moved, rows), begin)))
    return whole, found


def versions_inside(loop: For, ranges: Ranges) -> For | None:
    """A loop over tiles, alone or fused with others, whose body asks once whether its tile is whole.

    ``for x in 4 * ((n + 9) // 10): S(x % ((n + 9) // 10), x // ((n + 9) // 10))`` becomes the same loop around
    ``if x % ((n + 9) // 10) < n // 10``: the whole tile, and otherwise what :func:`remainders` leaves. None where the
    loop is not of this form.
    """
    for index, extent in _tile_indices(loop, ranges):
        tile = For(f"{loop.var}.tile", extent, "serial", map_exprs(loop.body, partial(_replaced, index, loop.var)))
        left = remainders(tile, {**ranges, loop.var: loop.extent})
        if left is None:
            continue
        whole, rest = left
        known = {**ranges, loop.var: loop.extent, tile.var: whole}
        main = If(Var(tile.var) < whole, simplify_stmt(tile.body, known))
        body = seq(main, If(Var(tile.var) >= whole, seq(*rest)))
        return For(loop.var, loop.extent, loop.kind, substitute_stmt(body, {tile.var: index}))
    return None


def _tile_indices(loop: For, ranges: Ranges) -> Iterator[tuple[Expr, int]]:
    """Tile indices of a loop, its variable or a digit of it, and the size that each counts to."""
    known = {**ranges, loop.var: loop.extent}
    conditions = dict.fromkeys(s.cond for s in walk_stmt(loop.body) if isinstance(s, If) and loop.var in s.variables)
    for e in dict.fromkeys(e for cond in conditions for e in walk(cond) if e.variables == {loop.var}):
        extent = symbolic_extent(e, known)
        if extent is not None:
            yield e, extent_of(extent)


def _replaced(index: Expr, var: str, e: Expr) -> Expr:
    """``e`` with the variable of the tile in place of what counts it."""
    return transform(e, lambda x: Var(f"{var}.tile") if x == index else x, lambda x: var in x.variables)


def _versions(rest: int, step: int) -> Iterator[tuple[int, int, Expr]]:
    """The tiles that make up ``rest`` rows, fewer than ``step``: rows, those left when it begins, when there is one."""
    for bit in reversed(range((step - 1).bit_length())):
        rows = 1 << bit
        if rows >= APART:
            left = rest % (2 * rows)
            yield rows, left, wrap(left >= rows, "bool")
    left = rest % APART
    for rows in range(1, min(step, APART)):
        yield rows, left, equal(left, rows)


def _of_rows(s: Stmt, tail: Tail, rows: int) -> Stmt:
    """``s`` with the conditions of the end as conditions on the place in a tile of ``rows`` rows."""
    if not isinstance(s, If):
        return rebuild_stmt(s, lambda x: _of_rows(x, tail, rows))
    kept = [tail.places[c] < rows if c in tail.places else c for c in conjuncts(s.cond)]
    return If(all_of(*kept), _of_rows(s.body, tail, rows))
