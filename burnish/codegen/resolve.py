"""Index resolution during emission: unrolled variables become numbers, the vector variable becomes lanes.

All answers are memoised per expression object and the values of the unrolled variables it contains, because an
unrolled register tile asks the same questions dozens of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from burnish.loops.expr import Buffer, Const, Expr, Load, Var, free_vars, substitute
from burnish.loops.linear import to_linear
from burnish.loops.simplify import bounds, simplify


@dataclass(frozen=True, slots=True)
class Address:
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


def flatten(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    """The flat element offset of an access."""
    flat: Expr = Const(0)
    for index, step in zip(indices, strides(buffer.shape), strict=True):
        flat = flat + index * step
    return flat


class Resolver:
    """``ranges``: extent of every loop in scope. ``fixed``: values of unrolled variables. ``vector``: (name, lanes)."""

    def __init__(self) -> None:
        self.ranges: dict[str, int] = {}
        self.fixed: dict[str, int] = {}
        self.vector: tuple[str, int] | None = None
        self._keep: list[object] = []  # keeps memoised objects alive, so that their ids stay theirs
        self._flat: dict[int, Expr] = {}
        self._vars: dict[int, tuple[str, ...]] = {}
        self._forms: dict[tuple[object, ...], Address] = {}
        self._exprs: dict[tuple[object, ...], Expr] = {}
        self._safe: dict[tuple[object, ...], bool] = {}

    def key(self, e: Expr) -> tuple[object, ...]:
        """Identifies ``e`` under the current values of the unrolled variables in it."""
        names = self._vars.get(id(e))
        if names is None:
            names = tuple(sorted(free_vars(e)))
            self._vars[id(e)] = names
            self._keep.append(e)
        fixed = self.fixed
        return (id(e), self.vector, *[fixed.get(n) for n in names])

    def expr(self, e: Expr) -> Expr:
        """``e`` with unrolled variables substituted, simplified."""
        key = self.key(e)
        found = self._exprs.get(key)
        if found is None:
            values: Mapping[str, Expr] = {n: Const(self.fixed[n]) for n in self._vars[id(e)] if n in self.fixed}
            found = simplify(substitute(e, values), self.ranges)
            self._exprs[key] = found
        return found

    def address(self, access: Load) -> Address:
        """The flat address of an access."""
        flat = self._flat.get(id(access))
        if flat is None:
            flat = flatten(access.buffer, access.indices)
            self._flat[id(access)] = flat
            self._keep.append(access)
        key = self.key(flat)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = self.form(self.expr(flat))
        return found

    def form(self, e: Expr) -> Address:
        """A resolved index expression as an :class:`Address`."""
        terms, const = to_linear(e)
        lane: int | None = 0
        rest: list[tuple[Expr, int]] = []
        for atom, c in terms.items():
            if self.vector is None or self.vector[0] not in free_vars(atom):
                rest.append((atom, c))
            elif isinstance(atom, Var) and lane is not None:
                lane += c
            else:
                lane = None
        return Address(tuple(rest), lane, const) if lane is not None else Address(((e, 1),), None, 0)

    def safe(self, access: Load) -> bool:
        """Whether the access is inside its buffer for every value of the running loops."""
        key = (id(access), *(k for i in access.indices for k in self.key(i)))
        found = self._safe.get(key)
        if found is None:
            self._keep.append(access)
            found = all(
                low >= 0 and high < extent
                for (low, high), extent in zip(
                    (bounds(self.expr(i), self.ranges) for i in access.indices), access.buffer.shape, strict=True
                )
            )
            self._safe[key] = found
        return found
