"""Index resolution during emission: unrolled variables become numbers, the vector variable becomes lanes.

All answers are memoised per expression and the values of the unrolled variables in it, because an unrolled register
tile asks the same questions dozens of times. Addresses are mostly affine in those variables: then one form of each
access is enough, into which their values are put.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from burnish.loops.bounds import linear_bounds
from burnish.loops.expr import INDEX, Buffer, Const, Expr, Load, Select, Var, wrap
from burnish.loops.linear import to_linear
from burnish.loops.simplify import bounds, simplify
from burnish.loops.sizes import is_size
from burnish.loops.traverse import index_only, substitute


class Address(NamedTuple):
    """An element offset ``sum(coefficient * term) + lane_step * lane + const``; ``lane_step`` None: not affine."""

    terms: tuple[tuple[Expr, int], ...]
    lane_step: int | None
    const: int


def strides(shape: tuple[int, ...]) -> list[int]:
    """Row-major strides in elements."""
    out = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        out[d] = out[d + 1] * shape[d + 1]
    return out


@lru_cache(maxsize=1 << 14)
def flatten(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """The flat element offset of an access."""
    flat: Expr = Const(0, INDEX)
    for index, step in zip(indices, strides(buffer.shape), strict=True):
        flat = flat + index * step
    return flat


class Affine(NamedTuple):
    """``address`` where the unrolled variables are zero, and the elements by which it moves with each of them."""

    address: Address
    steps: tuple[tuple[str, int], ...]


class Padded(NamedTuple):
    """An access that counts where ``cond`` holds. ``shift``: elements to another, for which it always does."""

    access: Load
    cond: Expr
    shift: int


class Resolver:
    """``ranges``: extent of every loop in scope. ``fixed``: values of unrolled variables. ``vector``: (name, lanes)."""

    def __init__(self) -> None:
        self.ranges: dict[str, int] = {}
        self.fixed: dict[str, int] = {}
        self.vector: tuple[str, int] | None = None
        self._affine: dict[tuple[object, ...], Affine | None] = {}
        self._forms: dict[tuple[object, ...], Address] = {}
        self._exprs: dict[tuple[object, ...], Expr] = {}
        self._chosen: dict[tuple[object, ...], Expr] = {}
        self._safe: dict[tuple[object, ...], bool] = {}
        self._padded: dict[tuple[object, ...], Padded | None] = {}

    def key(self, e: Expr) -> tuple[object, ...]:
        """Identifies ``e`` under the current values of the unrolled variables in it."""
        return (e, self.vector, *map(self.fixed.get, e.variables))

    def expr(self, e: Expr) -> Expr:
        """``e`` with unrolled variables substituted, simplified."""
        key = self.key(e)
        found = self._exprs.get(key)
        if found is None:
            values: dict[str, Expr] = {n: Const(self.fixed[n], INDEX) for n in e.variables if n in self.fixed}
            found = self._exprs[key] = simplify(substitute(e, values), self.ranges)
        return found

    def chosen(self, e: Expr) -> Expr:
        """The branch that ``e`` takes, as far as unrolled variables decide it."""
        if not isinstance(e, Select):
            return e
        key = self.key(e)
        found = self._chosen.get(key)
        if found is None:
            cond = self.expr(e.cond) if index_only(e.cond) else e.cond
            found = self.chosen(e.a if cond.value else e.b) if isinstance(cond, Const) else e
            self._chosen[key] = found
        return found

    def padded(self, e: Expr) -> Padded | None:
        """``e`` as a number in memory where an undecided condition holds, and zero elsewhere; None if it is no such."""
        if not isinstance(e, Select):
            return None
        key = self.key(e)
        if key not in self._padded:
            self._padded[key] = self._padding(self.chosen(e))
        return self._padded[key]

    def _padding(self, e: Expr) -> Padded | None:
        if not (isinstance(e, Select) and isinstance(e.a, Load) and isinstance(e.b, Const) and e.b.value == 0):
            return None
        shift = self._to_safe(e.a, e.cond) if index_only(e.cond) else None
        return None if shift is None else Padded(e.a, self.expr(e.cond), shift)

    def _to_safe(self, access: Load, cond: Expr) -> int | None:
        """Elements to the nearest access of the same unrolled tile for which the condition always holds."""
        here = self.address(access)
        for name in [n for n in self.fixed if n in cond.variables]:
            place = self.fixed[name]
            try:
                for other in sorted(range(self.ranges[name]), key=lambda at: abs(at - place)):
                    self.fixed[name] = other
                    there = self.address(access)
                    holds = self.expr(cond)
                    always = isinstance(holds, Const) and bool(holds.value) and self.safe(access, name)
                    if always and there.terms == here.terms:
                        return there.const - here.const
            finally:
                self.fixed[name] = place
        return None

    def address(self, access: Load) -> Address:
        """The flat address of an access."""
        key = (access, self.vector, tuple(self.fixed))
        if key in self._affine:
            affine = self._affine[key]
        else:
            affine = self._affine[key] = self._affine_form(access)
        if affine is None:
            return self._address(access)
        (terms, lane, const), steps = affine
        fixed = self.fixed
        for name, step in steps:
            const += step * fixed[name]
        return Address(terms, lane, const)

    def _affine_form(self, access: Load) -> Affine | None:
        """The address of an access as a function of the unrolled variables; None where it is not affine in them."""
        terms, const = to_linear(simplify(self._offset(access), self.ranges))
        steps = [(a.name, c) for a, c in terms.items() if isinstance(a, Var) and a.name in self.fixed]
        rest = {a: c for a, c in terms.items() if not (isinstance(a, Var) and a.name in self.fixed)}
        if any(not a.variables.isdisjoint(self.fixed) for a in rest):
            return None
        address = self._split(dict(sorted(rest.items(), key=lambda term: term[1] < 0)), const)
        return None if address is None else Affine(address, tuple(steps))

    def _address(self, access: Load) -> Address:
        flat = self._offset(access)
        key = self.key(flat)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = self.form(self.expr(flat))
        return found

    def _offset(self, access: Load) -> Expr:
        """The flat element offset of an access."""
        return flatten(access.buffer, access.indices)

    def form(self, e: Expr) -> Address:
        """A resolved index expression as an :class:`Address`."""
        return self._split(*to_linear(e)) or Address(((e, 1),), None, 0)

    def _split(self, terms: Mapping[Expr, int], const: int) -> Address | None:
        """A linear form with its step from lane to lane apart; None where it is not affine in the lane."""
        lane = 0
        rest: list[tuple[Expr, int]] = []
        for atom, c in terms.items():
            if self.vector is None or self.vector[0] not in atom.variables:
                rest.append((atom, c))
            elif isinstance(atom, Var):
                lane += c
            else:
                return None
        return Address(tuple(rest), lane, const)

    def safe(self, access: Load, loop: str | None = None) -> bool:
        """Whether the access is inside its buffer for every value of the running loops.

        ``loop``: as far as its indices on this loop are concerned.
        """
        key = (*self.key(access), loop)
        found = self._safe.get(key)
        if found is None:
            axes = zip(access.indices, access.buffer.shape, strict=True)
            concerned = [(i, extent) for i, extent in axes if loop is None or loop in i.variables]
            found = self._safe[key] = all(self._inside(self.expr(i), extent) for i, extent in concerned)
        return found

    def _inside(self, index: Expr, extent: int) -> bool:
        """Whether a resolved index is from 0 to below ``extent``."""
        low, high = bounds(index, self.ranges)
        if is_size(extent):
            beyond = simplify(wrap(index - extent), self.ranges)  # of two sizes it may be a number
            return low >= 0 and linear_bounds(to_linear(beyond), self.ranges)[1] < 0
        return low >= 0 and high < extent
