"""Tile loops whose boundary conditions would be asked for every element: cut where those become true, or made whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from math import prod
from typing import NamedTuple

import numpy as np

from burnish.loops.bounds import Ranges, linear_bounds
from burnish.loops.expr import INDEX, Buffer, Const, Expr, Select, Var
from burnish.loops.linear import total_of
from burnish.loops.loaded import is_loaded
from burnish.loops.program import For, If, LoopProgram, Stmt, Store, rebuild_stmt, seq, substitute_stmt, walk_stmt
from burnish.loops.simplify import simplify, simplify_stmt
from burnish.loops.sizes import at_least, greatest, is_size
from burnish.loops.traverse import conjuncts, substitute
from burnish.lower.conditions import INNER, nonnegative_forms, selects
from burnish.lower.overlap import overlapped
from burnish.lower.remainders import remainders, versions_inside

# Where fewer of a tile's vectors may have a factor that is zero by a condition, and fewer of all multiply-adds do, that
# costs less than more code.
_SHARE, _WASTE = 1 / 7, 1 / 45
_FEW = 16  # iterations; of more, those at the border waste less


def partition_loops(program: LoopProgram) -> LoopProgram:
    """Rids tiles of conditions that cost time, in serial loops over them.

    Only conditions evaluated within unrolled or vectorized loops do; elsewhere a branch is cheaper than more code. So
    is padding of few numbers in a tile: each is read, or zero, without a branch. Where other conditions are not always
    true, the last tile is moved back to where it is whole. If some are left then, the loop is cut into first, main and
    last parts, and conditions of inner loops on it become conditions on those alone, by which they can be cut in turn.
    That is done in parts with more than a quarter of the iterations; in others less code is worth more. Of parallel
    loops only the last tile is moved, and runs behind the others.
    """
    return LoopProgram(program.name, program.params, _Partition(program.params).of(program.body, {}))


@dataclass
class _Partition:
    """One program's pass. ``numbers``: of the parts, which makes their loops' names."""

    params: Collection[Buffer]
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def of(self, s: Stmt, ranges: Ranges) -> Stmt:
        if not isinstance(s, For):
            return rebuild_stmt(s, lambda x: self.of(x, ranges))
        if is_loaded(s.extent):
            return self._inside(s, ranges)
        if s.kind == "serial" and greatest(s.extent) >= 2:
            low, high = _main_range(s, ranges)
            if is_size(high) or is_size(s.extent):
                return self._symbolic(s, low, high, ranges)
            # Where both ends reach into each other, the middle has the conditions of both, and the others those of one
            low, high = sorted((low, high))
            if (low, high) != (0, s.extent):
                whole = self._whole(s, ranges)
                if whole is not None:
                    return self._inside(whole, ranges)
                ends = ((0, low), (low, high), (high, s.extent))
                return seq(*(self._piece(s, begin, end, ranges) for begin, end in ends if begin < end))
        if s.kind == "parallel" and not is_size(s.extent) and _main_range(s, ranges) != (0, s.extent):
            return self._behind(s, ranges)
        if s.kind == "parallel" and is_size(s.extent):
            return self._inside(versions_inside(s, ranges) or s, ranges)
        return self._inside(s, ranges)

    def _behind(self, loop: For, ranges: Ranges) -> Stmt:
        """A parallel loop whose last tile, moved back to where it is whole, runs behind the others."""
        whole = self._whole(loop, ranges)
        if whole is None or loop.extent < 2:
            return self._inside(loop, ranges)
        last = loop.extent - 1
        alone = For(whole.var, whole.extent, "serial", whole.body)
        return seq(self._piece(whole, 0, last, ranges), self._piece(alone, last, loop.extent, ranges))

    def _symbolic(self, loop: For, low: int, high: int, ranges: Ranges) -> Stmt:
        """A loop whose main range is symbolic, or is part of a symbolic one: whole tiles, then what is left."""
        if (low, high) == (0, loop.extent) or not at_least(high, low):
            return self._inside(loop, ranges)
        found = remainders(loop, ranges)
        if found is None:
            ends = ((0, low), (low, high), (high, loop.extent))
            return seq(*(self._piece(loop, begin, end, ranges) for begin, end in ends if begin != end))
        whole, rest = found
        # Conditions other than the end's may hold in fewer tiles than are whole: triangles, bands. All of those are
        # cut here, for what is left begins behind the last of them
        main = high if at_least(whole, high) else whole
        parts = ((0, main), (main, whole))
        pieces = (self._piece(loop, begin, end, ranges) for begin, end in parts if begin != end)
        return seq(*pieces, *(self.of(simplify_stmt(s, ranges), ranges) for s in rest))

    def _inside(self, loop: For, ranges: Ranges) -> For:
        """The loop with those in it cut."""
        body = self.of(loop.body, {**ranges, loop.var: loop.extent})
        return loop if body is loop.body else For(loop.var, loop.extent, loop.kind, body)

    def _piece(self, loop: For, begin: int, end: int, ranges: Ranges) -> Stmt:
        """``for var in [begin, end)`` as a loop from zero, under a name of its own, its inner loops cut in turn."""
        often = 4 * greatest(end - begin) > greatest(loop.extent)
        whole = loop if often else self._inside(loop, ranges)
        name = f"{loop.var}~{next(self.numbers)}"
        body = substitute_stmt(whole.body, {loop.var: Var(name) + begin})
        piece = simplify_stmt(For(name, end - begin, loop.kind, body), ranges)
        if not often:
            return piece
        if isinstance(piece, For) and piece.var == name:
            return self._inside(piece, ranges)
        return self.of(piece, ranges)

    def _whole(self, loop: For, ranges: Ranges) -> For | None:
        """The loop with its last tile moved back, if that leaves it without conditions that cost time."""
        found = overlapped(loop, self.params, ranges)
        if found is None:
            return None
        bare, ready = (_simplified(each, ranges) for each in found)
        left = any(loop.var in c.variables for c in _costly(bare, {**ranges, loop.var: loop.extent}))
        return None if left else ready


def _simplified(loop: For, ranges: Ranges) -> For:
    """The loop with simpler expressions."""
    return For(loop.var, loop.extent, loop.kind, simplify_stmt(loop.body, {**ranges, loop.var: loop.extent}))


def _main_range(loop: For, ranges: Ranges) -> tuple[int, int]:
    """Main range: iterations in which every costly affine condition on the loop variable holds, for all inner loops."""
    low, high = 0, loop.extent
    own = {**ranges, loop.var: loop.extent}
    inner = {s.var: s.extent for s in walk_stmt(loop.body) if isinstance(s, For)}
    for cond in dict.fromkeys(_costly(loop, own)):
        for terms, const in nonnegative_forms(cond):
            c = terms.get(Var(loop.var), 0)
            sizes = {atom: k for atom, k in terms.items() if is_size(atom)}
            rest = {atom: k for atom, k in terms.items() if atom != Var(loop.var) and atom not in sizes}
            if c == 0 or any(not (isinstance(a, Var) and a.name in inner) for a in rest):
                continue
            worst, _ = linear_bounds((rest, const), {**own, **inner})
            if sizes or is_size(high):
                end = (total_of(sizes, int(worst)) - c) // -c if c < 0 else None
                high = end if end is not None and at_least(high, end) and at_least(end, 0) else high
                low = max(low, int(-(worst // c)) if worst < 0 else 0) if c > 0 and not sizes else low
            elif c > 0:
                low = max(low, int(-(worst // c)) if worst < 0 else 0)
            else:
                high = min(high, int(worst // -c) + 1 if worst >= 0 else 0)
    return min(low, greatest(loop.extent)), high if at_least(high, 0) else 0


class _Around(NamedTuple):
    """The loops between one and a statement in it, by extent; those of them that make up the statement's tile."""

    loops: Mapping[str, int] = {}
    unrolled: frozenset[str] = frozenset()
    lanes: frozenset[str] = frozenset()

    @property
    def tile(self) -> bool:
        """Whether the statement is in a tile."""
        return bool(self.unrolled or self.lanes)

    def inside(self, loop: For) -> _Around:
        """Loops around the body of one more loop, ``loop``."""
        unrolled, lanes = ({loop.var} if loop.kind == kind else set() for kind in INNER)
        return _Around({**self.loops, loop.var: loop.extent}, self.unrolled | unrolled, self.lanes | lanes)


