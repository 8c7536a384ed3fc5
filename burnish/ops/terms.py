"""Terms of tensors: what compositions of operators are written with, as one writes arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.ops.operator import Application

Operand = "Term | float | int"


@dataclass(frozen=True, eq=False)
class Term:
    """A tensor in a graph that is being made; arithmetic with numbers and other terms adds nodes to it."""

    a: Application
    name: str
    dtype: str

    @classmethod
    def of(cls, a: Application, number: int) -> Term:
        """An input of the operator."""
        return cls(a, a.inputs[number], a.types[number][1])

    @classmethod
    def constant(cls, a: Application, value: Any, dtype: str) -> Term:
        """An array, or a number."""
        return cls(a, a.emit.constant(np.asarray(value), dtype=dtype), dtype)

    def apply(self, op: str, *others: Term | float | int, dtype: str | None = None, **attrs: Any) -> Term:
        """The result of an operator, of the same dtype or of another; numbers are constants of this term's dtype."""
        names = [o.name if isinstance(o, Term) else Term.constant(self.a, o, self.dtype).name for o in others]
        return Term(self.a, self.a.add(op, self.name, *names, **attrs), dtype or self.dtype)

    def cast(self, dtype: str) -> Term:
        """The same numbers in another dtype."""
        return self if dtype == self.dtype else self.apply("cast", dtype=dtype, to=dtype)

    def reshape(self, *shape: int) -> Term:
        """In another shape."""
        return self.apply("reshape", shape=shape)

    def transpose(self, *perm: int) -> Term:
        """With its dimensions in another order."""
        return self if perm == tuple(range(len(perm))) else self.apply("transpose", perm=perm)

    def expand(self, *shape: int) -> Term:
        """Broadcast."""
        return self.apply("expand", shape=shape)

    def part(self, shape: Sequence[int], axis: int, start: int, extent: int = 1) -> Term:
        """``extent`` elements along one axis; ``shape`` is this term's own."""
        starts = tuple(start if d == axis else 0 for d in range(len(shape)))
        extents = tuple(extent if d == axis else n for d, n in enumerate(shape))
        return self.apply("slice", starts=starts, extents=extents)

    def rows(self, index: Term) -> Term:
        """Rows, the elements of the first dimension, at the positions of ``index``."""
        return self.apply("gather", index, axis=0)

    def choose(self, yes: Term, no: Term | float) -> Term:
        """Of a condition: ``yes`` where it holds, else ``no``."""
        other = no if isinstance(no, Term) else Term.constant(self.a, no, yes.dtype)
        return self.apply("where", yes, other, dtype=yes.dtype)

    def clip(self, low: float, high: float) -> Term:
        """Within bounds."""
        return self.apply("clip", min=low, max=high)

    def __add__(self, other: Term | float) -> Term:
        return self.apply("add", other)

    def __sub__(self, other: Term | float) -> Term:
        return self.apply("sub", other)

    def __mul__(self, other: Term | float) -> Term:
        return self.apply("mul", other)

    def __truediv__(self, other: Term | float) -> Term:
        return self.apply("div", other)

    def __mod__(self, other: Term | float) -> Term:
        return self.apply("mod", other)

    def __lt__(self, other: Term | float) -> Term:
        return self.apply("less", other, dtype="bool")

    def __le__(self, other: Term | float) -> Term:
        return self.apply("less_equal", other, dtype="bool")

    def __gt__(self, other: Term | float) -> Term:
        return self.apply("greater", other, dtype="bool")

    def __ge__(self, other: Term | float) -> Term:
        return self.apply("greater_equal", other, dtype="bool")

    def __and__(self, other: Term) -> Term:
        return self.apply("logical_and", other)

    def __or__(self, other: Term) -> Term:
        return self.apply("logical_or", other)

    __radd__ = __add__
    __rmul__ = __mul__