def _costly(loop: For, ranges: Ranges) -> Iterator[Expr]:
    """Conjuncts of the conditions on a loop, in its body, that cost time."""
    todo: list[tuple[Stmt, _Around]] = [(loop.body, _Around())]
    while todo:
        s, around = todo.pop()
        if loop.var not in s.variables:
            continue
        if isinstance(s, For):
            around = around.inside(s)
        elif isinstance(s, If) and around.tile:
            yield from conjuncts(s.cond)
        elif isinstance(s, Store) and around.tile:
            for chosen in selects(s.value):
                if loop.var in chosen.cond.variables and _costs(chosen, loop, ranges, around):
                    yield from conjuncts(chosen.cond)
        todo.extend((part, around) for part in reversed(s.parts))


def _costs(chosen: Select, loop: For, ranges: Ranges, around: _Around) -> bool:
    """Whether it costs time that a factor is zero by a condition; a vector of factors has to be chosen by lane."""
    if not around.lanes.isdisjoint(chosen.variables) or chosen.cond.symbolic or is_size(loop.extent):
        return True
    ranges, conditions = {**ranges, **around.loops}, conjuncts(chosen.cond)
    tile = {name: around.loops[name] for name in around.unrolled}
    together = prod(extent for name, extent in tile.items() if name not in chosen.variables)
    if sum(_failing(cond, ranges, tile) for cond in conditions) > _SHARE * together:
        return True
    if loop.extent > _FEW:
        return False
    at = [{loop.var: Const(i, INDEX)} for i in range(loop.extent)]
    each = [_failing(simplify(substitute(c, i), ranges), ranges, around.loops) for c in conditions for i in at]
    return sum(each) > _WASTE * loop.extent


def _failing(cond: Expr, ranges: Ranges, loops: Mapping[str, int]) -> float:
    """The share of the iterations of ``loops`` in which ``cond`` does not hold for every value of other variables."""
    if isinstance(cond, Const):
        return float(not cond.value)
    known = sorted(cond.variables & ranges.keys())
    return _share_failing(cond, tuple((name, ranges[name], name in loops) for name in known))


@lru_cache(maxsize=1 << 12)
def _share_failing(cond: Expr, variables: tuple[tuple[str, int, bool], ...]) -> float:
    """See :func:`_failing`; ``variables``: those of the condition, their extents, and whether they are of the loops."""
    extents = {name: extent for name, extent, asked in variables if asked}
    others = {name: extent for name, extent, asked in variables if not asked}
    for terms, const in nonnegative_forms(cond):
        rest = {atom: c for atom, c in terms.items() if not (isinstance(atom, Var) and atom.name in extents)}
        if any(not atom.variables.isdisjoint(extents) for atom in rest):
            return 1.0
        lowest = np.asarray(linear_bounds((rest, const), others)[0])
        for name, extent in extents.items():
            lowest = np.add.outer(lowest, terms.get(Var(name), 0) * np.arange(extent))
        return float((lowest < 0).mean())
    return 1.0
